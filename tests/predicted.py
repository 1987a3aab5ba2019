"""A run to predict from, and what comes of it."""

from __future__ import annotations

from made_runs import plan

from roastcoffea.studies.what_if.what_if import WhatIf

FOUR = [plan(1.0, 2.0), plan(2.0, 1.0), plan(3.0), plan(0.5, 2.5)] * 4
"""Chunks of 3 s each: CPU and waiting."""


def seconds(found: WhatIf, scenario: str = "as recorded") -> list[float]:
    return [round(one.seconds or -1.0, 1) for one in found.predictions if one.scenario == scenario]
