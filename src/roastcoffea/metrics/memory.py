"""Worker memory and its growth, memory per event by dataset, and the core time charged to batch jobs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc
import scipy
from pyarrow import Table

from roastcoffea.metrics.catalogue import RESOURCES, TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import aggregated, complete_sum, rows_where, rows_with, some, with_outcome
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, moments, named_codes, places
from roastcoffea.metrics.thread_activity import REPEATED
from roastcoffea.metrics.trends import Fits, fitted
from roastcoffea.records.arrow import arrow_schema, pairs, rows_in, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, OK
from roastcoffea.records.columns import (
    Column,
    Row,
    bytes_column,
    grouped,
    integer_column,
    picked,
    seconds_column,
    text_column,
)
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, LOST, PROCESSOR
from roastcoffea.units import COUNT, FRACTION, SECOND

if TYPE_CHECKING:
    from pandas import DataFrame, Index

BY_NANNY: Final = "Dask's nanny"
BY_SAMPLE: Final = "last sample"

WORKER_MEMORY_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host", "threads", "memory_limit"),
    bytes_column("memory_peak", "highest resident memory in chunk records, samples and the nanny's report"),
    bytes_column(
        "memory_before", "resident memory before the worker's first chunk or, if unknown, the lowest sampled value"
    ),
    bytes_column("results", "peak size of the results that the worker held"),
    seconds_column("paused_seconds", "time for which Dask kept the worker paused"),
    bytes_column("spilled", "peak in-memory size of the spilled results"),
    seconds_column("spill_seconds", "time Dask spent writing results to disk and reading them back"),
    bytes_column(
        "killed_memory", "resident memory when the worker was killed for using too much memory; none if it was not"
    ),
    text_column("killed_by", f'evidence for the kill: "{BY_NANNY}", or the "{BY_SAMPLE}" before the worker was lost'),
    integer_column(
        "lost_attempts", "number of attempts that were lost, or whose results were lost, when the worker was killed"
    ),
    seconds_column("lost_seconds", "thread time of the lost attempts"),
)

DATASET_MEMORY_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset"),
    integer_column("chunks", "number of chunks evaluated"),
    Column(
        "bytes_per_event",
        "number",
        "B",
        "increase in resident memory per event, relative to memory before the first chunk",
    ),
    Column(
        "least_bytes_per_event",
        "number",
        "B",
        "lower bound on bytes_per_event, based on memory growth during later chunks in a process",
    ),
    Column(
        "fixed_bytes",
        "number",
        "B",
        "memory growth that does not depend on the number of events; none if it cannot be separated",
    ),
    integer_column("at_least", "1 if bytes_per_event is a lower bound, derived only from killed attempts"),
    text_column("reason", "reason why memory growth is unknown"),
)

IN_PROCESS: Final = "process"
IN_RESULTS: Final = "results"

GROWTH_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "memory_limit"),
    integer_column("chunks", "number of chunks evaluated, without the first quarter"),
    seconds_column("age", "time from the end of its first chunk to the end of its last one"),
    bytes_column("memory_after", "mean resident memory after its last three chunks"),
    Column("growth", "number", "B", "growth of resident memory per chunk, including results"),
    Column("growth_low", "number", "B", "lower bound of the 90 % confidence interval for the growth"),
    Column("growth_high", "number", "B", "upper bound of the 90 % confidence interval for the growth"),
    Column("results_growth", "number", "B", "growth per chunk of the results that Dask holds in memory"),
    text_column(
        "grows", f'where most of a significant growth is: "{IN_PROCESS}" or "{IN_RESULTS}"; none if it may be chance'
    ),
    text_column("dataset", "dataset whose chunks cause the growth, if the others do not"),
    Column("chunks_left", "number", None, "number of further chunks until it reaches its limit"),
    seconds_column("seconds_left", "time until then at the present pace"),
)
"""One row per worker with enough chunks. If memory grows in the last dataset, only its chunks are evaluated."""


# Workers


@table
def worker_memory(  # noqa: PLR0917
    run: Run,
    lifetimes: Table,
    chunks: Table | None = None,
    samples: Table | None = None,
    failed_work: Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    in_chunks, sampled, spilled, results = (
        of_workers(*of)
        for of in ((chunks, "memory_peak"), (samples, "memory"), (samples, "spilled"), (samples, "nbytes"))
    )
    last = of_workers(samples, "memory", "last", "time")
    before = of_workers(samples, "memory", "min") | of_workers(chunks, "memory_before", "first", "start")
    # attempts that were lost with each worker or repeated because their results were lost
    pauses, lost = run.pauses, defaultdict[str, list[Row]](list)
    for row in rows_in(failed_work, "worker", "reason", "seconds"):
        if row["reason"] in {LOST, REPEATED} and row["seconds"] != 0:
            lost[row["worker"]].append(row)
    if pauses is not None:
        pauses = pauses.append_column("seconds", pc.subtract(pauses["stop"], pauses["start"]))
    paused = of_workers(pauses, "seconds", "sum")
    rows: dict[str, Row] = {}
    for life in lifetimes.select(["worker", "host", "threads", "memory_limit", "killed_memory"]).to_pylist():
        worker, killed, by = life["worker"], life["killed_memory"], BY_NANNY
        if killed is None and any(row["reason"] == LOST for row in lost[worker]):
            # a worker lost while above Dask's default pause threshold is assumed to have run out of memory
            limit, size = life["memory_limit"], last.get(worker, 0)
            killed, by = size if limit and size >= 0.8 * limit else None, BY_SAMPLE
        peaks = [peak for peak in (in_chunks.get(worker), sampled.get(worker), killed) if peak is not None]
        repeated = [] if killed is None else lost[worker]
        rows[worker] = life | {
            "memory_peak": max(peaks, default=None),
            "memory_before": before.get(worker),
            "results": results.get(worker),
            "paused_seconds": None if run.pauses is None else paused.get(worker, 0.0),
            "spilled": spilled.get(worker),
            "spill_seconds": (fine_metrics_per_worker or {}).get(worker, {}).get("spill_seconds"),
            "killed_memory": killed,
            "killed_by": None if killed is None else by,
            "lost_attempts": len(repeated),
            "lost_seconds": sum(row["seconds"] or 0.0 for row in repeated),
        }
    return table_of_rows(WORKER_MEMORY_COLUMNS, rows.values())


def of_workers(rows: Table | None, column: str, step: str = "max", *order: str) -> Row:
    """The largest known value for each worker, or another aggregate, of rows in this order."""
    if rows is None:
        return {}
    known = rows.select(["worker", column, *order]).drop_null()
    for name in order:
        known = known.sort_by(name)
    found = aggregated(known, ["worker"], {"value": (column, step)}, None, use_threads=False)
    return pairs(found, "worker", "value")


# Growth

BLOCKS: Final = 10
"""Blocks of equally many chunks into which each worker's chunks are divided."""

