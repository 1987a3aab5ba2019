"""The client: one thread times the wall time, the lag of its event loop, and the graphs that it sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import CENTRAL, fact, metric, refuse_if
from roastcoffea.metrics.central import OF_SEVERAL
from roastcoffea.metrics.facts import complete_sum, known_sum, recorded, rows_where
from roastcoffea.metrics.statistics import Numbers, measured_values
from roastcoffea.records import client
from roastcoffea.records.calls import OF_TASKS
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import MERGE, PREPROCESSING, PROCESSOR
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND

CLIENT: Final = "steps of the client"

SUBMIT, MERGING, GATHER, PREPARE = "submit", "merge", "gather", "preparing"
WAIT, OUTSIDE, UNACCOUNTED = "waiting", "outside", "unaccounted"
CLASSES: Final = (SUBMIT, MERGING, GATHER, PREPARE, WAIT, OUTSIDE, UNACCOUNTED)
"""Classes of the client's time; where Runner calls of several threads overlap, the first one counts."""

KINDS: Final[Mapping[str, tuple[str, ...]]] = {"preprocessing": (PREPROCESSING,), "processing": (PROCESSOR, MERGE)}
"""Kinds of tasks, by what an executor works on."""

OF_FUNCTIONS: Final = "tasks ran without a Runner: what the client did meanwhile is not known"
NO_EXECUTOR: Final = "no executor of a Runner call worked on the cluster"
NO_LOOP: Final = "the client's event loop was not sampled"
SHARED: Final = "the client has the event loop of the scheduler (LocalCluster)"

Span = tuple[float, float]
Spans = dict[str, list[Span]]


@fact
def client_steps(run: Run) -> pa.Table:
    """What the client's thread did for executors, and samples of its event loop."""
    refuse_if(run.merged, OF_SEVERAL)
    return recorded(run, "client_steps")


@fact
def executor_steps(run: Run, client_steps: pa.Table) -> pa.Table:
    """Steps of executors."""
    found = rows_where(client_steps, pc.is_valid(client_steps["work"]))
    refuse_if(any(call.id.startswith(OF_TASKS) for call in run.calls), OF_FUNCTIONS)
    refuse_if(not len(found), NO_EXECUTOR)
    return found


@fact
def client_time(run: Run, executor_steps: pa.Table, tasks: pa.Table) -> Mapping[str, float]:
    """Wall time of the run by what the client did."""
    spans = _spans(executor_steps.to_pylist(), _ends(tasks))
    spans["call"] = [(call.start, call.stop) for call in run.calls]
    recorded_calls = set(executor_steps["call"].to_pylist())
    spans["unknown"] = [(call.start, call.stop) for call in run.calls if call.id not in recorded_calls]
    edges = {edge for each in spans.values() for span in each for edge in span}
    times = np.clip(np.array(sorted({run.start, run.stop, *edges})), run.start, run.stop)
    taken = _classes({name: _coverage(times, each) for name, each in spans.items()}, np.diff(times))
    return taken | {UNACCOUNTED: run.stop - run.start - sum(taken.values())}


def _spans(steps: list[dict[str, Any]], ends: Mapping[str, Numbers]) -> Spans:
    """Times of each class. A result is there when its last task has ended: until then the client waits for it."""
    found: Spans = {name: [] for name in (SUBMIT, MERGING, GATHER, WAIT)}
    for step in steps:
        start, stop = step["start"], step["stop"]
        if step["step"] == client.RESULTS:
            moments = ends[step["work"]]
            last = moments[: np.searchsorted(moments, stop, side="right")][-1:]
            # a scheduler that is busy may see the last task end after the client has its result
            there = max([start, *last]) if len(last) or not len(moments) else stop
            found[WAIT].append((start, there))
            found[GATHER].append((there, stop))
        elif step["step"] in {client.SUBMIT, client.MERGE}:
            found[SUBMIT if step["step"] == client.SUBMIT else MERGING].append((start, stop))
    return found


def _ends(tasks: pa.Table) -> dict[str, Numbers]:
    """When tasks ended, in order, by what executors work on."""
    return {
        work: np.sort(measured_values(rows_where(tasks, pc.is_in(tasks["kind"], pa.array(kinds)))["seen"]))
        for work, kinds in KINDS.items()
    }


def _coverage(times: Numbers, spans: list[Span]) -> Numbers:
    """How many of these hold in each of the times between edges."""
    starts, stops = np.array(spans, np.float64).reshape(-1, 2).T
    edges = np.zeros(len(times))
    np.add.at(edges, np.searchsorted(times, np.clip(starts, times[0], times[-1])), 1)
    np.add.at(edges, np.searchsorted(times, np.clip(stops, times[0], times[-1])), -1)
    return np.asarray(np.cumsum(edges)[:-1], np.float64)


def _classes(covered: Mapping[str, Numbers], seconds: Numbers) -> dict[str, float]:
    """Seconds of each class; a call whose executors were not recorded is in none of them."""
    in_steps = sum(covered[name] for name in (SUBMIT, MERGING, GATHER, WAIT))
    holds = {name: covered[name] > 0 for name in (SUBMIT, MERGING, GATHER)}
    holds[PREPARE] = covered["call"] - covered["unknown"] > in_steps
    holds[WAIT] = covered[WAIT] > 0
    holds[OUTSIDE] = covered["call"] == 0
    found, left = {}, np.ones(len(seconds), np.bool_)
    for name, flags in holds.items():
        found[name] = float(np.sum(seconds[left & flags]))
        left &= ~flags
    return found


