"""The notebook of the task monitor of 0.1.2: its cells in their shape, on a cluster and files of the tests."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import pytest
from analyses import runner_for
from coffea.processor import ProcessorABC
from distributed import Client

from roastcoffea import TaskMonitor


class LeadingJets(ProcessorABC):
    """Counts events and jets above a threshold."""

    def process(self, events: Any) -> dict[str, Any]:
        jets = events.Jet[events.Jet.pt > 30]
        return {"nevents": len(events), "njets": ak.sum(ak.num(jets))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


@pytest.fixture(scope="module")
def notebook(shared_client: Client, sample: Any) -> dict[str, Any]:
    """The first cells: start, processor, run, stop."""
    client = shared_client
    monitor = TaskMonitor(client.cluster.scheduler, interval=0.01)
    monitor.start()
    time.sleep(0.05)
    runner = runner_for(client, 2000)
    output, report = runner(sample, treename="Events", processor_instance=LeadingJets())
    time.sleep(0.05)
    monitor.stop()
    return {"monitor": monitor, "output": output, "report": report, "workers": client.scheduler_info()["workers"]}


def test_the_summary(notebook: dict[str, Any]) -> None:
    snapshots = notebook["monitor"].snapshots
    duration = (snapshots[-1]["timestamp"] - snapshots[0]["timestamp"]).total_seconds()
    assert 0 < duration == pytest.approx(snapshots[-1].time - snapshots[0].time, abs=1e-5)
    assert duration >= 0.01 * (len(snapshots) - 1) - 1e-6
    for number, snapshot in enumerate(snapshots[:: max(1, len(snapshots) // 10)]):
        line = f"  {number}: {snapshot['num_tasks']} tasks at {snapshot['timestamp'].strftime('%H:%M:%S.%f')[:-3]}"
        assert line.split()[1:3] == [str(len(snapshot["tasks"])), "tasks"]
        assert snapshot["num_tasks"] > 0
        assert snapshot["num_workers"] == 2


def test_all_tasks(notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    tasks = notebook["monitor"].get_all_tasks()
    of_processor = [task for task in tasks if "LeadingJets" in str(task["key"])]
    assert len(of_processor) == notebook["report"]["chunks"] == 8
    for task in of_processor:
        print(f"  Size: {task['nbytes'] / 1e3:.2f} KB" if task["nbytes"] else "  Size: N/A")
        assert (task["state"], task["type"]) == ("memory", "bytes")
        assert task["worker"] in notebook["workers"]
        assert type(task["nbytes"]) is int
    assert capsys.readouterr().out.count("KB") == 8


def test_keys(notebook: dict[str, Any]) -> None:
    for task in notebook["monitor"].get_all_tasks():
        assert isinstance(task["key"], str | tuple)
        for part in task["key"] if isinstance(task["key"], tuple) else ():
            assert isinstance(part, str | int)


def test_tasks_of_each_worker(notebook: dict[str, Any]) -> None:
    tasks = notebook["monitor"].get_all_tasks()
    stats: dict[str, dict[str, Any]] = defaultdict(lambda: {"count": 0, "total_bytes": 0, "tasks": []})
    for task in tasks:
        worker = task["worker"] or "unknown"
        stats[worker]["count"] += 1
        stats[worker]["total_bytes"] += task["nbytes"] if task["nbytes"] else 0
        stats[worker]["tasks"].append(task)
    truth = notebook["monitor"].per_worker().set_index("worker")
    assert {worker: each["count"] for worker, each in stats.items()} == truth["tasks"].to_dict()
    assert {worker: each["total_bytes"] for worker, each in stats.items()} == truth["nbytes"].to_dict()


def test_a_table_of_tasks(notebook: dict[str, Any]) -> None:
    tasks = notebook["monitor"].get_all_tasks()
    frame = pd.DataFrame(
        [
            {
                "key": str(task["key"])[:60],
                "worker": task["worker"],
                "state": task["state"],
                "nbytes_kb": task["nbytes"] / 1e3 if task["nbytes"] else 0,
                "type": task["type"],
            }
            for task in tasks
        ]
    )
    sums = frame.groupby("worker")["nbytes_kb"].agg(["count", "sum", "mean", "std"])
    assert sums["sum"].sum() == pytest.approx(frame["nbytes_kb"].sum())
    assert frame[["nbytes_kb"]].describe().loc["count", "nbytes_kb"] == len(tasks)


def test_beside_the_report(notebook: dict[str, Any]) -> None:
    monitor, report = notebook["monitor"], notebook["report"]
    tasks = [task for task in monitor.get_all_tasks() if task["kind"] == "chunk"]
    total = sum(task["nbytes"] for task in tasks if task["nbytes"])
    totals = monitor.compare_with_report(report).totals.set_index("quantity")
    assert totals.loc["result_bytes", "tasks"] == total < report["bytesread"]
    assert totals.loc[["chunks", "entries"], "difference"].tolist() == [0, 0]
    assert np.isnan(totals.loc["bytesread", "tasks"])