NO_LEVEL: Final[Numbers] = scipy.linalg.null_space(np.ones((1, BLOCKS))).T
"""Contrasts of blocks that remove the level."""

USED: Final = "memory_after"

SIGNIFICANT: Final = 1e-3
"""Probability that chance makes the memory of any worker in a run seem to grow."""


@table
def memory_growth(chunks: Table, lifetimes: Table, samples: Table | None = None) -> Table:
    """Memory growth of each worker."""
    import pandas as pd

    # texts as numbers: of workers in the order of their names
    names = sorted(chunks["worker"].drop_null().unique().to_pylist())
    of_chunks, datasets = named_codes(chunks["dataset"])
    rows = _of_known(chunks, names, "stop", "memory_after", dataset=of_chunks).sort_values("stop")
    refuse_if(rows.empty, "chunk memory was not measured")
    rows["held"] = _held(rows, samples, names) if samples else np.nan
    workers = rows.groupby("worker")
    # a leak that began with the last dataset shows in its own chunks, if nearly all chunks since then are its own
    late = rows["dataset"] == workers["dataset"].transform("last")
    since = late.groupby(rows["worker"]).cummax()
    alone = late[since].groupby(rows["worker"]).mean() >= 0.9
    whole, ending = _blocks(rows), _blocks(rows[late & rows["worker"].map(alone)])
    refuse_if(whole.empty, "no worker ran the 13 chunks needed")
    all_along, at_end = _growing(whole), _growing(ending)
    blocks = pd.concat([whole.drop(index=at_end), ending.loc[at_end]]).sort_index()
    size = blocks["size"][0] / BLOCKS
    # results are unknown until a worker's first sample
    sizes = blocks["held"].T.bfill().T.fillna(0)
    growth, results = (_slopes(each.to_numpy(), np.arange(float(BLOCKS))) for each in (blocks[USED], sizes))
    each, held = growth.slope[:, 0] / size, results.slope[:, 0] / size
    half = growth.quantile(0.05) * growth.error[:, 0] / size
    grows = blocks.index.isin(all_along.union(at_end)) & (each > 0)
    limit = _of_known(lifetimes, names, "memory_limit").groupby("worker")["memory_limit"].last()
    limit = limit.reindex(blocks.index)
    last = workers.tail(3).groupby("worker")[USED].mean().reindex(blocks.index)
    left = ((limit - last).clip(lower=0) / each).where(grows & (limit > 0))
    of_last = workers["dataset"].last()
    of_last[all_along] = _cause(rows, all_along)
    dataset = of_last[blocks.index].map(dict(enumerate(datasets.to_pylist())))
    found = pd.DataFrame(
        {
            "worker": [names[code] for code in blocks.index],
            "memory_limit": limit,
            "chunks": blocks["size"][0],
            "age": workers["stop"].max() - workers["stop"].min(),
            "memory_after": last.round(),
            "growth": each,
            "growth_low": each - half,
            "growth_high": each + half,
            "results_growth": held.where(blocks["held"][BLOCKS - 1].notna()),
            "grows": pd.Series(np.where(held >= each / 2, IN_RESULTS, IN_PROCESS), blocks.index).where(grows),
            "dataset": dataset.where(grows),
            "chunks_left": left,
            "seconds_left": left * (blocks["stop"][BLOCKS - 1] - blocks["stop"][0]) / ((BLOCKS - 1) * size),
        },
        index=blocks.index,
    )
    return Table.from_pandas(found, arrow_schema(GROWTH_COLUMNS), preserve_index=False)


