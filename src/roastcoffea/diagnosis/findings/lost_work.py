"""Findings about lost work: missing data, failed attempts, and workers that lack memory or that a limit ends."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from roastcoffea.diagnosis.completeness import FEWEST, WITHOUT_EVENTS, MemoryEvidence, Row, caught_errors
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.savings import Taken, without_parts
from roastcoffea.metrics import phases
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, number, were


@finding(
    "missing data",
    "The result is incomplete",
    part="in the result",
    shows="nowhere: the result lacks events",
    first="the line of the finding, which runs the rest",
)
def missing_data(evidence: Evidence) -> Iterator[Finding]:
    """Missing data.

    The result lacks events. This comes before anything about speed.

    **How to make sure.** `missing` has the files and chunks without a result, `failed_files` the files with errors.
    Compare the events with what the catalogue of the experiment has.

    ```python
    print(measurement.missing[["dataset", "file", "entry_start", "entry_stop"]])
    print(measurement.failed_files)
    print(measurement.metrics["total_events"])
    ```

    **What to do.** Mend the error (another replica, a valid proxy), then copy the line of the finding. It runs what
    is missing and nothing twice; add its output to the first one:

    ```python
    from coffea.processor import accumulate

    missing = measurement.missing_fileset(fileset)
    if missing:
        rest = runner(missing, treename="Events", processor_instance=processor)
        output = accumulate([rest, output])
    ```

    **When it is not a problem.** With `skipbadfiles=True` you have agreed to skip bad files: then scale the
    luminosity to the events that were processed. `maxchunks` leaves chunks out on purpose and is not reported.
    """
    found, caught = evidence.incompleteness, caught_errors(evidence.run)
    if found is not None and not found.complete:
        names = [Culprit("file", name, 0.0) for name in found.names]
        what, advice = f"{found.what} {found.how_much}", found.advice
        yield Finding(what=what, advice=advice, culprits=tuple(names), remedy=found.line, rows={}, incomplete=True)
    if caught is not None:
        names = [Culprit("file", name, 0.0) for name in caught.files]
        advice = "`measurement.failed` lists them: fix them, then repeat these tasks."
        yield Finding(what=caught.what, advice=advice, culprits=tuple(names), rows={}, incomplete=True)


@finding(
    "failures",
    "Failed attempts waste time",
    part="in the result",
    shows="`failed`",
    first="another copy of the file; leave out the worker",
)
def failures(evidence: Evidence) -> Finding | None:
    """Limited by failures.

    Attempts fail and are repeated: the class `failed` of the time ledger is large.

    **How to make sure.** `failed` has each attempt with its reason and error. The finding names a worker, host, file
    or dataset only if failures cluster there more than chance allows.

    ```python
    failed = measurement.failed
    print(failed.groupby(["reason", "error"])["seconds"].agg(["count", "sum"]))
    print(failed.groupby("file").size().sort_values().tail())
    ```

    **What to do.**

    - A file: check it with `uproot.open(file)["Events"]`, or use another replica.
    - A worker or host: look at its logs, and leave it out: `client.retire_workers([address])`.
    - Nothing in particular: read the error. Storage that drops connections needs fewer threads or retries with a
      pause.
    - Workers that vanish: batch systems evict jobs at their limits of time and memory; see [memory](memory.md).

    **When it is not a problem.** On opportunistic resources workers leave. `DaskExecutor(retries=3)` makes that a
    matter of time only; the result has all events unless [missing data](missing-data.md) is found.
    """
    found = evidence.failures
    if found is None or not found.attempts:
        return None
    where, place, culprits = "", found.cluster or found.common, tuple[Culprit, ...]()
    again = f"{number(found.repeated)} of {counted(found.chunks, 'chunk')} succeeded in another attempt"
    parts = [f"{SECOND.text(seconds)} {reason}" for reason, seconds in found.by_reason.items() if seconds]
    reasons = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    error = f" Most common error{found.error.how_often}: {found.error.text}." if found.error is not None else ""
    they = "It" if found.attempts == 1 else "They"
    advice = "Fix the error, which is not specific to a worker, host, file or dataset"
    if found.chunks < FEWEST:
        advice = "Fix the error"
    if place is not None:
        share, named = place.failed / place.all_failed, f"{place.kind} {place.name}"
        where = f", {'all' if share == 1 else f'{FRACTION.text(share)} of them'} on {named}"
        advice = f"Fix the error, but so few may be on {named} by chance"
        if found.cluster is not None:
            other = "exclude it" if place.kind in {"worker", "host"} else "read another copy of it"
            advice = f"Check {named}, or {other}"
            rate = place.failed / place.tried * place.all_tried / place.all_failed
            culprits = (Culprit(place.kind, place.name, found.seconds * share, rate),)
    return Finding(
        what=f"{counted(found.attempts, 'attempt')} failed{where}; {again}. {they} took {SECOND.text(found.seconds)} "
        f"of thread time{reasons}.{error}",
        advice=f"{advice}; `measurement.failed` lists them.",
        culprits=culprits,
        rows={phases.FAILED: found.seconds},
        taken=Taken(without_parts("failed")),
    )


@finding(
    "memory",
    "Workers run out of memory",
    part="in the result",
    shows="`paused`; `failed`, where workers were killed",
    first="the chunk size of the finding",
    outranks=True,
)
def memory(evidence: Evidence) -> Finding | None:
    """Limited by memory.

    Workers were killed, paused, or moved results to disk: the class `paused` is large, or attempts were lost.

    **How to make sure.** `killed_by` tells whether Dask's nanny said so, or whether it is concluded from the last
    sample. `bytes_per_event` is what chunks need; `results` is what workers hold of outputs.

    ```python
    print(measurement.worker_memory[["worker", "memory_peak", "memory_limit", "paused_seconds", "killed_by"]])
    print(measurement.dataset_memory)
    ```

    **What to do.**

    - Use the chunk size of the finding: `Runner(..., chunksize=55_000)`. It keeps all threads of a worker below 60 %
      of its limit, where Dask begins to move results to disk.
    - Or give workers the memory that it names: `memory_limit="3.2GB"`, and as much in the request to the batch
      system.
    - Fewer threads in each process share its memory among fewer chunks.
    - If `results` is most of the peak, chunks are not the cause: return a smaller output.

    **When it is not a problem.** A worker near its limit that was neither killed nor paused has used the memory it
    was given, and is not reported.
    """
    found, heaviest = evidence.memory, None if evidence.memory is None else evidence.memory.heaviest
    if found is None or not found.lacking:
        return None
    culprits = []
    for row in found.lacking:
        seconds = row["lost_seconds"] + row["threads"] * row["paused_seconds"] + (row["spill_seconds"] or 0.0)
        culprits.append(Culprit("worker", row["worker"], seconds, _filled(row, "memory_peak")))
    culprits += [] if heaviest is None else [Culprit("dataset", heaviest["dataset"], 0.0)]
    lost = sum(row["lost_seconds"] + (row["spill_seconds"] or 0.0) for row in found.workers)
    rows = {phases.PAUSED: evidence.ledger.get(phases.PAUSED, 0.0), "lost or spilling": float(lost)}
    return Finding(
        what=f"{_who(found)} {how_much(found)}",
        advice=advice(found) if evidence.chunks else "Give workers more memory, or have tasks hold less data.",
        culprits=tuple(culprits),
        remedy=f"chunksize={evidence.fitting}" if evidence.chunks and evidence.fitting is not None else None,
        rows={name: seconds for name, seconds in rows.items() if seconds},
    )


def _filled(row: Row, name: str) -> float | None:
    return row[name] / row["memory_limit"] if row[name] is not None and row["memory_limit"] else None


def _who(found: MemoryEvidence) -> str:
    """What happened, and on which workers."""
    number_of, worst, name = len(found.lacking), found.lacking[0], "memory_peak"
    did = f"{were(number_of)} paused for lack of memory" if found.paused else "moved results to disk for lack of memory"
    if found.killed:
        did, name = f"{were(number_of)} killed at the memory limit by {worst['killed_by']}", "killed_memory"
    share = _filled(worst, name)
    of_limit = "" if share is None else f", {FRACTION.text(share)} of its {BYTE.text(worst['memory_limit'])}"
    peak = "" if worst[name] is None else f", peak {BYTE.text(worst[name])}{of_limit}"
    return f"{number(number_of)} of {counted(len(found.workers), 'worker')} {did} ({worst['worker']}{peak})."


def how_much(found: MemoryEvidence) -> str:
    """Lost attempts, pauses, spilling, and memory per event."""
    lost, seconds = (sum(row[name] for row in found.killed) for name in ("lost_attempts", "lost_seconds"))
    parts = [f"{counted(lost, 'attempt')} {were(lost)} lost ({SECOND.text(seconds)} of thread time)"] if lost else []
    if found.paused:
        parts.append(f"workers were paused for {SECOND.text(sum(row['paused_seconds'] for row in found.paused))}")
    if found.spilled:
        spent = SECOND.text(sum(row["spill_seconds"] or 0.0 for row in found.spilled))
        parts.append(f"a worker spilled up to {BYTE.text(found.spilled[0]['spilled'])}, which took {spent}")
    heaviest = found.heaviest
    if heaviest is not None and not found.results_fill_it:
        least, fixed = heaviest.get("least_bytes_per_event"), heaviest["fixed_bytes"]
        about = "at least " if heaviest["at_least"] else f"{BYTE.text(least)} to " if least else "at most "
        about, more = (about, "") if fixed is None else ("", f", a chunk {BYTE.text(fixed)} more")
        each = f"{about}{BYTE.text(heaviest['bytes_per_event'])}{more}"
        parts.append(f"an event of {heaviest['dataset']} takes {each}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def advice(found: MemoryEvidence) -> str:
    """What to change, with a value if known."""
    fit = found.fit
    if found.results_fill_it:
        most = max(row["results"] or 0 for row in found.workers)
        return f"Make the output smaller: results held by a worker take {BYTE.text(most)}."
    if fit is None:
        smaller = "G" if found.fit_absent == WITHOUT_EVENTS else "Make chunks smaller, or g"
        return f"{smaller}ive workers more memory; which size fits is unknown: {found.fit_absent}."
    if found.chunk_events is None or fit.events >= found.chunk_events:
        return f"Give workers more memory, or let them hold less: {number(fit.events)} events a chunk would fit."
    least, most = ("at least ", "at most ") if fit.at_most else ("", "")
    more, now = BYTE.text(fit.limit_for(found.chunk_events)), number(round(found.chunk_events))
    return f"Give each worker {least}{more}, or use {most}this chunk size (now about {now}; {fit.arithmetic})."


WALLTIME: Final = "the walltime of their jobs"
LIFETIME: Final = "their --lifetime"


class Ended(NamedTuple):
    """Workers that one kind of limit ended.

    Thread time is missing from each departure to the arrival of a replacement, otherwise to the end of the run.
    """

    limit: str
    workers: int
    after: float
    """Median time from the start of the job, otherwise from arrival, to departure."""
    missing: float


def ended_by_limits(run: Run) -> list[Ended]:
    """Workers that left at a limit before the end of a run, by limit."""
    every = [] if run.lifetimes is None else run.lifetimes.sort_by("stop").to_pylist()
    lives = [life for life in every if None not in (life["start"], life["stop"], life["threads"])]
    arrivals = sorted(life["start"] for life in lives)
    found: dict[str, list[tuple[float, float]]] = {}
    for life in lives:
        stop, begun, ends, most = life["stop"], life["job_start"], life["lifetime_end"], life["job_limit"]
        closed = stop if life["closing"] is None else life["closing"]
        # a job starts before its first process, and a worker finishes its task, or is killed after a warning
        limit = None
        if ends is not None and -5 <= closed - ends <= 60:
            limit = LIFETIME
        elif None not in (begun, most) and -5 <= stop - begun - most <= 60:
            limit = WALLTIME
        if limit is not None and stop < run.stop:
            back = next((moment for moment in arrivals if moment >= stop), run.stop)
            if back in arrivals:
                arrivals.remove(back)
            age = stop - (life["start"] if begun is None else begun)
            found.setdefault(limit, []).append((age, life["threads"] * (back - stop)))
    return [
        Ended(limit, len(each), median(age for age, _ in each), sum(missing for _, missing in each))
        for limit, each in found.items()
    ]


@finding(
    "time limit",
    "A time limit ends workers",
    part="in the result",
    shows="nowhere: threads are missing",
    first="a longer walltime, or a `--lifetime`",
)
def time_limit(evidence: Evidence) -> Iterator[Finding]:
    """Limited by a time limit.

    Workers end before the run does: their batch job reaches its walltime, or they reach the `--lifetime` they were
    started with.

    **How to make sure.** `job_limit` is what the batch system allowed, `lifetime_end` when Dask's `--lifetime` ends a
    worker. A worker that closed by itself has `closing`; one that was killed has none, and its chunks are repeated.

    ```python
    print(measurement.lifetimes[["worker", "job", "job_start", "job_limit", "lifetime_end", "closing", "stop"]])
    print(measurement.failed)
    ```

    **What to do.**

    - Request a walltime longer than the run: `walltime="02:00:00"` of dask-jobqueue.
    - Where that is not allowed, have workers leave before they are killed: `--lifetime` a tenth shorter than the
      walltime, with `--lifetime-stagger` to end them one by one. `cluster.adapt(minimum=n)` then asks
      for replacements.
    - Shorter chunks lose less with a job that is killed.

    **When it is not a problem.** Workers that leave when the work is done, or that an adaptive cluster retires, are
    not reported, whatever their age.
    """
    for ended in ended_by_limits(evidence.run):
        remedy, advice = None, "Request a longer walltime, and a --lifetime a little shorter."
        # so that workers finish their task before it
        minutes = int(0.9 * ended.after / 60)
        if ended.limit == WALLTIME and minutes:
            advice = "Request a longer walltime, or let workers finish their task and leave before it."
            stagger = max(minutes // 10, 1)
            remedy = f'worker_extra_args=["--lifetime", "{minutes}m", "--lifetime-stagger", "{stagger}m"]'
        workers, missing = counted(len(evidence.lives), "worker"), SECOND.text(ended.missing)
        yield Finding(
            what=f"{number(ended.workers)} of {workers} end after {SECOND.text(ended.after)}: {ended.limit}. Until "
            f"others replace them, {missing} of thread time are missing.",
            advice=advice,
            remedy=remedy,
            rows={"ended by a time limit": ended.missing},
        )
