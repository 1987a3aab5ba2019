"""Every plot of the registry, in its one calling form."""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from handmade import empty_run, handmade_run, run_without_tables
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pictures import synthetic_run
from processes import PATIENCE

import roastcoffea
from roastcoffea.errors import MeasurementError, MissingMeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import evaluate
from roastcoffea.records.run import FAILED, Run
from roastcoffea.report.first_look import digest_of
from roastcoffea.storage.store import save_run
from roastcoffea.visualization import plots, registry
from roastcoffea.visualization.draw import DARK, LIGHT
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import Drawn, figure_alone

NAMES = [f"plot_{name}" for name in PLOTS]
OLD = {
    "worker_count_timeline": ("tracking_data",),
    "memory_utilization_mean_timeline": ("tracking_data",),
    "memory_utilization_per_worker_timeline": ("tracking_data",),
    "cpu_utilization_mean_timeline": ("tracking_data",),
    "cpu_utilization_per_worker_timeline": ("tracking_data",),
    "occupancy_timeline": ("tracking_data",),
    "executing_tasks_timeline": ("tracking_data",),
    "worker_activity_timeline": ("tracking_data",),
    "total_active_tasks_timeline": ("tracking_data",),
    "throughput_timeline": ("chunk_info", "tracking_data"),
    "efficiency_summary": ("metrics",),
    "resource_utilization": ("metrics",),
    "per_task_cpu_io": ("span_metrics",),
    "per_task_bytes_read": ("span_metrics",),
    "per_task_overhead": ("span_metrics",),
    "runtime_distribution": ("chunk_metrics",),
    "runtime_vs_events": ("chunk_metrics",),
    "compression_ratio_distribution": (),
    "data_access_percentage": ("metrics",),
    "branch_access_per_chunk": ("chunk_metrics",),
    "bytes_accessed_per_chunk": ("chunk_metrics",),
}
"""Plots of 0.1.2, and the arguments that they were given."""

PYPLOT = "matplotlib.pyplot"


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run()


