"""Workers ended by a time limit while there was work: of their batch job, or of their own (--lifetime)."""

from __future__ import annotations

from statistics import median
from typing import Any, Final, NamedTuple

from roastcoffea.records.run import Run

WALLTIME: Final = "the walltime of their jobs"
LIFETIME: Final = "their --lifetime"

BEFORE: Final = 5.0
"""Seconds before the limit at which a job may be ended: its start is that of its first process."""
AFTER: Final = 60.0
"""Seconds after the limit within which a worker has gone: it finishes its task, or is killed after a warning."""


class Ended(NamedTuple):
    """Workers that one kind of limit ended.

    Thread time is missing from each departure to the arrival of a replacement, otherwise to the end of the run.
    """

    limit: str
    workers: int
    after: float
    """Median time from the start of the job, otherwise from arrival, to departure."""
    missing: float


def ended_by_limits(run: Run) -> list[Ended]:
    """Workers that left at a limit before the end of a run, by limit."""
    if run.lifetimes is None:
        return []
    lives = [life for life in run.lifetimes.to_pylist() if None not in (life["start"], life["stop"], life["threads"])]
    arrivals = sorted(life["start"] for life in lives)
    found: dict[str, list[tuple[float, float]]] = {}
    for life in sorted(lives, key=lambda one: one["stop"]):
        limit = _limit(life) if life["stop"] < run.stop else None
        if limit is not None:
            back = next((moment for moment in arrivals if moment >= life["stop"]), run.stop)
            if back in arrivals:
                arrivals.remove(back)
            age = life["stop"] - (life["start"] if life["job_start"] is None else life["job_start"])
            found.setdefault(limit, []).append((age, life["threads"] * (back - life["stop"])))
    return [
        Ended(limit, len(each), median(age for age, _ in each), sum(missing for _, missing in each))
        for limit, each in found.items()
    ]


def _limit(life: dict[str, Any]) -> str | None:
    """What ended a worker when it left; None if it was none of these."""
    closes, start, most = life["lifetime_end"], life["job_start"], life["job_limit"]
    closed = life["stop"] if life["closing"] is None else life["closing"]
    if closes is not None and -BEFORE <= closed - closes <= AFTER:
        return LIFETIME
    if start is not None and most is not None and -BEFORE <= life["stop"] - start - most <= AFTER:
        return WALLTIME
    return None
