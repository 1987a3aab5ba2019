"""The scheduler's side of the log: a bounded buffer of entries until the client has them.

This module may be pickled by value.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from roastcoffea.log.kinds import HEADER, NO_STRING, PROBLEM, STRING, Kind
from roastcoffea.redaction import redacted_beginning

LOG_CAP = 64_000_000
"""Most bytes of the log on the scheduler; beyond that, rows are dropped and counted."""

BLOCK = 256_000

MOST_TEXTS = 10_000
"""Most texts with a remembered number; beyond that numbering restarts, and a text may get a second number."""

LONGEST_TEXT = 2000
MOST_PROBLEMS = 20
"""Most distinct problems listed; the others are counted."""


class LogWriter:
    """Entries as bytes in order of writing, with a limit on those waiting to be drained.

    Parameters
    ----------
    cap : int
        That limit, in bytes.
    first_text : int
        Number of the first text: how many the client already has from an earlier log.
    """

    def __init__(self, cap: int = LOG_CAP, first_text: int = 0) -> None:
        self.cap = cap
        self.size = 0
        self.dropped: dict[str, int] = {}
        self._header = struct.Struct(HEADER).pack
        self._blocks: deque[bytes] = deque()
        self._block = bytearray()
        self._numbers: dict[str, int] = {}
        self._next_number = first_text
        self._given = b""
        self._given_from = 0

    # entries

    def has_room(self, kind: Kind, rows: int = 1) -> bool:
        """Whether rows can be written now; otherwise they are counted as dropped."""
        if self.size <= self.cap or kind.table is None:
            return True
        self.dropped[kind.table] = self.dropped.get(kind.table, 0) + rows
        return False

    def write(self, kind: Kind, payload: bytes) -> None:
        """Append an entry, or count it as dropped."""
        if self.has_room(kind):
            self.append(kind, payload)

    def append(self, kind: Kind, payload: bytes) -> None:
        """Append an entry for which there is room."""
        entry = self._header(kind.code, len(payload)) + payload  # fails here for anything but bytes, before writing
        self._block += entry
        self.size += len(entry)
        if len(self._block) >= BLOCK:
            self._blocks.append(bytes(self._block))
            self._block = bytearray()

    def write_fields(self, kind: Kind, *values: Any, then: bytes = b"") -> None:
        """Write an entry of these fields; not for frequent use."""
        self.write(kind, struct.pack(kind.packing, *values) + then)

    def write_text(self, kind: Kind, text: str) -> None:
        """Write an entry that is a text."""
        self.write(kind, text.encode("utf-8", "surrogatepass"))

    def number(self, text: str | None) -> int:
        """Number of a recurring text."""
        if text is None:
            return NO_STRING
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MOST_TEXTS:
                self._numbers.clear()
            self.write_text(STRING, text)
            number = self._numbers[text] = self._next_number
            self._next_number += 1
        return number

    # to the client

    def drain(self, limit: int, received: int) -> dict[str, Any]:
        """Return the oldest entries, which are kept until the client confirms them.

        Parameters
        ----------
        limit : int
            Approximate number of bytes.
        received : int
            Bytes that the client has so far. If the last answer was lost, it is repeated.

        Returns
        -------
        dict
            `data` (bytes of whole entries) and `at` (bytes given before them), `more` (whether entries are left), and
            `dropped` (rows lost so far, by table).
        """
        if received == self.given:
            self._given_from, self._given = received, self._take(limit)
        return {"data": self._given, "at": self._given_from, "more": self.size > 0, "dropped": dict(self.dropped)}

    @property
    def given(self) -> int:
        """Bytes returned so far."""
        return self._given_from + len(self._given)

    def _take(self, limit: int) -> bytes:
        """Remove about `limit` bytes of complete entries, oldest first."""
        taken, size = [], 0
        while self._blocks and size < limit:
            taken.append(self._blocks.popleft())
            size += len(taken[-1])
        if not self._blocks and size < limit:
            taken.append(bytes(self._block))
            self._block = bytearray()
        data = b"".join(taken)
        self.size -= len(data)
        return data


class Problems:
    """Problems of recording on the cluster: each is written once, up to a maximum number."""

    def __init__(self, log: LogWriter) -> None:
        self.failures = 0
        self._log = log
        self._noted: set[str] = set()
        self._more = 0

    def failed(self, problem: Exception) -> None:
        """Count an error of the plugin itself; distributed would swallow it."""
        self.failures += 1
        self.note(f"the scheduler plugin failed: {type(problem).__name__}: {problem}")

    def note(self, text: str) -> None:
        """Write a problem, or count it if too many were written."""
        text = redacted_beginning(text, LONGEST_TEXT)
        if text not in self._noted and len(self._noted) == MOST_PROBLEMS:
            self._more += 1
        elif text not in self._noted:
            self._noted.add(text)
            self._log.write_text(PROBLEM, text)

    def note_rest(self) -> None:
        """Write the number of problems that were not listed."""
        if self._more:
            self._log.write_text(PROBLEM, f"{self._more} further problem(s) on the scheduler are not listed")
