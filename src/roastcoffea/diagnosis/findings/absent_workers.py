"""Findings about requested workers that never arrived, and about connected workers that finish nothing."""

from __future__ import annotations

from statistics import median
from typing import Final

import numpy as np

from roastcoffea.diagnosis.evidence import NAMED, Evidence
from roastcoffea.diagnosis.finding import LEAST, Culprit, Finding, finding
from roastcoffea.diagnosis.findings.lost_work import LOST_WORK
from roastcoffea.diagnosis.savings import Saving, Taken
from roastcoffea.metrics.memory import of_workers
from roastcoffea.records import workers as records
from roastcoffea.records.arrow import rows_in
from roastcoffea.units import SECOND, counted, moment, number, were

LOGS: Final = "Read the jobs' logs: each job has to start a worker that reaches the scheduler."

ADVICE: Final = {
    records.HELD: "Fix the reason, then release the jobs (`scontrol release`, `condor_release`).",
    records.ENDED: LOGS,
    records.STARTED: LOGS,
    records.PENDING: "Request smaller jobs (memory, cores, walltime), or fewer.",
    records.SUBMITTED: "Ask the batch system about these jobs.",
    records.REQUESTED: "Read the cluster's log: nothing else is known about these workers.",
    records.RELEASED: "If adaptive scaling gave them up, raise its `minimum`.",
}
"""Advice by the last state of workers that never arrived, the most useful first."""


@finding(
    "missing workers",
    "Requested workers did not arrive",
    part="in the result",
    shows="nowhere: threads are missing",
    page=LOST_WORK,
)
def missing_workers(evidence: Evidence) -> Finding | None:
    """Limited by missing workers.

    Requested workers never connected.

    **Check.** `reason` comes from the batch system.

    ```python
    print(measurement.arrivals.groupby(["state", "reason"], dropna=False)["job"].agg(["size", "first"]))
    measurement.plot("workforce")
    ```

    **Fix.** *held:* fix the reason, then release the jobs. *pending:* smaller jobs start sooner. *started, ended:* read
    the jobs' logs.

    **Fine if** the batch system is full.
    """
    run, groups, missing = evidence.run, dict[tuple[str, str | None, str], dict[str, None]](), 0.0
    rows = rows_in(evidence.arrivals)
    absent = [row for row in rows if row["arrived"] is None]
    threads = median([life["threads"] for life in evidence.lives] or [1])
    for row in sorted(absent, key=lambda row: [*ADVICE].index(row["state"])):
        group = groups.setdefault((row["state"], row["reason"], "job" if row["job"] else "worker"), {})
        group[row["job"] or row["name"]] = None
        missing += threads * ((row["released"] or run.stop) - row["requested"])
    share = missing / (evidence.total + missing or 1.0)
    # workers of held or ended jobs do not arrive later
    if not groups or (share < LEAST and not {records.HELD, records.ENDED} & {state for state, *_ in groups}):
        return None
    here = [row["arrived"] - run.start for row in rows if row["arrived"] is not None]
    first = f", the first {SECOND.text(min(here))} into the run" if min(here, default=0.0) >= 1 else ""
    others = ", ".join(
        f"{counted(len(names), kind)} {state}{f' ({reason})' if reason else ''}"
        for (state, reason, kind), names in groups.items()
    )
    (state, _, kind), names = next(iter(groups.items()))
    silent = run.absent.get("batch_queue")
    saved = share * evidence.elapsed
    return Finding(
        what=f"{counted(len(rows), 'worker')} {were(len(rows))} requested, {number(len(here))} arrived{first}; "
        f"others: {others}{f' ({silent})' if silent else ''}.",
        advice=ADVICE[state],
        culprits=tuple(Culprit(kind, name) for name in names),
        rows={"workers that did not arrive": missing},
        taken=Taken(known=Saving(saved, saved, saved, at_most=True)),
        always=True,
    )


BEATS: Final = 20
"""Heartbeats, or samples, that a stuck worker misses."""

EXPECTED: Final = 8.0
"""Tasks that a stuck worker should have finished: by chance, one worker in 3,000 finishes none."""

ROUNDS: Final = 3.0
"""Long tasks that a thread of a stuck worker had time for."""


