"""Forecast for a whole fileset before the run, from a random sample of its chunks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from math import ceil, hypot, log2
from numbers import Real
from operator import attrgetter
from typing import Any, Final

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.stats import sem
from scipy.stats import t as students_t

from roastcoffea.collector import MetricsCollector
from roastcoffea.diagnosis.chunk_size import ChunkSize, recommended
from roastcoffea.diagnosis.completeness import TARGET
from roastcoffea.diagnosis.savings import Calibrated, Savings
from roastcoffea.errors import reported
from roastcoffea.generations import output_of, own_client
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.endpoints import endpoint, with_endpoints
from roastcoffea.metrics.facts import counted_chunks, recorded
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes, measured_values, moments
from roastcoffea.records.workers import PROCESSOR
from roastcoffea.redaction import redacted
from roastcoffea.replay.changes import Chunks, chunks_in_parts, ratio
from roastcoffea.replay.cluster import Costs, Merging
from roastcoffea.replay.stages import Recorded, Stage, early_tasks, recorded_run
from roastcoffea.report.tables import known
from roastcoffea.sheets.sheet import Cell, Heading, Sheet, columns
from roastcoffea.studies.prediction import replay
from roastcoffea.studies.stratified import DrawnChunks, Estimate, Population, Sampled, drawn, grown, largest
from roastcoffea.studies.what_if import Paged, check_counts
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, counted, number, suffixed

REPEATED: Final = 0.05
"""Assumed relative difference in CPU time between two runs of the same chunks."""

REPLAYED: Final = 0.1
"""Assumed relative error of a replay, as in `what_if`."""

EFFICIENT: Final = 0.8
"""Minimum share of reserved thread time spent in chunks for which more workers are recommended."""

SAVED: Final = 1.25
"""Ratio of the requested walltime to the upper end of the forecast."""


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """Forecast for one number of workers.

    `seconds` is the wall time, and `core_seconds` the thread time reserved on all workers. `busy` is the share of
    reserved time spent in chunks, excluding process start-up. `scheduler_use` is the share of wall time in which the
    scheduler is busy. `walltime` is the time limit to request for a batch job, in seconds.
    """

    workers: int
    threads: int
    seconds: Estimate
    core_seconds: Estimate
    busy: float
    scheduler_use: float
    walltime: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Paged):
    """Forecast for a whole fileset, with 90 % intervals.

    `cpu` is the CPU time of all chunks in seconds, and `startup` the extra CPU time of each new process. `memory` is
    the peak memory of the worker that needs the most, and `request` the memory to request for each worker. `endpoints`
    maps servers to the bytes requested from them. `output` is the pickled size of the output. `workers` and `chunksize`
    are recommended; all other values are for the present chunk size. `missing` says what could not be measured, and
    why. `measurement` is the measurement of the sample.
    """

    name: str
    seed: int
    chunks: int
    sampled: int
    events: int
    cpu: Estimate
    startup: float | None
    memory: Estimate | None
    request: int | None
    endpoints: dict[str, Estimate]
    output: Estimate | None
    clusters: list[PlannedCluster]
    workers: int
    chunksize: int | None
    missing: dict[str, str]
    measurement: Any = field(repr=False, compare=False)

    def sheets(self) -> list[Sheet]:
        """Amounts for the whole fileset, and wall time by number of workers."""
        return [self._heading(), self._whole(), self._clusters()]

    def _heading(self) -> Heading:
        share = FRACTION.text(self.sampled / self.chunks)
        sample = f"from {number(self.sampled)} of {counted(self.chunks, 'chunk')} ({share})"
        return Heading(label="forecast", title=self.name, lead=[f"{sample}, {number(self.events)} events in total"])

    def _whole(self) -> Sheet:
        sizes: dict[str, Estimate | None] = {f"read from {name}": each for name, each in self.endpoints.items()}
        sizes |= {"output, pickled": self.output, "memory": self.memory}
        rows: list[tuple[Cell, ...]] = [("CPU time", *_texts(self.cpu, partial(_time, unit="core-")))]
        if self.startup is not None:
            rows.append(("start of a worker", _time(self.startup, "core-"), ""))
        rows += [(name, *_texts(each, BYTE.text)) for name, each in sizes.items() if each]
        memory = "" if self.request is None else f" with {BYTE.text(self.request)} of memory each"
        notes = [f"No {name}: {reason}." for name, reason in self.missing.items()]
        if self.chunksize is not None:
            notes.append(f"chunksize={self.chunksize} is recommended; repeat the forecast with it.")
        return Sheet(
            title="The whole fileset",
            columns=columns(None, "") + columns(COUNT, "forecast", "90 % interval"),
            rows=rows,
            notes=[f"Recommended: {counted(self.workers, 'worker')}{memory}.", *notes],
        )

    def _clusters(self) -> Sheet:
        rows = [
            (
                number(one.workers) if one.threads == 1 else f"{number(one.workers)} x {number(one.threads)}",
                *_texts(one.seconds, _time),
                _time(one.core_seconds.value, "core-"),
                one.busy,
                one.walltime,
            )
            for one in self.clusters
        ]
        return Sheet(
            title="Wall time by number of workers, each a batch job",
            columns=columns(None, "workers")
            + columns(COUNT, "wall", "90 % interval", "reserved")
            + columns(FRACTION, "in chunks")
            + columns(SECOND, "walltime"),
            rows=rows,
            notes=["Assumes a core for each worker thread, and storage as fast as in the sample."],
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything except the measurement, in plain types."""
        found = asdict(replace(self, measurement=None))
        del found["measurement"]
        return {"format": "roastcoffea plan 1"} | found


