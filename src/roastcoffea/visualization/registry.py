"""The registry of plots: what each draws, and the one form in which all of them are called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.storage.folders import whole_file
from roastcoffea.visualization.material import Material

PREFIX: Final = "plot_"
SIZE: Final = (5.25, 3.5)
TALL: Final = (5.25, 4.5)
"""Inches; at the width of a column (3.4) the smallest letters have 5.5 points."""

DOTS_PER_INCH: Final = 200

STYLE: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "white",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "text.usetex": False,
}
"""How figures of our own look, whatever style the user has; axes that are handed over keep theirs."""

Size = tuple[float, float]


class PlotFunction(Protocol):
    """A plot as users call it.

    Parameters
    ----------
    source
        A collector, a measurement or a Run. Version 0.1.2 took `tracking_data`, `span_metrics`, `metrics` or
        `chunk_metrics` instead: they are still taken, and win over the source.
    ax
        Axes to draw on: nothing else changes, in pyplot neither. Without it there is a new figure, in the style of this
        package. It is one of pyplot's where pyplot is in use or IPython runs, so that it shows there.
    title
        Instead of the plot's own; "" for none.
    figsize
        Inches of a new figure.
    output_path
        File to save the figure to, in place of one that is there; its suffix (png, pdf, svg) says how.

    Raises
    ------
    ValueError
        If what it draws was not measured; the text says what, and why.
    """

    __name__: str

    def __call__(
        self,
        source: Any = None,
        /,
        *,
        tracking_data: Mapping[str, Any] | None = None,
        span_metrics: Mapping[Any, float] | None = None,
        metrics: Mapping[str, Any] | None = None,
        chunk_metrics: Any = None,
        ax: Axes | None = None,
        title: str | None = None,
        figsize: Size | None = None,
        output_path: str | PathLike[str] | None = None,
    ) -> tuple[Figure, Axes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """An entry of the registry: `draw` gets axes, and the inputs that its parameters name (see `Material`)."""

    name: str
    title: str
    size: Size
    draw: Callable[..., None]
    inputs: tuple[str, ...]
    optional: frozenset[str]

    @property
    def function_name(self) -> str:
        """Name of the function that users call."""
        return f"{PREFIX}{self.name}"

    def drawn(self, material: Material, ax: Axes | None, title: str | None, figsize: Size | None) -> Axes:
        """Axes with the picture, on a new figure where none are given."""
        try:
            inputs = [self._input(material, name) for name in self.inputs]
            if ax is not None:
                return self._drawn_on(ax, inputs, title if title is not None else self._title(material))
            with own_style(), new_figure(figsize or self.size) as figure:
                shown = title if title is not None else self._title(material)
                return self._drawn_on(figure.add_subplot(), inputs, shown)
        except NotMeasuredError as reason:
            raise ValueError(f"{self.function_name} has nothing to draw: {reason}") from None

    def _input(self, material: Material, name: str) -> Any:
        try:
            return getattr(material, name)
        except NotMeasuredError:
            if name in self.optional:
                return None
            raise

    def _drawn_on(self, ax: Axes, inputs: list[Any], title: str) -> Axes:
        self.draw(ax, *inputs)
        ax.set_title(title)  # last: where there is nothing to draw axes stay as they are
        return ax

    def _title(self, material: Material) -> str:
        return f"{self.title} (the run failed)" if material.failed else self.title


PLOTS: Final[dict[str, Plot]] = {}
"""Plots by name, without "plot_"."""


def plot(title: str, *, size: Size = SIZE) -> Callable[[Callable[..., None]], PlotFunction]:
    """Decorate a function `plot_<name>(ax, <inputs>)`; what users call gathers the inputs and makes the figure."""

    def register(draw: Callable[..., None]) -> PlotFunction:
        parameters = dict(list(inspect.signature(draw).parameters.items())[1:])
        optional = frozenset(name for name, parameter in parameters.items() if parameter.default is None)
        name = draw.__name__.removeprefix(PREFIX)
        entry = PLOTS[name] = Plot(
            name=name, title=title, size=size, draw=draw, inputs=tuple(parameters), optional=optional
        )
        return _callable(entry)

    return register


def _callable(entry: Plot) -> PlotFunction:
    def plotted(
        source: Any = None,
        /,
        *,
        tracking_data: Mapping[str, Any] | None = None,
        span_metrics: Mapping[Any, float] | None = None,
        metrics: Mapping[str, Any] | None = None,
        chunk_metrics: Any = None,
        ax: Axes | None = None,
        title: str | None = None,
        figsize: Size | None = None,
        output_path: str | PathLike[str] | None = None,
    ) -> tuple[Figure, Axes]:
        older = {"tracking_data": tracking_data, "span_metrics": span_metrics}
        older |= {"metrics": metrics, "chunk_metrics": chunk_metrics}
        axes = entry.drawn(Material.of(source, **older), ax, title, figsize)
        figure = figure_of(axes)
        if output_path is not None:
            save(figure, output_path)
        return figure, axes

    functools.update_wrapper(plotted, entry.draw, assigned=("__module__", "__name__", "__qualname__"), updated=())
    arguments = (inspect.getdoc(PlotFunction) or "").partition("\n\n")[2]
    plotted.__doc__ = f"{inspect.getdoc(entry.draw)}\n\n{arguments}"
    del plotted.__wrapped__  # type: ignore[attr-defined]  # its signature is not that of the drawing
    return plotted


def registered(name: str) -> Plot:
    """Plot of this name, with or without "plot_".

    Raises
    ------
    ValueError
        If there is none; the text names those that there are.
    """
    plain = name.removeprefix(PREFIX)
    if plain in PLOTS:
        return PLOTS[plain]
    near = get_close_matches(plain, PLOTS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(PLOTS))}"
    raise ValueError(f"there is no plot {name!r}; {hint}")


def figure_alone(entry: Plot, source: Any, figsize: Size | None = None) -> Figure:
    """A new figure that pyplot knows nothing of, for files and pages.

    Raises
    ------
    ValueError
        If what it draws was not measured.
    """
    figure = Figure(figsize=figsize or entry.size, layout="constrained")
    with own_style():
        entry.drawn(Material.of(source), figure.add_subplot(), None, None)
    return figure


def figure_of(ax: Axes) -> Figure:
    """The figure that axes are on, whatever lies between."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes are on no figure (they were removed); give others")
    return figure


