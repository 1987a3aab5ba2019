import math

import numpy as np
import pytest
from handmade import (
    CALLS,
    CHUNKS,
    EXPECTED,
    LIFETIMES,
    OF_CENTRAL,
    OF_JOBS,
    T,
    call,
    chunk,
    empty_run,
    handmade_run,
    run_without_tables,
    with_chunks,
)

from roastcoffea.errors import MissingMetricError
from roastcoffea.metrics import CATALOGUE, evaluate
from roastcoffea.metrics.catalogue import RAW
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS

NAMES = [metric.name for metric in CATALOGUE.metrics()]
STRUCTURES = {metric.name for metric in CATALOGUE.metrics() if str(metric.unit) == "structure"}
NEED_MORE_CHUNKS = {"num_stragglers", "straggler_seconds", "cores_of_others", *OF_JOBS, *OF_CENTRAL}
"""Four chunks cannot tell which is slow, no worker is in a batch job, and neither scheduler nor client was sampled."""

NEEDS_NO_RECORDS = {"elapsed_time_seconds"}


def with_lifetimes(*rows, **changes):
    return handmade_run(lifetimes=table_of_rows(LIFETIME_COLUMNS, rows), **changes)


@pytest.fixture(scope="module")
def metrics():
    return evaluate(handmade_run())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STRUCTURES | NEED_MORE_CHUNKS])
def test_value_by_hand(metrics, name):
    expected = EXPECTED[name]
    assert metrics[name] == (expected if type(expected) is str else pytest.approx(expected, rel=1e-12))
    assert type(metrics[name]) in (int, float, str)


def test_nothing_is_missing_of_a_complete_run(metrics):
    computed = [name for name in NAMES if name not in NEED_MORE_CHUNKS]
    assert list(metrics) == computed
    assert len(metrics) == len(computed)
    assert set(metrics.missing) == NEED_MORE_CHUNKS
    assert set(metrics.unit) == set(NAMES)
    assert all(metrics.source[name] for name in computed)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_NO_RECORDS])
def test_what_was_not_measured_is_missing_with_its_reason(name):
    metrics = evaluate(run_without_tables())
    assert name not in metrics
    assert name not in list(metrics)
    assert len(metrics.missing[name]) > 10
    with pytest.raises(MissingMetricError, match="is missing") as caught:
        metrics[name]
    assert metrics.missing[name] in str(caught.value)


def test_reason_of_the_root_cause_is_passed_on():
    metrics = evaluate(handmade_run(lifetimes=None, absent={"lifetimes": "track_workers was off"}))
    dependent = {
        "avg_workers",
        "peak_workers",
        "total_cores",
        "cores_per_worker",
        "core_efficiency",
        "event_rate_core_khz",
        "worker_cpu_time_seconds",
        "tracking_data",
        "busy_percent",
        "imbalance",
        "bound",
        "verdict",
        "time_ledger",
        *(name for name in EXPECTED if name.startswith("time_")),
    }
    assert dict(metrics.missing) == dict.fromkeys(dependent, "track_workers was off") | dict(metrics.missing)
    assert set(metrics.missing) == dependent | NEED_MORE_CHUNKS


def test_where_nothing_happened_zero_is_zero_and_a_ratio_is_missing():
    metrics = evaluate(empty_run())
    zero = {
        "num_chunks",
        "total_events",
        "total_bytes_read",
        "total_cpu_time",
        "avg_workers",
        "peak_workers",
        "num_failed_chunks",
        "worker_cpu_time_seconds",
        "data_rate_gbps",
    }
    assert {name: metrics[name] for name in zero} == dict.fromkeys(zero, 0)
    assert metrics.missing["cores_per_worker"] == "total_cores and avg_workers are 0"
    assert metrics.missing["avg_cpu_time_per_chunk"] == "total_cpu_time and num_chunks are 0"
    assert metrics.missing["chunk_duration_mean"] == "no chunk has a result"
    assert metrics.missing["processor_cpu_time_seconds"] == "Dask's span contains no task from this run"
    assert metrics["per_dataset"] == {}
    assert metrics["tracking_data"]["worker_counts"] == {}


def test_a_run_of_no_duration():
    metrics = evaluate(handmade_run(stop=T))
    assert metrics["elapsed_time_seconds"] == 0
    assert "elapsed_time_seconds" in metrics.missing["data_rate_gbps"]
    assert "elapsed_time_seconds" in metrics.missing["avg_workers"]


