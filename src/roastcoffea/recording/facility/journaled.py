"""Runs of a scheduler's journals: what it recorded of a run, as a measurement that says what it lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from roastcoffea.backends.recorder import FROM_CHUNKS
from roastcoffea.errors import error_text
from roastcoffea.log.journal import LOG
from roastcoffea.log.journals import Journal
from roastcoffea.log.reader import UNREADABLE, ClusterLog
from roastcoffea.metrics.failures import checked
from roastcoffea.recording.facility.metering import CALL
from roastcoffea.recording.facility.recorder import CLUSTER, RUN, TICK
from roastcoffea.records.run import FINISHED, Environment, Run, RunnerCall

BACKEND: Final = "facility"
UNKNOWN: Final = "unknown"
NO_CHUNKS: Final = (
    "its chunks were not metered: start workers with dask worker --preload roastcoffea.facility, or use a collector"
)
NO_CLIENT: Final = "only the client knows it, and it did not measure this run"
NO_SPAN: Final = "runs recorded by the scheduler have no span of their own"
LOST: Final = "the scheduler ended, or was killed, before the run did: what came later is missing"


@dataclass(eq=False)
class Recorded:
    """What a journal has of a run, or of the whole scheduler."""

    log: ClusterLog = field(default_factory=ClusterLog)
    run: dict[str, Any] = field(default_factory=dict)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    last: float = 0.0
    problems: list[str] = field(default_factory=list)


def is_facility(journal: Journal) -> bool:
    """Whether a scheduler wrote a journal."""
    return journal.header.get("facility") is True


def is_cluster(journal: Journal) -> bool:
    """Whether a journal has the totals of a scheduler."""
    return journal.header.get("cluster") is True


def recorded_in(journal: Journal) -> Recorded:
    """All that can be read in a journal."""
    found = Recorded()
    for entry in journal.entries():
        found.last = entry.time
        if entry.kind == LOG:
            found.log.feed(entry.data)
        elif entry.kind in {RUN, CLUSTER}:
            try:
                known = json.loads(entry.data)
            except UNREADABLE as error:
                found.problems.append(f"an entry of the journal could not be read: {error_text(error)}")
                continue
            if entry.kind == RUN and isinstance(known, dict):
                found.run = known
            elif isinstance(known, dict):
                found.clusters.append(known)
    found.problems += journal.problems
    return found


def run_of(journal: Journal) -> Run:
    """The run that a journal has, on the scheduler's clock, with what it lacks."""
    found, start = recorded_in(journal), float(journal.header["start"])
    known, log = found.run, found.log
    stop = max(float(known.get("stop") or known.get("last") or found.last), start)
    calls = log.received.calls()
    chunks = log.received.chunks(calls)
    absent = {"span_metrics": NO_SPAN, "asked": NO_CLIENT, "client_steps": NO_CLIENT}
    if not len(chunks):
        absent |= dict.fromkeys(("chunks", *FROM_CHUNKS), NO_CHUNKS)
    tables: dict[str, Any] = {
        "chunks": chunks if len(chunks) else None,
        **{name: getattr(log.received, name)(chunks) if len(chunks) else None for name in FROM_CHUNKS},
        "preprocessing": log.received.preprocessing(),
        "tasks": log.attempts.table(0.0),
        "lifetimes": log.workers.lifetimes(0.0, start, stop),
        "pauses": log.workers.pauses(0.0, start, stop),
        "samples": log.workers.samples(0.0),
        "sampling": log.sampling.sampling(0.0),
        "worker_states": log.sampling.states(0.0),
    }
    run = Run(
        id=str(journal.header.get("id")),
        name=None,
        start=start,
        stop=stop,
        outcome=FINISHED,
        error=None,
        backend=BACKEND,
        environment=Environment(versions={}, client_host=None),
        sampling_interval=TICK,
        calls=(_call(known, next(iter(calls)) if len(calls) == 1 else CALL, start, stop),),
        **tables,
        attempts=known.get("attempts"),
        scheduler_clock_offset=0.0,
        dropped=dict(known.get("dropped") or {}),
        absent=absent,
        problems=(*found.problems, *log.problems, *([] if known.get("ended") or journal.is_written else [LOST])),
    )
    return checked(run)


def _call(known: dict[str, Any], identity: str, start: float, stop: float) -> RunnerCall:
    """What stands for the Runner call, of which the scheduler knows chunks and files."""
    return RunnerCall(
        id=identity,
        processor=str(known.get("processor") or known.get("name") or UNKNOWN),
        executor=UNKNOWN,
        start=start,
        stop=stop,
        outcome=FINISHED,
        chunks=int(known.get("asked") or 0) or None,
        files=int(known.get("files") or 0) or None,
    )
