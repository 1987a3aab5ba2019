"""Savings against schedules that are worked out by hand, and against runs that are made without the cause."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import uproot
from analyses import Planted, runner_for
from coffea.nanoevents import BaseSchema
from limited_runs import merged
from made_runs import made_run, plan, savings_of, waiting_in
from processes import contended

from roastcoffea import load
from roastcoffea.collector import MetricsCollector
from roastcoffea.diagnosis.savings import PARTS, Savings, Taken
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import CATALOGUE
from roastcoffea.records.run import Run

STORED = sorted(Path(__file__).parents[1].joinpath("data").glob("schema*"))

EACH = 0.01
"""Relative difference that gaps between tasks may make."""


def slow(place: int) -> float:
    return 14.0 if place in {0, 15, 30} else 1.0


def test_a_slow_worker_taken_out_gives_the_list_schedule() -> None:
    """Forty chunks on two workers, of which one took 14 times as long for its three: 42 s, and 20 s without that."""
    run = made_run([plan(slow(place)) for place in range(40)], 2)
    savings = savings_of(run)
    assert run.stop - run.start == pytest.approx(42.0)
    found = savings.of(Taken("slow worker", factors=np.array([1 / slow(place) for place in range(40)])))
    assert found.seconds == pytest.approx(22.0, rel=EACH)
    assert found.low < 22.0 < found.high
    assert (found.at_most, found.certain) == (False, True)


MIXED = [plan(1.0, 2.0, open_cpu=0.25, open_wait=0.25, read=1.0, file=file) for file in ("a", "b") for _ in range(16)]


@pytest.mark.parametrize(
    ("cause", "more", "seconds"),
    [
        ("storage", {}, 10.0),  # half of 1.25 s for each of 16 chunks on a thread
        ("storage", {"storage": float("inf")}, 20.0),
        ("blocked", {}, 32.0),
        ("compute", {}, 16.0),
        ("compute", {"seconds": np.full(32, 0.5)}, 8.0),
        ("metadata", {}, 7.5),  # 15 of the 16 chunks of each file
        ("client", {}, 5.0),
        ("contention", {}, 0.0),
        ("failures", {}, 0.0),
        ("slow file", {"factors": np.repeat([0.5, 1.0], 16)}, 18.0),
    ],
)
def test_causes_by_hand(cause: str, more: dict[str, Any], seconds: float) -> None:
    found = savings_of(made_run(MIXED, 2, before=5.0)).of(Taken(cause, **more))
    assert found.seconds == pytest.approx(seconds, rel=EACH, abs=0.05)
    assert found.low <= seconds + 0.05
    assert found.high >= seconds - 0.05
    assert found.at_most == PARTS[cause].at_most


def test_the_tail_is_what_balance_would_save() -> None:
    """Three chunks of 4 s on two workers: 8 s, of which 4 s of one thread are idle."""
    found = savings_of(made_run([plan(4.0)] * 3, 2)).of(Taken("tail"))
    assert found.seconds == pytest.approx(2.0, rel=0.02)
    assert found.at_most


def test_start_up_is_what_first_tasks_take_more() -> None:
    found = savings_of(made_run([plan(5.0), plan(5.0), *[plan(1.0)] * 14], 2)).of(Taken("start-up"))
    assert found.seconds == pytest.approx(4.0, rel=EACH)


def test_more_of_a_cause_saves_more() -> None:
    savings = savings_of(made_run(MIXED, 2))
    faster = [savings.of(Taken("storage", storage=times)).seconds or 0.0 for times in (1.5, 2.0, 4.0, 100.0)]
    assert faster == sorted(faster)
    factors = [savings.of(Taken("slow file", factors=np.full(32, each))).seconds or 0.0 for each in (0.9, 0.5, 0.1)]
    assert factors == sorted(factors)


def test_all_together_save_no_more_than_the_run() -> None:
    savings = savings_of(made_run(MIXED, 2, before=5.0))
    each = [savings.of(Taken(cause)).seconds or 0.0 for cause in ("blocked", "compute", "client")]
    together = savings.all_together(["blocked", "compute", "client"])
    assert together.seconds == pytest.approx(sum(each), rel=0.02)  # all chunks are alike, and nothing overlaps
    every = savings.all_together([Taken(cause) for cause in PARTS if not cause.startswith("slow")])
    assert every.seconds is not None
    assert together.seconds <= every.seconds <= savings.run.stop - savings.run.start


def test_a_saving_within_its_error_says_so() -> None:
    """A run whose replay takes 5 s less than it did, as nothing tells of the gap between its chunks."""
    run = made_run([plan(1.0, 0.1)] * 10, 1)
    assert run.tasks is not None
    rows = run.tasks.to_pylist()
    later = [row["start"] + 3.0 * (number > 4) for number, row in enumerate(rows)]
    tasks = run.tasks
    for name, values in {
        "start": later,
        "stop": [one + 1.1 for one in later],
        "seen": [one + 1.1 for one in later],
    }.items():
        tasks = tasks.set_column(tasks.schema.get_field_index(name), name, pa.array(values))
    found = savings_of(replace(run, tasks=tasks, stop=run.stop + 3.0)).of(Taken("blocked"))
    assert not found.certain
    assert "with an error of 3" in str(found.reason)


def test_the_interpreters_lock_is_not_known_of_older_runs() -> None:
    savings = savings_of(made_run(MIXED, 2))
    found = savings.of(Taken("interpreter lock"))
    if found.seconds is None:
        assert isnan(found.low)
        assert "not recorded separately" in str(found.reason)


def test_savings_are_a_fact_of_a_run() -> None:
    run = made_run(MIXED, 2)
    assert isinstance(CATALOGUE.entries["savings"].function(run, Measurement(run).time_ledger), Savings)


# Without a replay


def test_without_tasks_it_is_a_share_of_the_threads_time() -> None:
    run = made_run([plan(1.0, 3.0)] * 8, 2)
    local = replace(run, tasks=None, absent={"tasks": "no scheduler"})
    found = savings_of(local).of(Taken("blocked"))
    assert found.seconds == pytest.approx(12.0, rel=0.01)
    assert (found.low, found.high, found.at_most) == (0.0, found.seconds, True)
    assert "no scheduler" in str(found.reason)
    assert savings_of(local).all_together(["blocked", "compute"]).seconds == pytest.approx(16.0, rel=0.01)


def without_tasks(run: Run) -> Savings:
    return savings_of(replace(run, tasks=None, absent={"tasks": "no scheduler"}))


def test_without_a_replay_somebody_slow_saves_no_more_than_its_excess() -> None:
    savings = without_tasks(made_run([plan(1.0, read=2.0, core_wait=3.0)] * 8, 2))
    assert savings.counted is not None
    factors = np.repeat([1 / 3, 1.0], 4)
    # 2 s of each of four chunks, on two threads; waiting for cores is nobody's
    assert savings.of(Taken("slow file", factors=factors)).seconds == pytest.approx(4.0)
    assert savings.of(Taken("slow file", factors=factors, seconds=6.0)).seconds == pytest.approx(3.0)


@pytest.mark.parametrize(("phase", "together"), [("read", 6.0), ("compute", 8.0), (None, 4.0 + 4.0 - 4 / 3)])
def test_without_a_replay_somebody_slow_is_not_added_to_the_classes_it_lies_in(
    phase: str | None, together: float
) -> None:
    """Of 16 s of reading on two threads 8 s are a slow file's: half of the other 8 s, and these."""
    savings = without_tasks(made_run([plan(1.0, read=2.0)] * 8, 2))
    slow = Taken("slow file", factors=np.repeat([1 / 3, 1.0], 4), phases=[phase] * 8, seconds=8.0)
    assert savings.all_together(["storage", slow]).seconds == pytest.approx(together)
    assert savings.all_together([slow]).seconds == pytest.approx(4.0)


