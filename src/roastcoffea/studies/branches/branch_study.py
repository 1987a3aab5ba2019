"""A study of how bytes read and output size grow with the number of branches that an analysis reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import ComparisonError
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import known_sum
from roastcoffea.metrics.phases import METADATA, PAYLOAD, REREAD
from roastcoffea.records.tasks import OK, PROCESSOR
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Column, Sheet
from roastcoffea.studies.branches.branch_figure import COLUMNS, SCALING, Growth, InputOutput
from roastcoffea.units import BYTE, COUNT, RATIO, SECOND, Unit, number, three_digits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COUNTS: Final = (1, 2, 3, 5, 10)

FLAT: Final = 0.05
"""Relative growth below which an amount counts as constant."""

LESS: Final = 0.75
"""Growth of outputs relative to input below which part of the output is fixed."""

METRICS: Final = {
    "branches_read": "total_branches_read",
    "chunks": "num_chunks",
    "events": "total_events",
    "bytes_read": "total_bytes_read",
    "bytes_uncompressed": "total_bytes_uncompressed",
    "elapsed_time_seconds": "elapsed_time_seconds",
}
"""Columns of the table that are metrics of a run, and those that are classes of its byte ledger."""
CLASSES: Final = {"bytes_payload": PAYLOAD, "bytes_reread": REREAD, "bytes_metadata": METADATA}

OF_RESULTS: Final = ("tasks", "bytes_per_task")
"""Columns that are missing along with the results, for the same reason."""

TWO_DIGITS: Final = Unit("", "{:.2f}".format)

STRAIGHT: Final = 0.9
"""Correlation above which two amounts grow together."""


@dataclass(frozen=True)
class BranchStudy(Growth, Presented):
    """Result of a branch study: `table` has a row for each count, `measurements` the runs themselves."""

    measurements: tuple[Measurement, ...]

    @property
    def output(self) -> str:
        """Column used as output: results if measured, otherwise the merged output."""
        return "bytes_output" if self.table["bytes_results"].isna().any() else "bytes_results"

    @property
    def scaling(self) -> dict[str, InputOutput]:
        """How bytes read and payload scale against the output, if both are known; see `InputOutput`."""
        found = {read: self.compared(read, self.output) for read in ("bytes_read", "bytes_payload")}
        return {read: pair for read, pair in found.items() if pair is not None}

    @property
    def sentence(self) -> str:
        """What the size of outputs can be used for, and what not."""
        name = self.output
        read = "bytes_uncompressed" if self.growth("bytes_payload") is None else "bytes_payload"
        output, payload = self.growth(name), self.growth(read)
        if output is None or payload is None:
            return "No conclusion on output size: input or output was not measured for every count."
        size = f"{COLUMNS[name].label} ({COLUMNS[name].meaning})"
        input_grown = f"{COLUMNS[read].label} grew x{_times(payload)}"
        grown = f"From the first count to the last {input_grown}, {size} x{_times(output)}"
        together = self.correlation(read, name)
        if abs(output - 1) <= FLAT:
            return f"{grown}: the output size does not depend on the bytes read, only on what the processor fills."
        if self.few:
            return f"{grown}: a correlation needs three or more counts."
        if together is None or together < STRAIGHT:
            return f"{grown}, uncorrelated: the output size is no measure of the input."
        share = "part of it is fixed, and " if output < payload * LESS else ""
        return (
            f"{grown} (correlation {together:.2f}): {share}output size indicates how many columns are kept. It is "
            "no measure of bytes read from storage, which are compressed and include metadata."
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the table, such as why there is no payload."""
        # branches were read without requests of their own
        embedded = (self.table["bytes_payload"] == 0).all() and (self.table["bytes_uncompressed"] > 0).any()
        absent = {name: reason for name, reason in self.table.attrs["absent"].items() if name not in OF_RESULTS}
        reasons = (f"{COLUMNS[name].label}: not measured, {reason}" for name, reason in absent.items())
        return [*([_embedded(self.table)] if embedded else []), *reasons]

    def sheets(self) -> list[Sheet]:
        """The table, the growth of amounts, and what output size indicates."""
        shown = [name for name in COLUMNS if name != "branches_asked" and not self.table[name].isna().all()]
        known = [name for name in SCALING if self.growth(name) is not None]
        counts = [Column(name=str(count), unit=COUNT) for count in self.table["branches_asked"]]
        amounts = [_cells(name, self.table[name], COLUMNS[name].unit) for name in shown]
        growth = [[*_cells(name, self.ratios[name], RATIO), self.correlations.get(name)] for name in known]
        heads = [Column("growth to"), *counts, Column("correlation", TWO_DIGITS)]
        title = "growth with the number of branches"
        pair = Column("mean growth"), Column("of input", RATIO), Column("of output", RATIO)
        heads_of_scaling = [*pair, Column("difference", TWO_DIGITS), Column("correlation", TWO_DIGITS)]
        scaling: list[list[Cell]] = [
            [f"{COLUMNS[one.read].label}, {COLUMNS[one.output].label}", *one[2:6]] for one in self.scaling.values()
        ]
        decided = [one.sentence for one in self.scaling.values()]
        return [
            Sheet(title="branch study", columns=[Column("requested"), *counts], rows=amounts, notes=self.notes),
            Sheet(title=title, columns=heads, rows=growth, notes=[self.sentence]),
            Sheet(title="output against input", columns=heads_of_scaling, rows=scaling, notes=decided),
        ]

    markdown = Presented.to_markdown

    def plot(self, output_path: str | PathLike[str] | None = None, *, by: str = "read") -> Figure:
        """Draw the study in four panels.

        Parameters
        ----------
        output_path : optional
            File to save the figure to; its suffix (png, pdf, svg) says how.
        by : {"read", "asked"}
            Input, output, growth, and output against input by the number of branches read; or, as in the older
            prototype's study, bytes read, results, mean task output and growth by the requested number.

        Raises
        ------
        ValueError
            If `by` is neither, or is "asked" and results were not measured.
        """
        from roastcoffea.studies.branches.branch_figure import FIGURES
        from roastcoffea.visualization.registry import save

        if by not in FIGURES:
            raise ValueError(f"by={by!r}: choose one of {', '.join(map(repr, FIGURES))}")
        figure = FIGURES[by](self)
        if output_path is not None:
            save(figure, output_path)
        return figure


