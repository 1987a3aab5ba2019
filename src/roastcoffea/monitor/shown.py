"""Displays of a monitor's tasks (live, as a table, as pictures), and polling of a cluster from outside."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.backends.deployment import Connection, NoAnswerError
from roastcoffea.log.kinds import STATES
from roastcoffea.monitor.history import CHUNK, FINISHED, History, Watched
from roastcoffea.monitor.tables import FAILED, RELEASED, attempts_of, fate_of, known_total, quotient
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run, unwatched_run
from roastcoffea.records.workers import CANCELLED, LIFETIME_COLUMNS, PROCESSOR, TASK_COLUMNS, UNFINISHED
from roastcoffea.report.live import NAME
from roastcoffea.sheets.sheet import Cell, Column, Heading, Sheet, columns
from roastcoffea.units import BYTE, COUNT, SECOND, counted, number

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ticks(interval: float) -> Iterator[None]:
    """Yield now, and then once per interval; late ticks are skipped."""
    due = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        due += interval * max(1, math.ceil((now - due) / interval))
        time.sleep(max(0.0, due - now))


@dataclass(frozen=True, kw_only=True)
class Look:
    """Tasks by prefix and state at one moment, from the scheduler's own counts.

    Attributes
    ----------
    time : float
        Unix seconds, on the scheduler's clock.
    num_workers : int
        Number of workers.
    prefixes : dict of collections.Counter
        Number of tasks by prefix and state.
    finished : dict of int
        Results computed since the first look, by prefix.
    """

    time: float
    num_workers: int
    prefixes: Mapping[str, Counter[str]]
    finished: Mapping[str, int]

    @property
    def timestamp(self) -> datetime:
        """The moment, with the local time zone."""
        return datetime.fromtimestamp(self.time, UTC).astimezone()

    @property
    def states(self) -> Counter[str]:
        """Number of tasks by state."""
        return sum(self.prefixes.values(), Counter())

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return self.states.total()


def counts_now(dask_scheduler: Any) -> tuple[float, int, dict[str, tuple[dict[str, int], int]]]:
    """Time, number of workers, and by prefix the tasks in each state and the results so far."""
    counts = {
        prefix.name: (dict(prefix.states), prefix.state_counts["memory"])
        for prefix in dask_scheduler.task_prefixes.values()
    }
    return time.time(), len(dask_scheduler.workers), counts


def looks(client: Any, interval: float) -> Iterator[Look]:
    """One look per interval, until the scheduler no longer answers.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client.
    interval : float
        Seconds between looks; late ones are skipped.
    """
    connection, before = Connection(client), None
    for _ in ticks(interval):
        try:
            moment, workers, counts = connection.answer(counts_now, {})
        except NoAnswerError:
            return
        results = {prefix: count for prefix, (_, count) in counts.items()}
        before = results if before is None else before
        finished = {prefix: count - before.get(prefix, 0) for prefix, count in results.items()}
        prefixes = {prefix: known for prefix, (states, _) in counts.items() if (known := _known(states))}
        yield Look(time=moment, num_workers=workers, prefixes=prefixes, finished=finished)


def _known(states: Mapping[str, int]) -> Counter[str]:
    """Number of tasks by state, of those still known to the scheduler."""
    return Counter({state: count for state, count in states.items() if count and state != "forgotten"})


MOST_LIVE: Final = 6
"""Prefixes with a row of their own in a live display; the others share one."""

LONGEST_PREFIX: Final = 24
OTHERS: Final = "(others)"
LIVE_STATES: Final = tuple(state for state in STATES if state not in {"released", "forgotten"})

BINS: Final = 500
"""Time bins in the picture of states."""


# Live


def look_text(look: Look, seconds: float) -> str:
    """Lines of tasks by prefix and state from a look, this many seconds after the first one."""
    counts = {name: look.prefixes.get(name, Counter()) + Counter({FINISHED: n}) for name, n in look.finished.items()}
    shown = {name: row for name, row in counts.items() if row}
    passed, workers = SECOND.text(float(round(seconds))), counted(look.num_workers, "worker")
    first = f"{NAME}  {passed}, {workers}, {counted(look.num_tasks, 'task')} at the scheduler"
    return "\n".join([first, *live_rows(shown, (FINISHED,))])


def live_rows(counts: Mapping[str, Counter[str]], sums: tuple[str, ...]) -> Iterator[str]:
    """A row for each prefix with the most tasks, with the states that occur, and these sums."""
    if not counts:
        return
    ranked = sorted(counts, key=lambda prefix: -counts[prefix].total())
    rows = {prefix: counts[prefix] for prefix in sorted(ranked[:MOST_LIVE])}
    if rest := ranked[MOST_LIVE:]:
        rows[OTHERS] = sum((counts[prefix] for prefix in rest), Counter())
    names = [state for state in LIVE_STATES if any(row[state] for row in rows.values())]
    names += sums
    table = [("prefix", *names), *((prefix, *(number(row[name]) for name in names)) for prefix, row in rows.items())]
    width, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    width = min(width, LONGEST_PREFIX)
    for prefix, *cells in table:
        amounts = (cell.rjust(wide) for cell, wide in zip(cells, widths, strict=True))
        yield "  ".join(["", prefix[:width].ljust(width), *amounts])


# Tables

OF_PREFIX: Final = (
    Column("prefix", meaning="the key without its token"),
    Column("kind", meaning="role of the tasks in coffea", dispensable=2),
    *columns(COUNT, "tasks", FINISHED, FAILED),
)
OTHER_FATES: Final = {
    UNFINISHED: "still at the scheduler at the end",
    CANCELLED: "released without a result",
    RELEASED: "released before the monitor started",
}
"""Other fates of tasks, each a column if it occurred."""

OF_RESULTS: Final = (
    Column("duration", SECOND, "mean time of computing"),
    Column("results", BYTE, "size of all results in memory", dispensable=1),
)


def monitor_sheets(
    watched: Sequence[Watched], tasks: Sequence[Mapping[str, Any]], problems: Sequence[str]
) -> list[Sheet]:
    """Tasks by prefix, and problems."""
    workers = {worker for period in watched for worker in period.lifetimes["worker"].to_pylist()}
    seconds = SECOND.text(sum(period.stop - period.start for period in watched))
    lead = f"{counted(len(tasks), 'task')} on {counted(len(workers), 'worker')} in {seconds}"
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for task in tasks:
        alike.setdefault((task["prefix"], task["kind"]), []).append(task)
    seen = set(map(fate_of, tasks))
    others = [fate for fate in OTHER_FATES if fate in seen]
    rows = [_row_of(*names, similar, others) for names, similar in alike.items()]
    none = [] if rows else ["No task was recorded."]
    named = (Column(fate, COUNT, OTHER_FATES[fate]) for fate in others)
    table = Sheet(title="tasks", lead=none, columns=(*OF_PREFIX, *named, *OF_RESULTS), rows=rows, things="prefixes")
    found = [Heading(title="tasks of the cluster", label=NAME, lead=[lead]), table]
    return [*found, Sheet(title="problems", items=problems)] if problems else found


def _row_of(prefix: str, kind: str, tasks: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[Cell]:
    fates = Counter(map(fate_of, tasks))
    counts = [fates[fate] for fate in (FINISHED, FAILED, *others)]
    timed = [task["duration"] for task in tasks if task["duration"] is not None]
    mean = quotient(sum(timed), len(timed))
    results = known_total(task["nbytes"] for task in tasks if fate_of(task) == FINISHED)
    return [prefix, kind, len(tasks), *counts, mean, results]


# Pictures


def monitor_run(watched: Sequence[Watched]) -> Run:
    """Tasks and workers as a run with nothing else in it."""
    if not watched:
        raise ValueError("this TaskMonitor has recorded nothing: start it before the tasks")
    kinds = {CHUNK: PROCESSOR}
    rows = [
        attempt | {"key": str(attempt["key"]), "kind": kinds.get(attempt["kind"], attempt["kind"])}
        for attempt in attempts_of(watched)
    ]
    lifetimes: list[dict[str, Any]] = [row for period in watched for row in period.lifetimes.to_pylist()]
    return unwatched_run(
        start=watched[0].start,
        stop=watched[-1].stop,
        backend="dask",
        tasks=table_of_rows(TASK_COLUMNS, rows),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes),
        absent=dict.fromkeys(("chunks", "samples"), "a TaskMonitor records tasks; a MetricsCollector records these"),
    )


def plot_states(
    watched: Sequence[Watched], ax: Axes | None, output_path: str | PathLike[str] | None
) -> tuple[Figure, Axes]:
    """Figure of the number of tasks in each state over time.

    Raises
    ------
    ValueError
        If no task was recorded.
    """
    from roastcoffea.visualization import registry

    seen = [period for period in watched if len(period.history.states)]
    if not seen:
        raise ValueError("there is nothing to draw: no task was recorded")
    if ax is None:
        with registry.own_style(), registry.new_figure(registry.SIZE) as figure:
            ax = figure.add_subplot()
            _draw_states(ax, seen)
    else:
        _draw_states(ax, seen)
    figure = registry.figure_of(ax)
    if output_path is not None:
        registry.save(figure, output_path)
    return registry.Drawn(figure, ax)


def _draw_states(ax: Axes, watched: Sequence[Watched]) -> None:
    from roastcoffea.metrics.phases import COMPUTING, HANDLING, IDLING, OPENING, TROUBLE
    from roastcoffea.visualization import draw
    from roastcoffea.visualization.distributions import stacked
    from roastcoffea.visualization.draw import legend, scheme_of

    scheme = scheme_of(ax)
    families = {"released": OPENING, "waiting": IDLING, "queued": HANDLING, "processing": COMPUTING, "erred": TROUBLE}
    colours = {state: scheme.of(family) for state, family in families.items()}
    colours |= {"no-worker": scheme.series[1], "memory": scheme.series[0]}
    start, stop = watched[0].start, max(watched[-1].stop, watched[0].start + 1e-3)
    edges = np.linspace(start, stop, BINS + 1)
    axis = draw.time_axis(ax, start, stop)
    means = sum(states_over_time(period.history, period.stop, edges) for period in watched)
    layers = [(state, mean, colours[state]) for state, mean in zip(STATES, means, strict=True) if state in colours]
    stacked(ax, axis(edges), [layer for layer in layers if layer[1].max() > 0])
    ax.set_ylabel("tasks at the scheduler")
    ax.set_title("Tasks by state")
    draw.whole_numbers(ax.yaxis)
    legend(ax)


def states_over_time(history: History, stop: float, edges: Any) -> Any:
    """Mean number of tasks in each of `STATES` and interval between edges: states x intervals."""
    states = history.states.sort_by("task")  # it is stable
    task, begins = states["task"].to_numpy(), states["time"].to_numpy()
    ends = np.where(np.append(task[1:] == task[:-1], False), np.append(begins[1:], stop), stop)
    means = []
    for state in STATES:
        here = pc.equal(states["state"], state).to_numpy()
        seconds = 0.0
        for sign, moments in ((1, np.sort(begins[here])), (-1, np.sort(ends[here]))):
            count = np.searchsorted(moments, edges)  # the time from each of these to an edge
            seconds += sign * (count * edges - np.append(0.0, np.cumsum(moments))[count])
        means.append(np.diff(seconds) / np.diff(edges))
    return np.array(means)
