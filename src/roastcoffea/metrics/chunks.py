"""Chunk metrics: duration and memory growth, breakdowns by dataset, and sums of values recorded by users."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.compat import shapes
from roastcoffea.compat.shapes import MIB, ChunkDict
from roastcoffea.generations import UNMARKED
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import CHUNKS, PHASES, RAW, RUN, fact, metric, refuse_if
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.facts import (
    FAILED,
    aggregated,
    complete_sum,
    known_sum,
    rows_with,
    with_outcome,
)
from roastcoffea.metrics.statistics import measured_values
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import OK
from roastcoffea.records.columns import Column, Row, text_column
from roastcoffea.records.run import Run, SpanMetrics
from roastcoffea.units import COUNT, MEBIBYTE, SECOND, STRUCTURE

CHUNK_RECORDS: Final = "chunk records"
of_chunks: Final = partial(metric, group=CHUNKS, source=CHUNK_RECORDS)


@of_chunks(COUNT, "with a result", "attempts that counted")
def num_successful_chunks(counted_chunks: Table) -> int:
    """Number of chunks whose result was computed or loaded from a checkpoint. Same as `num_chunks`."""
    return len(counted_chunks)


@of_chunks(COUNT, "attempts that raised", 'attempts with outcome "error" or "skipped"')
def num_failed_chunks(chunks: Table) -> int:
    """Number of attempts that raised an error or skipped a bad file.

    A chunk that fails twice and then succeeds counts twice here, and once as a successful chunk.
    """
    return len(with_outcome(chunks, FAILED))


@of_chunks(COUNT, "events in chunks", "sum of events over attempts whose result was used")
def total_events_from_chunks(counted_chunks: Table) -> int:
    """Number of events according to the chunk records, as a check on `total_events`."""
    return int(complete_sum(counted_chunks, "events", "chunks"))


STATISTICS: Final = {
    "mean": "Mean",
    "min": "Smallest",
    "max": "Largest",
    "std": "Sample standard deviation (n - 1) of the",
}
# fmt: off
DISTRIBUTIONS: Final = (
    ("chunk_duration_{}", SECOND, lambda rows: rows["wall_seconds"], "successful_chunks", "duration", "wall_seconds",
     "wall time of completed attempts."),
    ("chunk_mem_delta_{}_mb", MEBIBYTE,
     lambda rows: pc.multiply(pc.subtract(rows["memory_after"], rows["memory_before"]), 1 / MIB),
     "successful_chunks", "memory growth",
     "(memory_after - memory_before) / 2**20",
     "process memory growth during a completed attempt (in MiB despite the name), including other chunks' growth."),
    ("chunk_events_{}", COUNT, lambda rows: rows["events"], "counted_chunks", "events", "events",
     "number of events in a chunk with a result."),
)
# fmt: on
"""Chunk quantities for which each statistic is reported as a metric: name, unit, values, input table, label, formula
and meaning.
"""


def _statistic(values: Callable[[Table], pa.ChunkedArray], statistic: str, attempts: Table) -> float:
    measured = measured_values(values(attempts))
    refuse_if(not len(measured), "not measured for any chunk" if len(attempts) else "no chunk has a result")
    refuse_if(len(measured) == 1 and statistic == "std", "a standard deviation needs at least two chunks")
    return float(np.std(measured, ddof=1) if statistic == "std" else getattr(np, statistic)(measured))


for name, unit, values, table, label, formula, meaning in DISTRIBUTIONS:
    for statistic, words in STATISTICS.items():
        if unit is not COUNT or statistic != "std":
            of_chunks(
                unit,
                name=name.format(statistic),
                label=label,
                statistic=statistic,
                meaning=f"{words} {meaning}",
                formula=f"{statistic}({formula})",
                inputs=(table,),
            )(partial(_statistic, values, statistic))


@of_chunks(STRUCTURE, "datasets", "sums over each dataset's attempts")
def per_dataset(chunks: Table, counted_chunks: Table, byte_ledger: ByteLedger | None = None) -> dict[str, Row]:
    """Amounts for each dataset: {dataset: {name: amount}}.

    `num_chunks`, `total_events`, `total_duration` [s], `mean_duration` [s] and `mean_events_per_chunk` cover chunks
    with a result. `num_failed` (number of attempts) and `cpu_seconds` (which adds up to `total_cpu_time`) cover all
    attempts. `bytes_requested` and the byte ledger's classes use the names of the corresponding metrics. An amount is
    None if it is unknown for any attempt.
    """
    # copy only the columns that are needed
    names = ("dataset", "outcome", "events", "wall_seconds", "cpu_seconds", "helper_cpu_seconds")
    attempts, counted = (table.select(names) for table in (chunks, counted_chunks))
    return {
        dataset: _breakdown(rows_with(attempts, "dataset", [dataset]), rows_with(counted, "dataset", [dataset]))
        | _bytes_of(dataset, byte_ledger)
        for dataset in chunks["dataset"].unique().drop_null().to_pylist()
    }


def _breakdown(attempts: Table, counted: Table) -> Row:
    duration, events, cpu = (
        None if table[name].null_count else known_sum(table[name])
        for table, name in ((counted, "wall_seconds"), (counted, "events"), (attempts, "cpu_seconds"))
    )
    number = len(counted)
    return {
        "num_chunks": number,
        "total_duration": duration,
        "total_events": events,
        "mean_duration": duration / number if number and duration is not None else None,
        "mean_events_per_chunk": events / number if number and events is not None else None,
        "cpu_seconds": None if cpu is None else cpu + known_sum(attempts["helper_cpu_seconds"]),
        "num_failed": len(with_outcome(attempts, FAILED)),
    }


def _bytes_of(dataset: str, ledger: ByteLedger | None) -> dict[str, int | None]:
    names = {phases.TOTAL: "bytes_requested"} | {one.name: one.metric_name for one in phases.BYTE_CLASSES}
    if ledger is None:
        return dict.fromkeys(names.values())
    requests = rows_with(ledger.requests, "dataset", [dataset])
    return {
        metric: None if ledger.get(name, 0) is None else known_sum(requests[name]) for name, metric in names.items()
    }


def _phase(column: str, chunks: Table) -> float:
    columns = [column]
    refuse_if(column == phases.BUILD and phases.is_opening_whole(chunks), UNMARKED)
    if column == phases.UNSPLIT:
        columns = [one.column for one in phases.phases_of(chunks) if one.column in (column, *phases.SPLIT)]
    computed = with_outcome(chunks.select(["outcome", *columns]), (OK,))
    unknown = sum(computed[name].null_count for name in columns) if len(columns) < len(phases.SPLIT) + 1 else 0
    refuse_if(unknown, f"unknown for {unknown} of {len(chunks)} chunk attempts")
    return float(sum(known_sum(chunks[name]) for name in columns))


for phase in phases.PHASES:
    formula = f"sum of {phase.column} over all attempts"
    meaning = f"{phase.meaning}."
    label = f"{phase.name} (sum)" if phase.column == phases.UNSPLIT else phase.name
    of_phases = partial(of_chunks, group=PHASES, label=label, formula=formula, meaning=meaning)
    of_phases(SECOND, name=f"chunk_{phase.column}")(partial(_phase, phase.column))


@metric(STRUCTURE, group=RAW, source="worker samples", formula="samples and lifetimes, reshaped")
def tracking_data(
    samples: Table,
    lifetimes: Table,
    sampling: Table | None = None,
    worker_states: Table | None = None,
) -> shapes.TrackingData:
    """Worker counts and nine time series per worker, with naive local times, in the format of version 0.1.2."""
    return shapes.tracking_data(samples, lifetimes, sampling, worker_states)


@metric(STRUCTURE, group=RAW, source=CHUNK_RECORDS, formula="attempts whose result was used, as dictionaries")
def raw_chunk_metrics(counted_chunks: Table, run: Run) -> list[ChunkDict]:
    """One dictionary for each chunk with a result."""
    return shapes.chunk_dicts(counted_chunks, run.branch_reads, run.sections)


@metric(STRUCTURE, group=RAW, source="Dask span metrics", formula="as returned by Dask")
def raw_span_metrics(cumulative_metrics: SpanMetrics) -> dict[tuple[Hashable, ...], float]:
    """Cumulative metrics of the run's Dask span: {("execute", prefix, activity, unit): amount}."""
    return dict(cumulative_metrics)


