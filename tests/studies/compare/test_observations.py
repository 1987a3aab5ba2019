"""What a comparison takes from runs that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import empty_run
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.studies.observations import bytes_of_branches, observed

RUN = made_run([plan(1.0, 2.0, core_wait=1.0), plan(1.0, events=50, file="b.root")], 1)


def facts(run: Run) -> dict[str, str]:
    return dict(observed(Measurement(run)).facts)


def test_numbers_and_ledgers() -> None:
    found = observed(Measurement(RUN), "by name")
    assert (found.name, observed(Measurement(RUN)).name, found.id) == ("by name", "made", RUN.id)
    assert (found.metrics["total_events"], found.metrics["elapsed_time_seconds"]) == (150.0, 5.0)
    assert found.thread_seconds == pytest.approx(5.0)
    assert found.time["compute"] == pytest.approx(2.0)
    assert found.chunk_seconds.tolist() == pytest.approx([4.0, 1.0])
    assert found.chunk_cpu_seconds.tolist() == [1.0, 1.0]
    assert found.core_wait_share == pytest.approx(0.2)
    assert found.hosts[["events", "chunks", "compute"]].to_numpy().tolist() == [[150, 2, 2.0]]


def test_what_is_not_there_is_nothing() -> None:
    found = observed(Measurement(empty_run()))
    assert (found.hosts, found.chunk_seconds.tolist(), found.core_wait_share) == (None, [], None)
    assert bytes_of_branches(replace(found, bytes={"payload": 3, "re-read": None})) is None
    assert bytes_of_branches(replace(found, bytes={"payload": 3, "re-read": 4})) == 7.0
    # a friend tree is decompressed as well
    assert bytes_of_branches(replace(found, bytes={"payload": 3, "re-read": 4, "other files": 10})) == 17.0


def test_what_a_run_was_made_on() -> None:
    found = facts(RUN)
    assert (found["processor"], found["executor"], found["chunksize"]) == ("Made", "DaskExecutor", "100")
    assert (found["hosts"], found["cores of hosts"], found["threads of workers"]) == ("node", "1 x 64", "1 x 1")
    assert found["datasets"] == "data"
    assert found["files"] == "2"
