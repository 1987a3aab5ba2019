"""Conversion to and from the data shapes of version 0.1.2: worker series, chunk dictionaries and plot arguments."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, product
from operator import itemgetter
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.records.arrow import pairs, rows_in, table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, ERROR, OK
from roastcoffea.records.columns import grouped
from roastcoffea.records.run import Run, unwatched_run
from roastcoffea.records.workers import OF_SCHEDULER, SAMPLE_COLUMNS

# Worker series

COUNTS: Final = "worker_counts"
SERIES: Final = (
    ("worker_memory", "memory"),
    ("worker_memory_limit", "memory_limit"),
    ("worker_active_tasks", "processing"),
    ("worker_cores", "threads"),
    ("worker_nbytes", "nbytes"),
    ("worker_occupancy", "occupancy"),
    ("worker_executing", "executing"),
    ("worker_last_seen", "last_seen"),
    ("worker_cpu", "cpu_percent"),
)

Numbers = npt.NDArray[np.float64]
Row = Mapping[str, Any]
AT_INTERVAL: Final = "at the sampling interval, by the scheduler"
WITH_SAMPLES: Final = "at each sample of the worker; on Dask, at its heartbeats"
AT_CHANGES: Final = "whenever a worker arrives, departs or is sampled"


class Series(dict[Any, Any]):
    """Worker series as a dictionary; `pace` says when the values were sampled."""

    pace = WITH_SAMPLES


TrackingData = dict[str, Series]


def tracking_data(
    samples: pa.Table, lifetimes: pa.Table, sampling: pa.Table | None = None, states: pa.Table | None = None
) -> TrackingData:
    """Worker counts and nine worker series, each with its `pace`.

    Times are naive `datetime` objects in local time. `worker_counts` contains the number of workers at each scheduler
    sample or, if there are none, whenever a worker arrives, departs or is sampled. Each of the nine series has the
    form {worker: [(time, value), ...]} and is sorted by time. Values that were not measured are omitted.

    Parameters
    ----------
    sampling, states
        Tables of the scheduler samples and of the worker states at each sample.
    """
    threads = pairs(lifetimes, "worker", "threads")
    rows = sorted(samples.filter(samples["time"].is_valid()).to_pylist(), key=itemgetter("time"))
    rows = [row | {"threads": threads.get(row["worker"])} for row in rows]
    known = rows_in(states)
    data = {COUNTS: _paced(_worker_counts(lifetimes, [row["time"] for row in rows]), AT_CHANGES)}
    if sampling is not None and len(sampling):
        times, counts = (sampling[name].to_pylist() for name in ("time", "workers"))
        data[COUNTS] = _paced(dict(zip(map(datetime.fromtimestamp, times), counts, strict=True)), AT_INTERVAL)
    for name, column in SERIES:
        sampled = bool(known) and column in OF_SCHEDULER
        data[name] = _paced(_points(known if sampled else rows, column), AT_INTERVAL if sampled else WITH_SAMPLES)
    return data


def _points(rows: Sequence[Row], column: str) -> dict[str, list[tuple[datetime, Any]]]:
    points: dict[str, list[tuple[datetime, Any]]] = {row["worker"]: [] for row in rows}
    for row in rows:
        if row[column] is not None:
            noted = row.get("noted") if column in OF_SCHEDULER else None
            points[row["worker"]].append((datetime.fromtimestamp(noted or row["time"]), row[column]))
    return points


def _paced(series: Mapping[Any, Any], pace: str) -> Series:
    made = Series(series)
    made.pace = pace
    return made


def samples_of(tracking: Mapping[str, Mapping[Any, Any]]) -> pa.Table:
    return table_of_rows(SAMPLE_COLUMNS, sample_rows(tracking, seconds))


def sample_rows(tracking: Mapping[str, Any], moment_of: Callable[[Any], float]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for name, column in SERIES:
        if column != "threads":  # the lifetimes contain the thread counts
            for worker, points in tracking.get(name, {}).items():
                for time, value in points:
                    moment = moment_of(time)
                    rows.setdefault((worker, moment), {"worker": worker, "time": moment})[column] = value
    return list(rows.values())


def counts_of(tracking: Mapping[str, Mapping[Any, Any]]) -> tuple[Numbers, Numbers]:
    """Sorted times, and the number of workers from each time onwards."""
    counts = sorted((seconds(time), float(count)) for time, count in tracking.get(COUNTS, {}).items())
    times, numbers = np.array(counts).reshape(-1, 2).T
    return times, numbers


def seconds(time: datetime | float) -> float:
    """Time in Unix seconds; naive datetimes are treated as local time."""
    return time.timestamp() if isinstance(time, datetime) else float(time)


def _worker_counts(lifetimes: pa.Table, sampled: list[float]) -> dict[datetime, int]:
    """Number of workers after each change; the last count includes workers that stayed until the end."""
    starts, stops = (np.sort(lifetimes[name].drop_null().to_numpy()) for name in ("start", "stop"))
    if len(starts) == 0 or len(stops) == 0:
        return {}
    times = np.unique([*starts, *stops, *(time for time in sampled if starts[0] <= time <= stops[-1])])
    ended = np.searchsorted(stops, np.minimum(times, np.nextafter(times[-1], 0)), side="right")
    counts = np.searchsorted(starts, times, side="right") - ended
    return dict(zip(map(datetime.fromtimestamp, times.tolist()), counts.tolist(), strict=True))


# Chunks

MIB: Final = 2.0**20

RENAMED: Final = {
    "t_start": "start",
    "t_end": "stop",
    "duration": "wall_seconds",
    "num_events": "events",
    "task": "key",
    "peak_memory_bytes": "memory_peak",
}
UNCHANGED: Final = ("dataset", "file", "uuid", "entry_start", "entry_stop", "worker", "attempt", "outcome")
NO_PHASES: Final = tuple(
    f"{of}_seconds" for of in ("wall", "helper_cpu", "process_cpu", "core_wait", "coffea_process", "other_read")
)
"""Durations that are omitted from chunk dictionaries or have another name there."""

WRITTEN: Final = {
    "timestamp": "stop",
    "accessed_bytes": "bytes_payload",
    "accessed_uncompressed_bytes": "bytes_uncompressed",
}
"""Keys that are written but not read, because in version 0.1.2, a chunk's values covered the whole file."""

