"""Causes with a culprit that is slow: workers, hosts, files and datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, Says, cause
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.diagnosis.removals import Taken
from roastcoffea.diagnosis.slowness import DATASET, Slow
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import counted, number

SLOW_IN: Final = {
    "read": "waits long for storage",
    "open": "takes long to open",
    "build": "takes long to open",
    "compute": "computes slowly",
    "decompress": "decompresses slowly",
    "interpret": "interprets slowly",
    "blocked": "is blocked",
}
"""What somebody slow does, by the phase that takes most of the excess."""


def _slow(kind: str) -> Says:
    """What there is to say of workers, hosts, files or datasets that are slow."""

    def says(seen: Evidence) -> Draft | None:
        found = [one for one in seen.slow if one.kind == kind]
        if not found:
            return None
        named = tuple(Culprit(kind, one.name, one.seconds, one.factor) for one in found)
        rows = {f"{kind} {one.name}": one.seconds for one in found}
        taken = Taken(f"slow {kind}", factors=_as_fast_as_others(seen, found))
        advice, remedy = _advice(seen, kind, found)
        return Draft(_who_is_slow(kind, found), advice, named, remedy, rows, taken)

    return says


def _who_is_slow(kind: str, found: Sequence[Slow]) -> str:
    if len(found) == 1:
        return _slow_alone(found[0])
    names = [
        f"{_place(one)} ({one.factor:.3g} times{'' if kind == DATASET else f', {_does(one)}'}{_instead(one)})"
        for one in found[: culprits.NAMED]
    ]
    more = [f"{number(len(found) - culprits.NAMED)} more"] if len(found) > culprits.NAMED else []
    slow = "take longer per event than the others" if kind == DATASET else "take longer than expected"
    return f"{counted(len(found), kind)} {slow}: {', '.join([*names, *more])}."


def _slow_alone(one: Slow) -> str:
    low, high = (f"{bound:.2g}" for bound in one.interval)
    factor = f"{one.factor:.3g} times" + (f" ({low} to {high})" if low != high else "")
    who = f"{one.kind.capitalize()} {_place(one)}"
    if one.kind == DATASET and _waits_for_storage(one):
        return f"{who} {_does(one)}: its events take {factor} as long as those of the others{_instead(one)}."
    if one.kind == DATASET:
        return f"{who} takes {factor} as long per event as the others{_instead(one)}."
    chunks = counted(one.chunks, "chunk")
    return f"{who} {_does(one)}: its {chunks} took {factor} as long as expected{_instead(one)}."


def _place(one: Slow) -> str:
    return f"{one.name} on {one.host}" if one.host and one.host != one.name else one.name


def _does(one: Slow) -> str:
    return SLOW_IN.get((one.phase or "").removesuffix("_seconds"), "is slow")


def _waits_for_storage(one: Slow) -> bool:
    return (one.phase or "").removesuffix("_seconds") in {"read", "open"}


def _instead(one: Slow) -> str:
    """Who else may be the slow one, as all chunks of the one are of the other."""
    others = " or ".join(f"{kind} {name}" for kind, name in one.confounded_with)
    return f"; it may be {others} instead" if others else ""


def _advice(seen: Evidence, kind: str, found: Sequence[Slow]) -> tuple[str, str | None]:
    """What to do about them, and a line to copy."""
    one = len(found) == 1
    match kind:
        case "worker":
            addresses = ", ".join(f'"{slow.name}"' for slow in found if "://" in slow.name)
            line = f"client.retire_workers([{addresses}])" if addresses else None
            retire = f", or retire {'it' if one else 'them'}: {line}" if line else ""
            return f"Look at what else runs on {'its host' if one else 'their hosts'}{retire}.", line
        case "host":
            return "Look at what else runs there, or leave it out.", None
        case "file":
            return f"Read another copy of {'it' if one else 'them'}, or use faster storage.", None
        case _ if _waits_for_storage(found[0]):
            return "Cache it nearby, or read another copy of it.", None
        case _:
            smaller = "" if seen.larger else "; use smaller chunks for it if it ends last"
            return f"Look at what its events need beyond the others{smaller}.", None


def _as_fast_as_others(seen: Evidence, found: Sequence[Slow]) -> Numbers | None:
    """What each chunk that counted would take of what it took."""
    if seen.counted is None:
        return None
    kind = found[0].kind
    names = seen.counted["worker" if kind == "host" else kind].to_pylist()
    if kind == "host":
        hosts = culprits.hosts_of(seen)
        names = [hosts.get(worker) for worker in names]
    factors = {one.name: one.factor for one in found}
    return np.array([1 / factors.get(name, 1.0) for name in names])


for _kind in ("worker", "host", "file", DATASET):
    cause(f"slow {_kind}", names_culprit=True)(_slow(_kind))
