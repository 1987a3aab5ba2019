"""What Dask counted in tasks, of all workers and of each; `test_workflow.py` has the values of single metrics."""

from __future__ import annotations

from handmade import SPAN, handmade_run

from roastcoffea.metrics import CATALOGUE, evaluate
from roastcoffea.metrics.catalogue import FINE


def test_without_a_processor_task_the_prefixes_are_unknown() -> None:
    metrics = evaluate(handmade_run(tasks=None, absent={"tasks": "the scheduler plugin did not start"}))
    assert metrics.missing["overhead_cpu_time_seconds"] == "the scheduler plugin did not start"
    assert metrics["disk_write_bytes"] == 64


def test_a_span_without_the_processor() -> None:
    others = {key: value for key, value in SPAN.items() if key[1] != "Dijet"}
    metrics = evaluate(handmade_run(span_metrics=others))
    assert metrics.missing["processor_cpu_percentage"] == "Dask's span has no task with prefix Dijet"
    assert metrics["overhead_cpu_time_seconds"] == 0.75


def test_what_was_not_counted_is_absent_and_a_counted_zero_is_zero() -> None:
    span = {
        ("execute", "Dijet", "thread-cpu", "seconds"): 0.0,
        ("execute", "Dijet", "thread-noncpu", "seconds"): 0.0,
        ("execute", "Dijet", "serialize", "seconds"): 0.0,
        ("execute", "Dijet", "disk-write", "count"): 1,
    }
    metrics = evaluate(handmade_run(span_metrics=span))
    counted = ("processor_cpu_time_seconds", "processor_noncpu_time_seconds", "serialization_time_seconds")
    assert [metrics[name] for name in counted] == [0, 0, 0]
    for name in ("deserialization_time_seconds", "total_serialization_overhead_seconds", "disk_write_bytes"):
        assert metrics.missing[name] == "Dask recorded no such activity in this run's tasks"
    assert metrics.missing["overhead_cpu_time_seconds"] == "Dask recorded no such activity in this run's other tasks"
    reason = "processor_cpu_time_seconds and processor_noncpu_time_seconds are 0"
    assert metrics.missing["processor_cpu_percentage"] == reason


def test_what_a_backend_of_ones_own_delivered_is_shown_and_nothing_else() -> None:
    counted = {("execute", "pool", "thread-cpu", "seconds"): 1.5}
    run = handmade_run(span_metrics=counted, span_metrics_per_worker=None, tasks=None, absent={"tasks": "no tasks"})
    metrics = evaluate(run)
    fine = [metric.name for metric in CATALOGUE.metrics() if metric.group == FINE and metric.name in metrics]
    assert {name: metrics[name] for name in fine} == {"tasks_cpu_time_seconds": 1.5}


def test_what_workers_passed_on_outside_of_tasks() -> None:
    workers = {
        "A": {
            ("get-data", "memory-read", "bytes"): 1000,
            ("get-data", "disk-read", "bytes"): 500,
            ("get-data", "serialize", "seconds"): 0.5,
            ("get-data", "compress", "seconds"): 0.125,
            ("get-data", "network", "seconds"): 7.0,
        },
        "B": {
            ("gather-dep", "network", "seconds"): 2.0,
            ("gather-dep", "deserialize", "seconds"): 0.25,
            ("get-data", "memory-read", "bytes"): 10,
            ("execute", "Dijet", "serialize", "seconds"): 64.0,
        },
    }
    metrics = evaluate(handmade_run(span_metrics_per_worker=workers))
    assert metrics["transfer_bytes_sent"] == 1510
    assert metrics["transfer_serialization_seconds"] == 0.75
    assert metrics["transfer_compression_seconds"] == 0.125
    assert metrics["transfer_network_seconds"] == 2.0
    # workers count all that they do: what they do not mention did not happen
    assert evaluate(handmade_run())["transfer_bytes_sent"] == 0


def test_fine_metrics_of_each_worker() -> None:
    workers = evaluate(handmade_run())["fine_metrics_per_worker"]
    assert {name: amount for name, amount in workers["A"].items() if amount} == {
        "processor_cpu_time_seconds": 8.0,
        "processor_noncpu_time_seconds": 1.0,
        "overhead_cpu_time_seconds": 0.75,
        "tasks_cpu_time_seconds": 8.75,
        "tasks_noncpu_time_seconds": 1.0,
        "transfer_seconds": 0.5,
    }
    assert {name: amount for name, amount in workers["B"].items() if amount} == {
        "processor_cpu_time_seconds": 4.0,
        "processor_noncpu_time_seconds": 3.0,
        "tasks_cpu_time_seconds": 4.0,
        "tasks_noncpu_time_seconds": 3.0,
        "disk_write_bytes": 64,
        "spill_seconds": 0.25,
    }
    assert "serialization_time_seconds" not in workers["A"]
    lost = handmade_run(span_metrics=None, span_metrics_per_worker=None, absent={"span_metrics": "the cluster died"})
    assert evaluate(lost).missing["fine_metrics_per_worker"] == "the cluster died"
