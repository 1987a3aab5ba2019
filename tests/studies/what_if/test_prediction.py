"""Predicted wall times, their ranges, doubts and checks, of runs that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from made_runs import FOUR, in_two_calls, laboratory, made_run, plan
from made_runs import predicted_seconds as seconds

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS
from roastcoffea.replay.changes import AS_RECORDED, UNCHANGED
from roastcoffea.replay.stages import recorded_run
from roastcoffea.studies.prediction import Check, Prediction, Predictor
from roastcoffea.studies.what_if import WhatIf, what_if


def predictor(*runs: Run) -> Predictor:
    recorded = [recorded_run(run, Measurement(run).metrics, run.name) for run in runs]
    return Predictor(recorded, same_host=False, scenarios={AS_RECORDED: UNCHANGED})


def test_one_run_is_its_own_check() -> None:
    alone = predictor(made_run(FOUR, 2))
    assert (alone.repeats, alone.spread, alone.error) == (list(alone.runs), None, 0.1)
    (check,) = alone.checks
    assert check == Check("made", 2, 1, 100, check.measured, check.predicted, from_itself=True)
    assert (check.measured, check.predicted) == pytest.approx((24.0, 24.0), rel=0.01)
    assert Check("other", 2, 1, 100, 20.0, 25.0, from_itself=False).error == 0.25


def test_a_prediction_lies_in_the_middle_of_its_range() -> None:
    found = predictor(made_run(FOUR, 2)).of_cluster(AS_RECORDED, 4, 1)
    assert (found.workers, found.threads, found.chunksize, found.scenario) == (4, 1, 100, AS_RECORDED)
    assert found.seconds == pytest.approx(12.0, rel=0.01)
    assert found.low * found.high == pytest.approx((found.seconds or 0.0) ** 2)
    assert not found.rechunked


def test_repeats_are_replayed_and_their_median_taken() -> None:
    runs = [made_run(FOUR, 2, before=before, name=str(before)) for before in (0.0, 1.0, 6.0)]
    several = predictor(*runs, made_run(FOUR, 4, name="more"))
    assert [run.name for run in several.repeats] == ["0.0", "1.0", "6.0"]
    assert several.spread == pytest.approx(6.0 / 25.0)
    assert several.of_cluster(AS_RECORDED, 8, 1).seconds == pytest.approx(1.0 + 6.0, rel=0.01)


def test_equal_repeats_have_a_smaller_error_than_a_single_run() -> None:
    alike = predictor(*(made_run(FOUR, 2, name=name) for name in "abc"))
    assert alike.error == 0.07


@pytest.mark.slow
def test_a_busy_scheduler_is_told() -> None:
    found = what_if(made_run([plan(0.01)] * 600, 2), workers=[4, 40], same_host=True)
    quiet, busy = (one for one in found.predictions if one.scenario == "as recorded")
    assert quiet.doubts == ()
    assert busy.doubts[0].startswith("more than the scheduler can handle: it would be busy for 9")
    assert busy.seconds == pytest.approx(600 * 1.1e-3, rel=0.05)


def test_threads_have_a_range() -> None:
    found = what_if(made_run(FOUR, 2), workers=[2], threads=[1, 4])
    one, many = (each for each in found.predictions if each.scenario == "as recorded")
    assert one.doubts == ()
    assert "share one interpreter" in many.doubts[0]
    assert many.low == pytest.approx(6.0 / (1 + 0.1), rel=0.01)
    # 26 s of CPU on two interpreters
    assert many.high >= 13.0


# Chunk sizes


def of_size(found: WhatIf, size: int) -> Prediction:
    return next(one for one in found.predictions if one.rechunked and one.chunksize == size)


def in_chunks(size: int, workers: int = 1, fixed: float = 0.5, each: float = 0.01) -> Run:
    """1600 events in two files, in chunks that take a fixed time and one for each event, half of it waiting."""
    plans = [
        plan(fixed + each * size / 2, each * size / 2, events=size, file=file)
        for file in ("a", "b")
        for _ in range(800 // size)
    ]
    return made_run(plans, workers)


def test_another_chunk_size_from_two() -> None:
    found = what_if(in_chunks(100), in_chunks(200), chunksize=[25, 400, 100])
    # by the law, or 10 % more for each doubling beyond the recorded sizes: two, one, and none
    assert of_size(found, 25).seconds == pytest.approx((64 * 0.5 + 16) * 1.2**0.5, rel=0.01)
    assert of_size(found, 400).seconds == pytest.approx((4 * 0.5 + 16) * 1.1**0.5, rel=0.01)
    assert of_size(found, 100).seconds == pytest.approx(16 * 0.5 + 16, rel=0.01)
    assert of_size(found, 25).reason is None
    assert [check.from_itself for check in found.checks] == [True, True]
    (far,) = what_if(in_chunks(100), in_chunks(200), chunksize=[800]).predictions[-1].doubts
    assert "chunks of 800 events are far larger than the recorded 200" in far
    assert of_size(found, 400).doubts == ()


def test_another_chunk_size_of_two_calls_on_different_datasets() -> None:
    sizes = [100, 300] * 4
    plans = [plan(0.5 + 0.01 * size, events=size, file="a", dataset="one") for size in sizes]
    plans += [plan(1 + 0.01 * size, events=size, file="b", dataset="two") for size in sizes]
    found = what_if(in_two_calls(made_run(plans, 1), len(sizes)), chunksize=[100])
    assert of_size(found, 100).seconds == pytest.approx(16 * (0.5 + 1) + 32, rel=0.01)


def test_another_chunk_size_from_chunks_that_vary() -> None:
    plans = [plan(0.5 + 0.01 * size, events=size, file=str(number)) for number, size in enumerate([100, 300] * 8)]
    found = what_if(made_run(plans, 1), chunksize=[50])
    assert of_size(found, 50).seconds == pytest.approx((64 * 0.5 + 32) * 1.1**0.5, rel=0.01)


def test_equal_chunks_give_a_bracket_and_the_reason() -> None:
    found = of_size(what_if(in_chunks(100), chunksize=[400]), 400)
    assert found.seconds is None
    assert "chunks of data have about 100 events each" in str(found.reason)
    assert found.low == pytest.approx((16 * 1.5 / 4) / (1 + 0.1), rel=0.01)
    assert found.high == pytest.approx(16 * 1.5 * (1 + 0.1), rel=0.01)


def test_a_dataset_of_few_chunks_gives_a_bracket() -> None:
    few = [plan(1.0, events=size, file="c", dataset="few") for size in (100, 300)]
    plans = [plan(0.01 * size, events=size, file=str(size)) for size in (100, 200, 300, 400)]
    found = of_size(what_if(made_run([*plans, *few], 1), chunksize=[50]), 50)
    assert found.seconds is None
    assert "few has 2 chunks" in str(found.reason)


# Several runs


def test_repeats_and_other_runs_are_checks() -> None:
    runs = [
        made_run(FOUR, 2, name="first"),
        made_run(FOUR, 2, before=2.4, name="again"),
        made_run(FOUR, 4, name="more"),
    ]
    found = what_if(*runs, workers=[4])
    assert found.spread == pytest.approx(2.4 / 25.2)
    assert [(check.name, check.from_itself, round(check.predicted, 1)) for check in found.checks] == [
        ("first", False, 26.4),
        ("again", False, 24.0),
        ("more", False, 13.2),
    ]
    assert seconds(found) == [13.2]


def test_a_range_is_above_0_with_any_error() -> None:
    """One of two repeats took six times as long: the quantile of Student's t with one degree of freedom is 6.31."""
    found = what_if(made_run([plan(3.0)] * 16, 2), made_run([plan(0.5)] * 16, 2, name="quick"))
    error = 6.314 * (5 / 6 / 2**0.5) / (7 / 12) * 1.5**0.5
    assert found.error == pytest.approx(error, rel=0.01)
    one = found.predictions[0]
    assert (one.low, one.high) == pytest.approx((14.0 / (1 + error), 14.0 * (1 + error)), rel=0.01)