def stuck_workers(evidence: Evidence) -> list[tuple[Culprit, str, bool]]:
    """Workers that finished nothing while others did, or sent no heartbeats, each with a sentence; True if silent."""
    run, lives, found = evidence.run, evidence.lives, list[tuple[Culprit, str, bool]]()
    if run.tasks is None or not lives:
        return found
    tasks = run.tasks.select(["worker", "kind", "outcome", "assigned", "start", "stop"]).to_pandas()
    done = tasks[tasks["outcome"] == records.OK].dropna()
    last, own = done.groupby("worker", observed=True)["stop"].max(), done[done["kind"] == records.PROCESSOR]
    own = own if len(own) else done
    stops, assigned = np.sort(own["stop"]), np.sort(own["assigned"])
    long = (own["stop"] - own["start"]).quantile(0.95)
    left = tasks["worker"][tasks["outcome"].isin([records.UNFINISHED, records.LOST])].value_counts()
    paused = of_workers(run.pauses, "start")
    threads, begins, ends = np.array([(life["threads"], life["start"], life["stop"]) for life in lives], float).T
    heard, offset = of_workers(run.samples, "last_seen"), run.scheduler_clock_offset or 0.0
    # samples may end before the run does
    newest = max(heard.values(), default=np.nan) - offset
    # the usual interval of heartbeats in Dask
    late = BEATS * max(run.sampling_interval or 0.0, 0.5 if len(lives) < 10 else 1 + len(lives) / 200)
    for life, here in zip(lives, threads, strict=True):
        name, end = life["worker"], min(life["closing"] or life["stop"], run.stop)
        since = max(life["start"], last.get(name, 0.0))
        before, until = np.searchsorted(stops, (since, end), "right")
        present = np.clip(np.minimum(ends, end) - np.maximum(begins, since), 0, None) @ threads / max(end - since, 1e-6)
        share = here / max(present - here, here)
        others, lost, parts = share * (until - before), left.get(name, 0), []
        # later assignments: earlier ones may leave no task for a worker that is free
        new = others if lost else share * (until - np.searchsorted(assigned, since + long, "right"))
        contact = max(heard.get(name, np.nan) - offset, life["start"])
        silent = float(np.fmin(end, newest)) - contact
        if silent >= late:
            parts.append(f"sent no heartbeat for {SECOND.text(silent)}")
        if min(others, new) >= EXPECTED and end - since >= ROUNDS * long and name not in paused:
            parts.append(f"finished no task after {moment(since)}, the others about {number(round(others))} each")
        if parts:
            culprit = Culprit("worker", name, here * (silent if silent >= late else end - since))
            kept = f"; {counted(lost, 'task')} {were(lost)} left on it" if lost else ""
            found.append((culprit, f"Worker {name} {' and '.join(parts)}{kept}.", silent >= late))
    # if the scheduler heard from no worker, it was stuck itself
    return found if len(found) < len(lives) else []


@finding(
    "stuck worker",
    "A worker is connected and finishes nothing",
    part="who is slow",
    shows="`idle`, `unaccounted`",
    page=LOST_WORK,
)
def stuck_worker(evidence: Evidence) -> Finding | None:
    """A stuck worker.

    A connected worker finishes no tasks while other workers do, or it stops sending heartbeats.

    **Check.** A process that hangs has an old `last_seen`.

    ```python
    print(measurement.workers.groupby("worker")["last_seen"].max().sort_values().head())
    ```

    **Fix.** Look at its log, and for a dead mount, a full disk or a stopped process. Dask removes a worker after five
    minutes without heartbeats (`distributed.scheduler.worker-ttl`).

    **Fine if** tasks are restricted to other workers.
    """
    found = sorted(stuck_workers(evidence), key=lambda each: -(each[0].seconds or 0.0))
    if not found:
        return None
    culprits, sentences, silent = zip(*found, strict=True)
    more = [f"{number(len(found) - NAMED)} more are stuck."] * (len(found) > NAMED)
    advice, remedy = "Restart it.", f"client.restart_workers({[one.name for one in culprits[:NAMED]]})"
    if any(silent):
        advice = "Look at its log and host, and have Dask remove such workers sooner."
        remedy = 'distributed.scheduler.worker-ttl: "60s"'
    return Finding(
        what=" ".join([*sentences[:NAMED], *more]),
        advice=advice,
        culprits=culprits,
        remedy=remedy,
        rows={str(one): one.seconds for one in culprits},
        always=True,
    )
