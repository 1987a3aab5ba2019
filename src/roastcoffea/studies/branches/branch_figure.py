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
BY_ASKED: Final = ("bytes_read", "bytes_results", "bytes_per_task")
"""Amounts in the prototype's study."""

OUTPUT: Final = ("bytes_results", "bytes_output")
ACROSS: Final[Mapping[str, str]] = {"branches_read": "branches read", "branches_asked": "requested branches"}
"""Quantities on the x axes, with their labels."""

Drawing = tuple[str, Sequence[str], str]
"""Title of a panel, its amounts, and the quantity on its x axis."""


def drawn(study: Growth) -> Figure:
    """Figure of the four panels."""
    reads = ("bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata")
    panels = [("Input", reads, "branches_read"), ("Output", OUTPUT, "branches_read")]
    with own_style(), new_figure((9.0, 6.8)) as figure:
        *axes, third, fourth = figure.subplots(2, 2).flat
        for ax, panel in zip(axes, panels, strict=True):
            _amounts(ax, study, panel)
        branches = study.amounts("branches_read")
        if branches[0]:
            third.plot(branches, branches / branches[0], "--", color=LIGHT.quiet, linewidth=1, label="branches")
        _growth(third, study, (GROWTH, SCALING[1:], "branches_read"))
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
        *axes, last = figure.subplots(2, 2).flat
        for ax, name in zip(axes, BY_ASKED, strict=True):
            label = COLUMNS[name].label
            _amounts(ax, study, (f"{label[:1].upper()}{label[1:]}", [name], "branches_asked"))
        _growth(last, study, (GROWTH, BY_ASKED[:2], "branches_asked"))
    return figure


FIGURES: Final[Mapping[str, Callable[[Growth], Figure]]] = {"read": drawn, "asked": drawn_by_asked}
"""Figures of a study, by the quantity on their x axes."""

GROWTH: Final = "Growth from the first count"


def _amounts(ax: Axes, study: Growth, panel: Drawing) -> None:
    """Draw amounts in bytes against the number of branches; the payload also if it is 0."""
    known = {name: values for name, values in study.known(panel[1]).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    _lines(ax, study, panel, {name: values * scale.factor for name, values in known.items()}, f"bytes ({scale.unit})")


def _growth(ax: Axes, study: Growth, panel: Drawing) -> None:
    """Draw each amount relative to the first count."""
    ratios = {name: study.ratios[name].to_numpy() for name in panel[1] if study.growth(name) is not None}
    _lines(ax, study, panel, ratios, "times")


def _against(ax: Axes, study: Growth) -> None:
    """Draw output against input."""
    payload = study.amounts("bytes_payload")
    name = "bytes_payload" if payload.any() and not np.isnan(payload).any() else "bytes_uncompressed"
    read, known = study.amounts(name), study.known(OUTPUT)
    across = draw.bytes_scale(float(np.nanmax(read, initial=1.0)))
    up = draw.bytes_scale(max(float(values.max()) for values in known.values()))
    for output, values in known.items():
        correlation = study.correlation(name, output)
        label = COLUMNS[output].label + ("" if correlation is None else f", correlation {correlation:.2f}")
        ax.plot(read * across.factor, values * up.factor, "o", color=COLOURS[output], markersize=5, label=label)
    _finish(ax, "Output against input", f"{COLUMNS[name].label} ({across.unit})", f"bytes ({up.unit})")


def _lines(ax: Axes, study: Growth, panel: Drawing, columns: Mapping[str, Numbers], up: str) -> None:
    title, _, across = panel
    # the first lines are wider, so that overlapping ones remain visible
    for narrower, (name, values) in enumerate(columns.items()):
        width, colour, label = 1.2 + 0.5 * (len(columns) - 1 - narrower), COLOURS[name], COLUMNS[name].label
        ax.plot(study.amounts(across), values, "o-", color=colour, ms=width + 2.5, linewidth=width, label=label)
    draw.whole_numbers(ax.xaxis)
    _finish(ax, title, ACROSS[across], up)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    legend(ax)
