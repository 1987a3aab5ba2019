"""What a run is judged by."""

from __future__ import annotations

import pytest
from evidence_by_hand import evidence_of
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis.evidence import LEAST, LEAST_OF, words


def test_times_of_the_run() -> None:
    evidence = evidence_of()
    assert (evidence.elapsed, evidence.total, evidence.threads, evidence.local) == (100, 440, 4.4, False)
    assert evidence.wall(44.0) == pytest.approx(10.0)
    assert evidence.share(44.0) == "10 %"
    assert (evidence.chunks, evidence.sum_of("events")) == (3, 450)


def test_what_a_finding_must_save_depends_on_its_cause() -> None:
    evidence = evidence_of()
    assert evidence.least("storage") == pytest.approx(100 * LEAST)
    assert evidence.least("blocked") == pytest.approx(100 * LEAST_OF["blocked"])


def test_rows_are_those_of_the_classes_with_a_word() -> None:
    evidence = evidence_of()
    assert evidence.rows_of("storage") == {"read": 1.5}
    assert evidence.rows_of("scheduler") == {"task overhead": 2.125}
    assert evidence.rows_of("nothing") == {}


def test_where_an_interpreter_is_shared_reading_waits_for_it() -> None:
    assert (words(shared=False)["read"], words(shared=True)["read"]) == ("storage", "interpreter lock")
    run = one_kind_of_time("read_seconds", process_cpu_seconds=9.5).run
    evidence = evidence_of(run)
    assert evidence.shares_interpreter
    assert (evidence.rows_of("storage"), evidence.rows_of("interpreter lock")) == ({}, {"read": pytest.approx(100.0)})
    assert not evidence_of(counted=None).shares_interpreter
