"""A gate for continuous integration: conditions on the change of metrics, judged with the repeats that there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE
from roastcoffea.studies.compare.observations import Runs
from roastcoffea.studies.compare.repeats import ABOVE, CONFIDENCE, EXACT, RUNS, Judgement, judged
from roastcoffea.units import BYTE, FRACTION, GIGABIT_PER_SECOND, KILOHERTZ, MEBIBYTE, PERCENT, SECOND, Unit, suffixed

FAILED: Final = "failed"
PASSED: Final = "passed"
UNKNOWN: Final = "cannot be told"

STATUS: Final[Mapping[str, int]] = {PASSED: 0, FAILED: 1, UNKNOWN: 2}
"""Exit status by outcome."""

EXPRESSION: Final = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)\s*(?P<unit>\S*)\s*"
)
FORM: Final = "'NAME < NUMBER', with <, <=, > or >=, and % or a unit behind, such as 'event_rate_core_khz < -10%'"

_DECIMAL: Final = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNITS: Final[Mapping[Unit, Mapping[str, float]]] = {
    SECOND: {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    BYTE: {"B": 1.0, **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}},
    MEBIBYTE: {"MiB": 1.0, "GiB": 1024.0},
    KILOHERTZ: {"Hz": 1e-3, **{f"{prefix}Hz": factor / 1e3 for prefix, factor in _DECIMAL.items()}},
    GIGABIT_PER_SECOND: {f"{prefix}bit/s": factor / 1e9 for prefix, factor in _DECIMAL.items()},
    PERCENT: {"points": 1.0},
    FRACTION: {"points": 0.01},
}
"""What may stand behind a number, by the unit of the metric; as a factor to what is stored."""


POINTS: Final = {PERCENT: Unit("points", suffixed("points")), FRACTION: Unit("points", suffixed("points", 100))}
"""Of differences of shares: a change of 5 % would be another thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A change of a metric that is not wanted; `limit` is relative (0.1 is 10 %), or in the metric's unit."""

    text: str
    name: str
    sign: str
    limit: float
    relative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a condition: "failed" (with evidence), "passed", or "cannot be told"."""

    condition: Condition
    label: str
    word: str
    text: str
    judgement: Judgement


def condition_of(text: str) -> Condition:
    """Condition that an expression says.

    Raises
    ------
    ComparisonError
        If it is malformed, names no metric, or has a unit that is none of the metric's.
    """
    found = EXPRESSION.fullmatch(text)
    if found is None:
        raise ComparisonError(f"{text!r} is no condition: write {FORM}")
    name, unit = CATALOGUE.aliases.get(found["name"], found["name"]), found["unit"]
    known = {metric.name: metric.unit for metric in CATALOGUE.metrics()}
    if name not in known:
        near = get_close_matches(found["name"], [*known, *CATALOGUE.aliases])
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `roastcoffea metrics` lists them"
        raise ComparisonError(f"there is no metric {found['name']!r}{hint}")
    relative, own = unit == "%", known[name]
    factors = {"": 1.0, own.symbol: 1.0, **UNITS.get(own, {}), "%": 0.01}
    if unit not in factors:
        possible = ", ".join(filter(None, dict.fromkeys((*UNITS.get(own, {}), own.symbol))))
        raise ComparisonError(f"{name} is in {own.symbol}, not in {unit!r}; write %, {possible} or nothing")
    limit = float(found["number"]) * factors[unit]
    if relative and limit <= -1:
        raise ComparisonError(f"{text!r} asks for a change of {found['number']} %: nothing can fall that far")
    return Condition(text=" ".join(text.split()), name=name, sign=found["sign"], limit=limit, relative=relative)


def outcome_of(condition: Condition, before: Runs, after: Runs, label: str, confidence: float = CONFIDENCE) -> Outcome:
    """What becomes of a condition on the change from runs before to runs after.

    Raises
    ------
    ComparisonError
        If a run lacks the metric.
    """
    name = condition.name
    for run in (*before, *after):
        if name not in run.metrics:
            raise ComparisonError(f"{run.name} has no {name}: {run.missing.get(name, 'it is no plain number')}")
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    relative, exact, unit = condition.relative, name in EXACT, before[0].units[name]
    judgement = judged(old, new, condition.limit, relative=relative, exact=exact, confidence=confidence)
    word = _word(condition, judgement)
    text = f"{condition.text}: {word}, {change_text(judgement, relative, unit, confidence)}"
    if word == UNKNOWN:
        text += f"; {judgement.reason}" + (f"; {needed_text(judgement)}" if judgement.needed else "")
    return Outcome(condition=condition, label=label, word=word, text=text, judgement=judgement)


def _word(condition: Condition, judgement: Judgement) -> str:
    if judgement.side is None:
        on_limit = judgement.low is not None and judgement.over is None  # known, and not from repeats that scatter
        return UNKNOWN if not on_limit else FAILED if condition.sign.endswith("=") else PASSED
    unwanted = (judgement.side == ABOVE) == condition.sign.startswith(">")
    return FAILED if unwanted else PASSED


def needed_text(judgement: Judgement) -> str:
    """How many repeats would tell."""
    if judgement.over != RUNS:
        return f"at least {judgement.needed} runs of each are needed"
    return f"about {judgement.needed} runs of each would tell, as they scatter"


def change_text(judgement: Judgement, relative: bool, unit: Unit, confidence: float) -> str:
    """A change in words: its interval, or itself where it has no scatter."""
    if judgement.low is None or judgement.high is None:
        return "the change is not known"
    bounds = (judgement.low, judgement.high)
    low, high = (signed(FRACTION, value) if relative else change_of(unit, value) for value in bounds)
    if judgement.low == judgement.high:
        return f"the change is {low}"
    return f"the change is {low} to {high} ({confidence:.0%} interval)"


def signed(unit: Unit, value: float) -> str:
    """Amount with its sign."""
    return f"+{unit.text(value)}" if value > 0 else unit.text(value)


def change_of(unit: Unit, value: float) -> str:
    """Difference of two amounts with its sign; of two shares it is in points."""
    return signed(POINTS.get(unit, unit), value)
