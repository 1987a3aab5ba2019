"""`python stepped.py COMMAND...` is `dask COMMAND...` with a clock that a file moves, by so many seconds.

Whoever imports this module gets the clock, too; it must come before Dask, which keeps `time.time` under names of its
own. `time.clock_gettime` still shows the host's clock.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

CLOCK: Final = "ROASTCOFFEA_STEPPED_CLOCK"
"""Environment variable with the path of the file."""

_host = time.time
_ahead = 0.0


def stepped() -> float:
    """Unix time, as far as this process knows."""
    return _host() + _ahead


def follow(path: Path) -> None:
    """Move the clock within 20 ms after the file has changed."""

    def read() -> None:
        global _ahead  # noqa: PLW0603
        while True:
            with suppress(OSError, ValueError):  # there is no file yet, or it is being written
                _ahead = float(path.read_text())
            time.sleep(0.02)

    threading.Thread(target=read, name="stepped clock", daemon=True).start()


time.time = stepped
if CLOCK in os.environ:
    follow(Path(os.environ[CLOCK]))

if __name__ == "__main__":
    from dask.__main__ import main

    main()
