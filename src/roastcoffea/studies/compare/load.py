"""Waiting that load brings, for a core and for the interpreter: CPU time x what each second of it waited.

More CPU time waits more under the same load: then what made the CPU time longer made the waiting longer as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roastcoffea.metrics import phases
from roastcoffea.studies.compare.factors import THREADS, Factor, Leaf, Share, Volumes, shapley, shares_of

CPU: Final = (phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET)
"""Classes that are CPU time in process()."""

OF_CPU: Final = "of waiting for each second of computing"


def shares_of_load(
    leaf: Leaf, shares: Sequence[Share], cpu: tuple[float, float], volumes: tuple[Volumes, Volumes]
) -> list[Share]:
    """What each cause has of the difference of a class that load brings.

    `shares` are those of all other classes, and `cpu` is the CPU time in process() before and after.
    """
    (first, second), (before, after) = cpu, volumes
    if (leaf.before and not first) or (leaf.after and not second) or not (first or second):
        return shares_of(leaf, volumes, {})
    old = leaf.before / first if first else leaf.after / second
    rate = Factor(leaf.row, old, leaf.after / second if second else old, OF_CPU)
    per_thread = Factor(THREADS, 1 / before.threads, 1 / after.threads)
    seconds, second_more = Factor("CPU time", first, second), Factor("CPU time", 0.0, 1.0)
    threads, wall = shapley([second_more, rate])[0], shapley([second_more, rate, per_thread])[0]
    brought = [
        Share(leaf.row, share.factor, share.thread_seconds * threads, share.thread_seconds * wall)
        for share in shares
        if share.row in CPU and share.thread_seconds
    ]
    _, own, other_threads = shapley([seconds, rate, per_thread])
    alone = Share(leaf.row, rate, shapley([seconds, rate])[1], own)
    return [*brought, alone, Share(leaf.row, per_thread, 0.0, other_threads)]
