"""The registry of plots: what each draws, and the one form in which all of them are called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.compat.shapes import ARGUMENTS, argument_of
from roastcoffea.diagnosis.completeness import state_of
from roastcoffea.metrics.catalogue import RUN, Needs, NotMeasuredError
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import name_of
from roastcoffea.records.run import Run
from roastcoffea.storage.folders import whole_file
from roastcoffea.visualization.draw import DARK, LIGHT, NAMELESS, Scheme, scheme_on, short
from roastcoffea.visualization.inputs import OPTIONS, PLOT_INPUTS, inputs_of

PREFIX: Final = "plot_"
SIZE: Final = (5.25, 3.5)
TALL: Final = (5.25, 4.5)
WIDE: Final = (7.0, 4.2)
"""Inches; at the width of a column (3.4) the smallest letters have 5.5 points. Wide ones have a legend beside them."""

DOTS_PER_INCH: Final = 200

STYLE_FILE: Final = Path(__file__).with_name("roastcoffea.mplstyle")
STYLE: Final[Any] = mpl.rc_params_from_file(STYLE_FILE, use_default_template=False)
"""How figures of our own look, whatever style the user has; axes that are handed over keep theirs."""

Size = tuple[float, float]


class Drawn(NamedTuple):
    """A figure and its axes. In a cell they are the picture, and no text."""

    figure: Figure
    axes: Axes

    def _ipython_display_(self) -> None:
        """Show a figure that pyplot does not hold; its own ones IPython shows at the end of the cell."""
        from IPython.display import display
        from matplotlib import pyplot as plt

        if not plt.fignum_exists(getattr(self.figure, "number", -1)):
            display(self.figure)  # type: ignore[no-untyped-call]


class PlotFunction(Protocol):
    """A plot as users call it.

    Parameters
    ----------
    source
        A collector, a measurement, a Run, or the folder of a saved measurement. Version 0.1.2 took `tracking_data`,
        `span_metrics`, `metrics`, `chunk_info` or `chunk_metrics` instead: they are still taken, and win over it.
    output_path
        File to save the figure to, overwriting an existing one; its suffix (png, pdf, svg) is the format.
    ax
        Axes to draw on: nothing else changes, in pyplot neither. Without it there is a new figure, in the style of this
        package. It is one of pyplot's where pyplot is in use or IPython runs, so that it shows there.
    title
        Instead of the plot's own; "" for none.
    figsize
        Inches of a new figure.
    dark
        Draw a new figure for a dark background; by default if matplotlib's style has light text, such as
        `plt.style.use("dark_background")`. Axes that are given need not say so: their labels tell.

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
        output_path: str | PathLike[str] | None = None,
        *,
        tracking_data: Mapping[str, Any] | None = None,
        span_metrics: Mapping[Any, float] | None = None,
        metrics: Mapping[str, Any] | None = None,
        chunk_info: Mapping[Any, Any] | None = None,
        chunk_metrics: Any = None,
        ax: Axes | None = None,
        title: str | None = None,
        figsize: Size | None = None,
        dark: bool | None = None,
        bins: Any = None,
        max_legend_entries: int | None = None,
    ) -> tuple[Figure, Axes]: ...


@dataclass(frozen=True, kw_only=True)
class Plot:
    """An entry of the registry: `draw` gets axes, and the inputs that its parameters name (see PLOT_INPUTS)."""

    name: str
    title: str
    size: Size
    draw: Callable[..., None]
    needs: Needs

    @functools.cached_property
    def function(self) -> PlotFunction:
        """What users call."""
        return _callable(self)

    @property
    def function_name(self) -> str:
        """Name of the function that users call."""
        return f"{PREFIX}{self.name}"

    def drawn(
        self, inputs: Evaluator, ax: Axes | None, title: str | None, figsize: Size | None, *, dark: bool | None = None
    ) -> Axes:
        """Axes with the picture, on a new figure where none are given."""
        try:
            arguments = inputs.arguments(self.needs)
            shown = self._title_of(inputs) if title is None else title
            if ax is not None:
                return self._drawn_on(ax, arguments, shown)
            with own_style(dark=dark), new_figure(figsize or self.size) as figure:
                return self._drawn_on(figure.add_subplot(), arguments, shown)
        except NotMeasuredError as reason:
            raise ValueError(f"{self.function_name} has nothing to draw: {reason}") from None

    def _title_of(self, inputs: Evaluator) -> str:
        """What is drawn, and of which run, with its state; data in the older shapes are of none."""
        run: Run = inputs.value(RUN)
        name = name_of(run)
        if not name and not run.ended_early:
            return self.title
        try:
            missing = inputs.value("incompleteness")
        except NotMeasuredError:
            missing = None
        return f"{self.title}\n{short(name or NAMELESS)}, {state_of(run, missing)}"

    def _drawn_on(self, ax: Axes, arguments: list[Any], title: str) -> Axes:
        self.draw(ax, *arguments)
        ax.set_title(title)  # last: where there is nothing to draw axes stay as they are
        return ax


PLOTS: Final[dict[str, Plot]] = {}
"""Plots by name, without "plot_"."""


