"""What the scheduler wrote of its workers is read back as if it had written each of them at each sample."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from stand_ins import Scheduler, Worker, started_plugin

from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.log import attempts as sampling
from roastcoffea.log.kinds import SAMPLING
from roastcoffea.log.workers import ClusterLog

SAMPLES = 60
USED = ["loop_cpu_seconds", "loop_queue_seconds", "process_cpu_seconds", "transitions"]
"""Columns of what the scheduler used so far."""

Row = dict[str, Any]


def sampling_plugin(scheduler: Scheduler) -> ClusterPlugin:
    """A plugin that samples at the ticks that the test makes."""
    plugin = started_plugin(scheduler)
    plugin.interval = 1.0
    return plugin


class Watched:
    """A scheduler whose workers come, change and leave at random, and what must be read of them."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scheduler = Scheduler(5)
        self.plugin = sampling_plugin(self.scheduler)
        self.random = Random(seed)
        self.log = ClusterLog()
        self.received = 0
        self.states: list[Row] = []
        self.samples: list[Row] = []
        self.now = 0.0
        monkeypatch.setattr("roastcoffea.backends.scheduler.time", self)

    def time(self) -> float:
        return self.now

    def sample(self, number: int) -> None:
        self.now = 1000.0 + number
        self._change()
        self.scheduler.transition_counter += 1
        dropped = self.plugin.log.dropped.get("sampling", 0)
        self.plugin.tick(number, 0.25, number % 3)
        if self.plugin.log.dropped.get("sampling", 0) > dropped:
            return
        here = self.scheduler.workers.values()
        self.samples.append(
            {"time": self.now - 7, "workers": len(here), "late_seconds": 0.25, "missed": number % 3},
        )
        for worker in here:
            known = {"processing": len(worker.processing), "nbytes": worker.nbytes, "occupancy": worker.occupancy}
            self.states.append({"worker": worker.address, "time": self.now - 7, **known})

    def _change(self) -> None:
        known = self.scheduler.workers
        for worker in [*known.values()]:
            if self.random.random() < 0.3:
                worker.processing = dict.fromkeys(range(self.random.randrange(4)))
                worker.nbytes = self.random.choice([0, 2**40])
                worker.occupancy = self.random.randrange(8) / 4
            elif self.random.random() < 0.1:
                del known[worker.address]
                self.plugin.remove_worker(self.scheduler, worker.address)
        if self.random.random() < 0.4:
            address = f"tcp://10.0.0.{self.random.randrange(8)}:1"
            if address not in known:
                known[address] = Worker(address, address)
                self.plugin.add_worker(self.scheduler, address)

    def drain(self) -> None:
        answer = self.plugin.drain(10**9, self.received)
        self.received += len(answer["data"])
        self.log.feed(answer["data"])


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["time"], row["worker"]))


@pytest.mark.parametrize("seed", range(20))
def test_each_worker_is_in_each_sample(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(seed, monkeypatch)
    for number in range(SAMPLES):
        watched.sample(number)
        if number % 7 == 0:
            watched.drain()
    watched.drain()
    log = watched.log.sampling
    found = log.sampling(7.0)
    assert found.drop_columns(USED).to_pylist() == watched.samples
    assert [found[name].null_count for name in USED] == [0] * len(USED)
    assert found["transitions"].to_pylist() == [40 + number for number in range(len(found))]
    states = log.states(7.0).to_pylist()
    assert [row["time"] for row in states] == sorted(row["time"] for row in states)
    assert ordered(states) == ordered(watched.states)
    assert watched.plugin.problems.failures == 0
    assert watched.log.problems == []


@pytest.mark.parametrize("seed", range(5))
def test_samples_that_were_dropped_do_not_change_those_that_were_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(seed, monkeypatch)
    for number in range(SAMPLES):
        watched.plugin.log.cap = -1 if 20 <= number < 30 or number == 40 else 10**9
        watched.sample(number)
    watched.drain()
    assert watched.plugin.log.dropped["sampling"] == 11
    assert len(watched.log.sampling.sampling(0.0)) == SAMPLES - 11
    assert ordered(watched.log.sampling.states(7.0).to_pylist()) == ordered(watched.states)


def test_a_table_that_would_be_too_large_has_fewer_samples_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(3, monkeypatch)
    for number in range(SAMPLES):
        watched.sample(number)
    watched.drain()
    monkeypatch.setattr(sampling, "MOST_STATES", len(watched.states) // 2)
    found = watched.log.sampling.states(7.0).to_pylist()
    kept = {1000.0 + number - 7 for number in range(0, SAMPLES, 3 if len(watched.states) % 2 else 2)}
    assert ordered(found) == ordered([row for row in watched.states if row["time"] in kept])
    (problem,) = watched.log.problems
    assert f"all samples would need {len(watched.states)} rows" in problem


def test_workers_that_do_not_change_take_no_room() -> None:
    plugin = sampling_plugin(Scheduler(50))
    plugin.tick(0, 0.0, 0)
    before = plugin.log.size
    for number in range(1, 1001):
        plugin.tick(number, 0.0, 0)
    assert plugin.log.size - before < 70 * 1000


def test_an_entry_that_is_cut_is_no_sample() -> None:
    plugin = sampling_plugin(Scheduler(2))
    plugin.tick(0, 0.0, 0)
    (payload,) = payloads(plugin)
    log = ClusterLog()
    log.feed(plugin.drain(10**9, 0)["data"])
    before = log.sampling.states(0.0).to_pylist()
    for cut in (payload[:-1], payload[:3], payload[:-20] + b"\xff" * 20):
        log.feed(SAMPLING.code + len(cut).to_bytes(4, "little") + cut)
    assert log.sampling.states(0.0).to_pylist() == before
    assert "3 scheduler log entries could not be read" in log.problems[0]


def payloads(plugin: ClusterPlugin) -> list[bytes]:
    """Payloads of the samples of a plugin, which are drained again later."""
    data, found, at = plugin.drain(10**9, 0)["data"], [], 0
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 5], "little")
        if data[at : at + 1] == SAMPLING.code:
            found.append(data[at + 5 : at + 5 + length])
        at += 5 + length
    return found


def test_nothing_was_sampled() -> None:
    log = ClusterLog().sampling
    assert len(log.sampling(0.0)) == len(log.states(0.0)) == 0
