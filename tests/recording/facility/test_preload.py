"""The preload on real schedulers and workers that commands start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import PATIENCE, CommandLineCluster, wait_until

import roastcoffea
from roastcoffea.facility import dask_setup, dask_teardown
from roastcoffea.log.journals import Journal, journals_in
from roastcoffea.measurement import Measurement
from roastcoffea.recording.facility import display
from roastcoffea.recording.facility.index import WHY_CUT_OFF, index_of, is_cluster, recorded_in, run_of

PROCESSORS = """
import time
from pathlib import Path

import awkward as ak
from coffea.processor import ProcessorABC

class Plain(ProcessorABC):
    def process(self, events):
        jets = int(ak.sum(ak.num(events.Jet.pt)))
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return {"jets": jets}

    def postprocess(self, accumulator):
        return accumulator

class Measured(Plain):
    pass

class Unfinished(Plain):
    def process(self, events):
        while events.metadata["entrystart"] >= 6000 and not Path(__file__).with_name("killed").exists():
            time.sleep(0.1)
        return super().process(events)
"""
PLAIN = """
import json, sys
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client
from processors import Plain

NanoAODSchema.warn_missing_crossrefs = False
with Client(scheduler_file=sys.argv[1]) as client:
    runner = Runner(DaskExecutor(client=client, status=False), chunksize=1000, schema=NanoAODSchema, savemetrics=True)
    output, report = runner(json.load(open("sample.json")), processor_instance=Plain())
assert not [name for name in sys.modules if name.startswith("roastcoffea")]
print(json.dumps({"jets": output["jets"], "bytes": int(report["bytesread"]), "events": int(report["entries"])}))
"""
MEASURED = """
import json, sys
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client
from roastcoffea import MetricsCollector
from processors import Measured

NanoAODSchema.warn_missing_crossrefs = False
with Client(scheduler_file=sys.argv[1]) as client, MetricsCollector(client) as collector:
    runner = Runner(DaskExecutor(client=client, status=False), chunksize=1000, schema=NanoAODSchema)
    output = runner(json.load(open("sample.json")), processor_instance=Measured())
run = collector.measurement
assert not [problem for problem in run.problems if "fine metrics" not in problem], run.problems
compute = run.time_ledger["compute"]
print(json.dumps({"jets": output["jets"], "bytes": int(run.metrics["total_bytes_read"]), "compute": compute}))
"""


def test_a_preload_that_is_named_twice_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scheduler:
        worker_plugins = ()

    scheduler: Any = Scheduler()
    calls: list[str] = []
    for name in ("join", "leave"):
        monkeypatch.setattr(display, name, lambda *_, name=name: calls.append(name))
    for _ in range(2):
        assert dask_setup.callback is not None
        asyncio.run(dask_setup.callback(scheduler, None, None, None))
    for _ in range(2):
        asyncio.run(dask_teardown(scheduler))
    assert calls == ["join", "leave"]


class Facility(CommandLineCluster):
    """A cluster whose scheduler and workers have the preload."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.journal = folder / "journal"
        super().__init__(folder, options=("--no-nanny", "--preload", "roastcoffea.facility"), **options)

    def _run_dask(self, *command: str, **more: Any) -> Any:
        preload = ("--preload", "roastcoffea.facility", "--roastcoffea-journal", str(self.journal))
        return super()._run_dask(*command, *(preload if command[0] == "scheduler" else ()), **more)

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(self.file), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def runs(self) -> list[Journal]:
        return [journal for journal in journals_in(self.journal)[0] if not is_cluster(journal)]

    def totals(self) -> dict[str, Any]:
        clusters = [recorded_in(one).clusters for one in journals_in(self.journal)[0] if is_cluster(one)]
        return clusters[0][-1] if clusters else {"workers": 0, "time": 0.0}

    def cpu_seconds(self) -> float:
        """CPU time of the worker processes, as the system has it."""
        ticks = 0
        for worker in self.workers:
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def facility(tmp_path: Path, sample: Any) -> Any:
    (tmp_path / "processors.py").write_text(PROCESSORS)
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    path = f"{Path(roastcoffea.__file__).parents[1]}:{tmp_path}"
    cluster = Facility(tmp_path, path=path)
    yield cluster
    cluster.close()


