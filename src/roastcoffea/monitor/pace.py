"""The pace at which something is looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator


def ticks(interval: float) -> Iterator[None]:
    """Come now, and then once each interval; what is late is left out."""
    due = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        due += interval * max(1, math.ceil((now - due) / interval))
        time.sleep(max(0.0, due - now))
