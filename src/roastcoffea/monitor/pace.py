"""Regular ticks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator


def ticks(interval: float) -> Iterator[None]:
    """Yield now, and then once per interval; late ticks are skipped."""
    due = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        due += interval * max(1, math.ceil((now - due) / interval))
        time.sleep(max(0.0, due - now))