def _time(seconds: float, unit: str = "") -> str:
    """Time in hours or in seconds, short enough for a table."""
    return suffixed(f"{unit}h", 1 / 3600)(seconds) if seconds >= 3600 else suffixed(f"{unit}s")(seconds)


def _texts(found: Estimate, text: Any) -> tuple[str, str]:
    """Text for an estimate and for its interval."""
    return text(found.value), f"{text(found.low)} to {text(found.high)}"


def plan(
    runner: Any,
    fileset: Any,
    processor_instance: Any,
    *,
    sample: float = 0.02,
    workers: Sequence[int] | None = None,
    seed: int = 0,
    **options: Any,
) -> Forecast:
    """Forecast the cost of a run from a random sample of its chunks.

    The Runner reads the metadata of the whole fileset as usual, and then processes the sample in two halves with its
    own executor. Files written by process() and postprocess() really are written. Checkpoints are neither loaded nor
    saved.

    Parameters
    ----------
    runner
        A coffea Runner.
    fileset
        A fileset or chunks, as for the Runner.
    processor_instance
        The processor.
    sample
        Fraction of the chunks to run. It is increased to at least two chunks per dataset and, to separate process
        start-up from the rest, to four chunks per thread (but at most a quarter of all chunks for this reason).
    workers
        Numbers of worker processes for which to forecast wall time; by default multiples of the present number.
    seed
        Seed for drawing the sample.
    options
        Keyword arguments for the Runner call, such as `treename`.

    Raises
    ------
    NotMeasuredError
        If no sampled chunk of a dataset has a result.
    ValueError
        If `sample` is not above 0 and at most 1, or `workers` are not integers above 0.

    Examples
    --------
    >>> forecast = plan(runner, fileset, processor, sample=0.05, treename="Events")  # doctest: +SKIP
    >>> forecast.print()  # doctest: +SKIP
    """
    if not isinstance(sample, Real) or not 0 < sample <= 1:
        raise ValueError(f"sample is {sample!r}; pass a fraction of the chunks, above 0 and at most 1")
    check_counts("workers", workers or (), 10_000)
    from coffea.processor import DaskExecutor

    one = copy.copy(runner)
    one.checkpointer = None  # loading a chunk does not show its cost
    with own_client(one):
        client = one.executor.client if isinstance(one.executor, DaskExecutor) else None
        with MetricsCollector(client, profile=False, journal=None) as collector:
            items = chunks_of(one, fileset, {"processor_instance": processor_instance} | options)
            refuse_if(not items, "the fileset has no chunks")
            slots = sum(client.ncores().values()) if client else getattr(one.executor, "workers", None)
            every, slots = population_of(items), max(slots or 1, 1)
            least = max(2 * len(np.unique(every.dataset)), min(4 * slots, len(items) // 4))
            chosen = drawn(every, max(ceil(sample * len(items)), least), seed)
            halves = [half for half in halves_of(every, chosen) if len(half)]
            results = [one.run([items[row] for row in half], processor_instance, **options) for half in halves]
    return WholeRun(collector.measurement, items, every, chosen).forecast(halves, results, workers, slots, seed)


def chunks_of(runner: Any, fileset: Any, options: Mapping[str, Any]) -> list[Any]:
    """All chunks of a fileset, as split by the Runner."""
    if not isinstance(fileset, Mapping | str):
        return list(fileset)
    names = options.keys() & inspect.signature(runner.preprocess).parameters
    return list(runner.preprocess(fileset, **{name: options[name] for name in names}))


def population_of(items: Sequence[Any]) -> Population:
    """Datasets, hosts, files and entries of chunks, as integers."""
    names = [(item.dataset, endpoint(item.filename), f"{item.dataset}\0{item.filename}") for item in items]
    codes_of = (np.asarray(pd.factorize(np.array(column, object))[0]) for column in zip(*names, strict=True))
    return Population(*codes_of, *np.array([(item.entrystart, item.entrystop) for item in items], np.int64).T)


def halves_of(every: Population, chosen: DrawnChunks) -> list[Integers]:
    """Two halves of the drawn chunks in random order, each with half of the chunks of each dataset."""
    by_dataset = np.argsort(every.dataset[chosen.rows], kind="stable")
    return [chosen.rows[np.sort(by_dataset[half::2])] for half in (0, 1)]


def pickled_size(thing: object) -> int:
    """Size of an object when pickled, in bytes."""
    return len(cloudpickle.dumps(thing, protocol=5))


def _outputs(results: Sequence[Any]) -> list[Any]:
    return [output_of(result)["out"] for result in results]


class WholeRun:
    """A whole run, inferred from a sample of its chunks.

    Parameters
    ----------
    measurement
        Measurement of the sample.
    items, every, chosen
        All chunks, their properties as integers, and the drawn chunks.

    Raises
    ------
    NotMeasuredError
        If no sampled chunk of a dataset has a result.
    """

    def __init__(self, measurement: Measurement, items: Sequence[Any], every: Population, chosen: DrawnChunks) -> None:
        self.measurement, self.every = measurement, every
        self.names = list(dict.fromkeys(str(item.dataset) for item in items))
        self.missing: dict[str, str] = {}
        table = counted_chunks(recorded(measurement.run, "chunks")).sort_by("start")
        place = {
            (redacted(str(item.dataset)), item.fileuuid.hex(), item.entrystart, item.entrystop): row
            for row in chosen.rows.tolist()
            for item in [items[row]]
        }
        keys = zip(*table.select(["dataset", "uuid", "entry_start", "entry_stop"]).to_pydict().values(), strict=True)
        rows = np.array([place.get(key, -1) for key in keys], np.int64)
        self.table, rows = table.filter(pa.array(rows >= 0)), rows[rows >= 0]
        lost = np.setdiff1d(every.dataset, every.dataset[rows])
        if len(lost):
            why = "; ".join(measurement.problems[:2]) or "see the errors of its chunks"
            raise NotMeasuredError(f"no sampled chunk of {self.names[lost[0]]} has a result: {why}")
        if len(rows) < len(chosen.rows):
            without = counted(len(chosen.rows) - len(rows), "sampled chunk")
            self.missing[f"result for {without}"] = "the forecast ignores them"
        self.sampled = Sampled(every, chosen.stratum, rows)
        self.chunks = chunks_in_parts(self.table, amounts(self.table, "wall_seconds"))
        self.parts = self.chunks.parts._replace(contention=np.zeros(len(rows)))
        self.threads, self.merging, self.costs = self._dask()

    def _dask(self) -> tuple[int, Merging, Costs]:
        """Threads per worker, merges and overheads, as in the sample if it ran on Dask."""
        try:
            run = recorded_run(self.measurement.run, self.measurement.metrics, "the sample")
        except NotMeasuredError:
            self.missing["measured Dask costs"] = "the sample cannot be replayed, so typical ones are assumed"
            return 1, Merging(), Costs(gap=1.5e-3, scheduler=1.1e-3, cold_before=self.time[2] or 0.0)
        first = next(stage for stage in run.stages if stage.chunks)  # its call started the processes
        return run.threads, first.merging, first.costs

    def total(self, seconds: Numbers, error: float = 0.0) -> tuple[Estimate, Numbers, float | None]:
        """Total without process start-up, factors that remove start-up from sampled chunks, and start-up per process.

        Chunks that started before the first one of their process ended count without their mean excess over others.
        """
        early = early_tasks(self.table)
        taken, events = (np.bincount(self.sampled.dataset, each * ~early) for each in (seconds, self.sampled.events))
        rate = ratio(taken, events)[self.sampled.dataset]
        comparable = early & (rate > 0)
        if not comparable.any():
            return self.sampled.total(seconds, error), np.ones(len(seconds)), None
        excess = float((seconds - rate * self.sampled.events)[comparable].mean())
        factor = ratio(np.where(early, np.maximum(seconds - excess, 0.0), seconds), seconds)
        startup = max(excess, 0.0) * np.count_nonzero(early) / len(np.unique(codes(self.table["worker"])))
        return self.sampled.total(seconds * factor, error), factor, float(startup)

    # amounts

    @cached_property
    def cpu(self) -> tuple[Estimate, Numbers, float | None]:
        """CPU time: see `total`."""
        return self.total(amounts(self.table, "cpu_seconds") + amounts(self.table, "helper_cpu_seconds"), REPEATED)

    @cached_property
    def time(self) -> tuple[Estimate, Numbers, float | None]:
        """Thread time: see `total`."""
        return self.total(self.parts.total)

    def _endpoints(self) -> dict[str, Estimate]:
        """Bytes requested from each server, in descending order."""
        if self.table["bytes_requested"].null_count:
            self.missing["bytes"] = "bytes of some sampled chunks were not measured"
            return {}
        names = np.array(with_endpoints(self.table)["endpoint"].to_pylist(), object)
        size = amounts(self.table, "bytes_requested")
        totals = {str(name): self.sampled.total((names == name) * size) for name in dict.fromkeys(names)}
        return dict(sorted(totals.items(), key=lambda pair: -pair[1].value))

    def _output(self, halves: Sequence[Integers], results: Sequence[Any]) -> Estimate | None:
        """Pickled size of the whole output, from its size for each dataset if the output is a mapping of datasets."""
        if len(results) < 2:
            self.missing["output"] = "one sampled chunk does not show how the output grows"
            return None
        with reported(partial(self.missing.__setitem__, "output"), "its size is unknown", Exception):
            from coffea.processor import accumulate

            outputs = _outputs(results)
            every = [*outputs, accumulate(outputs)]
            names = self.names if all(isinstance(one, Mapping) and {*self.names} <= {*one} for one in every) else []
            parts = [[one[name] for name in names] or [one] for one in every]
            *sizes, both = np.array([[pickled_size(part) for part in row] for row in parts], np.float64)
            dataset = self.every.dataset * bool(names)
            rows = (*halves, np.arange(len(self.every)))
            *events, whole = (np.bincount(dataset[row], self.every.events[row], len(parts[0])) for row in rows)
            merged, size = every[-1], pickled_size(every[-1])
            # the parts and the whole differ in what pickle writes once
            found = grown(np.array(sizes), both, np.array(events), whole).more(size - both.sum())
            if found.high < 1.1 * size:  # pickle writes larger numbers in more bytes
                added = [0]
                for _ in range(ceil(log2(whole.sum() / max(np.sum(events), 1.0)))):
                    merged = accumulate([merged, merged])
                    added.append(pickled_size(merged) - size)
                found = replace(found.more(added[-1]), low=found.low + added[-2:][0])
            return found
        return None

    def _memory(self, output: Estimate | None, results: Sequence[Any]) -> Estimate | None:
        """Peak memory of the worker that needs the most."""
        peak = measured_values(self.table["memory_peak"])
        if not len(peak):
            self.missing["memory"] = self.measurement.run.absent.get("memory_peak", "memory of chunks was not measured")
            return None
        found = largest(peak, len(self.every))
        if output is None:
            return found
        # a worker that merges results holds them twice, and pickled
        now = sum(map(pickled_size, _outputs(results)))
        return replace(
            found,
            value=found.value + max(output.value - now, 0.0),
            high=found.high + 3 * max(output.high - now, 0.0),
        )

    def _leak(self) -> float:
        """Growth of a worker's memory per sampled chunk, after its first one; 0 if it may be chance."""
        before, worker = moments(self.table, "memory_before"), codes(self.table["worker"])
        steps = np.concatenate([np.diff(before[worker == one][1:]) for one in np.unique(worker)])
        if len(steps) < 6 or not np.isfinite(steps).all():
            return 0.0
        mean, later = float(steps.mean()), np.median(steps[len(steps) // 2 :])
        chance = float(students_t.ppf(0.999, len(steps) - 1) * sem(steps))
        return mean if mean > chance and later > mean / 2 else 0.0

    # on a cluster

    @cached_property
    def every_chunk(self) -> Chunks:
        """All chunks, with the times of sampled chunks that stand in for them."""
        total, factor, _ = self.time
        early, dataset = early_tasks(self.table), self.sampled.dataset
        # start-up varies, so the first chunks of processes stand in for others only if their dataset has no other
        donor = self.sampled.donors(np.flatnonzero(~early | ~np.isin(dataset, dataset[~early])))
        share = factor[donor] * ratio(self.every.events, self.sampled.events[donor])
        share *= total.value / (float((self.parts.total[donor] * share).sum()) or 1.0)
        parts = self.parts.each(lambda seconds: seconds[donor] * share)
        return replace(self.chunks.recut(donor, self.every.start, self.every.stop, parts), file=self.every.file)

    @cached_property
    def outside(self) -> float:
        """Time spent outside the processing of chunks: reading metadata, and working on results on the client."""
        spans = self.table.select(["call", "start", "stop"]).to_pandas().groupby("call", observed=True)
        run = self.measurement.run
        return max(run.stop - run.start - float((spans["stop"].max() - spans["start"].min()).sum()), 0.0)

    def on(self, workers: int, seconds: float = 1.0) -> Recorded:
        """The whole run as if it had been recorded on this cluster in this time."""
        every = self.every_chunk
        stage = Stage(
            kind=PROCESSOR, seconds=seconds, load=every.load(), merging=self.merging, costs=self.costs, chunks=every
        )
        return Recorded(
            name="the whole run",
            calls=(),
            seconds=seconds,
            client=self.outside,
            stages=(stage,),
            workers=workers,
            threads=self.threads,
            hosts=workers,
            cores=None,
            scheduler_here=False,
            chunksize=None,
            events=int(self.every.events.sum()),
            core_wait=None,
            knows_lock=False,
            branches=frozenset(),
            failed=False,
            doubts=(),
        )

    def _on_cluster(self, workers: int) -> PlannedCluster:
        whole, time, threads = self.on(workers), self.time[0], self.threads
        made = replay(whole, whole.own_cluster)
        spread = time.high / time.value - 1 if time.value else 0.0
        found = Estimate.within(made.seconds, hypot(spread, REPLAYED))
        reserved = found.more(0.0, workers * threads)
        busy = min(time.value / reserved.value, 1.0) if reserved.value else 1.0
        walltime = max(ceil(found.high * SAVED / 600), 1) * 600.0
        return PlannedCluster(workers, threads, found, reserved, busy, made.scheduler_use, walltime)

    def _chunk_size(self, one: PlannedCluster) -> ChunkSize:
        """Recommended chunk size on a cluster."""
        savings = Savings(self.measurement.run, None)
        vars(savings)["replay"] = Calibrated(self.on(one.workers, one.seconds.value))
        memory = known(self.measurement.metrics.evaluator, "memory_evidence")
        return recommended(savings, memory and memory.fit)

    def forecast(
        self,
        halves: Sequence[Integers],
        results: Sequence[Any],
        workers: Sequence[int] | None,
        slots: int,
        seed: int,
    ) -> Forecast:
        """The complete forecast; `slots` is the present number of worker threads."""
        counts = workers or [max(slots // self.threads, 1) * 2**power for power in range(5)]
        clusters = [self._on_cluster(count) for count in dict.fromkeys(counts)]
        useful = [one for one in clusters if one.busy >= EFFICIENT and one.scheduler_use < 0.7]
        by_workers = attrgetter("workers")
        best = max(useful, key=by_workers, default=min(clusters, key=by_workers))
        if self.cpu[2] is None:
            self.missing["start-up"] = "no process ran two sampled chunks, so the CPU time of chunks includes it"
        output, each = self._output(halves, results), ceil(len(self.every) / best.workers)
        memory, share = self._memory(output, results), 0.9 if self.measurement.run.backend == "local" else TARGET
        if memory is not None and (leak := self._leak()):
            memory = replace(memory.more(leak * each), high=memory.high + 1.5 * leak * each)
            self.missing["limit to memory"] = (
                f"it grew by {BYTE.text(leak)} per chunk in the sample, so the forecast is for {each} chunks per worker"
            )
        chunksize = self._chunk_size(best)
        return Forecast(
            name=", ".join(dict.fromkeys(call.processor for call in self.measurement.run.calls)) or "forecast",
            seed=seed,
            chunks=len(self.every),
            sampled=len(self.sampled.rows),
            events=int(self.every.events.sum()),
            cpu=self.cpu[0],
            startup=self.cpu[2],
            memory=memory,
            # Dask workers spill above a share of their memory
            request=None if memory is None else ceil(memory.high / share / 1e8) * 100_000_000,
            endpoints=self._endpoints(),
            output=output,
            clusters=clusters,
            workers=best.workers,
            # a sample says too little about the last chunks of a run to recommend smaller ones
            chunksize=chunksize.size if chunksize.is_larger else None,
            missing=self.missing,
            measurement=self.measurement,
        )
