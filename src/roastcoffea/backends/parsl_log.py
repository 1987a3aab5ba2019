"""Managers of Parsl's HighThroughputExecutor, from the log of its interchange on the client's host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

WHEN: Final = re.compile(r"(?:(?P<unix>\d+\.\d+) )?(?P<local>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) ")
"""Time of a line; older releases have local time alone."""

REGISTERED: Final = re.compile(
    r"Registration info for manager b'(?P<manager>[^']+)'"
    r".*'worker_count': (?P<workers>\d+).*'block_id': '(?P<block>[^']*)'.*'hostname': '(?P<host>[^']*)'"
)
LEFT: Final = re.compile(r"Received HOLD_\w+ for b'([^']+)'|Manager b'([^']+)' is drained")
"""It is drained, or put on hold because its block is about to be cancelled."""
LOST: Final = re.compile(r"Too many heartbeats missed for manager b'([^']+)'")
ENDED: Final = re.compile(r" Exiting$")

Row = dict[str, Any]


def managers_of(log: Path, patience: float) -> list[Row]:
    """Managers in a log, as in `managers_in`."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return managers_in(lines, patience)


def managers_in(lines: Iterable[str], patience: float) -> list[Row]:
    """Managers with `manager`, `block`, `host`, `workers` and, in Unix seconds, `start` and `stop`.

    A manager starts when it is registered. It stops when it is drained, when its block is cancelled, with its last
    heartbeat, or with the interchange; `stop` is None if it had not stopped at the end of the log.

    Parameters
    ----------
    lines : iterable of str
        The log.
    patience : float
        Seconds without a heartbeat after which a manager counts as lost.
    """
    managers: dict[str, Row] = {}
    for line in lines:
        when = WHEN.match(line)
        if when is not None:
            _take(managers, _moment(when), line.rstrip("\n"), patience)
    return list(managers.values())


def _take(managers: dict[str, Row], moment: float, line: str, patience: float) -> None:
    if found := REGISTERED.search(line):
        row = found.groupdict() | {"workers": int(found["workers"]), "start": moment, "stop": None}
        managers[found["manager"]] = row
    elif found := LEFT.search(line):
        _stop(managers.get(found[1] or found[2]), moment)
    elif found := LOST.search(line):
        _stop(managers.get(found[1]), moment - patience)
    elif ENDED.search(line):
        for manager in managers.values():
            _stop(manager, moment)


def _stop(manager: Row | None, moment: float) -> None:
    if manager is not None and manager["stop"] is None:
        manager["stop"] = max(moment, manager["start"])


def _moment(when: re.Match[str]) -> float:
    return float(when["unix"] or datetime.fromisoformat(when["local"]).timestamp())
