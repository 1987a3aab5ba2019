"""Bounds of plausible records: values outside cannot be measurements, whatever their source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from roastcoffea.records.chunks import PHASE_COLUMNS

MOST_CORES: Final = 4096
"""Most cores that one process can use."""

CLOCK_SLACK: Final = 0.1
"""Seconds, and share of the wall time, by which clocks of one process may differ."""

LATEST: Final = 253_402_300_800.0
"""Unix time of the year 10000; a host without a clock may start at 0."""

WITHIN_WALL: Final = ("cpu_seconds", "core_wait_seconds", "gc_seconds", *(column.name for column in PHASE_COLUMNS))
"""Times of one thread within an attempt."""

OF_PROCESS: Final = ("helper_cpu_seconds", "process_cpu_seconds")
"""CPU times of several threads within an attempt."""

AMOUNTS: Final = ("memory_before", "memory_after", "memory_peak", "bytes_requested", "bytes_payload", "file_bytes")
"""Sizes, in bytes."""

MOST_BYTES: Final = 1 << 60


def impossible_times(record: Mapping[str, Any]) -> str | None:
    """Impossible start, stop or duration of an attempt, in words; None if all are possible."""
    start, stop, wall = (_number(record.get(name)) for name in ("start", "stop", "wall_seconds"))
    for name, moment in (("start", start), ("stop", stop)):
        if moment is not None and not 0 <= moment < LATEST:
            return f"{name} at {moment:g} s"
    if start is not None and stop is not None and stop < start:
        return f"an end {start - stop:g} s before its start"
    if wall is not None and not 0 <= wall < math.inf:
        return f"a duration of {wall:g} s"
    return None


def impossible_values(record: Mapping[str, Any]) -> dict[str, str]:
    """Names of impossible values of an attempt, each with the value.

    Its times are possible. Unmeasured values and non-numbers are skipped.
    """
    wall = _number(record.get("wall_seconds"))
    longest = math.inf if wall is None else wall * (1 + CLOCK_SLACK) + CLOCK_SLACK
    bounds = dict.fromkeys(WITHIN_WALL, longest) | dict.fromkeys(OF_PROCESS, MOST_CORES * longest)
    found = {name: f"{name} of {record[name]:g} s" for name in bounds if _outside(record.get(name), bounds[name])}
    return found | {name: f"{name} of {record[name]} B" for name in AMOUNTS if _outside(record.get(name), MOST_BYTES)}


def impossible_rows(
    numbers: Mapping[str, npt.NDArray[np.float64]], integers: Mapping[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.bool_]:
    """Whether times or values of attempts are impossible, by row of their columns.

    Unmeasured numbers are NaN, unmeasured integers the least of all.
    """
    start, stop, wall = (numbers[name] for name in ("start", "stop", "wall_seconds"))
    with np.errstate(invalid="ignore"):
        odd: npt.NDArray[np.bool_] = (stop < start) | (wall < 0) | (wall == math.inf)
        for moment in (start, stop):
            odd |= (moment < 0) | (moment >= LATEST)
        longest = np.where(np.isnan(wall), math.inf, wall * (1 + CLOCK_SLACK) + CLOCK_SLACK)
        for names, cores in ((WITHIN_WALL, 1), (OF_PROCESS, MOST_CORES)):
            for name in names:
                odd |= (numbers[name] < -CLOCK_SLACK) | (numbers[name] > cores * longest)
    unknown = np.iinfo(np.int64).min
    for name in AMOUNTS:
        amounts = integers[name]
        odd |= (amounts > MOST_BYTES) | ((amounts < 0) & (amounts != unknown))
    return odd


def _outside(value: Any, most: float) -> bool:
    number = _number(value)
    return number is not None and not -CLOCK_SLACK <= number <= most


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) else None