def test_runs_that_read_other_branches_are_doubted() -> None:
    def reading(*branches: str) -> Run:
        reads = table_of_rows(BRANCH_READ_COLUMNS, [{"chunk": 0, "branch": branch} for branch in branches])
        return made_run(FOUR, 2, branch_reads=reads)

    found = what_if(reading("pt", "eta"), reading("eta", "pt"), reading("pt", "phi", "mass"))
    (doubt,) = (doubt for doubt in found.doubts if "read" in doubt)
    assert "read eta and 2 more; both are treated as runs of the same analysis" in doubt


def test_the_range_of_a_check_reaches_what_was_measured() -> None:
    """Chunks waited for unknown cores: the replay of itself takes less than half of the time."""
    found = what_if(made_run([plan(1.0, core_wait=1.5)] * 16, 2, cores=None))
    (check,), one = found.checks, found.predictions[0]
    assert check.error < -0.5
    assert one.low <= check.predicted <= check.measured <= one.high * 1.001


# What is shared


def from_storage(workers: int, seconds: float, number: int = 48) -> Run:
    """Chunks that only read, for so long each."""
    return made_run(
        [plan(0.001, read=seconds, file=f"{place}.root") for place in range(number)], workers, name=f"{workers}"
    )


@pytest.mark.slow
def test_storage_that_is_saturated_gives_no_more() -> None:
    """Two streams get all that storage has: from one worker to four, chunks take 1, 1, and 2 s."""
    runs = from_storage(2, 1.0), from_storage(1, 1.0), from_storage(4, 2.0)
    found = what_if(*runs, workers=[1, 2, 4, 8])
    assert seconds(found) == pytest.approx([48.0, 24.0, 24.0, 24.0], rel=0.05)
    assert [one.reason for one in found.predictions[:4]] == [None] * 4


