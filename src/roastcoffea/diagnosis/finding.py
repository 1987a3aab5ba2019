"""Findings and verdicts, and the decorator that registers causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, NamedTuple

from roastcoffea.diagnosis.savings import Taken
from roastcoffea.metrics.phases import FAMILY_OF, TROUBLE
from roastcoffea.records.run import NO_FILE
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Card, Sheet, absence
from roastcoffea.units import FRACTION, rough

LEAST: Final = 0.05
"""Minimum saving for a finding, as a share of the wall time. Repeated runs differ by about that much."""

CAUSED_IDLE: Final = "idle until it is done"
"""Name of the row for idle time added by the cause."""


class Culprit(NamedTuple):
    """A worker, file, function or other item responsible for a finding.

    Attributes
    ----------
    kind : str
        "worker", "host", "file", "dataset", "branch", "section", "endpoint", "folder", "function", "job" or "chunk
        size".
    name : str
        Name of the culprit.
    seconds : float or None
        Thread time lost because of the culprit, in seconds; None if unknown.
    factor : float or None
        How many times slower or more error-prone the culprit is than the others. For a worker that ran out of memory,
        its peak memory as a fraction of its limit. None if no ratio applies.
    label : str or None
        Short name to display, such as `node-1:2` for a worker; None to display `name`.
    """

    kind: str
    name: str
    seconds: float | None = None
    factor: float | None = None
    label: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A bottleneck, with its cost in time and advice on fixing it.

    Attributes
    ----------
    cause : str
        Name of the cause, such as "storage" or "slow worker".
    what : str
        What is slow, and where, in one sentence.
    advice : str
        What to do, in one sentence. The remedy is separate.
    seconds : float or None
        Wall time that fixing the cause would save, estimated by replay; None if unknown.
    interval : tuple of float or None
        Lower and upper bounds on the saving, given the replay's error.
    at_most : bool
        Whether the saving is an upper bound, because a real fix may remove only part of the cause.
    culprits : tuple of Culprit
        Culprits, sorted by thread time, largest first.
    remedy : str or None
        A value or line of code to copy, if there is one.
    rows : mapping
        Seconds of thread time attributed to the cause, by time class or part of a class.
    elapsed : float
        The run's wall time, in seconds.
    incomplete : bool
        Whether data are missing from the output.
    taken : Taken or None
        The change that removes the cause in a replay. If None, the time in `rows` is spread over all threads.
    outranks : bool
        Whether the culprit or event also adds time to other findings' classes.
    always : bool
        Whether to report the finding regardless of its saving.
    of_others : bool
        Whether other users or programs are the cause. These findings are shown last.
    left : float or None
        Wall time that fixing the cause would still save once the findings shown before it are fixed; None if unknown.
    """

    cause: str = ""
    what: str
    advice: str
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    at_most: bool = False
    culprits: tuple[Culprit, ...] = ()
    remedy: str | None = None
    rows: Mapping[str, float]
    elapsed: float = 0.0
    incomplete: bool = False
    taken: Taken | None = field(default=None, compare=False, repr=False)
    outranks: bool = False
    always: bool = False
    of_others: bool = False
    left: float | None = None

    @property
    def severity(self) -> Literal["incomplete result", "high", "medium"]:
        """Severity: "high" if the saving is at least a fifth of the wall time."""
        if self.incomplete:
            return "incomplete result"
        return "high" if (self.seconds or 0.0) >= 0.2 * self.elapsed else "medium"

    @property
    def headline(self) -> str:
        """Short headline."""
        return CAUSES[self.cause].headline if self.cause in CAUSES else self.cause.capitalize()

    @property
    def saves(self) -> str:
        """Short description of the saving; empty if unknown or part of earlier savings."""
        return self._saving_after("fixing it", "fixing it too")

    @property
    def saves_then(self) -> str:
        """Shorter version of `saves` for lists of further findings."""
        return self._saving_after("", "then")

    def _saving_after(self, alone: str, later: str) -> str:
        left = self.seconds if self.left is None else self.left
        if not left:
            return ""
        subject = alone if self._is_all_left else later
        return f"{subject} saves {'at most' if self.at_most else 'about'} {rough(left)}".lstrip()

    @property
    def _is_all_left(self) -> bool:
        """Whether fixing the earlier findings leaves the saving unchanged."""
        return self.left is None or self.seconds is None or rough(self.left) == rough(self.seconds)

    @property
    def text(self) -> str:
        """Full text, including the saving, advice and remedy."""
        advice = f"{self.advice.removesuffix('.')}: {self.remedy}" if self.remedy else self.advice
        return " ".join(filter(None, (self.what, self.saving, advice)))

    @property
    def saving(self) -> str:
        """Sentence about the saving; empty if unknown."""
        if not self.saves:
            return ""
        between, idle = "", self.rows.get(CAUSED_IDLE, 0.0)
        if self._is_all_left and not self.at_most and self.interval is not None:
            low, high = map(rough, self.interval)
            unit = f" {high.rpartition(' ')[2]}"
            between = f" ({low.removesuffix(unit) if low.count(' ') == 1 else low} to {high})" if low != high else ""
        caused = f": threads sit idle for another {rough(idle)} of thread time until it is done"
        caused = caused if idle >= 0.1 * sum(self.rows.values()) else ""
        return f"{self.saves[0].upper()}{self.saves[1:]}{between} of {rough(self.elapsed)}{caused}."

    def to_dict(self) -> dict[str, Any]:
        """Convert the finding to a plain dictionary for use by other programs."""
        hidden = ("incomplete", "taken", "outranks", "always", "of_others")
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in hidden}
        culprits = [culprit._asdict() for culprit in self.culprits]
        return own | {"culprits": culprits, "severity": self.severity, "text": self.text, "page": self.page}

    @property
    def card(self) -> Card:
        known = {name: seconds for name, seconds in self.rows.items() if name in FAMILY_OF}
        first = self.culprits[0].label or self.culprits[0].name if self.culprits else ""
        return Card(
            title=self.headline,
            saving="" if self.incomplete else self.saves,
            what=self.what,
            advice=self.advice,
            culprit=first if first in self.what else "",
            remedy=self.remedy,
            family=FAMILY_OF[max(known, key=lambda name: known[name])] if known else TROUBLE,
        )

    @property
    def page(self) -> str:
        """Documentation page on the cause."""
        return page_of(self.cause)

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"

    def __repr__(self) -> str:
        return str(self)


