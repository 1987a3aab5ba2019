"""What a collector leaves on Dask's tasks, and that it is taken off again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.log.marks import ANNOTATION, METADATA_KEY, clear_metadata, mark_of, unmark


def task(annotations: Any = None, metadata: Any = None) -> SimpleNamespace:
    return SimpleNamespace(annotations=annotations, metadata=metadata)


def marked(*collectors: str) -> dict[str, Any]:
    return {ANNOTATION: {"collectors": collectors, "step": "processing", "prefix": "Jets"}, "priority": 1}


def test_a_mark_is_of_its_collectors() -> None:
    of_two = task(marked("a", "b"))
    assert mark_of(of_two, "a") == mark_of(of_two, "b") == marked("a", "b")[ANNOTATION]
    assert mark_of(of_two, "c") is None


@pytest.mark.parametrize("annotations", [None, {}, {ANNOTATION: "a"}, {ANNOTATION: {}}, {ANNOTATION: ["a"]}])
def test_annotations_of_others_are_no_mark_and_stay(annotations: Any) -> None:
    theirs = task(annotations)
    assert mark_of(theirs, "a") is None
    unmark(theirs, "a")
    assert theirs.annotations == annotations


def test_the_mark_of_another_collector_stays() -> None:
    of_two = task(marked("a", "b"))
    unmark(of_two, "a")
    assert (mark_of(of_two, "a"), mark_of(of_two, "b")) == (None, {**marked()[ANNOTATION], "collectors": ["b"]})
    unmark(of_two, "b")
    assert of_two.annotations == {"priority": 1}


def test_metadata_are_cleared_where_they_are_of_the_collector() -> None:
    ours = task(metadata={"a": [1.0], METADATA_KEY: b"record", "theirs": 5})
    clear_metadata(ours, "b")
    assert set(ours.metadata) == {"a", METADATA_KEY, "theirs"}
    clear_metadata(ours, "a")
    assert ours.metadata == {"theirs": 5}
    clear_metadata(task(), "a")


def test_a_record_that_another_collector_waits_for_stays() -> None:
    """One collector leaves a worker where a chunk of another one has its record, and its end is not told yet."""
    theirs = task(marked("b"), {"a": [1.0], "b": [1.0], METADATA_KEY: b"record"})
    clear_metadata(theirs, "a")
    assert theirs.metadata == {"b": [1.0], METADATA_KEY: b"record"}
    clear_metadata(theirs, "b")
    assert theirs.metadata == {}
