"""Runs whose scheduler is stopped for a while: it answers late, and nothing that can be had is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import analyses
import pytest
from analyses import Logging, runner_for
from coffea.processor import IterativeExecutor
from conftest import left_on_tasks, what_stays
from distributed import Client
from processes import CommandLineCluster, wait_until

from roastcoffea.collector import MetricsCollector
from roastcoffea.instrument.calls import active

STOPPED: Final = 15.0
"""Seconds, longer than any of our questions waits for its answer."""

CHUNKS: Final = 16


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLineCluster]:
    started = CommandLineCluster(tmp_path_factory.mktemp("cluster"), path=str(Path(analyses.__file__).parent))
    yield started
    started.close()


@pytest.fixture(scope="module")
def its_client(cluster: Any) -> Iterator[Client]:
    with Client(scheduler_file=str(cluster.file)) as client:
        client.wait_for_workers(2)
        yield client


@contextmanager
def going_on_later(cluster: Any) -> Iterator[Callable[[], None]]:
    """What stops the scheduler, which goes on after a while."""
    scheduler = cluster.processes[0]
    timers = []

    def stop() -> None:
        scheduler.send_signal(signal.SIGSTOP)
        timers.append(threading.Timer(STOPPED, scheduler.send_signal, [signal.SIGCONT]))
        timers[-1].start()

    yield stop
    for timer in timers:
        timer.join()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_every_chunk_is_kept(cluster: Any, its_client: Client, sample: Any, tmp_path: Path, when: str) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    here = runner_for(None, 1000, lambda **_: IterativeExecutor(status=False))
    expected, _ = here(sample, processor_instance=Logging(0, str(folders[0])))

    with going_on_later(cluster) as stop:
        if when == "entering":
            stop()
        with MetricsCollector(its_client, journal=tmp_path / "journal") as collector:
            fetch = active[-1].fetch_records
            if when == "leaving":  # between the output and the last records
                active[-1].fetch_records = lambda: (stop(), fetch())
            output, _ = runner_for(its_client, 1000)(sample, processor_instance=Logging(0.2, str(folders[1])))
    assert wait_until(lambda: what_stays(its_client) == [])
    assert output == expected
    run = collector.measurement.run
    assert len(collector.chunk_metrics) == CHUNKS
    assert len(collector.measurement.chunks) == CHUNKS
    assert collector.measurement.tasks["key"].notna().sum() >= CHUNKS
    assert its_client.run_on_scheduler(left_on_tasks) == []
    assert any("did not answer" in problem for problem in run.problems)