DURATIONS: Final = tuple(
    column.name for column in CHUNK_COLUMNS if column.name.endswith("_seconds") and column.name not in NO_PHASES
)
CHUNK_KEYS: Final = RENAMED | {name: name for name in (*UNCHANGED, *DURATIONS)}

TRACKED: Final = {
    "timing": ("wall_seconds", 1.0, "duration"),
    "memory": ("memory_delta", MIB, "mem_delta_mb"),
    "bytes": ("bytes", 1, "bytes"),
}
"""Maps the keys of the {section: amount} dictionaries in a chunk dictionary to their columns, units and summary
names."""

KEY_OF_INFO: Final = ("file", "entry_start", "entry_stop")
OF_INFO: Final = ("t_start", "t_end", "bytes_read")

ChunkDict = dict[str, Any]
ChunkInfo = Mapping[tuple[Any, ...], Sequence[Any]]


def chunk_dicts(chunks: pa.Table, branch_reads: pa.Table | None, sections: pa.Table | None) -> list[ChunkDict]:
    """Chunks as dictionaries, with None for values that were not measured.

    `accessed_branches` and `num_branches_accessed` exist only if branches were metered or coffea's savemetrics was
    enabled. If a chunk was loaded from a checkpoint, `bytes_read` is 0. `timing` [s], `memory` (growth [MiB]) and
    `bytes` [B] contain the sections for which they were measured.
    """
    metered = None if branch_reads is None else _of_each_chunk(branch_reads, "branch")
    passes = {} if sections is None else _of_each_chunk(sections, "name", *(column for column, *_ in TRACKED.values()))
    return [_chunk_dict(row, metered, passes.get(row["id"], [])) for row in chunks.to_pylist()]


