"""Amounts by the number of branches that an analysis reads: how they grow, as numbers and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import BYTE, COUNT, SECOND, Unit, three_digits
from roastcoffea.visualization import draw
from roastcoffea.visualization.draw import LIGHT, OF_BYTES, legend
from roastcoffea.visualization.registry import new_figure, own_style

if TYPE_CHECKING:
    import pandas as pd


class Amount(NamedTuple):
    """A column of the table: its label, unit and meaning."""

    label: str
    unit: Unit
    meaning: str


COLUMNS: Final[Mapping[str, Amount]] = {
    "branches_asked": Amount("asked", COUNT, "passed to processor_factory"),
    "branches_read": Amount("branches", COUNT, "distinct branches read, including offsets of jagged ones"),
    "chunks": Amount("chunks", COUNT, "chunks with a result"),
    "tasks": Amount("tasks", COUNT, "tasks of the processor with a result"),
    "events": Amount("events", COUNT, "events processed"),
    "bytes_read": Amount("bytes read", BYTE, "requested by chunks (coffea's bytesread)"),
    "bytes_payload": Amount("payload", BYTE, "of these, of baskets, each counted once"),
    "bytes_reread": Amount("re-read", BYTE, "of these, of baskets read again"),
    "bytes_metadata": Amount("metadata", BYTE, "of these, of headers, keys, trees"),
    "bytes_uncompressed": Amount("uncompressed", BYTE, "size of everything read after decompression"),
    "bytes_results": Amount("results as sent", BYTE, "Dask's nbytes of all chunks' results, which coffea compresses"),
    "bytes_per_task": Amount("mean task output as sent", BYTE, "results as sent divided by tasks"),
    "bytes_output": Amount("merged output", BYTE, "pickled, uncompressed"),
    "elapsed_time_seconds": Amount("wall", SECOND, "wall time"),
}

SCALING: Final = ("branches_read", "bytes_read", "bytes_payload", "bytes_uncompressed", "bytes_results", "bytes_output")
"""Columns whose growth is compared."""

ALIKE: Final = 0.2
"""Mean difference of growth below which input and output scale alike, as in the prototype's study."""

FEWEST_COUNTS: Final = 3
"""Fewest distinct counts for a correlation: two points always lie on a line."""


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
        """Whether they scale alike."""
        return self.difference < ALIKE

    @property
    def sentence(self) -> str:
        """The conclusion from the difference, with the numbers."""
        names = f"{COLUMNS[self.read].label} and {COLUMNS[self.output].label}"
        factors = f"x{three_digits(self.read_factor):g} and x{three_digits(self.output_factor):g} on average"
        decided = f"{'below' if self.alike else 'not below'} {ALIKE}"
        sentence = f"{names} {'scale alike' if self.alike else 'differ'}: {factors}"
        constant = "".join(f" For every count, {COLUMNS[name].label} is the same." for name in self.constant)
        ending = f"the mean difference of {self.difference:.3f} is {decided}.{constant}"
        return f"{sentence[:1].upper()}{sentence[1:]}; {ending}"


@dataclass(frozen=True)
class Growth:
    """Amounts of an analysis: `table` has a row for each number of branches."""

    table: pd.DataFrame

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
        if self.few or np.isnan(first).any() or np.isnan(second).any() or not (np.ptp(first) and np.ptp(second)):
            return None
        return float(np.corrcoef(first, second)[0, 1])

    def compared(self, read: str, output: str) -> InputOutput | None:
        """How two amounts scale; None if one was not measured, or is 0 at the first count."""
        ratios = self.ratios[[read, output]]
        if ratios.isna().any(axis=None):
            return None
        factors = ratios.mean()
        difference = float((ratios[read] - ratios[output]).abs().mean())
        constant = tuple(name for name in (read, output) if not np.ptp(self.amounts(name)))
        means = float(factors[read]), float(factors[output])
        return InputOutput(read, output, *means, difference, self.correlation(read, output), constant)

    @property
    def few(self) -> bool:
        """Whether there are too few distinct counts for a correlation."""
        return bool(self.table["branches_asked"].nunique() < FEWEST_COUNTS)

    def amounts(self, name: str) -> Numbers:
        """Column as floats; NaN for unmeasured values."""
        return np.asarray(self.table[name].to_numpy(dtype=np.float64, na_value=np.nan))

    def known(self, names: Sequence[str]) -> dict[str, Numbers]:
        """Those of the columns that were measured for every count."""
        columns = {name: self.amounts(name) for name in names}
        return {name: values for name, values in columns.items() if not np.isnan(values).any()}

    def growth(self, name: str) -> float | None:
        """Last amount divided by the first; None if unknown."""
        last = float(self.ratios[name].iloc[-1])
        return None if np.isnan(last) else last


