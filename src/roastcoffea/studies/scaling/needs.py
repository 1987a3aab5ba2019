"""What would have to change to reach a rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roastcoffea.studies.scaling import pace
from roastcoffea.studies.scaling.explanation import MATTERS, Explanation
from roastcoffea.studies.scaling.laws import WORKERS
from roastcoffea.studies.scaling.shares import Judged
from roastcoffea.units import FRACTION, number, three_digits

RATE: Final = re.compile(
    r"\s*(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)\s*(?P<prefix>[kMGT]?)"
    r"(?P<unit>bit/s|bps|B/s|Hz|events/s)\s*",
)
PREFIXES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BITS: Final = {"bit/s": 1.0, "bps": 1.0, "B/s": 8.0}
EXAMPLES: Final = '"200 Gbit/s", "25 GB/s" or "50 kHz" (events)'

ENOUGH: Final = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """A rate to reach: its text, and bits or events per second."""

    text: str
    bits: float | None
    events: float | None


def target_of(text: str) -> Target:
    """A rate from its text.

    Raises
    ------
    ValueError
        If it is none.
    """
    found = RATE.fullmatch(text)
    if found is None or not float(found["number"]):
        raise ValueError(f"{text!r} is not a rate; write one such as {EXAMPLES}")
    value = float(found["number"]) * PREFIXES[found["prefix"]]
    bits = BITS.get(found["unit"])
    return Target(text.strip(), None if bits is None else bits * value, value if bits is None else None)


def needs_of(target: Target, found: Explanation, groups: Sequence[Sequence[Judged]], unit: str) -> list[str]:
    """Sentences on what has to change, the farthest from enough first."""
    events = _events(target, groups)
    if events is None:
        return [f"How far {target.text} is cannot be told: the bytes of chunks were not recorded."]
    return [*_limits(target, events, found), _workers(target, events, found, groups, unit)]


def _events(target: Target, groups: Sequence[Sequence[Judged]]) -> float | None:
    """The rate in events per second."""
    if target.events is not None:
        return target.events
    runs = [run for group in groups for run in group]
    size = sum(run.pace.amounts.get(pace.BYTES, 0.0) for run in runs)
    return (target.bits or 0.0) / (8 * size) * sum(run.scaled.events for run in runs) if size else None


def _limits(target: Target, events: float, found: Explanation) -> list[str]:
    """Limits that are too low."""
    rates = [cause.rate for cause in found.causes if cause.rate and cause.share.value >= MATTERS]
    needed = [(events * rate.each / rate.value.value, rate) for rate in rates]
    lines = []
    for factor, rate in sorted(needed, key=lambda pair: -pair[0]):
        amount = rate.unit.text(three_digits(events * rate.each))
        if factor > ENOUGH:
            times = number(three_digits(factor))
            lines.append(f"{target.text} needs {times} times {rate.thing}: {amount} instead of {rate.text()}.")
        else:
            lines.append(f"For {target.text} {rate.thing} is enough: {amount} of {rate.text()}.")
    return lines


def _workers(target: Target, events: float, found: Explanation, groups: Sequence[Sequence[Judged]], unit: str) -> str:
    """How many workers do that if nothing limits them."""
    largest = groups[-1][0].scaled
    each = largest.threads / largest.workers if unit == WORKERS else 1.0
    needed = events * found.ideal / each
    rate = max((run.scaled.rate for group in groups for run in group), default=0.0)
    reached = FRACTION.text(min(rate / events, 9.99)) if events else ""
    words = f"Without any limit {target.text} would take {number(three_digits(needed))} such {unit}"
    return f"{words}; the fastest of these runs reached {reached} of it."
