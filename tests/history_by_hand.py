"""Runs of a history that are written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roastcoffea.studies.history.analysis import BYTES, CPU, RATE, Entry

T = 1_700_000_000.0
DAY = 86_400.0


def entry(number: int, **changes: Any) -> Entry:
    """The run of a day: 1 ms of CPU and 1 kB an event, and 0.5 kHz a core, where nothing else is given."""
    values = {RATE: 0.5, CPU: 1e-3, BYTES: 1000.0} | changes.pop("values", {})
    name = f"run-{number:02d}"
    given: dict[str, Any] = {
        "id": f"{number:032x}",
        "name": name,
        "path": Path("runs") / name,
        "start": T + number * DAY,
        "processors": ("Jets",),
        "datasets": ("data",),
        "fileset": "abc",
        "state": "complete",
        "reason": None,
        "values": values,
        "failures": 0,
        "facts": {"coffea": "2025.11"},
    }
    return Entry(**given | changes)


def with_cpu(seconds: Sequence[float], **changes: Any) -> list[Entry]:
    """A run for each of these CPU times of an event, whose rate follows from it."""
    return [entry(number, values={CPU: value, RATE: 5e-4 / value}, **changes) for number, value in enumerate(seconds)]


LOW = [1e-3 * (1 + 0.01 * step) for step in (0, 1, -1, 2, -2, 1.5, -1.5, 0.5)]
HIGH = [1.44 * value for value in LOW]
