"""How much of a run was received so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.records.chunks import CHECKPOINT, OK, TRACED
from roastcoffea.records.phases import PHASES

CLASSES: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES))
CLASS_OF_COLUMN: Final = tuple((phase.column, phase.time_class) for phase in PHASES)


@dataclass(slots=True)
class Tally:
    """How much was received so far: chunks with a result and their events, failed attempts, bytes of all, and files.

    Bytes are None until an attempt reports any. Seconds are those of attempts of chunks: their wall time (and
    the sum of its squares), that of the failed ones, CPU time, and the time in each class of phases.
    """

    chunks: int = 0
    events: int = 0
    failed: int = 0
    bytes: int | None = None
    files: int = 0
    wall_seconds: float = 0.0
    wall_squares: float = 0.0
    failed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    """It keeps its size: another thread may copy it meanwhile."""

    def add(self, record: Mapping[str, Any], *, preprocessing: bool) -> None:
        """Count a record."""
        gave = record.get("outcome") in (OK, CHECKPOINT)
        requested = record.get("bytes_requested")
        if requested is not None:
            self.bytes = (self.bytes or 0) + requested
        if record.get("outcome") == TRACED:
            return
        self.files += preprocessing and gave
        self.failed += not gave
        if gave and not preprocessing:
            self.chunks += 1
            self.events += record.get("events") or 0
        if not preprocessing:
            self._add_seconds(record, gave=gave)

    def add_table(self, chunks: pa.Table) -> None:
        """Count records of attempts of chunks."""
        gave = pc.fill_null(pc.is_in(chunks["outcome"], pa.array([OK, CHECKPOINT])), False)
        requested = pc.sum(chunks["bytes_requested"]).as_py()
        if requested is not None:
            self.bytes = (self.bytes or 0) + requested
        useful = pc.sum(gave).as_py() or 0
        self.chunks += useful
        self.failed += len(chunks) - useful
        good = chunks if useful == len(chunks) else chunks.filter(gave)
        self.events += pc.sum(good["events"]).as_py() or 0
        wall = _total(chunks, "wall_seconds")
        self.wall_seconds += wall
        self.wall_squares += pc.sum(pc.multiply(chunks["wall_seconds"], chunks["wall_seconds"])).as_py() or 0.0
        self.cpu_seconds += _total(chunks, "cpu_seconds") + _total(chunks, "helper_cpu_seconds")
        self.failed_seconds += wall - _total(good, "wall_seconds") if len(good) < len(chunks) else 0.0
        for column, time_class in CLASS_OF_COLUMN:
            self.seconds[time_class] += _total(good, column)

    def _add_seconds(self, record: Mapping[str, Any], *, gave: bool) -> None:
        wall = record.get("wall_seconds") or 0.0
        self.wall_seconds += wall
        self.wall_squares += wall * wall
        self.cpu_seconds += (record.get("cpu_seconds") or 0.0) + (record.get("helper_cpu_seconds") or 0.0)
        if not gave:
            self.failed_seconds += wall
            return
        for column, time_class in CLASS_OF_COLUMN:
            self.seconds[time_class] += record.get(column) or 0.0


def _total(chunks: pa.Table, column: str) -> float:
    """Sum of what was measured."""
    total: float | None = pc.sum(chunks[column]).as_py()
    return total or 0.0