def branch_study(
    processor_factory: Callable[[int], Any],
    fileset: Mapping[str, Any],
    counts: Sequence[int] = COUNTS,
    *,
    client: Any = None,
    runner: Any = None,
    chunksize: int = 100_000,
    treename: str = "Events",
) -> BranchStudy:
    """Run an analysis with several numbers of branches, and relate input and output to that number.

    Parameters
    ----------
    processor_factory : callable
        Returns a processor that reads this many branches.
    fileset : mapping
        Fileset for a Runner.
    counts : sequence of int
        Numbers of branches.
    client : distributed.Client, optional
        Cluster to run on; without it and without `runner`, chunks run locally in sequence.
    runner : coffea.processor.Runner, optional
        Runner to use instead of a new one; for one on Dask, pass its client as well.
    chunksize : int
        Events per chunk, for a new Runner.
    treename : str
        Tree name, for files without one in the fileset.

    Raises
    ------
    ComparisonError
        If `counts` are not integers, or fewer than two are distinct; nothing is run then.
    """
    counts = _checked(counts)
    runner = runner or _runner(client, chunksize)
    rows, measurements = [], []
    for count in counts:
        with MetricsCollector(client) as collector:
            output = runner(fileset, treename=treename, processor_instance=processor_factory(count))
        if isinstance(output, tuple) and len(output) == 2:
            output, _ = output  # the metrics that the Runner returns
        measurements.append(collector.measurement)
        rows.append(_row(count, collector.measurement, output))
    return BranchStudy(_table(rows, measurements), tuple(measurements))


def _runner(client: Any, chunksize: int) -> Any:
    from coffea.nanoevents import NanoAODSchema
    from coffea.processor import DaskExecutor, IterativeExecutor, Runner

    executor = IterativeExecutor(status=False) if client is None else DaskExecutor(client=client, status=False)
    return Runner(executor=executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)


