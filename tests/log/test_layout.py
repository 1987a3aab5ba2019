"""Texts and fixed fields of entries: numbers of texts, and rows of them."""

from __future__ import annotations

import itertools
import time

import pytest
from stand_ins import CLIENT, Scheduler, Task, started_plugin

from roastcoffea.log import writer
from roastcoffea.log.reader import ClusterLog
from roastcoffea.log.writer import MOST_TEXTS


def test_a_text_that_is_numbered_again_is_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TEXTS > 1000
    monkeypatch.setattr(writer, "MOST_TEXTS", 4)
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    expected = []
    now = time.time() + 1
    for number, worker in zip(range(30), itertools.cycle(scheduler.workers.values()), strict=False):
        scheduler.beat(now + number, number)
        plugin.sample()
        scheduler.run(plugin, Task(f"{number}", worker, f"p{number % 5}", typename=f"t{number % 7}", client=CLIENT))
        expected.append((worker.address, f"p{number % 5}", f"t{number % 7}"))
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    tasks = log.attempts.table(0.0)
    assert list(zip(*(tasks[name].to_pylist() for name in ("worker", "prefix", "type")), strict=True)) == expected
    assert log.workers.samples(0.0)["worker"].to_pylist() == [*scheduler.workers] * 30
    assert log.workers.lifetimes(0.0, now, now + 100)["cpu_seconds"].to_pylist() == [29 / 16, 30 / 16, 31 / 16]