def plot(title: str, *, size: Size = SIZE) -> Callable[[Callable[..., None]], PlotFunction]:
    """Decorate a function `plot_<name>(ax, <inputs>)`; what users call gathers the inputs and makes the figure.

    Raises
    ------
    ValueError
        If the name is taken, or there is no such input.
    """

    def register(draw: Callable[..., None]) -> PlotFunction:
        name, needs = draw.__name__.removeprefix(PREFIX), Needs.of(draw, first=1)
        if name in PLOTS:
            raise ValueError(f"there is a plot {name!r} already")
        if unknown := [need for need in needs.inputs if need not in PLOT_INPUTS]:
            raise ValueError(f"{draw.__name__} needs {', '.join(unknown)}: no such input of plots")
        PLOTS[name] = Plot(name=name, title=title, size=size, draw=draw, needs=needs)
        return PLOTS[name].function

    return register


def _callable(entry: Plot) -> PlotFunction:
    options = [name for name in OPTIONS if name in entry.needs.inputs]

    def plotted(source: Any = None, /, *positional: Any, **given: Any) -> tuple[Figure, Axes]:
        for value in positional:
            _take(entry, given, value, options)
        output_path = given.pop("output_path", None)
        ax, title, figsize = (given.pop(name, None) for name in ("ax", "title", "figsize"))
        dark = given.pop("dark", None)
        chosen = {name: given.pop(name) for name in options if name in given}
        if unknown := given.keys() - ARGUMENTS:
            raise TypeError(f"{entry.function_name} takes no argument {', '.join(sorted(unknown))}")
        axes = entry.drawn(inputs_of(source, chosen, **given), ax, title, figsize, dark=dark)
        figure = figure_of(axes)
        if output_path is not None:
            save(figure, output_path)
        return Drawn(figure, axes)

    functools.update_wrapper(plotted, entry.draw, assigned=("__module__", "__name__", "__qualname__"), updated=())
    del plotted.__wrapped__  # type: ignore[attr-defined]  # its signature is not that of the drawing
    complete = inspect.signature(PlotFunction.__call__)
    parameters = list(complete.parameters.values())[1:]
    taken = [parameter for parameter in parameters if parameter.name not in OPTIONS or parameter.name in options]
    signature = complete.replace(parameters=taken)
    plotted.__signature__ = signature  # type: ignore[attr-defined]  # with all arguments of 0.1.2
    arguments, raised = (inspect.getdoc(PlotFunction) or "").partition("\n\n")[2].split("\n\n", 1)
    meanings = "".join(f"\n{name}\n    {OPTIONS[name]}" for name in options)
    plotted.__doc__ = f"{inspect.getdoc(entry.draw)}\n\n{arguments}{meanings}\n\n{raised}"
    return plotted


def _take(entry: Plot, given: dict[str, Any], value: Any, options: Sequence[str]) -> None:
    """Add an argument without a name, which 0.1.2 took in an order of each plot's own: its kind tells what it is."""
    if value is None or (isinstance(value, Mapping) and not value):
        return
    name: str | None
    if isinstance(value, str | PathLike):
        name = "title" if "output_path" in given else "output_path"
    elif isinstance(value, tuple):
        name = "figsize"
    else:
        name = options[0] if isinstance(value, int) and len(options) == 1 else argument_of(value)
    if name is None or name in given:
        names = ", ".join(f"{each}=" for each in ARGUMENTS)
        took = f"{entry.function_name} takes no {type(value).__name__} there"
        raise TypeError(f"{took}: after the source it takes a file; give data by name ({names})")
    given[name] = value


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


def figure_alone(entry: Plot, source: Any, figsize: Size | None = None, *, dark: bool = False) -> Figure:
    """A new figure that pyplot knows nothing of, for files and pages.

    Raises
    ------
    ValueError
        If what it draws was not measured.
    """
    with own_style(dark=dark):
        figure = Figure(figsize=figsize or entry.size, layout="constrained")
        entry.drawn(inputs_of(source), figure.add_subplot(), None, None)
    return figure


def figure_of(ax: Axes) -> Figure:
    """The figure that axes are on, whatever lies between."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes are on no figure (they were removed); give others")
    return figure


def save(figure: Figure, path: str | PathLike[str], *, overwrite: bool = True) -> Path:
    """Write a figure to a file, in the format of its suffix; the file is whole."""
    file = Path(path)
    if not file.suffix:
        file = file.with_name(f"{file.name}.{mpl.rcParams['savefig.format']}")  # as matplotlib has it
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file, overwrite=overwrite) as written:
        figure.savefig(written, format=file.suffix.removeprefix("."), dpi=DOTS_PER_INCH)
    return file


@contextmanager
def own_style(*, dark: bool | None = None) -> Iterator[None]:
    """Style of this package, for a light or a dark background, on top of matplotlib's own and of nothing else.

    By default the background is the one that the user's style has.

    The backend of a notebook is loaded with the first figure, and turns interactive mode on: that has to stay, or no
    later figure shows.
    """
    interactive = mpl.is_interactive()
    scheme = scheme_on(str(mpl.rcParams["axes.labelcolor"])) if dark is None else DARK if dark else LIGHT
    try:
        with style.context(["default", STYLE, _colours_of(scheme)]):
            try:
                yield
            finally:
                interactive = mpl.is_interactive()
    finally:
        mpl.interactive(interactive)


def _colours_of(scheme: Scheme) -> dict[str, str]:
    """Settings of matplotlib."""
    ink = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    quiet = ("axes.edgecolor", "xtick.color", "ytick.color")
    ground = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
    return dict.fromkeys(ink, scheme.ink) | dict.fromkeys(quiet, scheme.quiet) | dict.fromkeys(ground, scheme.ground)


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
    running = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "matplotlib.pyplot" in sys.modules or running is not None
