"""The metrics that Prometheus gets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import PATIENCE, CommandLineCluster, wait_until
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from stand_ins import Observed

import roastcoffea
from roastcoffea.recording.facility.display import EXPOSED, Exposed

DASHBOARD = Path(__file__).parents[3] / "docs" / "facility" / "grafana.json"


def amounts(exposed: Exposed) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in exposed.collect()
        for sample in family.samples
    }


def test_the_counters_are_there_by_class_and_nothing_names_a_file(observed: Observed) -> None:
    observed.observer.tick(observed.now)
    for number in range(3):
        observed.end(observed.chunk(number), 10.0, events=1000)
    observed.end(observed.chunk(9), state="released", reason="handle-worker-cleanup-1")
    observed.pass_time(2)
    EXPOSED.add(observed.observer)
    try:
        found = amounts(EXPOSED)
    finally:
        EXPOSED.remove(observed.observer)
    expected = {
        ("roastcoffea_runs",): 1,
        ("roastcoffea_runs_begun_total",): 1,
        ("roastcoffea_workers",): 2,
        ("roastcoffea_threads",): 8,
        ("roastcoffea_chunks_pending",): 1,
        ("roastcoffea_events_total",): 3000,
        ("roastcoffea_chunks_total", "ok"): 3,
        ("roastcoffea_capacity_thread_seconds_total",): 16,
        ("roastcoffea_failed_attempts_total", "worker lost", "processor"): 1,
        ("roastcoffea_requested_bytes_total", "payload or re-read", "xrootd-3.example.org"): 240,
        ("roastcoffea_requested_bytes_total", "metadata", "xrootd-3.example.org"): 60,
        ("roastcoffea_thread_seconds_total", "compute"): 15,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "secret-name" not in repr(found)
    assert "Dijet" not in repr(found)


def test_schedulers_of_one_process_are_summed_and_the_last_takes_the_metrics_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = [Observed(monkeypatch).observer for _ in range(2)]
    for one in pair:
        one.counters.events = 7
        EXPOSED.add(one)
    assert amounts(EXPOSED)["roastcoffea_events_total",] == 14
    EXPOSED.remove(pair[0])
    EXPOSED.remove(pair[0])
    assert REGISTRY.get_sample_value("roastcoffea_events_total") == 7
    EXPOSED.remove(pair[1])
    assert REGISTRY.get_sample_value("roastcoffea_events_total") is None


SCRIPT = """
import json, sys, time
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client
from roastcoffea import MetricsCollector
from processors import Dijet

NanoAODSchema.warn_missing_crossrefs = False
with Client(scheduler_file=sys.argv[1]) as client, MetricsCollector(client) as collector:
    runner = Runner(DaskExecutor(client=client, status=False), chunksize=500, schema=NanoAODSchema)
    runner(json.load(open(sys.argv[2])), processor_instance=Dijet())
    print("ready", flush=True)
    sys.stdin.readline()
run = collector.measurement
known = {"chunks": len(run.chunks), "events": int(run.chunks.events.sum()), "bytes": int(run.byte_ledger.total)}
print(json.dumps(known | {"compute": run.time_ledger["compute"]}), flush=True)
"""
PROCESSORS = """
import awkward as ak
from coffea.processor import ProcessorABC

class Dijet(ProcessorABC):
    def process(self, events):
        return {"jets": int(ak.sum(ak.num(events.Jet.pt)))}

    def postprocess(self, accumulator):
        return accumulator
"""


class Prometheus:
    """Debian's Prometheus, scraping a scheduler every second."""

    def __init__(self, folder: Path, target: str) -> None:
        program = shutil.which("prometheus")
        if program is None or shutil.which("promtool") is None:
            pytest.skip("there is no prometheus, or no promtool, on this machine")
        config = {
            "scrape_configs": [{"job_name": "dask", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.port = free_port()
        options = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, *options, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
            )

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        try:
            result = self.query(expression)
        except OSError:
            return None
        return float(result[0]["value"][1]) if result else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def cluster(command_line_cluster: Callable[..., CommandLineCluster], tmp_path: Path) -> CommandLineCluster:
    (tmp_path / "processors.py").write_text(PROCESSORS)
    path = f"{Path(roastcoffea.__file__).parents[1]}:{tmp_path}"
    return command_line_cluster(path=path, threads=2)


@pytest.fixture
def prometheus(tmp_path: Path, cluster: CommandLineCluster) -> Iterator[Prometheus]:
    port = json.loads(cluster.file.read_text())["services"]["dashboard"]
    started = Prometheus(tmp_path, f"127.0.0.1:{port}")
    yield started
    started.close()


def metrics_of(cluster: CommandLineCluster) -> str:
    port = json.loads(cluster.file.read_text())["services"]["dashboard"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def expressions() -> list[str]:
    """Queries of the dashboard, with what Grafana puts in for its variables."""
    found: list[str] = []

    def look(part: Any) -> None:
        if isinstance(part, dict):
            found.extend([part["expr"]] if "expr" in part else [])
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            look(each)

    look(json.loads(DASHBOARD.read_text()))
    return [each.replace("$__rate_interval", "4s").replace("$scheduler", ".*") for each in found]


@pytest.mark.slow
def test_prometheus_scrapes_what_the_measurement_has_and_the_dashboard_shows_it(
    cluster: CommandLineCluster, prometheus: Prometheus, tmp_path: Path, sample: Any
) -> None:
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    (tmp_path / "script.py").write_text(SCRIPT)
    assert "roastcoffea" not in metrics_of(cluster)
    command = [sys.executable, "script.py", str(cluster.file), "sample.json"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=cluster.environment, **pipes) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        assert wait_until(lambda: prometheus.value("roastcoffea_events_total") == 16_000)
        text = metrics_of(cluster)
        ours = "".join(line for line in text.splitlines(keepends=True) if "roastcoffea" in line)
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        queries = [each for each in expressions() if "failed_attempts" not in each]  # nothing failed
        families = {family.name: family for family in text_string_to_metric_families(ours)}
        labels = {value for family in families.values() for each in family.samples for value in each.labels.values()}
        assert not [value for value in labels if ".root" in value or str(tmp_path) in value]
        assert wait_until(
            lambda: prometheus.value("sum(rate(roastcoffea_capacity_thread_seconds_total[4s]))") is not None
        )
        wait_until(lambda: all(map(prometheus.query, queries)), 60)
        empty = [each for each in queries if not prometheus.query(each)]
        scraped = {
            "events": prometheus.value("roastcoffea_events_total"),
            "chunks": prometheus.value('roastcoffea_chunks_total{outcome="ok"}'),
            "bytes": prometheus.value("sum(roastcoffea_requested_bytes_total)"),
            "compute": prometheus.value('roastcoffea_thread_seconds_total{class="compute"}'),
        }
        script.stdin.write("\n")
        script.stdin.flush()
        measured = json.loads(script.stdout.readline())
        assert script.wait(PATIENCE) == 0
        assert scraped == pytest.approx(measured)
        assert empty == []
    assert wait_until(lambda: "roastcoffea" not in metrics_of(cluster))
    time.sleep(1)
    assert "roastcoffea" not in metrics_of(cluster)
