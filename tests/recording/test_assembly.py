"""What the client knows of a run goes through a journal unchanged."""

from __future__ import annotations

import math
from types import SimpleNamespace

from roastcoffea.recording.assembly import RunRecords, packed_values, unpacked_values
from roastcoffea.records.run import FINISHED, LOST, RunnerCall


def records() -> RunRecords:
    return RunRecords("id", "name", 1.0, profile=True)


def call(outcome: str) -> RunnerCall:
    options = {"chunksize": 10, "limit": math.inf}
    return RunnerCall(id="c", processor="P", executor="E", start=1.0, stop=2.0, outcome=outcome, options=options)


def test_everything_goes_through_a_journal() -> None:
    first, again = records(), records()
    first.keep = again.take
    first.started(5.0)
    first.call_began("c")
    first.call_runs(call(LOST))
    assert again.running == first.running == {"c": call(LOST)}
    item = SimpleNamespace(dataset="d", filename="f", treename="t", entrystart=0, entrystop=10)
    first.items_requested("c", [item] * 25_000)
    first.items_requested("c", [SimpleNamespace(dataset="d", filename="f", treename=None)])
    first.call_ended(call(FINISHED))
    first.requests_unknown()
    first.chunks_lost("lost")
    first.chunks_lost("lost, too", "c")
    first.take_report({"bytesread": 1, "worst": math.nan}, {"d": {"entries": 2}})
    first.note("odd: \udcff")
    assert (again.start, again.running, again.calls) == (5.0, {}, [call(FINISHED)])
    assert again.asked.table().combine_chunks().equals(first.asked.table().combine_chunks())
    assert (again.asked.chunks, again.asked.files) == (25_000, 1)
    assert again.problems == first.problems
    assert str(again.report) == str(first.report)
    assert again.custom_metrics == first.custom_metrics


def test_values_that_json_lacks_come_back() -> None:
    assert unpacked_values(packed_values({"a": [math.inf, None, 3]})) == {"a": [math.inf, None, 3]}
