"""Explanations: parts worked out by hand, and sums that have no rest whatever changes."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from made_runs import BRANCHES, CLIENT_OF, TIME, branch, observation

from roastcoffea.metrics.phases import COLUMNS_OF
from roastcoffea.studies.explanation import Difference, divided, explained
from roastcoffea.studies.observations import Observation


def parts(explanation: Difference) -> dict[str, tuple[float, float]]:
    """Thread seconds and wall seconds by cause."""
    assert explanation.absent is None
    return {part.cause: (part.thread_seconds, part.wall_seconds) for part in explanation.parts}


def test_two_factors_share_the_difference_of_their_product() -> None:
    # (3 - 2) x (5 + 7) / 2, and (7 - 5) x (2 + 3) / 2
    assert divided(np.array([2.0, 3.0]), np.array([5.0, 7.0])).tolist() == [6.0, 5.0]


def test_equal_runs_differ_in_nothing() -> None:
    explanation = explained([observation()], [observation()])
    assert explanation.parts == []
    assert (explanation.thread_seconds, explanation.wall_seconds, explanation.rest) == (0.0, 0.0, 0.0)


def test_a_class_that_costs_more() -> None:
    explanation = explained([observation()], [observation(time=TIME | {"compute": 14.0})])
    assert parts(explanation) == {"compute": pytest.approx((4.0, 1.0))}
    assert explanation.parts[0].text == "14 ms per event instead of 10 ms"
    assert explanation.parts[0].rows == {"compute": pytest.approx(4.0)}


def test_twice_the_events() -> None:
    work = {name: 2 * TIME[name] for name in ("compute", "decompress", "interpret", "read", "blocked", "open", "merge")}
    twice = observation(events=2000, chunks=20, payload=2000, time=TIME | work)
    found = parts(explained([observation()], [twice]))
    assert found == {"events": pytest.approx((30.5, 30.5 / 4))}


def test_half_the_threads() -> None:
    # idle threads are half as many, and idle as long
    time = TIME | {"idle: tail": 0.5, "idle: client": 4.0}
    half = observation(threads=2.0, time=time, client_of={when: seconds / 2 for when, seconds in CLIENT_OF.items()})
    explanation = explained([observation()], [half])
    assert list(parts(explanation)) == ["threads"]
    assert explanation.parts[0].thread_seconds == pytest.approx(-4.5)
    assert explanation.parts[0].wall_seconds == pytest.approx(31 / 2 - 31 / 4)
    assert explanation.wall_seconds == pytest.approx(31 / 2 - 31 / 4)
    assert explanation.parts[0].text == "2 threads instead of 4"


def test_smaller_chunks() -> None:
    small = observation(chunks=100, time=TIME | {"open": 50.0, "merge": 5.0})
    explanation = explained([observation()], [small])
    assert parts(explanation) == {"chunk size": pytest.approx((49.5, 49.5 / 4))}
    assert explanation.parts[0].text == "10 events instead of 100 per chunk (100 chunks instead of 10)"


def test_a_newly_read_branch_is_told_from_more_events() -> None:
    new = branch(500, 2.0, 1.0, 0.5)
    time = TIME | {"read": 10.0, "decompress": 5.0, "interpret": 2.5}
    explanation = explained([observation()], [observation(payload=1500, time=time, branches=BRANCHES | {"mass": new})])
    assert parts(explanation) == {"newly read branches": pytest.approx((3.5, 3.5 / 4))}
    assert explanation.parts[0].text == "mass, 500 B"
    assert explanation.parts[0].rows == pytest.approx({"read": 2.0, "decompress": 1.0, "interpret": 0.5})
    back = explained([observation(payload=1500, time=time, branches=BRANCHES | {"mass": new})], [observation()])
    assert parts(back) == {"branches no longer read": pytest.approx((-3.5, -3.5 / 4))}


def test_a_newly_read_branch_may_have_come_with_the_tree() -> None:
    branches = BRANCHES | {"mass": branch(0, 0.0, 0.5, 0.5)}
    time = TIME | {"decompress": 4.5, "interpret": 2.5}
    explanation = explained([observation()], [observation(time=time, branches=branches)])
    assert parts(explanation) == {"newly read branches": pytest.approx((1.0, 0.25))}
    assert explanation.parts[0].text == "mass, read along with the tree"


def test_more_bytes_of_the_same_branches() -> None:
    time = TIME | {name: 1.5 * TIME[name] for name in ("read", "decompress", "interpret")}
    found = parts(explained([observation()], [observation(payload=1500, time=time)]))
    assert found == {"bytes per event": pytest.approx((7.0, 1.75))}


def test_baskets_without_bytes_of_their_own_grow_with_events() -> None:
    none = {name: branch(0, 5.0, 2.0, 1.0) for name in BRANCHES}
    time = TIME | {name: 2 * TIME[name] for name in ("compute", "decompress", "interpret", "read", "blocked")}
    before = observation(payload=0, branches=none)
    found = parts(explained([before], [observation(events=2000, chunks=10, payload=0, branches=none, time=time)]))
    # opening and merging took 5.5 s for as many chunks: as much more by events as less by the chunks' size
    assert found["events"][0] == pytest.approx(25.0 + 5.5 * 0.75)
    assert found["chunk size"][0] == pytest.approx(-5.5 * 0.75)


def test_start_up_and_what_comes_after_stand_apart() -> None:
    later = CLIENT_OF | {"before": 9.0, "after": 3.0}
    found = parts(explained([observation()], [observation(time=TIME | {"idle: client": 13.0}, client_of=later)]))
    assert found == {
        "client before the first task": pytest.approx((4.0, 1.0)),
        "client after the last task": pytest.approx((1.0, 0.25)),
    }


def work(events: int, compute: float) -> dict[str, float]:
    return {"events": events, "bytes": 0, "chunks": 0} | dict.fromkeys(COLUMNS_OF, 0.0) | {"compute": compute}


def test_other_nodes_are_told_from_code_by_the_nodes_of_both() -> None:
    # on the host of both an event costs 1.2 times as much, on the new one 1.8 times: 1.5 in all
    before = observation(hosts={"a": work(500, 5.0), "b": work(500, 5.0)})
    time = TIME | {"compute": 15.0}
    after = observation(time=time, hosts={"a": work(500, 6.0), "c": work(500, 9.0)})
    found = parts(explained([before], [after]))
    old, code, nodes = 10.0, 1.2, 1.25
    assert found["compute"][0] == pytest.approx(old * (code - 1) * (1 + nodes) / 2)
    assert found["nodes"][0] == pytest.approx(old * (nodes - 1) * (1 + code) / 2)


def test_hosts_without_any_in_common_are_remarked() -> None:
    before, after = observation(hosts={"a": work(1000, 10.0)}), observation(hosts={"b": work(1000, 10.0)})
    assert "different hosts" in explained([before], [after]).remarks[0]


def changed(drawn: random.Random) -> Observation:
    """A run in which everything is another."""
    time = {name: seconds * drawn.uniform(0.0, 3.0) for name, seconds in TIME.items() if drawn.random() < 0.9}
    branches = {name: found for name, found in BRANCHES.items() if drawn.random() < 0.7}
    branches |= {"new": branch(200, 1.0, 0.5, 0.25)} if drawn.random() < 0.5 else {}
    volumes = {"events": drawn.choice([1000, 1500]), "chunks": drawn.randint(1, 40), "payload": drawn.randint(0, 3000)}
    return observation(time=time, branches=branches, threads=drawn.uniform(1.0, 8.0), **volumes)


def test_parts_have_no_rest_whatever_changes() -> None:
    drawn = random.Random(2)
    for before, after in pairwise([changed(drawn) for _ in range(60)]):
        explanation = explained([before], [after])
        assert explanation.thread_seconds == pytest.approx(after.thread_seconds - before.thread_seconds, abs=1e-9)
        assert sum(part.thread_seconds for part in explanation.parts) == pytest.approx(explanation.thread_seconds)
        assert explanation.rest == pytest.approx(0.0, abs=1e-9)
        for part in explanation.parts:
            assert sum(part.rows.values()) == pytest.approx(part.thread_seconds, abs=1e-9)


def test_of_repeats_each_class_has_its_median() -> None:
    slow = [observation(time=TIME | {"compute": compute}) for compute in (11.0, 14.0, 90.0)]
    explanation = explained([observation()] * 3, slow)
    assert parts(explanation) == {"compute": pytest.approx((4.0, 1.0))}
    assert explanation.rest == pytest.approx(0.0)


def test_of_repeats_those_in_the_middle_are_explained() -> None:
    # a class that is long in one run and another that is long in another are no cause together
    longer = {"first": ("blocked", 1.0), "middle": ("compute", 2.0), "last": ("read", 30.0)}
    after = [observation(name=name, time=TIME | {row: TIME[row] + more}) for name, (row, more) in longer.items()]
    explanation = explained([observation()] * 3, [after[2], after[0], after[1]])
    assert set(parts(explanation)) == {"compute"}
    assert (explanation.thread_seconds, explanation.wall_seconds) == pytest.approx((2.0, 0.5))
    assert explanation.rest == pytest.approx(0.0)
    assert explanation.remarks[0].endswith("are compared: by hand and middle")
    two = explained([observation()], after[:2])
    assert two.thread_seconds == pytest.approx(1.0)
    assert two.remarks[0].endswith("are compared: by hand and first")


def test_without_a_ledger_nothing_is_explained() -> None:
    explanation = explained([observation()], [observation(time={}, time_absent="no cluster", metrics={})])
    assert explanation.absent == "by hand: no cluster"
    assert explanation.parts == ()
