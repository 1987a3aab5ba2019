"""Problems that show when the records of a run are held against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from roastcoffea.errors import reported
from roastcoffea.metrics.failures import skipped_data
from roastcoffea.metrics.totals import disagreements
from roastcoffea.records.run import Run

CHECKS: Final[tuple[tuple[Callable[[Run], Iterable[str]], str], ...]] = (
    (skipped_data, "whether data were skipped is not known"),
    (disagreements, "whether coffea's report covers the run is not known"),
)


def checked(run: Run) -> Run:
    """The run, with the problems that show in its records among its own."""
    return dataclasses.replace(run, problems=(*run.problems, *_found(run)))


def with_report(run: Run, report: Any, custom_metrics: Any) -> Run:
    """A checked run with another report of coffea's, and the problems that it has with this one."""
    former = _found(run)
    own = tuple(problem for problem in run.problems if problem not in former)
    return checked(dataclasses.replace(run, coffea_report=report, custom_metrics=custom_metrics, problems=own))


def _found(run: Run) -> list[str]:
    found: list[str] = []
    for check, unknown in CHECKS:
        # reports are the user's own objects, and anything may come of asking them
        with reported(found.append, unknown, Exception):
            found += check(run)
    return found