def page_of(cause: str) -> str:
    """Documentation page on a cause, with an anchor if the page covers several causes."""
    name = cause.replace(" ", "-")
    page = CAUSES[cause].page if cause in CAUSES else None
    return f"limited/{page.name}#{name}" if page else f"limited/{name}"


Rule = Callable[[Any], Finding | Iterable[Finding] | None]
"""The argument is an `Evidence`. Importing that class here would create a circular import."""


class Page(NamedTuple):
    """A documentation page with an introduction and a section for each of several causes."""

    name: str
    title: str
    text: str = ""


class Cause(NamedTuple):
    """A cause of lost time; see `finding` for its fields."""

    name: str
    headline: str
    rule: Rule
    part: str
    shows: str
    least: float
    looks_idle: bool
    outranks: bool
    page: Page | None

    def findings(self, evidence: Any) -> Iterator[Finding]:
        """Yield a run's findings about this cause. Their savings are estimated later."""
        found = self.rule(evidence)
        for one in [found] if isinstance(found, Finding) else found or ():
            yield replace(one, cause=self.name, outranks=one.outranks or self.outranks)


CAUSES: Final[dict[str, Cause]] = {}


def finding(
    name: str,
    headline: str,
    *,
    part: str,
    shows: str,
    least: float = LEAST,
    looks_idle: bool = False,
    outranks: bool = False,
    page: Page | None = None,
) -> Callable[[Rule], Rule]:
    """Register a rule that detects a cause of lost time. The rule's docstring becomes a documentation page.

    The docstring's first line is the title, and its first paragraph describes the cause. The other paragraphs explain
    how to check for the cause, how to fix it, and when it is harmless. `docs/write_limited.py` inserts the output for
    an affected run after the first paragraph.

    Parameters
    ----------
    name
        Name of the cause, in one or two words. A time class with this `word` is attributed to the cause.
    headline
        Short headline.
    part, shows
        Group in the index of documentation pages, and the time classes that contain the lost time.
    least
        Minimum saving, as a share of the wall time. It exceeds `LEAST` for causes that also occur in healthy runs.
    looks_idle
        Whether missing task records could be mistaken for this cause.
    outranks
        Whether the culprit or event also adds time to other causes' classes.
    page
        Page shared with other causes. By default, the cause has a page of its own.
    """

    def add(rule: Rule) -> Rule:
        CAUSES[name] = Cause(name, headline, rule, part, shows, least, looks_idle, outranks, page)
        return rule

    return add


