"""Offsets of clocks, from bounds that messages give."""

from __future__ import annotations

import math


class ClockBounds:
    """Bounds of the offset of a clock, narrowed by each message."""

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf

    def narrow(self, low: float, high: float) -> None:
        """Take the bounds that one message gives; if they exclude earlier ones, a clock was set."""
        lowest, highest = max(low, self._low), min(high, self._high)
        self._low, self._high = (lowest, highest) if lowest <= highest else (low, high)

    @property
    def offset(self) -> float:
        """The offset; NaN before the first message."""
        return offset_within(self._low, self._high)


def offset_within(low: float, high: float) -> float:
    """Offset of a clock between these bounds: 0 if they allow it, otherwise their middle; NaN without both.

    Equal clocks are likelier than messages that took equally long both ways.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return math.nan
    return 0.0 if low <= 0 <= high else (low + high) / 2