def _held(chunks: DataFrame, samples: Table, workers: list[str]) -> Numbers:
    """Size of the results in a worker's memory when it was last sampled before the end of each chunk."""
    # there may be millions of samples, so columns are not copied into a table
    time, size, worker = moments(samples, "time"), moments(samples, "nbytes"), places(samples["worker"], workers)
    first, last = np.fmin.reduce(time), np.fmax.reduce(time)
    # workers one after another, 2 s apart, so that earlier chunks are in between; unknown samples are NaN, at the end
    moment = worker * (last - first + 2) + (time - first) + 0 * size
    of_chunks = chunks["worker"] * (last - first + 2) + (chunks["stop"] - first).clip(-1, last - first)
    order = np.argsort(moment, kind="stable")
    moment = moment[order]
    place = np.maximum(np.searchsorted(moment, of_chunks, "right") - 1, 0)
    row = order[place]
    held = size[row] - amounts(samples, "spilled")[row]
    return np.where((worker[row] == chunks["worker"]) & (moment[place] <= of_chunks), held, np.nan)


def _of_known(table: Table, workers: list[str], *columns: str, **more: Numbers | Integers) -> DataFrame:
    """Rows of these workers, by index, that have all of these columns."""
    import pandas as pd

    worker, values = places(table["worker"], workers), {name: moments(table, name) for name in columns} | more
    known = (worker >= 0) & ~np.any([np.isnan(each) for each in values.values()], axis=0)
    return pd.DataFrame({name: each[known] for name, each in ({"worker": worker} | values).items()})


