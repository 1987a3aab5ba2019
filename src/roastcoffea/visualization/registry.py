"""The plot registry, and the signature shared by all plots."""

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

from roastcoffea.compat import older_keywords
from roastcoffea.compat.shapes import ARGUMENTS, argument_of
from roastcoffea.diagnosis.completeness import state_of
from roastcoffea.metrics.catalogue import RUN, Needs, NotMeasuredError
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import name_of
from roastcoffea.records.run import Run
from roastcoffea.storage.folders import check_free, whole_file
from roastcoffea.visualization.draw import DARK, LIGHT, NAMELESS, Scheme, scheme_on, short
from roastcoffea.visualization.inputs import OPTIONS, PLOT_INPUTS, inputs_of

PREFIX: Final = "plot_"
SIZE: Final = (5.25, 3.5)
TALL: Final = (5.25, 4.5)
WIDE: Final = (7.0, 4.2)
"""Figure sizes in inches. At a column width of 3.4 inches, the smallest text is 5.5 points.

Wide figures have the legend at the side.
"""

DOTS_PER_INCH: Final = 200

STYLE_FILE: Final = Path(__file__).with_name("roastcoffea.mplstyle")
STYLE: Final[Any] = mpl.rc_params_from_file(STYLE_FILE, use_default_template=False)
"""Style for new figures, independent of the user's style. Axes passed by the user keep their style."""

Size = tuple[float, float]


class Drawn(NamedTuple):
    """A figure and its axes, displayed as an image in a notebook cell."""

    figure: Figure
    axes: Axes

    def _ipython_display_(self) -> None:
        """Display a figure that pyplot does not manage. IPython displays other figures at the end of the cell."""
        from IPython.display import display
        from matplotlib import pyplot as plt

        if not plt.fignum_exists(getattr(self.figure, "number", -1)):
            display(self.figure)  # type: ignore[no-untyped-call]


class PlotFunction(Protocol):
    """Signature shared by all plot functions.

    Parameters
    ----------
    source
        A collector, a measurement, a Run, or the folder of a saved measurement. The arguments of version 0.1.2
        (`tracking_data`, `span_metrics`, `metrics`, `chunk_info`, `chunk_metrics`) take precedence over the source.
    path
        Output file. Its suffix (png, pdf or svg) selects the format.
    overwrite
        Overwrite an existing file.
    ax
        Axes to draw on. Nothing else in matplotlib or pyplot is changed. By default, a new figure is created in this
        package's style. If pyplot is in use or IPython is running, pyplot manages and displays the new figure.
    title
        Title to use instead of the default; "" for no title.
    figsize
        Size of a new figure in inches.
    dark
        Whether to draw a new figure for a dark background. By default, the background is dark only if matplotlib's
        style has light text, e.g. after `plt.style.use("dark_background")`. On axes that you pass, the colour of the
        labels determines the plot's colours.

    Raises
    ------
    ValueError
        If the plot's data were not measured. The message gives the reason.
    MeasurementError
        If the file exists or cannot be written.
    """

    __name__: str

    def __call__(
        self,
        source: Any = None,
        /,
        path: str | PathLike[str] | None = None,
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
        overwrite: bool = False,
        bins: Any = None,
        max_legend_entries: int | None = None,
    ) -> tuple[Figure, Axes]: ...


@dataclass(frozen=True, kw_only=True)
class Plot:
    """An entry in the registry. `draw` takes axes and the inputs named by its other parameters (see PLOT_INPUTS)."""

    name: str
    title: str
    size: Size
    draw: Callable[..., None]
    needs: Needs

    @functools.cached_property
    def function(self) -> PlotFunction:
        return _callable(self)

    @property
    def function_name(self) -> str:
        return f"{PREFIX}{self.name}"

    def drawn(
        self, inputs: Evaluator, ax: Axes | None, title: str | None, figsize: Size | None, *, dark: bool | None = None
    ) -> Axes:
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
        ax.set_title(title)  # done last, so that the axes stay unchanged if there is nothing to draw
        return ax


PLOTS: Final[dict[str, Plot]] = {}
"""Plots by name, without the "plot_" prefix."""


def plot(title: str, *, size: Size = SIZE) -> Callable[[Callable[..., None]], PlotFunction]:
    """Register a function `plot_<name>(ax, <inputs>)`, and return the public function.

    The public function collects the inputs and creates the figure.

    Raises
    ------
    ValueError
        If the name is taken, or an input does not exist.
    """

    def register(draw: Callable[..., None]) -> PlotFunction:
        name, needs = draw.__name__.removeprefix(PREFIX), Needs.of(draw, first=1)
        if name in PLOTS:
            raise ValueError(f"a plot {name!r} already exists")
        if unknown := [need for need in needs.inputs if need not in PLOT_INPUTS]:
            raise ValueError(f"{draw.__name__} needs {', '.join(unknown)}: no such plot input")
        PLOTS[name] = Plot(name=name, title=title, size=size, draw=draw, needs=needs)
        return PLOTS[name].function

    return register