MOST_TEXTS: Final = 20

CUSTOM_TOTALS: Final = (
    text_column("name", "name of the value (roastcoffea.record)"),
    text_column("dataset", "dataset in the fileset"),
    Column("chunks", "integer", "chunks", "number of chunks that recorded a value"),
    Column("sum", "number", None, "sum of the numbers or, for booleans, the number of True values"),
    Column("mean", "number", None, "mean over chunks"),
    Column("min", "number", None, "smallest number"),
    Column("max", "number", None, "largest number"),
    Column("texts", "texts", None, f"first {MOST_TEXTS} distinct strings; none if the values are numbers"),
)
"""The table has one row per name and dataset. It covers attempts whose result was used, so a rerun chunk counts once.
"""


@fact
def custom_totals(counted_chunks: Table) -> Table:
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    known = counted_chunks.select(["dataset", "custom"])
    for row in known.filter(known["custom"].is_valid()).to_pylist():
        for name, value in json.loads(row["custom"]).items():
            found[name, row["dataset"]].append(value)
    order = sorted(found, key=lambda key: (key[0], key[1] or ""))
    rows = [{"name": name, "dataset": dataset, **_total(found[name, dataset])} for name, dataset in order]
    return table_of_rows(CUSTOM_TOTALS, rows)


def _total(values: list[Any]) -> Row:
    texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    amounts = [float(value) for value in values if isinstance(value, int | float) and not math.isnan(value)]
    number = len(amounts) + sum(isinstance(value, str) for value in values)
    row: Row = {"chunks": number, "texts": texts[:MOST_TEXTS] or None}
    if amounts:
        total = sum(amounts)
        row |= {"sum": total, "mean": total / len(amounts), "min": min(amounts), "max": max(amounts)}
    return row


