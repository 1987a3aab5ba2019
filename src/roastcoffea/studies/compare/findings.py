"""All that a comparison of runs finds."""

from __future__ import annotations

from dataclasses import dataclass

from roastcoffea.studies.compare.explanation import Explanation
from roastcoffea.studies.compare.gate import FAILED, PASSED, STATUS, UNKNOWN, Outcome
from roastcoffea.studies.compare.side_by_side import Fact, Row
from roastcoffea.studies.compare.sides import Side
from roastcoffea.studies.compare.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Runs side by side, each against the first."""

    sides: tuple[Side, ...]
    confidence: float
    speeds: tuple[Speed, ...]
    """Verdict on each side but the first."""
    explanations: tuple[Explanation, ...]
    """Why each side but the first differs from it."""
    facts: tuple[Fact, ...]
    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    """What became of the conditions of `fail_if`."""

    @property
    def verdict(self) -> str:
        """ "faster", "slower" or "cannot tell", of the second side."""
        return self.speeds[0].word

    @property
    def explanation(self) -> Explanation:
        """Why the second side differs from the first."""
        return self.explanations[0]

    @property
    def status(self) -> int:
        """Exit status of a gate: 0, 1 (a condition failed, with evidence) or 2 (one cannot be told)."""
        words = [outcome.word for outcome in self.outcomes]
        return STATUS[FAILED if FAILED in words else UNKNOWN if UNKNOWN in words else PASSED]
