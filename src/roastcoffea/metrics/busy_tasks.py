"""Attempts of tasks, of which a scheduler tells, as what kept the workers' threads busy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import phases
from roastcoffea.metrics.busy import Busy, Records, incomplete_phases, sum_of
from roastcoffea.metrics.facts import GAVE_A_RESULT, among, identities, lost_rows
from roastcoffea.metrics.ledger import Attempts
from roastcoffea.metrics.slots import Moments
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, having, moments, one_of, places
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import KINDS, OUTCOMES

MOMENTS: Final = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seceded", "seen")
COLUMNS: Final = ("key", "run_id", "kind", "outcome", "worker", *MOMENTS)
"""Columns of tasks that are looked at: a copy of some rows of them is not one of all."""

REPEATED: Final = "repeated"


def busy_tasks(records: Records, tasks: pa.Table) -> Busy:
    """Attempts of tasks as what kept the threads, split by what the records of their chunks tell of them."""
    run, tasks = records.run, tasks.select(COLUMNS)
    worker = places(tasks["worker"], records.workers)
    start, stop = _intervals(tasks, worker, records)
    known = (worker >= 0) & ~np.isnan(start) & ~np.isnan(stop)
    link = _linked(tasks, records.chunks)
    reasons = lost_rows(run, "tasks", "chunks") + _without_times(tasks, worker, known) + _uncounted(run.attempts, tasks)
    if link.without_task:
        reasons.append(f"of {link.without_task} attempts of chunks the task was not seen: their time is taken for idle")
    if not known.all():
        tasks, worker, start, stop = tasks.filter(pa.array(known)), worker[known], start[known], stop[known]
        link = link._replace(task=link.task[known])
    split = _split(tasks, stop - start, link, records)
    reasons += incomplete_phases(records.counted)
    if split.unrecorded:
        reasons.append(f"{split.unrecorded} attempts of chunks left no record: their time is in no class")
    attempts = Attempts(len(tasks) - split.unrecorded, len(known))
    return Busy(_moments(tasks, worker, start, stop), split.seconds, split.dataset, split.failed, reasons, attempts)


def _without_times(tasks: pa.Table, worker: Integers, known: Flags) -> list[str]:
    """Attempts that should tell when they ran: one that was cancelled may never have begun."""
    cancelled = having(tasks["outcome"], task_records.CANCELLED)
    untimed = np.count_nonzero(~known & ~cancelled & ~having(tasks["outcome"], task_records.LOST))
    went_on = np.count_nonzero(~known & (worker >= 0) & cancelled)
    counts = {
        "do not tell when they ran": untimed,
        "were cancelled when a worker had them: what went on is taken for idle": went_on,
    }
    return [f"{number} attempts of tasks {what}" for what, number in counts.items() if number]


def _uncounted(attempts: Mapping[str, int] | None, tasks: pa.Table) -> list[str]:
    """Attempts that the scheduler counted, and of which there is no row."""
    if attempts is None:
        return ["the scheduler did not tell how many attempts of tasks there were"]
    rows = np.bincount(_kinds(tasks), minlength=len(KINDS))
    lacking = {kind: number - int(rows[KINDS.index(kind)]) for kind, number in attempts.items()}
    return [f"{number} attempts of {kind} tasks left no row" for kind, number in lacking.items() if number > 0]


def _kinds(tasks: pa.Table) -> Integers:
    """Kind of each attempt: its place in KINDS."""
    return places(tasks["kind"], KINDS)


def _intervals(tasks: pa.Table, worker: Integers, records: Records) -> tuple[Numbers, Numbers]:
    """When attempts kept their thread; of those that were lost with their worker it is estimated."""
    run, presence = records.run, records.presence
    start, stop = (moments(tasks, name) for name in ("start", "stop"))
    unfinished = having(tasks["outcome"], task_records.UNFINISHED)
    stop[unfinished] = run.stop
    left = np.zeros(int(presence.worker.max(initial=-1)) + 2)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero(having(tasks["outcome"], task_records.LOST) & np.isnan(start) & (worker >= 0))
    assigned = moments(tasks, "assigned") if len(lost) else start
    for number in np.unique(worker[lost]):
        # from when a thread was free for them until the worker left
        threads = int(presence.threads[presence.worker == number].max())
        here = lost[worker[lost] == number]
        first = here[np.argsort(assigned[here], kind="stable")][:threads]
        start[first] = np.maximum(assigned[first], _when_free(stop[worker == number], threads)[: len(first)])
        stop[first] = np.maximum(left[number], start[first])
    stop = np.fmin(stop, moments(tasks, "seceded"))
    others = having(tasks["kind"], task_records.OTHER)
    stop = np.where(others | unfinished, np.minimum(stop, left[worker]), stop)
    # what others began before the run belongs to it from then on
    earliest = np.where(others, run.start, -np.inf)
    return np.maximum(start, earliest), np.maximum(stop, earliest)


def _when_free(stops: Numbers, threads: int) -> Numbers:
    """When each thread of a worker ended its last attempt, in order; -inf for one that had none."""
    last = np.sort(stops[~np.isnan(stops)])[::-1][:threads]
    return np.sort(np.concatenate([last, np.full(threads - len(last), -np.inf)]))


def _moments(tasks: pa.Table, worker: Integers, start: Numbers, stop: Numbers) -> Moments:
    """Moments of attempts in their order: what is not known came as late as it could."""
    lasting = having(tasks["outcome"], task_records.UNFINISHED)
    seen = np.where(lasting, stop, np.fmax(moments(tasks, "seen"), stop))
    late = [start]
    for name in ("ready", "arrived", "assigned", "runnable"):
        late.append(np.fmin(moments(tasks, name), late[-1]))
    ready, arrived, assigned, runnable = late[1:]
    return Moments(worker, runnable, assigned, arrived, ready, start, stop, seen, _kinds(tasks))


class _Split(NamedTuple):
    """Seconds by class of each attempt, its dataset, failed seconds by reason, and how many chunks left no record."""

    seconds: dict[str, Numbers]
    dataset: pa.Array
    failed: dict[str, float]
    unrecorded: int


def _split(tasks: pa.Table, duration: Numbers, link: _Link, records: Records) -> _Split:
    kind, outcome = _kinds(tasks), places(tasks["outcome"], OUTCOMES)
    processor, other = (kind == KINDS.index(name) for name in (task_records.PROCESSOR, task_records.OTHER))
    inside = _inside(link, records.chunks, records.counted)
    processed = processor & (outcome == OUTCOMES.index(task_records.OK))
    repeated = processed & inside.recorded & ~inside.used & (inside.seconds[phases.FAILED] == 0)
    lost = (outcome != OUTCOMES.index(task_records.OK)) | repeated
    counts = processed & ~repeated
    seconds = {name: np.where(counts, amounts, 0.0) for name, amounts in inside.seconds.items()}
    erred = seconds[phases.FAILED]
    rest = duration - sum(seconds.values())
    seconds |= {
        name: np.where((kind == KINDS.index(of)) & ~lost, duration, 0.0) for of, name in phases.OF_TASK_KIND.items()
    }
    # another user's task is his own affair, however it ended
    seconds[phases.OTHER_TASKS] = np.where(other, duration, 0.0)
    wasted = np.where(lost & ~other, duration, 0.0)
    failed = _by_reason(np.where(repeated, len(OUTCOMES), outcome), wasted)
    if erred.any():
        failed[task_records.ERROR] = failed.get(task_records.ERROR, 0.0) + float(erred.sum())
    seconds[phases.FAILED] = wasted + erred
    seconds[phases.OVERHEAD] = np.where(counts & inside.recorded, rest, 0.0)
    dataset = pc.if_else(pa.array(processor), inside.dataset, _dataset_of_openings(tasks, records.run))
    return _Split(seconds, dataset, failed, int(np.count_nonzero(counts & ~inside.recorded)))


def _by_reason(reason: Integers, wasted: Numbers) -> dict[str, float]:
    sums = np.bincount(reason, wasted, len(OUTCOMES) + 1)
    return {(*OUTCOMES, REPEATED)[place]: float(sums[place]) for place in np.unique(reason[wasted > 0])}


class _Link(NamedTuple):
    """Number of the key and run id of each attempt of a task, and of a chunk; -1 where chunks have none."""

    task: Integers
    chunk: Integers
    number: int
    without_task: int
    """Attempts of chunks that ran in a task of which nothing is known."""


def _linked(tasks: pa.Table, chunks: pa.Table) -> _Link:
    of_chunks, of_tasks = identities(tasks, chunks)
    known, number = np.unique(of_chunks, return_inverse=True)
    known, number = (known[1:], number - 1) if len(known) and known[0] < 0 else (known, number)
    place = np.searchsorted(known, of_tasks)
    place = np.where((of_tasks >= 0) & (np.append(known, -1)[place] == of_tasks), place, -1)
    linked = np.bincount(place[place >= 0], minlength=len(known)) > 0
    return _Link(place, number, len(known), int(np.count_nonzero(~linked[number[number >= 0]])))


class _Inside(NamedTuple):
    """For each attempt of a task what the records of its chunk tell.

    `seconds` are those of phases of attempts that counted, and of failed ones; `used` whether any counted.
    """

    seconds: dict[str, Numbers]
    used: Flags
    recorded: Flags
    dataset: pa.Array


def _inside(link: _Link, chunks: pa.Table, counted: pa.Table) -> _Inside:
    some = link.chunk >= 0
    number = link.chunk[some]
    used = among(chunks, counted)

    def sums(amounts: Numbers) -> Numbers:
        found = np.bincount(number, amounts[some], link.number + 1)
        return np.asarray(found[link.task])

    gave = one_of(chunks["outcome"], pa.array(GAVE_A_RESULT))
    columns_of = phases.COLUMNS_OF.items()
    seconds = {name: sums(np.where(used, sum_of(chunks, columns), 0.0)) for name, columns in columns_of}
    seconds[phases.FAILED] = sums(np.where(gave, 0.0, sum_of(chunks, ("wall_seconds",))))
    last = np.full(link.number + 1, -1)
    last[number] = np.flatnonzero(some)
    row = last[link.task]
    dataset = chunks["dataset"].combine_chunks().take(pa.array(row, mask=row < 0))
    return _Inside(seconds, sums(used.astype(np.float64)) > 0, link.task >= 0, dataset)


def _dataset_of_openings(tasks: pa.Table, run: Run) -> pa.Array:
    """Dataset of the file that a preprocessing task opened."""
    if run.preprocessing is None or not len(run.preprocessing):
        return pa.nulls(len(tasks), pa.string())
    openings = run.preprocessing.group_by("key").aggregate([("dataset", "max")])
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings["dataset_max"].combine_chunks().take(found).combine_chunks()
