"""Storage fitted from chunks whose readers are known, and from runs of the model cluster that knows its storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_runs import FREE, chunks_of, laboratory, on

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.cluster import Load, replayed
from roastcoffea.replay.fitted_storage import (
    ALL,
    Activity,
    Readers,
    Storage,
    activity_of,
    on_faster_storage,
    storage_of,
    with_own_storage,
)
from roastcoffea.replay.stages import recorded_run


def readers(read: Numbers, active: list[int], cpu: float = 0.0, core_wait: float = 0.0) -> Readers:
    """Chunks of one byte, each with the same number of active chunks throughout."""
    one = np.ones(len(read))
    return Readers(
        chunks_of(read, cpu * one),
        Activity(read + (cpu + core_wait) * one, one, np.array(active)[:, None] * [[1, 1, 1, 1]], np.zeros(len(read))),
    )


def test_active_chunks_are_counted_at_moments_of_each() -> None:
    """The first lasts from 0 to 8, others from 2 to 4 and from 4 to 8: two at 1, 3, 5 and 7, except for the first."""
    times = {"start": [100.0, 102.0, 104.0], "stop": [108.0, 104.0, 108.0]}
    chunks = pa.table({"bytes_requested": [10, 20, 0], "events": [1, 2, 3]})
    every = np.ones(3, np.bool_)
    found = activity_of(chunks, pa.table(times), np.zeros(3), every)
    assert found.active.tolist() == [[1, 2, 2, 2], [2] * 4, [2] * 4]
    assert found.amount.tolist() == [10.0, 20.0, 1.0]
    assert found.seconds.tolist() == [8.0, 2.0, 4.0]
    unknown = pa.table({"bytes_requested": pa.array([10, None, 3]), "events": [1, 2, 3]})
    assert activity_of(unknown, pa.table(times), np.zeros(3), every).amount.tolist() == [1.0, 2.0, 3.0]
    two = activity_of(chunks, pa.table(times), np.zeros(3), np.array([True, True, False]))
    assert two.active[:2].tolist() == [[1, 2, 1, 1], [2] * 4]


def test_stretch_of_chunks_that_only_read() -> None:
    """All active chunks read: with one stream two take twice as long, four take four times as long."""
    found = readers(np.ones(3), [1, 2, 4])
    assert (found.share, found.most) == (1.0, 4)
    assert found.stretch(1.0).tolist() == pytest.approx([1.0, 2.0, 4.0])
    assert found.stretch(2.0).tolist() == pytest.approx([1.0, 1.0, 2.0])
    assert found.alone(1.0).parts.read.tolist() == pytest.approx([1.0, 0.5, 0.25])


def test_stretch_of_two_chunks_that_read_half_of_the_time() -> None:
    """One stream for both.

    With d of reading alone for 1 s of computing, the chances of 0, 1 and 2 readers are as 1, 2 d and 2 d^2. They are 1
    on average if 2 d^2 = 1. A reader finds the other one for d / (d + 1) of the time: 1.414 times as long.
    """
    for others in ({"cpu": 1.0}, {"cpu": 0.25, "core_wait": 0.75}):
        assert readers(np.ones(2), [2, 2], **others).stretch(1.0).tolist() == pytest.approx([2**0.5] * 2)


def test_active_chunks_of_some_rows() -> None:
    times = pa.table({"start": [100.0, 102.0, 104.0], "stop": [108.0, 104.0, 108.0]})
    chunks, every = pa.table({"bytes_requested": [10, 20, 0], "events": [1, 2, 3]}), np.ones(3, np.bool_)
    found = activity_of(chunks.take([0, 2]), times, np.array([0.0, 2.0]), every, np.array([0, 2]))
    whole = activity_of(chunks, times, np.arange(3.0), every)
    assert all(np.array_equal(one, other[[0, 2]]) for one, other in zip(found, whole, strict=True))


def test_two_readers_of_one_stream_that_becomes_twice_as_fast() -> None:
    """With d of reading alone for 1 s of computing 0, 1 and 2 chunks read with chances as 1, 2 d and 2 d^2.

    With d = 1, 1.2 read and 0.8 compute: 1.5 s of reading for 1 s of computing. With d = 0.5 it is 0.8 and 1.2.
    """
    found = readers(1.5 * np.ones(2), [2, 2], cpu=1.0)
    assert found.shortened(1.0, 2.0) == pytest.approx((0.8 / 1.2) / 1.5)
    assert found.shortened(ALL, 2.0) == 0.5


@pytest.mark.parametrize(("together", "expected"), [(2, (0.8 / 1.2) / 1.5), (600, (120 / 480) / (360 / 240))])
def test_chunks_that_always_read_together_share_one_stream(together: int, expected: float) -> None:
    """The attempt that failed is not among the counted chunks.

    Of 600 chunks, 360 read and 240 compute. The stream is saturated: if it is twice as fast, twice as many compute.
    """
    groups = np.repeat(np.arange(10.0), together)
    number = len(groups) + 1
    chunks = chunks_of(1.5 * np.ones(number), 1.0 * np.ones(number))
    chunks = replace(chunks, row=np.append(np.arange(number - 1), -1))
    start, size = 2.5 * groups, np.ones(number - 1, np.int64)
    counted = pa.table({"start": start, "stop": start + 2.5, "events": size, "bytes_requested": size})
    ratio = on_faster_storage(chunks, counted, 2.0).parts.read / chunks.parts.read
    assert np.ptp(ratio) == pytest.approx(0.0)
    assert ratio[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("streams", "demand"), [(1.0, 0.3), (1.5, 1.0), (3.0, 2.0)])
def test_faster_storage_against_a_simulation(streams: float, demand: float) -> None:
    """Four threads that wait for 1 s and read for some time, both by chance, in 4000 chunks."""
    random, cluster = np.random.default_rng(5), on(4, streams=streams)
    read, wait, none = demand * random.exponential(size=4000), random.exponential(size=4000), np.zeros(4000)

    def reading_in(read: Numbers) -> float:
        load = Load(before=none, read=read, wait=wait, after=none)
        return float((replayed(load, cluster, FREE, turns=1).busy - wait.sum()) / 4000)

    before, after = reading_in(read), reading_in(read / 2)
    found = readers(np.full(10, before), [4] * 10, cpu=1.0)
    assert found.shortened(streams, 2.0) == pytest.approx(after / before, rel=0.05)


@pytest.mark.parametrize("streams", [1.0, 1.5, 2.5])
def test_streams_are_found_where_the_number_of_readers_varied(streams: float) -> None:
    """Chunks in turn alone, with one, two and three others, each stretched by a law written down here."""
    active = np.repeat([1, 2, 3, 4], 16)
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(len(active)))
    found = storage_of([readers(np.maximum(active / streams, 1.0) * noise, active.tolist())])
    assert found.low <= streams * 1.05
    assert found.high >= streams / 1.05
    assert found.streams == pytest.approx(streams, rel=0.05)
    assert found.high / found.low < 1.3
    assert found.most == 4


def test_storage_that_was_never_saturated_has_no_upper_limit() -> None:
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(64))
    found = storage_of([readers(noise, np.repeat([1, 2, 3, 4], 16).tolist())])
    assert (found.streams, found.high) == (ALL, ALL)
    assert 3.0 < found.low <= 4.0


def test_readers_that_are_always_as_many_tell_nothing() -> None:
    found = storage_of([readers(np.exp(0.02 * np.random.default_rng(1).standard_normal(64)), [2] * 64)])
    assert (found.low, found.high) == (1.0, ALL)
    one = storage_of([readers(np.ones(8), [1] * 8)])
    assert one == Storage(ALL, 1.0, ALL, 1)


def test_reading_that_became_longer_as_computing_did_may_be_no_sharing() -> None:
    """With twice the readers reading takes twice as long, but so does computing: cores may be all that is short."""
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(64))
    few, many = readers(noise, [2] * 64), readers(2 * noise, [4] * 64)
    assert storage_of([few, many]).high < 2.1
    crowded = many.activity._replace(doublings=np.ones(64))
    assert storage_of([few, replace(many, activity=crowded)]).high == ALL


def test_without_reading_storage_is_not_shared() -> None:
    assert storage_of([]) == Storage(ALL, ALL, ALL, 1)
    assert storage_of([readers(np.zeros(8), [1, 2] * 4, cpu=1.0)]) == Storage(ALL, ALL, ALL, 1)
    assert storage_of([readers(np.full(8, 1e-3), [1, 2] * 4, cpu=1.0)]) == Storage(ALL, ALL, ALL, 1)


def test_a_dataset_of_which_nothing_was_read_tells_nothing_of_storage() -> None:
    """The second half of a run comes from checkpoints: its parts have no rate."""
    run = readers(np.repeat([1.0, 0.0], 32), [1] * 16 + [2] * 16 + [1] * 32, cpu=1.0)
    chunks = replace(run.chunks, datasets=("data", "from checkpoints"), dataset=np.repeat([0, 1], 32))
    found = storage_of([replace(run, chunks=chunks)])
    assert (found.streams, found.high) == (ALL, ALL)


def test_chunks_from_checkpoints_have_no_part_in_what_storage_serves() -> None:
    """Chunks that read nothing, and end at once, between those that share two streams."""
    active = np.repeat([1, 2, 3, 4], 16)
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(len(active)))
    read = np.maximum(active / 2.0, 1.0) * noise
    alone = readers(read, active.tolist(), cpu=0.5)
    mixed = np.column_stack([read, 0.0 * read]).ravel()
    both = readers(mixed, np.repeat(active, 2).tolist(), cpu=0.5)
    assert storage_of([both]) == storage_of([alone])
    assert both.alone(2.0).parts.read[::2].tolist() == pytest.approx(alone.alone(2.0).parts.read.tolist())
    of_checkpoints = readers(np.zeros(4), [1] * 4, cpu=0.5)
    assert with_own_storage(of_checkpoints.chunks, of_checkpoints.activity, 2.0) is of_checkpoints.chunks


def test_storage_that_nobody_shares_changes_nothing() -> None:
    first = chunks_of(np.ones(2), np.ones(2), "one")
    activity = Activity(2 * np.ones(2), np.ones(2), np.ones((2, 4), np.int64), np.zeros(2))
    assert with_own_storage(first, None, 1.0) is first
    assert with_own_storage(first, activity, ALL) is first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "rate", "cpu", "recorded"),
    [(1.5, 10e6, 2.0, (2, 4)), (3.0, 10e6, 8.0, (2, 8))],
)
def test_streams_of_a_model_cluster(streams: float, rate: float, cpu: float, recorded: tuple[int, int]) -> None:
    """Runs on a cluster of another implementation, with known storage: chunks open, read, then compute."""
    plan = laboratory("plan").Plan(chunks=200, cpu=cpu, stream_rate=rate, storage_rate=streams * rate)
    runs: list[Any] = [laboratory("simulated").simulated(plan, workers, seed=1) for workers in recorded]
    ready = [recorded_run(run, Measurement(run).metrics, "planted") for run in runs]
    stages = (stage for run in ready for stage in run.stages)
    found = storage_of([Readers(one.chunks, one.activity) for one in stages if one.chunks and one.activity])
    # requests wait for the server's latency, which is not shared: a little more seems to be served
    assert found.streams == pytest.approx(streams, rel=0.15)
    assert found.low < 1.1 * streams
    assert streams < found.high < ALL
