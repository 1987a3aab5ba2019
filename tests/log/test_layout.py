"""Texts and fixed fields of entries: numbers of texts, and rows of them."""

from __future__ import annotations

import itertools
import struct
import time

import numpy as np
import pytest
from stand_ins import CLIENT, Scheduler, Task, started_plugin

from roastcoffea.log import kinds as writer
from roastcoffea.log.kinds import MOST_TEXTS, NO_STRING, TEXT
from roastcoffea.log.layout import Layout, Texts
from roastcoffea.log.workers import ClusterLog


def test_a_text_that_is_numbered_again_is_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TEXTS > 1000
    monkeypatch.setattr(writer, "MOST_TEXTS", 4)
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    expected = []
    now = time.time() + 1
    for number, worker in zip(range(30), itertools.cycle(scheduler.workers.values()), strict=False):
        scheduler.beat(now + number, number)
        plugin.sample()
        scheduler.run(plugin, Task(f"{number}", worker, f"p{number % 5}", typename=f"t{number % 7}", client=CLIENT))
        expected.append((worker.address, f"p{number % 5}", f"t{number % 7}"))
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    tasks = log.attempts.table(0.0)
    assert list(zip(*(tasks[name].to_pylist() for name in ("worker", "prefix", "type")), strict=True)) == expected
    assert log.workers.samples(0.0)["worker"].to_pylist() == [*scheduler.workers] * 30
    assert log.workers.lifetimes(0.0, now, now + 100)["cpu_seconds"].to_pylist() == [29 / 16, 30 / 16, 31 / 16]


FIELDS = (("worker", TEXT), ("name", TEXT), ("time", "d"))


def texts_of(*words: str) -> Texts:
    texts = Texts()
    for word in words:
        texts.take(word.encode())
    return texts


def packed_row(*values: float) -> bytes:
    return struct.pack("<IId", *values)


def test_a_text_has_one_place_whatever_its_numbers() -> None:
    texts = texts_of("a", "b", "a")
    assert (texts.known, texts.places) == (["a", "b"], [0, 1, 0])
    assert [texts[0], texts[1], texts[2], texts[NO_STRING]] == ["a", "b", "a", None]
    with pytest.raises(IndexError):
        texts[3]


def test_texts_that_are_no_unicode_are_read_all_the_same() -> None:
    texts = Texts()
    texts.take(b"\xff")
    assert texts.known == ["\ufffd"]


def test_a_row_has_texts_for_their_numbers() -> None:
    layout = Layout(FIELDS, texts_of("tcp://1", "one"))
    assert layout.size == 16
    assert layout.row(packed_row(0, NO_STRING, 2.5) + b"more") == {"worker": "tcp://1", "name": None, "time": 2.5}


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        (packed_row(0, 2, 1.0), LookupError, "unknown text 2"),
        (packed_row(NO_STRING, 0, 1.0), LookupError, "it has no worker"),
        (packed_row(0, 1, 1.0)[:15], struct.error, "requires a buffer of at least 16 bytes"),
    ],
)
def test_a_row_that_cannot_be_is_refused(payload: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Layout(FIELDS, texts_of("tcp://1", "one")).row(payload)


def test_rows_in_bulk_have_the_places_of_their_texts() -> None:
    texts = texts_of("a", "b", "a")
    layout = Layout(FIELDS, texts)
    rows = layout.rows(bytearray(packed_row(2, 1, 1.0) + packed_row(1, NO_STRING, 2.0)))
    assert rows["worker"].tolist() == [0, 1]
    assert texts.column(rows["name"]).to_pylist() == ["b", None]
    assert rows["time"].tolist() == [1.0, 2.0]
    layout.check(rows)
    with pytest.raises(LookupError, match="unknown text 3"):
        layout.check(np.frombuffer(packed_row(3, 0, 1.0), layout.dtype))
