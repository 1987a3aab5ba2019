"""What plots draw from: records of a run, and what is computed from them, each when a plot asks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.compat.older import chunks_of, counts_of, kind_of, samples_of
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metrics, TimeLedger, evaluate
from roastcoffea.metrics.branches import branches_of
from roastcoffea.metrics.catalogue import RUN, Fact, NotMeasuredError, Sourced
from roastcoffea.metrics.facts import clock_offsets, measured_values, reason_of_absence, recorded, with_outcome
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.sections import sections_of
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.chunks import CHECKPOINT, OK
from roastcoffea.records.run import FAILED, FINISHED, Environment, Run, SpanMetrics

TABLES: Final = ("chunks", "branch_reads", "sections", "preprocessing", "tasks", "samples", "lifetimes")
GIVEN: Final = {"tracking_data": "samples", "chunk_metrics": "chunks", "span_metrics": "span_metrics"}
"""Arguments of 0.1.2, and the field of a run that stands for each."""

Counted = tuple[Numbers, Numbers]


class Material:
    """Inputs of plots; one that cannot be had raises `NotMeasuredError` with the reason."""

    def __init__(self, run: Run, metrics: Mapping[str, Any] | None, older: Mapping[str, Any]) -> None:
        self.run = run
        self._metrics = metrics
        self._older = older
        self._facts: dict[str, Any] = {RUN: run}

    @classmethod
    def of(cls, source: Any, **older: Any) -> Material:
        """Material of a run, a measurement or a collector, and of data in the shapes of 0.1.2.

        Raises
        ------
        ValueError
            If nothing was given, or something of another kind.
        """
        given = {name: data for name, data in older.items() if data is not None}
        if (kind := kind_of(source)) is not None:
            source, given = None, {kind: source} | given
        if source is None and given:
            source = run_without_records()
        measured = getattr(source, "measurement", source)
        run, metrics = getattr(measured, "run", measured), getattr(measured, "metrics", None)
        if not isinstance(run, Run):
            found = "nothing" if source is None else type(source).__name__
            text = f"give a collector, a measurement, a Run, or one of {', '.join(older)}; {found} was given"
            raise ValueError(text)
        run = _with_older(run, given)
        reported = run.reported or {}
        given = {"tracking_data": reported.get("tracking_data")} | given
        if "chunk_metrics" not in given and reported.get("raw_chunk_metrics"):
            run = dataclasses.replace(run, chunks=chunks_of(reported["raw_chunk_metrics"]))
        return cls(run, given.get("metrics", metrics), given)

    @property
    def failed(self) -> bool:
        """Whether the run ended with an error."""
        return self.run.outcome == FAILED

    @cached_property
    def start(self) -> float:
        """Where the time axis begins (Unix seconds)."""
        if self.run.stop > self.run.start:
            return self.run.start
        tables = ((self.run.samples, "time"), (self.run.chunks, "start"))
        known = [measured_values(table[column]) for table, column in tables if table is not None]
        moments = np.concatenate([*known, counts_of(self._older.get("tracking_data") or {})[0]])
        return float(moments.min(initial=np.inf))

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics under their present names."""
        metrics: Mapping[str, Any] = evaluate(self.run) if self._metrics is None else self._metrics
        if isinstance(metrics, Metrics):
            return metrics
        return {CATALOGUE.aliases.get(name, name): value for name, value in metrics.items() if value is not None}

    @property
    def chunks(self) -> pa.Table:
        """Attempts of chunks, of which there is at least one; start and stop are on the client's clock."""
        found = _some(recorded(self.run, "chunks"), "no attempt of a chunk was seen")
        return self._on_clients_clock(found, "start", "stop")

    @property
    def requests(self) -> pa.Table:
        """When attempts of chunks and of preprocessing ran, and the bytes that each requested; null is not known."""
        chunks = self.chunks
        asked = pc.coalesce(chunks["bytes_requested"], chunks["coffea_bytes_read"])
        loaded = pc.fill_null(pc.equal(chunks["outcome"], CHECKPOINT), False)
        found = [_timed(chunks, pc.if_else(loaded, pc.fill_null(asked, 0), asked))]
        if not len(found[0].drop_null()):
            raise NotMeasuredError("of no attempt of a chunk it is known when it ran and what it requested")
        if self.run.preprocessing is not None:
            openings = self._on_clients_clock(self.run.preprocessing, "start", "stop")
            found.append(_timed(openings, openings["bytes_requested"]))
        return pa.concat_tables(found)

    @property
    def computed_chunks(self) -> pa.Table:
        """Attempts of chunks that were computed to the end, of which there is at least one."""
        return _some(with_outcome(self.chunks, (OK,)), "no chunk was computed to the end")

    @property
    def phased_chunks(self) -> pa.Table:
        """Attempts of chunks that were computed to the end, of which at least one tells its phases."""
        chunks = self.computed_chunks
        columns = [phase.column for phase in PHASES]
        if all(chunks[column].null_count == len(chunks) for column in columns):
            raise NotMeasuredError(self.run.absent.get(f"chunks.{columns[0]}", "no chunk tells its phases"))
        return chunks

    @property
    def tasks(self) -> pa.Table:
        """Attempts of tasks, of which there is at least one."""
        return _some(recorded(self.run, "tasks"), "no task was seen")

    @property
    def attempts(self) -> tuple[pa.Table | None, pa.Table | None]:
        """Attempts of tasks, None where they are not known, and those of chunks; of both one at least is known."""
        chunks = None if self.run.chunks is None or "chunks" in self.run.absent else self.chunks
        if chunks is not None and self.run.tasks is None:
            return None, chunks
        return self.tasks, chunks

    @property
    def samples(self) -> pa.Table:
        """Samples of workers, of which there is at least one; their time is on the client's clock."""
        return self._on_clients_clock(_some(recorded(self.run, "samples"), "no sample of a worker was taken"), "time")

    @property
    def lifetimes(self) -> pa.Table:
        """Workers, of which there is at least one."""
        return _some(recorded(self.run, "lifetimes"), "no worker was seen")

    @property
    def worker_counts(self) -> Counted:
        """Moments, and the number of workers from each to the next: as it was counted, else of lifetimes.

        Of lifetimes the last number is that of the workers who stayed to the end of the run: they leave as it ends.
        """
        times, counts = counts_of(self._older.get("tracking_data") or {})
        if len(times):
            return times, counts
        starts, stops = self.fact("present")
        moments = np.unique(np.concatenate([starts, stops]))
        if len(moments) == 0:
            raise NotMeasuredError("no worker was seen")
        left = np.searchsorted(np.sort(stops), moments, side="right")
        counted = np.searchsorted(np.sort(starts), moments, side="right") - left
        return _to_the_end(moments, counted.astype(np.float64), self.run.stop)

    @property
    def span_metrics(self) -> SpanMetrics:
        """What Dask counted in the tasks of the run: {("execute", prefix, activity, unit): amount}."""
        found: SpanMetrics = recorded(self.run, "span_metrics")
        return found

    @property
    def byte_ledger(self) -> ByteLedger:
        """Bytes that were requested, by class."""
        ledger: ByteLedger = self.fact("byte_ledger")
        return ledger

    @property
    def time_ledger(self) -> TimeLedger:
        """Seconds of worker threads, by class."""
        ledger: TimeLedger = self.fact("time_ledger")
        return ledger

    @property
    def branches(self) -> pa.Table:
        """Branches of files by dataset."""
        if isinstance(self._metrics, Metrics) and "byte_ledger" in self._metrics:
            return _some(self.byte_ledger.branches, "no branch was read")
        return _some(self._made(branches_of(self.run), "branch_reads"), "no branch was read")

    @property
    def sections(self) -> pa.Table:
        """Sections by name and dataset."""
        return _some(self._made(sections_of(self.run), "sections"), "the processor names no section")

    @property
    def worker_balance(self) -> pa.Table:
        """Workers side by side."""
        return _some(self.fact("worker_balance"), "no worker was seen")

    @property
    def expected_seconds(self) -> pa.Table:
        """Chunks that counted, with what was expected of them."""
        table: pa.Table = self.fact("expected_seconds")
        return table

    @property
    def stragglers(self) -> pa.Table:
        """Chunks that took much longer than expected."""
        table: pa.Table = self.fact("stragglers")
        return table

    @property
    def file_read_metrics(self) -> dict[str, dict[str, Any]]:
        """What was read of each file."""
        shares: dict[str, dict[str, Any]] = self.metric("file_read_metrics")
        if not shares:
            raise NotMeasuredError("no file was read")
        return shares

    @property
    def compression_factors(self) -> tuple[str, Numbers]:
        """Uncompressed over compressed size of "chunks", or of "files" where 0.1.2 reported it (the inverse)."""
        if reported := [ratio for ratio in self._reported("compression_ratios") if ratio]:
            return "files", 1 / np.array(reported, dtype=np.float64)
        chunks = self.computed_chunks
        known = chunks.select(["bytes_payload", "bytes_uncompressed"]).drop_null()
        known = known.filter(pc.greater(known["bytes_payload"], 0))
        known = _some(known, "of no chunk the payload is known with its size in memory")
        return "chunks", measured_values(known["bytes_uncompressed"]) / measured_values(known["bytes_payload"])

    def metric(self, name: str) -> Any:
        """Value of a metric: of those that were given or evaluated, else computed with what it needs alone."""
        if self._metrics is None and self.run.reported is None and name in CATALOGUE.entries:
            return self.fact(name)
        if name in self.metrics:
            return self.metrics[name]
        missing = getattr(self.metrics, "missing", {})
        raise NotMeasuredError(missing.get(name, f"{name} is not among the metrics"))

    def fact(self, name: str) -> Any:
        """Value of an entry of the catalogue, computed with what it needs and nothing else."""
        if isinstance(self._metrics, Metrics) or self.run.reported is not None:
            return self._evaluated(name)
        if name not in self._facts:
            self._facts[name] = self._computed(CATALOGUE.entries[name])
        return self._facts[name]

    def _evaluated(self, name: str) -> Any:
        metrics: Any = self.metrics
        if name in metrics.missing or name in metrics:
            return self.metric(name)
        found = metrics.tables.get(name)
        if isinstance(found, str):
            raise NotMeasuredError(found)
        return found if found is not None else self._computed(CATALOGUE.entries[name])

    def _computed(self, entry: Fact) -> Any:
        value = entry.function(*(self._input(name, name in entry.optional) for name in entry.inputs))
        return value.value if isinstance(value, Sourced) else value

    def _input(self, name: str, optional: bool) -> Any:
        try:
            return self._facts[name] if name in self._facts else self.fact(name)
        except NotMeasuredError:
            if optional:
                return None
            raise

    def _made(self, table: pa.Table | None, field: str) -> pa.Table:
        if table is None:
            raise NotMeasuredError(reason_of_absence(self.run, "chunks" if self.run.chunks is None else field))
        return table

    def _on_clients_clock(self, table: pa.Table, *columns: str) -> pa.Table:
        """Table whose moments (these columns) were on the clocks of workers."""
        offsets = {worker: offset for worker, offset in clock_offsets(self.run).items() if offset}
        if not offsets:
            return table
        place = pc.index_in(table["worker"], value_set=pa.array(list(offsets), pa.string()))
        ahead = pc.fill_null(pc.take(pa.array(list(offsets.values())), place), 0.0)
        for name in columns:
            number = table.schema.get_field_index(name)
            table = table.set_column(number, table.schema.field(number), pc.subtract(table[name], ahead))
        return table

    def _reported(self, name: str) -> Any:
        for metrics in (self.run.reported, self._older.get("metrics")):
            if metrics and name in metrics:
                return metrics[name]
        return []