def test_an_unknown_name_has_close_matches(metrics):
    with pytest.raises(KeyError, match="did you mean") as caught:
        metrics["data_rate_gbs"]
    assert "data_rate_gbps" in str(caught.value)
    assert not isinstance(caught.value, MissingMetricError)
    assert "data_rate_gbs" not in metrics


# -- events and bytes: which source wins

CUSTOM = {
    "a": {"entries": 7, "duration": 1.0, "performance_counters": {"num_requested_bytes": 70}},
    "b": {"entries": np.int64(8), "duration": 1.0, "performance_counters": {"num_requested_bytes": 80}},
}


def events_and_bytes(run):
    metrics = evaluate(run)
    return metrics["total_events"], metrics["total_bytes_read"], metrics.source["total_events"]


def test_runner_calls_add_up():
    assert events_and_bytes(handmade_run()) == (450, 4500, "coffea report (from the Runner call)")


def test_the_report_that_was_set_wins_over_the_calls():
    run = handmade_run(coffea_report={"entries": 900, "bytesread": np.int64(9000)})
    assert events_and_bytes(run) == (900, 9000, "coffea report (set_coffea_report)")


def test_custom_metrics_win_over_all():
    run = handmade_run(coffea_report={"entries": 9, "bytesread": 90}, custom_metrics=CUSTOM)
    assert events_and_bytes(run) == (15, 150, "custom_metrics (set_coffea_report)")


@pytest.mark.parametrize(
    "report",
    [
        {},
        3,
        None,
        "report",
        [1],
        {"entries": None},
        {"entries": "many"},
        {"entries": math.nan},
        {"entries": True},
        {"entries": -1},
        {"entries": math.inf},
    ],
)
@pytest.mark.parametrize("field", ["coffea_report", "custom_metrics"])
def test_an_odd_report_is_passed_over(field, report):
    given = {"dataset": report} if field == "custom_metrics" else report
    assert events_and_bytes(handmade_run(**{field: given})) == (
        450,
        4500,
        "coffea report (from the Runner call)",
    )


def test_a_call_without_report_makes_chunks_count():
    calls = (CALLS[0], call("c2", T, T + 1, None))
    assert events_and_bytes(handmade_run(calls=calls)) == (450, 4500, "chunk records")


def test_without_report_and_bytes_of_chunks_the_way_out_is_told():
    rows = [row | {"coffea_bytes_read": None, "bytes_requested": None} for row in CHUNKS]
    metrics = evaluate(with_chunks(*rows, calls=(call("c1", T, T + 1, None),)))
    assert "set savemetrics=True" in metrics.missing["total_bytes_read"]
    assert "set savemetrics=True" in metrics.missing["data_rate_gbps"]
    assert metrics["total_events"] == 450


@pytest.mark.parametrize(("ours", "total"), [(7, 21), (None, 4500)])
def test_bytes_of_chunks_are_by_our_count_where_it_is_there(ours, total):
    rows = [row | {"bytes_requested": ours} for row in CHUNKS]
    metrics = evaluate(with_chunks(*rows, calls=(call("c1", T, T + 1, None),)))
    assert (metrics["total_bytes_read"], metrics.source["total_bytes_read"]) == (total, "chunk records")


def test_bytes_of_checkpoints_were_not_read():
    hit = chunk("data", "k9", 9, "checkpoint", events=1000, coffea_bytes_read=10_000, cpu_seconds=0.0)
    report = {"entries": 1450, "bytesread": 14_500}
    metrics = evaluate(with_chunks(*CHUNKS, hit, calls=(call("c1", T, T + 1, report),), coffea_report=report))
    assert metrics["total_bytes_read"] == 4500
    assert metrics.source["total_bytes_read"] == "chunk records, without 1 chunks loaded from checkpoints"
    assert metrics["total_events"] == 1450
    assert metrics["num_chunks"] == 4
    assert metrics["total_events_from_chunks"] == 1450
    assert metrics["raw_chunk_metrics"][-1]["bytes_read"] == 0


# -- which attempts count


def test_the_same_task_in_two_calls_counts_twice():
    row = chunk("data", "k", 1, "ok", events=10, cpu_seconds=1.0)
    metrics = evaluate(with_chunks(row, row | {"call": "c2", "run_id": 2}, calls=()))
    assert (metrics["num_chunks"], metrics["total_events"]) == (2, 20)


