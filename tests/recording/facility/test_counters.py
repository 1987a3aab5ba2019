"""Totals of a scheduler."""

from __future__ import annotations

from roastcoffea.recording.facility.observer import MOST_ENDPOINTS, OTHERS, PAYLOAD, Counters


def test_requested_bytes_are_in_one_class_each_and_sum_to_the_total() -> None:
    counters = Counters()
    record = {"file": "root://xrootd-3.example.org//store/a.root", "bytes_requested": 100}
    counters.add_bytes(record | {"bytes_payload": 70, "bytes_metadata": 25}, failed=False, preprocessing=False)
    counters.add_bytes(record, failed=True, preprocessing=False)
    counters.add_bytes(record, failed=False, preprocessing=True)
    where = "xrootd-3.example.org"
    classes = {PAYLOAD: 70, "metadata": 25, "residual": 5, "failed": 100, "preprocessing": 100}
    assert counters.bytes == {(name, where): size for name, size in classes.items()}


def test_bytes_that_were_not_measured_are_not_counted() -> None:
    counters = Counters()
    counters.add_bytes({"file": "/store/a.root"}, failed=False, preprocessing=False)
    assert not counters.bytes


def test_endpoints_are_few_and_no_file_is_named() -> None:
    counters = Counters()
    for number in range(1000):
        record = {"file": f"root://host-{number}.example.org//store/{number}.root", "bytes_requested": 1}
        counters.add_bytes(record, failed=False, preprocessing=False)
    endpoints = {endpoint for _, endpoint in counters.bytes}
    assert len(endpoints) == MOST_ENDPOINTS + 1
    assert counters.bytes["residual", OTHERS] == 1000 - MOST_ENDPOINTS
    assert "store" not in repr(counters.bytes)


def test_the_server_that_answered_is_the_endpoint() -> None:
    counters = Counters()
    record = {"file": "root://redirector//a.root", "endpoint": "server-7", "bytes_requested": 5}
    counters.add_bytes(record, failed=True, preprocessing=False)
    assert counters.bytes == {("failed", "server-7"): 5}
