"""Which tasks belong to which run, and how far it has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import BEGINNING, Observed

from roastcoffea.recording.facility.observer import BETWEEN_STEPS, MOST_RUNS, QUIET, Runs


def item(kind: str, start: int = 0, stop: int = 100) -> Any:
    """What stands for an item of coffea in a task."""
    made = type(kind, (), {"__module__": "coffea.processor.executor"})()
    vars(made).update(dataset="ttbar", filename="f", treename="Events", entrystart=start, entrystop=stop)
    return made


def task(number: int, client: str = "Client-a", prefix: str = "Dijet", kind: str = "WorkItem") -> Any:
    """A task of coffea of a client without roastcoffea."""
    spec = SimpleNamespace(args=(item(kind),), func=None)
    wanting = [SimpleNamespace(client_key=client)]
    known = {"key": f"{prefix}-{client}-{number}", "prefix": SimpleNamespace(name=prefix), "annotations": None}
    return SimpleNamespace(**known, who_wants=wanting, run_spec=spec, dependencies=(), dependents=())


def done(runs: Runs, tasks: list[Any], now: float) -> None:
    for each in tasks:
        runs.part(each, now)
    for each in tasks:
        runs.ended(each.key, now)


def names(runs: Runs) -> list[tuple[str, str, int, bool]]:
    return [(run.name, run.client, run.asked, run.ended) for run in runs.all.values()]


def test_preprocessing_belongs_to_the_run_that_follows_it() -> None:
    runs = Runs()
    done(runs, [task(1, prefix="metadata", kind="FileMeta")], 0.0)
    done(runs, [task(2)], 5.0)
    (run,) = runs.all.values()
    assert (run.name, run.files, run.asked) == ("Dijet", 1, 1)


def test_another_processor_and_a_pause_begin_another_run() -> None:
    runs = Runs()
    done(runs, [task(1)], 0.0)
    done(runs, [task(2)], 10.0)
    done(runs, [task(3, prefix="Trijet")], 20.0)
    done(runs, [task(4, prefix="Trijet")], 20.0 + QUIET + 1)
    assert names(runs) == [
        ("Dijet", "Client-a", 2, True),
        ("Trijet", "Client-a", 1, True),
        ("Trijet", "Client-a", 1, False),
    ]


def test_two_processors_of_one_client_at_once_are_two_runs_that_end_with_their_tasks() -> None:
    runs = Runs()
    both = [task(1), task(2, prefix="Trijet")]
    for each in both:
        runs.part(each, 0.0)
    assert [run.ended for run in runs.all.values()] == [False, False]
    for now, each in enumerate(both, 100):
        runs.ended(each.key, now)
        runs.proceed(now + QUIET + 0.5, (1, 1))
    assert [run.stop for run in runs.all.values()] == [100, 101]


def test_a_run_whose_tasks_are_alive_has_no_pause() -> None:
    runs = Runs()
    runs.part(task(1), 0.0)
    runs.proceed(1000.0, (1, 1))
    runs.part(task(2), 1000.0)
    assert names(runs) == [("Dijet", "Client-a", 2, False)]
    runs.ended(task(1).key, 1000.0)
    runs.ended(task(2).key, 1000.0)
    assert runs.proceed(1001.0 + QUIET, (1, 1)) == list(runs.all.values())
    assert next(iter(runs.all.values())).stop == 1000.0


def test_runs_of_a_client_that_left_end_and_the_oldest_are_forgotten() -> None:
    runs = Runs()
    for number in range(2 * MOST_RUNS):
        runs.part(task(1, f"Client-{number}"), 0.0)
        runs.client_left(f"Client-{number}", 1.0)
    runs.proceed(2.0, (1, 1))
    assert [run.client for run in runs.all.values()] == [f"Client-{n}" for n in range(MOST_RUNS, 2 * MOST_RUNS)]
    assert not runs.going


def test_cancelled_chunks_are_not_waited_for() -> None:
    runs = Runs()
    tasks = [task(number) for number in range(3)]
    for each in tasks:
        runs.part(each, 0.0)
    runs.ended(tasks[0].key, 1.0)
    for each in tasks:
        runs.forgotten(each.key, 2.0)
    (run,) = runs.all.values()
    assert (run.asked, run.pending) == (1, 0)


def test_a_runner_call_with_a_collector_is_a_run_and_ends_with_it(observed: Observed) -> None:
    for number, call in enumerate(("call-1", "call-1", "call-2")):
        observed.end(observed.chunk(number, call), 1.0, events=1000)
    runs = observed.observer.runs
    assert names(runs) == [("Dijet", "Client-1", 2, False), ("Dijet", "Client-1", 1, False)]
    runs.collector_left("another", observed.now)
    assert len(runs.going) == 2
    runs.collector_left("c-1", observed.now)
    assert not runs.going


def test_a_run_goes_on_with_its_tasks_when_its_collector_was_given_up(observed: Observed) -> None:
    task = observed.chunk(1)
    runs = observed.observer.runs
    runs.collector_left("c-1", observed.now)
    observed.pass_time(40)
    assert len(runs.going) == 1
    observed.end(task, 1.0)
    ended = observed.now
    observed.pass_time(40)
    assert [run.stop for run in runs.all.values()] == [ended]


def test_a_client_may_need_long_between_preprocessing_and_the_first_chunk(observed: Observed) -> None:
    observed.preprocessed(1)
    observed.pass_time(int(2 * QUIET))
    observed.end(observed.chunk(2), 1.0)
    (run,) = observed.observer.runs.all.values()
    assert (run.asked, run.ended) == (1, False)
    observed.preprocessed(3, "call-2")
    observed.pass_time(int(BETWEEN_STEPS) + 1)
    assert not observed.observer.runs.going


def test_progress_has_what_the_live_line_has(observed: Observed) -> None:
    tasks = [observed.chunk(number) for number in range(40)]
    for each in tasks[:20]:
        observed.pass_time(1)
        observed.end(each, 4.0, events=1000)
    observed.worker.processing = dict.fromkeys(range(4))
    observed.pass_time(1)
    (run,) = observed.observer.runs.all.values()
    progress = run.progress
    assert (progress.chunks, progress.chunks_asked, progress.events, progress.bytes) == (20, 40, 20_000, 2000)
    assert progress.threads == (8, 4)
    assert run.rates.left == pytest.approx(21, rel=0.1)
    low, high = run.rates.left_between or (0, 0)
    assert low < run.rates.left < high
    assert observed.now == BEGINNING + 21


def test_a_name_is_short_and_without_secrets() -> None:
    runs = Runs()
    runs.part(task(1, prefix="P" * 500), 0.0)
    runs.part(task(1, "Client-b", prefix="token=ghp_abcdefghijklmnopqrstuvwxyz0123456789"), 0.0)
    long, secret = runs.all.values()
    assert len(long.name) == 60
    assert "ghp_abc" not in secret.name