def _blocks(rows: DataFrame, *more: str) -> DataFrame:
    """Means of each worker's blocks without its first quarter of chunks; only workers with enough chunks."""
    import pandas as pd

    workers = rows.groupby("worker")
    size = workers["stop"].transform("size")
    place, size = workers.cumcount() - size // 4, size - size // 4
    later = rows.assign(size=size, block=place * BLOCKS // size)[(place >= 0) & (size >= BLOCKS)]
    names = [USED, "held", "stop", "size", *more]
    means = later.groupby(["worker", "block"])[names].mean().unstack()
    return pd.DataFrame(means, columns=pd.MultiIndex.from_product([names, range(BLOCKS)]))


def _slopes(values: Numbers, *candidates: Numbers, contrasts: Numbers = NO_LEVEL) -> Fits:
    """Slopes of series (rows) against candidates."""
    return fitted(contrasts @ values.T, contrasts @ np.column_stack(candidates), contrasts, alike=True)


def _growing(blocks: DataFrame) -> Index:
    """Workers whose memory grows; if the mean over workers grows, each needs less evidence."""
    means = blocks[USED].to_numpy()
    chance = SIGNIFICANT / (2 * max(len(means), 1))
    if len(means) >= 3 and _grow(means.mean(axis=0)[None], SIGNIFICANT / 2).all():
        chance = 5e-3
    return blocks.index[_grow(means, chance)]


def _grow(means: Numbers, chance: float) -> Flags:
    """Whether each series of block means grows until its end by more than chance explains."""
    steps, places = np.diff(means), np.arange(BLOCKS)
    mean = steps.mean(axis=1)
    # a single step, a random walk or a sawtooth scatters as much as it grows; a cache stops growing once full
    least = np.maximum(
        -scipy.special.stdtrit(BLOCKS - 2, chance) * steps.std(axis=1, ddof=1) / 3,
        2 * (mean - steps[:, 4:].mean(axis=1)),
    )
    whole, half = (means[:, part] @ (part - part.mean()) for part in (places, places[5:]))
    return np.asarray((mean > least) & (whole > 0) & (half > 0))


def _cause(rows: DataFrame, growing: Index) -> int:
    """Dataset whose chunks leave most of what grows on these workers; -1 if none stands out."""
    names = rows["dataset"].unique()[:8]
    scores, shares = np.zeros(len(names)), np.zeros(len(names))
    looked = growing[:4] if len(names) > 1 else growing[:0]
    for who in looked:
        own = rows[rows["worker"] == who]
        counts = {f"of {name}": (own["dataset"] == name).cumsum() for name in names}
        blocks = _blocks(own.assign(every=range(len(own)), **counts), "every", *counts)
        used, _, _, _, every, *parts = blocks.to_numpy().reshape(-1, BLOCKS)
        beyond = scipy.linalg.null_space(np.stack([np.ones(BLOCKS), every])).T
        more = _slopes(used[None], *parts, contrasts=beyond)
        scores += more.slope[0] / more.error[0] / len(looked) ** 0.5
        part = np.ptp(parts, axis=1) / np.ptp(every)
        shares += more.slope[0] * part / _slopes(used[None], every).slope[0, 0] / len(looked)
    best = int(np.argmax(scores))
    return int(names[best]) if scores[best] > 4 and shares[best] > 0.7 else -1


# Datasets


def typical_before(workers: Table) -> float | None:
    """Median resident memory of workers before their first chunk."""
    known = workers["memory_before"].drop_null().to_numpy()
    return float(np.median(known)) if len(known) else None


@table
def dataset_memory(run: Run, chunks: Table, worker_memory: Table, failed_work: Table | None = None) -> Table:
    """Dataset memory table (DATASET_MEMORY_COLUMNS).

    A chunk's memory is the peak memory of its process minus the memory before the first chunk. The difference includes
    memory that the allocator retained, libraries loaded by the first chunk, and results that the worker held.
    """
    before = pairs(worker_memory, "worker", "memory_before")
    killed = _needs_of_killed(worker_memory, failed_work)
    why = run.absent.get("memory_peak", "chunk memory was not measured")
    # copying all columns would take most of the time
    chunks = chunks.select(
        ["dataset", "outcome", "worker", "overlaps", "memory_before", "memory_peak", "events", "start"]
    )
    rows = []
    for dataset in sorted({*chunks["dataset"].drop_null().unique().to_pylist(), *killed}):
        row = {"dataset": dataset} | _of_chunks(rows_with(chunks, "dataset", [dataset]), before, why)
        least = max(killed[dataset], default=0.0)
        if least > (row["bytes_per_event"] or 0.0):
            number = row["chunks"] or len(killed[dataset])
            row |= {"chunks": number, "bytes_per_event": least, "at_least": 1, "reason": None}
        rows.append(row)
    return table_of_rows(DATASET_MEMORY_COLUMNS, rows)


def _of_chunks(chunks: Table, before: Mapping[str, int | None], not_measured: str) -> Row:
    """Memory of a dataset, derived from chunks that ran alone in their processes."""
    import pandas as pd

    done = with_outcome(chunks, (OK,))
    valid = [done[name].is_valid().to_numpy() for name in ("worker", "overlaps", "memory_peak", "events")]
    known = rows_where(done, np.logical_and.reduce(valid) & (amounts(done, "events") > 0))
    alone = known.filter(pc.equal(known["overlaps"], 0)).sort_by("start")
    if not len(alone):
        reason = "none of its chunks finished"
        if len(done):
            reason = "its chunks shared processes with other chunks" if len(known) else not_measured
        return {"chunks": 0, "bytes_per_event": None, "at_least": 0, "reason": reason}
    workers, peak, events = alone["worker"].to_pylist(), amounts(alone, "memory_peak"), amounts(alone, "events")
    floor = np.array([before.get(worker) or 0 for worker in workers], np.float64)
    growth, begun = np.maximum(peak - floor, 0.0), moments(alone, "memory_before")
    # events of the largest earlier chunk in the same process
    largest = pd.Series(events).groupby(workers).cummax().groupby(workers).shift(fill_value=0.0).to_numpy()
    # memory that the process keeps after a large chunk masks the needs of later, smaller chunks
    informative = (events >= largest) | (begun - floor <= 0.1 * growth)
    fixed, each = _law(events, growth, informative)
    later = (largest > 0) & np.isfinite(begun)
    within = np.maximum(peak - begun, 0.0)[later] / events[later]
    least = None if fixed is not None or not len(within) else min(float(np.median(within)), each)
    found = {"bytes_per_event": each, "least_bytes_per_event": least, "fixed_bytes": fixed}
    return found | {"chunks": len(alone), "at_least": 0}


def _law(events: Numbers, growth: Numbers, informative: Flags) -> tuple[float | None, float]:
    """Fixed part of the memory growth, and growth per event.

    The growth per event is the median slope if chunk sizes differ enough, and otherwise the median ratio of growth to
    events. Memory that does not grow with the number of events counts towards the fixed part.
    """
    ratio = float(np.median(growth / events))
    events, growth = events[informative], growth[informative]
    every = max(len(events) // 500, 1)  # limit the number of pairs in the median
    events, growth = events[::every], growth[::every]
    low, high = np.quantile(events, [0.1, 0.9]) if len(events) >= 8 else (1.0, 0.0)
    if high < 1.5 * low:
        return None, ratio
    first, second = np.triu_indices(len(events), 1)
    apart = np.abs(events[second] - events[first]) >= (high - low) / 4
    slopes = (growth[second] - growth[first])[apart] / (events[second] - events[first])[apart]
    each = max(float(np.median(slopes)), 0.0)
    fixed = float(np.median(growth - each * events))
    return (fixed, each) if fixed >= 0 else (None, ratio)


def _needs_of_killed(workers: Table, failed: Table | None) -> dict[str, list[float]]:
    """Lower bounds on bytes per event, by dataset, derived from attempts on killed workers."""
    floor = typical_before(workers) or 0.0
    known = workers.select(["worker", "threads", "killed_memory"]).drop_null().to_pylist()
    of_a_thread = {row["worker"]: (row["killed_memory"] - floor) / row["threads"] for row in known}
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows_in(failed and rows_with(failed, "reason", [LOST])):
        if row["worker"] in of_a_thread and row["kind"] == PROCESSOR and row["seconds"] and row["dataset"] is not None:
            events = row["entry_stop"] - row["entry_start"]
            found[row["dataset"]].append(of_a_thread[row["worker"]] / events if events else 0.0)
    return found


# Batch jobs

JOBS: Final = "batch jobs reported by workers, arrivals and departures"

CLASSES: Final = {
    "before_run": "before the run",
    "startup": "job start-up",
    "threads": "worker threads",
    "threadless": "cores without a thread",
    "replaced": "between workers",
    "shutdown": "worker shutdown",
}

JOB_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "batch_system", "job", "queue", "node", "run"),
    Column("workers", "integer", "workers", "number of workers that ran in the job"),
    *picked(LIFETIME_COLUMNS, "job_cores", "job_memory"),
    bytes_column("memory_peak", "sum of the workers' peak resident memory, which is an upper bound on the job's peak"),
    *picked(LIFETIME_COLUMNS, "job_limit", "job_queued", "job_start"),
    seconds_column("job_stop", "time at which the job's last worker left, or the end of the run if the job continued"),
    integer_column("ended", "1 if the job's last worker left before the end of the run"),
    seconds_column("queue_seconds", "time from the job's submission to its start"),
    seconds_column(
        "startup_seconds",
        "time from the job's start to the arrival of its first worker, for jobs that started during the run",
    ),
    seconds_column("shutdown_seconds", "time that the job's last worker took to shut down"),
    seconds_column("charged", "number of cores times the time from the job's start to `job_stop`"),
    seconds_column("before_run", "core time charged before the run"),
    seconds_column("startup", "core time charged before the job's first worker arrived"),
    seconds_column(
        "threads",
        "core time charged for worker threads, up to one thread per core; excludes workers that are shutting down",
    ),
    seconds_column("threadless", "core time charged for cores without a worker thread"),
    seconds_column(
        "replaced", "core time charged between the departure of a worker and the arrival of its replacement"
    ),
    seconds_column("shutdown", "core time charged while the job's last worker was shutting down"),
    seconds_column("residual", "charged core time that belongs to no other class"),
)


