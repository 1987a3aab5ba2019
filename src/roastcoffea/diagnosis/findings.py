"""Findings, and the verdict that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from roastcoffea.report.phrases import absence
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Sheet
from roastcoffea.units import SECOND


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that could be won: `seconds` of wall time if what is in `rows` (thread seconds) vanished for all.

    The other rows are taken to stay. Some of the idle time may be there because of it: that would be won besides.
    """

    cause: str
    seconds: float
    text: str
    rows: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


class Verdict(list[Finding], Presented):
    """Findings, the worst first; empty where the run is healthy.

    Where there is no time ledger to judge by it is empty as well, and `absent` has the reason. Where the ledger lacks
    something, `incomplete` says what: then nothing is said of idle time, as what is lacking looks like it.
    """

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        absent: str | None = None,
        incomplete: Iterable[str] = (),
        *,
        bound: str | None = None,
        elapsed: float = 0.0,
        failed: bool = False,
    ) -> None:
        super().__init__(findings)
        self.absent = absent
        self.incomplete = list(incomplete)
        self._bound, self._elapsed, self._failed = bound, elapsed, failed

    @property
    def healthy(self) -> bool:
        """Whether there was all to judge by, and nothing was found."""
        return self.absent is None and not self.incomplete and not self

    def sheets(self) -> list[Sheet]:
        """What binds the run, and what could be won."""
        if self.absent is not None:
            return [Sheet(title="verdict", lead=[absence(self.absent)])]
        return [Sheet(title="incomplete" if self._bound is None else f"bound by {self._bound}", items=self._lines())]

    def _lines(self) -> list[str]:
        """What could be won, a line each; what there is to say where that is nothing."""
        lines = [
            f"{finding.cause}, worth {SECOND.text(finding.seconds)} of {SECOND.text(self._elapsed)}: {finding.text}."
            for finding in self
        ]
        if self.incomplete:
            lines.insert(0, f"Incomplete, so that nothing is said of idle time: {'; '.join(self.incomplete)}.")
        if lines:
            return lines
        if self._failed:
            return ["Nothing was found before it failed."]
        return ["Nothing was found that could be won by a change of the settings."]
