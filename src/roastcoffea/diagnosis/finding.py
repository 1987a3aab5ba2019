"""Findings with their headlines, and the verdict that ranks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

from roastcoffea.diagnosis.evidence import HIGH
from roastcoffea.metrics.phases import FAMILY_OF, TROUBLE, Family
from roastcoffea.records.run import NO_FILE
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Card, Sheet, absence
from roastcoffea.units import FRACTION, SECOND

HEADLINES: Final = {
    "re-read": "Much was read more than once",
    "storage": "Reading waits for storage",
    "decompression": "Decompression is slow",
    "metadata": "Opening files is slow",
    "start-up": "New workers are slow to start",
    "contention": "Threads wait for a free core",
    "interpreter lock": "Threads wait for the interpreter lock (GIL)",
    "blocked": "process() waits instead of computing",
    "compute": "One function dominates process()",
    "repeated work": "Loading is repeated from chunk to chunk",
    "interpretation": "Building arrays is slow",
    "checkpoint": "Checkpoints are slow",
    "chunk size": "Small chunks repeat fixed work",
    "scheduler": "Task scheduling is slow",
    "transfer": "Tasks wait for results from other workers",
    "merge": "Merging results is slow",
    "preprocessing": "Preprocessing delays the run",
    "tail": "Threads sit idle while the last chunks run",
    "client": "Workers sit idle while the client is busy",
    "memory": "Workers run out of memory",
    "time limit": "A time limit ends workers",
    "failures": "Failed attempts waste time",
    "missing data": "The result is incomplete",
    "serialization": "Serialization is slow",
    "compression": "Dask's compression is slow",
    "other tasks": "Other tasks occupy the workers",
    "slow worker": "Slow worker",
    "slow host": "Slow host",
    "slow endpoint": "Slow storage server",
    "slow file": "Slow file",
    "slow dataset": "Slow dataset",
    "slow chunk": "One chunk takes much longer than the others",
}
"""Headlines by cause."""


def headline_of(cause: str) -> str:
    """Headline of a cause; one without gets its own name."""
    return HEADLINES.get(cause) or f"{cause[:1].upper()}{cause[1:]}"


Severity = Literal["incomplete result", "high", "medium"]

IDLE_SHARE: Final = 0.1
"""Smallest share of a finding's time that is mentioned as idle time which it causes."""

Rows = Mapping[str, float]
"""Thread seconds by class of the time ledger, or by part of a class."""


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


def _without_unit(low: str, high: str) -> str:
    """The lower end of an interval without its unit, if both ends have the same."""
    amount, _, unit = low.rpartition(" ")
    return amount if high.endswith(f" {unit}") and " " not in amount else low


def page_of(cause: str) -> str:
    """Page of the documentation on a cause."""
    return f"limited/{cause.replace(' ', '-')}"


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
        What to do: one sentence.
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
    """

    cause: str
    what: str
    advice: str
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    at_most: bool = False
    culprits: tuple[Culprit, ...] = ()
    remedy: str | None = None
    rows: Rows
    elapsed: float
    incomplete: bool = False

    @property
    def severity(self) -> Severity:
        """How severe it is: "incomplete result", "high" or "medium"."""
        if self.incomplete:
            return "incomplete result"
        return "high" if (self.seconds or 0.0) >= HIGH * self.elapsed else "medium"

    @property
    def headline(self) -> str:
        """What is wrong, in a few words."""
        return headline_of(self.cause)

    @property
    def saves(self) -> str:
        """What fixing it saves, in a few words; empty where it is not known."""
        if self.seconds is None:
            return ""
        return f"fixing it saves {'at most' if self.at_most else 'about'} {SECOND.text(self.seconds)}"

    @property
    def text(self) -> str:
        """What is slow and where, what it costs, and what to do."""
        return " ".join(part for part in (self.what, self.saving, self.advice) if part)

    @property
    def saving(self) -> str:
        """The saving as a sentence; empty if unknown."""
        if self.seconds is None:
            return ""
        of = f"of {SECOND.text(self.elapsed)}"
        idle = self.rows.get(CAUSED_IDLE, 0.0)
        if idle >= IDLE_SHARE * sum(self.rows.values()):
            of += f": threads sit idle for another {SECOND.text(idle)} of thread time until it is done"
        if self.at_most or self.interval is None:
            return f"Fixing it saves {'at most' if self.at_most else 'about'} {SECOND.text(self.seconds)} {of}."
        low, high = map(SECOND.text, self.interval)
        between = f" ({_without_unit(low, high)} to {high})" if low != high else ""
        return f"Fixing it saves about {SECOND.text(self.seconds)}{between} {of}."

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data, for other programs."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "incomplete"}
        culprits = [culprit._asdict() for culprit in self.culprits]
        return own | {"culprits": culprits, "severity": self.severity, "text": self.text, "page": self.page}

    @property
    def card(self) -> Card:
        """The finding as a card, with its first culprit's name to stand out."""
        first = self.culprits[0].label or self.culprits[0].name if self.culprits else ""
        return Card(
            title=self.headline,
            saving="" if self.incomplete else self.saves,
            what=self.what,
            advice=self._advice_without_remedy(),
            culprit=first if first in self.what else "",
            remedy=self.remedy,
            family=self._family(),
        )

    def _advice_without_remedy(self) -> str:
        """What to do, without the line to copy: that stands below it."""
        if not self.remedy or self.remedy not in self.advice:
            return self.advice
        advice = self.advice.replace(f": {self.remedy}", "")
        return "" if advice == f"Use {self.remedy}." else f"{advice.rstrip('.')}."

    def _family(self) -> Family:
        """Family of the class with most of its time."""
        known = {name: seconds for name, seconds in self.rows.items() if name in FAMILY_OF}
        return FAMILY_OF[max(known, key=lambda name: known[name])] if known else TROUBLE

    @property
    def page(self) -> str:
        """Page of the documentation on its cause."""
        return page_of(self.cause)

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"

    def __repr__(self) -> str:
        return str(self)


UNMEASURED = (
    "What tasks did was not measured, as no Runner called them: use MetricsCollector(client, everything=True), or "
    "submit roastcoffea.measured(function)."
)

NOTHING_READ = f"{NO_FILE.capitalize()}: sections (track_time) show what tasks do."


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
        """What fixing all findings saves, or that there is nothing to fix; empty for a single finding."""
        saving = [one for one in self if one.severity != "incomplete result"]
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
        before, after = self.not_interpreted, self.conclusion
        lines = [*filter(None, [before, *map(str, self), after])]
        caption = " ".join(filter(None, [before, after]))
        return [Sheet(title=self._title(), items=lines, cards=[one.card for one in self], caption=caption)]

    def _title(self) -> str:
        if self._bound is None:
            return "verdict: the measurement is incomplete" if self.incomplete else "verdict"
        share = "" if self._share is None else f" ({FRACTION.text(self._share)} of thread time)"
        return f"bottleneck: {self._bound}{share}"

    @property
    def not_interpreted(self) -> str:
        """What the measurement lacks; empty if that is nothing."""
        if not self.incomplete:
            return ""
        return f"The measurement is incomplete, so idle time is not interpreted: {'; '.join(self.incomplete)}."
