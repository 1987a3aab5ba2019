"""What the live page says in words and tables, with all text escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from roastcoffea.recording.facility.observer import BIN, Observer
from roastcoffea.recording.facility.runs import ObservedRun
from roastcoffea.redaction import redacted
from roastcoffea.report.live import IDLE, Rates, clock
from roastcoffea.sheets.markup import rendered
from roastcoffea.units import BYTE, GIGABIT_PER_SECOND, KILOHERTZ, counted, duration, number

HEADS: Final = ("run", "client", "state", "chunks", "left", "events", "data", "failed attempts", "bottleneck")
MOST_SHOWN: Final = 20
"""Most runs on the page, the last ones first."""

LONGEST_CLIENT: Final = 40
IN_A_MINUTE: Final = round(60 / BIN)
LEAST_SHARE: Final = 0.005
"""Least share of thread time of a class on the page."""

DONE: Final = Markup('<meter min="0" max="{}" value="{}"></meter>{} of {}')


def page_of(observer: Observer, now: float) -> Markup:
    """The page's text: workers, and a row for each run."""
    runs = sorted(list(observer.runs.all.values())[::-1][:MOST_SHOWN], key=lambda run: run.ended)
    rows = [("end" if run.ended else "go", cells(run, now)) for run in runs]
    return rendered("live.html", title=workers_of(observer), heads=HEADS, rows=rows)


def workers_of(observer: Observer) -> str:
    """Workers and threads now, and what was read and failed so far."""
    total, busy = observer.threads
    counters = observer.counters
    parts = [
        counted(observer.workers, "worker"),
        f"{number(busy)} of {counted(total, 'thread')} with a task" if total else "no threads",
        f"{observer.paused} paused for memory" if observer.paused else "",
        f"{number(counters.events)} events" if counters.events else "",
        f"{BYTE.text(sum(counters.bytes.values()))} requested" if counters.bytes else "",
        counted(sum(counters.attempts.values()), "failed attempt") if counters.attempts else "",
    ]
    return ", ".join(filter(None, parts))


def cells(run: ObservedRun, now: float) -> list[str]:
    """Cells of a run, in the order of `HEADS`."""
    tally, rates, over = run.tally, run.rates, run.ended
    events, size = rates.in_a_second(whole=over)
    done = min(tally.chunks, run.asked)
    state = f"{'ended after' if over else 'running'} {duration(round((run.stop or now) - run.start))}"
    files = f"{number(min(tally.files, run.files))} of {counted(run.files, 'file')} opened" if run.files else "none yet"
    return [
        run.name,
        short(run.client),
        state,
        DONE.format(max(run.asked, 1), done, number(done), number(run.asked)) if run.asked else files,
        "" if over else left(rates),
        KILOHERTZ.text(events / 1000) if tally.chunks else "",
        GIGABIT_PER_SECOND.text(8e-9 * size) if tally.chunks and size is not None else "",
        number(tally.failed) if tally.failed else "",
        limit(run),
    ]


def short(client: str) -> str:
    """Identity of a client without the end of its UUID.

    Examples
    --------
    >>> short("Client-ttbar-5ae17017-e80c-11f1-93cd-02fc00000001")
    'Client-ttbar-5ae17017'
    """
    return re.sub(r"(-[0-9a-f]{8})(-[0-9a-f]{4,12})+$", r"\1", redacted(client))[:LONGEST_CLIENT]


def classes_of(threads: Mapping[str, npt.NDArray[np.float64]]) -> Markup:
    """The classes of thread time in the last minute, largest first, without negligible ones."""
    means = {name: float(amounts[-IN_A_MINUTE:].mean()) for name, amounts in threads.items()}
    total = sum(means.values())
    shown = sorted((item for item in means.items() if item[1] >= LEAST_SHARE * total > 0), key=lambda item: -item[1])
    rows = [
        ("go", (name, f"{mean:.2g}" if mean < 100 else number(mean), f"{100 * mean / total:.0f} %"))
        for name, mean in shown
    ]
    return rendered("live.html", title="", heads=("last minute", "threads", "share"), rows=rows) if rows else Markup("")


def left(rates: Rates) -> str:
    """Time that is left, and between which times it is in 90 % of runs; empty where that is not known."""
    seconds, between = rates.left, rates.left_between
    if seconds is None or between is None:
        return ""
    low, high = between
    return f"{clock(seconds)} ({clock(low)} to {clock(high)})"


def limit(run: ObservedRun) -> str:
    """What limits a run now, or limited it, in words."""
    shares = run.rates.busy(whole=run.ended)
    most, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if most == IDLE and share:
        return f"threads idle {100 * share:.0f} %"
    if run.tally.chunks and not run.metered:
        return "not known: its chunks are not metered"
    return f"limited by {most}: {100 * share:.0f} % of thread time" if share else ""
