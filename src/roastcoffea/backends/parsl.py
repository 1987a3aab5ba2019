"""Workers of Parsl's HighThroughputExecutor on all hosts, as listed in the interchange log."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from roastcoffea.backends.base import Busy, ExecutorLog, Row
from roastcoffea.records.workers import OF_JOB

WHEN: Final = re.compile(r"(?:(?P<unix>\d+\.\d+) )?(?P<local>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) ")
"""Timestamp of a log line; older releases of Parsl write only the local time."""

REGISTERED: Final = re.compile(
    r"Registration info for manager b'(?P<manager>[^']+)'"
    r".*'worker_count': (?P<workers>\d+).*'block_id': '(?P<block>[^']*)'.*'hostname': '(?P<host>[^']*)'"
)
LEFT: Final = re.compile(r"Received HOLD_\w+ for b'([^']+)'|Manager b'([^']+)' is drained")
"""Log lines written when a manager is drained, or is put on hold because its block is about to be cancelled."""
LOST: Final = re.compile(r"Too many heartbeats missed for manager b'([^']+)'")

MANAGER: Final = "parsl_manager"
RANK: Final = "parsl_rank"


def managers_in(lines: Iterable[str], patience: float) -> list[Row]:
    """Managers in a log, with their lifetimes and worker counts.

    The keys are `manager`, `block`, `host`, `workers`, `start` and `stop`; times are Unix times. A manager starts when
    it registers. It stops when it is drained, when its block is cancelled, when the interchange stops or, if the
    manager was lost, at its last heartbeat. `stop` is None if the manager was still running at the end of the log.

    Parameters
    ----------
    lines : iterable of str
        Lines of the log.
    patience : float
        Seconds without a heartbeat after which a manager counts as lost.
    """
    managers: dict[str, Row] = {}
    for line in lines:
        when, ended = WHEN.match(line), list[str]()
        if when is None:
            continue
        moment = float(when["unix"] or datetime.fromisoformat(when["local"]).timestamp())
        if found := REGISTERED.search(line):
            known = {"workers": int(found["workers"]), "start": moment, "stop": None}
            managers[found["manager"]] = found.groupdict() | known
        elif found := LEFT.search(line):
            ended = [found[1] or found[2]]
        elif found := LOST.search(line):
            ended, moment = [found[1]], moment - patience
        elif line.rstrip("\n").endswith(" Exiting"):
            ended = list(managers)
        for manager in ended:
            row = managers.get(manager)
            if row is not None and row["stop"] is None:
                row["stop"] = max(moment, row["start"])
    return list(managers.values())


def pools_of(executor: Any) -> list[Any]:
    labels = executor.jobs_executors
    config = executor.config or sys.modules["parsl"].dfk().config
    return [pool for pool in config.executors if labels == "all" or pool.label in labels]


class ParslManagers(ExecutorLog):
    """Parsl managers for a run's Runner calls; each manager runs several workers in one block."""

    label = "Parsl"
    environment = ((MANAGER, "PARSL_WORKER_POOL_ID", "(.+)"), (RANK, "PARSL_WORKER_RANK", "(.+)"))

    def __init__(self, note: Any) -> None:
        super().__init__(note)
        self._pools: list[Any] = []
        self._managers: list[Row] | None = None

    def size(self, executor: Any) -> int | None:
        pools = pools_of(executor)  # only thread pools report their full size
        self._pools += [pool for pool in pools if hasattr(pool, "connected_managers") and pool not in self._pools]
        self._managers = None
        return sum(pool.max_threads for pool in pools) if all(hasattr(pool, "max_threads") for pool in pools) else None

    @property
    def known(self) -> bool:  # type: ignore[override]
        return bool(self._read())

    def has(self, facts: Mapping[str, Any]) -> bool:
        return facts.get(MANAGER) in {manager["manager"] for manager in self._read()}

    def _read(self) -> list[Row]:
        if self._managers is None:
            self._managers = []
            for pool in self._pools:
                log = Path(pool.logdir) / "interchange.log"
                try:
                    with log.open(encoding="utf-8", errors="replace") as lines:
                        found = managers_in(lines, float(pool.heartbeat_threshold))
                except OSError as error:
                    self.note(f"Parsl's managers are unknown, because {log} could not be read: {error.strerror}")
                else:
                    self._managers += found
                    if not found:
                        self.note(f"Parsl's managers are unknown, because {log} lists none")
        return self._managers

    def complete(self, rows: list[Row], facts: Mapping[str, Row], busy: Busy, start: float, stop: float) -> None:
        """Fill in lifetimes from the managers' log.

        A worker that was not seen on this host counts as present for as long as its manager. If the worker was
        replaced, its lifetime ends when its replacement runs its first chunk. Workers that ran no chunks are added.
        """
        places: dict[str, dict[str, list[Row]]] = {}
        for row in rows:
            known = facts.get(row["worker"], {})
            if MANAGER in known:
                places.setdefault(known[MANAGER], {}).setdefault(known[RANK], []).append(row)
        # without the workers' reports, it is unknown which workers ran chunks
        for manager in self._read() if places else ():
            of_manager = places.get(manager["manager"], {})
            one = next((row for each in of_manager.values() for row in each), {})
            job = {name: one.get(name) for name in (*OF_JOB, "job_start")}
            times = {"start": max(manager["start"], start), "stop": min(manager["stop"] or stop, stop)}
            for rank in map(str, range(manager["workers"])):
                name = f"block {manager['block']}, {manager['manager']}, worker {rank}"
                if workers := of_manager.get(rank):
                    _set_times(workers, manager, busy, start, stop)
                    for row in workers:
                        row["name"] = name
                elif times["start"] < times["stop"]:  # this worker ran no chunks
                    known = {"worker": f"{manager['host']}/{manager['manager']}-{rank}", "name": name}
                    rows.append(job | known | {"host": manager["host"], "threads": 1} | times)


def _set_times(workers: list[Row], manager: Row, busy: Busy, start: float, stop: float) -> None:
    """Set the start and stop times of a rank's successive workers, except for workers seen on this host."""
    chunks = {row["worker"]: busy(row["worker"]) for row in workers}
    workers = sorted(workers, key=lambda row: float(chunks[row["worker"]][0][0]))
    first = [float(chunks[row["worker"]][0][0]) for row in workers]
    edges = [manager["start"], *first[1:], stop if manager["stop"] is None else manager["stop"]]
    for row, begun, (begin, end) in zip(workers, first, pairwise(edges), strict=True):
        if row.get("cpu_seconds") is None:
            row["start"] = min(max(begin, start), begun)
            row["stop"] = max(min(end, stop), float(chunks[row["worker"]][1][-1]))
