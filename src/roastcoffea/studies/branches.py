"""A study of how bytes read and output size grow with the number of branches that an analysis reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import ComparisonError
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import known_sum
from roastcoffea.metrics.phases import METADATA, PAYLOAD, REREAD
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.workers import OK, PROCESSOR
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Column, Sheet
from roastcoffea.units import BYTE, COUNT, RATIO, SECOND, Unit, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.draw import LIGHT, OF_BYTES
from roastcoffea.visualization.registry import new_figure, own_style, save

if TYPE_CHECKING:
    import pandas as pd


class Quantity(NamedTuple):
    """A column of the table: its label, unit and meaning."""

    label: str
    unit: Unit
    meaning: str


COLUMNS: Final = {
    "branches_asked": Quantity("asked", COUNT, "passed to processor_factory"),
    "branches_read": Quantity("branches", COUNT, "distinct branches read, including offsets of jagged ones"),
    "chunks": Quantity("chunks", COUNT, "chunks with a result"),
    "tasks": Quantity("tasks", COUNT, "tasks of the processor with a result"),
    "events": Quantity("events", COUNT, "events processed"),
    "bytes_read": Quantity("bytes read", BYTE, "requested by chunks (coffea's bytesread)"),
    "bytes_payload": Quantity("payload", BYTE, "of these, of baskets, each counted once"),
    "bytes_reread": Quantity("re-read", BYTE, "of these, of baskets read again"),
    "bytes_metadata": Quantity("metadata", BYTE, "of these, of headers, keys, trees"),
    "bytes_uncompressed": Quantity("uncompressed", BYTE, "size of everything read after decompression"),
    "bytes_results": Quantity("results as sent", BYTE, "Dask's nbytes of all chunks' results, which coffea compresses"),
    "bytes_per_task": Quantity("mean task output as sent", BYTE, "results as sent divided by tasks"),
    "bytes_output": Quantity("merged output", BYTE, "pickled, uncompressed"),
    "elapsed_time_seconds": Quantity("wall", SECOND, "wall time"),
}

SCALING: Final = ("branches_read", "bytes_read", "bytes_payload", "bytes_uncompressed", "bytes_results", "bytes_output")
"""Columns whose growth is compared."""


class InputOutput(NamedTuple):
    """How an input and an output scale with the number of branches; factors are means over all counts."""

    read: str
    output: str
    read_factor: float
    output_factor: float
    difference: float
    """Mean over the counts of the absolute difference between both growth factors."""
    correlation: float | None
    """Of input and output; None for two counts, or if one is constant."""
    constant: tuple[str, ...] = ()
    """Those of the two that are the same for every count, such as bytes read of a file with embedded baskets."""

    @property
    def alike(self) -> bool:
        """Whether they scale alike: the prototype's study asked for less than this difference."""
        return self.difference < 0.2

    @property
    def sentence(self) -> str:
        """The conclusion from the difference, with the numbers."""
        names = f"{COLUMNS[self.read].label} and {COLUMNS[self.output].label}"
        factors = f"x{three_digits(self.read_factor):g} and x{three_digits(self.output_factor):g} on average"
        constant = "".join(f" For every count, {COLUMNS[name].label} is the same." for name in self.constant)
        scale, below = ("scale alike", "below") if self.alike else ("differ", "not below")
        ending = f"the mean difference of {self.difference:.3f} is {below} 0.2.{constant}"
        return f"{names[:1].upper()}{names[1:]} {scale}: {factors}; {ending}"


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


