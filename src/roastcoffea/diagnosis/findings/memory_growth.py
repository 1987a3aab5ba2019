"""The finding that the memory of a worker's process grows from chunk to chunk."""

import numpy as np
import scipy

from roastcoffea.diagnosis.evidence import NAMED, Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.metrics.facts import rows_with
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.units import BYTE, counted


def growth(memory: Numbers, chance: float) -> float:
    """Bytes by which each chunk raises memory after the first quarter of them; 0 if chance may explain it."""
    later = memory[len(memory) // 4 :]
    steps = np.diff([part.mean() for part in np.array_split(later, 10)]) if len(later) >= 10 else np.zeros(9)
    # a single step, a random walk and sawteeth scatter as much as they grow; caches that fill up cease to grow
    least = max(-scipy.special.stdtrit(8, chance) * steps.std(ddof=1) / 3, 2 * (steps.mean() - steps[4:].mean()))
    slopes = (np.polyfit(range(len(part)), part, 1)[0] for part in (later, later[len(later) // 2 :]))
    return max(float(min(slopes)), 0.0) if steps.mean() > least else 0.0


@finding(
    "memory grows", "Memory grows from chunk to chunk", part="in the result", shows="nowhere", first="smaller caches"
)
def memory_grows(evidence: Evidence) -> Finding | None:
    """Limited by memory that grows.

    Chunks leave memory behind: within ten times as many, a worker reaches its limit (doubles, if that is unknown).

    **How to make sure.** Memory grows up to the last chunk, and by more than the results that the worker holds.

    ```python
    print(measurement.chunks.sort_values("stop").groupby("worker")["memory_after"].agg(["first", "median", "last"]))
    ```

    **What to do.** Keep nothing of a chunk in the processor, in modules, or in caches without a limit.

    **When it is not a problem.** If each Runner call ends before the limit, restart the workers between calls.
    """
    run, limits, found = evidence.run, {life["worker"]: life["memory_limit"] for life in evidence.lives}, []
    rows = run.chunks and run.chunks.select(["worker", "stop", "memory_after"]).drop_null().sort_by("stop")
    samples = run.samples and run.samples.filter(run.samples["nbytes"].is_valid()).sort_by("time")
    for name, own in rows.to_pandas().groupby("worker") if rows else ():
        used, odds, size = own["memory_after"].to_numpy(np.float64), 1e-3 / max(len(limits), 1), np.zeros(1)
        if samples and growth(used, odds) and (held := rows_with(samples, "worker", [name])):
            size = np.interp(own["stop"], amounts(held, "time"), amounts(held, "nbytes") - amounts(held, "spilled"))
        each, limit, last = growth(used - size, odds), limits.get(name), used[-3:].mean()
        if (room := max((limit or 2 * last) - last, each)) < 10 * len(used) * each:
            after = f", the limit after about {counted(float(f'{room / each:.2g}'), 'more chunk')}" if limit else ""
            found.append((room / each, name, f"{name} ({BYTE.text(each)} per chunk{after})"))
    if not found:
        return None
    _, workers, texts = zip(*sorted(found), strict=True)
    return Finding(
        what=f"Memory grows from chunk to chunk on {counted(len(found), 'worker')}: {', '.join(texts[:NAMED])}.",
        advice=f"Keep nothing of chunks in the processor{'' if evidence.local else '; restart between Runner calls'}.",
        culprits=tuple(Culprit("worker", worker) for worker in workers),
        remedy=None if evidence.local else "client.restart()",
        rows={},
        always=True,
    )
