"""Each cause by itself: when it is found, and what it says."""

import dataclasses

import pytest
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis.causes import CAUSES
from roastcoffea.diagnosis.evidence import LEAST, LEAST_OF, WORDS
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import TIME_NAMES
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS


def test_every_class_has_a_word_and_every_threshold_a_cause():
    assert {*WORDS} == {*TIME_NAMES} - {"residual"}
    assert {*WORDS.values()} <= {*CAUSES, "compute"}
    assert LEAST_OF.keys() <= CAUSES.keys()
    assert all(least >= LEAST for least in LEAST_OF.values())


@pytest.mark.parametrize(
    ("column", "cause"),
    [
        ("read_seconds", "storage"),
        ("decompress_seconds", "decompression"),
        ("interpret_seconds", "interpretation"),
        ("contention_seconds", "contention"),
        ("lock_seconds", "interpreter lock"),
        ("blocked_seconds", "blocked"),
        ("open_seconds", "metadata"),
        ("checkpoint_seconds", "checkpoint"),
    ],
)
def test_each_phase_has_its_cause(column, cause):
    measurement = one_kind_of_time(column)
    assert measurement.bound == cause
    assert measurement.verdict[0].cause == cause
    assert measurement.verdict[0].seconds == pytest.approx(100)


@pytest.mark.parametrize(
    ("activity", "cause", "words"),
    [
        (
            "serialize",
            "serialization",
            "12 % of the threads' time goes into Dask's serialization in tasks (serialization",
        ),
        ("deserialize", "serialization", "(deserialization 12 s)"),
        ("compress", "compression", "Dask's compression in tasks, which is not ROOT's (compression 12 s)"),
        ("decompress", "compression", "(decompression 12 s)"),
        ("disk-write", "memory", "moving results to disk and back for 12 s"),
        ("disk-read", "memory", "moving results to disk and back for 12 s"),
    ],
)
def test_what_dask_counts_in_tasks_is_found_where_it_is_a_large_share(activity, cause, words):
    run = one_kind_of_time("compute_seconds").run
    key = ("execute", "Dijet", activity, "seconds")

    def verdict(*seconds):
        counted = {f"worker {place}": {key: amount} for place, amount in enumerate(seconds)}
        changes = {"span_metrics": {key: sum(seconds)}, "span_metrics_per_worker": counted}
        return Measurement(dataclasses.replace(run, **changes)).verdict

    (finding,) = verdict(9.0, 3.0)
    assert finding.cause == cause
    assert finding.seconds == pytest.approx(12)
    assert words in finding.text
    assert verdict(1.0, 1.0).healthy


def test_what_first_chunks_load_is_told_apart_from_what_each_chunk_opens():
    run = one_kind_of_time("compute_seconds").run

    def found(*opened):
        rows = [
            row | {"thread": 1, "open_seconds": seconds, "build_seconds": 0.0, "compute_seconds": 10 - seconds}
            for row, seconds in zip(run.chunks.to_pylist(), opened, strict=True)
        ]
        chunks = table_of_rows(CHUNK_COLUMNS, reversed(rows))
        return {each.cause: each for each in Measurement(dataclasses.replace(run, chunks=chunks)).verdict}

    once = found(10.0, *[0.1] * 9)
    assert set(once) == {"start-up"}
    assert once["start-up"].seconds == pytest.approx(9.9)
    both = found(9.0, *[2.0] * 9)
    assert both["start-up"].seconds == pytest.approx(7.0)
    assert "2 s for each of 10 chunks" in both["metadata"].text
    assert "chunksize=330 instead of about 100 leaves 3 chunks for each thread" in both["metadata"].text
    assert "start-up" not in found(2.01, *[2.0] * 9)


def test_threads_that_share_a_busy_interpreter_do_not_wait_for_storage():
    measurement = one_kind_of_time("read_seconds", process_cpu_seconds=9.5)
    assert measurement.bound == "interpreter lock"
    (finding,) = measurement.verdict
    assert finding.cause == "interpreter lock"
    assert "processes of one thread" in finding.text
    assert one_kind_of_time("read_seconds", process_cpu_seconds=9.5, overlaps=0).bound == "storage"
