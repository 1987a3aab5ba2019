"""Outputs of chunks that are so large that handling them costs time, and whose time that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import LARGE_OUTPUT, WORDS
from roastcoffea.metrics import phases
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run

HANDLED: Final = (phases.OVERHEAD, phases.TRANSFER)
"""Classes in which large outputs are compressed and moved, besides being merged."""

WAITED_FOR: Final[Mapping[str, str]] = {task_records.MERGE: "merge", task_records.PREPROCESSING: "preprocessing"}
"""Cause that idle threads wait for, by the kind of the tasks that are left."""


def mean_output(run: Run) -> float | None:
    """Mean size of a chunk's result in bytes; None if unknown."""
    if run.tasks is None:
        return None
    sizes = run.tasks["nbytes"].filter(pc.equal(run.tasks["kind"], task_records.PROCESSOR))
    mean: float | None = pc.mean(sizes).as_py() if len(sizes) else None
    return mean


def large_output(run: Run) -> float:
    """Mean output of a chunk in bytes; 0 if unknown or small."""
    size = mean_output(run) or 0.0
    return size if size >= LARGE_OUTPUT else 0.0


def mostly_moved(ledger: TimeLedger) -> bool:
    """Whether moving outputs takes longer than compressing and merging them."""
    handled = sum(ledger.get(name, 0.0) for name in (phases.OVERHEAD, phases.MERGE))
    return ledger.get(phases.TRANSFER, 0.0) > handled


def merged_output(run: Run, ledger: TimeLedger) -> float:
    """Mean output of a chunk in bytes if handling it belongs to merging; 0 if it does not."""
    return 0.0 if mostly_moved(ledger) else large_output(run)


def thread_time(run: Run, ledger: TimeLedger) -> dict[str, float]:
    """Thread seconds by cause, as the causes claim them, largest first."""
    of_merging = HANDLED if merged_output(run, ledger) else ()
    amounts: dict[str, float] = {}
    for name, own in WORDS.items():
        word = "merge" if name in of_merging else own
        if name in ledger:
            amounts[word] = amounts.get(word, 0.0) + ledger[name]
    for kind, word in WAITED_FOR.items():
        waited = ledger.tail_of.get(kind, 0.0)
        if waited and "tail" in amounts:
            amounts["tail"] -= waited
            amounts[word] = amounts.get(word, 0.0) + waited
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))