def by_name_and_dataset(totals: Table) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in totals.to_pylist():
        found.setdefault(row.pop("name"), {})[row.pop("dataset")] = row
    return found


@metric(
    STRUCTURE,
    group=CHUNKS,
    source=CHUNK_RECORDS,
    formula="sums, means and extremes over attempts whose result was used",
)
def custom(custom_totals: Table) -> dict[str, dict[str, Row]]:
    """Values recorded by the processor: {name: {dataset: {column: amount}}}.

    The columns are `chunks`, `sum`, `mean`, `min`, `max` and `texts`. The result is empty if nothing was recorded.
    """
    return by_name_and_dataset(custom_totals)


# Metrics in the format of version 0.1.2, derived from current metrics

of_raw = partial(metric, STRUCTURE, group=RAW, source=CHUNK_RECORDS)


@of_raw(formula="t_start, t_end and bytes_read of raw_chunk_metrics")
def chunk_info(run: Run, raw_chunk_metrics: list[ChunkDict]) -> shapes.ChunkInfo:
    """Chunks with a result: {(file, entry_start, entry_stop): (start, stop, bytes requested)}."""
    # byte counts saved by version 0.1.2 cover only process(), and our records do not contain them
    return shapes.chunk_info((run.reported or {}).get("raw_chunk_metrics") or raw_chunk_metrics)


@of_raw(formula="per file, sum of bytes_payload / sum of bytes_uncompressed")
def file_metadata(counted_chunks: Table) -> dict[str, Row]:
    """Name, number of branches and compression ratio of each file: {file: {name: value}}.

    The names are `filename`, `total_branches` and `compression_ratio`. The ratio is the compressed size of the data
    read from the file divided by its uncompressed size, or None if it is unknown. In version 0.1.2, the ratio covered
    the whole tree.
    """
    steps = {"tree_branches": ("tree_branches", "max")}
    steps |= {name: (name, "sum") for name in ("bytes_payload", "bytes_uncompressed")}
    files = aggregated(counted_chunks, ["file"], steps)
    return {
        row["file"]: {
            "filename": row["file"],
            "total_branches": row["tree_branches"],
            # baskets embedded in the tree have no separate size
            "compression_ratio": (
                row["bytes_payload"] / row["bytes_uncompressed"]
                if row["bytes_payload"] and row["bytes_uncompressed"]
                else None
            ),
        }
        for row in files.sort_by("file").to_pylist()
        if row["file"] is not None
    }


@of_raw(formula="known values of compression_ratio in file_metadata")
def compression_ratios(file_metadata: dict[str, Row]) -> list[float]:
    """Compressed / uncompressed size of the data read from each file, if both are known."""
    return [ratio for file in file_metadata.values() if (ratio := file["compression_ratio"]) is not None]


@of_raw(formula="known values of bytes_read_percent in file_read_metrics")
def bytes_read_percent_per_file(file_read_metrics: dict[str, Row]) -> list[float]:
    """Share of each file's bytes that was read. Files of unknown size are excluded."""
    return [share for file in file_read_metrics.values() if (share := file["bytes_read_percent"]) is not None]


class OlderMetrics(Metrics):
    """Metrics of a run, with `sections` in the format of version 0.1.2.

    In that format, sections are keyed only by name and cover only chunks with a result.
    """

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return shapes.sections_of(self["raw_chunk_metrics"]) if name == "sections" else found

    def __reduce__(self) -> tuple[Callable[[Run], OlderMetrics], tuple[Run]]:
        return _older_metrics, (self.evaluator.value(RUN),)


def _older_metrics(run: Run) -> OlderMetrics:
    return OlderMetrics(evaluate(run).evaluator)
