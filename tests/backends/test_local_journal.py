from __future__ import annotations

import json
import os
from typing import Any

from roastcoffea.backends.processes import (
    PROCESSES,
    ProcessJournal,
    ProcessTree,
    Sample,
    Step,
    WatchedProcess,
    remember,
)


def process(pid: int) -> Any:
    known = WatchedProcess.remembered(pid, 1, 10.0)
    known.remember(11.0, None, 0.5, [Sample(11.0, None, 100, 0.5, 7)])
    return known


def facts(one: WatchedProcess) -> tuple[Any, ...]:
    return one.pid, one.parent, one.born, one.seen, one.gone, one.is_tracker, one.cpu_seconds, one.samples


def test_processes_and_steps_go_through_a_journal() -> None:
    journal, again, steps_again = ProcessJournal(), [], []
    processes = [process(1)]
    steps = [Step(call="c", preprocessing=False, size=2, start=1.0, cpu_start=0.1)]

    def pass_on() -> int:
        entries = list(journal.news(processes, steps))
        for kind, data in entries:
            assert kind == PROCESSES
            remember(json.loads(data), again, steps_again)
        assert [*map(facts, again)] == [*map(facts, processes)]
        assert [vars(step) for step in steps_again] == [vars(step) for step in steps]
        return len(entries)

    assert pass_on() == 1
    assert pass_on() == 0
    processes.append(process(2))
    assert pass_on() == 1
    processes[0].remember(12.0, 12.5, 0.9, [Sample(12.0, 40.0, 200, 0.9, None)] * 4)
    processes[1].is_tracker = True
    assert pass_on() == 1
    processes[0].merge_neighbours()
    steps[0].stop = 3.0
    assert pass_on() == 1


def test_this_process_is_known_from_a_journal() -> None:
    tree = ProcessTree()
    tree.scan(sample=True)
    ((_, data),) = ProcessJournal().news(tree.seen, [])
    again: list[WatchedProcess] = []
    remember(json.loads(data), again, [])
    assert [*map(facts, again)] == [*map(facts, tree.seen)]
    assert os.getpid() in {one.pid for one in again}
