"""The scheduler's side of the log: whole entries in order, bounded, and given again where an answer was lost."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from roastcoffea.backends.attempts import LONGEST_TEXT, MOST_PROBLEMS, Problems
from roastcoffea.log import kinds
from roastcoffea.log import kinds as writer
from roastcoffea.log.kinds import (
    BLOCK,
    CHUNK,
    DEPARTURE,
    HEADER,
    HEADER_SIZE,
    NO_STRING,
    PROBLEM,
    SAMPLE,
    STRING,
    TASK,
    Kind,
    LogWriter,
)
from roastcoffea.log.workers import ClusterLog


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Codes and payloads of a piece of the log."""
    at = 0
    while at < len(data):
        code, length = struct.unpack_from(HEADER, data, at)
        yield code, data[at + HEADER_SIZE : at + HEADER_SIZE + length]
        at += HEADER_SIZE + length


def drained(log: LogWriter) -> list[tuple[bytes, bytes]]:
    """All that waits."""
    data = b""
    while True:
        answer = log.drain(1_000_000, log.given)
        data += answer["data"]
        if not answer["more"]:
            return list(entries(data))


def test_entries_come_in_the_order_of_writing_and_whole() -> None:
    log = LogWriter()
    payloads = [bytes([number % 256]) * (number % 5000) for number in range(300)]
    for payload in payloads:
        log.write(CHUNK, payload)
    data, received = b"", 0
    while True:
        answer = log.drain(1, received)
        assert answer["at"] == received
        assert list(entries(answer["data"]))
        data += answer["data"]
        received += len(answer["data"])
        if not answer["more"]:
            break
    assert list(entries(data)) == [(CHUNK.code, payload) for payload in payloads]
    assert log.size == 0


def test_an_answer_is_given_again_until_it_was_received() -> None:
    log = LogWriter()
    log.write(CHUNK, b"first")
    lost = log.drain(1000, 0)
    log.write(CHUNK, b"second")
    assert log.drain(1000, 0) == lost | {"more": True}
    assert list(entries(log.drain(1000, log.given)["data"])) == [(CHUNK.code, b"second")]


@pytest.mark.parametrize("kind", [TASK, SAMPLE, CHUNK])
def test_rows_beyond_the_cap_are_dropped_and_counted(kind: Kind) -> None:
    log = LogWriter(cap=BLOCK)
    for _ in range(2000):
        log.write(kind, b"x" * 1000)
    assert BLOCK < log.size < 2 * BLOCK
    assert len(drained(log)) + log.dropped[str(kind.table)] == 2000
    log.write(kind, b"x")
    assert drained(log) == [(kind.code, b"x")]


def test_what_others_build_upon_is_written_without_room() -> None:
    log = LogWriter(cap=-1)
    number = log.number("tcp://10.0.0.1:1")
    log.write_fields(DEPARTURE, number, 1.5)
    log.write_text(PROBLEM, "ünïcode \udcff")
    assert [code for code, _ in drained(log)] == [STRING.code, DEPARTURE.code, PROBLEM.code]
    assert log.dropped == {}


def test_a_text_is_written_once_until_numbering_begins_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MOST_TEXTS", 2)
    log = LogWriter()
    assert log.number(None) == NO_STRING
    assert [log.number(text) for text in ("a", "b", "a", "b", "c", "a")] == [0, 1, 0, 1, 2, 3]
    assert [payload for _, payload in drained(log)] == [b"a", b"b", b"c", b"a"]


def test_problems_are_listed_once_and_only_so_many() -> None:
    log = LogWriter()
    problems = Problems(log)
    for number in range(2 * MOST_PROBLEMS):
        problems.note(f"problem {number}")
        problems.note("problem 0")
    problems.failed(KeyError("planted"))
    problems.note_rest()
    written = [payload.decode() for _, payload in drained(log)]
    assert written[:-1] == [f"problem {number}" for number in range(MOST_PROBLEMS)]
    assert written[-1] == f"{MOST_PROBLEMS + 1} further problem(s) on the scheduler are not listed"
    assert problems.failures == 1


def test_a_problem_is_cut_and_without_secrets() -> None:
    log = LogWriter()
    Problems(log).note("root://jane:hunter2@host//f " + "x" * 2 * LONGEST_TEXT)
    ((_, payload),) = drained(log)
    assert b"hunter2" not in payload
    assert len(payload) <= LONGEST_TEXT + 100


def test_what_is_no_bytes_is_no_part_of_the_log() -> None:
    log = LogWriter()
    for payload in ("text", None, 5, ["a"]):
        with pytest.raises(TypeError):
            log.append(kinds.PROBLEM, payload)  # type: ignore[arg-type]
    log.append(kinds.PROBLEM, b"whole")
    found = ClusterLog()
    found.feed(log.drain(1000, 0)["data"])
    assert (found.problems, log.size) == (["whole"], 0)
