"""States of tasks that a monitor writes, with what the tasks do for coffea, against what a collector knows of them."""

from __future__ import annotations

from typing import Any

import pytest
from analyses import Jets, runner_for
from distributed import Client

from roastcoffea import MetricsCollector, TaskMonitor


@pytest.mark.slow
def test_kinds_and_chunks_are_those_of_a_collector(client: Client, sample: Any) -> None:
    with TaskMonitor(client) as alone:
        runner_for(client, 4000)(sample, processor_instance=Jets())
    with MetricsCollector(client) as collector, TaskMonitor(client) as monitor:
        _, report = runner_for(client, 4000)(sample, processor_instance=Jets())
    truth = collector.measurement.tasks.set_index(["key", "run_id"])["kind"].replace("processor", "chunk")
    found = monitor.attempts.set_index(["key", "run_id"])["kind"]
    assert found.to_dict() == truth.to_dict()
    frame = monitor.to_dataframe()
    assert frame.set_index("key")["kind"].to_dict() == truth.reset_index().set_index("key")["kind"].to_dict()
    assert sorted(alone.to_dataframe()["kind"]) == sorted(frame["kind"])
    chunks, totals = alone.compare_with_report(report)
    names = ["dataset", "file", "entry_start", "entry_stop", "events"]
    records = collector.measurement.chunks
    assert sorted(map(tuple, chunks[names].to_numpy())) == sorted(map(tuple, records[names].to_numpy()))
    of_tasks = totals.set_index("quantity")["tasks"]
    assert (of_tasks["chunks"], of_tasks["entries"]) == (report["chunks"], report["entries"])
    assert of_tasks["result_bytes"] == chunks["output_bytes"].sum() > 0
    assert set(totals.attrs["missing"]) == {"bytesread", "processtime"}
