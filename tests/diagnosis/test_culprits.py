"""Whom findings name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from evidence_by_hand import evidence_of
from handmade import LIFETIMES, handmade_run
from made_runs import made_run, plan
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis.culprits import (
    commonest_error,
    crowded_host,
    fetched,
    larger_chunks,
    slowest_endpoint,
    smaller_chunks,
    task_length,
    worst_straggler,
)
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import SECTION_COLUMNS
from roastcoffea.records.run import Environment, Host
from roastcoffea.records.workers import LIFETIME_COLUMNS


def test_where_most_was_waited() -> None:
    assert slowest_endpoint(evidence_of(), ["read"]) == ", most at storage:1094"
    assert slowest_endpoint(evidence_of(counted=None), ["read"]) == ""


def test_a_host_is_that_of_the_classes_that_were_claimed() -> None:
    plans = [plan(1.0, wait=3.0, file="root://slow//a.root"), plan(1.0, read=2.0, file="root://near//b.root")]
    evidence = evidence_of(made_run(plans, 1))
    assert slowest_endpoint(evidence, ["blocked"]) == ", most at slow"
    assert slowest_endpoint(evidence, ["read"]) == ", most at near"
    assert slowest_endpoint(evidence, ["read", "blocked"]) == ", most at slow"
    assert slowest_endpoint(evidence, ["checkpoint"]) == slowest_endpoint(evidence, ["idle: tail"]) == ""


@pytest.mark.parametrize(("cores", "text"), [(4, None), (2, "h has 4 threads for tasks on 2 cores"), (None, None)])
def test_a_host_with_more_threads_than_cores(cores: int | None, text: str | None) -> None:
    lives = table_of_rows(LIFETIME_COLUMNS, [row | {"host": "h"} for row in LIFETIMES[1:2]])
    environment = Environment(versions={}, client_host="here", hosts=(Host(name="h", cores=cores, memory=None),))
    run = handmade_run(lifetimes=lives, environment=environment)
    assert crowded_host(evidence_of(run)) == text


def test_errors_tasks_and_transfers() -> None:
    evidence = evidence_of()
    assert commonest_error(evidence) == "; 1 x boom"
    assert task_length(evidence) == "; 10 tasks of 1.98 s in the mean"
    assert fetched(evidence) == " (2 kB were fetched)"
    nothing = evidence_of(handmade_run(chunks=None, tasks=None), fine=None)
    assert (commonest_error(nothing), task_length(nothing), fetched(nothing), worst_straggler(nothing)) == ("",) * 4


def test_the_innermost_section_that_waits_is_named() -> None:
    run = one_kind_of_time("blocked_seconds").run
    assert "sections (track_time) find them" in Measurement(dataclasses.replace(run, sections=None)).verdict[0].text
    amounts = {"outer": (9.0, 1.0), "outer/inner": (8.0, 0.5), "other": (3.0, 0.0)}
    rows: list[dict[str, Any]] = [
        {"name": name, "wall_seconds": wall, "cpu_seconds": cpu} for name, (wall, cpu) in amounts.items()
    ]
    sections = table_of_rows(SECTION_COLUMNS, rows)
    text = Measurement(dataclasses.replace(run, sections=sections)).verdict[0].text
    assert "section 'outer/inner' was without CPU for 7.5 s" in text


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
