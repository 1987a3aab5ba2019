"""Study of how the bytes read and the output size grow with the number of branches."""

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
from roastcoffea.compat import older_keywords
from roastcoffea.errors import ComparisonError
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import known_sum
from roastcoffea.metrics.phases import METADATA, PAYLOAD, REREAD
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.workers import OK, PROCESSOR
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Column, Sheet, columns
from roastcoffea.units import BYTE, COUNT, RATIO, SECOND, Unit, number, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.draw import LIGHT, OF_BYTES
from roastcoffea.visualization.registry import file_for, new_figure, own_style, save

if TYPE_CHECKING:
    import pandas as pd


class Quantity(NamedTuple):
    """A table column. `source` is a metric or a byte class."""

    label: str
    unit: Unit
    meaning: str
    source: str = ""
    colour: str = LIGHT.ink


COLUMNS: Final = {
    "branches_asked": Quantity("asked", COUNT, "number passed to processor_factory"),
    "branches_read": Quantity(
        "branches",
        COUNT,
        "number of distinct branches read, including offsets of jagged branches",
        "total_branches_read",
    ),
    "chunks": Quantity("chunks", COUNT, "number of chunks with a result", "num_chunks"),
    "tasks": Quantity("tasks", COUNT, "number of processor tasks with a result"),
    "events": Quantity("events", COUNT, "events processed", "total_events"),
    "bytes_read": Quantity("bytes read", BYTE, "bytes requested by chunks (coffea's bytesread)", "total_bytes_read"),
    "bytes_payload": Quantity(
        "payload", BYTE, "bytes requested for baskets, each basket counted once", PAYLOAD, OF_BYTES[PAYLOAD]
    ),
    "bytes_reread": Quantity("re-read", BYTE, "bytes requested to re-read baskets", REREAD, OF_BYTES[REREAD]),
    "bytes_metadata": Quantity(
        "metadata", BYTE, "bytes requested for headers, keys and trees", METADATA, OF_BYTES[METADATA]
    ),
    "bytes_uncompressed": Quantity(
        "uncompressed",
        BYTE,
        "decompressed size of everything read",
        "total_bytes_uncompressed",
        LIGHT.series[1],
    ),
    "bytes_results": Quantity(
        "results as sent",
        BYTE,
        "Dask's nbytes for all chunk results, which coffea compresses",
        colour=LIGHT.series[0],
    ),
    "bytes_per_task": Quantity(
        "mean task output as sent", BYTE, "size of the results as sent, per task", colour=LIGHT.series[3]
    ),
    "bytes_output": Quantity("merged output", BYTE, "pickled, uncompressed", colour=LIGHT.series[2]),
    "elapsed_time_seconds": Quantity("wall", SECOND, "wall time", "elapsed_time_seconds"),
}

SCALING: Final = ("branches_read", "bytes_read", "bytes_payload", "bytes_uncompressed", "bytes_results", "bytes_output")


class InputOutput(NamedTuple):
    """Growth of an input column and an output column with the number of branches.

    `read_factor` and `output_factor` are growth factors, averaged over all branch counts.
    """

    read: str
    output: str
    read_factor: float
    output_factor: float
    difference: float
    """Mean absolute difference between the two growth factors."""
    correlation: float | None
    """Correlation between input and output. None if there are only two counts, or if either column is constant."""

    @property
    def alike(self) -> bool:
        """Whether input and output scale alike."""
        return self.difference < 0.2

    @property
    def sentence(self) -> str:
        """Conclusion from the comparison, with the numbers behind it."""
        names = f"{COLUMNS[self.read].label} and {COLUMNS[self.output].label}".capitalize()
        factors = f"x{three_digits(self.read_factor):g} and x{three_digits(self.output_factor):g} on average"
        scale, below = ("scale alike", "below") if self.alike else ("differ", "not below")
        return f"{names} {scale}: {factors}; the mean difference of {self.difference:.3f} is {below} 0.2."


