"""What a thread used of its core, against what the operating system counts."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from roastcoffea.backends.limits import usage


def test_it_is_what_the_system_counts() -> None:
    before, counted = usage(), resource.getrusage(resource.RUSAGE_THREAD)
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    after, more = usage(), resource.getrusage(resource.RUSAGE_THREAD)
    by_system = more.ru_utime + more.ru_stime - counted.ru_utime - counted.ru_stime
    assert after.loop_cpu - before.loop_cpu == pytest.approx(by_system, abs=0.02)
    assert after.process_cpu - before.process_cpu >= 0.05


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the system does not report run queues")
def test_the_run_queue_of_the_thread_only_grows() -> None:
    first = usage().loop_queue
    assert 0 <= first <= usage().loop_queue
