"""Workers of Parsl's HighThroughputExecutor: from its log, and of a real one against the operating system."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from analyses import KernelCounted
from coffea.nanoevents import NanoAODSchema
from coffea.processor import ParslExecutor, Runner
from processes import wait_until

from roastcoffea import MetricsCollector
from roastcoffea.backends.parsl import MANAGER, RANK, ParslManagers

LOGS = Path(__file__).parent.parent / "data" / "parsl"
FIRST, SECOND, THIRD = "909650ec1b9f", "aa8bbadaf908", "0993ba4f9bbe"
START, STOP = 1795528668.0, 1795528690.0
TOLERANCE = 0.05


def managers(folder: Path = LOGS) -> tuple[ParslManagers, list[str]]:
    """Managers of an executor with logs in this folder, and the problems with them."""
    problems: list[str] = []
    pool = SimpleNamespace(
        label="htex", logdir=str(folder), heartbeat_threshold=120, connected_managers=lambda: pytest.fail("not asked")
    )
    found = ParslManagers(problems.append)
    executor = ParslExecutor(config=SimpleNamespace(executors=[pool]))
    for _ in range(2):
        assert found.size(executor) is None
    return found, problems


def chunks_of(times: dict[str, list[tuple[float, float]]]) -> Any:
    return lambda worker: [np.array(moments) for moments in zip(*times[worker], strict=True)]


def test_workers_on_other_hosts_replaced_ones_and_those_without_a_chunk() -> None:
    found, problems = managers()
    facts = {
        "node-1/10": {MANAGER: FIRST, RANK: "0"},
        "node-2/20": {MANAGER: THIRD, RANK: "1"},
        "node-2/21": {MANAGER: THIRD, RANK: "1"},
    }
    busy = {
        "node-1/10": [(START + 1, START + 5)],
        "node-2/21": [(START + 7, START + 9)],
        "node-2/20": [(START + 3, START + 4), (START + 4, START + 6)],
    }
    known = {"start": START + 0.5, "stop": START + 5.5, "cpu_seconds": 3.0}
    rows: list[dict[str, Any]] = [
        {"worker": worker, "host": worker[:6], "threads": 1} | (known if worker == "node-1/10" else {})
        for worker in busy
    ]
    rows[1] |= {"job": "17", "batch_system": "slurm", "job_start": START - 60}
    found.complete(rows, facts, chunks_of(busy), START, STOP)
    lives = {row["worker"]: (row["start"], row["stop"]) for row in rows}
    (first, second, third) = ((1795528665.806661, 1795528675.464409), (1795528669.885607, 1795528677.543295), 0)
    third = (1795528670.258334, 1795528677.54371)
    assert lives == {
        "node-1/10": (START + 0.5, START + 5.5),  # as the operating system reports it
        "node-2/20": (third[0], START + 7),
        "node-2/21": (START + 7, third[1]),
        f"node-1/{FIRST}-1": (START, first[1]),
        f"node-1/{SECOND}-0": second,
        f"node-1/{SECOND}-1": second,
        f"node-2/{THIRD}-0": third,
    }
    assert sum(row["threads"] for row in rows) == len(rows)
    jobs = {row["worker"]: row.get("job") for row in rows}
    assert jobs[f"node-2/{THIRD}-0"] == "17"
    assert jobs[f"node-1/{SECOND}-0"] is None
    assert {row["name"].split(",")[0] for row in rows} == {"block 0", "block 1", "block 2"}
    assert found.known
    assert found.has(facts["node-1/10"])
    assert not found.has({})
    assert problems == []


def test_managers_outside_of_the_run_have_no_workers_in_it() -> None:
    found, _ = managers()
    worker = {"worker": "node-1/10", "host": "node-1", "threads": 1}
    rows = [dict(worker)]
    facts = {"node-1/10": {MANAGER: FIRST, RANK: "0"}}
    found.complete(rows, facts, chunks_of({"node-1/10": [(START, START + 1)]}), START - 1.0, START + 1.0)
    assert [row["worker"] for row in rows] == ["node-1/10", f"node-1/{FIRST}-1"]


def test_without_reports_of_workers_nothing_is_added() -> None:
    found, _ = managers()
    rows = [{"worker": "node-1/10", "host": "node-1", "threads": 1}]
    found.complete(rows, {}, chunks_of({}), START, STOP)
    assert len(rows) == 1


def test_logs_that_cannot_be_used(tmp_path: Path) -> None:
    gone, problems = managers(tmp_path / "gone")
    assert not gone.known
    assert "No such file or directory" in problems[0]
    (tmp_path / "interchange.log").write_text("in a format of the user's own\n")
    empty, problems = managers(tmp_path)
    assert not empty.known
    assert problems == [f"Parsl's managers are unknown, because {tmp_path / 'interchange.log'} lists none"]


# a real one


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A HighThroughputExecutor on this host: blocks of one manager with two workers."""
    parsl = pytest.importorskip("parsl")
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    executor = HighThroughputExecutor(
        address="127.0.0.1",
        max_workers_per_node=2,
        cores_per_worker=0.5,
        provider=LocalProvider(init_blocks=1, max_blocks=2),
        encrypted=False,
    )
    config = Config(
        executors=[executor], run_dir=str(tmp_path), usage_tracking=0, initialize_logging=False, strategy="none"
    )
    with parsl.load(config):
        yield executor
    parsl.clear()


