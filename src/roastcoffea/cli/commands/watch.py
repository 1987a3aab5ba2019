"""`roastcoffea watch`."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError, error_text

if TYPE_CHECKING:
    from roastcoffea.monitor.history import Snapshot
    from roastcoffea.monitor.task_monitor import TaskMonitor

CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which a scheduler has to accept the connection."""


@click.command
@click.argument("address", metavar="SCHEDULER")
@shell.bounded("--interval", click.FloatRange(0.05), 0.5, "Seconds between two looks.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so long; else Ctrl-C stops it.")
@click.option("--json", "as_json", is_flag=True, help="Print each look as one line of JSON, and nothing else.")
@click.option("-o", "--output", "--out", type=shell.FOLDER, help="Folder to save what was recorded in, at the end.")
def command(*, address: str, interval: float, seconds: float | None, as_json: bool, output: Path | None) -> int:
    """Watch the tasks of the cluster behind SCHEDULER (tcp://host:8786), whoever submits them.

    A terminal shows tasks by prefix and state in its lowest rows; elsewhere there is a line for each change. A table of
    all tasks comes at the end. Nothing but a small plugin on the scheduler is needed, which leaves with this command.
    """
    from distributed import Client

    from roastcoffea.monitor.task_monitor import TaskMonitor

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it writes a traceback when a scheduler goes
    try:
        client = Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise RoastcoffeaError(
            f"no scheduler answers at {address} ({error_text(error)}); give tcp://HOST:PORT"
        ) from None
    with client:
        live = not as_json and sys.stderr.isatty()
        monitor = TaskMonitor(client, live=live)
        lost = False
        with monitor:
            if monitor.running:
                lost = _look(monitor, interval, seconds, None if live else _json_line if as_json else _line)
        if not as_json:
            monitor.print()
        if output is not None and monitor.watched():
            shell.say(monitor.save(output), err=as_json)
        if monitor.problems and as_json:
            shell.say("\n".join(monitor.problems), err=True)
    return shell.fail(f"the scheduler at {address} is gone", shell.FAILED) if lost else 0


def _look(monitor: TaskMonitor, interval: float, seconds: float | None, line: Any) -> bool:
    """Look until the time is over or somebody interrupts; give whether the scheduler was lost."""
    end = None if seconds is None else time.monotonic() + seconds
    before = None
    try:
        for snapshot in monitor.watch(interval):
            if line is _json_line or (line is not None and _counts(snapshot) != before):
                click.echo(line(snapshot))
            before = _counts(snapshot)
            if end is not None and time.monotonic() + interval > end:
                time.sleep(max(0.0, end - time.monotonic()))
                return False
    except KeyboardInterrupt:
        return False
    return True


def _counts(snapshot: Snapshot) -> Any:
    """What a line tells, but for its time."""
    return snapshot.num_workers, snapshot.states


def _line(snapshot: Snapshot) -> str:
    """A look as a line of text."""
    from roastcoffea.report.phrases import counted

    states = ", ".join(f"{count} {state}" for state, count in snapshot.states.items())
    workers, tasks = counted(snapshot.num_workers, "worker"), counted(snapshot.num_tasks, "task")
    return f"{snapshot.timestamp:%H:%M:%S}  {workers}, {tasks}{': ' if states else ''}{states}"


def _json_line(snapshot: Snapshot) -> str:
    """A look as JSON: time (Unix seconds), workers, and tasks by prefix and state."""
    return json.dumps({"time": snapshot.time, "workers": snapshot.num_workers, "tasks": snapshot.prefixes})
