"""What measuring costs at the size of a data challenge: 2000 workers and 1,000,000 chunks with their merges.

The plugin on the scheduler is fed by stand-ins for the scheduler and its states, the client by what the plugin wrote;
each part has a process of its own. Seconds are printed with the CPU time of the process, which another program on the
machine changes less. How much of a scheduler's CPU time is ours is measured on a real one as well.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.scale.client_cost import SAMPLED, of_measurement, of_samples, on_client, with_samples
from benchmarks.scale.figures import HEADINGS, Figure, apart, table_of
from benchmarks.scale.scheduler_cost import HEARTBEAT, on_scheduler, share_of_real_scheduler
from benchmarks.scheduler import THREADS, Load

PARTS: Final[Mapping[str, tuple[str, Callable[[Any, Load, Path], list[Figure]]]]] = {
    "real": ("real scheduler", lambda options, *_: apart(share_of_real_scheduler, options.tasks)),
    "scheduler": ("plugin on the scheduler", lambda _, size, folder: apart(on_scheduler, size, folder)),
    "client": ("client", lambda _, size, folder: apart(on_client, size, folder)),
    "measurement": ("measurement", lambda *given: apart(of_measurement, given[-1])),
    "samples": (
        f"samples of {SAMPLED} workers each second",
        lambda *given: apart(with_samples, given[-1]) + apart(of_samples, given[-1]),
    ),
}
"""Parts by name: title, and what gives its figures. Each needs what those before it left in the folder."""


def add_options(parser: Any) -> None:
    """Add what can be chosen."""
    parser.add_argument("--workers", type=int, default=2000, help="with four threads each (default 2000)")
    parser.add_argument("--chunks", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--seconds", type=int, default=3600, help="of the run (default 3600)")
    parser.add_argument("--tasks", type=int, default=5000, help="of the real scheduler (default 5000)")
    parser.add_argument("--costs", nargs="+", choices=PARTS, default=[*PARTS], help="only these parts of the costs")
    parser.add_argument("--keep", type=Path, help="folder for what one part leaves to the next, such as the log")


def costs(options: Any) -> int:
    """Print each figure with its goal; return how many goals were missed."""
    threads = options.workers * THREADS
    size = Load(options.workers, options.seconds, options.chunks // threads * threads, HEARTBEAT)
    began = time.perf_counter()
    print(f"{size.tasks:,} chunks on {size.workers:,} workers; {os.getloadavg()[0]:.1f} processes want a core")
    print(HEADINGS)
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        found = [figure for part in PARTS if part in options.costs for figure in _shown(part, options, size, folder)]
    missed = [figure.what.strip() for figure in found if figure.is_missed]
    said = f"MISSED: {', '.join(missed)}" if missed else "all goals of the costs are kept"
    print(f"{time.perf_counter() - began:.0f} s; {said}", flush=True)
    return len(missed)


def _shown(part: str, options: Any, size: Load, folder: Path) -> list[Figure]:
    title, figures_of = PARTS[part]
    figures = figures_of(options, size, folder)
    print(table_of(title, figures), flush=True)
    return figures
