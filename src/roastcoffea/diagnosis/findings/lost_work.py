"""Findings about lost work: missing data, failed attempts, and workers that run out of memory or time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from roastcoffea.diagnosis.completeness import FEWEST, WITHOUT_EVENTS, MemoryEvidence, Row, caught_errors
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, Page, finding
from roastcoffea.diagnosis.savings import Taken, without_parts
from roastcoffea.metrics import phases
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, number, rough, were

LOST_WORK: Final = Page("lost-work", "Lost data, attempts and workers")


@finding(
    "missing data",
    "The result is incomplete",
    part="in the result",
    shows="nowhere: events are missing",
    page=LOST_WORK,
)
def missing_data(evidence: Evidence) -> Iterator[Finding]:
    """Missing data.

    Events are missing from the result.

    **Check.** Compare the event count with your experiment's catalogue.

    ```python
    print(measurement.missing[["dataset", "file", "entry_start", "entry_stop"]])
    print(measurement.failed_files)
    print(measurement.metrics["total_events"])
    ```

    **Fix.** Remove the cause (use another replica, renew the proxy). Then run the finding's line, which processes only
    the missing data, and add its output to the result:

    ```python
    from coffea.processor import accumulate

    missing = measurement.missing_fileset(fileset)
    if missing:
        rest = runner(missing, treename="Events", processor_instance=processor)
        output = accumulate([rest, output])
    ```

    **Fine if** you chose `skipbadfiles=True` and scale the luminosity to the processed events. Chunks beyond
    `maxchunks` are not reported.
    """
    found, caught = evidence.incompleteness, caught_errors(evidence.run)
    if found is not None and not found.complete:
        names = [Culprit("file", name, 0.0) for name in found.names]
        what, advice = f"{found.what} {found.how_much}", found.advice
        yield Finding(what=what, advice=advice, culprits=tuple(names), remedy=found.line, rows={}, incomplete=True)
    if caught is not None:
        names = [Culprit("file", name, 0.0) for name in caught.files]
        advice = "Fix the errors that `measurement.failed` lists, then rerun these tasks."
        yield Finding(what=caught.what, advice=advice, culprits=tuple(names), rows={}, incomplete=True)


@finding(
    "failures",
    "Failed attempts waste time",
    part="in the result",
    shows="`failed`",
    page=LOST_WORK,
)
def failures(evidence: Evidence) -> Finding | None:
    """Limited by failures.

    Attempts fail and are retried.

    **Check.** Culprits are named only if they fail more often than chance would explain.

    ```python
    failed = measurement.failed
    print(failed.groupby(["reason", "error"])["seconds"].agg(["count", "sum"]))
    print(failed.groupby("file").size().sort_values().tail())
    ```

    **Fix.** Check that the file opens (`uproot.open(file)["Events"]`), or read another replica. Check the worker's
    logs, or [retire it](slow-worker.md). If storage drops connections, use fewer threads, or retry after a pause. Batch
    systems evict workers that exceed their time or [memory](memory.md) limit.

    **Fine if** workers are opportunistic: `DaskExecutor(retries=3)` reruns lost work.
    """
    found = evidence.failures
    if found is None or not found.attempts:
        return None
    where, place, culprits = "", found.cluster or found.common, tuple[Culprit, ...]()
    again = f"{number(found.repeated)} of {counted(found.chunks, 'chunk')} succeeded on another attempt"
    parts = [f"{SECOND.text(seconds)} {reason}" for reason, seconds in found.by_reason.items() if seconds]
    reasons = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    error = f" Most common error{found.error.how_often}: {found.error.text}." if found.error is not None else ""
    they = "It" if found.attempts == 1 else "They"
    advice = "Fix the error, which is not specific to a worker, host, file or dataset"
    if found.chunks < FEWEST:
        advice = "Fix the error"
    if place is not None:
        share, named = place.failed / place.all_failed, f"{place.kind} {place.name}"
        on = "on" if place.kind in {"worker", "host"} else "with"
        where = f", {'all' if share == 1 else f'{rough(share, FRACTION)} of them'} {on} {named}"
        advice = f"Fix the error: with so few failures, {named} may be a coincidence"
        if found.cluster is not None:
            other = "exclude it" if on == "on" else "read another copy of it"
            advice = f"Check {named}, or {other}"
            rate = place.failed / place.tried * place.all_tried / place.all_failed
            culprits = (Culprit(place.kind, place.name, found.seconds * share, rate),)
    return Finding(
        what=f"{counted(found.attempts, 'attempt')} failed{where}; {again}. {they} took {SECOND.text(found.seconds)} "
        f"of thread time{reasons}.{error}",
        advice=f"{advice}; `measurement.failed` lists all attempts.",
        culprits=culprits,
        rows={phases.FAILED: found.seconds},
        taken=Taken(without_parts("failed")),
    )


MEMORY: Final = Page("memory", "Limited by worker memory")


@finding(
    "memory",
    "Workers run out of memory",
    part="in the result",
    shows="`paused`, `failed`",
    outranks=True,
    page=MEMORY,
)
def memory(evidence: Evidence) -> Finding | None:
    """Limited by memory.

    Workers were killed or paused, or spilled to disk.

    **Check.** `killed_by` is reported by Dask's nanny or inferred from the last sample. `results` is the size of the
    outputs held by a worker.

    ```python
    print(measurement.worker_memory[["worker", "memory_peak", "memory_limit", "paused_seconds", "killed_by"]])
    print(measurement.dataset_memory)
    ```

    **Fix.** Use the finding's `chunksize`: it keeps each worker below 60 % of its limit, where Dask starts to
    spill. Or give workers the suggested memory (`memory_limit="3.2GB"`, also in the batch request), or
    fewer threads. If `results` makes up most of the peak, return a smaller output.

    **Fine if** a worker only comes close to its limit: that is not reported.
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
    number_of, worst, name = len(found.lacking), found.lacking[0], "memory_peak"
    did = (
        f"{were(number_of)} paused for lack of memory" if found.paused else "spilled results to disk for lack of memory"
    )
    if found.killed:
        did, name = f"{were(number_of)} killed at the memory limit by {worst['killed_by']}", "killed_memory"
    share = _filled(worst, name)
    of_limit = "" if share is None else f", {rough(share, FRACTION)} of its {BYTE.text(worst['memory_limit'])}"
    peak = "" if worst[name] is None else f", peak {BYTE.text(worst[name])}{of_limit}"
    return f"{number(number_of)} of {counted(len(found.workers), 'worker')} {did} ({worst['worker']}{peak})."


