"""Dask's own metrics come back from their tables by the tuples that Dask has."""

import math

import pytest

from roastcoffea.storage.tables import span_table, spans_by_worker, spans_of, worker_span_table

METRICS = {
    ("execute", "Dijets", "thread-cpu", "seconds"): 1.5,
    ("execute", "N/A", "idle or other spans", "seconds"): math.inf,
    ("get-data", "disk-read", "bytes"): 2000,
    ("context", "unit"): 0,
    ("alone",): -1,
}


def test_metrics_come_back_by_their_tuples() -> None:
    assert spans_of(span_table(METRICS)) == METRICS
    assert spans_of(span_table({})) == {}


def test_what_is_of_no_task_has_no_prefix() -> None:
    row = span_table({("get-data", "disk-read", "bytes"): 2000}).to_pylist()
    assert row == [{"context": "get-data", "prefix": None, "activity": "disk-read", "unit": "bytes", "amount": 2000.0}]


def test_a_name_of_several_parts_is_one_activity() -> None:
    (key,) = spans_of(span_table({("execute", "Dijets", "my", "step", 3, "seconds"): 1.0}))
    assert key == ("execute", "Dijets", "my/step/3", "seconds")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="empty key"):
        span_table({(): 1.0})


def test_workers_come_back_with_what_each_counted() -> None:
    by_worker = {"tcp://1": METRICS, "tcp://2": {}, "tcp://3": {("alone",): 2.0}}
    assert spans_by_worker(worker_span_table(by_worker)) == by_worker
    assert spans_by_worker(worker_span_table({})) == {}
