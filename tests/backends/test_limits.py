"""What processes may use of their host, and how they were throttled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from dask.system import CPU_COUNT
from distributed import Client
from distributed.system import MEMORY_LIMIT
from processes import PATIENCE

from roastcoffea import MetricsCollector
from roastcoffea.backends.hosts import hosts_of
from roastcoffea.backends.limits import ALL_GROUPS, limits, stolen, throttling


def test_limits_are_those_that_dask_knows() -> None:
    found = limits()
    assert (found["cores"], found["memory"], found["node_cores"]) == (CPU_COUNT, MEMORY_LIMIT, os.cpu_count())
    (host,) = hosts_of([found | {"host": "here"}])
    assert (host.cores, host.memory) == (CPU_COUNT, MEMORY_LIMIT)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or os.cpu_count() == 1, reason="needs processors to choose of")
def test_a_run_on_some_processors_has_so_many_cores(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from distributed import Client
from roastcoffea import MetricsCollector
if __name__ == "__main__":
    client = Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0")
    for where in (None, client):
        with MetricsCollector(where) as collector:
            pass
        (host,) = collector.measurement.run.environment.hosts
        print(host.cores, host.node_cores)
    client.close()
""")
    ran = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["1", str(os.cpu_count())] * 2


# Throttling

SECOND_VERSION = "usage_usec 5000000\nnr_periods 20\nnr_throttled 7\nthrottled_usec 1500000\n"
FIRST_VERSION = "nr_periods 20\nnr_throttled 3\nthrottled_time 250000000\n"
NO_QUOTAS = "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\n"


@pytest.mark.parametrize(
    ("of_process", "statistics", "expected"),
    [
        ("0::/a/b\n", {"a/b": SECOND_VERSION}, (1.5, 7)),
        ("0::/a/b\n", {"a/b": SECOND_VERSION, "a": SECOND_VERSION, "": NO_QUOTAS}, (3.0, 14)),
        ("0::/\n", {"": SECOND_VERSION}, (1.5, 7)),
        ("0::/docker/0123\n", {"": SECOND_VERSION}, (1.5, 7)),
        ("3:cpu,cpuacct:/a\n1:memory:/b\n", {"cpu,cpuacct/a": FIRST_VERSION, "memory/b": FIRST_VERSION}, (0.25, 3)),
        ("3:cpuacct,cpu:/a\n", {"cpu/a": FIRST_VERSION}, (0.25, 3)),
        ("1:cpu:/a\n0::/a\n", {"cpu/a": FIRST_VERSION, "unified/a": NO_QUOTAS}, (0.25, 3)),
        ("3:cpuset:/a\n", {"cpuset/a": FIRST_VERSION}, None),
        ("0::/a\n", {"a": NO_QUOTAS}, None),
        ("0::/a\n", {"a": "nr_throttled many\nthrottled_usec 1\n"}, None),
        ("0::/a\n", {}, None),
        ("", {}, None),
        ("no groups\n0::/a\n", {"a": SECOND_VERSION}, (1.5, 7)),
    ],
)
def test_throttling_is_that_of_all_groups_of_the_process(
    tmp_path: Path, of_process: str, statistics: dict[str, str], expected: tuple[float, int] | None
) -> None:
    groups = tmp_path / "groups"
    for path, text in statistics.items():
        folder = groups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(text)
    file = tmp_path / "cgroup"
    file.write_text(of_process)
    assert throttling(str(file), str(groups)) == (expected and pytest.approx(expected))


def test_workers_tell_of_their_throttling(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def throttled(dask_worker: Any) -> None:
        (half,) = (plugin for name, plugin in dask_worker.plugins.items() if name.startswith("roastcoffea"))
        earlier = zip(half.withheld_before, (2.0, 5, 3.0), strict=True)
        half.withheld_before = tuple(None if one is None else one - more for one, more in earlier)

    with MetricsCollector(client) as collector:
        client.run(throttled)
    lifetimes = collector.measurement.lifetimes
    if throttling() is None:
        assert lifetimes["throttled_seconds"].isna().all()
    else:
        assert (lifetimes["throttled_seconds"] >= 2).all()
        assert (lifetimes["throttled_periods"] >= 5).all()
    assert (lifetimes["steal_seconds"] >= 3).all() if stolen() is not None else lifetimes["steal_seconds"].isna().all()


def test_steal_is_that_of_all_processors(tmp_path: Path) -> None:
    """User, nice, system, idle, iowait, irq, softirq, steal: in hundredths of a second."""
    file = tmp_path / "stat"
    file.write_text("cpu  100 2 300 4000 5 6 7 250 0 0\ncpu0 100 2 300 4000 5 6 7 1 0 0\n")
    assert stolen(str(file)) == pytest.approx(250 / os.sysconf("SC_CLK_TCK"))
    file.write_text("cpu 1 2 3\n")
    assert stolen(str(file)) is None
    assert stolen(str(tmp_path / "none")) is None


@pytest.fixture
def group_with_quota() -> Iterator[Path]:
    """A control group that may use a tenth of one core."""
    folder = Path(ALL_GROUPS, "cpu", f"roastcoffea-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("10000")
    except OSError:
        pytest.skip("no control group of ours can be made here")
    yield folder
    folder.rmdir()


def test_a_process_whose_group_has_a_quota_is_throttled(group_with_quota: Path) -> None:
    code = f"""
import os
from pathlib import Path
Path({str(group_with_quota)!r}, "cgroup.procs").write_text(str(os.getpid()))
from roastcoffea.backends.limits import withheld, withheld_since
before = withheld()
while withheld_since(before)[1] < 3:
    pass
print(*withheld_since(before)[:2])
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=PATIENCE)
    seconds, periods = ran.stdout.split()
    assert float(seconds) > 0
    assert int(periods) >= 3


# Other processes


def of_the_host() -> float:
    """CPU time of this host, as psutil reads it."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def of_the_run() -> float:
    """CPU time of this process and those that it started."""
    own = psutil.Process()
    return float(sum(sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True))))


STRANGER = """
import subprocess, sys
nothing = subprocess.DEVNULL
spins = "import time\\nwhile time.process_time() < 60: pass"
print(subprocess.Popen([sys.executable, "-c", spins], start_new_session=True, stdout=nothing, stderr=nothing).pid)
"""


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process that spins, and is none of ours: its parent has gone."""
    ran = subprocess.run([sys.executable, "-c", STRANGER], check=True, capture_output=True, text=True)
    process = psutil.Process(int(ran.stdout))
    yield process
    process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's counts of CPU time")
def test_cores_of_other_processes_are_those_that_psutil_counts(client: Client, stranger: psutil.Process) -> None:
    """Also benchmarks/others.py, with several of them."""
    before = of_the_host() - of_the_run()
    with MetricsCollector(client) as collector:
        first = of_the_host() - of_the_run()
        used = stranger.cpu_times().user
        while stranger.cpu_times().user < used + 1.5:
            client.submit(sum, range(1_000_000), pure=False).result()
        last = of_the_host() - of_the_run()
    after = of_the_host() - of_the_run()
    metrics = collector.measurement.metrics
    seconds = metrics["elapsed_time_seconds"]
    # what others used between entering and leaving is more than within the block, and less than around it
    least, most = (last - first) / seconds, (after - before) / seconds
    assert min(0.9 * least, least - 0.1) <= metrics["cores_of_others"] <= max(1.1 * most, most + 0.1)