def answer_of(script: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = script.communicate(timeout=PATIENCE)
    assert script.returncode == 0
    return dict(json.loads(text))


@pytest.mark.slow
def test_scripts_of_two_users_are_two_runs_and_nothing_is_mixed(facility: Facility) -> None:
    assert wait_until(lambda: facility.totals()["workers"] == 2), facility.text()
    before, cpu_before = at_next_entry(facility)
    scripts = [facility.start(PLAIN), facility.start(MEASURED)]
    plain, measured = map(answer_of, scripts)
    assert wait_until(lambda: len(facility.runs()) == 2)
    assert wait_until(lambda: all(recorded_in(one).run["ended"] for one in facility.runs()))
    runs = {run.calls[0].processor: Measurement(run) for run in map(run_of, facility.runs())}
    assert {name: run.metrics["total_events"] for name, run in runs.items()} == {"Plain": 16_000, "Measured": 16_000}
    assert runs["Plain"].metrics["total_bytes_read"] == plain["bytes"]
    assert runs["Measured"].metrics["total_bytes_read"] == measured["bytes"]
    assert runs["Measured"].time_ledger["compute"] == pytest.approx(measured["compute"])
    assert plain["jets"] == measured["jets"]
    for name, run in runs.items():
        assert run.problems == []
        assert set(run.tasks[run.tasks["kind"] == "processor"]["prefix"]) == {name}
        assert run.byte_ledger.residual == 0
        # on a busy host, the scheduler learns late when tasks of the other user began and ended
        assert abs(run.time_ledger.residual) < 0.03 * run.time_ledger.total
    totals, cpu = at_next_entry(facility)
    assert totals["cpu_seconds"] - before["cpu_seconds"] == pytest.approx(cpu - cpu_before, rel=0.02)
    rows = index_of(facility.journal).runs.to_pylist()
    assert {row["client"] for row in rows} == {row["client"] for row in rows if row["client"].startswith("Client-")}
    assert len({row["client"] for row in rows}) == 2
    assert sum(row["core_hours"] for row in rows) <= totals["capacity_seconds"] / 3600
    assert_what_was_recorded_survives_a_kill(facility)


def assert_what_was_recorded_survives_a_kill(facility: Facility) -> None:
    """The scheduler is killed while another script runs, whose last chunks wait for that."""
    before = {journal.folder for journal in facility.runs()}

    def third() -> list[Journal]:
        return [journal for journal in facility.runs() if journal.folder not in before]

    script = facility.start(PLAIN.replace("Plain", "Unfinished"))
    try:
        assert wait_until(lambda: any(recorded_in(one).run.get("chunks", 0) >= 4 for one in third()))
        facility.processes[0].send_signal(signal.SIGKILL)
        facility.processes[0].wait()
    finally:
        (facility.folder / "killed").touch()
        script.kill()
        script.communicate()
    (journal,) = third()
    run, known = run_of(journal), recorded_in(journal).run
    assert WHY_CUT_OFF in run.problems
    assert run.chunks is not None
    assert len(run.chunks) >= known["chunks"] >= 4
    assert index_of(facility.journal).runs["state"].to_pylist().count("cut off") == 1


def at_next_entry(facility: Facility) -> tuple[dict[str, Any], float]:
    """Totals that come next, all of which was reported, and CPU time of the workers at that moment."""
    now = time.time() + 2  # heartbeats come twice a second
    assert wait_until(lambda: facility.totals()["time"] > now)
    return facility.totals(), facility.cpu_seconds()


@pytest.mark.slow
def test_without_a_folder_runs_are_only_shown(
    command_line_cluster: Callable[..., CommandLineCluster], tmp_path: Path
) -> None:
    path = str(Path(roastcoffea.__file__).parents[1])
    environment = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "roastcoffea.facility"}
    cluster = command_line_cluster(path=path, workers=0, environment=environment)
    import urllib.request

    port = json.loads(cluster.file.read_text())["services"]["dashboard"]

    def page() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            return b"roastcoffea_workers" in answer.read()

    assert wait_until(page), cluster.text()
    assert not list(tmp_path.rglob("*.arrows"))
