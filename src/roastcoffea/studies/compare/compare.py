"""Comparing runs: what differs, what explains it, and whether repeats can tell; or scenarios side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.report.sheets import Amount, Cell, Sheet, columns
from roastcoffea.report.terminal import print_sheets
from roastcoffea.studies.compare.comparison import Comparison
from roastcoffea.studies.compare.explanation import explained
from roastcoffea.studies.compare.gate import condition_of, outcome_of
from roastcoffea.studies.compare.repeats import CONFIDENCE
from roastcoffea.studies.compare.side_by_side import facts_of, rows_of, speed
from roastcoffea.studies.compare.sides import LETTERS, distinct, side_of
from roastcoffea.studies.sources import measurement_of
from roastcoffea.units import COUNT, Unit

if TYPE_CHECKING:
    import pandas as pd

SHOWN: Final[Mapping[str, str]] = {
    "wall time": "elapsed_time_seconds",
    "processor CPU": "processor_cpu_time_seconds",
    "processor non-CPU": "processor_noncpu_time_seconds",
    "CPU share": "processor_cpu_percentage",
    "non-CPU share": "processor_noncpu_percentage",
    "overhead CPU": "overhead_cpu_time_seconds",
    "overhead non-CPU": "overhead_noncpu_time_seconds",
}
"""Columns, and the metrics that they are."""

SIDE_BY_SIDE: Final = 4


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
    if not 2 <= len(given) <= len(LETTERS):
        raise ComparisonError(f"it takes two runs or more to compare, up to {len(LETTERS)}; {len(given)} given")
    if not 0.5 <= confidence < 1:
        raise ComparisonError(f"a confidence of {confidence} is none: it lies between 0.5 and 1")
    if labels and len(labels) != len(given):
        raise ComparisonError(f"{len(labels)} labels for {len(given)} runs: give one for each")
    names: Sequence[str | None] = labels or [None] * len(given)
    sides = distinct([side_of(*each, folder) for each in zip(LETTERS, given, names, strict=False)])
    first, others = sides[0].runs, sides[1:]
    pairs = product(others, conditions)
    return Comparison(
        sides=sides,
        confidence=confidence,
        speeds=tuple(speed(first, side.runs, confidence) for side in others),
        explanations=tuple(explained(first, side.runs) for side in others),
        facts=facts_of(sides),
        rows=rows_of(sides, confidence),
        outcomes=tuple(outcome_of(one, first, side.runs, side.letter, confidence) for side, one in pairs),
    )


# Scenarios


def compare_scenarios(scenarios: Mapping[str, Any], file: IO[str] | None = None) -> pd.DataFrame:
    """Print scenarios side by side; give the table, one row a scenario and one column a metric.

    Parameters
    ----------
    scenarios : mapping
        A collector, a measurement, its path, or a mapping of metrics, for each label.
    file : optional
        Where the table goes; the terminal by default.

    Raises
    ------
    ComparisonError
        If there is no scenario, or they have no labels.
    """
    import pandas as pd

    if not isinstance(scenarios, Mapping):
        raise ComparisonError(f"scenarios are {{label: run, ...}}, and no {type(scenarios).__name__}")
    if not scenarios:
        raise ComparisonError("there are no scenarios: give {label: run, ...}")
    metrics = {label: _metrics(run) for label, run in scenarios.items()}
    units = {metric.name: metric.unit for metric in CATALOGUE.metrics()}
    places, names = range(0, len(metrics), SIDE_BY_SIDE), list(SHOWN.values())
    print_sheets([_sheet(dict([*metrics.items()][at : at + SIDE_BY_SIDE]), units) for at in places], file)
    rows = [[values.get(name) for name in names] for values in metrics.values()]
    frame = pd.DataFrame(rows, index=pd.Index(list(metrics), name="scenario"), columns=names, dtype=float)
    frame.attrs["units"] = {name: str(units[name]) for name in names}
    return frame


def _metrics(run: Any) -> Mapping[str, Any]:
    if isinstance(run, Metrics):
        return run
    if isinstance(run, Mapping):
        older = {name: run[alias] for alias, name in CATALOGUE.aliases.items() if alias in run}
        return older | dict(run)
    return measurement_of(run).metrics


def _sheet(scenarios: Mapping[str, Mapping[str, Any]], units: Mapping[str, Unit]) -> Sheet:
    """Scenarios as columns."""
    rows: list[list[Cell]] = [
        [title, *(Amount(values.get(name), units[name]) for values in scenarios.values())]
        for title, name in SHOWN.items()
    ]
    lacking = dict.fromkeys(f"{label}: {reason}" for label, values in scenarios.items() for reason in _reasons(values))
    heads = columns(None, "") + columns(COUNT, *scenarios)
    return Sheet(title="scenarios", columns=heads, rows=rows, notes=list(lacking))


def _reasons(values: Mapping[str, Any]) -> list[str]:
    """Why metrics are missing."""
    missing = getattr(values, "missing", {})
    return [missing.get(name, f"{name} was not given") for name in SHOWN.values() if values.get(name) is None]
