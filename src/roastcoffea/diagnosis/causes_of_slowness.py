"""Causes with a slow culprit: workers, hosts, files and datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, Says, cause
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.diagnosis.removals import Taken
from roastcoffea.diagnosis.slowness import DATASET, Slow
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
"""What a slow culprit does, by the phase with most of the excess."""


def _slow(kind: str) -> Says:
    """Drafts for slow workers, hosts, files or datasets."""

    def says(evidence: Evidence) -> Draft | None:
        found = [one for one in evidence.slow if one.kind == kind]
        if not found:
            return None
        named = tuple(Culprit(kind, one.name, one.seconds, one.factor) for one in found)
        rows = {f"{kind} {one.name}": one.seconds for one in found}
        taken = Taken(
            f"slow {kind}",
            factors=_of_chunks(evidence, {one.name: 1 / one.factor for one in found}, kind, 1.0),
            phases=_of_chunks(evidence, {one.name: one.phase for one in found}, kind, None),
            seconds=sum(one.seconds for one in found),
        )
        advice, remedy = _advice(evidence, kind, found)
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
    """Alternatives: others that had exactly the same chunks."""
    others = " or ".join(f"{kind} {name}" for kind, name in one.confounded_with)
    return f"; it may be {others} instead" if others else ""


def _advice(evidence: Evidence, kind: str, found: Sequence[Slow]) -> tuple[str, str | None]:
    """Advice, and a line to copy."""
    one = len(found) == 1
    match kind:
        case "worker":
            addresses = ", ".join(f'"{slow.name}"' for slow in found if "://" in slow.name)
            line = f"client.retire_workers([{addresses}])" if addresses else None
            retire = f", or retire {'it' if one else 'them'}: {line}" if line else ""
            return f"Check what else runs on {'its host' if one else 'their hosts'}{retire}.", line
        case "host":
            return "Check what else runs there, or exclude it.", None
        case "file":
            return f"Read another copy of {'it' if one else 'them'}, or use faster storage.", None
        case _ if _waits_for_storage(found[0]):
            return "Cache it nearby, or read another copy of it.", None
        case _:
            smaller = "" if evidence.larger else "; use smaller chunks for it if it finishes last"
            return f"Check what its events need that others do not{smaller}.", None


def _of_chunks(evidence: Evidence, values: Mapping[str, Any], kind: str, otherwise: Any) -> Any:
    """Value of each chunk that counted by its worker, host, file or dataset; None where chunks are unknown."""
    if evidence.counted is None:
        return None
    names = evidence.counted["worker" if kind == "host" else kind].to_pylist()
    if kind == "host":
        hosts = culprits.hosts_of(evidence)
        names = [hosts.get(worker) for worker in names]
    found = [values.get(name, otherwise) for name in names]
    return np.array(found) if isinstance(otherwise, float) else found


for _kind in ("worker", "host", "file", DATASET):
    cause(f"slow {_kind}", names_culprit=True)(_slow(_kind))
