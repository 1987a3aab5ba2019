"""What Dask counted in tasks, of all workers and of each; `test_workflow.py` has the values of single metrics."""

from __future__ import annotations

from handmade import SPAN, handmade_run

from roastcoffea.metrics import evaluate


def test_without_a_processor_task_the_prefixes_are_unknown() -> None:
    metrics = evaluate(handmade_run(tasks=None, absent={"tasks": "the scheduler plugin did not start"}))
    assert metrics.missing["overhead_cpu_time_seconds"] == "the scheduler plugin did not start"
    assert metrics["disk_write_bytes"] == 64


def test_a_span_without_the_processor() -> None:
    others = {key: value for key, value in SPAN.items() if key[1] != "Dijet"}
    metrics = evaluate(handmade_run(span_metrics=others))
    assert metrics.missing["processor_cpu_percentage"] == "Dask's span holds no task of Dijet"
    assert metrics["overhead_cpu_time_seconds"] == 0.75


def test_percentage_of_nothing() -> None:
    nothing = {("execute", "Dijet", "failed", "seconds"): 3.0}
    metrics = evaluate(handmade_run(span_metrics=nothing))
    assert metrics["processor_cpu_time_seconds"] == 0
    reason = "processor_cpu_time_seconds and processor_noncpu_time_seconds are 0"
    assert metrics.missing["processor_cpu_percentage"] == reason


def test_fine_metrics_of_each_worker() -> None:
    workers = evaluate(handmade_run())["fine_metrics_per_worker"]
    assert {name: amount for name, amount in workers["A"].items() if amount} == {
        "processor_cpu_time_seconds": 8.0,
        "processor_noncpu_time_seconds": 1.0,
        "overhead_cpu_time_seconds": 0.75,
        "transfer_seconds": 0.5,
        "transfer_bytes": 2000,
    }
    assert {name: amount for name, amount in workers["B"].items() if amount} == {
        "processor_cpu_time_seconds": 4.0,
        "processor_noncpu_time_seconds": 3.0,
        "disk_write_bytes": 64,
        "spill_seconds": 0.25,
    }
    lost = handmade_run(span_metrics=None, span_metrics_per_worker=None, absent={"span_metrics": "the cluster died"})
    assert evaluate(lost).missing["fine_metrics_per_worker"] == "the cluster died"
