"""A finding, how a function becomes one, and the verdict that ranks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, NamedTuple

from roastcoffea.diagnosis.savings import Taken
from roastcoffea.metrics.phases import FAMILY_OF, TROUBLE
from roastcoffea.records.run import NO_FILE
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Card, Sheet, absence
from roastcoffea.units import FRACTION, SECOND

LEAST: Final = 0.05
"""Share of the wall time that a finding must save: repeated runs differ by about as much."""

CAUSED_IDLE: Final = "idle until it is done"
"""Row of idle time that a finding's other rows cause."""


class Culprit(NamedTuple):
    """Who or what causes a finding.

    Attributes
    ----------
    kind : str
        "worker", "host", "file", "dataset", "branch", "section", "endpoint", "function" or "chunk size".
    name : str
        Its name.
    seconds : float or None
        Thread time that it costs; None if unknown.
    factor : float or None
        How many times slower, heavier or fuller it is than the others; None if that does not apply.
    label : str or None
        Its short name in texts, such as `node-1:2` of a worker; None if that is its name.
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
    """A bottleneck: what is slow and where, how much time it costs, and what to do about it.

    Attributes
    ----------
    cause : str
        Its name, such as "storage" or "slow worker".
    what : str
        What is slow and where: one sentence.
    advice : str
        What to do: one sentence, without the remedy.
    seconds : float or None
        Wall time that fixing the cause would save, by a replay of the run; None if unknown.
    interval : tuple of float or None
        Range of the saving, from the replay's own error.
    at_most : bool
        Whether the saving is an upper bound, because what would replace the cause is unknown.
    culprits : tuple of Culprit
        Culprits, most thread time first.
    remedy : str or None
        A value or a line to copy.
    rows : mapping
        Evidence: thread seconds by class of the time ledger, or by part of one.
    elapsed : float
        Wall time of the run, in seconds.
    incomplete : bool
        Whether the output lacks data.
    taken : Taken or None
        How a replay removes the cause; None if all threads share the time of its rows.
    outranks : bool
        Whether its culprit, or event, enlarges classes of time that are findings too.
    always : bool
        Whether it is a finding whatever time it saves.
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

    @property
    def severity(self) -> Literal["incomplete result", "high", "medium"]:
        """How severe it is: high where it costs a fifth of the wall time."""
        if self.incomplete:
            return "incomplete result"
        return "high" if (self.seconds or 0.0) >= 0.2 * self.elapsed else "medium"

    @property
    def headline(self) -> str:
        """What is wrong, in a few words."""
        return CAUSES[self.cause].headline if self.cause in CAUSES else self.cause.capitalize()

    @property
    def saves(self) -> str:
        """What fixing it saves, in a few words; empty where it is not known."""
        if self.seconds is None:
            return ""
        return f"fixing it saves {'at most' if self.at_most else 'about'} {SECOND.text(self.seconds)}"

    @property
    def text(self) -> str:
        """What is slow and where, what it costs, and what to do, with the remedy."""
        advice = f"{self.advice.removesuffix('.')}: {self.remedy}" if self.remedy else self.advice
        return " ".join(filter(None, (self.what, self.saving, advice)))

    @property
    def saving(self) -> str:
        """The saving as a sentence; empty if unknown."""
        if self.seconds is None:
            return ""
        between, idle = "", self.rows.get(CAUSED_IDLE, 0.0)
        if not self.at_most and self.interval is not None:
            low, high = map(SECOND.text, self.interval)
            unit = f" {high.rpartition(' ')[2]}"
            between = f" ({low.removesuffix(unit) if low.count(' ') == 1 else low} to {high})" if low != high else ""
        caused = f": threads sit idle for another {SECOND.text(idle)} of thread time until it is done"
        caused = caused if idle >= 0.1 * sum(self.rows.values()) else ""
        return f"{self.saves[0].upper()}{self.saves[1:]}{between} of {SECOND.text(self.elapsed)}{caused}."

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data, for other programs."""
        hidden = ("incomplete", "taken", "outranks", "always")
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in hidden}
        culprits = [culprit._asdict() for culprit in self.culprits]
        return own | {"culprits": culprits, "severity": self.severity, "text": self.text, "page": self.page}

    @property
    def card(self) -> Card:
        """The finding as a card, with its first culprit's name to stand out."""
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
        """Page of the documentation on its cause."""
        return page_of(self.cause)

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"

    def __repr__(self) -> str:
        return str(self)