def _callable(entry: Plot) -> PlotFunction:
    options = [name for name in OPTIONS if name in entry.needs.inputs]

    @older_keywords(output_path="path")
    def plotted(source: Any = None, /, *positional: Any, **given: Any) -> tuple[Figure, Axes]:
        for value in positional:
            _take(entry, given, value, options)
        path, overwrite = given.pop("path", None), given.pop("overwrite", False)
        ax, title, figsize, dark = (given.pop(name, None) for name in ("ax", "title", "figsize", "dark"))
        chosen = {name: given.pop(name) for name in options if name in given}
        if unknown := given.keys() - ARGUMENTS:
            raise TypeError(f"{entry.function_name} takes no argument {', '.join(sorted(unknown))}")
        if path is not None:
            file_for(path, overwrite=overwrite)  # check the path before drawing
        axes = entry.drawn(inputs_of(source, chosen, **given), ax, title, figsize, dark=dark)
        figure = figure_of(axes)
        if path is not None:
            save(figure, path, overwrite=overwrite)
        return Drawn(figure, axes)

    functools.update_wrapper(plotted, entry.draw, assigned=("__module__", "__name__", "__qualname__"), updated=())
    del plotted.__wrapped__  # type: ignore[attr-defined]  # its signature differs from that of the drawing function
    complete = inspect.signature(PlotFunction.__call__)
    parameters = list(complete.parameters.values())[1:]
    taken = [parameter for parameter in parameters if parameter.name not in OPTIONS or parameter.name in options]
    signature = complete.replace(parameters=taken)
    plotted.__signature__ = signature  # type: ignore[attr-defined]  # includes all arguments of version 0.1.2
    arguments, raised = (inspect.getdoc(PlotFunction) or "").partition("\n\n")[2].split("\n\n", 1)
    meanings = "".join(f"\n{name}\n    {OPTIONS[name]}" for name in options)
    plotted.__doc__ = f"{inspect.getdoc(entry.draw)}\n\n{arguments}{meanings}\n\n{raised}"
    return plotted


def _take(entry: Plot, given: dict[str, Any], value: Any, options: Sequence[str]) -> None:
    """Accept a positional argument as in version 0.1.2, and identify the argument by its type.

    In that version, the order of arguments differed between plots.
    """
    if value is None or (isinstance(value, Mapping) and not value):
        return
    name: str | None
    if isinstance(value, str | PathLike):
        name = "title" if "path" in given else "path"
    elif isinstance(value, tuple):
        name = "figsize"
    else:
        name = options[0] if isinstance(value, int) and len(options) == 1 else argument_of(value)
    if name is None or name in given:
        names = ", ".join(f"{each}=" for each in ARGUMENTS)
        took = f"{entry.function_name} takes no {type(value).__name__} in that position"
        raise TypeError(f"{took}: only a file may follow the source; pass data by name ({names})")
    given[name] = value


def registered(name: str) -> Plot:
    """Return the plot with this name, which may include the "plot_" prefix.

    Raises
    ------
    ValueError
        If there is no such plot. The message suggests similar names, or lists all plots.
    """
    plain = name.removeprefix(PREFIX)
    if plain in PLOTS:
        return PLOTS[plain]
    near = get_close_matches(plain, PLOTS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(PLOTS))}"
    raise ValueError(f"there is no plot {name!r}; {hint}")


def figure_alone(entry: Plot, source: Any, figsize: Size | None = None, *, dark: bool = False) -> Figure:
    """Draw a plot for a file or page, on a new figure that pyplot does not manage."""
    with own_style(dark=dark):
        figure = Figure(figsize=figsize or entry.size, layout="constrained")
        entry.drawn(inputs_of(source), figure.add_subplot(), None, None)
    return figure


def figure_of(ax: Axes) -> Figure:
    """Return the figure that contains the axes, even if the axes are nested."""
    figure = ax.figure.figure
    if figure is None:
        raise ValueError("the axes no longer belong to a figure (they were removed); pass other axes")
    return figure


def file_for(path: str | PathLike[str], *, overwrite: bool = False) -> Path:
    """Return the path for a figure, with a suffix. The file must not exist unless `overwrite` is set."""
    file = Path(path)
    if not file.suffix:
        file = file.with_name(f"{file.name}.{mpl.rcParams['savefig.format']}")  # matplotlib's default
    check_free(file, overwrite=overwrite)
    return file


def save(figure: Figure, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
    file = file_for(path, overwrite=overwrite)
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file, overwrite=overwrite) as written:
        figure.savefig(written, format=file.suffix.removeprefix("."), dpi=DOTS_PER_INCH)
    return file


@contextmanager
def own_style(*, dark: bool | None = None) -> Iterator[None]:
    """Apply this package's style for a light or dark background, on top of matplotlib's defaults.

    By default, the background matches the user's style.

    In a notebook, the first figure loads a backend that turns on interactive mode. This mode must stay on, because
    otherwise later figures are not shown.
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
    ink = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    quiet = ("axes.edgecolor", "xtick.color", "ytick.color")
    ground = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
    return dict.fromkeys(ink, scheme.ink) | dict.fromkeys(quiet, scheme.quiet) | dict.fromkeys(ground, scheme.ground)


@contextmanager
def new_figure(size: Size) -> Iterator[Figure]:
    """Create a figure to draw on. If pyplot displays figures, it manages the new figure, which is closed if drawing
    fails.
    """
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
    """Whether pyplot is in use or IPython is running. IPython displays pyplot's figures after each cell."""
    running = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "matplotlib.pyplot" in sys.modules or running is not None
