"""Runs and chunks that follow a law, worked off without any loss; histories and observations of such runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from handmade import LIFETIMES, T, chunk, handmade_run

from roastcoffea.diagnosis.savings import Savings
from roastcoffea.diagnosis.slowness import Slow, slowness
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    FINISHED,
    PREPROCESSING_COLUMNS,
    SECTION_COLUMNS,
    Environment,
    Host,
    Run,
    RunnerCall,
)
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS, TASK_COLUMNS
from roastcoffea.replay.changes import Chunks, Parts
from roastcoffea.replay.cluster import Cluster, Costs, Load, replayed
from roastcoffea.studies.history_analysis import BYTES, CPU, RATE, Entry
from roastcoffea.studies.observations import Observation
from roastcoffea.studies.what_if import WhatIf

NOTHING = {
    "asked": ASKED_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "pauses": PAUSE_COLUMNS,
}

Plan = Mapping[str, Any]


def plan(cpu: float, wait: float = 0.0, **others: Any) -> Plan:
    """What a chunk takes: seconds of CPU and of waiting in process(), and what is given beside."""
    return {"cpu": cpu, "wait": wait, "events": 100, "file": "a.root", "dataset": "data"} | others


def made_run(
    plans: Sequence[Plan],
    workers: int,
    *,
    cores: int | None = 64,
    others: float | None = None,
    before: float = 0.0,
    arrivals: Sequence[float] | None = None,
    **changes: Any,
) -> Run:
    """Run of these chunks, each on the worker that is free first; for `before` seconds nothing runs.

    With arrivals (seconds after T), a worker is there from then on, and chunks are assigned as they begin.
    """
    free = [before] * workers if arrivals is None else [float(came) for came in arrivals]
    chunks, tasks, entry = [], [], {}
    for number, each in enumerate(plans):
        worker = free.index(min(free))
        row = _chunk(each, number, f"w{worker}", free[worker], entry.get(each["file"], 0))
        entry[each["file"]] = row["entry_stop"]
        chunks.append(row)
        tasks.append(_task(row, before if arrivals is None else free[worker]))
        free[worker] += row["wall_seconds"]
    stop = T + max(free)
    call = RunnerCall(
        id="c1",
        processor="Made",
        executor="DaskExecutor",
        start=T,
        stop=stop,
        outcome=FINISHED,
        chunks=len(plans),
        options={"chunksize": plans[0]["events"]},
    )
    fields = {
        "name": "made",
        "stop": stop,
        "calls": (call,),
        "environment": Environment(
            versions={},
            client_host="here",
            hosts=(Host(name="node", cores=cores, memory=None, node_cores=cores, others=others),),
        ),
        "chunks": table_of_rows(CHUNK_COLUMNS, chunks),
        "tasks": table_of_rows(TASK_COLUMNS, tasks),
        "lifetimes": table_of_rows(
            LIFETIME_COLUMNS,
            [
                _life(f"w{number}", stop, chunks) | ({} if arrivals is None else {"start": T + float(arrivals[number])})
                for number in range(workers)
            ],
        ),
        "attempts": {"processor": len(tasks)},
        "span_metrics": {},
        "span_metrics_per_worker": {},
    }
    empty = {name: table_of_rows(columns, []) for name, columns in NOTHING.items()}
    return handmade_run(**empty | fields | changes)


def independent_job(
    number: int, durations: Sequence[float], workers: int = 2, late: float = 0.0, host: str = "node-1", **changes: Any
) -> Run:
    """A job of its own on a host, `late` seconds after T: chunks of these seconds, on workers that others have too."""
    run = made_run([plan(seconds, file=f"{number}.root") for seconds in durations], workers, before=0.5)
    moved: dict[str, Any] = {}
    for name in ("chunks", "tasks", "lifetimes", "asked", "preprocessing", "samples", "pauses"):
        table = getattr(run, name)
        for column in ("runnable", "assigned", "arrived", "ready", "start", "stop", "seen", "time"):
            if column in table.column_names:
                place = table.schema.get_field_index(column)
                table = table.set_column(place, column, pc.add(table[column], late))
        if "id" in table.column_names:
            table = table.set_column(table.schema.get_field_index("id"), "id", pc.add(table["id"], 1000 * number))
        if "call" in table.column_names:
            table = table.set_column(
                table.schema.get_field_index("call"),
                "call",
                pc.binary_join_element_wise(table["call"], str(number), "-"),
            )
        moved[name] = table
    calls = tuple(replace(call, id=f"{call.id}-{number}", start=T + late, stop=run.stop + late) for call in run.calls)
    environment = Environment(
        versions={"coffea": "2026.9.0"}, client_host=host, hosts=(Host(name=host, cores=8, memory=None),)
    )
    times = {"start": run.start + late, "stop": run.stop + late}
    known = {"id": f"run-{number}", "calls": calls, "environment": environment, **times, **moved}
    return replace(run, **known | changes)


def in_two_calls(run: Run, first: int) -> Run:
    """The same run, made with two Runner calls: of so many chunks, and of the others."""
    assert run.tasks is not None
    tasks = run.tasks.to_pylist()
    split = tasks[first]["start"]
    for row in tasks[first:]:
        row.update(dict.fromkeys(("runnable", "assigned", "arrived", "ready"), row["start"]))
    (call,) = run.calls
    calls = (replace(call, stop=split - 1e-3), replace(call, id="c2", start=split))
    return replace(run, calls=calls, tasks=table_of_rows(TASK_COLUMNS, tasks))


def with_call(run: Run, **changes: Any) -> Run:
    """The same run with its Runner calls changed."""
    return replace(run, calls=tuple(replace(call, **changes) for call in run.calls))


def waiting_in(run: Run, column: str) -> Run:
    """The same run, with the waiting in process() in another column of its chunks."""
    assert run.chunks is not None
    rows = [row | {"blocked_seconds": 0.0, column: row["blocked_seconds"]} for row in run.chunks.to_pylist()]
    return replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows))


def _chunk(each: Plan, number: int, worker: str, start: float, entry: int) -> dict[str, Any]:
    open_cpu, open_wait, read, waited = (each.get(name, 0.0) for name in ("open_cpu", "open_wait", "read", "core_wait"))
    wall = each["cpu"] + each["wait"] + open_cpu + open_wait + read + waited
    return chunk(
        each["dataset"], f"k{number}", number, "ok", id=number, attempt=1, worker=worker, file=each["file"]
    ) | {
        "start": T + start,
        "stop": T + start + wall,
        "wall_seconds": wall,
        "cpu_seconds": each["cpu"] + open_cpu,
        "helper_cpu_seconds": 0.0,
        "core_wait_seconds": waited,
        "open_seconds": open_cpu + open_wait,
        "build_seconds": 0.0,
        "process_seconds": each["cpu"] + each["wait"] + read + waited,
        "compute_seconds": each["cpu"],
        "decompress_seconds": 0.0,
        "interpret_seconds": 0.0,
        "read_seconds": read,
        "write_cpu_seconds": 0.0,
        "write_wait_seconds": 0.0,
        "measuring_seconds": 0.0,
        "contention_seconds": waited,
        "lock_seconds": 0.0,
        "blocked_seconds": each["wait"],
        "checkpoint_seconds": 0.0,
        "events": each["events"],
        "entry_start": entry,
        "entry_stop": entry + each["events"],
    }


def _task(row: Mapping[str, Any], before: float) -> dict[str, Any]:
    given = dict.fromkeys(("runnable", "assigned", "arrived", "ready"), T + before)
    names = ("key", "run_id", "worker", "start", "stop", "attempt", "outcome")
    own = {name: row[name] for name in names} | {"seen": row["stop"], "thread": 1}
    return own | given | {"prefix": "Made", "kind": "processor"}


def _life(worker: str, stop: float, chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cpu = sum(row["cpu_seconds"] for row in chunks if row["worker"] == worker)
    return {"worker": worker, "host": "10.0.0.1", "threads": 1, "start": T, "stop": stop, "cpu_seconds": cpu}


WORKERS = ("A", "B", "C", "D")


def chunks_by_law(number=80, **changes):
    """Rows that take 0.1 s, 1 ms an event and 1 us a byte; in "mc" twice that; `changes` are factors by row."""
    draw = np.random.default_rng(1)
    for place in range(number):
        events, size = int(draw.integers(100, 2000)), int(draw.integers(0, 500_000))
        dataset = ("data", "mc")[place % 2]
        wall = (0.1 + 1e-3 * events + 1e-6 * size) * (1 + place % 2) * changes.get(f"row{place}", 1.0)
        wall *= changes.get(WORKERS[place // 2 % 4], 1.0)
        phases = {"compute_seconds": wall / 2, "read_seconds": wall / 2}
        if f"row{place}" in changes:
            phases = {"compute_seconds": 0.1, "read_seconds": wall - 0.1}
        yield (
            chunk(dataset, f"k{place}", place, "ok", attempt=1, id=place, worker=WORKERS[place // 2 % 4])
            | phases
            | {
                "events": events,
                "entry_start": 0,
                "entry_stop": events,
                "bytes_payload": size,
                "wall_seconds": wall,
                "cpu_seconds": wall / 2,
                "start": T,
                "stop": T + wall,
                "file": f"{place}.root",
            }
        )


def measurement_of(**changes):
    lifetimes = [LIFETIMES[0] | {"worker": worker} for worker in WORKERS]
    return Measurement(
        handmade_run(
            chunks=table_of_rows(CHUNK_COLUMNS, chunks_by_law(**changes)),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes),
        )
    )


EVENT = 7.5e-6
"""Seconds of CPU time of an event."""


def plans(
    number: int, size: int, each: float = 0.0, event: float = EVENT, seed: int = 1, dataset: str = "data"
) -> Iterator[Any]:
    """Plans of so many chunks that take about `each` + `event` x size seconds of CPU time."""
    scatter = np.random.default_rng(seed % 2**32).normal(1, 0.02, number)
    for factor in scatter:
        yield plan((each + event * size) * factor, events=size, dataset=dataset, file=f"{dataset}.root")


def chunks_in_two_sizes(number: int, size: int, **law: Any) -> pa.Table:
    """Chunks of a run on two workers."""
    chunks = run_of(number, size, **law).chunks
    assert chunks is not None
    return chunks


def measurement_in_two_sizes(number: int, size: int, **law: Any) -> Measurement:
    """The measurement of that run."""
    return Measurement(run_of(number, size, **law))


def run_of(number: int, size: int, **law: Any) -> Any:
    """A run on two workers; no bytes are read."""
    run = made_run([*plans(number, size, **law)], workers=2)
    assert run.chunks is not None
    place = run.chunks.schema.get_field_index("bytes_payload")
    nothing = pa.chunked_array([pa.array(np.zeros(number, np.int64))])
    return replace(run, chunks=run.chunks.set_column(place, "bytes_payload", nothing))


class Slower(NamedTuple):
    """What takes so many times as long."""

    kind: str
    number: int
    factor: float


def chunk_table(**columns: Any) -> pa.Table:
    """Table of chunks with these columns; all others are not measured."""
    schema = table_of_rows(CHUNK_COLUMNS, []).schema
    number = len(next(iter(columns.values())))
    return pa.table(
        {
            field.name: pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(number, field.type)
            for field in schema
        }
    )


def simulated(
    draw: np.random.Generator,
    chunks: int,
    workers: int,
    files: int,
    *,
    slow: Sequence[Slower] = (),
    noise: float = 0.25,
    tails: float = 0.03,
    weights: Sequence[float] = (1.0,),
    workers_of_host: int = 1,
    first: float = 1.0,
    grouped: bool = False,
) -> tuple[pa.Table, pa.Table]:
    """Chunks and lifetimes of workers.

    Parameters
    ----------
    noise
        Standard deviation of the logarithm of what a chunk takes.
    tails
        Share of chunks that take two to six times as long.
    weights
        Seconds of an event by dataset, of which each has every so many-th file.
    first
        Factor of a worker's first chunk.
    grouped
        Whether chunks are handed out file by file; else in any order.
    """
    file = np.sort(draw.integers(0, files, chunks))
    file = file if grouped else file[draw.permutation(chunks)]
    plain = 0.1 * np.exp(noise * draw.standard_normal(chunks))
    plain *= np.where(draw.random(chunks) < tails, draw.uniform(2, 6, chunks), 1.0)
    free, begun = np.zeros(workers), np.zeros(workers, np.bool_)
    worker, seconds, start = np.zeros(chunks, int), np.zeros(chunks), np.zeros(chunks)
    for place in range(chunks):
        who = int(np.argmin(free))
        number = {"worker": who, "host": who // workers_of_host, "file": file[place]}
        number["dataset"] = file[place] % len(weights)
        factor = weights[number["dataset"]] * (1.0 if begun[who] else first)
        for one in slow:
            factor *= one.factor if number[one.kind] == one.number else 1.0
        worker[place], seconds[place], start[place] = who, plain[place] * factor, free[who]
        free[who] += seconds[place]
        begun[who] = True
    table = chunk_table(
        id=np.arange(chunks),
        dataset=[f"dataset {number % len(weights)}" for number in file],
        file=[f"file {number}" for number in file],
        worker=[f"worker {number}" for number in worker],
        thread=np.ones(chunks, int),
        outcome=["ok"] * chunks,
        events=np.full(chunks, 1000),
        start=start,
        wall_seconds=seconds,
        cpu_seconds=0.5 * seconds,
        core_wait_seconds=np.zeros(chunks),
    )
    hosts = [f"host {number // workers_of_host}" for number in range(workers)]
    return table, pa.table({"worker": [f"worker {number}" for number in range(workers)], "host": hosts})


def blamed(draw: np.random.Generator, **described: Any) -> list[Slow]:
    """Who is slow in a simulation."""
    return slowness(*simulated(draw, **described)).slow


FOUR = [plan(1.0, 2.0), plan(2.0, 1.0), plan(3.0), plan(0.5, 2.5)] * 4
"""Chunks of 3 s each: CPU and waiting."""


def predicted_seconds(found: WhatIf, scenario: str = "as recorded") -> list[float]:
    return [round(one.seconds or -1.0, 1) for one in found.predictions if one.scenario == scenario]


def savings_of(run: Run) -> Savings:
    measured = Measurement(run).metrics
    return Savings(run, measured.get("time_ledger"), measured.get("avg_workers"))


FREE = Costs(steal=0.0)
"""A cluster that adds nothing."""

MANY = float("inf")


def work(*rows: tuple[float, float, float]) -> Load:
    """Chunks by their seconds of CPU, waiting, and CPU again."""
    before, wait, after = np.array(rows, dtype=np.float64).T
    return Load(before=before, wait=wait, after=after)


def reading(*rows: tuple[float, float, float, float]) -> Load:
    """Chunks by their seconds of CPU, reading with storage of their own, waiting, and CPU again."""
    before, read, wait, after = np.array(rows, dtype=np.float64).T
    return Load(before=before, read=read, wait=wait, after=after)


def on(workers: int, cores: float = MANY, threads: int = 1, **shared: float) -> Cluster:
    return Cluster(threads=threads, hosts=[(workers, cores)], **shared)


def seconds(load: Load, cluster: Cluster, costs: Costs = FREE, **more: object) -> float:
    """Seconds of a simulation in which each chunk has one turn."""
    return replayed(load, cluster, costs, **({"turns": 1} | more)).seconds  # type: ignore[arg-type]


def parts(**given: np.ndarray) -> Parts:
    """Parts of chunks; those that are not given take no time."""
    none = 0.0 * next(iter(given.values()))
    return Parts(**dict.fromkeys(Parts._fields, none) | given)


def chunks_of_sizes(*events: int, fixed: float = 0.5, each: float = 0.01) -> Chunks:
    """Chunks of one file, that take a fixed time to open and some for each event."""
    stop = np.cumsum(events)
    none = np.zeros(len(events))
    return Chunks(
        datasets=("data",),
        dataset=none.astype(np.int64),
        file=none.astype(np.int64),
        start=stop - events,
        stop=stop,
        parts=parts(open_cpu=none + fixed, cpu=each * np.array(events, np.float64)),
        factor=none + 0.5,
        row=np.arange(len(events)),
    )


def chunks_that_wait(lock: float, wait: float = 0.0, number: int = 8) -> Chunks:
    """Chunks of 1 s of CPU time that wait for the interpreter and otherwise."""
    none = np.zeros(number)
    return chunks_of(none, none + 1).with_parts(lock=none + lock, wait=none + wait)


def chunks_of(read: Numbers, cpu: Numbers, dataset: str = "data") -> Chunks:
    """Chunks of 100 events that take these seconds."""
    number = np.arange(len(read))
    return Chunks(
        datasets=(dataset,),
        dataset=0 * number,
        file=number,
        start=0 * number,
        stop=0 * number + 100,
        parts=parts(read=read, cpu=cpu),
        factor=np.ones(len(read)),
        row=number,
    )


FIRST_DAY = 1_700_000_000.0
DAY = 86_400.0


def entry(number: int, **changes: Any) -> Entry:
    """The run of a day: 1 ms of CPU and 1 kB an event, and 0.5 kHz a core, where nothing else is given."""
    values = {RATE: 0.5, CPU: 1e-3, BYTES: 1000.0} | changes.pop("values", {})
    name = f"run-{number:02d}"
    given: dict[str, Any] = {
        "id": f"{number:032x}",
        "name": name,
        "path": Path("runs") / name,
        "start": FIRST_DAY + number * DAY,
        "processors": ("Jets",),
        "datasets": ("data",),
        "fileset": "abc",
        "state": "complete",
        "reason": None,
        "values": values,
        "failures": 0,
        "facts": {"coffea": "2025.11"},
    }
    return Entry(**given | changes)


def with_cpu(seconds: Sequence[float], **changes: Any) -> list[Entry]:
    """A run for each of these CPU times of an event, whose rate follows from it."""
    return [entry(number, values={CPU: value, RATE: 5e-4 / value}, **changes) for number, value in enumerate(seconds)]


LOW = [1e-3 * (1 + 0.01 * step) for step in (0, 1, -1, 2, -2, 1.5, -1.5, 0.5)]
HIGH = [1.44 * value for value in LOW]


TIME = {
    "compute": 10.0,
    "decompress": 4.0,
    "interpret": 2.0,
    "read": 8.0,
    "blocked": 1.0,
    "open": 5.0,
    "merge": 0.5,
    "failed": 0.5,
    "idle: tail": 1.0,
    "idle: client": 8.0,
    "residual": 0.0,
}
CLIENT_OF = {"before": 5.0, "between": 1.0, "after": 2.0}


def branch(size: int, read: float, decompress: float, interpret: float) -> dict[str, float]:
    return {"bytes": size, "read": read, "decompress": decompress, "interpret": interpret}


BRANCHES = {"pt": branch(600, 5.0, 3.0, 1.0), "eta": branch(400, 3.0, 1.0, 1.0)}


def observation(
    *, events: int = 1000, chunks: int = 10, payload: int = 1000, threads: float = 4.0, **changes: Any
) -> Observation:
    """Return the run above, with some fields changed; its wall time is what its thread time makes it."""
    time = changes.pop("time", TIME)
    wall = sum(time.values()) / threads or 1.0
    metrics = {
        "total_events": float(events),
        "num_chunks": float(chunks),
        "elapsed_time_seconds": wall,
        "total_cores": threads,
        "event_rate_elapsed_khz": events / 1e3 / wall,
    }
    fields: dict[str, Any] = {
        "id": "0123abcd",
        "name": "by hand",
        "facts": {},
        "metrics": metrics | changes.pop("metrics", {}),
        "missing": {},
        "time": time,
        "time_absent": None,
        "client_of": CLIENT_OF,
        "bytes": {"payload": payload, "re-read": 0},
        "branches": pd.DataFrame.from_dict(changes.pop("branches", BRANCHES), orient="index"),
        "hosts": pd.DataFrame.from_dict(changes.pop("hosts"), orient="index") if "hosts" in changes else None,
        "chunk_seconds": np.full(chunks, 1.0),
        "chunk_cpu_seconds": np.full(chunks, 0.5),
        "incomplete": (),
    }
    return Observation(**fields | changes)


def with_metric(name: str, *values: float) -> list[Observation]:
    """Repeats of the run above with these values of a metric."""
    return [replace(observation(metrics={name: value}), name=f"run {number}") for number, value in enumerate(values)]


ROOT = str(Path(__file__).parents[1])


def laboratory(module: str) -> Any:
    """A module of the laboratory."""
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    return importlib.import_module(f"benchmarks.scale.{module}")
