"""Each side against the first: faster or slower, its metrics and facts, and costs of an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    """What the interval was resampled from: "runs", "chunks", or nothing for what repeats cannot change."""

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
    if not all(run.metrics.get(EVENTS) for run in (*before, *after)):
        return
    for label, name in COSTS.items():
        if not all_have((*before, *after), name) or not median_of(before, name):
            continue
        old, new = ([run.metrics[name] / run.metrics[EVENTS] for run in side] for side in (before, after))
        found = repeats.judged(old, new, exact=name in repeats.EXACT, confidence=confidence)
        change = median(new) / median(old) - 1
        if found.side is not None and found.low is not None and found.high is not None:
            if found.over == repeats.RUNS or abs(change) >= repeats.SMALLEST:
                yield Change(label, change, found.low, found.high, found.over)
            continue
        bounds = _over_chunks(before, after, name, confidence, before[0].metrics[EVENTS] / after[0].metrics[EVENTS])
        if bounds is not None and (bounds[0] > repeats.SMALLEST or bounds[1] < -repeats.SMALLEST):
            yield Change(label, change, *bounds, repeats.CHUNKS)


def _over_chunks(
    before: Runs, after: Runs, name: str, confidence: float, scale: float = 1.0
) -> tuple[float, float] | None:
    """Interval of the change over chunks of two runs, times a scale; None where chunks do not make the metric."""
    one, other = repeats.resampled_chunks(before[0], name), repeats.resampled_chunks(after[0], name, repeats.SEED + 1)
    if one is None or other is None or len(before) + len(after) > 2:
        return None
    return repeats.interval(scale * other / one - 1, confidence)


FASTER: Final = "faster"
SLOWER: Final = "slower"
CANNOT_TELL: Final = "cannot tell"

WALL: Final = "elapsed_time_seconds"
RATE: Final = "event_rate_elapsed_khz"
METRICS: Final = "metrics"
THREAD_TIME: Final = "thread time"
BYTE_LEDGER: Final = "bytes requested"
"""Sections of what stands side by side."""

THREAD_TOTAL: Final = "time_total_seconds"

SMALL: Final = 0.01
"""Relative change, or share of a ledger, above which a difference of few runs is shown."""


# Faster or slower


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return "; ".join([*clear, f"{_judged(self.metric)}: {CANNOT_TELL}"])


def speed(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Speed:
    """Verdict on wall time, where runs have as many events, else on their rate."""
    runs = (*before, *after)
    events = [median_of(side, EVENTS) for side in (before, after) if all_have(side, EVENTS)]
    name = WALL if len(events) < 2 or abs(events[1] - events[0]) <= 1e-3 * max(events) else RATE
    clear, what = tuple(clear_changes(before, after, confidence)), _judged(name)
    lacking = next((run for run in runs if name not in run.metrics), None)
    if lacking is not None:
        reason = lacking.missing.get(name, "it was not reported")
        text = f"{CANNOT_TELL}, because the {what} of {lacking.name} is unknown: {reason}"
        return Speed(word=CANNOT_TELL, metric=name, judgement=repeats.Judgement(reason=reason), text=text, clear=clear)
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    judgement = repeats.judged(old, new, confidence=confidence)
    bounds = _over_chunks(before, after, name, confidence) if judgement.over is None else None
    if bounds is not None:  # an interval of the change, where runs give none
        judgement = judgement._replace(low=bounds[0], high=bounds[1], over=repeats.CHUNKS)
    relative = f" {signed(FRACTION, (median(new) - median(old)) / median(old))}" if median(old) else ""
    if judgement.low is not None and judgement.high is not None and judgement.low != judgement.high:
        over = ", over chunks within the runs" if judgement.over == repeats.CHUNKS else ""
        relative += f" ({signed(FRACTION, judgement.low)} to {signed(FRACTION, judgement.high)}{over})"
    change = f"{what}{relative}, {counted(len(after), 'run')} against {counted(len(before), 'run')}"
    word = SLOWER if (judgement.side == repeats.ABOVE) == (name == WALL) else FASTER
    text = f"{word}: {change}"
    if judgement.side is None:
        word, text = CANNOT_TELL, f"{change}: {CANNOT_TELL} whether it changed; {judgement.why}"
    unknown = ", ".join(dict.fromkeys(run.name for run in runs if EVENTS not in run.metrics))
    if name == WALL and unknown:
        text += f"; taken to have as many events, as those of {unknown} are not known"
    return Speed(word=word, metric=name, judgement=judgement, text=text, clear=clear)


def _judged(name: str) -> str:
    """What the metric that is judged is called."""
    return "wall time" if name == WALL else "event rate"


def all_have(side: Runs, name: str) -> bool:
    """Whether all runs have a metric."""
    return all(name in run.metrics for run in side)


def median_of(side: Runs, name: str) -> float:
    """Median of a metric."""
    return median(run.metrics[name] for run in side)


# Metrics and facts


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that runs were made on or with, for each side."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether it is not the same everywhere."""
        return len(set(self.values)) > 1


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

    @property
    def differs(self) -> bool:
        """Whether any side differs from the first."""
        return any(self.differs_at)

    def change(self, place: int) -> float | None:
        """Difference of the medians, of a side less the first."""
        first, other = self.spreads[0], self.spreads[place]
        return None if first is None or other is None else other.median - first.median

    def relative_change(self, place: int) -> float | None:
        """Difference of the medians beside the first; None where that is 0."""
        first, change = self.spreads[0], self.change(place)
        return None if change is None or first is None or not first.median else change / abs(first.median)


def facts_of(sides: Sequence[Side]) -> tuple[Fact, ...]:
    """All that runs were made on and with; different values of repeats are separated, "-" is not known."""
    names = dict.fromkeys(name for side in sides for run in side.runs for name in run.facts)
    return tuple(
        Fact(name, tuple(" / ".join(dict.fromkeys(run.facts.get(name, "-") for run in side.runs)) for side in sides))
        for name in names
    )


def rows_of(sides: Sequence[Side], confidence: float) -> tuple[Row, ...]:
    """All metrics that are numbers."""
    shown = (metric for metric in CATALOGUE.metrics() if metric.group != RAW)
    return tuple(_row(metric, sides, confidence) for metric in shown if metric.unit not in (STRUCTURE, WORD))


def _row(metric: Metric, sides: Sequence[Side], confidence: float) -> Row:
    name, section, runs = metric.name, METRICS, [side.runs for side in sides]
    if metric.group in LEDGERS and metric.label in LEDGERS[metric.group].labels:
        section = THREAD_TIME if metric.group == TIME else BYTE_LEDGER
    # beside the total of a ledger small differences of its classes are not shown
    in_total = section == THREAD_TIME and all_have(runs[0], THREAD_TOTAL)
    least = SMALL * median_of(runs[0], THREAD_TOTAL) if in_total else 0.0
    first, *others = (repeats.spread(side, name, confidence) if all_have(side, name) else None for side in runs)
    asked = partial(repeats.judged, exact=name in repeats.EXACT, confidence=confidence)
    judgements = [first and other and asked(first.values, other.values) for other in others]
    differ = (_differs(first, *pair, least) for pair in zip(others, judgements, strict=True))
    return Row(metric, section, (first, *others), (None, *judgements), (False, *differ))


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
