"""Thread time of the last minutes."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.recording.facility.observer import BIN, BINS, RUNNING, Timeline

BEGINNING = 1_700_000_000.0


def seconds_of(timeline: Timeline, name: str) -> float:
    times, threads = timeline.threads()
    assert len(times) == BINS - 1
    return float(BIN * threads[name].sum()) if name in threads else 0.0


def test_an_attempt_is_spread_over_its_time_and_nothing_of_it_is_lost() -> None:
    timeline = Timeline()
    timeline.advance(BEGINNING + 30)
    timeline.add(BEGINNING + 2, BEGINNING + 12, {"compute": 6.0, "read": 4.0})
    timeline.advance(BEGINNING + 40)
    times, threads = timeline.threads()
    found = dict(zip(times - BEGINNING, BIN * threads["compute"], strict=True))
    assert [found[moment] for moment in (0.0, 5.0, 10.0)] == pytest.approx([1.8, 3.0, 1.2])
    assert seconds_of(timeline, "compute") == pytest.approx(6.0)
    assert seconds_of(timeline, "read") == pytest.approx(4.0)


def test_classes_sum_to_the_threads_at_any_time() -> None:
    timeline, random = Timeline(), np.random.default_rng(3)
    slot, ends = 0.0, []
    while slot < 120:  # one thread, always busy; its tasks are reported as they end
        length = float(random.uniform(0.5, 20))
        ends.append((slot, min(slot + length, 120.0)))
        slot += length
    for second in range(120):
        timeline.advance(BEGINNING + second + 1)
        timeline.sample(BEGINNING + second, BEGINNING + second + 1, 1.0, {"idle: tail": 3.0})
        for start, stop in ends:
            if second < stop <= second + 1:
                timeline.add(BEGINNING + start, BEGINNING + stop, {"compute": stop - start})
    timeline.advance(BEGINNING + 125)
    times, threads = timeline.threads()
    within = (times >= BEGINNING) & (times < BEGINNING + 120)
    assert sum(threads.values())[within] == pytest.approx(4.0)
    assert seconds_of(timeline, "compute") == pytest.approx(120)
    assert seconds_of(timeline, RUNNING) == pytest.approx(0, abs=1e-4)


def test_what_runs_has_not_reported_yet() -> None:
    timeline = Timeline()
    for second in range(20):
        timeline.advance(BEGINNING + second + 1)
        timeline.sample(BEGINNING + second, BEGINNING + second + 1, 2.0, {})
    timeline.add(BEGINNING, BEGINNING + 10, {"compute": 10.0})
    timeline.advance(BEGINNING + 25)
    assert seconds_of(timeline, RUNNING) == pytest.approx(30.0)


def test_old_time_is_forgotten() -> None:
    timeline = Timeline()
    timeline.advance(BEGINNING)
    timeline.add(BEGINNING - 10, BEGINNING, {"compute": 10.0})
    timeline.add(BEGINNING - 10_000, BEGINNING - 9_000, {"read": 10.0})
    timeline.advance(BEGINNING + BIN)
    assert seconds_of(timeline, "compute") == pytest.approx(10.0)
    assert seconds_of(timeline, "read") == 0
    timeline.advance(BEGINNING + 2 * BINS * BIN)
    assert timeline.threads()[1] == {}


def test_what_tasks_report_is_not_counted_as_idle_as_well() -> None:
    timeline = Timeline()
    timeline.advance(BEGINNING + 5)
    timeline.sample(BEGINNING, BEGINNING + 5, 0.0, {"idle: client": 10.0, "paused": 2.0})  # late: all had ended
    timeline.add(BEGINNING, BEGINNING + 3, {"compute": 6.0})
    timeline.advance(BEGINNING + 10)
    assert seconds_of(timeline, "compute") == pytest.approx(6.0)
    assert seconds_of(timeline, "idle: client") == pytest.approx(5.0)
    assert seconds_of(timeline, "paused") == pytest.approx(1.0)
