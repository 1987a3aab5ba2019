"""GPUs of workers, as a stand-in for pynvml reports them to Dask: no machine of the tests has one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from scripts_run import PYTHON, run_in

PYNVML = """
from types import SimpleNamespace

class NVMLError(Exception): pass
NVMLError_LibraryNotFound = NVMLError_DriverNotLoaded = NVMLError_Unknown = NVMLError_NotSupported = NVMLError

def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=42)
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=3_000_000_000, total=8_000_000_000)
def nvmlDeviceGetName(handle): return "stand-in"
"""
SCRIPT = """
import json, time
from distributed import Client, LocalCluster
from roastcoffea import MetricsCollector

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        with MetricsCollector(client, everything=True, worker_tracking_interval=0.2) as collector:
            client.submit(time.sleep, 2).result()
    samples = collector.measurement.workers
    for name in ("gpu_utilization_timeline", "gpu_memory_timeline"):
        assert collector.plot(name)[1].has_data()
    found = samples.groupby("worker")[["gpu_percent", "gpu_memory"]].agg(["min", "max", "count", "size"])
    print(json.dumps(found.to_numpy().tolist()))
"""


@pytest.mark.slow
def test_load_and_memory_of_gpus_are_recorded_by_worker(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(PYNVML, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run_in(tmp_path, *PYTHON, "-c", SCRIPT, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    for load, memory in ((row[:4], row[4:]) for row in json.loads(done.stdout.splitlines()[-1])):
        assert (load[:2], memory[:2]) == ([42, 42], [3e9, 3e9])
        assert load[2:] == memory[2:]
        assert load[2] == load[3] > 2, "samples without a GPU"
