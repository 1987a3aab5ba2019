"""Each side against the first: faster or slower, its metrics and facts, and costs of an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median
from typing import Final, NamedTuple

from roastcoffea.metrics import CATALOGUE, Metric
from roastcoffea.metrics.catalogue import RAW, TIME
from roastcoffea.report.summary import LEDGERS
from roastcoffea.studies import observations as repeats
from roastcoffea.studies.observations import Runs, Side, Spread, signed
from roastcoffea.units import FRACTION, STRUCTURE, WORD, counted

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
    """What the interval is over: "runs", "chunks", or nothing for what repeats cannot change."""

    @property
    def text(self) -> str:
        """The change in words."""
        said = f"{self.label} {signed(FRACTION, self.relative)}"
        if self.low == self.high:
            return said
        over = ", over chunks" if self.over == repeats.CHUNKS else ""
        return f"{said} ({100 * self.low:.3g} to {100 * self.high:.3g}{over})"


def clear_changes(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Iterator[Change]:
    """Give the costs per event that changed for sure: by repeats, else by chunks and by 5 % or more.

    Chunks cannot tell how repeats differ. CPU time and bytes of an event differ little, so a large change is clear.
    """
    for label, name in COSTS.items():
        if not all(run.metrics.get(EVENTS) and run.metrics.get(name) for run in (*before, *after)):
            continue
        old, new = ([run.metrics[name] / run.metrics[EVENTS] for run in side] for side in (before, after))
        found = repeats.judged(old, new, exact=name in repeats.EXACT, confidence=confidence)
        low, high, over = found.low, found.high, found.over
        if found.side is None:
            scale = before[0].metrics[EVENTS] / after[0].metrics[EVENTS]
            (low, high), over = _over_chunks(before, after, name, confidence, scale) or (0.0, 0.0), repeats.CHUNKS
        least = 0.0 if over == repeats.RUNS else repeats.SMALLEST
        if low is not None and high is not None and (low > least or high < -least):
            yield Change(label, median(new) / median(old) - 1, low, high, over)


def _over_chunks(
    before: Runs, after: Runs, name: str, confidence: float, scale: float = 1.0
) -> tuple[float, float] | None:
    """Interval of the change over chunks of two runs, times a scale; None where chunks do not make the metric."""
    scatter = [repeats.scatter_over_chunks(side[0], name) for side in (before, after)]
    if None in scatter or len(before) + len(after) > 2:
        return None
    ratio = scale * after[0].metrics[name] / before[0].metrics[name]
    factor = repeats.factor_over_chunks(hypot(*scatter), confidence)  # type: ignore[arg-type]
    return ratio / factor - 1, ratio * factor - 1


FASTER: Final = "faster"
SLOWER: Final = "slower"
CANNOT_TELL: Final = "cannot tell"

WALL: Final = "elapsed_time_seconds"
RATE: Final = "event_rate_elapsed_khz"
JUDGED: Final = {WALL: "wall time", RATE: "event rate"}
"""Metrics that are judged, and what they are called."""

METRICS: Final = "metrics"
THREAD_TIME: Final = "thread time"
BYTE_LEDGER: Final = "bytes requested"
"""Sections of what stands side by side."""

THREAD_TOTAL: Final = "time_total_seconds"

SMALL: Final = 0.01
"""Relative change, or share of a ledger, above which a difference of few runs is shown."""


# Faster or slower


@dataclass(frozen=True, slots=True)
class Speed:
    """Whether a run is "faster" or "slower" than the first, or one "cannot tell", by the metric that was judged."""

    word: str
    metric: str
    judgement: repeats.Judgement
    text: str
    clear: tuple[Change, ...] = ()
    """Costs of an event that changed for sure."""

    @property
    def told(self) -> bool:
        """Whether it is "faster" or "slower"."""
        return self.word != CANNOT_TELL

    @property
    def headline(self) -> str:
        """What is clear, be it the wall time or only what an event costs."""
        clear = [change.text for change in self.clear]
        if self.told or not clear:
            return "; ".join([self.text, *clear])
        return "; ".join([*clear, f"{JUDGED[self.metric]}: {CANNOT_TELL}"])


def speed(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Speed:
    """Verdict on wall time, where runs have as many events, else on their rate."""
    runs = (*before, *after)
    events = [median_of(side, EVENTS) for side in (before, after) if all_have(side, EVENTS)]
    name = WALL if len(events) < 2 or abs(events[1] - events[0]) <= 1e-3 * max(events) else RATE
    clear, what = tuple(clear_changes(before, after, confidence)), JUDGED[name]
    for run in runs:
        if name not in run.metrics:
            reason = run.missing.get(name, "it was not reported")
            text = f"{CANNOT_TELL}, because the {what} of {run.name} is unknown: {reason}"
            return Speed(CANNOT_TELL, name, repeats.Judgement(reason=reason), text, clear)
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    judgement = repeats.judged(old, new, confidence=confidence)
    if judgement.over is None and (bounds := _over_chunks(before, after, name, confidence)):
        # an interval of the change, where runs give none
        judgement = judgement._replace(low=bounds[0], high=bounds[1], over=repeats.CHUNKS)
    change = f"{what} {signed(FRACTION, median(new) / median(old) - 1)}" if median(old) else what
    if judgement.low is not None and judgement.high is not None and judgement.low != judgement.high:
        over = ", over chunks within the runs" if judgement.over == repeats.CHUNKS else ""
        change += f" ({signed(FRACTION, judgement.low)} to {signed(FRACTION, judgement.high)}{over})"
    change += f", {counted(len(after), 'run')} against {counted(len(before), 'run')}"
    word = SLOWER if (judgement.side == repeats.ABOVE) == (name == WALL) else FASTER
    text = f"{word}: {change}"
    if judgement.side is None:
        word, text = CANNOT_TELL, f"{change}: {CANNOT_TELL} whether it changed; {judgement.why}"
    unknown = ", ".join(dict.fromkeys(run.name for run in runs if EVENTS not in run.metrics))
    if name == WALL and unknown:
        text += f"; taken to have as many events, as those of {unknown} are not known"
    return Speed(word, name, judgement, text, clear)


def all_have(side: Runs, name: str) -> bool:
    """Whether all runs have a metric."""
    return all(name in run.metrics for run in side)


def median_of(side: Runs, name: str) -> float:
    """Median of a metric."""
    return median(run.metrics[name] for run in side)


# Metrics and facts


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of all sides, and its change from the first to each of the others; None where a side lacks it."""

    metric: Metric
    section: str
    spreads: tuple[Spread | None, ...]
    judgements: tuple[repeats.Judgement | None, ...]
    differs_at: tuple[bool, ...]
    """Of each side whether its difference from the first is worth to be shown."""

    @property
    def label(self) -> str:
        """Name of the metric, with what statistic it is."""
        return f"{self.metric.label} ({self.metric.statistic})" if self.metric.statistic else self.metric.label

    def change(self, place: int) -> float | None:
        """Difference of the medians, of a side less the first."""
        first, other = self.spreads[0], self.spreads[place]
        return None if first is None or other is None else other.median - first.median

    def relative_change(self, place: int) -> float | None:
        """Difference of the medians beside the first; None where that is 0."""
        first, change = self.spreads[0], self.change(place)
        return None if change is None or first is None or not first.median else change / abs(first.median)


