"""`roastcoffea watch`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client

    from roastcoffea.monitor.history import Snapshot
    from roastcoffea.monitor.looks import Look

    Shown = Look | Snapshot


@click.command
@click.argument("address", metavar="SCHEDULER")
@shell.bounded("--interval", click.FloatRange(0.05), 0.5, "Seconds between updates.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Seconds to watch; by default until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each update as one line of JSON, and nothing else.")
@shell.output("Record every task, and save the records in this folder.", shell.FOLDER)
def command(*, address: str, interval: float, seconds: float | None, as_json: bool, output: Path | None) -> int:
    """Watch all tasks of the cluster of SCHEDULER (tcp://host:8786).

    A terminal shows tasks by prefix and state in its lowest rows; otherwise a line is printed for each change. The
    numbers are Dask's own counts: nothing is installed on the scheduler. With --output, a small plugin records every
    task, and a table is printed at the end.
    """
    from distributed import Client

    from roastcoffea.backends.connection import SCHEDULER_TIMEOUT, check_address

    check_address(address)
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it writes a traceback when a scheduler goes
    try:
        client = Client(address, timeout=SCHEDULER_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = f"no scheduler answers at {address} ({redacted(str(error))}); use tcp://HOST:PORT"
        raise RoastcoffeaError(reason) from None
    with client:
        show = _json_line if as_json else _line
        watch = _look if output is None else partial(_record, output=output, quiet=as_json)
        lost = watch(client, interval, seconds, show)
    return shell.fail(f"the scheduler at {address} is gone", shell.FAILED) if lost else 0


def _look(client: Client, interval: float, seconds: float | None, line: Callable[[Shown], str]) -> bool:
    """Poll Dask's counts; return whether the scheduler was lost."""
    from roastcoffea.monitor.looks import looks
    from roastcoffea.monitor.shown import look_text
    from roastcoffea.report.live import display_for

    display = None if line is _json_line else display_for(sys.stderr)
    if display is None:
        return _follow(looks(client, interval), interval, seconds, line)
    began, last = time.time(), ""

    def shown(look: Any) -> str:
        nonlocal last
        last = look_text(look, time.time() - began)
        display.show(last)
        return ""

    try:
        return _follow(looks(client, interval), interval, seconds, shown)
    finally:
        display.end(last)
        click.echo(last)


def _record(  # noqa: PLR0917
    client: Client, interval: float, seconds: float | None, line: Callable[[Shown], str], output: Path, quiet: bool
) -> bool:
    """Record every task and save them; return whether the scheduler was lost."""
    from roastcoffea.monitor.task_monitor import TaskMonitor

    live = not quiet and sys.stderr.isatty()
    lost = False
    with TaskMonitor(client, live=live) as monitor:
        if monitor.running:
            lost = _follow(monitor.watch(interval), interval, seconds, (lambda _: "") if live else line)
    if quiet:
        for problem in monitor.problems:
            shell.say(problem, err=True)
    else:
        monitor.print()
    if monitor.watched():
        shell.say(monitor.save(output), err=quiet)
    return lost


def _follow(watch: Iterator[Shown], interval: float, seconds: float | None, line: Callable[[Shown], str]) -> bool:
    """Print updates until the time is over or the user interrupts; return whether the scheduler was lost."""
    end = None if seconds is None else time.monotonic() + seconds
    before: Any = None
    try:
        for look in watch:
            counts = look.num_workers, look.states
            text = line(look) if line is not _line or counts != before else ""
            before = counts
            if text:
                click.echo(text)
            if end is not None and time.monotonic() + interval > end:
                time.sleep(max(0.0, end - time.monotonic()))
                return False
    except KeyboardInterrupt:
        return False
    return True


def _line(look: Shown) -> str:
    """A look as a line of text."""
    from roastcoffea.units import counted

    states = ", ".join(f"{count} {state}" for state, count in look.states.items())
    workers, tasks = counted(look.num_workers, "worker"), counted(look.num_tasks, "task")
    return f"{look.timestamp:%H:%M:%S}  {workers}, {tasks}{': ' if states else ''}{states}"


def _json_line(look: Shown) -> str:
    """A look as JSON: time (Unix seconds), workers, and tasks by prefix and state."""
    return json.dumps({"time": look.time, "workers": look.num_workers, "tasks": look.prefixes})
