"""The task stream of runs by hand: lanes, classes, chunks of tasks, and what takes the most of each pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from handmade import CHUNKS, TASKS, T, handmade_run, run_with, task

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.visualization.distributions import IDLE, SHOWN, Stream, main_in_pixels, stream_of
from roastcoffea.visualization.inputs import inputs_of


def classes(stream: Stream) -> list[str]:
    return [SHOWN[kind] for kind in stream.kind]


def made(*rows: tuple[int, str, float, float], lanes: int = 2, pale: int = 0) -> Stream:
    """Attempts by lane, class, start and stop, all of them as pale."""
    lane, names, start, stop = zip(*rows, strict=True)
    kind, none = np.array([SHOWN.index(name) for name in names]), np.full(len(rows), -1)
    workers = [f"w{number}" for number in range(lanes)]
    return Stream(np.array(lane), kind, np.array(start), np.array(stop), none, none, 0 * none + pale, workers, lanes)


def test_tasks_have_the_class_that_took_the_most_of_their_chunk() -> None:
    run = handmade_run()
    stream = stream_of(run.tasks, run.chunks)
    found = dict(zip([(row["key"], row["run_id"]) for row in run.tasks.to_pylist()], classes(stream), strict=True))
    assert found == {
        ("k1", 1): "compute",
        ("k1", 5): "compute",
        ("k2", 2): "failed",
        ("k2", 6): "compute",
        ("k3", 3): "failed",  # it skipped its file
        ("p1", 1): "preprocessing",
        ("p2", 1): "failed",
        ("p2", 2): "preprocessing",
        ("p3", 1): "preprocessing",
        ("r1", None): "merge",
    }
    identities = [(row["key"], row["run_id"]) for row in run.chunks.to_pylist()]
    of_chunks = [identities[row] for row in stream.chunk if row >= 0]
    assert of_chunks == [identity for identity in found if identity in identities]
    assert stream.task.tolist() == list(range(len(run.tasks)))
    assert (stream.start - T).tolist()[:2] == [10, 11]


def test_what_the_ledger_counts_as_failed_is_failed_in_the_stream() -> None:
    inputs = inputs_of(run_with("B", samples={}).run)
    stream, ledger = stream_of(*inputs.value("attempts")), inputs.value("time_ledger")
    failed = [number for number, name in enumerate(classes(stream)) if name == "failed"]
    known = [*TASKS, {"key": "lost-B", "run_id": 50}]
    found = [(known[stream.task[number]]["key"], known[stream.task[number]]["run_id"]) for number in failed]
    assert ("k1", 1) in found  # computed again, though its outcome is "ok"
    assert ("lost-B", 50) in found
    seconds = (stream.stop - stream.start)[failed].sum()
    assert seconds == pytest.approx(ledger["failed"] + 0.5)  # of which 0.5 s around the skipped chunk


def test_attempts_that_left_no_thread_fill_known_ones_where_these_are_free() -> None:
    rows = [
        task("a", 1, "processor", "ok", "A", 0, 2) | {"thread": 7},
        task("b", 1, "processor", "ok", "A", 0, 4) | {"thread": 9},
        task("c", 1, "processor", "worker lost", "A", 2, 6),
        task("d", 1, "processor", "worker lost", "A", 4, 6),
        task("e", 1, "processor", "worker lost", "A", 5, 6),
    ]
    stream = stream_of(table_of_rows(TASK_COLUMNS, rows), None)
    assert stream.lane.tolist() == [1, 2, 1, 2, 0]


def test_without_records_of_chunks_nothing_tells_what_went_on() -> None:
    stream = stream_of(handmade_run().tasks, None)
    assert classes(stream).count("residual") == 4
    assert set(stream.chunk.tolist()) == {-1}


def test_without_tasks_chunks_are_the_stream() -> None:
    stream = stream_of(None, handmade_run().chunks)
    assert (len(stream.start), set(stream.task.tolist())) == (len(CHUNKS), {-1})
    assert classes(stream).count("failed") == sum(row["outcome"] in {"error", "skipped"} for row in CHUNKS)


def test_threads_of_a_worker_lie_beside_each_other() -> None:
    rows = [
        task("a", 1, "merge", "ok", "B", 0, 1) | {"thread": 9},
        task("b", 1, "merge", "ok", "A", 0, 2) | {"thread": 7},
        task("c", 1, "merge", "ok", "B", 1, 2) | {"thread": 3},
        task("d", 1, "merge", "ok", "B", 2, 3) | {"thread": 9},
    ]
    stream = stream_of(table_of_rows(TASK_COLUMNS, rows), None)
    assert stream.lanes == ["A", "B", "B"]
    assert stream.lane.tolist() == [2, 0, 1, 2]
    assert stream.workers == 2


def test_workers_are_in_the_order_of_their_names() -> None:
    names = {"tcp://a:1": "vm:10", "tcp://a:2": "vm:2", "tcp://a:3": "vm:1"}
    rows = [task("a", 1, "merge", "ok", worker, 0, 1) for worker in names]
    assert stream_of(table_of_rows(TASK_COLUMNS, rows), None, names).lanes == ["tcp://a:3", "tcp://a:2", "tcp://a:1"]


def test_where_no_thread_is_known_the_first_free_lane_is_taken() -> None:
    times = [(0, 4), (1, 2), (2, 3), (3, 9), (4, 5)]
    rows = [task(f"t{place}", 1, "merge", "ok", "A", *both) for place, both in enumerate(times)]
    stream = stream_of(table_of_rows(TASK_COLUMNS, rows), None)
    first, second = stream.lane[0], stream.lane[1]
    assert stream.lane.tolist() == [first, second, second, second, first]
    assert stream.lanes == ["A", "A"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"worker": None}, "no task or chunk has a worker"),
        ({"start": None}, "no task has times"),
    ],
)
def test_what_is_not_known_is_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotMeasuredError, match="no tasks or chunks were recorded"):
        stream_of(None, None)
    rows = [task("a", 1, "merge", "ok", "A", 0, 1) | changes]
    with pytest.raises(NotMeasuredError, match=reason):
        stream_of(table_of_rows(TASK_COLUMNS, rows), None)


def test_a_pixel_has_the_class_that_took_the_most_and_any_failure() -> None:
    stream = made((0, "compute", 0, 6), (0, "read", 6, 10), (0, "failed", 19.9, 20), (1, "merge", 0, 2))
    pixels = main_in_pixels(stream, 2, np.array([0.0, 10.0, 20.0]))
    kinds = [[None if kind == IDLE else SHOWN[kind] for kind in row] for row in pixels.kind]
    assert kinds == [["compute", "failed"], [None, None]]  # 2 s of 10 s are mostly idle
    assert pixels.busy == pytest.approx(np.array([[10, 0.1], [2, 0]]))
    assert pixels.most == pytest.approx(np.array([[6, 0.1], [2, 0]]))


def test_a_chunk_that_waited_for_a_core_has_the_colour_of_its_work_and_is_paler() -> None:
    waited = {"contention_seconds": 5.0, "wait_seconds": None, "lock_seconds": 0.0, "blocked_seconds": 0.0}
    rows = [
        CHUNKS[0] | waited | {"compute_seconds": 2.0, "read_seconds": 1.0, "wall_seconds": wall} for wall in (8.0, 12.0)
    ]
    rows.append(rows[0] | {"contention_seconds": 0.0, "blocked_seconds": 5.0})
    stream = stream_of(None, table_of_rows(CHUNK_COLUMNS, rows))
    assert (classes(stream), stream.pale.tolist()) == (["compute", "task overhead", "blocked"], [2, 1, 0])


def test_a_pixel_is_as_pale_as_its_tasks_are_on_average() -> None:
    edges = np.array([0.0, 10.0])
    assert main_in_pixels(made((0, "compute", 0, 9), (1, "read", 0, 3), pale=2), 1, edges).pale.tolist() == [[2]]
    mixed = made((0, "compute", 0, 9), (1, "compute", 0, 3))._replace(pale=np.array([0, 3]))
    assert main_in_pixels(mixed, 1, edges).pale.tolist() == [[1]]  # 3 of 12 s at 3


def test_lanes_share_the_rows_that_there_are() -> None:
    stream = made((0, "compute", 0, 10), (1, "compute", 0, 4), (2, "merge", 0, 9), (3, "read", 0, 8), lanes=4)
    pixels = main_in_pixels(stream, 2, np.array([0.0, 10.0]))
    assert [SHOWN[kind] for kind in pixels.kind[:, 0]] == ["compute", "merge"]
    assert pixels.busy[:, 0] == pytest.approx([14, 17])
