"""Scenarios side by side: wall time, the processor's CPU and other time, their shares, and the overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.report.sheets import Amount, Cell, Column, Sheet
from roastcoffea.report.terminal import print_sheets
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
    shares = (list(metrics)[place : place + SIDE_BY_SIDE] for place in range(0, len(metrics), SIDE_BY_SIDE))
    print_sheets([_sheet({label: metrics[label] for label in labels}, units) for labels in shares], file)
    frame = pd.DataFrame(
        [[values.get(name) for name in SHOWN.values()] for values in metrics.values()],
        index=pd.Index(list(metrics), name="scenario"),
        columns=list(SHOWN.values()),
        dtype=float,
    )
    frame.attrs["units"] = {name: str(units[name]) for name in SHOWN.values()}
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
    columns = [Column(name=""), *(Column(name=label, unit=COUNT) for label in scenarios)]
    return Sheet(title="scenarios", columns=columns, rows=rows, notes=list(lacking))


def _reasons(values: Mapping[str, Any]) -> list[str]:
    """Why metrics are missing."""
    missing = getattr(values, "missing", {})
    return [missing.get(name, f"{name} was not given") for name in SHOWN.values() if values.get(name) is None]
