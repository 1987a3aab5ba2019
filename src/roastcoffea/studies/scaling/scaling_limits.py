"""What limits a campaign: its thread time, from how many workers on, its rate, and what to change.

A class of the time ledger belongs to the limit that the diagnosis calls its cause; a few limits are wider than a cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import known_names
from roastcoffea.metrics.phases import Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.tasks import PROCESSOR
from roastcoffea.sheets.sheet import Amount, Card, Cell, Column, Drawn, Sheet, columns, drawn, segment
from roastcoffea.studies.scaling.laws import (
    BYTES,
    CHUNKS,
    INTERVAL,
    MERGED,
    REQUESTS,
    SEED,
    TASKS,
    Between,
    Point,
    Scaled,
)
from roastcoffea.units import (
    BYTE_PER_SECOND,
    COUNT,
    FRACTION,
    GIGABIT_PER_SECOND,
    SECOND,
    Unit,
    alike,
    number,
    suffixed,
    three_digits,
)

STORAGE, CONTENTION, CLIENT, TAIL, STARTUP = "storage", "contention", "client", "tail", "start-up"
SCHEDULER, BLOCKED, PREPROCESSING, UNACCOUNTED = "scheduler", "blocked", "preprocessing", "unaccounted"
BANDWIDTH, LATENCY, COLD = "storage bandwidth", "storage latency", "cold cache"
RESULTS, OVERHEAD, LATE, NODES = "merging and transfer", "task overhead", "late workers", "slow hosts"
WORK: Final = "CPU time"
"""Time of the classes in CPU; what it grows by is contention for hosts."""

WIDER: Final[Mapping[str | None, str]] = {
    **dict.fromkeys(("compute", "decompression", "interpretation"), WORK),
    "metadata": STORAGE,
    "interpreter lock": CONTENTION,
    **dict.fromkeys(("merge", "transfer"), RESULTS),
    None: UNACCOUNTED,
}
"""Limits that are wider than a cause of the diagnosis."""

LIMIT_OF: Final[Mapping[str, str]] = {
    **{one.name: WIDER.get(one.word, str(one.word)) for one in phases.TIME_CLASSES},
    **dict.fromkeys((phases.OVERHEAD, phases.CHECKPOINT), OVERHEAD),
}
"""Limit of each class of the time ledger."""

GROWING: Final = (STORAGE, BLOCKED, OVERHEAD, PREPROCESSING, WORK)
"""Of these the excess over the run with the least of it per event is lost, of the others everything."""

FAMILIES: Final[Mapping[str, Family]] = {
    **{LIMIT_OF[one.name]: one.family for one in reversed(phases.TIME_CLASSES)},
    **dict.fromkeys((BANDWIDTH, LATENCY, COLD), phases.READING),
    LATE: phases.IDLING,
    NODES: phases.TROUBLE,
}

RESAMPLES: Final = 200

MATTERS: Final = 0.1
"""Share of thread time from which a limit is named as the reason."""

MOSTLY: Final = 0.5
"""Share of useful time from which waiting for requests is a limit, although it does not grow."""

FALL: Final = 0.95
"""Useful workers of the largest size, relative to the best, below which more of them make a run slower."""

GIGABITS: Final = 8e-9


# One run


class Reading(NamedTuple):
    """Waiting for storage of one run, per chunk: what goes with requests and with bytes, as fitted and resampled."""

    chunks: int
    stream: float | None
    """Bytes for each second of waiting."""
    of_requests: Numbers
    of_bytes: Numbers


def reading_of(measurement: Measurement) -> Reading | None:
    """Reading of a run; None if it was not measured."""
    chunks = measurement.chunks
    chunks = chunks[(chunks["outcome"] == "ok") & chunks["read_seconds"].notna() & chunks["bytes_requested"].notna()]
    if not len(chunks):
        return None
    number, size = len(chunks), chunks["bytes_requested"].sum()
    seconds = chunks[["read_seconds", "open_seconds"]].sum().sum()
    names = ["requests", "bytes_requested", "metadata_requests", "bytes_metadata", "read_seconds", "open_seconds"]
    chunks = chunks.sample(min(number, 4000), random_state=2)[names].fillna(0)
    requests, of_bytes, before, metadata, *waiting = chunks.to_numpy(np.float64).T
    # a reading and an opening of each chunk: one, its requests, and its bytes
    one, later = np.ones(len(chunks)), np.maximum(requests - before, 0.0)
    traits = np.array([[one, later, of_bytes - metadata], [one, before, metadata]])
    waits = np.array(waiting)
    scale, random = np.maximum(traits.max(axis=(0, 2), keepdims=True), 1e-300), np.random.default_rng(2)
    places = np.arange(len(chunks))
    fits = []
    for picked in (places, *(random.choice(places, len(places)) for _ in range(100))):
        rows = (traits / scale)[:, :, picked].transpose(0, 2, 1).reshape(-1, 3)
        fits.append(nnls(rows, waits[:, picked].ravel())[0])
    parts = np.array(fits) / scale[0, :, 0] * traits.sum(axis=(0, 2)) / len(chunks)
    return Reading(number, float(size / seconds) if seconds else None, parts[:, 0] + parts[:, 1], parts[:, 2])


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Thread seconds of one run by limit, an amount for each worker; they add up to all threads for the whole run."""

    seconds: Mapping[str, Numbers]
    slow: Mapping[str, float]
    """Slow hosts or workers, with the factor by which their chunks take longer."""
    absent: float
    """Mean seconds for which a worker was absent."""
    client: Mapping[str, float]
    """Seconds for which the client kept all workers waiting, by when."""