@dataclass(frozen=True)
class BranchStudy(Presented):
    """Result of a branch study. `table` has a row for each branch count."""

    table: pd.DataFrame
    measurements: tuple[Measurement, ...] = ()

    @cached_property
    def ratios(self) -> pd.DataFrame:
        """Columns divided by their first value. NaN if the first value is 0 or unknown."""
        amounts = self.table[list(SCALING)].astype(float)
        return amounts / amounts.iloc[0].where(amounts.iloc[0] > 0)

    def correlation(self, one: str, other: str) -> float | None:
        """Compute the Pearson correlation of two columns.

        The result is None if there are only two branch counts, or if either column is constant or has unknown values.
        """
        both = self.table[[one, other]].astype(float)
        if self.few or both.isna().any(axis=None) or (both.nunique() < 2).any():
            return None
        return float(np.corrcoef(both.T)[0, 1])

    def compared(self, read: str, output: str) -> InputOutput | None:
        """Compare the growth of two columns, unless either starts at 0 or has unknown values."""
        ratios = self.ratios[[read, output]]
        if ratios.isna().any(axis=None):
            return None
        difference = float((ratios[read] - ratios[output]).abs().mean())
        return InputOutput(
            read,
            output,
            float(ratios[read].mean()),
            float(ratios[output].mean()),
            difference,
            self.correlation(read, output),
        )

    @property
    def few(self) -> bool:
        """Whether there are too few branch counts for a correlation. Two points always lie on a line."""
        return bool(self.table["branches_asked"].nunique() < 3)

    def known(self, names: Iterable[str]) -> dict[str, Numbers]:
        return {name: np.asarray(self.table[name], float) for name in names if not self.table[name].isna().any()}

    def growth(self, name: str) -> float | None:
        """Divide the last value of a column by the first value (None if unknown)."""
        last = float(self.ratios[name].iloc[-1])
        return None if math.isnan(last) else last

    @property
    def scaling(self) -> dict[str, InputOutput]:
        """Comparisons of the bytes read and of the payload with the output, if known."""
        found = {read: self.compared(read, self._output) for read in ("bytes_read", "bytes_payload")}
        return {read: pair for read, pair in found.items() if pair is not None}

    @property
    def _output(self) -> str:
        return "bytes_output" if self.table["bytes_results"].isna().any() else "bytes_results"

    @property
    def sentence(self) -> str:
        """Conclusion on whether the output size indicates the bytes read."""
        read = "bytes_uncompressed" if self.growth("bytes_payload") is None else "bytes_payload"
        label, _, meaning, *_ = COLUMNS[self._output]
        output, payload = self.growth(self._output), self.growth(read)
        if output is None or payload is None:
            return "No conclusion about the output size: the input or output was not measured for every count."
        grown, out = (f"x{number(three_digits(value))}" for value in (payload, output))
        text = f"From the first count to the last, {COLUMNS[read].label} grew {grown} and {label} ({meaning}) {out}"
        together = self.correlation(read, self._output)
        if abs(output - 1) <= 0.05:
            return f"{text}: the output size does not depend on the bytes read, only on what the processor fills."
        if self.few:
            return f"{text}: a correlation needs three or more counts."
        if together is None or together < 0.9:
            return f"{text}, without a correlation: the output size does not measure the input."
        return (
            f"{text} (correlation {together:.2f}): output size indicates how many columns are kept. It does not "
            "measure the bytes read from storage, which are compressed and include metadata."
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the table, e.g. why the payload is 0."""
        table = self.table
        embedded = (table["bytes_payload"] == 0).all() and (table["bytes_uncompressed"] > 0).any()
        reason = (
            "the payload is 0 B because the baskets of these branches are embedded in the tree's metadata, as is "
            "usual in small files; their compressed size is unknown"
        )
        return [reason] * int(embedded) + [
            f"{COLUMNS[name].label}: not measured, {reason}"
            for name, reason in table.attrs["absent"].items()
            if name not in {"tasks", "bytes_per_task"}  # missing whenever the results are missing
        ]

    def sheets(self) -> list[Sheet]:
        counts = columns(COUNT, *map(str, self.table["branches_asked"]))
        two_digits = Unit("", "{:.2f}".format)
        amounts = [
            _cells(name, self.table[name], COLUMNS[name].unit)
            for name in COLUMNS
            if name != "branches_asked" and not self.table[name].isna().all()
        ]
        growth = [
            [*_cells(name, self.ratios[name], RATIO), self.correlation("branches_read", name)]
            for name in SCALING
            if self.growth(name) is not None
        ]
        pairs = self.scaling.values()
        scaling = [[f"{COLUMNS[one.read].label}, {COLUMNS[one.output].label}", *one[2:]] for one in pairs]
        correlation = Column("correlation", two_digits)
        ratios = [*columns(RATIO, "of input", "of output"), Column("difference", two_digits), correlation]
        return [
            Sheet(title="branch study", columns=[Column("requested"), *counts], rows=amounts, notes=self.notes),
            Sheet(
                title="growth with the number of branches",
                columns=[Column("growth to"), *counts, correlation],
                rows=growth,
                notes=[self.sentence],
            ),
            Sheet(
                title="output against input",
                columns=[Column("mean growth"), *ratios],
                rows=scaling,
                notes=[one.sentence for one in pairs],
            ),
        ]

    markdown = Presented.to_markdown

    @older_keywords(output_path="path")
    def plot(self, path: str | PathLike[str] | None = None, *, by: str = "read", overwrite: bool = False) -> Figure:
        """Draw the study in four panels.

        Parameters
        ----------
        path : optional
            File in which to save the figure. The suffix (png, pdf or svg) sets the format.
        by : {"read", "asked"}
            "read" draws input, output and growth against the number of branches read, and output against input.
            "asked" draws bytes read, results, mean task output and growth against the requested number of branches, as
            in the prototype study.
        overwrite : bool
            Overwrite an existing file.

        Raises
        ------
        ValueError
            If `by` is invalid, or if it is "asked" and results were not measured.
        MeasurementError
            If the file already exists or cannot be written.
        """
        drawn = {"read": _by_read, "asked": _by_asked}
        if by not in drawn:
            raise ValueError(f"by={by!r}: choose one of {', '.join(map(repr, drawn))}")
        if by == "asked" and (reason := self.table.attrs["absent"].get("bytes_results")):
            label = COLUMNS["bytes_results"].label
            raise ValueError(f"{label}: not measured, {reason}; pass a client to branch_study")
        if path is not None:
            file_for(path, overwrite=overwrite)
        with own_style(), new_figure((9.0, 6.8)) as figure:
            drawn[by](self, [*figure.subplots(2, 2).flat])
        if path is not None:
            save(figure, path, overwrite=overwrite)
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
    """Run an analysis for several branch counts, and compare input and output.

    Parameters
    ----------
    processor_factory : callable
        Function that takes a number of branches, and returns a processor that reads this many branches.
    fileset : mapping
        Fileset to pass to the Runner.
    counts : sequence of int
        Numbers of branches to read.
    client : distributed.Client, optional
        Client of the cluster to run on. If neither `client` nor `runner` is given, chunks run locally, one at a time.
    runner : coffea.processor.Runner, optional
        Runner to use instead of a new Runner. If the Runner uses Dask, pass its client as well.
    chunksize : int
        Number of events per chunk, if a new Runner is used.
    treename : str
        Name of the tree, if the fileset does not specify a tree.

    Raises
    ------
    ComparisonError
        If `counts` are not integers, or if fewer than two are distinct. The analysis is then not run at all.
    """
    counts = _checked(counts)
    if runner is None:
        from coffea.nanoevents import NanoAODSchema
        from coffea.processor import DaskExecutor, IterativeExecutor, Runner

        executor = IterativeExecutor(status=False) if client is None else DaskExecutor(client=client, status=False)
        runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    rows, measurements = [], []
    for count in counts:
        with MetricsCollector(client) as collector:
            output = runner(fileset, treename=treename, processor_instance=processor_factory(count))
        if isinstance(output, tuple) and len(output) == 2:
            output, _ = output  # the Runner also returned its metrics
        measurement = collector.measurement
        measurements.append(measurement)
        known: tuple[Mapping[str, Any], ...] = (measurement.metrics, measurement.byte_ledger)
        row = {name: known[each.source in OF_BYTES].get(each.source) for name, each in COLUMNS.items()}
        row |= _results(measurement)
        rows.append(row | {"branches_asked": count, "bytes_output": pickled_size(output)})
    return BranchStudy(_table(rows, measurements), tuple(measurements))


def _checked(counts: Any) -> list[int]:
    given = list(counts) if isinstance(counts, Iterable) else []
    # bool is a subclass of int
    whole = [one for one in given if isinstance(one, Integral) and not isinstance(one, bool) and int(one) >= 0]
    if len(whole) < len(given) or len(set(whole)) < 2:
        raise ComparisonError(
            f"counts must contain at least two distinct numbers of branches, e.g. [1, 5]; got {counts!r}"
        )
    return [int(one) for one in whole]


def pickled_size(thing: object) -> int | None:
    """Compute the size of a pickled object, or return None if it cannot be pickled. The pickle is not kept.

    Dask's `sizeof` is not used because, for unknown classes such as awkward arrays and histograms, it ignores nested
    objects.
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


def _results(measurement: Measurement) -> dict[str, float | None]:
    tasks = measurement.run.tasks
    if tasks is None:
        return {}
    good = pc.and_(pc.equal(tasks["kind"], PROCESSOR), pc.equal(tasks["outcome"], OK))
    done = tasks.select(["key", "nbytes"]).filter(good)
    sizes = done.group_by("key").aggregate([("nbytes", "max")])["nbytes_max"]
    size = None if done["nbytes"].null_count else int(known_sum(sizes))
    mean = None if size is None or not len(sizes) else size / len(sizes)
    return {"tasks": len(sizes), "bytes_results": size, "bytes_per_task": mean}


def _table(rows: Sequence[Mapping[str, Any]], measurements: Sequence[Measurement]) -> pd.DataFrame:
    import pandas as pd

    kinds = {name: "Int64" for name, column in COLUMNS.items() if column.unit is not SECOND}
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(kinds | {"bytes_per_task": "Float64"})
    frame.attrs = {
        "columns": {name: f"{column.meaning} [{column.unit}]" for name, column in COLUMNS.items()},
        "units": {name: str(column.unit) for name, column in COLUMNS.items()},
        "absent": {name: _reason(name, measurements) for name in COLUMNS if frame[name].isna().any()},
    }
    return frame


def _reason(name: str, measurements: Sequence[Measurement]) -> str:
    if name == "bytes_output":
        return "it cannot be pickled"
    source = COLUMNS[name].source
    reasons = [
        run.byte_ledger.absent if source in OF_BYTES else run.metrics.missing.get(source) for run in measurements
    ]
    return next(filter(None, reasons), "because only Dask's scheduler records it")


def _cells(name: str, values: pd.Series[Any], unit: Unit) -> list[Cell]:
    return [COLUMNS[name].label, *(Amount(None if math.isnan(one) else one, unit) for one in values.astype(float))]


# The figure


def _by_read(study: BranchStudy, axes: Sequence[Axes]) -> None:
    outputs = ("bytes_results", "bytes_output")
    _amounts(axes[0], study, "Input", ("bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata"))
    _amounts(axes[1], study, "Output", outputs)
    _growth(axes[2], study, SCALING)
    name = "bytes_uncompressed" if study.growth("bytes_payload") is None else "bytes_payload"
    known = study.known([name, *outputs])
    if name in known:
        scale = draw.bytes_scale(max(float(values.max()) for values in known.values()))
        for output in known.keys() - {name}:
            label = COLUMNS[output].label
            axes[3].plot(
                known[name] * scale.factor, known[output] * scale.factor, "o", color=COLUMNS[output].colour, label=label
            )
        _finish(axes[3], "Output against input", f"{COLUMNS[name].label} ({scale.unit})", f"bytes ({scale.unit})")


def _by_asked(study: BranchStudy, axes: Sequence[Axes]) -> None:
    """Draw the same quantities as the prototype study, against the requested number of branches."""
    names = ("bytes_read", "bytes_results", "bytes_per_task")
    for ax, name in zip(axes, names, strict=False):
        _amounts(ax, study, COLUMNS[name].label.capitalize(), [name], "branches_asked")
    _growth(axes[3], study, names[:2], "branches_asked")


def _amounts(ax: Axes, study: BranchStudy, title: str, names: Sequence[str], across: str = "branches_read") -> None:
    """Draw columns in bytes against the number of branches. All-zero columns are omitted, except the payload."""
    known = {name: values for name, values in study.known(names).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    lines = {name: values * scale.factor for name, values in known.items()}
    _lines(ax, study, title, lines, across, f"bytes ({scale.unit})")


def _growth(ax: Axes, study: BranchStudy, names: Sequence[str], across: str = "branches_read") -> None:
    ratios = {name: study.ratios[name].to_numpy() for name in names if study.growth(name) is not None}
    _lines(ax, study, "Growth from the first count", ratios, across, "times")


def _lines(ax: Axes, study: BranchStudy, title: str, lines: Mapping[str, Numbers], across: str, up: str) -> None:  # noqa: PLR0917
    # earlier lines are wider, so that they show beneath later ones
    for place, (name, values) in enumerate(lines.items()):
        width, column = 1.2 + 0.5 * (len(lines) - 1 - place), COLUMNS[name]
        x = np.asarray(study.table[across], float)
        ax.plot(x, values, "o-", color=column.colour, label=column.label, ms=width + 2.5, linewidth=width)
    draw.whole_numbers(ax.xaxis)
    _finish(ax, title, "branches read" if across == "branches_read" else "requested branches", up)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    draw.legend(ax)