def _to_the_end(moments: Numbers, counts: Numbers, stop: float) -> Counted:
    """Numbers of workers up to the end of the run: none where all had left, else those who stayed until then."""
    if moments[-1] < stop:
        return np.append(moments, stop), np.append(counts, 0.0)
    return moments, np.append(counts[:-1], counts[-2:-1] if len(counts) > 1 else counts)


def _timed(attempts: pa.Table, requested: pa.ChunkedArray) -> pa.Table:
    return pa.table({"start": attempts["start"], "stop": attempts["stop"], "bytes": requested})


def _some(table: pa.Table, otherwise: str) -> pa.Table:
    if len(table) == 0:
        raise NotMeasuredError(otherwise)
    return table


def run_without_records() -> Run:
    """A run of which nothing is known."""
    absent = dict.fromkeys((*TABLES, "span_metrics"), "they were not given")
    for argument, name in GIVEN.items():
        absent[name] = f"give {argument}=, or a measurement"
    nowhere = Environment(versions={}, client_host=None)
    return Run(
        id="",
        name=None,
        start=0.0,
        stop=0.0,
        outcome=FINISHED,
        error=None,
        backend="",
        environment=nowhere,
        absent=absent,
    )


def _with_older(run: Run, given: Mapping[str, Any]) -> Run:
    """Run with the records that were given in place of its own."""
    makers: dict[str, Callable[[Any], Any]] = {"tracking_data": samples_of, "chunk_metrics": chunks_of}
    fields = {field: makers.get(name, dict)(given[name]) for name, field in GIVEN.items() if name in given}
    absent = {name: reason for name, reason in run.absent.items() if name not in fields}
    return dataclasses.replace(run, **fields, absent=absent)