def how_much(found: MemoryEvidence) -> str:
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
        about, more = (about, "") if fixed is None else ("", f", plus {BYTE.text(fixed)} per chunk")
        each = f"{about}{BYTE.text(heaviest['bytes_per_event'])}{more}"
        parts.append(f"each event in {heaviest['dataset']} needs {each}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def advice(found: MemoryEvidence) -> str:
    fit = found.fit
    if found.results_fill_it:
        most = max(row["results"] or 0 for row in found.workers)
        return f"Return a smaller output: the results on one worker take {BYTE.text(most)}."
    if fit is None:
        smaller = "G" if found.fit_absent == WITHOUT_EVENTS else "Make chunks smaller, or g"
        return f"{smaller}ive workers more memory; the size that would fit is unknown: {found.fit_absent}."
    if found.chunk_events is None or fit.events >= found.chunk_events:
        return f"Give workers more memory, or have them hold less: {number(fit.events)} events per chunk would fit."
    least, most = ("at least ", "at most ") if fit.at_most else ("", "")
    more, now = BYTE.text(fit.limit_for(found.chunk_events)), number(round(found.chunk_events))
    return f"Give each worker {least}{more}, or use {most}this chunk size (now about {now}; {fit.arithmetic})."


WALLTIME: Final = "their jobs' walltime"
LIFETIME: Final = "their --lifetime"


class Ended(NamedTuple):
    """Workers that reached the same kind of time limit.

    Thread time counts as missing from a worker's departure until a replacement arrives or the run ends.
    """

    limit: str
    workers: int
    after: float
    """Median time from the job's start (or, if that is unknown, the worker's arrival) to the departure."""
    missing: float


def ended_by_limits(run: Run) -> list[Ended]:
    every = [] if run.lifetimes is None else run.lifetimes.sort_by("stop").to_pylist()
    lives = [life for life in every if None not in (life["start"], life["stop"], life["threads"])]
    arrivals = sorted(life["start"] for life in lives)
    found: dict[str, list[tuple[float, float]]] = {}
    for life in lives:
        stop, begun, ends, most = life["stop"], life["job_start"], life["lifetime_end"], life["job_limit"]
        closed = stop if life["closing"] is None else life["closing"]
        # a job starts before its first process, and a worker either finishes its task or is killed after a warning
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
    "A time limit stops workers",
    part="in the result",
    shows="nowhere: threads are missing",
    page=LOST_WORK,
)
def time_limit(evidence: Evidence) -> Iterator[Finding]:
    """Limited by a time limit.

    Workers reach their job's walltime or `--lifetime`.

    **Check.** Killed workers have no `closing` time; their chunks are rerun.

    ```python
    print(measurement.lifetimes[["worker", "job", "job_start", "job_limit", "lifetime_end", "closing", "stop"]])
    ```

    **Fix.** In dask-jobqueue, set `walltime="02:00:00"`. Or have workers leave one by one (with
    `--lifetime-stagger`, and a `--lifetime` 10 % shorter) and replace them with `cluster.adapt(minimum=n)`. Shorter
    chunks lose less work.

    **Fine if** an adaptive cluster retires workers: that is not reported.
    """
    for ended in ended_by_limits(evidence.run):
        remedy, advice = None, "Request a longer walltime, and set --lifetime slightly below it."
        # leaves workers time to finish their task before the limit
        minutes = int(0.9 * ended.after / 60)
        if ended.limit == WALLTIME and minutes:
            advice = "Request a longer walltime, or have workers finish their task and leave before it expires."
            stagger = max(minutes // 10, 1)
            remedy = f'worker_extra_args=["--lifetime", "{minutes}m", "--lifetime-stagger", "{stagger}m"]'
        workers, missing = counted(len(evidence.lives), "worker"), SECOND.text(ended.missing)
        yield Finding(
            what=f"{number(ended.workers)} of {workers} exited after {SECOND.text(ended.after)}, at {ended.limit}. "
            f"This cost {missing} of thread time.",
            advice=advice,
            remedy=remedy,
            rows={"ended by a time limit": ended.missing},
        )
