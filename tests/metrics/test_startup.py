"""Start-up: what first tasks and first chunks take beyond later ones, in runs that were worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
from handmade import T
from limited_runs import edited
from made_runs import Plan, made_run, plan, waiting_in

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import PREPROCESSING_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS


def ledger(run: Run) -> TimeLedger:
    return Measurement(run).time_ledger


def run_of(first: dict[str, float], number: int = 10, workers: int = 2, later: float = 1.0) -> Run:
    """Chunks of 1 s of CPU, of which the first on each worker has more in these columns."""
    run = made_run([plan(later)] * number, workers)
    assert run.chunks is not None
    assert run.tasks is not None
    rows, moved = run.chunks.to_pylist(), dict.fromkeys(range(workers), 0.0)
    tasks = run.tasks.to_pylist()
    for place, (row, task) in enumerate(zip(rows, tasks, strict=True)):
        worker = place % workers
        row["thread"] = 1
        begun = moved[worker]
        if place < workers:
            for name, seconds in first.items():
                row[name] += seconds
                row["wall_seconds"] += seconds
                moved[worker] += seconds
        for one in (row, task):
            one["start"] += begun
            one["stop"] += moved[worker]
    stop = max(row["stop"] for row in rows)
    for task in tasks:
        task["seen"] = task["stop"]
    lives = None if run.lifetimes is None else run.lifetimes.to_pylist()
    lifetimes = [] if lives is None else [life | {"stop": stop} for life in lives]
    return dataclasses.replace(
        run,
        stop=stop,
        chunks=table_of_rows(CHUNK_COLUMNS, rows),
        tasks=table_of_rows(TASK_COLUMNS, tasks),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes),
    )


def test_what_first_chunks_take_beyond_later_ones_is_start_up() -> None:
    run = run_of({"compute_seconds": 0.5, "open_seconds": 0.25, "blocked_seconds": 0.125, "read_seconds": 2.0})
    found = ledger(run)
    assert found["start-up"] == pytest.approx(2 * (0.5 + 0.25 + 0.125))
    assert found["compute"] == pytest.approx(10.0)
    assert (found["open"], found["blocked"]) == (0.0, 0.0)
    # a first reading is as any other
    assert found["read"] == pytest.approx(4.0)
    assert abs(found.residual or 0.0) < 1e-9
    frame = found.by("worker")
    assert frame["start-up"].tolist() == pytest.approx([0.875, 0.875])
    assert found.timeline(10)["start-up"].sum() > 0


def test_without_later_chunks_nothing_is_start_up() -> None:
    found = ledger(run_of({"compute_seconds": 0.5}, number=2))
    assert found["start-up"] == 0.0
    assert found["compute"] == pytest.approx(3.0)


def test_first_chunks_that_take_no_longer_have_no_start_up() -> None:
    assert ledger(run_of({"compute_seconds": 0.01}))["start-up"] == 0.0


def late_first_tasks(late: dict[str, float]) -> Run:
    """Chunks of 1 s, of which the first on these workers arrives so late; the others take 0.1 s from the scheduler."""
    run = made_run([plan(1.0)] * 12, 3, before=5.0)
    assert run.tasks is not None
    tasks = run.tasks.to_pylist()
    for place, task in enumerate(tasks):
        way = 0.1 + (late.get(task["worker"], 0.0) if place < 3 else 0.0)
        task["assigned"] = task["runnable"] = task["start"] - way
        task["arrived"] = task["ready"] = task["start"]
    return dataclasses.replace(run, tasks=table_of_rows(TASK_COLUMNS, tasks))


def test_what_first_tasks_take_to_begin_beyond_later_ones_is_start_up() -> None:
    run = late_first_tasks({"w0": 2.0, "w2": 1.0})
    assert run.chunks is not None
    rows = [
        row | {"imports": ["numba", "coffea"] if place == 0 else None}
        for place, row in enumerate(run.chunks.to_pylist())
    ]
    found = ledger(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)))
    assert [(one.worker, one.modules) for one in found.startup] == [("w0", ("numba", "coffea")), ("w2", ())]
    assert [one.idle_seconds for one in found.startup] == pytest.approx([2.0, 1.0])
    assert found["start-up"] == pytest.approx(3.0)
    assert found.by("worker")["start-up"].tolist() == pytest.approx([2.0, 0.0, 1.0])
    # of each worker the usual way of its first task; its later ones came while it computed
    assert found["in flight"] == pytest.approx(3 * 0.1)
    assert abs(found.residual or 0.0) < 1e-9
    assert found.timeline(7)["start-up"].sum() > 0


def test_workers_that_begin_at_once_have_no_start_up() -> None:
    assert ledger(late_first_tasks({}))["start-up"] == 0.0
    assert ledger(late_first_tasks({"w0": 0.01}))["start-up"] == 0.0


# First chunks that are large, of a slow worker, or of a slow file


def on_one_thread(run: Run) -> TimeLedger:
    return ledger(edited(run, chunks=lambda _: {"thread": 1}))


@pytest.mark.parametrize("column", ["blocked_seconds", "lock_seconds"])
def test_first_chunks_that_are_large_have_no_start_up(column: str) -> None:
    large = [plan(1.0, 3.0, events=100_000, file=f"large{number}.root") for number in range(4)]
    small = [plan(0.05, 0.15, events=5_000, file=f"small{number}.root") for number in range(60)]
    found = on_one_thread(waiting_in(made_run(large + small, 4), column))
    assert found["start-up"] == 0.0
    assert found["blocked"] + found["interpreter lock"] == pytest.approx(4 * 3.0 + 60 * 0.15)


def test_first_chunks_that_are_small_have_no_start_up_by_a_fixed_cost() -> None:
    small = [plan(0.5, events=100) for _ in range(4)]
    assert on_one_thread(made_run(small + [plan(0.6, events=10_000) for _ in range(40)], 4))["start-up"] == 0.0


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_slow_worker_of_few_chunks_has_no_start_up(chunks: int) -> None:
    """Of one chunk nothing tells that the next one would be shorter."""
    run = slow_worker(chunks)
    assert run.chunks is not None
    assert run.chunks["worker"].to_pylist().count("w0") == chunks
    assert on_one_thread(run)["start-up"] == 0.0


def slow_worker(chunks: int) -> Run:
    """A worker that takes ten times as long, and has so many chunks."""
    free, plans = [0.0] * 4, []
    for place in range(40):
        worker = free.index(min(free))
        seconds = 9.0 * 2 / chunks if worker == 0 else 1.0
        free[worker] += seconds
        plans.append(plan(seconds, file=f"{place % 4}.root"))
    return made_run(plans, 4)


def slow_file(opening: float) -> list[Plan]:
    """Eight files of eight chunks, of which the first takes so long to open for each."""
    return [plan(1.0, file=f"{place // 8}.root", open_wait=opening if place < 8 else 0.05) for place in range(64)]


def test_a_first_file_that_is_slow_to_open_is_no_start_up() -> None:
    slow, others = (edited(made_run(slow_file(each), 4), chunks=lambda _: {"thread": 1}) for each in (6.0, 0.05))
    assert ledger(slow)["start-up"] == 0.0
    verdict = Measurement(slow).verdict
    assert [finding.cause for finding in verdict] == ["slow file"]
    truth = (slow.stop - slow.start) - (others.stop - others.start)
    assert verdict[0].seconds == pytest.approx(truth, rel=0.1)


def test_a_file_of_one_chunk_is_no_start_up_of_the_worker_that_opened_it_first() -> None:
    plans = [plan(1.0, file=f"{place}.root", open_wait=6.0 if place == 0 else 0.05) for place in range(32)]
    assert on_one_thread(made_run(plans, 4))["start-up"] == 0.0


@pytest.mark.parametrize("imports", [None, ["coffea"]])
def test_files_of_one_chunk_have_start_up_that_first_chunks_have_in_common_or_with_imports(
    imports: list[str] | None,
) -> None:
    fresh = 4 if imports is None else 1
    plans = [plan(6.0 if place < fresh else 1.0, file=f"{place}.root") for place in range(32)]
    run = edited(made_run(plans, 4), chunks=lambda row: {"thread": 1, "imports": imports if row["id"] == 0 else None})
    assert ledger(run)["start-up"] == pytest.approx(5.0 * fresh)


# Pools without a scheduler


def pool_run(births: dict[str, float], files: int = 0, threads: int = 1) -> Run:
    """Ten chunks of 1 s on two processes from 10 s on, without a scheduler; the processes were born so much earlier.

    Before them so many files were opened in this call, each for 1 s in this process, the last one until 7 s.
    """
    run = made_run([plan(1.0)] * 10, 2, before=10.0)
    (call,) = run.calls
    assert run.preprocessing is not None
    assert run.lifetimes is not None
    lives = [
        life | {"start": T + 10.0 - births[life["worker"]], "process": place, "threads": threads}
        for place, life in enumerate(run.lifetimes.to_pylist())
    ]
    opened = {"call": call.id, "worker": "parent", "outcome": "ok", "wall_seconds": 1.0, "dataset": "data"}
    openings = [opened | {"start": T + 6.0, "stop": T + 7.0, "file": str(number)} for number in range(files)]
    if files:
        lives.append(lives[0] | {"worker": "parent", "process": 99, "threads": files, "start": T + 6, "stop": T + 7})
    return dataclasses.replace(
        edited(run, chunks=lambda _: {"call": call.id, "thread": 1}),
        tasks=None,
        pauses=None,
        calls=(dataclasses.replace(call, start=T + 5.0),),
        preprocessing=table_of_rows(PREPROCESSING_COLUMNS, openings),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, lives),
    )


def test_the_start_of_a_pool_s_processes_is_start_up() -> None:
    found = ledger(pool_run({"w0": 2.0, "w1": 1.25}))
    assert found["start-up"] == pytest.approx(3.25)
    assert found.by("worker")["start-up"].tolist() == pytest.approx([2.0, 1.25])
    assert [(one.worker, one.idle_seconds) for one in found.startup] == [("w0", 2.0), ("w1", 1.25)]
    assert (found["compute"], found["idle: client"], found["idle: tail"]) == pytest.approx((10.0, 0.0, 0.0))
    assert found.total == pytest.approx(2 * 5.0 + 3.25)
    assert abs(found.residual or 0.0) < 1e-6
    lines = found.timeline(40)
    assert lines["start-up"] @ lines["seconds"] == pytest.approx(3.25)


def test_a_process_that_gets_no_chunk_waits_for_the_others_from_the_start() -> None:
    run = pool_run({"w0": 2.0, "w1": 2.0})
    assert run.lifetimes is not None
    lives = run.lifetimes.to_pylist()
    spare = lives[0] | {"worker": "w2", "process": 7}
    found = ledger(dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, [*lives, spare])))
    assert found["start-up"] == pytest.approx(4.0)
    assert (found["idle: tail"], found["idle: client"]) == pytest.approx((7.0, 0.0))
    assert abs(found.residual or 0.0) < 1e-6


@pytest.mark.parametrize(
    ("births", "files", "why"),
    [
        (6.0, 0, "they were there before the Runner call"),
        (11.0, 0, "they were there before the run"),
        (4.0, 2, "they were there while files were opened, and no chunk waited yet"),
        (0.01, 0, "they began at once"),
    ],
)
def test_processes_that_no_chunk_waited_for_have_no_start_up(births: float, files: int, why: str) -> None:
    found = ledger(pool_run(dict.fromkeys(("w0", "w1"), births), files))
    assert found["start-up"] == 0.0, why
    assert abs(found.residual or 0.0) < 1e-6


def test_processes_of_a_pool_after_preprocessing_have_start_up() -> None:
    found = ledger(pool_run({"w0": 2.0, "w1": 2.0}, files=3))
    assert found["start-up"] == pytest.approx(4.0)
    assert found["preprocessing"] == pytest.approx(3.0)
    assert abs(found.residual or 0.0) < 1e-6
