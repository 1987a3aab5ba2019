"""What is drawn, against numbers that were worked out apart from the drawing."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from handmade import EXPECTED, LIFETIMES, SPAN, T, handmade_run
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pictures import DATASETS, GIB, synthetic_run

from roastcoffea.metrics import evaluate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.visualization import draw, plots
from roastcoffea.visualization.distributions import running_chunks
from roastcoffea.visualization.draw import OF_BYTES, OF_TIME, by_family
from roastcoffea.visualization.plots import extract_per_task_metrics


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run()


def axes_of(function: Any, source: Run) -> Axes:
    ax = Figure(figsize=(6, 4)).add_subplot()
    function(source, ax=ax)
    return ax


def bars(ax: Axes) -> dict[str, list[float]]:
    """Widths of the bars by the name beside the axis, from left to right."""
    names = [label.get_text() for label in ax.get_yticklabels()]
    found: dict[str, list[float]] = {name: [] for name in names}
    for container in ax.containers:
        for name, bar in zip(names, container, strict=True):
            found[name].append(bar.get_width())
    return found


def test_the_byte_ledger() -> None:
    ax = axes_of(plots.plot_byte_ledger, handmade_run())
    names = ("payload", "reread", "metadata", "other_files", "preprocessing", "failed", "residual")
    wanted = [[pytest.approx(EXPECTED[f"bytes_{name}"] / 1000)] for name in names]
    assert list(bars(ax)) == list(OF_BYTES)
    assert list(bars(ax).values()) == wanted
    assert [to_hex(bar.get_facecolor()).upper() for bar in ax.containers[0]] == list(OF_BYTES.values())
    assert ax.get_xlabel().startswith("requested (kB); total 6.05 kB\nincomplete: ")
    assert [text.get_text() for text in ax.texts][:2] == ["3.2 kB, 52.9 %", "700 B, 11.6 %"]


def test_the_time_ledger() -> None:
    ax = axes_of(plots.plot_time_ledger, handmade_run())
    found = bars(ax)
    for name in (
        "compute",
        "read",
        "contention",
        "interpreter lock",
        "blocked",
        "merge",
        "preprocessing",
        "failed",
        "idle: tail",
        "idle: client",
        "residual",
    ):
        key = f"time_{name.replace(': ', '_').replace(' ', '_')}_seconds"
        if EXPECTED[key] >= 1e-3 * 440:
            assert found[name] == [pytest.approx(EXPECTED[key] / 60, abs=1e-9)]
        else:
            assert name not in found
    assert "transfer" not in found
    assert "below 0.1 % each: interpreter lock, blocked, checkpoint" in ax.get_xlabel().replace("\n", " ")
    assert sum(width for widths in found.values() for width in widths) == pytest.approx(440 / 60, rel=2e-3)
    assert ax.get_xlabel().startswith("worker threads x time (min); total 7 min 20 s")
    shown = [to_hex(bar.get_facecolor()).upper() for bar in ax.containers[0]]
    assert shown == [OF_TIME[name] for name in found]


def test_the_time_ledger_over_time() -> None:
    ax = axes_of(plots.plot_time_ledger_timeline, handmade_run())
    areas = [patch for patch in ax.patches if patch.get_fill()]
    ledger = evaluate(handmade_run())["time_ledger"]
    names = [name for name in by_family(OF_TIME) if name != "wait" and ledger.get(name)]
    assert [to_hex(area.get_facecolor()).upper() for area in areas] == [OF_TIME[name] for name in names]
    stairs = {name: area.get_data() for name, area in zip(names, areas, strict=True)}
    line = ax.patches[-1]
    threads, edges, _ = line.get_data()
    assert edges[[0, -1]] == pytest.approx([0, 100])
    assert (threads * np.diff(edges)).sum() == pytest.approx(440)
    entries = [text.get_text().replace("\n", " ") for text in ax.get_legend().get_texts()]
    shown = [name for entry in entries for name in entry.split(", ")]
    # those have 0.25 of 440
    assert set(stairs) - set(shown) == {"checkpoint", "interpreter lock", "blocked"}
    assert set(shown) - set(stairs) == {"threads available"}
    assert len(entries) <= 8
    below = np.zeros(len(threads))
    for name, (reached, edges, baseline) in stairs.items():
        np.testing.assert_array_equal(baseline, below)
        below = reached
        key = f"time_{name.replace(': ', '_').replace(' ', '_')}_seconds"
        assert ((reached - baseline) * np.diff(edges)).sum() == pytest.approx(EXPECTED[key])
    assert (ax.get_xlabel().partition("\n")[0], ax.get_ylabel()) == ("time since the start of the run (s)", "threads")


def test_classes_that_were_not_measured_are_told() -> None:
    run = handmade_run(pauses=None)
    for function in (plots.plot_time_ledger, plots.plot_time_ledger_timeline):
        assert axes_of(function, run).get_xlabel().endswith("\nnot measured: paused")
        assert "not measured" not in axes_of(function, handmade_run()).get_xlabel()


def test_every_dataset_has_an_entry_in_the_legend(run: Run) -> None:
    odd = {DATASETS[0]: None, DATASETS[1]: "_private", DATASETS[2]: "$x"}
    changed = without(run, "chunks", dataset=[odd[name] for name in run.chunks["dataset"].to_pylist()])
    for function in (plots.plot_runtime_distribution, plots.plot_runtime_vs_events):
        entries = [text.get_text() for text in axes_of(function, changed).get_legend().get_texts()]
        assert {"(none)", " _private", r"\$x"} <= set(entries)


def test_workers_come_and_go() -> None:
    ax = axes_of(plots.plot_worker_count_timeline, handmade_run())
    times, counts = ax.lines[0].get_data()
    assert dict(zip(times.tolist(), counts.tolist(), strict=True)) == {0: 1, 20: 2, 60: 2, 80: 1, 100: 1}
    assert len(LIFETIMES) == 3


def test_workers_that_died_are_gone() -> None:
    left = [row | {"start": T, "stop": T + 30} for row in LIFETIMES[:2]]
    run = handmade_run(lifetimes=table_of_rows(LIFETIME_COLUMNS, left))
    line = axes_of(plots.plot_worker_count_timeline, run).lines[0]
    assert [values.tolist() for values in line.get_data()] == [[0, 30, 100], [2, 0, 0]]


def test_workers_that_were_counted_are_drawn_as_they_are_given() -> None:
    ax = Figure().add_subplot()
    plots.plot_worker_count_timeline(tracking_data={"worker_counts": {0: 4, 10: 4, 20: 0}}, ax=ax)
    assert ax.lines[0].get_ydata().tolist() == [4, 4, 0]


def test_the_area_below_the_data_rate_is_what_was_requested(run: Run) -> None:
    ax = axes_of(plots.plot_throughput_timeline, run)
    values, edges, _ = ax.patches[0].get_data()
    assert "Mbit/s" in ax.get_ylabel()
    requested = sum(sum(table["bytes_requested"].to_pylist()) for table in (run.chunks, run.preprocessing))
    assert ax.get_xlabel() == "time since the start of the run (s)"
    assert float(np.sum(values * np.diff(edges))) * 1e6 / 8 == pytest.approx(requested)
    workers = ax.figure.axes[1].lines[0].get_ydata()
    assert workers.max() == 4


def test_chunks_of_datasets_over_time_by_hand() -> None:
    spans = [("a", 0.0, 4.0), ("a", 2.0, 6.0), ("a", 7.0, 8.0), ("b", 4.0, 8.0), ("b", None, 3.0)]
    table = pa.table(dict(zip(("dataset", "start", "stop"), map(list, zip(*spans, strict=True)), strict=True)))
    edges, counts = running_chunks(table, 0.0, 4)
    assert edges.tolist() == [0, 2, 4, 6, 8]
    assert {name: count.tolist() for name, count in counts.items()} == {"a": [1, 2, 1, 0.5], "b": [0, 0, 1, 1]}


def test_chunks_of_datasets_have_the_data_rate_beneath(run: Run) -> None:
    above, beneath = axes_of(plots.plot_dataset_timeline, run).child_axes
    lasted = run.chunks.append_column("seconds", pc.subtract(run.chunks["stop"], run.chunks["start"]))
    sums = lasted.group_by("dataset").aggregate([("seconds", "sum")]).to_pylist()
    areas = {}
    for patch in above.patches:
        values, edges, baseline = patch.get_data()
        areas[patch.get_label()] = float(np.sum((values - baseline) * np.diff(edges)))
    assert areas == pytest.approx({row["dataset"]: row["seconds_sum"] for row in sums})
    values, edges, _ = beneath.patches[0].get_data()
    requested = sum(sum(table["bytes_requested"].to_pylist()) for table in (run.chunks, run.preprocessing))
    assert float(np.sum(values * np.diff(edges))) * 1e6 / 8 == pytest.approx(requested)
    assert above.get_xlim() == beneath.get_xlim()
    unknown = dict.fromkeys(("bytes_requested", "coffea_bytes_read"), [None] * len(run.chunks))
    alone = axes_of(plots.plot_dataset_timeline, without(run, "chunks", **unknown))
    assert alone.child_axes == []
    assert alone.patches


@pytest.mark.parametrize("size", [(3.4, 2.5), (5.25, 3.5), (7.0, 7.0)])
def test_names_of_rates_cover_no_chunk_and_no_other_name(run: Run, size: tuple[float, float]) -> None:
    figure, ax = plots.plot_runtime_vs_events(run, figsize=size)
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    clouds = [line.get_xydata() for line in ax.lines if line.get_linestyle() == "None"]
    points = ax.transData.transform(np.concatenate(clouds))
    assert len(boxes) == len([line for line in ax.lines if line.get_linestyle() == ":"]) >= 2
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert sum(box.count_contains(points) for box in boxes) == 0


def test_bytes_that_are_not_known_are_told_and_a_checkpoint_requested_none(run: Run) -> None:
    number = len(run.chunks)
    unknown = [None if row < 30 else 1000 for row in range(number)]
    changed = without(run, "chunks", bytes_requested=unknown, coffea_bytes_read=[None] * number)
    ax = axes_of(plots.plot_throughput_timeline, changed)
    assert ax.get_xlabel().endswith(f"\nthe bytes or times of 30 of {number + 6} attempts are\nunknown")
    loaded = without(changed, "chunks", outcome=["checkpoint" if row < 30 else "ok" for row in range(number)])
    assert "known" not in axes_of(plots.plot_throughput_timeline, loaded).get_xlabel()


def test_clocks_that_are_ahead_are_set_right() -> None:
    run = synthetic_run(workers=2, threads=1)
    first = run.lifetimes["worker"][0].as_py()
    ahead = [5.0 if worker == first else None for worker in run.lifetimes["worker"].to_pylist()]
    lifetimes = without(run, "lifetimes", clock_offset=ahead).lifetimes
    shifted = replace(run, lifetimes=lifetimes)
    for table, column in (("chunks", "start"), ("chunks", "stop"), ("samples", "time")):
        rows = getattr(run, table).select(["worker", column]).to_pylist()
        moments = [row[column] + (5.0 if row["worker"] == first else 0.0) for row in rows]
        shifted = without(shifted, table, **{column: moments})
    for function in (plots.plot_throughput_timeline, plots.plot_total_active_tasks_timeline):
        wanted, found = axes_of(function, run), axes_of(function, shifted)
        assert found.get_xlim() == pytest.approx(wanted.get_xlim())
        for one, other in zip(wanted.patches, found.patches, strict=True):
            np.testing.assert_allclose(one.get_path().vertices, other.get_path().vertices, atol=1e-4)
        for one, other in zip(wanted.lines, found.lines, strict=True):
            np.testing.assert_allclose(one.get_xydata(), other.get_xydata(), atol=1e-4)


def test_memory_in_percent_of_the_limit(run: Run) -> None:
    first = {row["worker"]: row for row in run.samples.to_pylist() if row["time"] == T}
    shares = [100 * row["memory"] / (3 * GIB) for row in first.values()]
    each = axes_of(plots.plot_memory_utilization_per_worker_timeline, run)
    assert [line.get_ydata()[0] for line in each.lines] == pytest.approx([*shares, 100])
    assert [text.get_text() for text in each.texts] == ["limit"]
    assert each.get_ylim()[1] > 100
    mean = axes_of(plots.plot_memory_utilization_mean_timeline, run)
    assert mean.lines[0].get_ydata()[0] == pytest.approx(np.mean(shares))
    assert "% of the limit" in mean.get_ylabel()


def test_many_workers_are_bands_and_few_are_lines(run: Run) -> None:
    many = synthetic_run(workers=30, rounds=2)
    ax = axes_of(plots.plot_occupancy_timeline, many)
    assert len(ax.lines) == 1
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["all 30 workers", "80 % of workers", "median"]
    assert len(axes_of(plots.plot_occupancy_timeline, run).lines) == 4


def test_all_tasks_of_all_workers() -> None:
    run = handmade_run()
    ax = axes_of(plots.plot_total_active_tasks_timeline, run)
    times, values = ax.lines[0].get_data()
    assert (times[0], values[0], values[-1]) == (0, 0, 2)


def test_the_sum_over_workers_has_no_ramps_between_their_samples() -> None:
    moments = {"a": [0.0, 10, 20, 30], "b": [4.0, 14, 24], "c": [8.0, 18]}
    rows = [{"worker": name, "time": T + at, "processing": 2} for name, times in moments.items() for at in times]
    lives = [LIFETIMES[0] | {"worker": name, "start": T, "stop": T + (22 if name == "c" else 100)} for name in moments]
    samples = table_of_rows(SAMPLE_COLUMNS, rows)
    run = handmade_run(samples=samples, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))
    times, values = axes_of(plots.plot_total_active_tasks_timeline, run).lines[0].get_data()
    assert values.tolist() == np.where(times < 22, 6, 4).tolist()
    untold = replace(run, lifetimes=None)
    times, values = axes_of(plots.plot_total_active_tasks_timeline, untold).lines[0].get_data()
    assert values.tolist() == np.where(times < 28, 6, 4).tolist()


def test_counts_are_steps_until_the_worker_left_on_the_axis_of_the_whole_run() -> None:
    rows = [{"worker": name, "time": T + at, "processing": at, "executing": 1} for name in "AB" for at in (0, 10, 20)]
    lives = [LIFETIMES[0] | {"worker": name, "start": T, "stop": T + left} for name, left in (("A", 100), ("B", 15))]
    rows = [row for row in rows if row["worker"] == "A" or row["time"] < T + 15]
    samples = table_of_rows(SAMPLE_COLUMNS, rows)
    run = handmade_run(samples=samples, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))
    ax = axes_of(plots.plot_worker_activity_timeline, run)
    assert ax.get_xlim() == (0, run.stop - run.start)
    assert [line.get_drawstyle() for line in ax.lines] == ["steps-post"] * 2
    assert [line.get_xydata().tolist() for line in ax.lines] == [
        [[0, 0], [10, 10], [20, 20], [20, 20]],
        [[0, 0], [10, 10], [15, 10]],
    ]
    total = axes_of(plots.plot_total_active_tasks_timeline, run).lines[0]
    assert total.get_drawstyle() == "steps-post"
    assert total.get_xydata().tolist() == [[0, 0], [10, 20], [15, 10], [20, 20]]


def test_activities_of_tasks() -> None:
    found = extract_per_task_metrics(SPAN)
    assert set(found) == {"Dijet", "reduce"}
    assert found["Dijet"] == {
        "thread-cpu": 12.0,
        "thread-noncpu": 4.0,
        "memory-read": 1000,
        "memory-read (count)": 7,
        "executor": 0.5,
    }
    assert (found["reduce"]["disk-write"], found["reduce"]["disk-write (seconds)"]) == (64, 0.125)
    assert extract_per_task_metrics({}) == {}


def test_bars_of_tasks() -> None:
    run = handmade_run()
    assert bars(axes_of(plots.plot_per_task_cpu_io, run)) == {"Dijet": [12, 4], "reduce": [0.75, 0.25]}
    assert bars(axes_of(plots.plot_per_task_bytes_read, run)) == {"Dijet": [1.0], "reduce": [0.5]}
    overhead = axes_of(plots.plot_per_task_overhead, run)
    assert bars(overhead) == {"reduce": [500, 250, 125], "Dijet": [0, 0, 0]}
    assert overhead.get_xlabel() == "thread time (ms)"


def test_what_dask_did_not_count_is_no_plot() -> None:
    run = handmade_run(span_metrics={("execute", "a", "executor", "seconds"): 1.0})
    for name, words in (
        ("cpu_io", "no seconds for thread-cpu, thread-noncpu"),
        ("bytes_read", "no bytes for memory-read, disk-read"),
        ("overhead", "no seconds for deserialize, serialize, .*disk-write"),
    ):
        with pytest.raises(
            ValueError, match=rf"plot_per_task_{name} has nothing to draw: Dask recorded {words} in this"
        ):
            getattr(plots, f"plot_per_task_{name}")(run)


def test_many_prefixes_are_pooled() -> None:
    span = {("execute", f"task{number}", "thread-cpu", "seconds"): float(number) for number in range(1, 41)}
    found = bars(axes_of(plots.plot_per_task_cpu_io, handmade_run(span_metrics=span)))
    assert len(found) == draw.MOST_BARS
    assert next(iter(found)) == "task40"
    assert found["21 others"] == [pytest.approx(sum(range(1, 22)) / 60)]


@pytest.mark.parametrize(
    ("function", "column", "factor"),
    [
        (plots.plot_runtime_distribution, "wall_seconds", 1),
        (plots.plot_bytes_accessed_per_chunk, "bytes_requested", 1e-6),
        (plots.plot_branch_access_per_chunk, "branches", 1),
    ],
)
def test_distributions_have_each_chunk_once(run: Run, function: Any, column: str, factor: float) -> None:
    ax = axes_of(function, run)
    rows = [row for row in run.chunks.to_pylist() if row["outcome"] == "ok"]
    stacked = {patch.get_label(): patch.get_data() for patch in ax.patches}
    assert set(stacked) == set(DATASETS)
    for dataset, (values, edges, below) in stacked.items():
        own = [row[column] * factor for row in rows if row["dataset"] == dataset]
        np.testing.assert_array_equal(values - below, np.histogram(own, edges)[0])
        assert sum(values - below) == len(own)


def test_compression_of_chunks() -> None:
    ax = axes_of(plots.plot_compression_ratio_distribution, handmade_run())
    values, edges, _ = ax.patches[0].get_data()
    # 2000 / 800 twice, 7000 / 2700, 500 / 400
    assert (edges[0], edges[-1], sum(values)) == (1.25, pytest.approx(7000 / 2700), 4)


def test_shares_of_files() -> None:
    ax = axes_of(plots.plot_data_access_percentage, handmade_run())
    assert bars(ax) == {"b.root": [50, 50], "a.root": [pytest.approx(100 * 2800 / 4800), 50]}


def test_shares_of_files_that_are_all_the_same_are_a_sentence() -> None:
    files = {f"{number}.root": {"bytes_read_percent": 25.1, "branches_read_percent": 10.0} for number in range(40)}
    ax = Figure().add_subplot()
    plots.plot_data_access_percentage(metrics={"file_read_metrics": files}, ax=ax)
    (sentence,) = ax.texts
    words = "read from each of 40 files: 25.1 % of its bytes, 10 % of its branches"
    assert sentence.get_text().replace("\n", " ") == words
    assert ax.patches[:] == []


def test_files_of_which_nothing_was_read_are_no_plot() -> None:
    files = {"a.root": {"bytes_read_percent": 0.0, "branches_read_percent": None}}
    with pytest.raises(ValueError, match="only metadata was read from 1 files"):
        plots.plot_data_access_percentage(metrics={"file_read_metrics": files})


def test_shares_of_many_files() -> None:
    files = {f"{number}.root": {"bytes_read_percent": number, "branches_read_percent": None} for number in range(40)}
    files["0.root"]["bytes_read_percent"] = None
    ax = Figure().add_subplot()
    plots.plot_data_access_percentage(metrics={"file_read_metrics": files}, ax=ax)
    assert [sum(patch.get_data().values) for patch in ax.patches] == [39]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["share of its bytes"]
    assert ax.get_xlabel().replace("\n", " ") == (
        "share of a file read (%) the share of its bytes is unknown for 1 of 40 files "
        "the share of its branches is unknown for 40 files"
    )


def test_branches_are_first_read_and_read_again() -> None:
    found = bars(axes_of(plots.plot_branch_bytes, handmade_run()))
    assert found == {"Jet_pt": [2.4, pytest.approx(0.7)], "run": [0.8, 0]}


def test_phases_are_means_of_chunks() -> None:
    found = bars(axes_of(plots.plot_chunk_phases, handmade_run()))
    assert found["mc"] == [5.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0, 0.25, 0, 0.25, 0.125, 0.125]
    assert sum(found["data"]) == pytest.approx((1.75 + 4.5 + 5.75) / 3)


def test_sections_are_sums_over_datasets() -> None:
    assert bars(axes_of(plots.plot_sections, handmade_run())) == {"jets": [3.25, 3.0], "jets/read": [0.5, 0.25]}


def test_balance_is_per_thread() -> None:
    found = bars(axes_of(plots.plot_worker_balance, handmade_run()))
    assert found == {"A": [1.25, 0.75], "B": [0, 0], "C": [0, 0]}


def test_efficiency_and_what_was_not_measured() -> None:
    ax = axes_of(plots.plot_efficiency_summary, handmade_run(tasks=None, span_metrics=None))
    found, texts = bars(ax), [text.get_text() for text in ax.texts]
    assert found["cores: CPU time of chunks"] == [pytest.approx(100 * EXPECTED["core_efficiency"])]
    assert found["bytes: useful"] == [pytest.approx(100 * EXPECTED["useful_fraction"])]
    assert texts[1] == "not measured"
    assert len(found) == 3  # nothing but efficiencies
    used = axes_of(plots.plot_resource_utilization, handmade_run())
    assert bars(used)["workers: mean / peak"] == [pytest.approx(80)]
    assert used.texts[0].get_text() == "80 % (1.6 of 2)"


def test_shares_of_nothing_have_no_row_but_a_note() -> None:
    _, ax = plots.plot_efficiency_summary(metrics={"core_efficiency": 0.5, "useful_fraction": 0.0})
    assert list(bars(ax)) == ["cores: CPU time of chunks", "chunk tasks: CPU time"]
    assert [text.get_text() for text in ax.texts] == ["50 %", "not measured"]
    assert ax.get_xlabel().endswith("\n0 %: bytes: useful")


def test_lines_of_constant_rate(run: Run) -> None:
    ax = axes_of(plots.plot_runtime_vs_events, run)
    dotted = [line.get_xydata() for line in ax.lines if line.get_linestyle() == ":"]
    rates = [xy[-1, 0] / xy[-1, 1] for xy in dotted]
    assert rates == pytest.approx([2000, 5000, 10_000])
    assert [text.get_text() for text in ax.texts] == ["2 kHz", "5 kHz", "10 kHz"]
    points = sum(len(line.get_xydata()) for line in ax.lines if line.get_linestyle() == "None")
    assert points == sum(outcome == "ok" for outcome in run.chunks["outcome"].to_pylist())


def test_many_chunks_are_a_density() -> None:
    run = synthetic_run(workers=8, threads=2, rounds=220)
    ax = axes_of(plots.plot_runtime_vs_events, run)
    counted = sum(outcome == "ok" for outcome in run.chunks["outcome"].to_pylist())
    assert ax.collections[0].get_array().sum() == counted
    assert ax.collections[0].get_rasterized()


def test_the_stream_of_tasks(run: Run) -> None:
    ax = axes_of(plots.plot_task_stream, run)
    rectangles = ax.collections[0].get_paths()
    colours = [to_hex(colour).upper() for colour in ax.collections[0].get_facecolors()]
    rows = run.tasks.to_pylist()
    failed = [number for number, row in enumerate(rows) if row["outcome"] == "error"]
    assert [number for number, colour in enumerate(colours) if colour == OF_TIME["failed"]] == failed
    assert colours.count(OF_TIME["merge"]) == 8
    for rectangle, row in zip(rectangles, rows, strict=True):
        left, right = rectangle.vertices[:, 0].min(), rectangle.vertices[:, 0].max()
        assert (left, right) == (pytest.approx(row["start"] - T), pytest.approx(row["stop"] - T))
    slow = run.chunks.to_pylist()[17]
    assert slow["read_seconds"] > slow["compute_seconds"]
    assert colours[17] == OF_TIME["read"]


def test_the_stream_of_very_many_tasks() -> None:
    run = synthetic_run(workers=20, threads=2, rounds=600)
    ax = axes_of(plots.plot_task_stream, run)
    image = ax.images[0].get_array()
    assert image.shape[:2] == (40, 800)
    shown = {to_hex(colour).upper() for colour in np.unique(image.reshape(-1, 4), axis=0)}
    assert {OF_TIME[name] for name in ("compute", "read", "failed")} <= shown
    assert len(run.tasks) > 20_000


def test_tasks_whose_thread_is_not_known_do_not_lie_on_each_other() -> None:
    ax = axes_of(plots.plot_task_stream, handmade_run())
    boxes = [path.get_extents() for path in ax.collections[0].get_paths()]
    overlaps = [
        (one, other)
        for place, one in enumerate(boxes)
        for other in boxes[:place]
        if one.y0 == other.y0 and min(one.x1, other.x1) > max(one.x0, other.x0)
    ]
    assert overlaps == []


def test_without_a_scheduler_chunks_are_the_stream(run: Run) -> None:
    ax = axes_of(plots.plot_task_stream, replace(run, tasks=None))
    assert len(ax.collections[0].get_paths()) == len(run.chunks)


def test_stragglers_are_marked(run: Run) -> None:
    ax = axes_of(plots.plot_stragglers, run)
    marks = [line for line in ax.lines if line.get_marker() == "D"]
    assert [line.get_label() for line in marks] == ["slow: read"]
    wall = run.chunks["wall_seconds"].to_pylist()
    slow = [wall[number] for number in (17, 46) if run.chunks["outcome"][number].as_py() == "ok"]
    assert sorted(marks[0].get_ydata()) == sorted(slow)
    assert "2 of 61 chunks took much longer than expected" in ax.get_xlabel()


def without(run: Run, table: str, **columns: Any) -> Run:
    """The run, with other values in some columns of a table."""
    changed = getattr(run, table)
    for name, values in columns.items():
        place = changed.column_names.index(name)
        changed = changed.set_column(
            place, changed.schema.field(name), pa.array(values, changed.schema.field(name).type)
        )
    return replace(run, **{table: changed})


def test_what_is_not_known_is_not_drawn_as_zero() -> None:
    run = handmade_run()
    balance = axes_of(plots.plot_worker_balance, without(run, "chunks", cpu_seconds=[None] * 6))
    assert [text.get_text() for text in balance.get_legend().get_texts()] == ["CPU unknown"]
    phases = axes_of(plots.plot_chunk_phases, without(run, "chunks", read_seconds=[None] * 6))
    assert "unknown for some datasets: read" in phases.get_xlabel()
    sections = axes_of(plots.plot_sections, without(run, "sections", cpu_seconds=[1.0, None, 1.0, 1.0]))
    assert np.isnan(bars(sections)["jets/read"][1])
    nothing = without(run, "chunks", bytes_requested=[None] * 6, coffea_bytes_read=[None] * 6)
    for function in (plots.plot_throughput_timeline, plots.plot_bytes_accessed_per_chunk):
        with pytest.raises(ValueError, match=r"unknown for every chunk|has both times and requested bytes"):
            function(nothing)
