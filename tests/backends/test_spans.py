"""The span of a run: in every thread, and apart from spans of others."""

from __future__ import annotations

import time
from typing import Any

import dask
import pytest
from analyses import Jets, runner_for
from distributed import Client

from roastcoffea.backends.recorder import RunSpan
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.marks import ANNOTATION


def test_a_span_of_before_that_takes_our_tasks_is_told_apart(client: Any) -> None:
    counted = ("execute", "count_one", "counted", "count")
    alive = client.map(count_one, range(7), pure=False)
    client.gather(alive)
    with MetricsCollector(client) as collector:
        client.gather(client.map(count_one, range(5), pure=False))
    assert collector.measurement.problems == []
    assert collector.span_metrics[counted] == 5
    del alive


def count_one(number: int) -> int:
    from distributed.metrics import context_meter

    context_meter.digest_metric("counted", 1, "count")
    return number


@pytest.mark.slow
def test_tasks_of_others_in_the_span_are_noticed(client: Any, sample: Any) -> None:

    runner = runner_for(client, 1000)
    with Client(client.scheduler.address) as other, MetricsCollector(client) as collector:
        lasting = client.submit(pause, 0.5, pure=False)
        with dask.annotate(span=None, roastcoffea=None):
            foreign = other.submit(pause, 0.1, pure=False)
            foreign.result()
        lasting.result()
        runner(sample, processor_instance=Jets())
    missing = collector.measurement.metrics.missing["processor_cpu_time_seconds"]
    assert "1 other task" in missing


def pause(seconds: float) -> None:

    time.sleep(seconds)


def test_a_runner_in_a_thread_without_context_is_seen(client: Any, sample: Any) -> None:
    import threading

    with MetricsCollector(client) as collector:
        runner = runner_for(client, 4000)
        thread = threading.Thread(target=runner, args=(sample, Jets()))
        thread.start()
        thread.join()
    assert len(collector.measurement.chunks) == 4
    assert collector.span_metrics["execute", "Jets", "memory-read", "count"] == 4


def annotations_in_a_thread(span: RunSpan) -> dict[str, Any]:
    """Annotations of what is submitted in a thread that has inherited none."""
    import threading

    found: dict[str, Any] = {}

    def look() -> None:
        with span.ensured():
            found.update(dask.get_annotations())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def test_a_span_is_opened_again_where_it_is_not_inherited() -> None:
    span = RunSpan("run", "topic")
    assert span.id is None
    with span as identity:
        inside = dask.get_annotations()
        assert inside["span"] == {"name": ("run",), "ids": (identity,)}
        assert inside[ANNOTATION] == {"collectors": ("topic",), "step": None, "prefix": None}
        with span.ensured():
            assert dask.get_annotations() == inside
        assert annotations_in_a_thread(span) == {"span": inside["span"]}
        with RunSpan("inner", "other") as inner:
            nested = dask.get_annotations()
            assert nested["span"]["ids"] == (identity, inner)
            assert nested[ANNOTATION]["collectors"] == ("topic", "other")
    assert dask.get_annotations() == {}


def test_a_span_of_the_user_s_in_the_thread_is_kept_inside() -> None:
    with RunSpan("run") as identity:
        ours = dask.get_annotations()["span"]
    span = RunSpan("again")
    with span as again, dask.annotate(span=ours), span.ensured():
        assert dask.get_annotations()["span"] == {"name": ("again", "run"), "ids": (again, identity)}
