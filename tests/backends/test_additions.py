"""What it takes to add to the package: copies of it with one more worker metric, and one more executor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import roastcoffea

PACKAGE = Path(roastcoffea.__file__).parent

METRIC = {
    "records/workers.py": {
        "SAMPLE_COLUMNS: Final = (\n": '    Column("page_faults", "integer", "B", "of its process"),\n',
    },
    "log/kinds.py": {
        '        *of("f", "network_read"': '        *of("q", "page_faults"),\n',
        '            network.get("read_bps", nan),\n': '            get("page_faults", NO_SIZE),\n',
    },
}
"""Lines of each file of the package, and what is put before or after them."""


def copy_with(folder: Path, additions: dict[str, dict[str, str]]) -> None:
    copy = shutil.copytree(PACKAGE, folder / "roastcoffea")
    for name, lines in additions.items():
        text = (copy / name).read_text() if (copy / name).exists() else ""
        for line, added in lines.items():
            assert text.count(line) == 1 or not text
            text = text.replace(line, f"{line}{added}" if line.endswith("= (\n") else f"{added}{line}") or added
        (copy / name).write_text(text)


def printed(folder: Path, program: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)


def test_a_worker_metric_takes_two_files(tmp_path: Path) -> None:
    copy_with(tmp_path, METRIC)
    assert len(METRIC) <= 2
    program = """
from types import SimpleNamespace
from roastcoffea.log.kinds import LogWriter, Samples
from roastcoffea.log.workers import ClusterLog
log, read = LogWriter(), ClusterLog()
known = dict(last_seen=2.0, processing=(), executing=(), nbytes=0, occupancy=0.0)
workers = {name: SimpleNamespace(metrics={"time": 1.0, **more}, **known)
           for name, more in (("a", {"page_faults": 7}), ("b", {}))}
samples = Samples("name", log)
for address, state in workers.items():
    samples.take(address, state, 2.5)
read.feed(log.drain(10**6, 0)["data"])
print(read.workers.samples(0.0)["page_faults"].to_pylist(), read.problems)
"""
    assert printed(tmp_path, program) == "[7, None] []\n"


EXECUTOR = {
    "backends/base.py": {'    "ParslExecutor"': '    "RayExecutor": "roastcoffea.backends.ray:RayLog",\n'},
    "backends/ray.py": {
        "": """
from roastcoffea.backends.base import ExecutorLog

class RayLog(ExecutorLog):
    label = "Ray"
    environment = (("ray_worker", "RAY_WORKER", "(.+)"),)

    def has(self, facts):
        return "ray_worker" in facts

    def complete(self, rows, facts, busy, start, stop):
        for row in rows:
            row["name"] = "ray " + facts[row["worker"]]["ray_worker"]
        rows.append({"worker": "idle", "threads": 1, "start": start, "stop": stop})
"""
    },
}


def test_an_executor_takes_two_files(tmp_path: Path, sample: dict[str, Any]) -> None:
    copy_with(tmp_path, EXECUTOR)
    assert len(EXECUTOR) <= 2
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
os.environ["RAY_WORKER"] = "17"
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from analyses import Jets
from roastcoffea import MetricsCollector

class RayExecutor(IterativeExecutor):
    pass

with MetricsCollector() as collector:
    Runner(RayExecutor(status=False), schema=NanoAODSchema)({sample!r}, Jets())
lifetimes = collector.measurement.lifetimes
print(sorted(lifetimes["name"].dropna()), set(lifetimes["worker"]) > {{"idle"}})
"""
    assert printed(tmp_path, program).splitlines()[-1] == "['ray 17'] True"