def chunks_of(chunk_metrics: Sequence[Mapping[str, Any]]) -> pa.Table:
    return table_of_rows(CHUNK_COLUMNS, [_row(chunk, number) for number, chunk in enumerate(chunk_metrics)])


def branches_of_columns(columns: Iterable[str]) -> set[str]:
    """Branches in coffea's buffer names, which have the form "<branch>-<form key>", e.g. "Jet_pt-data"."""
    return {name.rpartition("-")[0] or name for name in columns}


def _chunk_dict(row: Row, metered: Mapping[int, Sequence[Row]] | None, passes: Sequence[Row]) -> ChunkDict:
    chunk = {name: row[column] for name, column in (CHUNK_KEYS | WRITTEN).items()}
    before, after = (None if row[name] is None else row[name] / MIB for name in ("memory_before", "memory_after"))
    chunk |= {"mem_before_mb": before, "mem_after_mb": after}
    chunk["mem_delta_mb"] = None if before is None or after is None else after - before
    chunk["bytes_read"] = row["coffea_bytes_read"] if row["bytes_requested"] is None else row["bytes_requested"]
    if row["outcome"] == CHECKPOINT:
        chunk["bytes_read"] = 0
    branches: Collection[str] | None = None
    if metered is not None:
        branches = [read["branch"] for read in metered.get(row["id"], ())]
    elif row["coffea_columns"] is not None:
        branches = branches_of_columns(row["coffea_columns"])
    if branches is not None:
        chunk |= {"accessed_branches": sorted(branches), "num_branches_accessed": len(branches)}
    chunk["file_metadata"] = {"filename": row["file"], "total_branches": row["tree_branches"]}
    chunk["branches_read_percent"] = _percent(chunk.get("num_branches_accessed"), row["tree_branches"])
    chunk["bytes_read_percent"] = _percent(row["bytes_payload"], row["file_bytes"])
    for key, (column, unit, _) in TRACKED.items():
        chunk[key] = {each["name"]: each[column] / unit for each in passes if each[column] is not None}
    return chunk


def _percent(part: float | None, whole: float | None) -> float | None:
    return 100 * part / whole if part is not None and whole else None


def chunk_info(chunks: Iterable[Mapping[str, Any]]) -> ChunkInfo:
    """Start, stop and requested bytes of each chunk, keyed by file and entry range."""
    known = (chunk for chunk in chunks if all(name in chunk for name in KEY_OF_INFO))
    return {tuple(chunk[name] for name in KEY_OF_INFO): tuple(map(chunk.get, OF_INFO)) for chunk in known}


def chunks_of_info(info: ChunkInfo) -> pa.Table:
    rows = [dict(zip((*KEY_OF_INFO, *OF_INFO), (*key, *values), strict=True)) for key, values in info.items()]
    for row in rows:
        known = row["t_start"] is not None and row["t_end"] is not None
        row["duration"] = row["t_end"] - row["t_start"] if known else None
    return chunks_of(rows)


