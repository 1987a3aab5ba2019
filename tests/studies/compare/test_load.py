"""Waiting that load brings, shared out by hand: twice the CPU time waits twice as long."""

from __future__ import annotations

import random

import pytest
from made_runs import TIME, observation

from roastcoffea.studies.explanation import CPU, Difference, explained
from roastcoffea.studies.observations import OF_LOAD

LOADED = TIME | {"contention": 8.0, "wait": 0.0}
"""Half a second of waiting for each of the 16 seconds of CPU time."""


def parts(explanation: Difference) -> dict[str, tuple[float, float]]:
    """Thread seconds and wall seconds by cause."""
    return {part.cause: (part.thread_seconds, part.wall_seconds) for part in explanation.parts}


def test_more_cpu_time_under_the_same_load_is_the_whole_cause() -> None:
    more = LOADED | {"compute": 18.0, "contention": 12.0}
    explanation = explained([observation(time=LOADED)], [observation(time=more)])
    assert parts(explanation) == {"compute": pytest.approx((8.0, 3.0)), "contention": pytest.approx((4.0, 0.0))}
    assert [part.load_seconds for part in explanation.parts] == pytest.approx([4.0, 0.0])
    assert [part.rows for part in explanation.parts] == [{"compute": pytest.approx(8.0)}, {"contention": 4.0}]


def test_more_load_is_contention() -> None:
    explanation = explained([observation(time=LOADED)], [observation(time=LOADED | {"contention": 16.0})])
    assert parts(explanation) == {"contention": pytest.approx((8.0, 2.0))}
    assert explanation.parts[0].text == "1 s of waiting per second of CPU time instead of 500 ms"


def test_cpu_time_has_the_waits_of_the_first_runs_rate() -> None:
    # 16 s of CPU time and 0.5 s each become 24 s and 1 s each: 8 x 0.5 of the CPU time's, 0.5 x 24 of the load's
    more = LOADED | {"compute": 18.0, "contention": 24.0}
    explanation = explained([observation(time=LOADED)], [observation(time=more)])
    assert {cause: threads for cause, (threads, _) in parts(explanation).items()} == pytest.approx(
        {"compute": 8.0, "contention": 16.0}
    )
    assert {part.cause: part.load_seconds for part in explanation.parts} == {
        "compute": pytest.approx(4.0),
        "contention": 0.0,
    }


def test_no_cause_saves_waits_that_the_first_run_did_not_have() -> None:
    # 16 s of CPU time and 0.5 s each become 2 s and 4 s each
    less = {name: seconds / 8 if name in CPU else seconds for name, seconds in LOADED.items()} | {"contention": 8.0}
    found = explained([observation(time=LOADED)], [observation(time=less)])
    assert sum(part.load_seconds for part in found.parts) == pytest.approx(-7.0)  # of 8 s
    assert parts(found)["contention"][1] > 0


def test_without_cpu_time_it_grows_with_events() -> None:
    idle = {name: seconds for name, seconds in LOADED.items() if name not in CPU}
    found = parts(explained([observation(time=idle)], [observation(time=idle | {"contention": 10.0})]))
    assert found == {"contention": pytest.approx((2.0, 0.5))}


def test_its_shares_sum_to_its_difference_whatever_changes() -> None:
    drawn = random.Random(1)
    for _ in range(50):
        time = [{name: drawn.uniform(0, 9) for name in (*CPU, *OF_LOAD, "idle: tail")} for _ in "ab"]
        sides = [observation(time=one, threads=drawn.uniform(1, 8), events=drawn.randint(1, 9)) for one in time]
        explanation = explained(sides[:1], sides[1:])
        assert explanation.rest == pytest.approx(0.0, abs=1e-9)
        found = sum(part.thread_seconds for part in explanation.parts)
        assert found == pytest.approx(explanation.thread_seconds)