COLOURS: Final[Mapping[str, str]] = {
    "bytes_read": LIGHT.ink,
    "bytes_payload": OF_BYTES[phases.PAYLOAD],
    "bytes_reread": OF_BYTES[phases.REREAD],
    "bytes_metadata": OF_BYTES[phases.METADATA],
    "bytes_uncompressed": LIGHT.series[1],
    "bytes_results": LIGHT.series[0],
    "bytes_per_task": LIGHT.series[3],
    "bytes_output": LIGHT.series[2],
}
ASKED: Final = "requested branches"
BY_ASKED: Final = ("bytes_read", "bytes_results", "bytes_per_task")
"""Amounts in the prototype's study."""

INPUT: Final = ("bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata")

OUTPUT: Final = ("bytes_results", "bytes_output")


def drawn(study: Growth) -> Figure:
    """Figure of the four panels."""
    with own_style(), new_figure((9.0, 6.8)) as figure:
        first, second, third, fourth = figure.subplots(2, 2).flat
        _amounts(first, study, "Input", INPUT)
        _amounts(second, study, "Output", OUTPUT)
        _growth(third, study)
        _against(fourth, study)
    return figure


def drawn_by_asked(study: Growth) -> Figure:
    """Figure of the original study: its amounts by the number of requested branches.

    Raises
    ------
    ValueError
        If one of its amounts was not measured.
    """
    for name in BY_ASKED:
        if study.table[name].isna().any():
            reason = study.table.attrs["absent"][name]
            raise ValueError(f"{COLUMNS[name].label}: not measured, {reason}; pass a client to branch_study")
    with own_style(), new_figure((9.0, 6.8)) as figure:
        asked, (*amounts, ratios) = study.amounts("branches_asked"), figure.subplots(2, 2).flat
        for ax, name in zip(amounts, BY_ASKED, strict=True):
            values, label = study.amounts(name), COLUMNS[name].label
            scale = draw.bytes_scale(float(values.max()))
            ax.plot(asked, values * scale.factor, "o-", color=COLOURS[name])
            draw.whole_numbers(ax.xaxis)
            _finish(ax, f"{label[:1].upper()}{label[1:]}", ASKED, f"bytes ({scale.unit})")
        for name in ("bytes_read", "bytes_results"):
            values = study.ratios[name].to_numpy(dtype=np.float64, na_value=np.nan)
            if not np.isnan(values).any():
                ratios.plot(asked, values, "o-", color=COLOURS[name], label=COLUMNS[name].label)
        draw.whole_numbers(ratios.xaxis)
        _finish(ratios, "Growth from the first count", ASKED, "times")
    return figure


FIGURES: Final[Mapping[str, Callable[[Growth], Figure]]] = {"read": drawn, "asked": drawn_by_asked}
"""Figures of a study, by the quantity on their x axes."""


def _amounts(ax: Axes, study: Growth, title: str, names: Sequence[str]) -> None:
    """Draw amounts in bytes against the number of branches; the payload also if it is 0."""
    known = {name: values for name, values in study.known(names).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    _lines(ax, study, {name: values * scale.factor for name, values in known.items()})
    _finish(ax, title, "branches read", f"bytes ({scale.unit})")


def _growth(ax: Axes, study: Growth) -> None:
    """Draw each amount relative to the first count, next to the number of branches itself."""
    branches = study.amounts("branches_read")
    ratios = {name: study.ratios[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in SCALING[1:]}
    if branches[0]:
        ax.plot(branches, branches / branches[0], "--", color=LIGHT.quiet, linewidth=1, label="branches")
    _lines(ax, study, {name: values for name, values in ratios.items() if not np.isnan(values).any()})
    _finish(ax, "Growth from the first count", "branches read", "times")


def _against(ax: Axes, study: Growth) -> None:
    """Draw output against input."""
    payload = study.amounts("bytes_payload")
    name = "bytes_payload" if payload.any() and not np.isnan(payload).any() else "bytes_uncompressed"
    read = study.amounts(name)
    across = draw.bytes_scale(float(np.nanmax(read, initial=1.0)))
    known = study.known(OUTPUT)
    up = draw.bytes_scale(max(float(values.max()) for values in known.values()))
    for output, values in known.items():
        correlation = study.correlation(name, output)
        goes = "" if correlation is None else f", correlation {correlation:.2f}"
        label = f"{COLUMNS[output].label}{goes}"
        ax.plot(read * across.factor, values * up.factor, "o", color=COLOURS[output], markersize=5, label=label)
    _finish(ax, "Output against input", f"{COLUMNS[name].label} ({across.unit})", f"bytes ({up.unit})")


def _lines(ax: Axes, study: Growth, columns: Mapping[str, Numbers]) -> None:
    branches = study.amounts("branches_read")
    # the first lines are wider, so that overlapping ones remain visible
    for narrower, (name, values) in enumerate(columns.items()):
        width, colour, label = 1.2 + 0.5 * (len(columns) - 1 - narrower), COLOURS[name], COLUMNS[name].label
        ax.plot(branches, values, "o-", color=colour, markersize=width + 2.5, linewidth=width, label=label)
    draw.whole_numbers(ax.xaxis)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    legend(ax)
