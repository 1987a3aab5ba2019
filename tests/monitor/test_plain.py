"""What a monitor's worker half sends of a task: plain values, of bounded size."""

from __future__ import annotations

import json
from typing import Any

import dask
import pytest
from distributed import Client

from roastcoffea.monitor.task_monitor import TaskMonitor
from roastcoffea.monitor.views import LONGEST_LIST, LONGEST_TEXT, plain

MOST_BYTES = 4 * LONGEST_TEXT
"""Bytes of JSON that a plain value may have, with marks of what was cut."""


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [True, 3, -1.5, "text", "", [], {}, [1, [2, "three"]], {"a": {"b": [1, 2]}}, 2**63 - 1, list(range(LONGEST_LIST))],
)
def test_small_values_stay_as_they_are(value: Any) -> None:
    assert plain(value) == value


def test_other_types_become_json_s() -> None:
    assert plain({1: (2, 3), "a": {4}}) == {"1": [2, 3], "a": [4]}
    assert plain([object(), b"bytes", None]) == [None, None, None]


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


LARGE = {
    "text": "x" * 10**6,
    "subclass of text": Text("x" * 10**6),
    "key": {"k" * 10**6: 1},
    "list": list(range(10**5)),
    "list of texts": ["x" * 5000] * 50,
    "set": set(range(10**5)),
    "mapping": {f"key{number}": number for number in range(10**5)},
    "lists of lists": [[list(range(100))] * 100] * 100,
    "mappings of mappings": {str(one): {str(other): "x" * 100 for other in range(100)} for one in range(100)},
    "integer": 10**100_000,
    "depth": nested(500),
    "endless": endless(),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_cut_and_marked(name: str) -> None:
    sent = json.dumps(plain(LARGE[name]))
    assert len(sent) < MOST_BYTES
    assert "... (" in sent


def test_the_mark_says_how_much_was_cut() -> None:
    text = plain("x" * (LONGEST_TEXT + 41))
    assert text == "x" * (LONGEST_TEXT - 1) + "... (42 characters more)"
    assert plain(list(range(LONGEST_LIST + 3)))[-1] == "... (3 more)"
    assert plain({number: number for number in range(LONGEST_LIST + 3)})["..."] == "... (3 more)"


def with_large_metadata() -> int:
    from distributed import get_worker

    worker = get_worker()
    worker.state.tasks[worker.get_current_task()].metadata["large"] = "x" * 10**6
    return 1


@pytest.mark.slow
def test_annotations_and_metadata_in_a_monitor_are_of_bounded_size(client: Client) -> None:
    with TaskMonitor(client, worker_view=True) as monitor, dask.annotate(purpose="x" * 10**6, list=[1, 2]):
        client.submit(with_large_metadata, pure=False).result()
    (view,) = monitor.worker_tasks
    for value in (view["annotations"], view["metadata"]):
        assert len(json.dumps(value)) < MOST_BYTES
        assert "characters more" in json.dumps(value)
    assert monitor.problems == []