@table
def jobs(run: Run, lifetimes: Table, worker_memory: Table | None = None) -> Table:
    spans = {part.id: (part.start, part.stop) for part in run.merged}
    peaks = pairs(worker_memory, "worker", "memory_peak")
    found = grouped(rows_where(lifetimes, lifetimes["job"].is_valid()).to_pylist(), "batch_system", "job", "run")
    rows = [_job(lives, spans.get(lives[0]["run"], (run.start, run.stop)), peaks) for lives in found.values()]
    return table_of_rows(JOB_COLUMNS, sorted(rows, key=lambda row: (row["job_start"] or 0.0, row["job"])))


def _job(lives: Sequence[Row], run: tuple[float, float], peaks: Mapping[str, int | None]) -> Row:
    first, last = min(life["start"] for life in lives), max(life["stop"] for life in lives)
    names = ("batch_system", "job", "queue", "node", "run", "job_cores", "job_memory", "job_limit", "job_queued")
    known = {
        name: next((life[name] for life in lives if life[name] is not None), None) for name in (*names, "job_start")
    }
    own = [peaks.get(worker) for worker in dict.fromkeys(life["worker"] for life in lives)]
    closing = [life["closing"] for life in lives if life["stop"] == last]
    row = known | {
        "workers": len(lives),
        "memory_peak": None if None in own else sum(filter(None, own)),
        "job_stop": last,
        "ended": int(last < run[1]),
        "shutdown_seconds": last - closing[0] if last < run[1] and closing[0] is not None else None,
    }
    start, queued = known["job_start"], known["job_queued"]
    if start is not None:
        row["queue_seconds"] = None if queued is None else start - queued
        row["startup_seconds"] = first - start if start >= run[0] else None
        row |= _charged(row, lives, first, run[0])
    return row


