"""What a limit is, in words and in its own unit, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from roastcoffea.studies.scaling import laws as pace
from roastcoffea.studies.scaling import shares as limits
from roastcoffea.studies.scaling.laws import Between
from roastcoffea.studies.scaling.shares import Judged, Shares
from roastcoffea.units import (
    BYTE_PER_SECOND,
    FRACTION,
    GIGABIT_PER_SECOND,
    SECOND,
    Unit,
    alike,
    number,
    suffixed,
    three_digits,
)

TASKS_PER_SECOND: Final = Unit("tasks/s", suffixed("tasks/s"))
CHUNKS_PER_SECOND: Final = Unit("chunks/s", suffixed("chunks/s"))
REQUESTS_PER_SECOND: Final = Unit("requests/s", suffixed("requests/s"))
"""Units of limits."""

GIGABITS: Final = 8e-9
MANY: Final = 3
HALF_BUSY: Final = 0.5
"""Share of a core below which the scheduler's own CPU time is not what limits."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit in its own unit, `each` of it per event, and a phrase for it."""

    value: Between
    unit: Unit
    each: float
    thing: str

    def text(self) -> str:
        """The limit with its interval."""
        write = alike(self.unit, [self.value.value]).text
        found = write(self.value.value)
        if self.value.low is None or self.value.high is None:
            return found
        low, high = (
            number(three_digits(float(write(bound).rpartition(" ")[0]))) for bound in (self.value.low, self.value.high)
        )
        return f"{found} [{low}, {high}]"


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All sizes with their runs; the one with the largest loss by this limit, and the turning point."""

    shares: Shares
    groups: Sequence[Sequence[Judged]]
    at: int
    turning: float
    unit: str
    limit: str = ""
    """The limit as a rate, for sentences."""

    @property
    def most(self) -> Judged:
        """A run with the largest loss."""
        return self.groups[self.at][0]

    @property
    def fewest(self) -> Judged:
        """A run with the least waiting for storage."""
        return self.groups[self.shares.least][0]

    @property
    def turned(self) -> list[Judged]:
        """Runs beyond the turning point, otherwise those with the largest loss."""
        beyond = [run for group in self.groups for run in group if run.scaled.workers >= self.turning]
        return beyond or list(self.groups[self.at])


# The limit as a rate


def rate_of(name: str, evidence: Evidence) -> Rate | None:
    """The limit as a rate; None if it has none or it was not measured."""
    if name == limits.CLIENT:
        return _serial(evidence)
    if name == limits.LATENCY and pace.REQUESTS not in evidence.most.pace.rates:
        return _measured(evidence, pace.CHUNKS, CHUNKS_PER_SECOND, "the openings and reads")
    counted = _RATES.get(name)
    return None if counted is None else _measured(evidence, *counted)


_RATES: Final[Mapping[str, tuple[str, Unit, str]]] = {
    limits.BANDWIDTH: (pace.BYTES, GIGABIT_PER_SECOND, "the storage"),
    limits.LATENCY: (pace.REQUESTS, REQUESTS_PER_SECOND, "the requests per second"),
    limits.SCHEDULER: (pace.TASKS, TASKS_PER_SECOND, "the tasks per second"),
    limits.RESULTS: (pace.MERGED, BYTE_PER_SECOND, "the rate of merging"),
}


def _measured(evidence: Evidence, counted: str, unit: Unit, thing: str) -> Rate | None:
    """Best rate of the runs beyond the turning point: the mean of those that are as good, given their intervals."""
    rates = [(run.pace.rates[counted], run) for run in evidence.turned if counted in run.pace.rates]
    if not rates:
        return None
    best = max((rate for rate, _ in rates), key=lambda rate: rate.value)
    alike = [pair for pair in rates if (pair[0].high or pair[0].value) >= (best.low or best.value)]
    scale = (GIGABITS if unit is GIGABIT_PER_SECOND else 1.0) / len(alike)
    value, low, high = (scale * sum(amounts) for amounts in zip(*(_bounds(rate) for rate, _ in alike), strict=True))
    each = sum(run.pace.amounts[counted] / run.scaled.events for _, run in alike)
    return Rate(Between(value, low, high), unit, scale * each, thing)


def _bounds(rate: Between) -> tuple[float, float, float]:
    low, high = (rate.value if bound is None else bound for bound in (rate.low, rate.high))
    return rate.value, low, high


def _serial(evidence: Evidence) -> Rate | None:
    """Chunks per second of a client that works on nothing else."""
    run = evidence.most
    seconds = float(run.costs.seconds[limits.CLIENT].sum()) / run.scaled.threads
    chunks = run.pace.amounts.get(pace.CHUNKS)
    if not seconds or not chunks:
        return None
    return Rate(Between(chunks / seconds), CHUNKS_PER_SECOND, chunks / run.scaled.events, "the client's speed")


# Words


def words_of(name: str, evidence: Evidence, rate: Rate | None) -> tuple[str, str]:
    """What happens, and what to change."""
    if name in PLAIN:
        return PLAIN[name]
    return _WORDS[name](replace(evidence, limit="" if rate is None else rate.text()))


def _bandwidth(evidence: Evidence) -> tuple[str, str]:
    few, many = (_stream(run) for run in (evidence.fewest, evidence.most))
    words = (
        f"Storage delivers at most {evidence.limit} to all workers together"
        if evidence.limit
        else "Workers wait longer for storage"
    )
    if few and many:
        sizes = (number(run.scaled.workers) for run in (evidence.fewest, evidence.most))
        speeds = (GIGABIT_PER_SECOND.text(GIGABITS * speed) for speed in (few, many))
        each = " and ".join(f"{speed} with {size}" for speed, size in zip(speeds, sizes, strict=True))
        words += f": a stream gets {each} {evidence.unit}"
    return f"{words}.", "Read from faster or nearer storage, cache the files, or read fewer branches."


def _stream(run: Judged) -> float | None:
    reading = run.reading
    return reading.bytes / reading.seconds if reading and reading.seconds else None


def _latency(evidence: Evidence) -> tuple[str, str]:
    runs = (evidence.fewest, evidence.most)
    waits = [(run.reading.of_requests[0], run.scaled.workers) for run in runs if run.reading]
    each = " and ".join(f"{SECOND.text(float(wait))} with {number(size)}" for wait, size in waits)
    words = f"Requests wait, whatever their size: for each chunk {each} {evidence.unit}"
    answered = f"; the storage answers {evidence.limit}" if evidence.limit else ""
    return (
        f"{words}{answered}.",
        "Allow more connections, read from a nearer server, or make fewer requests with larger chunks.",
    )


def _cold(evidence: Evidence) -> tuple[str, str]:
    every = sorted((run for group in evidence.groups for run in group), key=lambda run: run.start)
    run = every[0]
    later = max(every[1:], key=lambda one: _stream(one) or 0.0)
    words = f"The first run, with {number(run.scaled.workers)} {evidence.unit}, read files that were not cached"
    before, after = _stream(run), _stream(later)
    if before and after:
        slow, fast = (GIGABIT_PER_SECOND.text(GIGABITS * speed) for speed in (before, after))
        words += f": a stream got {slow}, later {fast} with {number(later.scaled.workers)}"
    return f"{words}.", "Leave it out, or read the files once before: speed-ups relative to it are too large."


def _scheduler(evidence: Evidence) -> tuple[str, str]:
    idle = "orkers are idle while tasks wait for the scheduler or are in flight"
    words = f"The scheduler handles at most {evidence.limit}: w{idle}." if evidence.limit else f"W{idle}."
    advice = "Use larger chunks, so that there are fewer tasks."
    loop = evidence.most.scheduler
    if loop is not None:
        size, share = number(evidence.most.scaled.workers), FRACTION.text(loop.share)
        late = "" if loop.lag is None else f", and was {SECOND.text(loop.lag)} late on average"
        words += f" With {size} {evidence.unit} the event loop of the scheduler used {share} of a core{late}."
        if loop.share < HALF_BUSY:
            elsewhere = "look at its connections to the workers, and at what else ran on its host"
            advice += f" The scheduler's core was mostly free: {elsewhere}."
    return words, advice


def _results(evidence: Evidence) -> tuple[str, str]:
    what = (
        f"Results are merged at {evidence.limit} at most"
        if evidence.limit
        else "Merging and moving results takes the time"
    )
    return f"{what}.", "Return smaller outputs (fewer or coarser histograms), or write large ones to files."


def _client(evidence: Evidence) -> tuple[str, str]:
    run = evidence.most
    before, after = (SECOND.text(seconds) for seconds in (run.costs.before, run.costs.after))
    every = f"; it handles {evidence.limit}" if evidence.limit else ""
    return (
        f"All workers wait for the client, {before} before the first task and {after} after the last one{every}.",
        "Preprocess once and keep the result, submit fewer and larger chunks, return less to the client.",
    )


def _tail(evidence: Evidence) -> tuple[str, str]:
    run = evidence.most
    each = run.pace.amounts.get(pace.CHUNKS, 0.0) / run.scaled.threads
    of_each = f": there are {number(three_digits(each))} chunks for each thread" if each else ""
    return (
        f"Workers have nothing left to do while the last chunks run{of_each}.",
        "Use smaller chunks, or process more events with so many workers.",
    )


def _startup(evidence: Evidence) -> tuple[str, str]:
    run = evidence.most
    each = SECOND.text(float(run.costs.seconds[limits.STARTUP].sum()) / run.scaled.threads)
    return (
        f"Each thread spends {each} on imports and first openings, however little it has to do afterwards.",
        "Import coffea in a preload script of the workers (dask worker --preload), and keep workers for several runs.",
    )


def _late(evidence: Evidence) -> tuple[str, str]:
    run = evidence.most
    absent, wall = SECOND.text(run.costs.absent), SECOND.text(run.scaled.seconds)
    return (
        f"With {number(run.scaled.workers)} {evidence.unit} they were absent for {absent} of {wall} on average.",
        "Wait for the workers before the run (client.wait_for_workers), or run long enough for them to matter.",
    )


def _nodes(evidence: Evidence) -> tuple[str, str]:
    slow = sorted(evidence.most.costs.slow.items(), key=lambda pair: -pair[1])
    named = ", ".join(f"{name} ({number(three_digits(factor))} times)" for name, factor in slow[:MANY])
    more = f" and {number(len(slow) - MANY)} more" if len(slow) > MANY else ""
    return (
        f"Chunks take longer on {named}{more} than elsewhere, and others wait for the last of them.",
        "Check what else runs there, or exclude it.",
    )


def _contention(evidence: Evidence) -> tuple[str, str]:
    run = evidence.most
    cores = f", which share {number(run.scaled.cores)} cores" if run.scaled.cores else ""
    ratio = float(evidence.shares.work[evidence.at, 0] / max(evidence.shares.work[0, 0], 1e-300))
    grown = f"; the same events take {number(three_digits(ratio))} times the CPU time" if ratio > 1 else ""
    return (
        f"{number(run.scaled.threads)} threads get in each other's way{cores}{grown}.",
        "Use fewer workers or threads per host, or more hosts.",
    )


_WORDS: Final[Mapping[str, Callable[[Evidence], tuple[str, str]]]] = {
    limits.BANDWIDTH: _bandwidth,
    limits.LATENCY: _latency,
    limits.COLD: _cold,
    limits.SCHEDULER: _scheduler,
    limits.RESULTS: _results,
    limits.CLIENT: _client,
    limits.TAIL: _tail,
    limits.STARTUP: _startup,
    limits.LATE: _late,
    limits.NODES: _nodes,
    limits.CONTENTION: _contention,
}

PLAIN: Final[Mapping[str, tuple[str, str]]] = {
    limits.SERVICES: (
        "Chunks wait longer for something that is neither storage nor CPU.",
        "Look at what process() calls: services, locks, sleeps.",
    ),
    limits.FAILURES: (
        "Attempts that failed took the time.",
        "Look at the failed attempts: roastcoffea show RUN has them.",
    ),
    limits.MEMORY: ("Workers were paused for memory.", "Give them more memory, or use smaller chunks."),
    limits.TASKS: ("Finishing a task (closing files, compressing results) takes longer.", "Return smaller outputs."),
    limits.PREPROCESSING: ("Preprocessing takes more.", "Preprocess once and keep the result."),
    limits.OTHERS: ("Tasks of other users ran on these workers.", "Use workers of your own."),
    limits.UNACCOUNTED: (
        "Thread time is unaccounted for.",
        "Look at the time ledger of the run: roastcoffea show RUN.",
    ),
}
