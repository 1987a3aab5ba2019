"""A finding about runs that slow down half-way."""

from typing import Final

import numpy as np
import pandas as pd

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.findings.slow_places import SLOW_WORKER
from roastcoffea.diagnosis.savings import Taken, without_excess
from roastcoffea.diagnosis.slowdown import STORAGE
from roastcoffea.diagnosis.slowness import DATASET, ENDPOINT, HOST, SMALLEST
from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import amounts, integers
from roastcoffea.units import SECOND, minute

DOES: Final = {
    phases.READ: "reading",
    phases.OPEN: "opening files",
    phases.COMPUTE: "computing",
    phases.BLOCKED: "waiting in process()",
    phases.CONTENTION: "waiting for a core",
    phases.WRITE: "writing files",
}

WHERE: Final = {ENDPOINT: "from", HOST: "on host", DATASET: "for dataset"}

UNPLANNED: Final = frozenset({phases.CONTENTION, phases.LOCK, phases.WAIT})
"""Classes that a replay cannot remove from individual chunks."""


@finding(
    "slows down",
    "The run slows down half-way",
    part="who is slow",
    shows="`read`, `compute`",
    outranks=True,
    page=SLOW_WORKER,
)
def slows_down(evidence: Evidence) -> Finding | None:
    """The run slows down half-way.

    From some time on, or gradually, chunks take longer for the same work.

    **Check.** `measurement.plot("dataset_timeline")` shows the rate over time.

    **Fix.** *reading, opening files:* ask the site what happened then. *computing:* look for lists, caches or
    histograms that grow, and for other programs on the host. *waiting:* look for an overloaded service.

    **Fine if** others were using the storage or the hosts just then: run again.
    """
    seen = evidence.slowdown
    if seen is None or evidence.counted is None:
        return None
    does, kind, low, high = DOES.get(seen.time_class, f"`{seen.time_class}`"), seen.kind or "", *seen.interval
    where = f" {WHERE[kind]} {seen.name}" if kind else ""
    takes = f"{does}{where} takes {seen.factor:.2g} times ({low:.2g} to {high:.2g}) as long"
    when = f"from {minute(seen.onset)} on, {SECOND.text(seen.onset - evidence.run.start)} after its start: {takes}"
    seconds, ids = float(seen.excess.sum()), integers(evidence.counted["id"])
    excess = pd.Series(seen.excess, seen.ids).reindex(ids, fill_value=0.0).to_numpy()
    factors = 1 - excess / np.maximum(amounts(evidence.counted, "wall_seconds"), SMALLEST)
    phase = max(phases.COLUMNS_OF[seen.time_class], key=evidence.seconds_in).removesuffix("_seconds")
    removal = None if seen.time_class in UNPLANNED else without_excess(factors, [phase] * len(factors))
    rows = {seen.time_class: seconds}
    return Finding(
        what=f"The run slows down {f'gradually: {takes} at its end as at its start' if seen.gradual else when}.",
        advice=_advice(seen.time_class, kind),
        culprits=(Culprit(kind, seen.name, seconds, seen.factor),) if seen.name else (),
        rows=rows,
        taken=Taken(removal, inside=rows),
    )


def _advice(time_class: str, kind: str) -> str:
    if kind == HOST or time_class == phases.CONTENTION:
        return "Check which other programs have been running on these hosts since then."
    if time_class in STORAGE:
        return "Ask the site what happened then, or read another copy."
    if time_class == phases.WRITE:
        return "Check the storage that is written to, or write less at a time."
    return "Check what process() does more of from chunk to chunk: lists, caches, requests."
