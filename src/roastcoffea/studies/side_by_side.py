"""Comparison of each side with the first: speed, metrics, environment and costs per event."""

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
"""Maps the label of each cost to the metric that is divided by the number of events."""

EVENTS: Final = "total_events"


class Change(NamedTuple):
    """A significant relative change in a cost per event. `low` equals `high` if there is no interval."""

    label: str
    relative: float
    low: float
    high: float
    over: str | None
    """Whether the interval is based on "runs" or "chunks" (None if repeats do not vary)."""

    @property
    def text(self) -> str:
        said = f"{self.label} {signed(FRACTION, self.relative)}"
        if self.low == self.high:
            return said
        over = ", over chunks" if self.over == repeats.CHUNKS else ""
        return f"{said} ({100 * self.low:.3g} to {100 * self.high:.3g}{over})"


def clear_changes(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Iterator[Change]:
    """Find significant changes in costs per event.

    The test uses repeats or, if there are too few, the scatter of the chunks. Because chunks do not show how much
    repeats would differ, changes below 5 % are then ignored. CPU time and bytes per event vary little between repeats,
    so larger changes count as significant.
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
    """Estimate the interval of a change from the scatter of the chunks. `scale` multiplies the ratio of the metrics.

    The result is None if there are repeats, or if the metric is not computed from chunks.
    """
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

METRICS: Final = "metrics"
THREAD_TIME: Final = "thread time"
BYTE_LEDGER: Final = "bytes requested"

MAIN: Final = ("timing", "events", "resources", "throughput", "bytes")
"""Groups of metrics shown by default, in this order; the explanation covers the other groups."""

THREAD_TOTAL: Final = "time_total_seconds"

SMALL: Final = 0.01
"""Relative change, or fraction of a ledger's total, above which to show a difference that could be due to chance."""


# Faster or slower


@dataclass(frozen=True, slots=True)
class Speed:
    """Verdict on speed ("faster", "slower" or "cannot tell"), and the metric used for the verdict."""

    word: str
    metric: str
    judgement: repeats.Judgement
    text: str
    clear: tuple[Change, ...] = ()
    observed: str | None = None
    """The metric's change between the medians, as text."""

    @property
    def told(self) -> bool:
        return self.word != CANNOT_TELL

    @property
    def headline(self) -> str:
        """The verdict and the significant changes in costs per event."""
        clear = [change.text for change in self.clear]
        if self.told or not clear:
            return "; ".join([self.text, *clear])
        if self.observed is None:
            return "; ".join([*clear, f"{JUDGED[self.metric]}: {CANNOT_TELL}"])
        scattered = self.judgement.over == repeats.RUNS
        why = "within the scatter of repeats" if scattered else "to be confirmed by repeats"
        return "; ".join([*clear, f"{self.observed} ({why})"])


def speed(before: Runs, after: Runs, confidence: float = repeats.CONFIDENCE) -> Speed:
    """Judge the wall time or, if event counts differ, the event rate."""
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
        # without repeats, use the interval derived from chunks
        judgement = judgement._replace(low=bounds[0], high=bounds[1], over=repeats.CHUNKS)
    change = observed = f"{what} {signed(FRACTION, median(new) / median(old) - 1)}" if median(old) else what
    if judgement.low is not None and judgement.high is not None and judgement.low != judgement.high:
        over = ", over chunks within the runs" if judgement.over == repeats.CHUNKS else ""
        change += f" ({signed(FRACTION, judgement.low)} to {signed(FRACTION, judgement.high)}{over})"
    change += f", {counted(len(after), 'run')} against {counted(len(before), 'run')}"
    word = SLOWER if (judgement.side == repeats.ABOVE) == (name == WALL) else FASTER
    text = f"{word}: {change}"
    if judgement.side is None:
        whether = "it changed" if judgement.over == repeats.RUNS else "repeats would agree"
        word, text = CANNOT_TELL, f"{change}: {CANNOT_TELL} whether {whether}; {judgement.why}"
    unknown = ", ".join(dict.fromkeys(run.name for run in runs if EVENTS not in run.metrics))
    if name == WALL and unknown:
        text += f"; assumes equal event counts, because the count is unknown for {unknown}"
    return Speed(word, name, judgement, text, clear, observed)


def all_have(side: Runs, name: str) -> bool:
    return all(name in run.metrics for run in side)


def median_of(side: Runs, name: str) -> float:
    return median(run.metrics[name] for run in side)


# Metrics and facts


@dataclass(frozen=True, slots=True)
class Row:
    """A metric on all sides, compared with the first side. Values are None on sides that lack the metric."""

    metric: Metric
    section: str
    spreads: tuple[Spread | None, ...]
    judgements: tuple[repeats.Judgement | None, ...]
    differs_at: tuple[bool, ...]
    """Whether to show each side's difference from the first side."""

    @property
    def shown(self) -> bool:
        """Whether the row is shown by default: it differs, and is a ledger class or one of the main metrics."""
        return any(self.differs_at) and (self.section != METRICS or self.metric.group in MAIN)

    @property
    def label(self) -> str:
        return f"{self.metric.label} ({self.metric.statistic})" if self.metric.statistic else self.metric.label

    def change(self, place: int) -> float | None:
        first, other = self.spreads[0], self.spreads[place]
        return None if first is None or other is None else other.median - first.median

    def relative_change(self, place: int) -> float | None:
        """Divide the change by the first side's median (None if that median is 0)."""
        first, change = self.spreads[0], self.change(place)
        return None if change is None or first is None or not first.median else change / abs(first.median)


def facts_of(sides: Sequence[Side]) -> dict[str, tuple[str, ...]]:
    """List each side's environment and settings: "a / b" if repeats differ, "-" if unknown."""
    names = dict.fromkeys(name for side in sides for run in side.runs for name in run.facts)
    return {
        name: tuple(" / ".join(dict.fromkeys(run.facts.get(name, "-") for run in side.runs)) for side in sides)
        for name in names
    }


def rows_of(sides: Sequence[Side], confidence: float) -> Iterator[Row]:
    runs = [side.runs for side in sides]
    # hide differences in time classes that are small compared with the ledger's total
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
    """Decide whether to show a difference: it is significant, or it is large and there are too few runs to tell."""
    if first is None or other is None or judgement is None:
        return first is not other
    change = abs(other.median - first.median)
    if change == 0 or change < least:
        return False
    if judgement.side is not None:
        return True
    few = judgement.over is None or min(len(first.values), len(other.values)) < repeats.FEWEST
    return few and change >= SMALL * abs(first.median)
