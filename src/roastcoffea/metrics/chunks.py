"""Metrics of the chunks: how long their attempts took, what they added to memory, and the datasets apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.compat.chunk_dicts import MIB, ChunkDict, chunk_dicts
from roastcoffea.compat.tracking import TrackingData
from roastcoffea.compat.tracking import tracking_data as tracking_of
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import CATALOGUE, CHUNKS, PHASES, RAW, Metric, NotMeasuredError, metric
from roastcoffea.metrics.facts import FAILED, complete_sum, known_sum, measured_values, with_outcome
from roastcoffea.metrics.statistics import Numbers, sample_deviation
from roastcoffea.records.chunks import OK
from roastcoffea.records.run import Run, SpanMetrics
from roastcoffea.units import COUNT, MEBIBYTE, SECOND, STRUCTURE, Unit

CHUNK_RECORDS: Final = "chunk records"


@metric(COUNT, group=CHUNKS, source=CHUNK_RECORDS, label="with a result", formula="attempts that counted")
def num_successful_chunks(counted_chunks: pa.Table) -> int:
    """Number of chunks that gave a result, computed or loaded from a checkpoint: the same as `num_chunks`."""
    return len(counted_chunks)


@metric(
    COUNT,
    group=CHUNKS,
    source=CHUNK_RECORDS,
    label="failed attempts",
    formula='attempts with outcome "error" or "skipped"',
)
def num_failed_chunks(chunks: pa.Table) -> int:
    """Number of attempts that raised an error or skipped a bad file.

    Attempts, not chunks: one that failed twice and succeeded then counts two here, and is a successful
    chunk as well.
    """
    return len(with_outcome(chunks, FAILED))


@metric(
    COUNT,
    group=CHUNKS,
    source=CHUNK_RECORDS,
    label="events in chunks",
    formula="sum of events over attempts that counted",
)
def total_events_from_chunks(counted_chunks: pa.Table) -> int:
    """Events of the chunks that gave a result, by their own records: a check of `total_events`."""
    return int(complete_sum(counted_chunks, "events", "chunks"))


class Distribution(NamedTuple):
    """A quantity of a chunk that is shown by some of its statistics."""

    name: str
    unit: Unit
    label: str
    statistics: tuple[str, ...]
    input: str
    values: Callable[[pa.Table], Numbers]
    meaning: str
    formula: str


def _durations(attempts: pa.Table) -> Numbers:
    return measured_values(attempts["wall_seconds"])


def _memory_deltas(attempts: pa.Table) -> Numbers:
    return measured_values(pc.subtract(attempts["memory_after"], attempts["memory_before"])) / MIB


def _events(attempts: pa.Table) -> Numbers:
    return measured_values(attempts["events"])


STATISTICS: Final[Mapping[str, tuple[str, Callable[[Numbers], Any]]]] = {
    "mean": ("Mean", np.mean),
    "min": ("Smallest", np.min),
    "max": ("Largest", np.max),
    "std": ("Standard deviation (sample, n - 1) of the", sample_deviation),
}

DISTRIBUTIONS: Final = (
    Distribution(
        "chunk_duration_{}",
        SECOND,
        "duration",
        ("mean", "min", "max", "std"),
        "successful_chunks",
        _durations,
        "wall time of an attempt that was computed to the end.",
        "wall_seconds",
    ),
    Distribution(
        "chunk_mem_delta_{}_mb",
        MEBIBYTE,
        "memory growth",
        ("mean", "min", "max", "std"),
        "successful_chunks",
        _memory_deltas,
        "growth of the process's resident memory over an attempt that was computed to the end. In MiB "
        "(1048576 B), whatever the name says; chunks that ran at the same time in the process are in it.",
        "(memory_after - memory_before) / 2**20",
    ),
    Distribution(
        "chunk_events_{}",
        COUNT,
        "events",
        ("mean", "min", "max"),
        "counted_chunks",
        _events,
        "number of events of a chunk that gave a result.",
        "events",
    ),
)


def _statistic(values: Callable[[pa.Table], Numbers], compute: Callable[[Numbers], Any], attempts: pa.Table) -> float:
    measured = values(attempts)
    if len(measured) == 0:
        raise NotMeasuredError("not measured for any chunk" if len(attempts) else "no chunk gave a result")
    if len(measured) == 1 and compute is sample_deviation:
        raise NotMeasuredError("a deviation takes two chunks")
    return float(compute(measured))


for distribution in DISTRIBUTIONS:
    for statistic in distribution.statistics:
        words, compute = STATISTICS[statistic]
        CATALOGUE.add(
            Metric(
                name=distribution.name.format(statistic),
                function=partial(_statistic, distribution.values, compute),
                inputs=(distribution.input,),
                unit=distribution.unit,
                group=CHUNKS,
                source=CHUNK_RECORDS,
                meaning=f"{words} {distribution.meaning}",
                label=distribution.label,
                statistic=statistic,
                written_formula=f"{statistic}({distribution.formula})",
            )
        )


@metric(
    STRUCTURE,
    group=CHUNKS,
    source=CHUNK_RECORDS,
    label="datasets",
    formula="sums over each dataset's attempts",
)
def per_dataset(
    chunks: pa.Table, counted_chunks: pa.Table, byte_ledger: ByteLedger | None = None
) -> dict[str, dict[str, Any]]:
    """Breakdown by dataset: {dataset: {name: amount}}.

    `num_chunks`, `total_events`, `total_duration` [s], `mean_duration` [s] and `mean_events_per_chunk` are
    of chunks that gave a result; `num_failed` (attempts) and `cpu_seconds` are of all attempts, so that CPU
    adds up to `total_cpu_time`. `bytes_requested` and the classes of the byte ledger are there as in the
    metrics of these names. An amount that is not known for all of them is None.
    """
    attempts, counted = (table.select(BROKEN_DOWN) for table in (chunks, counted_chunks))
    return {
        dataset: _breakdown(_of(attempts, dataset), _of(counted, dataset)) | _bytes_of(dataset, byte_ledger)
        for dataset in chunks["dataset"].unique().drop_null().to_pylist()
    }


BROKEN_DOWN: Final = ("dataset", "outcome", "events", "wall_seconds", "cpu_seconds", "helper_cpu_seconds")
"""Columns that a breakdown sums: rows of these are copied, not whole ones."""


def _of(table: pa.Table, dataset: str) -> pa.Table:
    return table.filter(pc.equal(table["dataset"], dataset))


def _breakdown(attempts: pa.Table, counted: pa.Table) -> dict[str, Any]:
    number = len(counted)
    duration, events = _complete_sum(counted, "wall_seconds"), _complete_sum(counted, "events")
    cpu = _complete_sum(attempts, "cpu_seconds")
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
    requests = _of(ledger.requests, dataset)
    return {
        metric_name: None if ledger.get(name, 0) is None else known_sum(requests[name])
        for name, metric_name in names.items()
    }


def _complete_sum(table: pa.Table, column: str) -> Any:
    return None if table[column].null_count else pc.sum(table[column], min_count=0).as_py()


def _phase(column: str, chunks: pa.Table) -> float:
    unknown = with_outcome(chunks.select(["outcome", column]), (OK,))[column].null_count
    if unknown:
        raise NotMeasuredError(f"not known for {unknown} of {len(chunks)} attempts of chunks")
    return float(known_sum(chunks[column]))


for phase in phases.PHASES:
    CATALOGUE.add(
        Metric(
            name=f"chunk_{phase.column}",
            function=partial(_phase, phase.column),
            inputs=("chunks",),
            unit=SECOND,
            group=PHASES,
            source=CHUNK_RECORDS,
            meaning=f"{phase.meaning}; summed over all attempts, as far as each one came.",
            label=phase.name,
            written_formula=f"sum of {phase.column} over all attempts",
        )
    )


@metric(STRUCTURE, group=RAW, source="samples of workers", formula="samples and lifetimes, reshaped")
def tracking_data(samples: pa.Table, lifetimes: pa.Table) -> TrackingData:
    """Worker counts and nine series per worker, as version 0.1.2 gave them; times are naive and local."""
    return tracking_of(samples, lifetimes)


@metric(STRUCTURE, group=RAW, source=CHUNK_RECORDS, formula="attempts that counted, as dictionaries")
def raw_chunk_metrics(counted_chunks: pa.Table, run: Run) -> list[ChunkDict]:
    """Chunks that gave a result, one dictionary each."""
    return chunk_dicts(counted_chunks, run.branch_reads, run.sections)


@metric(STRUCTURE, group=RAW, source="Dask span metrics", formula="as Dask gives them")
def raw_span_metrics(cumulative_metrics: SpanMetrics) -> dict[tuple[Hashable, ...], float]:
    """Cumulative metrics of the run's span: {("execute", prefix, activity, unit): amount}."""
    return dict(cumulative_metrics)