def costs_of(measurement: Measurement) -> Costs:
    """Thread seconds by limit; the measurement has a time ledger."""
    ledger = measurement.time_ledger
    frame = ledger.by("worker")
    seconds: dict[str, Numbers] = defaultdict(lambda: np.zeros(len(frame)))
    for name, limit in LIMIT_OF.items():
        seconds[limit] = seconds[limit] + (frame[name].to_numpy(np.float64) if name in frame else 0.0)
    _split_tail(seconds, measurement)
    slow = _split_slow(seconds, list(frame.index), measurement)
    lives = measurement.lifetimes
    threads = dict(zip(lives["worker"], lives["threads"], strict=True))
    seconds[LATE] = _absent(measurement, {worker: threads.get(worker, 1) for worker in frame.index})
    total = max(sum(threads.values()), 1)
    client = {when: ledger.client_of.get(when, 0.0) / total for when in ("before", "after")}
    return Costs(dict(seconds), slow, float(seconds[LATE].sum()) / total, client)


def _split_tail(seconds: dict[str, Numbers], measurement: Measurement) -> None:
    """Move what waits for merges to results, and what waits for the client to submit more to the client."""
    tail, ledger = seconds[TAIL], measurement.time_ledger
    total = float(tail.sum())
    if total:
        starved = min(_tail_within(measurement, list(_submitting(measurement))) / total, 1.0)
        merges = (1 - starved) * ledger.tail_of.get("merge", 0.0) / total
        for name, share in ((CLIENT, starved), (RESULTS, merges), (TAIL, -starved - merges)):
            seconds[name] = seconds[name] + share * tail


def _tail_within(measurement: Measurement, windows: Sequence[tuple[float, float]]) -> float:
    """Seconds of the tail within these times."""
    try:
        lines = measurement.time_ledger.timeline(500)
    except NotMeasuredError:
        return 0.0
    left = lines.index.to_numpy(np.float64)
    right = left + lines["seconds"].to_numpy()
    inside = [np.clip(np.minimum(right, stop) - np.maximum(left, start), 0.0, None) for start, stop in windows]
    return float((lines[phases.TAIL].to_numpy() * sum(inside)).sum())


def _submitting(measurement: Measurement) -> Iterator[tuple[float, float]]:
    """Times from the first chunk that a Runner call submitted to the last one."""
    if measurement.run.tasks is None:
        return
    tasks = measurement.tasks
    tasks = tasks[(tasks["kind"] == PROCESSOR) & (tasks["attempt"].fillna(1) == 1)]
    runnable = tasks["runnable"].dropna().to_numpy(np.float64)
    for call in measurement.run.calls:
        inside = runnable[(runnable >= call.start) & (runnable <= (call.stop or np.inf))]
        if len(inside):
            yield float(inside.min()), float(inside.max())


