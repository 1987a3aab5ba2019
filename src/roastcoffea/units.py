"""Units of metrics, with number formats.

Prefixes are decimal: 1 kB is 1000 B. Formatted values are plain ASCII, so any terminal can print them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

SMALL_PREFIXES: Final = ("", "m", "u", "n", "p")
LARGE_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
SECONDS_PER_MINUTE: Final = 60
SECONDS_PER_HOUR: Final = 3600
SECONDS_PER_DAY: Final = 86400


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit; `symbol` identifies the unit in stored data, and `text(value)` formats a value."""

    symbol: str
    text: Callable[[float], str]

    def __str__(self) -> str:
        return self.symbol

    def __reduce__(self) -> str | tuple[Any, ...]:
        # unpickling returns the same object, because `text` may be a closure, which cannot be pickled
        name = next((name for name, unit in globals().items() if unit is self), None)
        return name or (Unit, (self.symbol, self.text))


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def number(value: float) -> str:
    """Format a number without a unit: as an integer if it is whole or at least 1000, otherwise to three digits.

    Examples
    --------
    >>> number(2_000_000), number(0.123456), number(12345.6)
    ('2,000,000', '0.123', '12,346')
    """
    size = abs(value)
    if math.isfinite(value) and size < 1e15 and (size >= 1000 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def counted(amount: float, noun: str) -> str:
    """Format an amount with a noun, using the plural unless the amount is 1.

    Examples
    --------
    >>> counted(1, "core"), counted(2000, "chunk")
    ('1 core', '2,000 chunks')
    """
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"


def few(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, and count the others."""
    more = f" and {number(len(names) - most)} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def were(amount: float) -> str:
    return "was" if amount == 1 else "were"


def are(amount: float) -> str:
    return "is" if amount == 1 else "are"


def duration(seconds: float) -> str:
    """Format a duration.

    Examples
    --------
    >>> duration(0.0123), duration(63), duration(7505), duration(-90)
    ('12.3 ms', '1 min 3 s', '2 h 5 min', '-1 min 30 s')
    """
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if not math.isfinite(size) or three_digits(size) < SECONDS_PER_MINUTE:
        return _seconds(seconds)
    for (small, small_name), (large, large_name), most in (
        ((1, "s"), (SECONDS_PER_MINUTE, "min"), SECONDS_PER_HOUR),
        ((SECONDS_PER_MINUTE, "min"), (SECONDS_PER_HOUR, "h"), SECONDS_PER_DAY),
        ((SECONDS_PER_HOUR, "h"), (SECONDS_PER_DAY, "d"), 1000 * SECONDS_PER_DAY),
    ):
        amount = round(size / small)
        if amount * small < most:
            return f"{sign}{amount * small // large} {large_name} {amount % (large // small)} {small_name}"
    return f"{number(seconds / SECONDS_PER_DAY)} d"


def moment(seconds: float, *, milliseconds: bool = False) -> str:
    local = datetime.fromtimestamp(seconds, timezone.utc).astimezone()
    fraction = f".{local.microsecond // 1000:03d}" if milliseconds else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{fraction} {local:%Z}"


def minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc).astimezone():%Y-%m-%d %H:%M %Z}"


def scaled(base: str, factor: float = 1, *, smallest: str = "p", like: float | None = None) -> Callable[[float], str]:
    """Create a formatter that picks a suitable decimal prefix.

    Parameters
    ----------
    base
        Unit symbol without a prefix.
    factor
        Size of the stored unit in units of `base`, e.g. 1000 for values in kHz if the base is "Hz".
    smallest
        Smallest prefix to use; with "", half a byte is formatted as "0.5 B".
    like
        Stored value that determines the prefix for all amounts; by default, each amount has its own prefix.

    Examples
    --------
    >>> scaled("bit/s", 1e9, like=1.5)(0.0123)
    '0.0123 Gbit/s'
    """
    small = SMALL_PREFIXES[: SMALL_PREFIXES.index(smallest) + 1]

    def text(value: float) -> str:
        amount = value * factor
        if not math.isfinite(amount) or amount == 0:
            return f"{amount:g} {base}"
        size = abs(three_digits(amount if like is None else like * factor))
        steps = math.floor(math.log10(size) / 3 + 1e-12)
        steps = max(1 - len(small), min(len(LARGE_PREFIXES) - 1, steps))
        prefix = LARGE_PREFIXES[steps] if steps >= 0 else small[-steps]
        return f"{amount * 10.0 ** (-3 * steps):.3g} {prefix}{base}"

    return text


def suffixed(suffix: str, factor: float = 1) -> Callable[[float], str]:
    """Create a formatter that appends a word or sign to the amount, without a decimal prefix."""
    return lambda value: f"{number(three_digits(value * factor))} {suffix}"


_seconds = scaled("s")

SECOND: Final = Unit("s", duration)
BYTE: Final = Unit("B", scaled("B", smallest=""))
BYTE_PER_SECOND: Final = Unit("B/s", scaled("B/s", smallest=""))
MEBIBYTE: Final = Unit("MiB", lambda value: f"{number(three_digits(round(value, 2)))} MiB")
GIGABIT_PER_SECOND: Final = Unit("Gbit/s", scaled("bit/s", 1e9, smallest=""))
KILOHERTZ: Final = Unit("kHz", scaled("Hz", 1e3, smallest=""))
PERCENT: Final = Unit("%", suffixed("%"))
FRACTION: Final = Unit("fraction", suffixed("%", 100))
RATIO: Final = Unit("ratio", suffixed("x"))
COUNT: Final = Unit("count", number)
WORD: Final = Unit("word", str)
STRUCTURE: Final = Unit("structure", repr)

RATES: Final = {
    GIGABIT_PER_SECOND.symbol: partial(scaled, "bit/s", 1e9, smallest=""),
    KILOHERTZ.symbol: partial(scaled, "Hz", 1e3, smallest=""),
    BYTE_PER_SECOND.symbol: partial(scaled, "B/s", smallest=""),
}
"""Factories for rate formatters, by unit symbol; their `like` argument sets a common prefix for a table."""

OF_NUMBERS: Final = (
    *(SECOND, BYTE, BYTE_PER_SECOND, MEBIBYTE, GIGABIT_PER_SECOND, KILOHERTZ),
    *(PERCENT, FRACTION, RATIO, COUNT),
)
BY_SYMBOL: Final = {unit.symbol: unit for unit in OF_NUMBERS}

SMALLEST_SHARE: Final = 1e-3

SCALES: Final = {**RATES, SECOND.symbol: partial(scaled, "s"), BYTE.symbol: partial(scaled, "B", smallest="")}
"""Factories for formatters with a decimal prefix, by unit symbol."""


def alike(unit: Unit, values: Iterable[float]) -> Unit:
    """Unit that formats all amounts with the prefix of the largest amount.

    If durations reach a minute, the unit is returned unchanged. Amounts that would be hard to read with the common
    prefix keep their own prefix.

    Examples
    --------
    >>> row = alike(GIGABIT_PER_SECOND, [0.0632, 1.5])
    >>> row.text(0.0632), row.text(1.5)
    ('0.0632 Gbit/s', '1.5 Gbit/s')
    """
    scale = SCALES.get(unit.symbol) if unit in OF_NUMBERS else None
    largest = max(map(abs, values), default=0.0)
    if scale is None or not math.isfinite(largest) or not largest:
        return unit
    if unit is SECOND and three_digits(largest) >= SECONDS_PER_MINUTE:
        return unit
    shared = scale(like=largest)
    return Unit(unit.symbol, lambda value: (shared if abs(value) >= 1e-4 * largest else unit.text)(value))


def rough(amount: float, unit: Unit = SECOND) -> str:
    """Format a saving or share to two digits, except durations of a minute or more.

    Examples
    --------
    >>> rough(9.387), rough(0.4837, FRACTION), rough(137)
    ('9.4 s', '48 %', '2 min 17 s')
    """
    return unit.text(amount if unit is SECOND and abs(amount) >= SECONDS_PER_MINUTE else float(f"{amount:.2g}"))


def share_text(share: float) -> str:
    """Format a share as a percentage; very small shares are shown as "< 0.1 %"."""
    return f"< {FRACTION.text(SMALLEST_SHARE)}" if 0 < abs(share) < SMALLEST_SHARE else FRACTION.text(share)
