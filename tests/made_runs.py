"""Runs of chunks that take what is written here, worked off by workers without any loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
from handmade import T, chunk, handmade_run

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS, SECTION_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS, FINISHED, PREPROCESSING_COLUMNS, Environment, Host, Run, RunnerCall
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS

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
    **changes: Any,
) -> Run:
    """Run of these chunks, each on the worker that is free first; for `before` seconds nothing runs."""
    free = [before] * workers
    chunks, tasks, entry = [], [], {}
    for number, each in enumerate(plans):
        worker = free.index(min(free))
        row = _chunk(each, number, f"w{worker}", free[worker], entry.get(each["file"], 0))
        entry[each["file"]] = row["entry_stop"]
        chunks.append(row)
        tasks.append(_task(row, before))
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
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, [_life(f"w{number}", stop, chunks) for number in range(workers)]),
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