# Metrics

of_client = partial(metric, group=CENTRAL, source=CLIENT)


def _declare(name: str, what: str, meaning: str, formula: str) -> None:
    def seconds(client_time: Mapping[str, float]) -> float:
        return client_time[name]

    of_client(SECOND, name=f"client_{name}_seconds", label=f"client: {what}", meaning=meaning, formula=formula)(seconds)


TABLE: Final[Mapping[str, tuple[str, str, str]]] = {
    SUBMIT: ("submitting", "Time in which the client built and sent graphs of tasks.", "client.map and client.submit"),
    WAIT: ("waiting for the cluster", "Time in which the client waited for tasks.", "until the last task has ended"),
    GATHER: (
        "gathering",
        "Time in which the client fetched the result of executors.",
        "from then on until it is there",
    ),
    MERGING: ("final merge", "Time in which the client added results to the output.", "until the executor returns"),
    PREPARE: ("preparing", "Other time in Runner calls: chunks are made, for example.", "Runner calls less the others"),
    OUTSIDE: ("outside Runner calls", "Time of the run outside Runner calls.", "wall time less Runner calls"),
    UNACCOUNTED: ("unaccounted", "Time of calls whose executors were not recorded.", "wall time less all others"),
}
"""Classes in the order of tables: label, meaning, formula."""

for _class, _texts in TABLE.items():
    _declare(_class, *_texts)


BUSY: Final = (SUBMIT, GATHER, MERGING, PREPARE, OUTSIDE)
"""Classes in which tasks do not keep the client waiting."""


@of_client(
    FRACTION,
    label="client: not waiting",
    formula="submitting, gathering, final merge, preparing and outside Runner calls / wall time",
)
def client_busy_share(client_time: Mapping[str, float], elapsed_time_seconds: float) -> float:
    """Share of the wall time in which the client did something else than waiting for tasks."""
    return sum(client_time[name] for name in BUSY) / elapsed_time_seconds


@fact
def loop_samples(client_steps: pa.Table) -> pa.Table:
    """Samples of the client's event loop."""
    found = rows_where(client_steps, pc.is_null(client_steps["work"]))
    refuse_if(not len(found), NO_LOOP)
    return found


@fact
def own_loop_samples(loop_samples: pa.Table) -> pa.Table:
    """Samples of an event loop that is the client's alone."""
    refuse_if(client.SHARED_LOOP in loop_samples["step"].to_pylist(), SHARED)
    return loop_samples


def _length(samples: pa.Table) -> float:
    return float(pc.sum(pc.subtract(samples["stop"], samples["start"])).as_py())


@of_client(SECOND, label="client loop CPU", formula="CPU time of its thread")
def client_loop_cpu_seconds(own_loop_samples: pa.Table) -> float:
    """CPU time of the client's event loop, which takes the messages of the scheduler."""
    return float(known_sum(own_loop_samples["cpu_seconds"]))


@of_client(FRACTION, label="client loop: core", formula="CPU / time; at most 1")
def client_loop_core_share(client_loop_cpu_seconds: float, own_loop_samples: pa.Table) -> float:
    """Share of one core that the client's event loop used; it cannot use more."""
    return client_loop_cpu_seconds / _length(own_loop_samples)


@of_client(SECOND, label="client loop lag", formula="mean of samples")
def client_loop_lag_seconds(loop_samples: pa.Table) -> float:
    """How late the client's event loop came to what was due, on average."""
    return float(pc.mean(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, label="client loop lag (peak)", formula="highest of samples")
def client_loop_lag_peak_seconds(loop_samples: pa.Table) -> float:
    """How late the client's event loop came to what was due, at most."""
    return float(pc.max(loop_samples["late_seconds"]).as_py())


@of_client(SECOND, label="client process CPU", formula="CPU time of all threads of its process")
def client_process_cpu_seconds(loop_samples: pa.Table) -> float:
    """CPU time of the client's process; it may hold a scheduler and workers as well."""
    return float(known_sum(loop_samples["process_cpu_seconds"]))


@fact
def graphs(executor_steps: pa.Table) -> pa.Table:
    """Graphs that were sent."""
    return rows_where(executor_steps, pc.equal(executor_steps["step"], client.SUBMIT))


@of_client(BYTE, label="graphs sent", formula="sum of their sizes")
def graph_bytes(graphs: pa.Table) -> int:
    """Size of the graphs of tasks that executors sent to the scheduler."""
    return int(complete_sum(graphs, "graph_bytes", "graphs"))


@of_client(COUNT, label="tasks in graphs", formula="sum of their tasks")
def graph_tasks(graphs: pa.Table) -> int:
    """Tasks in the graphs that executors sent to the scheduler."""
    return int(complete_sum(graphs, "tasks", "graphs"))


@of_client(BYTE, label="graph bytes per task", formula="graph_bytes / graph_tasks")
def graph_bytes_per_task(graph_bytes: int, graph_tasks: int) -> float:
    """Size of the graphs for each task in them."""
    refuse_if(not graph_tasks, "no graph was sent")
    return graph_bytes / graph_tasks