def _split_slow(seconds: dict[str, Numbers], workers: list[str], measurement: Measurement) -> dict[str, float]:
    """Move what slow hosts and workers take longer, and the tail that they alone make; return how slow they are."""
    try:
        known = measurement.metrics.evaluator.value("slowness").slow
    except NotMeasuredError:
        return {}
    slow = {one.name: one.factor for one in known if one.kind in {"host", "worker"}}
    if slow:
        hosts = measurement.time_ledger.hosts
        factors = [slow.get(worker, 1.0) * slow.get(str(hosts.get(worker)), 1.0) for worker in workers]
        shares = 1 - 1 / np.array(factors)
        chunks, tail = measurement.chunks, float(seconds[TAIL].sum())
        fast = [worker for worker, share in zip(workers, shares, strict=True) if not share]
        ends = chunks[chunks["worker"].isin(fast)]["stop"].dropna()
        windows = [(float(ends.max()), measurement.run.stop)] if tail and len(ends) else []
        alone = _tail_within(measurement, windows)
        for name, share in (
            (WORK, shares),
            (STORAGE, shares),
            (BLOCKED, shares),
            (TAIL, min(alone / (tail or 1.0), 1.0)),
        ):
            seconds[NODES] = seconds[NODES] + share * seconds[name]
            seconds[name] = (1 - share) * seconds[name]
    names = known_names(measurement.metrics.evaluator)
    return {names.in_text(name): factor for name, factor in slow.items()}


