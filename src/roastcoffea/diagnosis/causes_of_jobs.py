"""Causes in the batch jobs that workers run in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.time_limits import WALLTIME, ended_by_limits
from roastcoffea.units import SECOND, counted, number

ADVICE: Final = "Request a longer walltime"
LINE: Final = 'worker_extra_args=["--lifetime", "{minutes}m", "--lifetime-stagger", "{stagger}m"]'
MARGIN: Final = 0.9
"""Share of the walltime that a --lifetime may last, so that workers finish their task."""


@cause("time limit")
def time_limit(evidence: Evidence) -> Iterator[Draft]:
    """Workers ended by a time limit while there was work."""
    workers = 0 if evidence.run.lifetimes is None else len(evidence.run.lifetimes)
    for ended in ended_by_limits(evidence.run):
        what = (
            f"{number(ended.workers)} of {counted(workers, 'worker')} end after {SECOND.text(ended.after)}: "
            f"{ended.limit}. Until others replace them, {SECOND.text(ended.missing)} of thread time are missing."
        )
        line, advice = None, f"{ADVICE}, and a --lifetime a little shorter."
        minutes = int(MARGIN * ended.after / 60)
        if ended.limit == WALLTIME and minutes:
            line = LINE.format(minutes=minutes, stagger=max(minutes // 10, 1))
            advice = f"{ADVICE}, or let workers finish their task and leave before it: {line}"
        yield Draft(what, advice, remedy=line, rows={"ended by a time limit": ended.missing})