def test_storage_that_was_not_saturated_is_refused_where_it_matters() -> None:
    found = what_if(from_storage(2, 1.0), workers=[2, 8])
    as_it_was, more = (one for one in found.predictions if one.scenario == AS_RECORDED)
    assert as_it_was.seconds == pytest.approx(24.0, rel=0.05)
    assert more.seconds is None
    assert "at most 2 chunks were reading at a time" in str(more.reason)
    # from four times the rate to no more than now
    assert more.low < 6.0
    assert more.high > 24.0


def test_the_lock_of_the_interpreter_is_taken_from_runs_with_threads() -> None:
    """Two threads that always need it wait as long as they compute, one never, four three times as long."""
    run = locked(threads=2)
    found = what_if(run, threads=[1, 2, 4])
    assert seconds(found) == pytest.approx([16.0, 16.0, 16.0], rel=0.05)
    assert all(one.reason is None for one in found.predictions)


def test_a_lock_that_was_not_recorded_is_not_added_to_that_of_another_run() -> None:
    """Its chunks of 2 s contain the wait of two threads; another run, of three, tells how long each waits."""
    unknown = locked(threads=2)
    assert unknown.chunks is not None
    at = unknown.chunks.column_names.index("lock_seconds")
    nulls = pa.nulls(len(unknown.chunks), pa.float64())
    unknown = replace(unknown, chunks=unknown.chunks.set_column(at, "lock_seconds", nulls))
    found = what_if(unknown, locked(threads=3), threads=[1, 2, 4])
    one, same, four = (each for each in found.predictions if each.scenario == AS_RECORDED)
    assert same.doubts == ()
    assert same.seconds == pytest.approx(16.0, rel=0.05)
    for other in (one, four):
        assert "did not record how long its chunks waited" in other.doubts[0]
    # from twice as fast, as if no thread had waited for another, to all in turn
    assert four.seconds is None
    assert "did not record how long its chunks waited" in str(four.reason)
    assert four.low < 8.0
    assert four.high > 16.0


def locked(threads: int) -> Run:
    """Sixteen chunks of 1 s of CPU time on one worker whose threads take turns."""
    run = made_run([plan(1.0, 1.0)] * 16, threads)
    assert run.chunks is not None
    assert run.tasks is not None
    rows = [row | {"blocked_seconds": 0.0, "lock_seconds": 1.0, "worker": "w0"} for row in run.chunks.to_pylist()]
    tasks = [row | {"worker": "w0", "thread": int(row["worker"][1:])} for row in run.tasks.to_pylist()]
    life = {"worker": "w0", "host": "10.0.0.1", "threads": threads, "start": run.start, "stop": run.stop}
    return replace(
        run,
        chunks=table_of_rows(CHUNK_COLUMNS, rows),
        tasks=table_of_rows(TASK_COLUMNS, tasks),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, [life | {"cpu_seconds": 16.0}]),
    )


def on_model_cluster(workers: int) -> Run:
    """A run on a cluster of another implementation, whose storage serves one and a half streams at their full rate."""
    plan_of = laboratory("plan").Plan(chunks=200, cpu=2.0, stream_rate=10e6, storage_rate=15e6)
    run: Run = laboratory("simulated").simulated(plan_of, workers, seed=1)
    return run


@pytest.mark.slow
def test_saturated_storage_of_a_model_cluster_is_predicted() -> None:
    found = what_if(on_model_cluster(2), on_model_cluster(4), workers=[1, 2, 4, 8, 16])
    for one in (each for each in found.predictions if each.scenario == AS_RECORDED):
        truth = on_model_cluster(one.workers)
        measured = truth.stop - truth.start
        assert one.seconds == pytest.approx(measured, rel=0.05)
        assert one.low < measured < one.high


@pytest.mark.slow
def test_one_run_on_a_model_cluster_does_not_tell_how_much_storage_serves() -> None:
    """Neither one worker, whose rate is unknown if storage was saturated, nor eight, whose share is."""
    found = what_if(on_model_cluster(2), workers=[1, 2, 8])
    for one in (each for each in found.predictions if each.scenario == AS_RECORDED):
        truth = on_model_cluster(one.workers)
        assert one.low < truth.stop - truth.start < one.high
        assert (one.seconds is None) == (one.workers != 2)
