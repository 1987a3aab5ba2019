"""One chunk size, of runs that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import Plan, in_two_calls, made_run, plan, savings_of, with_call

from roastcoffea.diagnosis.chunk_size import ChunkSize, largest_file, recommended
from roastcoffea.diagnosis.completeness import TARGET, Fit
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import FAILED, Run


def found(plans: list[Plan], workers: int = 2, memory: Fit | None = None) -> ChunkSize:
    return recommended(savings_of(made_run(plans, workers)), memory)


def equal(seconds: float, events: int, chunks: int, opening: float = 0.0) -> list[Plan]:
    """Chunks of two files."""
    return [plan(seconds, open_cpu=opening, events=events, file=file) for file in "ab" for _ in range(chunks // 2)]


VARIED = [plan(0.15 + size / 10_000, events=size, file=file) for file in "abcd" for size in [2500, 5000] * 16]
"""Chunks with 150 ms of CPU whatever their size, and 0.1 ms for each event."""


def test_openings_of_small_chunks() -> None:
    """Each of 128 chunks opens its file for 0.3 s: on two threads that is 19.2 s of 25.6 s."""
    size = found(equal(0.1, 500, 128, opening=0.3))
    assert size.size is not None
    assert size.line == f"chunksize={size.size}"
    # one of `number` chunks is left for each one
    number = 128 * 500 / size.size
    assert size.saving.seconds == pytest.approx(0.3 * (128 - number) / 2, rel=0.02)
    assert size.saving.high > (size.saving.seconds or 0.0)  # process() may have a fixed cost as well
    assert size.fixed == pytest.approx(0.3, rel=0.01)
    assert size.in_process is None


def test_the_fixed_cost_in_process_is_told_from_chunks_that_vary() -> None:
    size = found(VARIED)
    assert size.size is not None
    assert size.in_process == pytest.approx(0.15, rel=0.01)
    assert size.size > 2 * size.now
    number = 128 * size.now / size.size
    assert size.saving.seconds == pytest.approx(0.15 * (128 - number) / 2, rel=0.05)


def test_few_long_chunks_are_cut() -> None:
    """Four chunks of 30 s on sixteen workers."""
    size = found(equal(30.0, 50_000, 4), 16)
    assert size.size is not None
    assert size.size <= 12_500
    assert size.saving.seconds == pytest.approx(22.5, rel=0.02)


def test_good_chunks_are_kept() -> None:
    size = found(equal(3.0, 50_000, 32, opening=0.01))
    assert (size.size, size.line) == (None, None)
    assert size.reason == "no other size saves more than the prediction error"


def test_no_size_is_beyond_the_largest_file_or_the_memory() -> None:
    plans = equal(0.1, 500, 28, opening=0.3)
    whole = found(plans)
    assert whole.size is not None
    assert whole.size <= 7000
    memory = Fit(0, "", limit=4_000_000_000, threads=1, baseline=1e8, bytes_per_event=1e6, at_most=False)
    small = found(plans, memory=memory)
    assert small.size is not None
    assert small.size < whole.size
    assert small.memory == memory.peak(small.size)
    assert small.memory <= TARGET * memory.limit


def test_chunks_that_do_not_fit_are_cut_whatever_that_costs() -> None:
    memory = Fit(0, "", limit=2_000_000_000, threads=1, baseline=0.0, bytes_per_event=1e5, at_most=False)
    size = found(equal(3.0, 50_000, 32), memory=memory)
    assert size.size is not None
    assert size.size <= 12_000
    assert size.reason == "workers are already short of memory with the current chunks"


def test_entries_that_were_seen_of_a_file_are_not_its_size() -> None:
    """An interrupted run saw 7000 entries of each file."""
    run = made_run(equal(0.1, 500, 28, opening=0.3), 2)
    assert largest_file(run) == 7000
    for cut_short in (with_call(run, outcome=FAILED), with_call(run, options={"maxchunks": 14})):
        assert largest_file(cut_short) is None
        assert recommended(savings_of(cut_short)).size != 7000


def without_tasks(run: Run) -> Run:
    return replace(run, tasks=None, absent={"tasks": "no scheduler"})


def test_without_a_replay_none_is_recommended() -> None:
    size = recommended(savings_of(without_tasks(made_run(equal(0.1, 500, 28), 2))))
    assert size.size is None
    assert "no scheduler" in str(size.reason)


def test_baskets_that_lie_in_two_chunks_count() -> None:
    plans = [plan(0.1, read=1.0, events=500, file=file) for file in "ab" for _ in range(16)]
    savings = savings_of(made_run(plans, 2))
    assert recommended(savings).size is None
    size = recommended(savings, reread=0.5)
    assert size.size is not None
    assert size.size > 500
    assert size.saving.seconds == pytest.approx(0.5 * (32 - 16_000 / size.size) / 2, rel=0.05)


def test_chunks_that_do_not_make_up_their_files() -> None:
    run = made_run(equal(0.1, 500, 32, opening=0.3), 2)
    assert run.chunks is not None
    some = replace(run, chunks=run.chunks.slice(4), tasks=run.tasks)  # the first four of a file are missing
    assert recommended(savings_of(replace(some, dropped={}))).size is None


def test_chunks_without_events_have_no_size_but_a_verdict() -> None:
    run = made_run([plan(1.0, events=0, file=f"{number}.root") for number in range(6)], 2)
    assert recommended(savings_of(run)).reason == "no chunk has events"
    measurement = Measurement(run)
    assert (measurement.bound, measurement.verdict.absent) == ("compute", None)


def test_tasks_without_events_have_no_other_size() -> None:
    """As those that look into files first: the size is that of the chunks with events, of which none is lost."""
    chunks = equal(0.1, 500, 128, opening=0.3)
    before = [plan(0.1, events=0, file=file) for file in "ab" * 4]
    size = recommended(savings_of(in_two_calls(made_run([*before, *chunks], 2), len(before))))
    alone = found(chunks)
    assert size.now == alone.now == 500
    assert size.size == alone.size
    assert size.saving.seconds == pytest.approx(alone.saving.seconds, rel=0.05)