def test_without_a_replay_faster_storage_does_not_save_the_cpu_time_of_opening() -> None:
    """Of 16 s of opening on two threads storage is waited for in 4 s: half of that."""
    savings = without_tasks(made_run([plan(1.0, open_cpu=1.5, open_wait=0.5)] * 8, 2))
    assert savings.of(Taken("storage")).seconds == pytest.approx(1.0)


def test_without_records_nothing_is_known() -> None:
    run = replace(made_run([plan(1.0)] * 8, 2), chunks=None, tasks=None, absent={"tasks": "none", "chunks": "none"})
    found = savings_of(run).of(Taken("storage"))
    assert (found.seconds, found.at_most) == (None, True)
    assert found.reason


def test_what_a_replay_does_not_know_is_a_share() -> None:
    found = savings_of(made_run([plan(1.0)] * 8, 2)).of(Taken("memory", seconds=2.0))
    assert (found.seconds, found.at_most) == (pytest.approx(1.0), True)


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_measurements_of_all_schemas(folder: Path) -> None:
    measurement = load(folder)
    savings = savings_of(measurement.run)
    for cause in PARTS:
        found = savings.of(Taken(cause))
        assert found.seconds is None or 0 <= found.low <= found.seconds <= found.high


# Runs that are made


@pytest.mark.slow
def test_sleep_that_is_taken_out_saves_what_was_told(client: Any, tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("Events", {"x": np.float64})
        for _ in range(24):
            file["Events"].extend({"x": np.arange(500.0)})
    fileset = {"data": {"files": {str(tmp_path / "a.root"): "Events"}}}

    def run(**what: float) -> Measurement:
        with MetricsCollector(client) as collector:
            runner_for(client, 500, schema=BaseSchema)(fileset, processor_instance=Planted(**what))
        return collector.measurement

    run(sleep=0.01)
    with contended() as host:
        slow, quick = (run(spin=0.1, sleep=sleep).run for sleep in (0.4, 0.0))
    truth = (slow.stop - slow.start) - (quick.stop - quick.start)
    found = savings_of(slow).of(Taken("blocked"))
    # what others took of the cores in one run and not in the other is no error of it
    assert found.seconds == pytest.approx(truth, rel=0.15, abs=host.seconds)


def test_what_a_replay_does_not_know_is_a_share_of_the_threads_time() -> None:
    run = waiting_in(made_run([plan(1.0, 1.0)] * 8, 2), "interpret_seconds")
    found = savings_of(run).of(Taken("interpretation"))
    assert (found.seconds, found.at_most) == (pytest.approx(4.0, rel=0.01), True)
    assert savings_of(run).of(Taken("serialization", seconds=4.0)).seconds == pytest.approx(2.0)
    assert savings_of(run).of(Taken("serialization")).seconds is None


def test_fetching_is_a_saving_of_transfer_and_not_of_merging() -> None:
    savings = savings_of(merged(1.0, 5.0))
    transfer, merge = (savings.of(Taken(cause)).seconds or 0.0 for cause in ("transfer", "merge"))
    both = savings.all_together(["transfer", "merge"]).seconds or 0.0
    assert transfer == pytest.approx(10.0, rel=0.05)  # two rounds of merges
    assert 0 < merge < transfer / 2
    assert transfer < both <= 1.05 * (transfer + merge)
