"""The client's side of the log: entries are checked one by one, and become tables at the end."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from roastcoffea.errors import error_text
from roastcoffea.log.attempts import AttemptLog, SamplingLog
from roastcoffea.log.kinds import CHUNK, HEADER, HEADER_SIZE, PROBLEM, STRING, Kind
from roastcoffea.log.layout import Texts, text_of
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.log.workers import WorkerLog

UNREADABLE: Final = (LookupError, TypeError, ValueError, struct.error, zlib.error)
"""Errors of reading an entry that is damaged, or of another version."""

Readers = Mapping[Kind, Callable[[bytes], None]]


class ClusterLog:
    """Records of a scheduler plugin, received as entries and returned as tables.

    An entry that cannot be read is skipped and counted; later ones are read as if it did not exist.
    Each part reads some kinds of entries: attempts and samples, workers, received records of chunks; `read_also` adds
    more.
    """

    def __init__(self) -> None:
        self.texts = Texts()
        self.attempts = AttemptLog(self.texts)
        self.workers = WorkerLog(self.texts, self.attempts.clocks)
        self.sampling = SamplingLog(self.texts)
        self.received = ReceivedRecords()
        self._problems: list[str] = []
        self._unreadable: Counter[str] = Counter()
        self._readers: dict[bytes, Callable[[bytes], None]] = {}
        of_texts = {STRING: self.texts.take, PROBLEM: lambda text: self._problems.append(text_of(text))}
        of_parts = self.attempts.readers | self.workers.readers | self.sampling.readers
        self.read_also({CHUNK: self.received.take, **of_texts, **of_parts})

    def read_also(self, readers: Readers) -> None:
        """Read entries of more kinds with these functions, which raise one of `UNREADABLE` for damaged ones."""
        self._readers |= {kind.code: read for kind, read in readers.items()}

    def feed(self, data: bytes) -> None:
        """Take a piece of the log: complete entries, in order."""
        at = 0
        while at < len(data):
            try:
                code, length = struct.unpack_from(HEADER, data, at)
            except struct.error as problem:
                self._skip("the end of a piece", problem)
                return
            start = at + HEADER_SIZE
            at = start + length
            try:
                self._readers[code](data[start:at])
            except UNREADABLE as problem:
                self._skip(f"kind {code[0]}, {length} B", problem)

    @property
    def problems(self) -> list[str]:
        """Problems reported by the plugin, and unreadable entries of its log."""
        what = f"{self._unreadable.total()} entries of the scheduler's log could not be read and were skipped"
        unreadable = [f"{what}; the first: {first}" for first in self._unreadable][:1]
        return [*self._problems, *unreadable, *self.attempts.problems, *self.workers.problems, *self.sampling.problems]

    def _skip(self, entry: str, problem: Exception) -> None:
        self._unreadable[f"{entry} ({error_text(problem)})"] += 1
