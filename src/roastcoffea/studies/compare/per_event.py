"""Costs of an event in two groups of runs: what is clear of them, also where wall time cannot be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.studies.compare import repeats
from roastcoffea.studies.compare.gate import signed
from roastcoffea.studies.compare.observations import Observation, Runs
from roastcoffea.units import FRACTION

COSTS: Final[Mapping[str, str]] = {"CPU per event": "total_cpu_time", "bytes per event": "total_bytes_read"}
"""Metrics that are divided by the number of events, by what people call that."""

EVENTS: Final = "total_events"


class Change(NamedTuple):
    """Relative change of a cost per event that is clear, with its interval where it has one."""

    label: str
    relative: float
    low: float
    high: float
    over: str | None
    """What the interval was resampled from: "runs", "chunks", or nothing for what repeats cannot change."""

    @property
    def text(self) -> str:
        """The change in words."""
        said = f"{self.label} {signed(FRACTION, self.relative)}"
        if self.low == self.high:
            return said
        over = ", over chunks" if self.over == repeats.CHUNKS else ""
        return f"{said} ({100 * self.low:.3g} to {100 * self.high:.3g}{over})"


def clear_changes(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> tuple[Change, ...]:
    """Give the costs per event that changed for sure: by repeats, else by chunks and by 5 % or more.

    Chunks cannot tell how repeats differ. CPU time and bytes of an event differ little, so a large change is clear.
    """
    return tuple(_clear(before, after, confidence))


def _clear(before: Runs, after: Runs, confidence: float) -> Iterator[Change]:
    for label, name in COSTS.items():
        old, new = ([_per_event(run, name) for run in side] for side in (before, after))
        known = [[value for value in side if value is not None] for side in (old, new)]
        if any(len(some) < len(side) for some, side in zip(known, (old, new), strict=True)) or not median(known[0]):
            continue
        found = repeats.judged(known[0], known[1], exact=name in repeats.EXACT, confidence=confidence)
        relative = median(known[1]) / median(known[0]) - 1
        if found.side is not None and found.low is not None and found.high is not None:
            if found.over == repeats.RUNS or abs(relative) >= repeats.SMALLEST:
                yield Change(label, relative, found.low, found.high, found.over)
        elif len(before) == len(after) == 1:
            bounds = _over_chunks(before[0], after[0], name, confidence)
            if bounds is not None and (bounds[0] > repeats.SMALLEST or bounds[1] < -repeats.SMALLEST):
                yield Change(label, relative, *bounds, repeats.CHUNKS)


def _per_event(run: Observation, name: str) -> float | None:
    events = run.metrics.get(EVENTS)
    return run.metrics[name] / events if name in run.metrics and events else None


def _over_chunks(before: Observation, after: Observation, name: str, confidence: float) -> tuple[float, float] | None:
    """Interval of the change over chunks of two runs; None where chunks do not make the metric."""
    one = repeats.resampled_chunks(before, name)
    other = repeats.resampled_chunks(after, name, repeats.SEED + 1)
    if one is None or other is None:
        return None
    ratios = (other / after.metrics[EVENTS]) / (one / before.metrics[EVENTS])
    return repeats.interval(np.asarray(ratios) - 1, confidence)