UNMEASURED: Final = (
    "Task activity was not measured because no Runner ran the tasks: use MetricsCollector(client, everything=True), "
    "or submit roastcoffea.measured(function)."
)

NOTHING_READ: Final = f"{NO_FILE.capitalize()}: sections (track_time) show what tasks do."


class Verdict(list[Finding], Presented):
    """A run's findings: missing data first, then the largest savings.

    The list is empty for a healthy run. It is also empty if there is no time ledger; `absent` then contains the
    reason. If records are missing, `incomplete` lists the gaps, and idle time is not interpreted, because missing
    records look like idle time.

    Attributes
    ----------
    together : float or None
        Wall time that fixing all findings would save, in seconds. It is at most the sum of their savings, and at least
        the sum of their `left` attributes.
    """

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        absent: str | None = None,
        incomplete: Iterable[str] = (),
        *,
        bound: str | None = None,
        share: float | None = None,
        together: float | None = None,
        elapsed: float = 0.0,
        failed: bool = False,
        unmeasured: str = "",
    ) -> None:
        super().__init__(findings)
        self.absent = absent
        self.incomplete = list(incomplete)
        self.together = together
        self._bound, self._share, self._elapsed, self._failed = bound, share, elapsed, failed
        self._unmeasured = unmeasured

    @property
    def shown(self) -> list[Finding]:
        """Findings in display order: causes outside the analysis come last."""
        return sorted(self, key=lambda one: one.of_others)

    @property
    def healthy(self) -> bool:
        """Whether the measurement is complete and there are no findings."""
        return self.absent is None and not self.incomplete and not self

    @property
    def conclusion(self) -> str:
        """Concluding text: the total saving, or a note that there is nothing to fix.

        It may also suggest what to measure next. The text may be empty.
        """
        return " ".join(filter(None, [self._outcome(), self._unmeasured]))

    def _outcome(self) -> str:
        saving = [one for one in self if not one.incomplete]
        limit = any(one.at_most for one in saving)
        # an upper limit close to the whole run is uninformative
        if self.together is not None and len(saving) > 1 and not (limit and self.together > 0.8 * self._elapsed):
            about = "at most" if limit else "about"
            which = "all of them" if len(saving) == len(self) else "the others"
            return f"Fixing {which} saves {about} {rough(self.together)} of {rough(self._elapsed)}."
        if self or self.incomplete:
            return ""
        if self.absent is not None:
            return absence(self.absent)
        if self._failed:
            return "No bottleneck was found before the run ended."
        if self._unmeasured:
            return "No change outside the tasks would save as much as 5 % of the wall time."
        return "Healthy: no single change would save as much as 5 % of the wall time."

    def sheets(self) -> list[Sheet]:
        if self.absent is not None:
            return [Sheet(title="verdict", lead=[absence(self.absent)])]
        around = [*filter(None, [self.not_interpreted]), *map(str, self.shown), *filter(None, [self.conclusion])]
        title = "verdict: the measurement is incomplete" if self.incomplete else "verdict"
        if self._bound is not None:
            share = "" if self._share is None else f" ({rough(self._share, FRACTION)} of thread time)"
            title = f"bottleneck: {self._bound}{share}"
        caption = " ".join(filter(None, [self.not_interpreted, self.conclusion]))
        return [Sheet(title=title, items=around, cards=[one.card for one in self.shown], caption=caption)]

    @property
    def not_interpreted(self) -> str:
        """Sentence about gaps in the measurement; empty if there are none."""
        if not self.incomplete:
            return ""
        return f"The measurement is incomplete, so idle time is not interpreted: {'; '.join(self.incomplete)}."
