"""The verdict on two groups of runs: whether the second is faster or slower, or one cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from roastcoffea.metrics import CATALOGUE
from roastcoffea.studies.compare import repeats
from roastcoffea.studies.compare.gate import needed_text, signed
from roastcoffea.studies.compare.observations import Observation
from roastcoffea.units import FRACTION

FASTER: Final = "faster"
SLOWER: Final = "slower"
CANNOT_TELL: Final = "cannot tell"

WALL: Final = "elapsed_time_seconds"
RATE: Final = "event_rate_elapsed_khz"
EVENTS: Final = "total_events"
SAME_EVENTS: Final = 1e-3
"""Relative difference in events below which wall times are compared, and not rates."""

Runs = Sequence[Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Whether a run is "faster" or "slower" than the first, or one "cannot tell", by the metric that was judged."""

    word: str
    metric: str
    judgement: repeats.Judgement
    text: str


def speed(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Speed:
    """Verdict on wall time, where runs have as many events, else on their rate."""
    name = WALL if _same_events(before, after) else RATE
    lacking = next((run for run in (*before, *after) if name not in run.metrics), None)
    if lacking is not None:
        reason = lacking.missing.get(name, "it was not reported")
        text = f"{CANNOT_TELL}: {lacking.name} has no {name}: {reason}"
        return Speed(word=CANNOT_TELL, metric=name, judgement=repeats.Judgement(reason=reason), text=text)
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    judgement = repeats.judged(old, new, confidence=confidence)
    if judgement.over is None:
        judgement = _over_chunks(before, after, name, judgement, confidence)
    word = CANNOT_TELL
    if judgement.side is not None:
        word = SLOWER if (judgement.side == repeats.ABOVE) == (name == WALL) else FASTER
    return Speed(word=word, metric=name, judgement=judgement, text=_text(word, name, before, after, judgement))


def all_have(side: Runs, name: str) -> bool:
    """Whether all runs have a metric."""
    return all(name in run.metrics for run in side)


def median_of(side: Runs, name: str) -> float:
    """Median of a metric."""
    return median(run.metrics[name] for run in side)


def _same_events(before: Runs, after: Runs) -> bool:
    events = [median_of(side, EVENTS) for side in (before, after) if all_have(side, EVENTS)]
    return len(events) < 2 or abs(events[1] - events[0]) <= SAME_EVENTS * max(events)


def _over_chunks(
    before: Runs, after: Runs, name: str, judgement: repeats.Judgement, confidence: float
) -> repeats.Judgement:
    """The judgement with an interval of the change from resampled chunks, where it has none from runs."""
    if len(before) != 1 or len(after) != 1:
        return judgement
    old, new = (
        repeats.resampled_chunks(side[0], name, seed)
        for side, seed in ((before, repeats.SEED), (after, repeats.SEED + 1))
    )
    if old is None or new is None:
        return judgement
    low, high = repeats.interval(new / old - 1, confidence)
    return judgement._replace(low=low, high=high, over=repeats.CHUNKS)


def _text(word: str, name: str, before: Runs, after: Runs, judgement: repeats.Judgement) -> str:
    old, new = median_of(before, name), median_of(after, name)
    metric = next(metric for metric in CATALOGUE.metrics() if metric.name == name)
    what = "wall time" if name == WALL else f"event rate ({metric.label})"
    change = f"{what} {signed(FRACTION, (new - old) / old)}" if old else what
    parts = [f"{word}: {change}{_interval_text(judgement)}, {_runs(after)} against {_runs(before)}"]
    if judgement.side is None:
        parts += [str(judgement.reason), *([needed_text(judgement)] if judgement.needed else [])]
    return "; ".join([*parts, *_taken(name, [*before, *after])])


def _taken(name: str, runs: Runs) -> list[str]:
    """That wall times were compared without knowing the events of all runs; nothing where they are known."""
    lacking = dict.fromkeys(run.name for run in runs if EVENTS not in run.metrics)
    if name != WALL or not lacking:
        return []
    return [f"taken to have as many events, as those of {', '.join(lacking)} are not known"]


def _runs(side: Runs) -> str:
    return "1 run" if len(side) == 1 else f"{len(side)} runs"


def _interval_text(judgement: repeats.Judgement) -> str:
    """Interval of a change in brackets, with what it was made of where that is not runs; nothing without one."""
    if judgement.low is None or judgement.high is None or judgement.low == judgement.high:
        return ""
    over = ", over chunks within the runs" if judgement.over == repeats.CHUNKS else ""
    return f" ({signed(FRACTION, judgement.low)} to {signed(FRACTION, judgement.high)}{over})"