@dataclass(frozen=True)
class BranchStudy(Presented):
    """Result of a branch study: `table` has a row for each count, `measurements` the runs themselves."""

    table: pd.DataFrame
    measurements: tuple[Measurement, ...] = ()

    @cached_property
    def ratios(self) -> pd.DataFrame:
        """Each amount relative to the first count; missing if that is 0 or was not measured."""
        amounts = self.table[list(SCALING)].astype(float)
        return amounts / amounts.iloc[0].where(amounts.iloc[0] > 0)

    @cached_property
    def correlations(self) -> dict[str, float | None]:
        """Correlation of each amount with the number of branches read; None if one is constant."""
        return {name: self.correlation("branches_read", name) for name in SCALING[1:]}

    def correlation(self, one: str, other: str) -> float | None:
        """Pearson's correlation of two columns; None for two counts, or if one is unknown or constant."""
        first, second = self.amounts(one), self.amounts(other)
        if self.few or np.isnan(first + second).any() or not (np.ptp(first) and np.ptp(second)):
            return None
        return float(np.corrcoef(first, second)[0, 1])

    def compared(self, read: str, output: str) -> InputOutput | None:
        """How two amounts scale; None if one was not measured, or is 0 at the first count."""
        ratios = self.ratios[[read, output]]
        if ratios.isna().any(axis=None):
            return None
        difference = float((ratios[read] - ratios[output]).abs().mean())
        constant = tuple(name for name in (read, output) if not np.ptp(self.amounts(name)))
        factors = float(ratios[read].mean()), float(ratios[output].mean())
        return InputOutput(read, output, *factors, difference, self.correlation(read, output), constant)

    @property
    def few(self) -> bool:
        """Whether there are too few distinct counts for a correlation: two points always lie on a line."""
        return bool(self.table["branches_asked"].nunique() < 3)

    def amounts(self, name: str) -> Numbers:
        """Column as floats; NaN for unmeasured values."""
        return np.asarray(self.table[name].astype(float))

    def known(self, names: Iterable[str]) -> dict[str, Numbers]:
        """Those of the columns that were measured for every count."""
        return {name: self.amounts(name) for name in names if not self.table[name].isna().any()}

    def growth(self, name: str) -> float | None:
        """Last amount divided by the first; None if unknown."""
        last = float(self.ratios[name].iloc[-1])
        return None if np.isnan(last) else last

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
        if abs(output - 1) <= 0.05:
            return f"{grown}: the output size does not depend on the bytes read, only on what the processor fills."
        if self.few:
            return f"{grown}: a correlation needs three or more counts."
        if together is None or together < 0.9:
            return f"{grown}, uncorrelated: the output size is no measure of the input."
        share = "part of it is fixed, and " if output < payload * 0.75 else ""
        return (
            f"{grown} (correlation {together:.2f}): {share}output size indicates how many columns are kept. It is "
            "no measure of bytes read from storage, which are compressed and include metadata."
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the table, such as why there is no payload."""
        table, embedded = self.table, []
        # branches were read without requests of their own
        if (table["bytes_payload"] == 0).all() and (table["bytes_uncompressed"] > 0).any():
            reason = (
                "the payload is 0 B because the baskets of these branches are embedded in the tree's metadata, as in "
                "small files: they are read along with it, and their compressed size is unknown"
            )
            read = table["bytes_read"]
            if (table["bytes_metadata"] == read).fillna(False).all():
                same = f"stays at {BYTE.text(int(read.iloc[0]))}"
                stays = same if read.nunique() == 1 else "is independent of the branches"
                reason += f"; bytesread {stays}: all of it is metadata"
            embedded = [reason]
        return embedded + [
            f"{COLUMNS[name].label}: not measured, {reason}"
            for name, reason in table.attrs["absent"].items()
            if name not in {"tasks", "bytes_per_task"}  # which are missing along with the results
        ]

    def sheets(self) -> list[Sheet]:
        """The table, the growth of amounts, and what output size indicates."""
        shown = [name for name in COLUMNS if name != "branches_asked" and not self.table[name].isna().all()]
        known = [name for name in SCALING if self.growth(name) is not None]
        counts = [Column(name=str(count), unit=COUNT) for count in self.table["branches_asked"]]
        two_digits = Unit("", "{:.2f}".format)
        amounts = [_cells(name, self.table[name], COLUMNS[name].unit) for name in shown]
        growth = [[*_cells(name, self.ratios[name], RATIO), self.correlations.get(name)] for name in known]
        heads = [Column("growth to"), *counts, Column("correlation", two_digits)]
        title = "growth with the number of branches"
        pair = Column("mean growth"), Column("of input", RATIO), Column("of output", RATIO)
        heads_of_scaling = [*pair, Column("difference", two_digits), Column("correlation", two_digits)]
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
        drawn = {"read": _by_read, "asked": _by_asked}
        if by not in drawn:
            raise ValueError(f"by={by!r}: choose one of {', '.join(map(repr, drawn))}")
        for name in ("bytes_results", "bytes_per_task") if by == "asked" else ():
            if self.table[name].isna().any():
                reason = self.table.attrs["absent"][name]
                raise ValueError(f"{COLUMNS[name].label}: not measured, {reason}; pass a client to branch_study")
        with own_style(), new_figure((9.0, 6.8)) as figure:
            drawn[by](self, [*figure.subplots(2, 2).flat])
        if output_path is not None:
            save(figure, output_path)
        return figure


def branch_study(
    processor_factory: Callable[[int], Any],
    fileset: Mapping[str, Any],
    counts: Sequence[int] = (1, 2, 3, 5, 10),
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


def _cells(name: str, values: pd.Series[Any], unit: Unit) -> list[Cell]:
    """Label of a column of the table, and its values."""
    return [COLUMNS[name].label, *(Amount(None if math.isnan(one) else one, unit) for one in values.astype(float))]


def _times(value: float) -> str:
    return number(three_digits(value))


# The figure

COLOURS: Final = {
    "bytes_read": LIGHT.ink,
    "bytes_payload": OF_BYTES[PAYLOAD],
    "bytes_reread": OF_BYTES[REREAD],
    "bytes_metadata": OF_BYTES[METADATA],
    "bytes_uncompressed": LIGHT.series[1],
    "bytes_results": LIGHT.series[0],
    "bytes_per_task": LIGHT.series[3],
    "bytes_output": LIGHT.series[2],
}


def _by_read(study: BranchStudy, axes: Sequence[Axes]) -> None:
    """Draw input, output, growth, and output against input by the number of branches read."""
    branches, outputs = study.amounts("branches_read"), ("bytes_results", "bytes_output")
    _amounts(axes[0], study, "Input", ("bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata"))
    _amounts(axes[1], study, "Output", outputs)
    if branches[0]:
        axes[2].plot(branches, branches / branches[0], "--", color=LIGHT.quiet, linewidth=1, label="branches")
    _growth(axes[2], study, SCALING[1:])
    payload = study.amounts("bytes_payload")
    name = "bytes_payload" if payload.any() and not np.isnan(payload).any() else "bytes_uncompressed"
    read, known = study.amounts(name), study.known(outputs)
    across = draw.bytes_scale(float(np.nanmax(read, initial=1.0)))
    up = draw.bytes_scale(max(float(values.max()) for values in known.values()))
    for output, values in known.items():
        correlation = study.correlation(name, output)
        label = COLUMNS[output].label + ("" if correlation is None else f", correlation {correlation:.2f}")
        axes[3].plot(read * across.factor, values * up.factor, "o", color=COLOURS[output], markersize=5, label=label)
    _finish(axes[3], "Output against input", f"{COLUMNS[name].label} ({across.unit})", f"bytes ({up.unit})")


def _by_asked(study: BranchStudy, axes: Sequence[Axes]) -> None:
    """Draw the amounts of the prototype's study by the requested number of branches."""
    names = ("bytes_read", "bytes_results", "bytes_per_task")
    for ax, name in zip(axes, names, strict=False):
        label = COLUMNS[name].label
        _amounts(ax, study, f"{label[:1].upper()}{label[1:]}", [name], "branches_asked")
    _growth(axes[3], study, names[:2], "branches_asked")


def _amounts(ax: Axes, study: BranchStudy, title: str, names: Sequence[str], across: str = "branches_read") -> None:
    """Draw amounts in bytes against the number of branches; the payload also if it is 0."""
    known = {name: values for name, values in study.known(names).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    lines = {name: values * scale.factor for name, values in known.items()}
    _lines(ax, study, title, lines, across, f"bytes ({scale.unit})")


def _growth(ax: Axes, study: BranchStudy, names: Sequence[str], across: str = "branches_read") -> None:
    """Draw each amount relative to the first count."""
    ratios = {name: study.ratios[name].to_numpy() for name in names if study.growth(name) is not None}
    _lines(ax, study, "Growth from the first count", ratios, across, "times")


def _lines(ax: Axes, study: BranchStudy, title: str, lines: Mapping[str, Numbers], across: str, up: str) -> None:  # noqa: PLR0917
    # the first lines are wider, so that overlapping ones remain visible
    for width, (name, values) in zip(np.arange(1.2, 9, 0.5)[: len(lines)][::-1], lines.items(), strict=True):
        given = {"color": COLOURS[name], "label": COLUMNS[name].label, "ms": width + 2.5, "linewidth": width}
        ax.plot(study.amounts(across), values, "o-", **given)
    draw.whole_numbers(ax.xaxis)
    _finish(ax, title, "branches read" if across == "branches_read" else "requested branches", up)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    draw.legend(ax)
