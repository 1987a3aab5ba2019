"""Runs of a scheduler's journals."""

from __future__ import annotations

import shutil
from pathlib import Path

from stand_ins import Observed, recorded

from roastcoffea.log.journals import journals_in
from roastcoffea.measurement import Measurement
from roastcoffea.recording.facility.index import WHY_CUT_OFF, is_cluster, is_facility, recorded_in, run_of


def test_a_run_is_a_measurement_whose_ledgers_close(observed: Observed, tmp_path: Path) -> None:
    recorded(observed, tmp_path).end()
    journals, _ = journals_in(tmp_path)
    assert all(map(is_facility, journals))
    first, _ = (journal for journal in journals if not is_cluster(journal))
    measurement = Measurement(run_of(first))
    assert measurement.outcome == "finished"
    assert measurement.byte_ledger.total == 400
    assert measurement.run.backend == "facility"
    assert set(measurement.run.absent) == {"span_metrics", "asked", "client_steps", "worker_requests"}


def test_a_journal_that_was_cut_off_gives_what_was_written_and_says_so(observed: Observed, tmp_path: Path) -> None:
    recorder = recorded(observed, tmp_path)
    (recorder.recorders,) = [dict(recorder.recorders)]
    for one in recorder.recorders.values():
        one.journal.flush()
    shutil.copytree(tmp_path, tmp_path / "copy")  # of which nobody has a lock, as if its scheduler were killed
    journals, _ = journals_in(tmp_path / "copy")
    last = max((each for each in journals if not is_cluster(each)), key=lambda each: float(each.header["start"]))
    run = run_of(last)
    recorder.end()
    assert WHY_CUT_OFF in run.problems
    assert run.tasks is not None
    assert len(run.tasks) == 1


def test_entries_that_are_no_json_are_noted(observed: Observed, tmp_path: Path) -> None:
    recorder = recorded(observed, tmp_path)
    (one,) = recorder.recorders.values()
    one.journal.write("run", b"{")
    one.journal.write("run", b"[1]")
    recorder.end()
    journals, _ = journals_in(tmp_path)
    found = [recorded_in(each) for each in journals if not is_cluster(each)]
    assert sorted(len(each.problems) for each in found) == [0, 1]
