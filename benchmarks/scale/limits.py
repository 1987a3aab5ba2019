"""Campaigns with planted limits: does `scaling` find them, and from how many workers on?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import roastcoffea

from .campaigns import PLANTED, Campaign, planted
from .reported import same_times

CHUNK_SECONDS = 1.2
TINY = 0.1
LIVE_SIZES = (2,)
LIVE_WAVES = 3
NEEDED = 7


def add_options(parser: Any) -> None:
    """Add what can be chosen."""
    parser.add_argument("--live", action="store_true", help="a real scheduler and client, and workers that wait")
    parser.add_argument("--recorded", action="store_true", help="simulated runs that go through the recorder")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers of campaigns")
    parser.add_argument("--kinds", nargs="*", help="only these campaigns, such as 'slow client'")
    parser.add_argument("--save", type=Path, help="folder for the measurements, and a page for each campaign")


def limits(options: Any) -> int:
    """Make campaigns, explain them, and count those whose limit and turning point were missed beyond the goal."""
    found = 0
    made = [campaign for campaign in _campaigns(options) if not options.kinds or campaign.name in options.kinds]
    print(f"{'planted':20} {'from':>6}   {'found':32} {'from':>6}  {'share':>6}")
    for campaign in made:
        found += _tried(campaign, options)
    print(f"{found} of {len(made)} limits and turning points found (goal: {NEEDED} of {len(PLANTED)})", flush=True)
    return max(len(made) - (len(PLANTED) - NEEDED) - found, 0)


def _campaigns(options: Any) -> list[Campaign]:
    if not options.live:
        return [*planted(options.seed), *same_times()]
    from .live import tasks_per_second

    campaigns = planted(options.seed, smallest=LIVE_SIZES, waves=LIVE_WAVES)
    made = []
    for campaign in campaigns:
        tiny = campaign.cause == "scheduler"
        hurried = campaign.hurried(TINY if tiny else CHUNK_SECONDS)
        if tiny and (not options.kinds or campaign.name in options.kinds):
            # what the real scheduler can do is measured, without a collector
            hurried = replace(hurried, turning=tasks_per_second() * TINY)
        made.append(hurried)
    # the real scheduler is not as slow as planned; the others take half an hour each, so only where they are named
    return made + [one for one in same_times() if one.name in (options.kinds or ()) and one.cause != "scheduler"]


def _tried(campaign: Campaign, options: Any) -> bool:
    """Whether a campaign's limit is found."""
    runs = list(_runs(campaign, options))
    study = roastcoffea.scaling(runs)
    main = study.explanation.main
    right = main is not None and main.name == campaign.cause
    near = main is not None and abs(campaign.step(main.turning.value) - campaign.step(campaign.turning)) <= 1
    name, turning, share = (main.name, main.turning.value, main.share.value) if main else ("nothing", 0.0, 0.0)
    verdict = "" if right and near else "  MISSED"
    print(f"{campaign.name:20} {campaign.turning:6.0f}   {name:32} {turning:6.0f}  {share:6.0%}{verdict}", flush=True)
    if options.save:
        study.page(options.save / f"{campaign.name.replace(' ', '-')}.html", overwrite=True)
    return right and near


def _runs(campaign: Campaign, options: Any) -> Iterator[roastcoffea.Measurement]:
    if not options.live and not options.recorded:
        yield from (roastcoffea.Measurement(run) for run in campaign.runs())
        return
    if options.live:
        from .live import live as made
    else:
        from .fed import fed as made

    for place, workers in enumerate(campaign.sizes):
        seed = campaign.seed if campaign.same_seed else campaign.seed + place
        run = made(campaign.plan_of(workers), workers, seed=seed, first=not place)
        if options.save:
            run.save(options.save / campaign.name.replace(" ", "-"), f"workers-{workers}", overwrite=True)
        yield run