def _absent(measurement: Measurement, threads: Mapping[str, int]) -> Numbers:
    """Thread seconds in which workers were absent, so that all add up to the most workers for the whole run."""
    metrics, capacity = measurement.metrics, np.array([measurement.time_ledger.capacity[worker] for worker in threads])
    elapsed = metrics["elapsed_time_seconds"]
    own = np.clip(np.array([*threads.values()]) * elapsed - capacity, 0.0, None)
    missing = max(metrics["peak_workers"] * metrics["cores_per_worker"] * elapsed - capacity.sum(), 0.0)
    return np.asarray(own * missing / (own.sum() or 1.0), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All that is known of a run."""

    scaled: Scaled
    costs: Costs
    reading: Reading | None

    def per_event(self) -> dict[str, Numbers]:
        """Thread seconds per event of each limit: the measured ones, and those of resampled workers,
        each as much faster or slower as runs of such chunks can be."""
        random = np.random.default_rng([SEED, self.scaled.workers])
        many = max(len(amounts) for amounts in self.costs.seconds.values())
        weights = random.multinomial(many, np.full(many, 1 / many), RESAMPLES) if many else np.zeros((RESAMPLES, 0))
        weights = weights * np.exp(self.scaled.scatter * random.standard_normal((RESAMPLES, 1)))
        every = np.vstack([np.ones(many), weights]) / self.scaled.events
        return {name: np.asarray(every @ amounts) for name, amounts in self.costs.seconds.items()}

    @property
    def stream(self) -> float | None:
        """Bytes for each second of waiting for storage."""
        return None if self.reading is None else self.reading.stream


Groups = Sequence[Sequence[Judged]]
"""Runs by size, ascending."""


# All runs


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What limits take: arrays of sizes x (measured, resampled ...).

    `lost` are thread seconds per event; `ideal` are those without any limit.
    """

    workers: Numbers
    lost: Mapping[str, Numbers]
    ideal: Numbers
    work: Numbers
    least: int
    """Place of the size with the least waiting for storage per event."""

    def share(self, name: str) -> Numbers:
        """Share of all thread time that a limit takes."""
        return np.asarray(self.lost[name] / (self.ideal + sum(self.lost.values())))

    def useful(self, *names: str) -> Numbers:
        """How many workers are useful, or would be if these were the only limits."""
        lost = sum(self.lost[name] for name in names or self.lost)
        return np.asarray(self.workers[:, None] * self.ideal / (self.ideal + lost))


def shares_of(groups: Groups) -> tuple[Shares, Numbers | None]:
    """Shares of all sizes; and the share of requests in what the waiting for storage grew by."""
    costs = [[one.per_event() for one in group] for group in groups]
    _split_cold(groups, costs)
    names = dict.fromkeys(name for group in costs for one in group for name in one)
    mean = {name: np.array([_mean(group, name, place) for place, group in enumerate(costs)]) for name in names}
    # the least is found among the measured ones: else chance would make it less
    least = {name: int(np.argmin(mean[name][:, 0])) for name in GROWING}
    ideal = np.asarray(sum(mean[name][place] for name, place in least.items()))
    lost = {
        name: np.clip(amounts - (amounts[least[name]] if name in GROWING else 0.0), 0.0, None)
        for name, amounts in mean.items()
    }
    # threads that take more CPU time for the same events get in each other's way
    lost[CONTENTION] = lost[CONTENTION] + lost.pop(WORK)
    workers = np.array([group[0].scaled.workers for group in groups], np.float64)
    grown = lost.pop(STORAGE)
    total = ideal + grown + sum(lost.values())
    of_requests = _of_requests(groups, int(np.argmax((grown / total)[:, 0])), least[STORAGE])
    lost[LATENCY if of_requests is not None and of_requests[0] > 0.5 else BANDWIDTH] = grown
    return Shares(workers, lost, ideal, mean[WORK], least[STORAGE]), of_requests


def _mean(group: Sequence[Mapping[str, Numbers]], name: str, place: int) -> Numbers:
    """Mean over the runs of a size, and over resampled runs."""
    amounts = np.array([one.get(name, np.zeros(RESAMPLES + 1)) for one in group])
    picked = np.random.default_rng([SEED, place]).integers(len(group), size=amounts.shape)
    picked[:, 0] = np.arange(len(group))
    return np.asarray(np.take_along_axis(amounts, picked, axis=0).mean(axis=0))


def _split_cold(groups: Groups, costs: list[list[dict[str, Numbers]]]) -> None:
    """Move the excess of a first run, which waited longer for the same bytes than those with as many workers.

    More streams cannot make each of them faster, a cache that has been filled can.
    """
    pairs = [pair for each in zip(groups, costs, strict=True) for pair in zip(*each, strict=True)]
    (first, own), *later = sorted(pairs, key=lambda pair: pair[0].scaled.start)
    others = [cost[STORAGE] for run, cost in later if run.scaled.workers >= first.scaled.workers]
    least = min(others, key=lambda other: float(other[0]), default=own[STORAGE])
    if later[0][0].scaled.start > first.scaled.start and (
        np.quantile(own[STORAGE][1:], INTERVAL[0]) > np.quantile(least[1:], INTERVAL[1])
    ):
        own |= {COLD: np.clip(own[STORAGE] - least, 0.0, None), STORAGE: np.minimum(own[STORAGE], least)}


def _of_requests(groups: Groups, most: int, least: int) -> Numbers | None:
    """How much of what waiting per chunk grew by goes with requests; the rest goes with bytes."""
    now, before = (next((run.reading for run in groups[place] if run.reading), None) for place in (most, least))
    if now is None or before is None or most == least:
        return None
    requests = np.clip(now.of_requests - before.of_requests, 0.0, None)
    both = requests + np.clip(now.of_bytes - before.of_bytes, 0.0, None)
    return np.asarray(requests / np.where(both > 0, both, 1.0))


def turning_of(workers: Numbers, useful: Numbers) -> float:
    """Number of workers above which a limit takes what more of them would give.

    It is where the line without any loss meets the most that all workers together reached: as many workers would do, if
    nothing limited them. If the rate falls, it is the number with the highest one.
    """
    best = int(np.argmax(useful))
    return float(workers[best] if useful[-1] < FALL * useful[best] else useful[best])


def peak_of(workers: Numbers, useful: Numbers) -> float | None:
    """Number of workers beyond which fewer are useful; None if that cannot be said for certain.

    `useful` has a row for each number of workers: as measured, and as resampled.
    """
    best = int(np.argmax(useful[:, 0]))
    fall = useful[-1] / useful[best]
    return float(workers[best]) if fall[0] < FALL and np.quantile(fall[1:], INTERVAL[1]) < 1 else None


# The limit as a rate


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit in its own unit, `each` of it per event, and a phrase for it."""

    value: Between
    unit: Unit
    each: float
    thing: str

    def text(self, *, interval: bool = True) -> str:
        """The limit, with its interval."""
        write = alike(self.unit, [self.value.value]).text
        low, high = self.value.low, self.value.high
        spread = f" ({write(low)} to {write(high)})" if interval and low is not None and high is not None else ""
        return f"{write(self.value.value)}{spread}"


def _per_second(things: str) -> Unit:
    return Unit(f"{things}/s", suffixed(f"{things}/s"))


RATES: Final[Mapping[str, tuple[str, Unit, str]]] = {
    BANDWIDTH: (BYTES, GIGABIT_PER_SECOND, "the storage"),
    LATENCY: (REQUESTS, _per_second("requests"), "the requests per second"),
    SCHEDULER: (TASKS, _per_second("tasks"), "the tasks per second"),
    RESULTS: (MERGED, BYTE_PER_SECOND, "the rate of merging"),
    CLIENT: (CHUNKS, _per_second("chunks"), "the client's speed"),
}
"""What is counted of a limit that has a rate, its unit, and a phrase for it."""


def rate_of(name: str, runs: Sequence[Judged], most: Judged) -> Rate | None:
    """The limit as a rate; None if it has none or it was not measured.

    It is the best rate of the runs: the mean of those that are as good, given their intervals.
    """
    if name not in RATES:
        return None
    counted, unit, thing = RATES[name]
    if name == LATENCY and REQUESTS not in most.scaled.rates:
        counted, unit, thing = CHUNKS, _per_second("chunks"), "the openings and reads"
    if name == CLIENT:  # that works on nothing else
        seconds = float(most.costs.seconds[CLIENT].sum()) / most.scaled.threads
        chunks = most.scaled.amounts.get(CHUNKS)
        return Rate(Between(chunks / seconds), unit, chunks / most.scaled.events, thing) if seconds and chunks else None
    rates = [(run.scaled.rates[counted], run.scaled) for run in runs if counted in run.scaled.rates]
    if not rates:
        return None
    best = max((rate for rate, _ in rates), key=lambda rate: rate.value)
    same = [pair for pair in rates if (pair[0].high or pair[0].value) >= (best.low or best.value)]
    scale = GIGABITS if unit is GIGABIT_PER_SECOND else 1.0
    # rates of a run have their intervals
    value, low, high = scale * np.array([astuple(rate) for rate, _ in same], np.float64).mean(axis=0)
    each = scale * np.mean([run.amounts[counted] / run.events for _, run in same])
    return Rate(Between(float(value), float(low), float(high)), unit, float(each), thing)


# Words

WORDS: Final[Mapping[str, tuple[str, str]]] = {
    BANDWIDTH: (
        "{storage}{streams}.",
        "Read from faster or nearer storage, cache the files, or read fewer branches.",
    ),
    LATENCY: (
        "Requests wait, whatever their size{waits}{at_most}.",
        "Allow more connections, read from a nearer server, or make fewer requests with larger chunks.",
    ),
    COLD: (
        "The first run, with {first} {unit}, read files that were not cached{later}.",
        "Leave it out, or read the files once before: speed-ups relative to it are too large.",
    ),
    SCHEDULER: (
        "Workers are idle while tasks wait for the scheduler or are in flight{at_most}.{loop}",
        "Use larger chunks to have fewer tasks.{free}",
    ),
    RESULTS: (
        "Merging and moving results takes the time{at_most}.",
        "Return smaller outputs (fewer or coarser histograms), or write large ones to files.",
    ),
    CLIENT: (
        "All workers wait for the client, {before} before the first task and {after} after the last one{at_most}.",
        "Preprocess once and keep the result, submit fewer and larger chunks, return less to the client.",
    ),
    TAIL: (
        "Workers have nothing left to do while the last chunks run: there are {chunks} chunks for each thread.",
        "Use smaller chunks, or process more events with so many workers.",
    ),
    STARTUP: (
        "Each thread spends {startup} on imports and first openings, however little it has to do afterwards.",
        "Import coffea in a preload script of the workers (dask worker --preload), and keep workers for several runs.",
    ),
    LATE: (
        "With {workers} {unit} they were absent for {absent} of {wall} on average.",
        "Wait for the workers before the run (client.wait_for_workers), or run long enough for them to matter.",
    ),
    NODES: (
        "Chunks take longer on {slow} than elsewhere, and others wait for the last of them.",
        "Check what else runs there, or exclude it.",
    ),
    CONTENTION: (
        "{threads} threads get in each other's way{cores}{grown}.",
        "Use fewer workers or threads per host, or more hosts.",
    ),
    BLOCKED: (
        "Chunks wait longer for something that is neither storage nor CPU.",
        "Look at what process() calls: services, locks, sleeps.",
    ),
    "failures": (
        "Attempts that failed took the time.",
        "Look at the failed attempts: roastcoffea show RUN has them.",
    ),
    "memory": ("Workers were paused for memory.", "Give them more memory, or use smaller chunks."),
    OVERHEAD: ("Finishing a task (closing files, compressing results) takes longer.", "Return smaller outputs."),
    PREPROCESSING: ("Preprocessing takes more.", "Preprocess once and keep the result."),
    "other tasks": ("Tasks of other users ran on these workers.", "Use workers of your own."),
    UNACCOUNTED: ("Thread time is unaccounted for.", "Look at the time ledger of the run: roastcoffea show RUN."),
}
"""What happens with a limit, and what to change."""


def _words(name: str, shares: Shares, groups: Groups, *, at: int, rate: Rate | None, unit: str) -> tuple[str, str]:
    """What happens, and what to change."""
    most, fewest = groups[at][0], groups[shares.least][0]
    run, costs = most.scaled, most.costs
    first, *others = sorted((one for group in groups for one in group), key=lambda one: one.scaled.start)
    fastest = max(others, key=lambda one: one.stream or 0.0)
    slow = sorted(costs.slow.items(), key=lambda pair: -pair[1])
    named = [f"{worker} ({number(three_digits(factor))} times)" for worker, factor in slow[:3]]
    ratio = float(shares.work[at, 0] / max(shares.work[0, 0], 1e-300))
    loop, free = _of_loop(run, unit)
    waits = [
        f"{SECOND.text(float(one.reading.of_requests[0]))} with {number(one.scaled.workers)}"
        for one in (fewest, most)
        if one.reading
    ]
    fields = {
        "unit": unit,
        "workers": number(run.workers),
        "threads": number(run.threads),
        "at_most": f", at most {rate.text()}" if rate else "",
        "storage": f"Storage delivers at most {rate.text()} to all workers together" if rate else "Storage is too slow",
        "streams": _streams(fewest, most, unit),
        "waits": f": for each chunk {' and '.join(waits)} {unit}" if waits else "",
        "first": number(first.scaled.workers),
        "later": _streams(first, fastest, unit),
        "loop": loop,
        "free": free,
        **{when: SECOND.text(seconds) for when, seconds in costs.client.items()},
        "chunks": number(three_digits(run.amounts.get(CHUNKS, 0.0) / run.threads)),
        "startup": SECOND.text(float(costs.seconds[STARTUP].sum()) / run.threads),
        "absent": SECOND.text(costs.absent),
        "wall": SECOND.text(run.seconds),
        "slow": ", ".join(named) + (f" and {number(len(slow) - 3)} more" if len(slow) > 3 else ""),
        "cores": f", which share {number(run.cores)} cores" if run.cores else "",
        "grown": f"; the same events take {number(three_digits(ratio))} times the CPU time" if ratio > 1 else "",
    }
    text, advice = (words.format_map(fields) for words in WORDS[name])
    return text, advice


def _streams(one: Judged, other: Judged, unit: str) -> str:
    """Speeds of single streams in two runs."""
    each = [
        f"{GIGABIT_PER_SECOND.text(GIGABITS * run.stream)} with {number(run.scaled.workers)}"
        for run in (one, other)
        if run.stream
    ]
    return f": a stream gets {' and '.join(each)} {unit}" if len(each) > 1 else ""


def _of_loop(run: Scaled, unit: str) -> tuple[str, str]:
    """How busy the scheduler's event loop was, and what that means."""
    if run.loop_share is None:
        return "", ""
    late = "" if run.loop_lag is None else f", and was {SECOND.text(run.loop_lag)} late on average"
    used = f"the event loop of the scheduler used {FRACTION.text(run.loop_share)} of a core{late}"
    elsewhere = "look at its connections to the workers, and at what else ran on its host"
    free = f" The scheduler's core was mostly free: {elsewhere}." if run.loop_share < 0.5 else ""
    return f" With {number(run.workers)} {unit} {used}.", free


# The explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit.

    `share` is the part of all thread time that it takes with `at` workers, where that is most; `shares` are those of
    all sizes. `turning` is the number of workers above which it limits; `falls` the number beyond which more make
    the run slower. `rate` is the limit in its own unit, if it has one.
    """

    name: str
    share: Between
    at: int
    shares: list[float]
    turning: Between
    falls: int | None
    rate: Rate | None
    text: str
    advice: str

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence."""
        return f"{self.name[:1].upper()}{self.name[1:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits, largest first; `useful` workers of each size; thread seconds per event of a run without any limit.

    `main` is the reason why more workers give less, None if nothing takes much.
    """

    causes: list[Limit]
    main: Limit | None
    useful: list[Between]
    ideal: float
    doubts: list[str]


def explained(groups: Groups, unit: str) -> Limits:
    """Explain runs, given by size, ascending; `unit` is what is counted."""
    shares, of_requests = shares_of(groups)
    causes = [_limit(name, shares, groups, unit) for name in shares.lost if shares.share(name)[:, 0].max() >= 0.005]
    causes = sorted([*causes, *_constant_latency(shares, groups, unit)], key=lambda one: -one.share.value)
    main = next((one for one in causes if one.name != UNACCOUNTED and one.share.value >= MATTERS), None)
    useful, doubts = [Between.of(row) for row in shares.useful()], _doubts(main, of_requests, groups)
    return Limits(causes=causes, main=main, useful=useful, ideal=float(shares.ideal[0]), doubts=doubts)


def _limit(name: str, shares: Shares, groups: Groups, unit: str) -> Limit:
    """A limit with everything about it."""
    share, useful = shares.share(name), shares.useful(name)
    at = int(np.argmax(share[:, 0]))
    if name in (LATE, NODES, COLD, "failures"):  # they are there or not; others grow with the workers
        level = 0.1 if name == NODES else 0.5
        turned = Between.of(np.array([shares.workers[np.argmax(one >= level * one.max())] for one in share.T]))
    else:
        turned = Between.of(np.array([turning_of(shares.workers, column) for column in useful.T]))
    beyond = [run for group in groups for run in group if run.scaled.workers >= turned.value]
    rate = rate_of(name, beyond or groups[at], groups[at][0])
    falls = peak_of(shares.workers, useful) if rate is not None and share[at, 0] >= MATTERS else None
    text, advice = _words(name, shares, groups, at=at, rate=rate, unit=unit)
    if falls is not None:
        text += f" Beyond {number(falls)} {unit} the total rate falls, and more of them make the run slower."
    return Limit(
        name=name,
        share=Between.of(share[at]),
        at=round(shares.workers[at]),
        shares=share[:, 0].tolist(),
        turning=turned,
        falls=None if falls is None else round(falls),
        rate=rate,
        text=text,
        advice=advice,
    )


def _constant_latency(shares: Shares, groups: Groups, unit: str) -> Iterator[Limit]:
    """Requests that take most of the time however many workers there are."""
    run = groups[shares.least][0]
    if LATENCY in shares.lost or run.reading is None:
        return
    share = Between.of(run.reading.of_requests * run.reading.chunks / run.scaled.events / shares.ideal[0])
    if (share.value if share.low is None else share.low) < MOSTLY:
        return
    rate = rate_of(LATENCY, [one for group in groups for one in group], run)
    text, advice = _words(LATENCY, shares, groups, at=shares.least, rate=rate, unit=unit)
    fewest = round(shares.workers[0])
    yield Limit(
        name=LATENCY,
        share=share,
        at=fewest,
        shares=(share.value * shares.useful()[:, 0] / shares.workers).tolist(),
        turning=Between(float(fewest)),
        falls=None,
        rate=None,
        text=text,
        advice=advice,
    )


def _doubts(main: Limit | None, of_requests: Numbers | None, groups: Groups) -> list[str]:
    """What the runs cannot tell of the main limit."""
    if main is None or main.name not in {BANDWIDTH, LATENCY}:
        return []
    if of_requests is None:
        return ["without bytes and waiting of chunks, bandwidth and latency of the storage cannot be told apart"]
    low, high = np.quantile(of_requests[1:], INTERVAL)
    if low < MOSTLY < high:
        return ["chunks and requests are too much alike to tell bandwidth and latency of the storage apart"]
    first = min((run.scaled for group in groups for run in group), key=lambda run: run.start)
    if main.falls is not None and first.workers == main.at:
        return ["the run with most workers was the first one: if files were not cached yet, repeat it"]
    return []


# For people

SHOWN: Final = 0.02
"""Share of thread time from which a limit is drawn."""

USEFUL: Final = "useful"


def _headline(found: Limits, points: Sequence[Point], unit: str) -> str:
    """The reason in a sentence, with its number of workers."""
    largest, useful = points[-1].workers, found.useful[-1].value
    of_all = f"{number(largest)} {unit} do the work of {number(three_digits(useful))}"
    most, best = max((one.value, point.workers) for one, point in zip(found.useful, points, strict=True))
    if best < largest and most > useful / FALL:
        of_all += f", {number(best)} that of {number(three_digits(most))}"
    main = found.main
    if main is None:
        return f"Nothing limits these runs: more workers give what they promise ({of_all})."
    if main.name == COLD:
        return f"{main.title} in the run with {number(main.at)} {unit}; {of_all} compared with later runs."
    return f"{main.title} limits these runs from {_from(main, points)} {unit} on: {of_all}."


def _from(limit: Limit, points: Sequence[Point]) -> str:
    """Turning point with its interval, and the sizes around it."""
    value, low, high = (None if each is None else number(round(each)) for each in astuple(limit.turning))
    if round(limit.turning.value) in {point.workers for point in points}:
        return str(value)
    return f"about {value}" if low is None else f"about {value} [{low}, {high}]"


def reasons(found: Limits, points: Sequence[Point], unit: str, needs: Sequence[str]) -> Sheet:
    """The reason, what to change, and all limits in a table."""
    main = found.main
    rows: list[Sequence[Cell]] = []
    for one in found.causes[:6]:
        value, low, high = (None if each is None else f"{100 * each:.0f}" for each in astuple(one.share))
        share = Amount(one.share.value, FRACTION, f"{value} %{'' if low is None else f' [{low}, {high}]'}")
        rate = "" if one.rate is None or one.share.value < MATTERS else one.rate.text(interval=False)
        rows.append((one.name, share, one.at, round(one.turning.value), rate))
    return Sheet(
        title="why more workers give less",
        lead=[_headline(found, points, unit), *needs, *(f"Note: {doubt}." for doubt in found.doubts)],
        items=[main.text, main.advice] if main else [],
        columns=[
            Column("limit"),
            Column("thread time", FRACTION, "part of all thread time that it takes, where that is most"),
            Column(f"with {unit}", COUNT, "where it takes most"),
            Column(f"from {unit}", COUNT, "number above which it takes what more of them would give"),
            Column("at most", None, "the most that it allows"),
        ],
        rows=rows,
        cards=[_card(one, points, unit) for one in found.causes[:3] if one.share.value >= SHOWN],
        form="plain",
        things="limits",
    )


def _card(limit: Limit, points: Sequence[Point], unit: str) -> Card:
    share = f"{100 * limit.share.value:.0f} % of thread time with {number(limit.at)} {unit}"
    what = f"{limit.text} From {_from(limit, points)} {unit} on."
    return Card(limit.title, share, what, limit.advice, family=FAMILIES[limit.name])


def useful_workers(found: Limits, points: Sequence[Point], unit: str) -> Sheet:
    """How many workers are useful at each size, and what the others are lost to."""
    shown = found.causes[:3]
    rows: list[list[Cell]] = []
    for place, point in enumerate(points):
        amounts = [found.useful[place].value, *(one.shares[place] * point.workers for one in shown)]
        rest = max(point.workers - sum(amounts), 0.0)
        rows.append([number(point.workers), *(Amount(each, text=_amount(each)) for each in (*amounts, rest))])
    return Sheet(
        title=f"useful {unit}, and what the others are lost to",
        columns=columns(None, unit) + columns(COUNT, USEFUL, *(one.name for one in shown), "others"),
        rows=rows,
        bars=[_bar(found, place, point, unit) for place, point in enumerate(points)],
        things="sizes",
    )


def _amount(workers: float) -> str:
    return number(float(f"{workers:.1f}")) if workers < 100 else number(round(workers))


def _bar(found: Limits, place: int, point: Point, unit: str) -> Drawn:
    """Useful workers of a size, and what the others are lost to."""
    useful = _amount(found.useful[place].value)
    parts: list[tuple[Any, float, str]] = [(phases.COMPUTING, found.useful[place].value / point.workers, USEFUL)]
    parts += [(FAMILIES[one.name], one.shares[place], one.name) for one in found.causes if one.shares[place] > 0]
    segments = [segment(family, share, name, _amount(share * point.workers)) for family, share, name in parts]
    return drawn(f"{number(point.workers)} {unit}: {useful} useful", "", segments)