@pytest.fixture(scope="module")
def measurement(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The same run, from a folder."""
    return load(save_run(run, tmp_path_factory.mktemp("runs"), "drawn"))


@pytest.fixture(scope="module")
def wanted(run: Run) -> Callable[[str], list[Any]]:
    """What a plot of the run has, drawn once for all that compare with it."""
    return functools.cache(lambda name: drawn(name, run))


@pytest.fixture(scope="module")
def collector(run: Run) -> SimpleNamespace:
    """What a plot takes of a collector."""
    return SimpleNamespace(measurement=Measurement(run))


@pytest.fixture(scope="module")
def failed(run: Run) -> Measurement:
    """The same run, as one that failed."""
    return Measurement(replace(run, outcome=FAILED, error="ValueError: boom"))


@pytest.fixture(scope="module")
def little() -> Measurement:
    """A run in which little happened."""
    return Measurement(handmade_run())


@pytest.fixture(scope="module")
def oddly_named(run: Run) -> Measurement:
    """The same run, with names that mean something to those who draw or show them."""
    odd = "$$x_^$ <a&b> \\frac"
    chunks = run.chunks.set_column(
        run.chunks.column_names.index("dataset"), "dataset", pc.binary_join_element_wise(run.chunks["dataset"], odd, "")
    )
    reads = run.branch_reads
    reads = reads.set_column(1, "branch", pa.array([odd + branch for branch in reads["branch"].to_pylist()]))
    counted = (("thread-cpu", "seconds"), ("memory-read", "bytes"), ("serialize", "seconds"))
    span = {("execute", odd, *activity): 1.0 for activity in counted}
    return Measurement(replace(run, chunks=chunks, branch_reads=reads, span_metrics=span))


@pytest.fixture(scope="module")
def older_data(run: Run) -> dict[str, Any]:
    """What plots of 0.1.2 were given."""
    metrics = evaluate(run)
    return {
        "tracking_data": metrics["tracking_data"],
        "span_metrics": metrics["raw_span_metrics"],
        "chunk_metrics": metrics["raw_chunk_metrics"],
        "chunk_info": metrics["chunk_info"],
        "metrics": {name: value for name, value in metrics.items() if name != "processor_cpu_percentage"}
        | {"processor_cpu_percent": metrics["processor_cpu_percentage"]},
    }


@pytest.fixture
def no_pyplot(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (PYPLOT, "IPython"):
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.fixture
def pyplot() -> Iterator[Any]:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    yield plt
    plt.close("all")


def settings() -> dict[str, Any]:
    """Settings of matplotlib; to ask for the backend would load pyplot."""
    return {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}


def function(name: str) -> Callable[..., tuple[Figure, Axes]]:
    return getattr(plots, name if name.startswith("plot_") else f"plot_{name}")


def content(ax: Axes) -> list[Any]:
    """What is on the figure: numbers and words, in order."""
    found: list[Any] = []
    for axes in ax.figure.axes:
        found += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *axes.get_xlim(), *axes.get_ylim()]
        found += [text.get_text() for text in axes.texts]
        found += [tick.get_text() for tick in axes.get_yticklabels()]
        found += [line.get_xydata().tolist() for line in axes.lines]
        found += [patch.get_path().vertices.tolist() for patch in axes.patches]
        found += [patch.get_extents().bounds for patch in axes.patches]
        found += [path.vertices.tolist() for artist in axes.collections for path in artist.get_paths()]
    return found


def drawn(name: str, source: Any = None, **options: Any) -> list[Any]:
    ax = Figure(dpi=100).add_subplot()
    function(name)(source, ax=ax, **options)
    return content(ax)


def test_plots_of_0_1_2_are_there_and_all_are_found_everywhere() -> None:
    assert set(OLD) <= set(PLOTS)
    assert all(getattr(roastcoffea, name) is function(name) is PLOTS[name[5:]].function for name in NAMES)
    assert set(NAMES) <= set(plots.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plot_byte_ledger", "plot_chunk_phases", "plot_worker_count_timeline"])
def test_run_measurement_collector_and_loaded_folder_look_alike(
    name: str, wanted: Callable[[str], list[Any]], measurement: Measurement, collector: SimpleNamespace
) -> None:
    assert drawn(name, measurement) == wanted(name)
    assert drawn(name, collector) == wanted(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_figure_has_a_title_labels_and_a_unit(name: str, run: Run, no_pyplot: None) -> None:
    before = settings()
    figure, ax = function(name)(run)
    assert ax.figure is figure
    assert ax.get_title() == f"{PLOTS[name.removeprefix('plot_')].title}\nby hand, complete"
    assert ax.get_xlabel()
    assert ax.get_ylabel() or [text.get_text() for text in ax.get_yticklabels() if text.get_text()]
    assert settings() == before
    assert PYPLOT not in sys.modules


@pytest.mark.parametrize("name", NAMES)
def test_axes_of_the_user_are_all_that_changes(name: str, run: Run, pyplot: Any) -> None:
    figure, (left, right) = pyplot.subplots(1, 2)
    other, elsewhere = pyplot.subplots()
    right.plot([1, 2], [3, 4])
    current, numbers = pyplot.gca(), pyplot.get_fignums()
    before, beside = content(elsewhere), right.lines[0].get_xydata().tolist()
    assert function(name)(run, ax=left) == (figure, left)
    assert content(elsewhere) == before
    assert [line.get_xydata().tolist() for line in right.lines] == [beside]
    assert (pyplot.gca(), pyplot.gcf(), pyplot.get_fignums()) == (current, other, numbers)


def test_a_plot_and_the_page_have_one_word_for_the_state_of_a_run() -> None:
    measurement = Measurement(handmade_run())  # it skipped a file
    state = digest_of(measurement.run, measurement.metrics).state
    assert state == "incomplete"
    assert plots.plot_byte_ledger(measurement)[1].get_title().endswith(f"by hand, {state}")


@pytest.mark.parametrize("name", ["plot_byte_ledger", "plot_chunk_phases", "plot_worker_count_timeline"])
def test_a_failed_run_is_drawn_and_says_so(name: str, wanted: Callable[[str], list[Any]], failed: Measurement) -> None:
    title, *rest = drawn(name, failed)
    assert title == f"{PLOTS[name.removeprefix('plot_')].title}\nby hand, failed"
    assert rest == wanted(name)[1:]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_measured_is_an_error_that_says_what_and_why(name: str, pyplot: Any) -> None:
    absent = ("chunks", "tasks", "samples", "lifetimes", "worker_requests")
    run = run_without_tables(absent=dict.fromkeys(absent, "the cluster was away"))
    reason = "were not recorded" if "per_task" in name else "the cluster was away"
    with pytest.raises(ValueError, match=rf"^{name} has nothing to draw: .*{reason}"):
        function(name)(run)
    assert pyplot.get_fignums() == []


def test_where_drawing_finds_nothing_the_title_of_the_user_stays(run: Run) -> None:
    ax = Figure().add_subplot(title="Mine")
    with pytest.raises(ValueError, match="no sample has occupancy"):
        plots.plot_occupancy_timeline(handmade_run(), ax=ax)
    assert ax.get_title() == "Mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_in_which_little_happened(name: str, little: Measurement) -> None:
    try:
        figure = figure_alone(PLOTS[name.removeprefix("plot_")], little)
    except ValueError as error:
        assert str(error).startswith(f"{name} has nothing to draw: ")  # noqa: PT017
    else:
        figure.draw_without_rendering()


@pytest.mark.parametrize("name", NAMES)
def test_of_a_run_in_which_nothing_happened_nothing_is_drawn(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} has nothing to draw: \w.*"):
        function(name)(empty_run())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, arguments in OLD.items() if arguments])
def test_data_of_the_older_names(name: str, wanted: Callable[[str], list[Any]], older_data: dict[str, Any]) -> None:
    given = {argument: older_data[argument] for argument in OLD[name]}
    found = drawn(name, **given)
    words = [one for one in found if isinstance(one, str)]
    of_the_run = [one for one in wanted(f"plot_{name}") if isinstance(one, str)]
    assert words[:3] == [PLOTS[name].title, *of_the_run[1:3]]  # such data are of no run that has a name
    if len(given) == 1:
        assert drawn(name, *given.values()) == found
    with pytest.raises(ValueError, match=f"^plot_{name} has nothing to draw"):
        function(name)(**{first: type(given[first])() for first in OLD[name]})


def test_numbers_from_older_data_are_those_of_the_run(run: Run) -> None:
    metrics = evaluate(run)
    for name, argument, key in (
        ("cpu_utilization_mean_timeline", "tracking_data", "tracking_data"),
        ("runtime_distribution", "chunk_metrics", "raw_chunk_metrics"),
        ("per_task_cpu_io", "span_metrics", "raw_span_metrics"),
    ):
        wanted = [one for one in drawn(name, run) if not isinstance(one, (str, float))]
        found = [one for one in drawn(name, **{argument: metrics[key]}) if not isinstance(one, (str, float))]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)  # the first sample is where time begins


@pytest.fixture(scope="module")
def old() -> Measurement:
    """A measurement of 0.1.2."""
    folder = os.environ.get("ROASTCOFFEA_TEST_DATA")
    if not folder:
        pytest.skip("ROASTCOFFEA_TEST_DATA is not set")
    return load(Path(folder, "measurement-0.1.2"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_0_1_2(name: str, old: Measurement) -> None:
    try:
        assert drawn(name, old)
    except ValueError as reason:
        # nothing was serialized inside of its tasks
        assert name.removeprefix("plot_") not in OLD or name == "plot_per_task_overhead"
        assert re.search(r"0\.1\.2|not known|has a worker|Dask recorded no seconds|no sample has gpu", str(reason))  # noqa: PT017


@pytest.mark.slow
def test_metrics_of_a_run_are_drawn_as_the_run(run: Run) -> None:
    metrics = evaluate(run)
    for name in ("efficiency_summary", "resource_utilization", "data_access_percentage", "throughput_timeline"):
        assert drawn(name, metrics) == drawn(name, metrics=metrics) == drawn(name, run)
    ratios = [one for one in drawn("compression_ratio_distribution", metrics=metrics.built()) if isinstance(one, str)]
    assert "files" in ratios


def test_a_file_is_the_second_argument_as_it_was(run: Run, tmp_path: Path, no_pyplot: None) -> None:
    info = evaluate(run)["chunk_info"]
    plots.plot_throughput_timeline(info, tmp_path / "rate.svg")
    assert (tmp_path / "rate.svg").read_text().startswith("<?xml")
    with pytest.raises(
        TypeError, match=r"takes no float in that position: only a file may follow the source; .* by name \(tracking"
    ):
        plots.plot_throughput_timeline(info, 2.0)
    with pytest.raises(TypeError, match="takes no dict in that position"):
        plots.plot_throughput_timeline(info, evaluate(run)["tracking_data"], evaluate(run)["tracking_data"])


def test_data_are_positional_as_they_were(run: Run, tmp_path: Path, no_pyplot: None) -> None:
    metrics = evaluate(run)
    info, data = metrics["chunk_info"], metrics["tracking_data"]
    figure, ax = plots.plot_throughput_timeline(info, data, tmp_path / "rate.svg", (7, 2), "Mine")
    assert (tmp_path / "rate.svg").read_text().startswith("<?xml")
    assert ax.get_title() == "Mine"
    assert figure.get_size_inches().tolist() == [7, 2]
    lines = [len(line.get_xdata()) for line in figure.axes[0].lines]
    named = plots.plot_throughput_timeline(chunk_info=info, tracking_data=data)[0]
    assert lines == [len(line.get_xdata()) for line in named.axes[0].lines]
    assert plots.plot_throughput_timeline(info, {}, None, title="Mine")[1].get_title() == "Mine"


def test_a_folder_is_drawn_as_its_measurement_is(run: Run, tmp_path: Path, no_pyplot: None) -> None:
    folder = save_run(run, tmp_path, "run")
    for path in (folder, str(folder)):
        _, ax = plots.plot_byte_ledger(path)
        assert ax.get_title() == f"{PLOTS['byte_ledger'].title}\nby hand, complete"
    with pytest.raises(MissingMeasurementError, match="there is no folder"):
        plots.plot_time_ledger("nowhere")


def test_nothing_to_draw_from() -> None:
    with pytest.raises(ValueError, match=r"pass a collector, a measurement, a Run, or .* nothing"):
        plots.plot_time_ledger()
    with pytest.raises(ValueError, match="float was given"):
        plots.plot_time_ledger(3.0)
    with pytest.raises(ValueError, match=r"plot_sections has nothing to draw: .*chunk_metrics="):
        plots.plot_sections(tracking_data={})


def test_a_plot_says_what_it_takes_and_takes_nothing_else() -> None:
    parameters = inspect.signature(plots.plot_byte_ledger).parameters
    assert inspect.signature(plots.plot_byte_ledger).return_annotation == "tuple[Figure, Axes]"
    older = ["tracking_data", "span_metrics", "metrics", "chunk_info", "chunk_metrics"]
    assert list(parameters) == ["source", "path", *older, "ax", "title", "figsize", "dark", "overwrite"]
    assert "bins" in inspect.signature(plots.plot_runtime_distribution).parameters
    assert "edges in the axis unit" in str(plots.plot_runtime_distribution.__doc__)
    assert "Size of a new figure in inches" in str(plots.plot_byte_ledger.__doc__)
    with pytest.raises(TypeError, match="plot_byte_ledger takes no argument titel"):
        plots.plot_byte_ledger(handmade_run(), titel="x")  # type: ignore[call-arg]


def test_title_size_and_file(run: Run, tmp_path: Path, no_pyplot: None) -> None:
    figure, ax = plots.plot_byte_ledger(run, title="", figsize=(7, 2), path=tmp_path / "new" / "ledger.svg")
    assert ax.get_title() == ""
    assert figure.get_size_inches().tolist() == [7, 2]
    assert (tmp_path / "new" / "ledger.svg").read_text().startswith("<?xml")
    assert plots.plot_byte_ledger(run, title="Mine")[1].get_title() == "Mine"


def test_a_file_is_overwritten_only_on_demand(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledger.png").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "inputs_of", lambda *_, **__: pytest.fail("it was drawn"))
        for name in ("ledger", "ledger.png"):  # as matplotlib adds it
            with pytest.raises(MeasurementError, match=r"ledger\.png exists; .*overwrite=True"):
                plots.plot_byte_ledger(run, tmp_path / name)
            with pytest.raises(MeasurementError, match="exists"):
                plots.plot_byte_ledger(run, output_path=tmp_path / name)  # type: ignore[call-arg]
    assert (tmp_path / "ledger.png").read_text() == "mine"
    plots.plot_byte_ledger(run, output_path=tmp_path / "ledger.png", overwrite=True)  # type: ignore[call-arg]
    assert (tmp_path / "ledger.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = registry.save(Figure(), tmp_path / "figure")
    assert file == tmp_path / "figure.png"
    before = file.read_bytes()

    def broken(figure: Figure, file: Any, **options: Any) -> None:
        file.write(b"half of")
        raise OSError("the disk is full")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(OSError, match="the disk is full"):
        registry.save(Figure(), file, overwrite=True)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_where_pyplot_is_in_use_the_figure_is_its_own(run: Run, pyplot: Any) -> None:
    figure, _ = plots.plot_byte_ledger(run)
    assert pyplot.gcf() is figure


@pytest.mark.parametrize(("shell", "shows"), [(None, False), ("a shell", True)])
def test_where_ipython_runs_the_figure_is_pyplots(
    shell: str | None, shows: bool, run: Run, no_pyplot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    figure, _ = plots.plot_byte_ledger(run)
    assert hasattr(figure, "number") == shows  # pyplot counts its figures


IN_A_NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from handmade import handmade_run; from roastcoffea import plot_byte_ledger", silent=True)
for _ in range(3):
    shell.run_cell("_ = plot_byte_ledger(handmade_run())")
"""


@pytest.mark.slow
def test_each_figure_shows_in_a_notebook() -> None:
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", IN_A_NOTEBOOK]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.count("<Figure size") == 3


def test_the_style_of_the_user_stays_on_his_axes(run: Run, no_pyplot: None) -> None:
    with mpl.rc_context({"xtick.top": True, "axes.linewidth": 7.0, "axes.labelsize": 26.0}):
        _, own = plots.plot_byte_ledger(run)
        _, theirs = plots.plot_byte_ledger(run, ax=Figure().add_subplot())
    assert [ax.spines["left"].get_linewidth() for ax in (own, theirs)] == [0.8, 7.0]
    assert [ax.texts[0].get_fontsize() for ax in (own, theirs)] == [8.5, pytest.approx(22.1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_on_a_dark_background_everything_has_other_colours(
    name: str, measurement: Measurement, no_pyplot: None
) -> None:
    entry = PLOTS[name.removeprefix("plot_")]
    light, dark = (figure_alone(entry, measurement, dark=dark) for dark in (False, True))
    assert [to_hex(figure.get_facecolor()).upper() for figure in (light, dark)] == [LIGHT.ground, DARK.ground]
    assert content(dark.axes[0]) == content(light.axes[0])
    assert colours_of(light) <= {*LIGHT.of_time.values(), *LIGHT.of_bytes.values(), *LIGHT.series, LIGHT.ink} | GREYS
    assert colours_of(dark) <= {*DARK.of_time.values(), *DARK.of_bytes.values(), *DARK.series, DARK.ink} | GREYS


GREYS = {LIGHT.quiet, DARK.quiet, LIGHT.ground, DARK.ground}


def colours_of(figure: Figure) -> set[str]:
    """Colours of lines, areas and bars."""
    found = [line.get_color() for axes in figure.axes for line in axes.lines]
    found += [patch.get_facecolor() for axes in figure.axes for patch in axes.patches if patch.get_fill()]
    found += [colour for axes in figure.axes for artist in axes.collections for colour in artist.get_facecolor()]
    return {to_hex(colour).upper() for colour in found}


@pytest.mark.slow
def test_axes_in_a_dark_style_get_dark_colours(run: Run, pyplot: Any) -> None:
    with pyplot.style.context("dark_background"):
        _, ax = plots.plot_time_ledger(run, ax=Figure().add_subplot())
    assert to_hex(ax.patches[0].get_facecolor()).upper() == DARK.of_time["compute"]
    figure, _ = plots.plot_time_ledger(run, dark=True)
    assert to_hex(figure.get_facecolor()).upper() == DARK.ground


def test_a_subfigure_and_removed_axes(run: Run) -> None:
    figure = Figure()
    part = figure.subfigures(1, 2)[0]
    ax = part.add_subplot()
    assert plots.plot_byte_ledger(run, ax=ax)[0] is figure


def test_a_measurement_draws_by_name(run: Run, no_pyplot: None) -> None:
    measurement = Measurement(run)
    ax = Figure().add_subplot()
    assert measurement.plot("byte_ledger", ax) == (ax.figure, ax)
    assert measurement.plot("plot_byte_ledger", title="x")[1].get_title() == "x"
    with pytest.raises(ValueError, match="there is no plot 'byte_leger'; did you mean byte_ledger"):
        measurement.plot("byte_leger")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_names_in_the_data_are_taken_as_they_are(name: str, oddly_named: Measurement) -> None:
    figure_alone(PLOTS[name.removeprefix("plot_")], oddly_named).draw_without_rendering()


def test_a_cell_shows_the_picture_and_no_tuple(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.formatters import IPythonDisplayFormatter
    from matplotlib import pyplot as plt

    show = IPythonDisplayFormatter()
    figure, axes = plt.subplots()
    drawn = Drawn(figure, axes)
    assert drawn == (figure, axes)
    assert show(drawn)  # so that nothing else is asked for its text
    assert capsys.readouterr().out == ""  # the notebook shows a figure of pyplot's itself
    plt.close(figure)
    assert show(drawn)
    assert capsys.readouterr().out.startswith("Figure(")


@pytest.mark.parametrize(("style", "scheme"), [("default", LIGHT), ("dark_background", DARK)])
def test_a_new_figure_is_dark_where_the_style_of_the_user_is(style: str, scheme: Any, pyplot: Any) -> None:
    with mpl.style.context(style):
        figure, ax = plots.plot_byte_ledger(Measurement(handmade_run()))
        given, _ = plots.plot_byte_ledger(Measurement(handmade_run()), dark=scheme is LIGHT)
    assert to_hex(figure.get_facecolor()).upper() == scheme.ground
    assert to_hex(ax.xaxis.label.get_color()).upper() == scheme.ink
    assert to_hex(given.get_facecolor()).upper() != scheme.ground  # what is asked for wins
