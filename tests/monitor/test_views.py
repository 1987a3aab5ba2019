"""What a worker says of a task, of states that are written down here."""

from __future__ import annotations

from types import SimpleNamespace

from roastcoffea.monitor.views import LONGEST_LIST, freed_of_shift, keys_of, send_views


def test_times_are_on_the_worker_s_clock() -> None:
    timed = [
        {"action": "compute", "start": 12.0, "stop": 13.0},
        {"action": "transfer", "start": 22.0, "stop": 23.0, "source": "tcp://a"},
        {"action": "disk-read", "start": 30.0, "stop": 31.0},
    ]
    read = ["disk-read", 30.0, 31.0, None]
    assert freed_of_shift(timed, 2.0, 5.0) == [["compute", 10.0, 11.0, None], ["transfer", 17.0, 18.0, "tcp://a"], read]
    assert freed_of_shift(timed[:1], None, 5.0) == [["compute", 7.0, 8.0, None]]


def test_of_very_many_tasks_so_many_keys_are_listed() -> None:
    tasks = (SimpleNamespace(key=("key", number)) for number in range(LONGEST_LIST + 5))
    assert keys_of(tasks) == [("key", number) for number in range(LONGEST_LIST)]


def test_a_worker_that_has_no_part_of_ours_has_sent_nothing() -> None:
    assert send_views("roastcoffea-1", SimpleNamespace(plugins={})) == 0