def save(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write a figure to a file, in the format of its suffix; the file is whole, and replaces one that is there."""
    file = Path(path)
    if not file.suffix:
        file = file.with_name(f"{file.name}.{mpl.rcParams['savefig.format']}")  # as matplotlib has it
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file, overwrite=True) as written:
        figure.savefig(written, format=file.suffix.removeprefix("."), dpi=DOTS_PER_INCH)
    return file


@contextmanager
def own_style() -> Iterator[None]:
    """Style of this package, on top of matplotlib's own and of nothing else.

    The backend of a notebook is loaded with the first figure, and turns interactive mode on: that has to stay, or no
    later figure shows.
    """
    interactive = mpl.is_interactive()
    try:
        with style.context(["default", STYLE]):
            try:
                yield
            finally:
                interactive = mpl.is_interactive()
    finally:
        mpl.interactive(interactive)


@contextmanager
def new_figure(size: Size) -> Iterator[Figure]:
    """Figure to draw on: pyplot's own where people look at those; it is closed again where drawing fails."""
    if not _pyplot_shows():
        yield Figure(figsize=size, layout="constrained")
        return
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    try:
        yield figure
    except BaseException:
        plt.close(figure)
        raise


def _pyplot_shows() -> bool:
    """Whether somebody uses pyplot here, or IPython runs: it shows pyplot's figures after each cell."""
    return (
        "matplotlib.pyplot" in sys.modules or getattr(sys.modules.get("IPython"), "get_ipython", _nothing)() is not None
    )


def _nothing() -> None:
    """Stand in for `get_ipython` where there is none."""