def workers_of(pool: Any) -> dict[int, tuple[float, float]]:
    """Processes of the workers that Parsl's own logs have: when the kernel made them, and when they were ready."""
    found = {}
    for log in Path(pool.worker_logdir).glob("block-*/*/worker_*.log"):
        line = re.match(r"(\d+\.\d+) \S+ \S+ \S+-(\d+) ", log.read_text())
        if line is not None:
            process = int(line[2])
            ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
            boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
            found[process] = (boot + ticks / os.sysconf("SC_CLK_TCK"), float(line[1]))
    return found


@pytest.mark.slow
def test_blocks_idle_workers_and_efficiency_are_those_of_the_operating_system(
    pool: Any, sample: dict[str, Any]
) -> None:
    """Two workers compute; a block that comes later has nothing to do."""
    assert wait_until(lambda: len(workers_of(pool)) == 2)
    runner = Runner(
        ParslExecutor(status=False, compression=None), schema=NanoAODSchema, chunksize=4000, savemetrics=True
    )
    files = {name: {"files": dict([next(iter(what["files"].items()))])} for name, what in sample.items()}
    later = threading.Timer(1.5, pool.scale_out_facade, [1])
    with MetricsCollector() as collector:
        later.start()
        output, report = runner(files, processor_instance=KernelCounted(6.0))
        later.join()
        assert wait_until(lambda: len(workers_of(pool)) == 4)
        time.sleep(2.0)
    truth = workers_of(pool)
    measurement, run = collector.measurement, collector.measurement.run

    lifetimes = measurement.lifetimes
    assert report["chunks"] == len(measurement.chunks) == 2
    assert lifetimes["name"].str.split(",").str[0].value_counts().to_dict() == {"block 0": 2, "block 1": 2}
    assert set(lifetimes["threads"]) == {1}
    assert set(lifetimes["stop"]) == {run.stop}
    capacity = sum(run.stop - max(born, run.start) for born, _ in truth.values())
    # a manager is registered after its workers were born; they need a moment to be ready
    moment = sum(ready - born for born, ready in truth.values() if born > run.start)
    found = (lifetimes["stop"] - lifetimes["start"]).sum()
    print("capacity", found, capacity, "to be ready", moment)
    assert found == pytest.approx(capacity, abs=TOLERANCE * capacity + moment)
    ledger = measurement.time_ledger
    assert ledger.total == pytest.approx(found)
    assert abs(ledger.residual or 0.0) < 0.01 * found
    efficiency = measurement.metrics["core_efficiency"]
    print("efficiency", efficiency, output["kernel"] / capacity)
    assert efficiency == pytest.approx(output["kernel"] / found, rel=0.25)
    assert ledger.certificate.complete, ledger.certificate.reasons
    assert measurement.problems == []
