"""Requested workers: when each arrived and left, or why it did not arrive, and their states over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from pyarrow import Table

from roastcoffea.metrics.catalogue import fact, refuse_if, table
from roastcoffea.metrics.facts import recorded, rows_with
from roastcoffea.metrics.scheduler_and_client import OF_SEVERAL
from roastcoffea.metrics.statistics import MICROSECONDS, Numbers, axes, spread, union
from roastcoffea.records import workers as records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Row, grouped, picked, seconds_column, text_column
from roastcoffea.records.run import Run

ARRIVED, LEFT, WORKING = "arrived", "left", "working"

STATES: Final = (
    *(WORKING, ARRIVED, records.STARTED, records.PENDING, records.HELD, records.SUBMITTED, records.REQUESTED),
    *(records.ENDED, LEFT, records.RELEASED),
)
"""States of requested workers, from best to worst."""

ARRIVAL_COLUMNS: Final = (
    *picked(records.LIFETIME_COLUMNS, "name", "worker", "job"),
    seconds_column("requested", "when it was requested, or start of the run (Unix time)"),
    seconds_column("submitted", "when its job was submitted, or start of the run (Unix time)"),
    seconds_column("started", "when its job started, or was first found running (Unix time)"),
    seconds_column("arrived", "when it connected to the scheduler, or start of the run (Unix time)"),
    seconds_column("left", "when it left before the end of the run (Unix time)"),
    seconds_column("released", "when it was no longer requested (Unix time)"),
    text_column("state", '"arrived", "left", or the last state of a worker that never arrived'),
    text_column("reason", "the batch system's last reason before it arrived"),
)
"""One row for each worker that the client's cluster object requested."""


@fact
def requested_workers(run: Run, lifetimes: Table) -> list[Row]:
    """Requested workers: rows of `arrivals`, and the `states` that each entered with their times."""
    refuse_if(run.merged, OF_SEVERAL)
    lives = grouped(lifetimes.sort_by("start").to_pylist(), "name")
    found = grouped(recorded(run, "worker_requests").to_pylist(), "name")
    if found.keys().isdisjoint(lives):  # a Dask Gateway has numbers: the first to arrive is the first requested
        lives = dict(zip(found, lives.values(), strict=False))
    return [_requested(rows, lives.get(name), run) for name, rows in found.items()]


def _requested(rows: Sequence[Row], lives: Sequence[Row] | None, run: Run) -> Row:
    """A requested worker, from its requests and its lifetimes."""
    states, last = [(min(max(row["time"] or 0.0, run.start), run.stop), row["state"]) for row in rows], rows[-1]
    row = last | {state: time for time, state in reversed(states)} | {"requested": states[0][0]}
    if lives:
        arrived, left, end = lives[0]["start"], lives[-1]["stop"], states[-1]
        states = [*(each for each in states if each[0] < arrived), (arrived, ARRIVED)]
        row |= {"arrived": arrived, "state": ARRIVED, "started": lives[0]["job_start"] or row.get("started")}
        row |= {name: lives[0][name] or row.get(name) for name in ("name", "worker", "job")}
        if left < run.stop:
            row |= {"state": LEFT, "left": left}
            states.append((left, LEFT))
            if end[1] == records.RELEASED:
                states.append((max(end[0], left), records.RELEASED))
    return row | {"states": states}


@table
def arrivals(requested_workers: list[Row]) -> Table:
    """Requested workers with ARRIVAL_COLUMNS."""
    return table_of_rows(ARRIVAL_COLUMNS, requested_workers)


@fact
def workforce(run: Run, requested_workers: list[Row], tasks: Table) -> tuple[Numbers, Numbers]:
    """Requested workers over time: edges of bins, and the mean number in each of STATES between them."""
    spans = [
        (STATES.index(state), begin, end)
        for row in requested_workers
        for (begin, state), (end, _) in pairwise([*row["states"], (run.stop, "")])
    ]
    own = rows_with(tasks, "worker", [row.get("worker") for row in requested_workers])
    own = own.select(["worker", "start", "stop"]).to_pandas().fillna({"stop": run.stop}).dropna()
    for _, each in own.groupby("worker"):
        spans += [(0, *span) for span in zip(*union(each["start"].to_numpy(), each["stop"].to_numpy()), strict=True)]
    state, *times = np.array(spans).T
    begins, ends = np.clip(times, run.start, run.stop)
    grid = axes(run.start, run.stop, np.arange(len(STATES)), len(STATES), 300)
    seconds = spread(state.astype(np.int64), begins, ends, ends - begins, grid)
    seconds[1] -= seconds[0]  # those that execute nothing
    edges = run.start + grid.edges / MICROSECONDS
    return edges, seconds / np.diff(edges)