def facts_of(sides: Sequence[Side]) -> dict[str, tuple[str, ...]]:
    """All that runs were made on and with; different values of repeats are separated, "-" is not known."""
    names = dict.fromkeys(name for side in sides for run in side.runs for name in run.facts)
    return {
        name: tuple(" / ".join(dict.fromkeys(run.facts.get(name, "-") for run in side.runs)) for side in sides)
        for name in names
    }


def rows_of(sides: Sequence[Side], confidence: float) -> Iterator[Row]:
    """All metrics that are numbers."""
    runs = [side.runs for side in sides]
    # beside the total of a ledger small differences of its classes are not shown
    small = SMALL * median_of(runs[0], THREAD_TOTAL) if all_have(runs[0], THREAD_TOTAL) else 0.0
    for metric in CATALOGUE.metrics():
        if metric.group == RAW or metric.unit in (STRUCTURE, WORD):
            continue
        name, section, exact = metric.name, METRICS, metric.name in repeats.EXACT
        if metric.group in LEDGERS and metric.label in LEDGERS[metric.group].labels:
            section = THREAD_TIME if metric.group == TIME else BYTE_LEDGER
        first, *others = (repeats.spread(side, name, confidence) if all_have(side, name) else None for side in runs)
        judgements = [
            first and other and repeats.judged(first.values, other.values, exact=exact, confidence=confidence)
            for other in others
        ]
        least = small if section == THREAD_TIME else 0.0
        differ = (_differs(first, *pair, least) for pair in zip(others, judgements, strict=True))
        yield Row(metric, section, (first, *others), (None, *judgements), (False, *differ))


def _differs(first: Spread | None, other: Spread | None, judgement: repeats.Judgement | None, least: float) -> bool:
    """Whether a difference is worth to be shown: it is told apart from noise, or cannot be and is not small."""
    if first is None or other is None or judgement is None:
        return first is not other
    change = abs(other.median - first.median)
    if change == 0 or change < least:
        return False
    if judgement.side is not None:
        return True
    few = judgement.over is None or min(len(first.values), len(other.values)) < repeats.FEWEST
    return few and change >= SMALL * abs(first.median)
