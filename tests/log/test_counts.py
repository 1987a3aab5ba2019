"""Arithmetic of what Dask counts."""

from __future__ import annotations

from roastcoffea.log.marks import added_up, difference, has_all, of_spans

CPU = ("execute", "span-1", "Jets", "thread-cpu", "seconds")
OTHER = ("execute", "span-2", "Jets", "thread-cpu", "seconds")
INNER = ("execute", "span-3", "Jets", "thread-cpu", "seconds")
NETWORK = ("get-data", "network", "seconds")


def test_what_was_counted_in_spans_has_no_identity_of_them() -> None:
    counted = {CPU: 1.0, OTHER: 2.0, INNER: 4.0, NETWORK: 8.0}
    assert of_spans(counted, {"span-1", "span-3"}) == {("execute", "Jets", "thread-cpu", "seconds"): 5.0, NETWORK: 8.0}
    assert of_spans(counted, ()) == {NETWORK: 8.0}


def test_sums_and_differences() -> None:
    assert added_up([{"a": 1, "b": 2}, {}, {"b": 3}]) == {"a": 1, "b": 5}
    assert difference({"a": 1, "b": 5, "c": 2}, {"a": 1, "b": 2}) == {"b": 3, "c": 2}


def test_counts_that_were_rounded_are_there() -> None:
    assert has_all({"a": 1.0 - 1e-9, "b": 7.0}, {"a": 1.0})
    assert not has_all({"a": 0.99}, {"a": 1.0})
    assert not has_all({}, {"a": 1.0})
    assert has_all({}, {})
