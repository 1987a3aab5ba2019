"""A backend of the user's own: the five documented methods and nothing else."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from test_documentation import DOCS, RUN_HERE

from roastcoffea import Measurement, MetricsCollector, load
from roastcoffea.backends.base import AbstractMetricsBackend

HERE = f"{socket.gethostname()}/{os.getpid()}"
METRICS = {("execute", "Jets", "thread-cpu", "seconds"): 1.5, ("execute", "Jets", "disk-read", "bytes"): 3.0}


class Pool(AbstractMetricsBackend):
    """Samples what the test gives, and keeps what it was asked for; it calls no `__init__` but its own."""

    def __init__(self, tracked: Any = None) -> None:
        self.tracked = tracked
        self.asked: list[Any] = []

    def start_tracking(self, interval: float = 1.0) -> None:
        self.asked.append(("start", interval))
        self.began = time.time()

    def stop_tracking(self) -> dict[str, Any]:
        self.asked.append("stop")
        tracked: dict[str, Any] = self.tracked(self.began, time.time()) if callable(self.tracked) else self.tracked
        return tracked

    def create_span(self, name: str) -> dict[str, Any]:
        return {"context": self.span(), "name": name}

    @contextmanager
    def span(self) -> Iterator[str]:
        self.asked.append("enter")
        yield "span-7"
        self.asked.append("exit")

    def get_span_metrics(self, span_info: Mapping[str, Any], delay: float = 0.5) -> dict[tuple[Any, ...], float]:
        self.asked.append(("metrics", span_info["id"], span_info["name"]))
        return METRICS

    def supports_fine_metrics(self) -> bool:
        return True


def two_workers(began: float, ended: float) -> dict[str, Any]:
    """One worker that stays, as Unix seconds, and one that leaves half way, as moments with a zone."""
    half = (began + ended) / 2
    early = [datetime.fromtimestamp(moment, timezone.utc) for moment in (began, half)]
    return {
        "worker_counts": {began: 2, ended: 1},
        "worker_cores": {HERE: [(began, 4), (ended, 4)], "b": [(moment, 2) for moment in early]},
        "worker_memory": {HERE: [(ended, 2e9), (began, 1e9)], "b": [(early[0], 500), (early[1], None)]},
        "worker_active_tasks": {HERE: [(began, 0), (half, 3), (ended, 1)]},
        "worker_last_seen": {"b": [(early[0], early[0])]},
        "worker_cpu": {HERE: [(began, 150.5)]},
    }


def measured(backend: AbstractMetricsBackend, sample: Any = None, **options: Any) -> Measurement:
    with MetricsCollector(backend=backend, **options) as collector:
        if sample is not None:
            executor = IterativeExecutor(status=False)
            Runner(executor, chunksize=4000, schema=NanoAODSchema)(sample, processor_instance=Jets())
    return collector.measurement


def test_five_methods_are_enough(sample: Any, tmp_path: Any) -> None:
    backend = Pool(two_workers)
    measurement = measured(backend, sample, worker_tracking_interval=0.01)
    assert backend.asked == [("start", 0.01), "enter", "exit", "stop", ("metrics", "span-7", "roastcoffea")]
    assert measurement.problems == []
    assert measurement.run.backend == "Pool"
    assert measurement.metrics["num_chunks"] == 4
    assert measurement.fine_metrics == METRICS
    run, lifetimes = measurement.run, measurement.lifetimes.set_index("worker")
    assert lifetimes["threads"].to_dict() == {HERE: 4, "b": 2}
    assert lifetimes.loc[HERE, ["host", "process", "start", "stop"]].tolist() == [
        socket.gethostname(),
        os.getpid(),
        run.start,
        run.stop,
    ]
    half = (run.start + run.stop) / 2
    assert lifetimes.loc["b", "stop"] == pytest.approx(half, abs=0.1)
    assert measurement.metrics["peak_memory_bytes"] >= 2_000_000_000
    workers = measurement.workers.set_index("worker")
    assert workers.loc[HERE, "processing"].dropna().tolist() == [0, 3, 1]
    assert workers.loc["b", "memory"] == 500
    assert workers.loc["b", "last_seen"] == workers.loc["b", "time"]
    again = load(measurement.save(tmp_path))
    assert again.lifetimes.equals(measurement.lifetimes)
    assert again.fine_metrics == METRICS


class Two(AbstractMetricsBackend):
    """The two methods without which there is no backend."""

    def start_tracking(self, interval: float = 1.0) -> None:
        self.began = time.time()

    def stop_tracking(self) -> dict[str, Any]:
        return {"worker_cores": {"one": [(self.began, 1)]}}


def test_what_is_not_counted_is_absent_with_the_reason() -> None:
    measurement = measured(Two())
    assert measurement.problems == []
    assert measurement.run.absent["span_metrics"] == "Two has no fine metrics"
    assert "Two has no fine metrics" in measurement.metrics.missing["processor_cpu_time_seconds"]
    with pytest.raises(TypeError, match="abstract"):
        AbstractMetricsBackend()  # type: ignore[abstract]


def test_workers_are_not_tracked_where_that_is_not_wanted() -> None:
    backend = Pool(two_workers)
    measurement = measured(backend, track_workers=False)
    assert backend.asked == ["enter", "exit", ("metrics", "span-7", "roastcoffea")]
    assert measurement.lifetimes.attrs["absent"] == measurement.workers.attrs["absent"] == "track_workers=False"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["start_tracking", "stop_tracking", "create_span", "get_span_metrics"])
def test_what_fails_in_a_backend_fails_no_analysis(sample: Any, method: str) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("no pool")

    backend = Pool(two_workers)
    setattr(backend, method, broken)
    measurement = measured(backend, sample)
    (problem,) = measurement.problems
    assert "ZeroDivisionError: no pool" in problem
    assert "Pool" in problem
    assert measurement.outcome == "finished"
    assert measurement.metrics["num_chunks"] == 4
    lost = "lifetimes" if "tracking" in method else "span_metrics"
    assert measurement.run.absent[lost] == problem


@pytest.mark.parametrize(
    ("tracked", "problem"),
    [
        (None, "stop_tracking() failed: TypeError: it returned NoneType, not a mapping of series"),
        ({"worker_memory": {"a": [("noon", 1)]}}, "worker_memory from Pool could not be read"),
        ({"worker_memory": {"a": [(1.0, "much")]}}, "a value is str, not a number"),
        ({"memory": {}}, "'memory'; known series: worker_counts, worker_memory,"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_name(tracked: Any, problem: str) -> None:
    measurement = measured(Pool(tracked))
    assert problem in measurement.problems[0]
    assert len(measurement.lifetimes) == 0
    assert measurement.lifetimes.attrs["absent"]


def test_one_series_that_cannot_be_read_takes_no_other_with_it() -> None:
    def tracked(began: float, ended: float) -> dict[str, Any]:
        return {**two_workers(began, ended), "worker_nbytes": {HERE: [(began, "much")]}}

    measurement = measured(Pool(tracked))
    assert len(measurement.problems) == 1
    assert measurement.workers["nbytes"].isna().all()
    assert sorted(measurement.workers["memory"].dropna()) == [500, 1e9, 2e9]


@pytest.mark.parametrize("metrics", [None, {"thread-cpu": 1.0}, {(): 1.0}, {("execute", "x", "s"): "1"}])
def test_fine_metrics_that_are_none_are_refused(metrics: Any) -> None:
    backend = Pool(two_workers)
    backend.get_span_metrics = lambda span_info, delay=0.5: metrics  # type: ignore[method-assign]
    measurement = measured(backend)
    assert "get_span_metrics() failed: TypeError: it returned" in measurement.problems[0]
    assert measurement.fine_metrics == {}


@pytest.mark.slow
def test_the_example_of_the_guide_measures_its_pool(sample: Any) -> None:
    (code, *_) = RUN_HERE[DOCS / "extending.md"]
    names: dict[str, Any] = {"fileset": sample, "processor": Jets()}
    before, began = time.process_time(), time.time()
    exec(compile(code.text, "the guide", "exec"), names)
    spent, ended = time.process_time() - before, time.time()
    measurement = names["collector"].measurement
    assert measurement.problems == []
    assert measurement.metrics["num_chunks"] == 16
    (row,) = measurement.lifetimes.to_dict("records")
    assert (row["worker"], row["threads"]) == (HERE, 2)
    assert set(measurement.chunks["worker"]) == {HERE}
    assert measurement.metrics["total_cores"] == 2
    (seconds,) = measurement.fine_metrics.values()
    assert 0 < measurement.chunks["cpu_seconds"].sum() <= seconds <= spent
    samples = measurement.workers
    assert samples["time"].between(began, ended).all()
    assert samples["memory"].between(10e6, 10e9).all()
    assert measurement.sampling["workers"].tolist() == [1] * len(samples)
    assert abs(measurement.time_ledger.residual) <= 0.05 * measurement.time_ledger.total
