"""Causes with a slow culprit: workers, hosts, servers, files and datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.blame import ENDPOINT
from roastcoffea.diagnosis.causes import Draft, Says, cause
from roastcoffea.diagnosis.culprits import answering, redirector_of, slower_than_others
from roastcoffea.diagnosis.evidence import DOMINATES, Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.diagnosis.savings import Taken
from roastcoffea.diagnosis.slowness import DATASET, SMALLEST, Slow
from roastcoffea.metrics.endpoints import with_endpoints
from roastcoffea.metrics.statistics import amounts
from roastcoffea.units import SECOND, counted, number

SLOW_IN: Final = {
    "read": "waits long for storage",
    "open": "opens files slowly",
    "build": "opens files slowly",
    "compute": "computes slowly",
    "decompress": "decompresses slowly",
    "interpret": "interprets slowly",
    "blocked": "is blocked",
}
"""What a slow culprit does, by the phase with most of the excess."""

OF_FILE: Final = {"read": "is slow to read", "open": "is slow to open", "build": "is slow to open"}
"""What is said of a slow file instead."""

WORD: Final = {ENDPOINT: "server"}
"""What kinds of culprits are called in a sentence, where it is another word."""


def _slow(kind: str) -> Says:
    """Drafts for slow workers, hosts, servers, files or datasets."""

    def says(evidence: Evidence) -> Draft | None:
        found = [one for one in evidence.slow if one.kind == kind and not _is_of_a_slow_server(evidence, one)]
        if kind == ENDPOINT and (measured := _by_requests(evidence)) is not None:
            return measured
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
        what, why = _who_is_slow(kind, found), answering(evidence, found[0].name) if kind == ENDPOINT else None
        if why is not None and len(found) == 1:
            what, advice, remedy = f"{what} It {why.what}", why.advice, why.remedy
        return Draft(what, advice, named, remedy, rows, taken)

    return says


def _is_of_a_slow_server(evidence: Evidence, one: Slow) -> bool:
    """Whether it is a file of a server that is slower than others."""
    slow = slower_than_others(evidence) if one.kind == "file" and evidence.counted is not None else {}
    if not slow:
        return False
    chunks = with_endpoints(evidence.counted)
    return set(chunks.filter(pc.equal(chunks["file"], one.name))["endpoint"].unique().to_pylist()) <= slow.keys()


def _by_requests(evidence: Evidence) -> Draft | None:
    """Servers that their requests show to be slow: these are less noisy than durations of chunks."""
    slow = slower_than_others(evidence)
    if not slow or evidence.counted is None:
        return None
    chunks = with_endpoints(evidence.counted)
    names = chunks["endpoint"].to_pylist()
    read, wall = amounts(chunks, "read_seconds"), amounts(chunks, "wall_seconds")
    own = np.maximum(wall - amounts(chunks, "core_wait_seconds") - amounts(chunks, "lock_seconds"), read)
    excess = read * (1 - 1 / np.array([slow.get(name, 1.0) for name in names]))
    seconds = {name: float(excess[[name == other for other in names]].sum()) for name in slow}
    found = tuple(
        Culprit(ENDPOINT, name, seconds[name], slow[name]) for name in sorted(slow, key=lambda one: -seconds[one])
    )
    taken = Taken(
        f"slow {ENDPOINT}",
        factors=1 - excess / np.maximum(own, SMALLEST),
        phases=["read" if name in slow else None for name in names],
        seconds=float(excess.sum()),
    )
    why = answering(evidence, found[0].name)
    redirector = redirector_of(evidence, found[0].name)
    who, subject = found[0].name + (f" behind {redirector}" if redirector else ""), "It"
    what = f"Server {who} delivers slowly: requests take {found[0].factor:.3g} times as long as elsewhere."
    if len(found) > 1:
        subject = found[0].name
        each = [f"{one.name} ({one.factor:.3g} times as long)" for one in found[: culprits.NAMED]]
        what = f"{counted(len(found), 'server')} deliver slowly, by their requests: {', '.join(each)}."
    advice = "Read its files from another server." if why is None else why.advice
    rows = {f"{ENDPOINT} {one.name}": one.seconds or 0.0 for one in found}
    return Draft(
        what if why is None else f"{what} {subject} {why.what}", advice, found, why and why.remedy, rows, taken
    )


def _who_is_slow(kind: str, found: Sequence[Slow]) -> str:
    if len(found) == 1:
        return _slow_alone(found[0])
    names = [
        f"{_place(one)} ({one.factor:.3g} times{'' if kind == DATASET else f', {_does(one)}'}{_instead(one)})"
        for one in found[: culprits.NAMED]
    ]
    more = [f"{number(len(found) - culprits.NAMED)} more"] if len(found) > culprits.NAMED else []
    slow = "take longer per event than the others" if kind == DATASET else "take longer than expected"
    return f"{counted(len(found), WORD.get(kind, kind))} {slow}: {', '.join([*names, *more])}."


def _slow_alone(one: Slow) -> str:
    low, high = (f"{bound:.2g}" for bound in one.interval)
    factor = f"{one.factor:.3g} times" + (f" ({low} to {high})" if low != high else "")
    who = f"{WORD.get(one.kind, one.kind).capitalize()} {_place(one)}"
    if one.kind == DATASET and _waits_for_storage(one):
        return f"{who} {_does(one)}: its events take {factor} as long as those of the others{_instead(one)}."
    if one.kind == DATASET:
        return f"{who} takes {factor} as long per event as the others{_instead(one)}."
    chunks = counted(one.chunks, "chunk")
    return f"{who} {_does(one)}: its {chunks} took {factor} as long as expected{_instead(one)}."


def _place(one: Slow) -> str:
    return f"{one.name} on {one.host}" if one.host and one.host != one.name else one.name


def _does(one: Slow) -> str:
    phase = (one.phase or "").removesuffix("_seconds")
    if one.kind == ENDPOINT and phase in {"read", "open", "build"}:
        return "delivers slowly"
    if one.kind == "file" and phase in OF_FILE:
        return OF_FILE[phase]
    return SLOW_IN.get(phase, "is slow")


def _waits_for_storage(one: Slow) -> bool:
    return (one.phase or "").removesuffix("_seconds") in {"read", "open"}


def _instead(one: Slow) -> str:
    """Alternatives: others that had exactly the same chunks."""
    others = " or ".join(f"{WORD.get(kind, kind)} {name}" for kind, name in one.confounded_with)
    return f"; it may be {others} instead" if others else ""


def _advice(evidence: Evidence, kind: str, found: Sequence[Slow]) -> tuple[str, str | None]:
    """Advice, and a line to copy."""
    one = len(found) == 1
    match kind:
        case "worker":
            there = [slow.name for slow in found if "://" in slow.name and slow.name not in culprits.gone(evidence)]
            addresses = ", ".join(f'"{name}"' for name in there)
            line = f"client.retire_workers([{addresses}])" if addresses else None
            retire = f", or retire {'it' if one else 'them'}: {line}" if line else ""
            return f"Check what else runs on {'its host' if one else 'their hosts'}{retire}.", line
        case "host":
            return "Check what else runs there, or exclude it.", None
        case "endpoint":
            return f"Read {'its' if one else 'their'} files from another server.", None
        case "file" if (found[0].phase or "").removesuffix("_seconds") in OF_FILE:
            return f"Read another copy of {'it' if one else 'them'}, or use faster storage.", None
        case _ if _waits_for_storage(found[0]):
            return "Cache it nearby, or read another copy of it.", None
        case _:
            smaller = "" if evidence.larger or kind == "file" else "; use smaller chunks for it if it finishes last"
            return (
                f"Check what {'its' if one or kind == DATASET else 'their'} events need that others do not{smaller}.",
                None,
            )


def _of_chunks(evidence: Evidence, values: Mapping[str, Any], kind: str, otherwise: Any) -> Any:
    """Value of each chunk that counted by what is slow of it; None where chunks are unknown."""
    if evidence.counted is None:
        return None
    counted = with_endpoints(evidence.counted) if kind == ENDPOINT else evidence.counted
    names = counted["worker" if kind == "host" else kind].to_pylist()
    if kind == "host":
        hosts = culprits.hosts_of(evidence)
        names = [hosts.get(worker) for worker in names]
    found = [values.get(name, otherwise) for name in names]
    return np.array(found) if isinstance(otherwise, float) else found


for _kind in ("worker", "host", ENDPOINT, "file", DATASET):
    cause(f"slow {_kind}", names_culprit=True)(_slow(_kind))


@cause("slow chunk", names_culprit=True)
def slow_chunk(evidence: Evidence) -> Draft | None:
    """A chunk that takes much longer than its events, file and worker explain."""
    if evidence.stragglers is None or evidence.counted is None or not len(evidence.stragglers):
        return None
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    name, excess = culprits.entries_of(worst), worst["excess_seconds"]
    calls = {} if evidence.profile is None else evidence.profile.calls(worst["id"])
    line = next((call for call, (share, _) in calls.items() if share >= DOMINATES), None)
    phase = SLOW_IN.get(worst["phase"] or "")
    where = f", most of it in {line}" if line else f": it {phase}" if phase else ""
    wall, expected = SECOND.text(worst["wall_seconds"]), SECOND.text(worst["expected_seconds"])
    what = f"A chunk of {name} took {wall} instead of {expected}{where}."
    if len(evidence.stragglers) > 1:
        what += f" {counted(len(evidence.stragglers) - 1, 'other chunk')} took much longer than expected, too."
    rows = pc.equal(evidence.counted["id"], worst["id"]).to_numpy()
    taken = Taken(
        "slow chunk",
        factors=np.where(rows, worst["expected_seconds"] / worst["wall_seconds"], 1.0),
        phases=[worst["phase"] if slow else None for slow in rows],
        seconds=excess,
    )
    found = [culprits.worst_straggler(evidence), line and Culprit("function", str(line.place), calls[line][0] * excess)]
    advice = f"Check what {line.place if line else 'process()'} does with these events."
    return Draft(what, advice, tuple(filter(None, found)), rows={f"chunk of {name}": excess}, taken=taken)