def sections_of(chunks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summary of the sections in chunk dictionaries: {section: {amount: value}}.

    `count` is the number of chunks. If measured, `duration` [s], `mem_delta_mb` [MiB] and `bytes` are summarised over
    chunks, with the prefixes `total_`, `mean_`, `min_` and `max_`.
    """
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for chunk, (key, (_, _, amount)) in product(chunks, TRACKED.items()):
        for section, value in (chunk.get(key) or {}).items():
            found[section][amount].append(value)
    words: dict[str, Callable[[list[Any]], Any]] = {"total": sum, "mean": fmean, "min": min, "max": max}
    return {
        section: {"count": max(map(len, amounts.values()))}
        | {f"{word}_{name}": summed(amounts[name]) for name in amounts for word, summed in words.items()}
        for section, amounts in found.items()
    }


def _of_each_chunk(table: pa.Table, *columns: str) -> dict[int, list[dict[str, Any]]]:
    return grouped(rows_in(table, "chunk", *columns), "chunk")


def _row(chunk: Mapping[str, Any], number: int) -> dict[str, Any]:
    row = {column: chunk.get(key) for key, column in CHUNK_KEYS.items()}
    outcome = row["outcome"] or (OK if chunk.get("error") is None else ERROR)
    row |= {f"memory_{when}": in_bytes(chunk.get(f"mem_{when}_mb")) for when in ("before", "after")}
    row |= {"bytes_requested": chunk.get("bytes_read"), "branches": chunk.get("num_branches_accessed")}
    return row | {"id": number, "outcome": outcome}


def in_bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else round(mebibytes * MIB)


# Plot arguments

IN_METRICS: Final = {
    "tracking_data": "tracking_data",
    "span_metrics": "raw_span_metrics",
    "chunk_metrics": "raw_chunk_metrics",
}
"""Maps plot arguments that are also metrics to the names of these metrics."""

ARGUMENTS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "tracking_data": ("samples", samples_of),
    "chunk_info": ("chunks", chunks_of_info),
    "chunk_metrics": ("chunks", chunks_of),
    "span_metrics": ("span_metrics", dict),
    "metrics": ("reported", dict),
}
"""Maps each plot argument of version 0.1.2 to the run field that it replaces and the function that builds this
field."""

NOT_GIVEN: Final = (
    *("branch_reads", "sections", "preprocessing", "tasks", "lifetimes", "sampling", "worker_states"),
    *("client_steps", "worker_requests"),
)


class Older(NamedTuple):
    """A run with the given data, and plot inputs that are not in its records."""

    run: Run
    inputs: dict[str, Any]


def argument_of(data: object) -> str | None:
    """Name of the plot argument that matches the shape of the data, or None."""
    if isinstance(data, Mapping):
        if any(isinstance(key, tuple) for key in data):
            of_chunks = all(isinstance(values, Sequence) for values in data.values())
            return "chunk_info" if of_chunks else "span_metrics"
        return "tracking_data" if {COUNTS, *(name for name, _ in SERIES)} & set(data) else "metrics"
    return "chunk_metrics" if isinstance(data, Sequence) and not isinstance(data, str) else None


def with_older(run: Run | None, given: Mapping[str, Any]) -> Older:
    """Replace a run's records with the given data, and convert its reported 0.1.2 data to records."""
    if run is None:
        among, taken = given.get("metrics") or {}, {ARGUMENTS[name][0] for name in given}
        found = {name: among[key] for name, key in IN_METRICS.items() if among.get(key)}
        given = {name: data for name, data in found.items() if ARGUMENTS[name][0] not in taken} | {**given}
    fields: dict[str, Any] = {
        field: made_of(given[name]) for name, (field, made_of) in ARGUMENTS.items() if name in given
    }
    if "reported" in fields:
        fields["reported_by"] = "the metrics that were given"
    reported = fields.get("reported") or (run and run.reported) or {}
    if "chunks" not in fields and reported.get("raw_chunk_metrics"):
        fields["chunks"] = chunks_of(reported["raw_chunk_metrics"])
    if "samples" in fields:
        fields |= dict.fromkeys(("sampling", "worker_states"))
    counts = counts_of(given.get("tracking_data") or reported.get("tracking_data") or {})
    inputs: dict[str, Any] = {"worker_counts": counts} if len(counts[0]) else {}
    if ratios := [ratio for ratio in reported.get("compression_ratios") or () if ratio]:
        inputs["compression_factors"] = "files", 1 / np.array(ratios)
    if run is None:
        columns = ("samples", "time"), ("chunks", "start"), ("chunks", "stop")
        seen = (fields[name][column].drop_null().to_pylist() for name, column in columns if name in fields)
        run = run_without_records(*counts[0].tolist(), *chain.from_iterable(seen))
    absent = {name: reason for name, reason in run.absent.items() if name not in fields}
    return Older(dataclasses.replace(run, **fields, absent=absent), inputs)


def run_without_records(*moments: float) -> Run:
    absent = dict.fromkeys(NOT_GIVEN, "they were not given")
    absent |= {field: f"pass {argument}=, or a measurement" for argument, (field, _) in ARGUMENTS.items()}
    start, stop = min(moments, default=0.0), max(moments, default=0.0)
    return unwatched_run(id="", start=start, stop=stop, backend="", absent=absent)