def _checked(counts: object) -> list[int]:
    """Numbers of branches, at least two of them distinct."""
    given = list(counts) if isinstance(counts, Iterable) and not isinstance(counts, str) else counts
    whole = isinstance(given, list) and all(isinstance(one, Integral) and not isinstance(one, bool) for one in given)
    if not isinstance(given, list) or not whole or len(set(given)) < 2 or min(given) < 0:
        raise ComparisonError(f"counts must be at least two different numbers of branches, as in [1, 5], not {given!r}")
    return [int(one) for one in given]


def pickled_size(thing: object) -> int | None:
    """Size of a pickle, which is not kept; None for objects that cannot be pickled.

    Dask's sizeof counts only the outermost object of classes that it does not know, such as awkward arrays and
    histograms.
    """
    import cloudpickle

    sizes: list[int] = []
    file = SimpleNamespace(write=lambda data: sizes.append(memoryview(data).nbytes))
    try:
        cloudpickle.dump(thing, file)
    except Exception as error:  # noqa: BLE001  (the output is the user's)
        raise_if_interrupted(error)
        return None
    return sum(sizes)


def _row(count: int, measurement: Measurement, output: Any) -> dict[str, Any]:
    metrics, ledger = measurement.metrics, measurement.byte_ledger
    found: dict[str, Any] = {"branches_asked": count}
    found |= {name: metrics.get(metric) for name, metric in METRICS.items()}
    found |= {name: ledger.get(of) for name, of in CLASSES.items()}
    return found | _results(measurement) | {"bytes_output": pickled_size(output)}


def _results(measurement: Measurement) -> dict[str, float | None]:
    """Number of the chunks' tasks and size of their results, each in its last attempt, if a scheduler recorded them."""
    tasks = measurement.run.tasks
    if tasks is None:
        return dict.fromkeys(("tasks", "bytes_results", "bytes_per_task"))
    good = pc.and_(pc.equal(tasks["kind"], PROCESSOR), pc.equal(tasks["outcome"], OK))
    done = tasks.select(["key", "nbytes"]).filter(good)
    sizes = done.group_by("key").aggregate([("nbytes", "max")])["nbytes_max"]
    size = None if done["nbytes"].null_count else int(known_sum(sizes))
    mean = None if size is None or not len(sizes) else size / len(sizes)
    return {"tasks": len(sizes), "bytes_results": size, "bytes_per_task": mean}


def _table(rows: Sequence[Mapping[str, Any]], measurements: Sequence[Measurement]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    kinds = {name: "Int64" for name, column in COLUMNS.items() if column.unit is not SECOND}
    frame = frame.astype(kinds | {"bytes_per_task": "Float64"})
    frame.attrs = {
        "columns": {name: f"{column.meaning} [{column.unit}]" for name, column in COLUMNS.items()},
        "units": {name: str(column.unit) for name, column in COLUMNS.items()},
        "absent": {name: _reason(name, measurements) for name in COLUMNS if frame[name].isna().any()},
    }
    return frame


def _reason(name: str, measurements: Sequence[Measurement]) -> str:
    """Why runs have no value for a column."""
    if name == "bytes_output":
        return "it cannot be pickled"
    reasons = [run.metrics.missing.get(METRICS.get(name, name)) for run in measurements]
    reasons += [run.byte_ledger.absent for run in measurements if name in CLASSES]
    return next(filter(None, reasons), "because only Dask's scheduler records it")


def _embedded(table: pd.DataFrame) -> str:
    """Why there is no payload."""
    read, metadata = table["bytes_read"], table["bytes_metadata"]
    reason = (
        "the payload is 0 B because the baskets of these branches are embedded in the tree's metadata, as in small "
        "files: they are read along with it, and their compressed size is unknown"
    )
    if read.isna().any() or not (metadata == read).all():
        return reason
    stays = f"stays at {BYTE.text(int(read.iloc[0]))}" if read.nunique() == 1 else "is independent of the branches"
    return f"{reason}; bytesread {stays}: all of it is metadata"


def _cells(name: str, values: pd.Series[Any], unit: Unit) -> list[Cell]:
    """Label of a column of the table, and its values."""
    return [COLUMNS[name].label, *(Amount(None if math.isnan(one) else one, unit) for one in values.astype(float))]


def _times(value: float) -> str:
    return number(three_digits(value))
