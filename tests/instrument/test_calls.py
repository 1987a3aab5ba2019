"""What is open: collectors of a context, calls, and what a call says of its input and its result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from coffea.processor.executor import WorkItem

from roastcoffea.instrument.calls import (
    Watchers,
    add,
    captured_error,
    coffea_report,
    fingerprint,
    is_watched,
    remove,
    watchers,
)


class Collector:
    """Takes notes; that is all a test of contexts asks of a collector."""

    def __init__(self, topic: str, of_all_contexts: bool = True) -> None:
        self.topic = topic
        self.of_all_contexts = of_all_contexts
        self.notes: list[str] = []

    def note(self, problem: str) -> None:
        self.notes.append(problem)


def in_a_thread(function: Any) -> Any:
    """What a function gives in a thread, which begins without a context."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def opened() -> Iterator[Any]:
    collectors: list[Any] = []

    def opened(*made: Any) -> None:
        for collector in made:
            add(collector)
            collectors.append(collector)

    yield opened
    for collector in reversed(collectors):
        remove(collector)
    assert not is_watched()


def test_a_collector_measures_its_context_and_threads_without_one(opened: Any) -> None:
    outer, inner = Collector("outer"), Collector("inner")
    opened(outer, inner)
    assert watchers() == (outer, inner)
    assert in_a_thread(watchers) == (outer, inner)
    assert outer.notes == inner.notes == []


def test_a_collector_of_one_context_does_not_measure_threads(opened: Any) -> None:
    opened(Collector("own", of_all_contexts=False))
    assert is_watched()
    assert in_a_thread(watchers) == Watchers()
    assert not in_a_thread(is_watched)


def test_what_is_counted_in_collectors_that_are_not_nested_is_a_problem_of_each(opened: Any) -> None:
    here, there = Collector("here"), Collector("there")
    in_a_thread(lambda: add(there))
    opened(here)
    try:
        assert watchers() == (here,)
        assert set(in_a_thread(watchers)) == {here, there}
    finally:
        remove(there)
    assert here.notes == there.notes
    assert len(here.notes) == 1


def item(file: str, start: int = 0, uuid: bytes = b"\x01" * 16) -> WorkItem:
    return WorkItem("ttbar", file, "Events", start, start + 100, uuid)


def test_a_fingerprint_is_of_files_whatever_their_chunks_order_and_tokens() -> None:
    whole = fingerprint([item("root://host//a.root?authz=one"), item("root://host//b.root")])
    cut = [item("root://host//b.root"), *(item("root://host//a.root?authz=two", start) for start in (0, 100))]
    assert fingerprint(cut) == whole
    assert fingerprint(cut[1:]) != whole
    assert fingerprint([item("root://host//b.root", uuid=b"\x02" * 16)]) != fingerprint(cut[:1])
    assert fingerprint([("no", "item")]) is None


def test_what_coffea_reports_is_found_in_both_forms_of_its_results() -> None:
    error = OSError("gone")
    plain = {"out": 1, "metrics": {"entries": 5}, "exception": error}
    assert coffea_report(plain) == coffea_report(SimpleNamespace(value=plain)) == {"entries": 5}
    assert coffea_report({"out": 1}) is coffea_report(None) is None
    assert captured_error(plain) is captured_error(SimpleNamespace(exception=error)) is error
    assert captured_error({"out": 1}) is None