def _charged(job: Row, lives: Sequence[Row], first: float, begin: float) -> Row:
    """Divide the charged core time of a job with a known start into classes, if its cores and threads are known."""
    cores, start, stop = job["job_cores"], job["job_start"], job["job_stop"]
    if cores is None or any(life["threads"] is None for life in lives):
        return {}
    # a job has no worker before it starts, but clocks may differ slightly
    start = min(start, first)
    closing = stop - (job["shutdown_seconds"] or 0.0)
    starts, stops, threads = np.array([(life["start"], life["stop"], life["threads"]) for life in lives], np.float64).T
    edges = np.unique(np.clip([first, closing, *starts, *stops], first, closing))
    seconds, present = np.diff(edges), ((starts <= edges[:-1, None]) & (edges[1:, None] <= stops)) @ threads
    used = np.minimum(present, cores)
    row = {
        "before_run": cores * max(min(begin, first) - start, 0.0),
        "startup": cores * max(first - max(start, begin), 0.0),
        "threads": float(seconds @ used),
        "threadless": float(seconds @ np.where(present > 0, cores - used, 0.0)),
        "replaced": float(cores * seconds[present == 0].sum()),
        "shutdown": cores * (job["shutdown_seconds"] or 0.0),
    }
    charged = cores * (stop - start)
    return row | {"charged": charged, "residual": charged - math.fsum(row.values())}


