"""What the next run takes over: branches to preload, against a run with them, and servers to avoid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed import Client
from limited_runs import LIMITED, edited, with_rows
from made_runs import made_run, plan
from releases import needs_preloads
from servers import http_server

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

BRANCHES = [f"x{number}" for number in range(10)]
DELAY = 0.1


class Reading(ProcessorABC):
    """Reads all branches, one after the other."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": sum(float(ak.sum(events[name], axis=None)) for name in BRANCHES)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def run_of(client: Client, fileset: Any) -> Measurement:
    executor = DaskExecutor(client=client, status=False)
    runner = Runner(executor=executor, schema=BaseSchema, chunksize=2_000, metadata_cache={})
    with MetricsCollector(client) as collector:
        runner(fileset, processor_instance=Reading())
    return collector.measurement


@pytest.mark.slow
@needs_preloads
def test_the_preloaded_run_saves_what_was_predicted(client: Client, tmp_path: Path) -> None:
    """Of storage whose every answer comes late, so that it matters little how busy this host is."""
    drawn = np.random.default_rng(1)
    with uproot.recreate(tmp_path / "a.root") as file:
        tree = file.mktree("Events", dict.fromkeys([*BRANCHES, "unused"], "float64"))
        for _ in range(4):
            tree.extend({name: drawn.normal(size=4_000) for name in [*BRANCHES, "unused"]})
    with http_server(tmp_path, delay=DELAY) as server:
        fileset = {"dijets": {"files": {f"{server.url}/a.root": "Events"}}}
        run_of(client, fileset)  # imports, and compiles
        server.ranges.clear()
        before = run_of(client, fileset)
        asked, path = len(server.ranges), before.export(tmp_path / "next.json", "preload")
        document = json.loads(path.read_text())
        for dataset, entry in document["fileset"].items():
            fileset[dataset]["preload"] = entry["preload"]
        server.ranges.clear()
        after = run_of(client, fileset)
        asked -= len(server.ranges)
    assert fileset["dijets"]["preload"] == BRANCHES
    saves = document["saves"]
    # 8 chunks: each branch was a request, 80 in all, and now all of them are one, as they lie next to each other
    assert asked == 72
    read = before.metrics["chunk_read_seconds"]
    assert saves["of_read_seconds"] == pytest.approx(read)
    # 9 of 10 requests are saved; a busy host makes all of them longer
    assert saves["read_seconds"] == pytest.approx(0.9 * read, rel=0.15)
    assert saves["read_seconds"] > 0.85 * asked * DELAY
    # the run ends earlier by what each of the two threads waits less
    assert before.metrics["avg_workers"] == pytest.approx(2.0)
    assert saves["wall"]["seconds"] == pytest.approx(saves["read_seconds"] / 2, rel=0.15)
    assert not saves["wall"]["at_most"]
    # then there is nothing left to do
    again = json.loads(after.export(tmp_path / "again.json", "preload").read_text())
    assert (again["fileset"], "already preloaded" in again["reason"]) == ({}, True)


def exported(measurement: Measurement, name: str, folder: Path) -> Any:
    return json.loads(measurement.export(folder / name, name).read_text())


def of_servers(failing: Sequence[int], servers: int = 4) -> Measurement:
    """100 chunks of each server, every one at a site of its own, of which so many fail."""
    plans = [plan(0.1, file=f"root://s{server}.org//{n}.root") for n in range(100) for server in range(servers)]

    def outcome(row: Any) -> dict[str, Any]:
        server, chunk = int(row["file"][8]), int(row["file"].split("/")[-1].split(".")[0])
        return {"outcome": "error", "error": "OSError: expired"} if chunk < failing[server] else {}

    asked = [{"dataset": "data", "file": each["file"], "site": f"T2_{each['file'][8]}"} for each in plans]
    return Measurement(with_rows(edited(made_run(plans, 2), chunks=outcome), asked=asked))


def test_a_server_that_fails_is_to_be_avoided_with_its_site(tmp_path: Path) -> None:
    document = exported(of_servers([0, 30, 2, 0]), "blocklist", tmp_path)
    assert document["servers"] == {"s1.org": "30 of 100 attempts failed"}
    assert document["blocklist_sites"] == ["T2_1"]
    assert (document["rucio"], document["pocket_coffea"]) == (r"*\T2_1", "-bs T2_1")


@pytest.mark.parametrize("failing", [[0, 0, 0, 0], [30, 30, 30, 30], [1, 0, 2, 0]])
def test_failures_everywhere_blame_no_server(failing: list[int], tmp_path: Path) -> None:
    document = exported(of_servers(failing), "blocklist", tmp_path)
    assert (document["servers"], document["blocklist_sites"]) == ({}, [])


def test_slow_servers_are_to_be_avoided(tmp_path: Path) -> None:
    document = exported(Measurement(LIMITED["slow endpoint"]()), "blocklist", tmp_path)
    ((server, reason),) = document["servers"].items()
    assert server == "data-2.example.org"
    assert "times as long" in reason
