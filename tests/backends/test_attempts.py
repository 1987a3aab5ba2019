"""Rows of attempts, as the scheduler's plugin writes them: whose they are, and what they take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analyses import Jets, runner_for
from distributed import Client, wait
from stand_ins import HASH, TASKS, WORKERS, Clock, Scheduler, Task, annotations, drained, run_tasks, started_plugin
from stand_ins import STARTED as T

from roastcoffea import load
from roastcoffea.backends.attempts import kind_of
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.workers import ClusterLog
from roastcoffea.records.workers import (
    CANCELLED,
    MERGE,
    OTHER,
    PREPROCESSING,
    PROCESSOR,
    UNFINISHED,
)


def test_times_of_tasks_are_put_on_the_clock_of_the_client(clock: Clock) -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (row,) = run_tasks(scheduler, plugin, 1, clock)
    task = drained(plugin).attempts.table(32.0).to_pylist()[0]
    assert [task[name] for name in ("start", "stop", "seen")] == [row[name] - 32 for name in ("start", "stop", "seen")]


def test_a_task_takes_less_than_200_bytes() -> None:
    scheduler = Scheduler(WORKERS)
    plugin = started_plugin(scheduler)
    before = plugin.log.size
    longest_name = "P" * 50
    for number, worker in zip(range(TASKS), cycle(scheduler.workers.values()), strict=False):
        scheduler.run(plugin, Task(f"{longest_name}-{number:04d}{HASH[4:]}", worker, longest_name))
    assert (plugin.log.size - before) / TASKS < 200


def test_a_task_that_was_stolen_belongs_to_the_thief() -> None:
    scheduler = Scheduler(2)
    plugin = started_plugin(scheduler)
    victim, thief = scheduler.workers.values()
    task = Task("inc-1", victim, "inc", outcome=CANCELLED)
    scheduler.tasks[task.key] = task
    plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
    plugin.log_event("stealing", ("confirm", task.key, "processing", victim.address, thief.address, "steal-1"))
    plugin.transition(task.key, "processing", "released", stimulus_id="client-releases-keys-1")
    (row,) = drained(plugin).attempts.table(0.0).to_pylist()
    assert (row["worker"], row["stolen"]) == (thief.address, 1)


@pytest.mark.slow
def test_of_tasks_of_other_users_only_worker_thread_and_times_are_saved(
    client: Client, sample: Any, tmp_path: Path
) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other, MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=Jets())
        with ThreadPoolExecutor(1) as thread:  # which has not entered the collector
            thread.submit(submit_theirs, other).result()
        ours = client.submit(str, 6, key="our-own-sum")
        wait(ours)
    measurement = load(collector.measurement.save(tmp_path))
    tasks = measurement.tasks
    assert "our-own-sum" in set(tasks["key"])
    anonymous = tasks[tasks["key"].isna()]
    assert len(anonymous) == 4
    assert set(anonymous["kind"]) == {OTHER}
    assert anonymous[["worker", "thread", "start", "stop", "assigned"]].notna().all().all()
    assert anonymous[["prefix", "type", "span", "error", "nbytes", "run_id"]].isna().all().all()
    measurement.print_summary()
    for name, frame in measurement.tables.items():
        assert "secret" not in frame.to_csv(), name
    assert measurement.time_ledger["other tasks"] > 0
    for file_format in ("json", "openmetrics", "perfetto"):
        measurement.export(tmp_path / file_format, file_format)
    measurement.report(tmp_path / "page.html")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if b"their-secret" in path.read_bytes()]


def submit_theirs(client: Client) -> None:
    failing = [client.submit(fail_secretly, number, key=f"their-secret-key-{number}") for number in range(3)]
    wait([*failing, client.submit(str, 5, key="their-secret-sum")])


def fail_secretly(number: int) -> None:
    raise ValueError(f"a secret {number}")


@pytest.mark.parametrize(
    ("step", "prefix", "kind"),
    [
        ("processing", "DijetProcessor", PROCESSOR),
        ("processing", "reduce", MERGE),
        ("processing", "inc", OTHER),
        ("preprocessing", "DijetProcessor", PREPROCESSING),
        (None, "DijetProcessor", OTHER),
        ("no mark", "DijetProcessor", OTHER),
    ],
)
def test_what_a_task_does_is_known_by_its_mark_and_its_name(step: str | None, prefix: str, kind: str) -> None:
    mark = None if step == "no mark" else {"step": step, "prefix": "DijetProcessor"}
    assert kind_of(SimpleNamespace(prefix=SimpleNamespace(name=prefix)), mark) == kind


def test_a_merge_has_its_level_and_what_it_merges() -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (worker,) = scheduler.workers.values()
    known = {"worker": worker, "annotations": annotations("processing")}
    chunks = [Task(f"chunk-{number}", nbytes=100, **known) for number in range(4)]
    halves = [
        Task(f"reduce-{at}", prefix_name="reduce", nbytes=70, dependencies=(*chunks[at : at + 2],), **known)
        for at in (0, 2)
    ]
    final = Task("reduce-final", prefix_name="reduce", dependencies=(*halves,), **known)
    for task in (*chunks, *halves, final):
        scheduler.run(plugin, task)
    log = ClusterLog()
    log.feed(plugin.drain(10**9, 0)["data"])
    rows = log.attempts.table(0.0).select(["merge_level", "inputs", "input_bytes"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [*[(None,) * 3] * 4, *[(1, 2, 200)] * 2, (2, 2, 140)]
    assert plugin.problems.failures == 0


def test_attempts_are_counted_when_they_end_or_are_written_as_unfinished() -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (worker,) = scheduler.workers.values()
    marked = annotations("processing")
    scheduler.run(plugin, Task("chunk-1", worker, annotations=marked))
    running = [Task(f"chunk-{number}", worker, annotations=marked) for number in (2, 3)]
    for task in running:
        scheduler.tasks[task.key] = task
        plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
    assert set(plugin.attempts.open_keys) == {"chunk-2", "chunk-3"}
    assert plugin.attempts.by_kind()[PROCESSOR] == 1
    # on the worker's clock: arrived, ready and began, and Dask's shift of its times, which stands as no task has ended
    plugin.attempts.write_unfinished({worker.address: [("chunk-2", [T, T + 1, T + 2, 0.5])], "gone": [("chunk-3", [])]})
    assert plugin.attempts.by_kind()[PROCESSOR] == 2
    _, row = drained(plugin).attempts.table(0.0).to_pylist()
    assert (row["key"], row["outcome"], row["start"], row["stop"]) == ("chunk-2", UNFINISHED, T + 2.5, None)
    assert (row["arrived"], row["ready"]) == (T + 0.5, T + 1.5)
    plugin.attempts.restarted()
    assert plugin.attempts.by_kind()[PROCESSOR] == 1
    assert set(plugin.attempts.open_keys) == set()
