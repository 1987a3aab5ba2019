"""Chunk times without what runs shared or differed in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import chunks_of_sizes as chunks
from made_runs import chunks_that_wait as computing
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED, law_of
from roastcoffea.replay.cluster import Interpreter
from roastcoffea.replay.stages import Recorded, recorded_run
from roastcoffea.studies.corrections import (
    MOST_CROWDED,
    at_one_speed,
    on_own_cores,
    with_least_lock,
    with_lock_of_reads,
)
from roastcoffea.studies.interpreter import with_interpreter
from roastcoffea.studies.prediction import Predictor, replay


def test_runs_are_compared_at_one_speed() -> None:
    """The second run took 1.5 times the CPU time; the law is that of both at their mean speed, and all else stays."""
    one, other = chunks(*[100] * 20), chunks(*[300] * 20, fixed=0.75, each=0.015)
    other = other.with_parts(wait=np.ones(20))
    first, second = at_one_speed([[one], [other]])
    assert second.parts.wait.tolist() == [1.0] * 20
    law = law_of([first, second])
    assert not isinstance(law, str)
    mean = 1.5**0.5
    assert law["data"][0] == pytest.approx([0.5 * mean, 0.0], abs=1e-9)
    assert law["data"][4] == pytest.approx([0.0, 0.01 * mean], abs=1e-9)


@pytest.mark.parametrize(("slower", "scaled"), [(1.1, False), (1.5, True)])
def test_a_difference_that_chance_explains_is_no_speed(slower: float, scaled: bool) -> None:
    """With a scatter of 20 %, the error of the median of 20 chunks is 8 %, and each run is half of it from the mean."""
    scatter = np.tile([0.8, 1.2], 10)
    one, other = (
        chunks(*[100] * 20).with_parts(open_cpu=0.5 * times * scatter, cpu=times * np.ones(20))
        for times in (1.0, slower)
    )
    found = [run.parts.cpu[0] for run in at_one_speed([[one], [other]])]
    if scaled:
        assert 1.0 < found[0] < found[1] < slower
    else:
        assert found == [1.0, slower]


def test_runs_of_few_chunks_or_that_opened_other_files_are_not_compared() -> None:
    few, many, fast = chunks(100, 100), chunks(*[100] * 20), chunks(*[100] * 20, fixed=0.3)
    elsewhere, otherwise = replace(fast, datasets=("other",)), chunks(*[100] * 20, fixed=0.01)
    for runs in ([few, fast], [many, elsewhere], [many, otherwise]):
        for before, after in zip(runs, at_one_speed([[run] for run in runs]), strict=True):
            assert after.parts.cpu.tolist() == before.parts.cpu.tolist()


def test_sleeping_while_others_compute_is_no_waiting_for_the_interpreter() -> None:
    """Chunks of 100 events that sleep for 2 s, of which up to 1.5 s could have been waiting for the interpreter."""
    found = with_least_lock(computing(1.5, wait=0.75), [computing(0.5, wait=1.5)])
    assert found.parts.lock.tolist() == pytest.approx([0.25] * 8)
    assert found.parts.wait.tolist() == pytest.approx([2.0] * 8)


def test_waiting_for_the_interpreter_stays_where_it_made_chunks_longer_or_nothing_tells() -> None:
    longer = computing(1.5, wait=2.0)
    assert with_least_lock(longer, [computing(0.0, wait=2.0)]).parts.lock.tolist() == pytest.approx([1.5] * 8)
    assert with_least_lock(longer, [computing(0.0, wait=9.0, number=3)]).parts.lock.tolist() == [0.0] * 8
    assert with_least_lock(longer, []) is longer


def test_reads_that_take_longer_with_threads_wait_for_the_interpreter() -> None:
    """With one thread per process, a chunk reads for 0.5 s; with several, it opens for 0.6 s and reads for 0.4 s."""
    none = np.zeros(8)
    alone = computing(0.0).with_parts(read=none + 0.5)
    threaded = computing(0.25).with_parts(open_wait=none + 0.6, read=none + 0.4)
    found = with_lock_of_reads(threaded, [alone, alone], 1).parts
    assert (found.open_wait.tolist(), found.read.tolist()) == (pytest.approx([0.3] * 8), pytest.approx([0.2] * 8))
    assert found.lock.tolist() == pytest.approx([0.75] * 8)
    assert with_lock_of_reads(alone, [threaded], 1).parts.read.tolist() == [0.5] * 8
    assert with_lock_of_reads(threaded, [], 1) is threaded
    assert with_lock_of_reads(computing(0.25), [alone], 1).parts.lock.tolist() == [0.25] * 8
    # no thread waits longer than the others compute
    assert with_lock_of_reads(threaded.with_cpu(0.5), [alone], 1).parts.lock.tolist() == pytest.approx([0.5] * 8)


def recorded(workers: int, threads: int, doublings: float = 0.0, **parts: float) -> Recorded:
    """A run of sixteen chunks of 1 s of CPU time, with these parts."""
    made = made_run([plan(1.0)] * 16, workers * threads)
    run = recorded_run(made, Measurement(made).metrics, "made")
    (stage,) = run.stages
    assert stage.chunks is not None
    assert stage.activity is not None
    chunks = stage.chunks.with_parts(**{name: np.full(16, seconds) for name, seconds in parts.items()})
    activity = stage.activity._replace(doublings=np.full(16, doublings))
    stages = (replace(stage, chunks=chunks, activity=activity, load=chunks.load()),)
    return replace(run, workers=workers, threads=threads, stages=stages, doubts=())


def test_longer_reads_are_waits_for_the_interpreter_only_if_as_many_chunks_read_without_threads() -> None:
    """Recorded waits for it are halved with two jobs on a core; what reads took longer is not."""
    threaded = recorded(1, 2, doublings=1.0, lock=0.5, read=0.6)
    found, _ = on_own_cores([threaded, recorded(2, 1, read=0.2)])
    chunks = found.stages[0].chunks
    assert chunks is not None
    assert (chunks.parts.read[0], chunks.parts.lock[0]) == pytest.approx((0.2, 0.5 / 2 + 0.4))
    (doubt,) = found.doubts
    assert doubt.startswith("66.7 % of the read time of made counts as waiting for the GIL")
    found, _ = on_own_cores([threaded, recorded(1, 1, read=0.2)])
    chunks = found.stages[0].chunks
    assert chunks is not None
    assert (chunks.parts.read[0], chunks.parts.lock[0]) == pytest.approx((0.6, 0.5 / 2))
    assert found.doubts == ()


def test_waits_for_the_interpreter_overlap_with_those_for_cores() -> None:
    """On the only core, 16 s of CPU time take 16 s, no matter how many threads wait for the interpreter."""
    run = replace(recorded(1, 2, doublings=1.0, lock=0.5), cores=1, seconds=16.0)
    predictor = Predictor([run], True, {AS_RECORDED: UNCHANGED})
    (run,) = predictor.runs
    least, most = (
        replay(run, run.cluster(1, 4, same_host=True), with_interpreter(each)) for each in predictor.interpreter
    )
    assert (least.seconds, most.seconds) == pytest.approx((16.0, 16.0), rel=0.02)
    found = predictor.of_cluster(AS_RECORDED, 1, 4)
    assert found.low < 16.0 < found.high


def test_the_gil_is_fitted_to_the_runs_with_most_threads_that_recorded_waits_for_it() -> None:
    runs = [
        recorded(2, 1),
        recorded(1, 2, lock=0.2),
        recorded(1, 3, lock=0.6),
        replace(recorded(1, 4), knows_lock=False),
    ]
    found = Predictor(runs, True, {AS_RECORDED: UNCHANGED}).interpreter
    assert found[0].share == pytest.approx(0.6 / 2, abs=0.01)
    assert Predictor(runs[:1] + runs[3:], True, {AS_RECORDED: UNCHANGED}).interpreter == []


def test_cpu_time_that_grows_by_more_than_crowding_explains_is_not_extrapolated() -> None:
    """With two jobs on a core, chunks take twice the CPU time."""
    runs = [recorded(1, 1, number, cpu=1.0 + number) for number in (0.0, 0.0, 1.0, 1.0)]
    assert [stage.costs.crowded for run in on_own_cores(runs) for stage in run.stages] == [MOST_CROWDED] * 4


def test_more_threads_on_a_core_than_in_any_run_may_need_more_cpu_time() -> None:
    predictor = Predictor([replace(recorded(2, 1), cores=2)], True, {AS_RECORDED: UNCHANGED})
    found = predictor.of_cluster(AS_RECORDED, 2, 4)
    assert any(doubt.startswith("4 threads share a core and its caches") for doubt in found.doubts)


def test_tasks_that_open_files_are_not_charged_with_what_chunks_hold() -> None:
    run = recorded(1, 2)
    (stage,) = run.stages
    opening = replace(run, stages=(replace(stage, chunks=None),))
    seconds = [
        replay(each, each.own_cluster, with_interpreter(Interpreter(1.0, 1.0))).seconds for each in (run, opening)
    ]
    assert seconds == pytest.approx([16.0, 8.0], rel=0.01)