def page_of(cause: str) -> str:
    """Page of the documentation on a cause."""
    return f"limited/{cause.replace(' ', '-')}"


Rule = Callable[[Any], Finding | Iterable[Finding] | None]
"""What a rule gets is `Evidence`, which lies above this module."""


class Cause(NamedTuple):
    """A cause of lost time: see `finding`."""

    name: str
    headline: str
    rule: Rule
    part: str
    shows: str
    first: str
    least: float
    looks_idle: bool
    outranks: bool

    def findings(self, evidence: Any) -> Iterator[Finding]:
        """Findings about this cause in a run, before their savings are known."""
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
    first: str,
    least: float = LEAST,
    looks_idle: bool = False,
    outranks: bool = False,
) -> Callable[[Rule], Rule]:
    """Register a function that finds a cause of lost time; its docstring is the cause's page of the documentation.

    The first line of the docstring is the title, the first paragraph says what it is, and what follows how to make
    sure and what to do. `docs/write_limited.py` puts what is printed for a run with this cause between them.

    Parameters
    ----------
    name
        The cause in one or two words, which a class of the time ledger may have as its `word`.
    headline
        What is wrong, in a few words.
    part, shows, first
        Where the index of these pages has it, how it shows in the time ledger, and what to try first.
    least
        Share of the wall time that it must save: more than `LEAST` for what healthy runs have, too.
    looks_idle
        Whether missing task rows would look like this cause.
    outranks
        Whether a named culprit or an event enlarges other classes of time.
    """

    def add(rule: Rule) -> Rule:
        CAUSES[name] = Cause(name, headline, rule, part, shows, first, least, looks_idle, outranks)
        return rule

    return add


UNMEASURED: Final = (
    "What tasks did was not measured, as no Runner called them: use MetricsCollector(client, everything=True), or "
    "submit roastcoffea.measured(function)."
)

NOTHING_READ: Final = f"{NO_FILE.capitalize()}: sections (track_time) show what tasks do."


class Verdict(list[Finding], Presented):
    """Findings: missing data first, then the largest saving; empty if the run is healthy.

    Without a time ledger it is empty as well, and `absent` has the reason. If the ledger lacks something, `incomplete`
    says what: nothing is then concluded from idle time, because missing records look like idle time.

    Attributes
    ----------
    together : float or None
        Wall time in seconds that fixing all findings would save: less than the sum of their savings.
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
    def healthy(self) -> bool:
        """Whether the evidence was complete and nothing was found."""
        return self.absent is None and not self.incomplete and not self

    @property
    def conclusion(self) -> str:
        """What fixing all findings saves, or that there is nothing to fix, and what to measure; may be empty."""
        return " ".join(filter(None, [self._outcome(), self._unmeasured]))

    def _outcome(self) -> str:
        saving = [one for one in self if not one.incomplete]
        if self.together is not None and len(saving) > 1:
            about = "at most" if any(one.at_most for one in saving) else "about"
            which = "all of them" if len(saving) == len(self) else "the others"
            return f"Fixing {which} saves {about} {SECOND.text(self.together)} of {SECOND.text(self._elapsed)}."
        if self or self.incomplete:
            return ""
        if self.absent is not None:
            return absence(self.absent)
        if self._failed:
            return "No bottleneck was found before the run ended."
        if self._unmeasured:
            return "Nothing around the tasks would save as much as 5 % of the wall time."
        return "Healthy: no single change would save as much as 5 % of the wall time."

    def sheets(self) -> list[Sheet]:
        """The bottleneck, and the findings."""
        if self.absent is not None:
            return [Sheet(title="verdict", lead=[absence(self.absent)])]
        around = [*filter(None, [self.not_interpreted]), *map(str, self), *filter(None, [self.conclusion])]
        title = "verdict: the measurement is incomplete" if self.incomplete else "verdict"
        if self._bound is not None:
            share = "" if self._share is None else f" ({FRACTION.text(self._share)} of thread time)"
            title = f"bottleneck: {self._bound}{share}"
        caption = " ".join(filter(None, [self.not_interpreted, self.conclusion]))
        return [Sheet(title=title, items=around, cards=[one.card for one in self], caption=caption)]

    @property
    def not_interpreted(self) -> str:
        """What the measurement lacks; empty if that is nothing."""
        if not self.incomplete:
            return ""
        return f"The measurement is incomplete, so idle time is not interpreted: {'; '.join(self.incomplete)}."
