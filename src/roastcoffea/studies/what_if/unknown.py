"""What runs cannot tell of another cluster: why a prediction has no number, or may be wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from roastcoffea.replay.fitted_storage import ALL, Storage
from roastcoffea.replay.interpreter import Interpreter
from roastcoffea.replay.recorded import Recorded
from roastcoffea.units import FRACTION, number

FAR: Final = 2
"""Chunks up to this many times the largest recorded one are still near it."""

WRONG: Final = 0.15
"""Error of a recorded run's own prediction above which it is reported."""

# Why there is no number


def of_others(run: Recorded, others: Collection[float]) -> str:
    """Load of other programs, as shares of a host's cores, that differed between the runs."""
    low, high = (number(jobs * (run.cores or 1)) for jobs in (min(others), max(others)))
    return f"other programs needed {low} to {high} cores, which differed too much between the runs"


def of_crowding(processes: float, known: float, most: float) -> str:
    """CPU time of more processes on a core than in any run, which may take from `known` to `most` more of it."""
    return f"{_crowding(processes, known, most)} may be needed for each doubling; add a run with more workers on a host"


def _crowding(processes: float, known: float, most: float) -> str:
    low = f"{FRACTION.text(known)} to" if known else "up to"
    shared = f"{processes:.3g} processes share a core and its caches, more than in any run"
    return f"{shared}: {low} {FRACTION.text(most)} more CPU time"


def of_storage(known: Storage) -> str:
    """Readers that saturate storage."""
    another = "add a run with another number of threads or workers"
    if known.high == ALL:
        most = f"at most {number(known.most)} chunks that read were active at a time while recording"
        return f"{most}, which does not show how many readers saturate storage; {another}"
    low, high = number(known.low), number(known.high)
    return f"storage is saturated by {low} to {high} readers, and the runs do not tell more exactly; {another}"


def of_interpreter(run: Recorded, known: Interpreter | None, threads: int) -> str:
    """Threads that share an interpreter."""
    if known is not None:
        low, high = (FRACTION.text(share) for share in (known.low, known.high))
        return f"{low} to {high} of the CPU time needs the interpreter: too uncertain for {number(threads)} threads"
    if run.threads > 1 and not run.knows_lock:
        return (
            f"chunks of {run.name} waited for their interpreter, and how long was not recorded; predict from a new run"
        )
    unknown = f"no run tells how long {number(threads)} threads of a process wait for its interpreter"
    return f"{unknown}; add a run with several threads per process"


# Caveats


def doubts_of_crowding(processes: float, known: float, most: float) -> str:
    """Caveat on more processes on a core than in any run."""
    return f"{_crowding(processes, known, most)} is assumed for each doubling"


def doubts_of_cores(run: Recorded, workers: int, threads: int, same_host: bool) -> Iterator[str]:
    """Caveat on threads that share a core."""
    if any(stage.costs.crowded for stage in run.stages):
        return
    clusters = (run.own_cluster, run.cluster(workers, threads, same_host=same_host))
    # threads per core on the host with the most
    here, there = (max(some * each.threads / cores for some, cores in each.hosts) for each in clusters)
    if there > max(here, 1.0):
        yield (
            f"{there:.3g} threads share a core and its caches: the run does not show whether that costs more CPU "
            "time, and none is assumed"
        )


def doubts_of_threads(run: Recorded, known: Interpreter | None, threads: int) -> Iterator[str]:
    """Caveats on threads that share an interpreter, on another number of them."""
    if threads == run.threads:
        return
    if run.threads > 1 and not run.knows_lock:
        yield (
            f"the run had {number(run.threads)} threads per process: its chunks waited for their interpreter, for "
            "which no time was recorded, and are assumed to wait as long"
        )
    if threads == 1:
        return
    shared = "threads of a process share one interpreter"
    if known is not None:
        yield (
            f"{shared}: for {FRACTION.text(known.share)} of their CPU time, "
            "according to the time for which recorded chunks waited for it"
        )
    else:
        yield (
            f"{shared}: at worst, {number(threads)} of them run serially; "
            "how much of their work releases the lock is unknown"
        )


def doubts_of_check(name: str, measured: float, error: float, *, from_itself: bool) -> Iterator[str]:
    """Caveat on a measured run that is predicted badly."""
    if abs(error) >= WRONG:
        what = "the replay" if from_itself else "the prediction from the other runs"
        off = f"{FRACTION.text(abs(error))} {'more' if error > 0 else 'less'}"
        yield f"{what} of {name} gives {off} than the {measured:.3g} s that were measured"


def doubts_of_size(size: int, largest: int) -> Iterator[str]:
    """Caveat on chunks much larger than the largest recorded one."""
    if size > FAR * largest:
        yield (
            f"chunks of {number(size)} events are far larger than the recorded {number(largest)}: costs that grow "
            "faster than events (arrays larger than the caches) are not modelled, so that it may take longer"
        )
