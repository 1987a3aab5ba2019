"""Comparing runs: what differs, what explains it, and whether repeats can tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roastcoffea.errors import ComparisonError
from roastcoffea.studies.compare.comparison import Comparison
from roastcoffea.studies.compare.explanation import explained
from roastcoffea.studies.compare.gate import condition_of, outcome_of
from roastcoffea.studies.compare.repeats import CONFIDENCE
from roastcoffea.studies.compare.side_by_side import facts_of, rows_of
from roastcoffea.studies.compare.sides import LETTERS, side_of
from roastcoffea.studies.compare.speed import speed


def compare(
    *given: Any,
    labels: Sequence[str] | None = None,
    fail_if: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    folder: Path | None = None,
) -> Comparison:
    """Compare runs with the first of them: what differs, why, and whether repeats can tell.

    Parameters
    ----------
    given
        Two or more of: a measurement, a collector, a path, or a list of them, which are repeats of one run. A path is
        that of a measurement, of a folder of repeats, a pattern, or a name to which repeats have added a number.
    labels
        What to call them, one for each.
    fail_if
        Conditions on the change of metrics, such as "event_rate_core_khz < -10%"; see `Comparison.status`.
    confidence
        Of intervals, verdicts and conditions.
    folder
        Where a name is looked for that is not found as a path.

    Raises
    ------
    ComparisonError
        If there is nothing to compare, labels are too few or too many, or a condition cannot be understood.
    MeasurementError
        If a measurement cannot be read.
    """
    conditions = [condition_of(text) for text in fail_if]
    _refuse_unusable(given, labels, confidence)
    names: Sequence[str | None] = labels or [None] * len(given)
    sides = tuple(side_of(*each, folder) for each in zip(LETTERS, given, names, strict=False))
    first, others = sides[0].runs, sides[1:]
    return Comparison(
        sides=sides,
        confidence=confidence,
        speeds=tuple(speed(first, side.runs, confidence) for side in others),
        explanations=tuple(explained(first, side.runs) for side in others),
        facts=facts_of(sides),
        rows=rows_of(sides, confidence),
        outcomes=tuple(
            outcome_of(condition, first, side.runs, side.letter, confidence)
            for side in others
            for condition in conditions
        ),
    )


def _refuse_unusable(given: Sequence[Any], labels: Sequence[str] | None, confidence: float) -> None:
    if not 2 <= len(given) <= len(LETTERS):
        raise ComparisonError(f"it takes two runs or more to compare, up to {len(LETTERS)}; {len(given)} given")
    if not 0.5 <= confidence < 1:
        raise ComparisonError(f"a confidence of {confidence} is none: it lies between 0.5 and 1")
    if labels and len(labels) != len(given):
        raise ComparisonError(f"{len(labels)} labels for {len(given)} runs: give one for each")
