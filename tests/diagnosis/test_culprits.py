"""Whom findings name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from evidence_by_hand import evidence_of
from handmade import LIFETIMES, handmade_run
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis.culprits import (
    commonest_error,
    crowded_host,
    fetched,
    first_openings,
    slowest_endpoint,
    task_length,
    worst_straggler,
)
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import SECTION_COLUMNS
from roastcoffea.records.run import Environment, Host
from roastcoffea.records.workers import LIFETIME_COLUMNS


def test_where_most_was_waited() -> None:
    assert slowest_endpoint(evidence_of()) == ", most at storage:1094"
    assert slowest_endpoint(evidence_of(counted=None)) == ""


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
    assert first_openings(nothing) == 0


def test_the_innermost_section_that_waits_is_named() -> None:
    run = one_kind_of_time("wait_seconds").run
    assert "sections (track_time) find them" in Measurement(dataclasses.replace(run, sections=None)).verdict[0].text
    amounts = {"outer": (9.0, 1.0), "outer/inner": (8.0, 0.5), "other": (3.0, 0.0)}
    rows: list[dict[str, Any]] = [
        {"name": name, "wall_seconds": wall, "cpu_seconds": cpu} for name, (wall, cpu) in amounts.items()
    ]
    sections = table_of_rows(SECTION_COLUMNS, rows)
    text = Measurement(dataclasses.replace(run, sections=sections)).verdict[0].text
    assert "section 'outer/inner' was without CPU for 7.5 s" in text
