"""The reported case: one analysis on 50 to 800 workers, with times that storage and scheduler can both cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .campaigns import Campaign
from .plan import Plan

TIMES: Final = {50: 359.0, 100: 280.0, 200: 252.0, 400: 344.0, 800: 500.0}
"""Seconds by workers, as the public report of the 200 Gbps exercise has them."""

STORAGE: Final = {50: 545.7e6, 100: 701.1e6, 200: 779.5e6, 400: 569.5e6, 800: 390.9e6}
"""What the storage delivers to so many workers, in bytes per second, for these times."""

SCHEDULER: Final = {50: 0.107, 100: 0.08349, 200: 0.07573, 400: 0.1032, 800: 0.1402}
"""Seconds of the scheduler per task, for these times."""

SLOW_SERVER: Final = {50: 2187e6, 100: 2813e6, 200: 3134e6, 400: 2288e6, 800: 1568e6}
"""What four data servers deliver together if one of them is four times slower, in bytes per second, for these times."""

LATE: Final = {50: 267.6, 100: 228.9, 200: 225.6, 400: 331.8, 800: 494.5}
"""Seconds after which all workers but ten come, for these times."""

PLAN: Final = Plan(
    chunks=3200, cpu=1.0, build=0.1, size=60e6, stream_rate=60e6, result=1e5, prepare=1e-4, per_host=50
)  # fmt: skip
SEED: Final = 7
PEAK: Final = 200


def same_times() -> list[Campaign]:
    """Campaigns with these times: limited by storage, a slow data server, the scheduler, and workers that come late."""
    common = {"sizes": tuple(TIMES), "turning": PEAK, "seed": SEED, "same_seed": True}
    return [
        Campaign(
            name="reported, by storage",
            cause="storage bandwidth",
            plan=PLAN,
            changes={workers: {"storage_rate": rate} for workers, rate in STORAGE.items()},
            **common,
        ),
        Campaign(
            name="reported, by server",
            cause="storage bandwidth",
            plan=replace(PLAN, servers=4, slow_servers={2: 4.0}),
            changes={workers: {"storage_rate": rate} for workers, rate in SLOW_SERVER.items()},
            **common,
        ),
        Campaign(
            name="reported, by scheduler",
            cause="scheduler",
            plan=PLAN,
            changes={workers: {"scheduler": seconds} for workers, seconds in SCHEDULER.items()},
            **common,
        ),
        Campaign(
            name="reported, by late workers",
            cause="late workers",
            plan=replace(PLAN, late_after=10),
            changes={workers: {"late_seconds": seconds} for workers, seconds in LATE.items()},
            **(common | {"turning": min(TIMES)}),
        ),
    ]
