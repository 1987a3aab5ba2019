"""Chunk sizes that are proposed."""

from __future__ import annotations

import dataclasses

from evidence_by_hand import evidence_of
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis.culprits import larger_chunks, smaller_chunks
from roastcoffea.measurement import Measurement

# of chunks of 100 events and 10 s on one thread of 100 s
EVIDENCE = evidence_of(one_kind_of_time("compute_seconds").run, spilled=0.0)


def test_chunks_are_as_large_as_makes_a_fixed_cost_small() -> None:
    assert "chunksize=190 instead of about 100 makes that 5 % of a chunk's work" in larger_chunks(EVIDENCE, 10.0)
    assert "chunksize=330 instead of about 100 leaves 3 chunks for each thread" in larger_chunks(EVIDENCE, 50.0)
    assert larger_chunks(EVIDENCE, 1.0) == "Make chunks larger, if there are enough of them for all threads"


def test_no_larger_chunks_where_workers_are_out_of_memory() -> None:
    assert "give them more first" in larger_chunks(dataclasses.replace(EVIDENCE, spilled=50.0), 50.0)


def test_without_chunks_there_is_no_size() -> None:
    evidence = dataclasses.replace(EVIDENCE, counted=None)
    assert larger_chunks(evidence, 1.0) == "Make tasks longer: fewer of them, each with more to do"
    assert smaller_chunks(evidence) == "Cut the longest tasks"


def test_chunks_are_small_enough_for_a_short_last_round() -> None:
    assert smaller_chunks(EVIDENCE) == "Look at the slowest chunks: `measurement.stragglers`"
    few = dataclasses.replace(EVIDENCE, counted=EVIDENCE.counted.slice(0, 2))
    assert smaller_chunks(few) == "Make chunks smaller: chunksize=67 instead of about 100"


def test_files_that_are_smaller_than_the_chunk_size_are_to_be_merged() -> None:
    measurement = one_kind_of_time("open_seconds")
    assert "chunksize=" in measurement.verdict[0].text
    calls = tuple(dataclasses.replace(call, options={"chunksize": 100_000}) for call in measurement.run.calls)
    told = Measurement(dataclasses.replace(measurement.run, calls=calls)).verdict[0].text
    assert "Merge files" in told