def test_an_error_after_a_result_takes_nothing_away():
    rows = (chunk("data", "k", 1, "ok", events=10), chunk("data", "k", 2, "error"))
    assert evaluate(with_chunks(*rows))["num_chunks"] == 1


def test_unknown_cpu_makes_the_sum_missing():
    metrics = evaluate(with_chunks(*CHUNKS, chunk("mc", "k8", 8, "error")))
    reason = "unknown for 1 of 7 chunk attempts"
    for name in ("total_cpu_time", "avg_cpu_time_per_chunk", "core_efficiency", "speedup_factor"):
        assert metrics.missing[name] == reason
    assert metrics["per_dataset"]["mc"]["cpu_seconds"] is None
    assert metrics["per_dataset"]["data"]["cpu_seconds"] == 9.5


# -- workers


def test_lifetimes_are_cut_to_the_run():
    metrics = evaluate(
        with_lifetimes(
            {"worker": "A", "threads": 3, "start": T - 50, "stop": T + 150},
            {"worker": "B", "threads": 3, "start": T - 50, "stop": T - 10},
        )
    )
    assert (metrics["avg_workers"], metrics["peak_workers"], metrics["total_cores"]) == (1.0, 1, 3.0)


def test_unknown_worker_cpu_is_counted_in_the_reason():
    metrics = evaluate(with_lifetimes(LIFETIMES[0], LIFETIMES[1] | {"cpu_seconds": None}))
    assert metrics.missing["worker_cpu_time_seconds"] == "unknown for 1 of 2 workers"
    assert "total_cores" in metrics


def test_peak_memory_without_samples_and_without_chunks():
    assert evaluate(handmade_run(samples=None))["peak_memory_bytes"] == 210 * 2**20
    assert evaluate(handmade_run(chunks=None))["peak_memory_bytes"] == 500


# -- helper threads


def test_helper_threads_that_were_not_metered_are_told():
    metrics = evaluate(with_chunks(CHUNKS[0], CHUNKS[1] | {"helper_cpu_seconds": None}))
    assert metrics["total_cpu_time"] == 4.0
    assert metrics.source["total_cpu_time"] == "chunk records, without 1 attempts' helper threads"


# -- numbers that another program reported

REPORTED = {
    "total_cpu_time": 12.5,
    "processor_io_wait_time_seconds": 3.0,
    "a_name_of_theirs": [1.0, 2.0],
    "num_chunks": None,
    "tracking_data": None,
    "t0": 1.0,
    "t1": 2.0,
}


def test_reported_metrics_are_not_recomputed():
    metrics = evaluate(handmade_run(reported=REPORTED, reported_by="roastcoffea 0.1.2"))
    raw = [metric.name for metric in CATALOGUE.metrics() if metric.group == RAW]
    assert list(metrics) == [
        "total_cpu_time",
        "processor_noncpu_time_seconds",
        *raw,
        "a_name_of_theirs",
    ]
    assert metrics["total_cpu_time"] == 12.5
    assert metrics["processor_noncpu_time_seconds"] == metrics["processor_io_wait_time_seconds"] == 3.0
    assert metrics.source["processor_io_wait_time_seconds"] == "reported by roastcoffea 0.1.2"
    assert metrics["a_name_of_theirs"] == [1.0, 2.0]
    assert metrics.source["a_name_of_theirs"] == "reported by roastcoffea 0.1.2"
    assert metrics.missing["num_chunks"] == "not reported by roastcoffea 0.1.2"
    assert len(metrics["raw_chunk_metrics"]) == 3
    assert metrics.source["raw_chunk_metrics"] == "chunk records"


def test_reported_run_without_records():
    run = run_without_tables(reported=REPORTED, reported_by="roastcoffea 0.1.2", absent={"chunks": "it kept none"})
    metrics = evaluate(run)
    assert metrics.missing["raw_chunk_metrics"] == "it kept none"
    assert set(metrics.missing) | set(metrics) == {*NAMES, "a_name_of_theirs"}


def test_a_reported_present_name_wins_over_the_older_one():
    for reported in (
        {"wall_time": 1, "elapsed_time_seconds": 2},
        {"elapsed_time_seconds": 2, "wall_time": 1},
    ):
        assert evaluate(handmade_run(reported=reported, reported_by="it"))["wall_time"] == 2