@fact
def some_jobs(jobs: Table) -> Table:
    return some(jobs, "no worker reported a batch job")


of_jobs = partial(metric, source=JOBS)


@of_jobs(COUNT, "batch jobs", "number of batch jobs with a worker in the run", group=RESOURCES)
def num_jobs(some_jobs: Table) -> int:
    """Number of batch jobs that had a worker in the run."""
    return len(some_jobs)


@of_jobs(SECOND, "core time charged", "sum over jobs of cores x (end - start)", group=RESOURCES)
def core_seconds_charged(some_jobs: Table) -> float:
    """Core time charged to batch jobs from their start to their end or, if they continued, to the end of the run."""
    return float(complete_sum(some_jobs, "charged", "batch jobs"))


@metric(FRACTION, "charged CPU efficiency", group=RESOURCES, source=f"chunk records; {JOBS}")
def charged_cpu_efficiency(total_cpu_time: float, core_seconds_charged: float) -> float:
    """Share of the charged core time during which a chunk used the CPU."""
    return total_cpu_time / core_seconds_charged


# fmt: off
MEANS: Final = (
    ("queue", "job queue time", "start - submission", "no job reports when it was submitted",
     "Mean time from a batch job's submission to its start."),
    ("startup", "job start-up", "the first worker's arrival - start",
     "no job with a known start started during the run",
     "Mean time from a batch job's start to the arrival of its first worker, for jobs that started during the run."),
    ("shutdown", "worker shutdown", "departure - closing", "no job ended during the run",
     "Mean time that a batch job's last worker took to shut down, for jobs that ended during the run."),
)
# fmt: on
"""Job times whose mean is reported as a metric: name, label, formula, reason if missing, and meaning."""


def _mean(column: str, otherwise: str, jobs: Table) -> float:
    known = jobs[column].drop_null()
    refuse_if(not len(known), otherwise)
    return float(pc.mean(known).as_py())


for name, label, formula, otherwise, meaning in MEANS:
    of_times = partial(of_jobs, SECOND, group=TIMING, inputs=("some_jobs",), meaning=meaning)
    of_times(name=f"job_{name}_seconds", label=f"{label} (mean)", formula=f"mean of {formula}")(
        partial(_mean, f"{name}_seconds", otherwise)
    )


@of_jobs(FRACTION, "job memory used (peak)", "largest memory_peak / job_memory of any job", group=RESOURCES)
def job_memory_used(some_jobs: Table) -> float:
    """Highest share of its memory that any batch job used. It is an upper bound, because worker peaks are summed."""
    shares = [
        row["memory_peak"] / row["job_memory"]
        for row in some_jobs.to_pylist()
        if row["memory_peak"] is not None and row["job_memory"]
    ]
    refuse_if(not shares, "no job reports its memory, or no worker's peak was measured")
    return float(max(shares))
