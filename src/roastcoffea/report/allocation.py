"""What batch jobs were charged, as a table that adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from roastcoffea.metrics import Metrics
from roastcoffea.metrics.allocation import CLASSES
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.phases import TOTAL
from roastcoffea.report.phrases import UNACCOUNTED
from roastcoffea.report.sheets import LABELS, Amount, Cell, Column, Sheet
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, share_text

TITLE: Final = "batch jobs: cores x time charged"

USED: Final = 0.5
"""Share of the requested memory below which the rest is mentioned."""
SPARE: Final = 1.25
"""Factor on the peak that leaves room for other chunks."""


def allocation(metrics: Metrics) -> Sequence[Sheet]:
    """Core time of batch jobs by class, and what is said about them; nothing without a job."""
    try:
        jobs: pa.Table = metrics.evaluator.value("jobs")
    except NotMeasuredError:
        return []
    rows = jobs.to_pylist()
    if not rows:
        return []
    known = [row for row in rows if row["charged"] is not None]
    notes = [_who(rows), *_unknown(rows, known), *memory_note(rows)]
    if not known:
        return [Sheet(title=TITLE, lead=notes)]
    total = math.fsum(row["charged"] for row in known)
    columns = LABELS, Column("core time", SECOND), Column("share", FRACTION, bars=True)
    names = {**CLASSES, "residual": UNACCOUNTED}
    amounts = {label: math.fsum(row[name] for row in known) for name, label in names.items()}
    shown = [
        (label, amount, _share(amount, total)) for label, amount in amounts.items() if amount or label == UNACCOUNTED
    ]
    whole = (TOTAL, total, _share(total, total))
    return [Sheet(title=TITLE, columns=columns, rows=[*shown, whole], notes=notes, form="plain")]


def _share(amount: float, total: float) -> Cell:
    return Amount(amount / total, FRACTION, share_text(amount / total)) if total else ""


def _who(rows: Sequence[dict[str, Any]]) -> str:
    systems = ", ".join(dict.fromkeys(row["batch_system"] for row in rows))
    queues = ", ".join(dict.fromkeys(row["queue"] for row in rows if row["queue"]))
    going = sum(not row["ended"] for row in rows)
    on = f" in {queues}" if queues else ""
    still = f"; {going} went on at the end of the run, until which they count" if going else ""
    return f"{counted(len(rows), 'job')} of {systems}{on}{still}."


def _unknown(rows: Sequence[Any], known: Sequence[Any]) -> Sequence[str]:
    lacking = len(rows) - len(known)
    return [f"Start or cores of {counted(lacking, 'job')} are unknown: they are left out."] if lacking else []


def memory_note(rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """What is said where half of the requested memory is never used; nothing otherwise."""
    known = [row for row in rows if row["job_memory"] and row["memory_peak"] is not None]
    if len(known) < len(rows):
        return []
    peak, least = max(row["memory_peak"] for row in known), min(row["job_memory"] for row in known)
    if peak > USED * least:
        return []
    unused = FRACTION.text(1 - peak / least)
    what = f"{unused} of the requested memory is never used: jobs have {BYTE.text(least)} and use {BYTE.text(peak)}."
    return [f"{what} Request {BYTE.text(SPARE * peak)}: smaller jobs often start sooner."]
