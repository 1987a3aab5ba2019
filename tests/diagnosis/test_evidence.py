"""What a run is judged by."""

from __future__ import annotations

import pytest
from handmade import evidence_of, memory_of
from made_runs import made_run, plan

from roastcoffea.diagnosis.chunk_size import recommended
from roastcoffea.diagnosis.evidence import SHORTEST, WORDS
from roastcoffea.diagnosis.finding import CAUSES, LEAST
from roastcoffea.metrics.phases import TIME_NAMES

SMALL = made_run([plan(0.2, open_cpu=0.5, open_wait=0.5, file=f"{number % 4}.root") for number in range(80)], 4)
"""Chunks of 100 events that take five times as long to open as to compute."""

UNEVEN = made_run([plan(1.0)] * 19 + [plan(20.0)], 4)
"""One thread works for 19 s while three others have nothing to do."""


def test_times_of_the_run() -> None:
    evidence = evidence_of()
    assert (evidence.elapsed, evidence.total, evidence.local) == (100, 440, False)
    assert evidence.wall(44.0) == pytest.approx(10.0)
    assert evidence.share(44.0) == "10 %"
    assert (evidence.chunks, evidence.sum_of("events")) == (3, 450)
    nothing = evidence_of(counted=None)
    assert (nothing.chunks, nothing.sum_of("events")) == (0, None)


def test_every_class_has_a_word_and_every_threshold_a_cause() -> None:
    assert {*WORDS} == {*TIME_NAMES} - {"residual", "not recorded"}
    assert {*WORDS.values()} <= {*CAUSES}
    assert all(one.least >= LEAST for one in CAUSES.values())


def test_what_a_finding_must_save_depends_on_its_cause_and_is_never_next_to_nothing() -> None:
    evidence = evidence_of()
    assert evidence.least("storage") == pytest.approx(100 * LEAST)
    assert evidence.least("blocked") == pytest.approx(100 * CAUSES["blocked"].least)
    assert evidence_of(made_run([plan(0.1)] * 2, 1)).least("storage") == SHORTEST


def test_rows_are_those_of_the_classes_with_a_word() -> None:
    evidence = evidence_of()
    assert evidence.rows_of("storage") == {"read": 1.5}
    assert evidence.rows_of("scheduler") == {"task overhead": 1.625, "measuring": 0.5}
    assert evidence.rows_of("nothing") == {}


@pytest.mark.slow
def test_one_chunk_size_is_either_larger_or_smaller() -> None:
    small, uneven = evidence_of(SMALL), evidence_of(UNEVEN)
    assert small.larger == small.chunk_size.line
    assert small.smaller is None
    assert small.chunk_size.size is not None
    assert small.chunk_size.size > 100
    assert (uneven.larger, uneven.smaller) == (None, uneven.chunk_size.line)
    assert uneven.chunk_size.size is not None
    assert uneven.chunk_size.size < 100
    even = evidence_of(made_run([plan(1.0)] * 40, 4))
    assert (even.larger, even.smaller) == (None, None)


@pytest.mark.slow
def test_workers_that_lacked_memory_have_the_last_word_on_the_chunk_size() -> None:
    tight = evidence_of(SMALL, memory=memory_of(40, 100.0))
    assert (tight.fitting, tight.larger, tight.smaller) == (40, None, "chunksize=40")
    assert evidence_of(UNEVEN, memory=memory_of(70, 100.0)).smaller == "chunksize=70"


def test_no_larger_chunks_where_memory_lacked_and_nothing_tells_what_fits() -> None:
    unknown = evidence_of(SMALL, memory=memory_of(None, 100.0))
    assert (unknown.lacks_memory, unknown.fitting, unknown.larger) == (True, None, None)


def test_memory_that_nobody_lacked_changes_nothing() -> None:
    enough = evidence_of(SMALL, memory=memory_of(None, 100.0, paused=0.0))
    assert (enough.lacks_memory, enough.fitting) == (False, None)
    assert enough.larger == evidence_of(SMALL).larger


def test_a_straggler_is_no_reason_for_larger_chunks() -> None:
    """Chunks of other sizes have none in the replay: what larger ones would save must be there to be saved."""
    plans = [plan(0.3, open_cpu=0.003, events=500) for _ in range(16)]
    seen = evidence_of(made_run([*plans[:7], dict(plans[7]) | {"cpu": 3.0}, *plans[8:]], 2))
    assert recommended(seen.savings).size == 1000
    assert seen.larger is None
