"""Findings that name who is slow: workers, hosts, servers, files, datasets, and single chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import NAMED, Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.findings.reading import HALF, answering, slow_servers
from roastcoffea.diagnosis.findings.scheduling import entries_of, straggler
from roastcoffea.diagnosis.savings import Taken, without_excess
from roastcoffea.diagnosis.slowness import DATASET, ENDPOINT, FILE, HOST, SMALLEST, WORKER, Slow
from roastcoffea.metrics.endpoints import with_endpoints
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers, amounts
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

CLASS_OF: Final = {one.column.removesuffix("_seconds"): one.time_class for one in PHASES}


def _phase(one: Slow) -> str:
    return (one.phase or "").removesuffix("_seconds")


def _inside(evidence: Evidence, phase: str, seconds: float) -> dict[str, float]:
    """Thread seconds of a slow phase by class of time; of all classes of chunks where the phase is not known."""
    if phase in CLASS_OF:
        return {CLASS_OF[phase]: seconds}
    classes = dict.fromkeys(CLASS_OF.values())
    busy = {name: value or 0.0 for name, value in evidence.ledger.items() if name in classes}
    total = sum(busy.values()) or 1.0
    return {name: seconds * amount / total for name, amount in busy.items()}


def _slow(  # noqa: PLR0917
    evidence: Evidence,
    found: Sequence[Slow],
    advice: str,
    remedy: str | None = None,
    what: str = "",
    factors: Numbers | None = None,
) -> Finding | None:
    """Who is slow, with what its chunks took beyond the others taken out; by factors of chunks, if these are known."""
    if not found:
        return None
    kind, slow, phases = found[0].kind, {one.name: one for one in found}, list[str | None]()
    if evidence.counted is not None:
        chunks = with_endpoints(evidence.counted) if kind == ENDPOINT else evidence.counted
        names = chunks[WORKER if kind == HOST else kind].to_pylist()
        if kind == HOST:
            names = [evidence.hosts.get(worker) for worker in names]
        if factors is None:
            factors = np.array([1 / slow[name].factor if name in slow else 1.0 for name in names])
        phases = [_phase(slow[name]) or None if name in slow else None for name in names]
    inside = Counter[str]()
    for one in found:
        inside.update(_inside(evidence, _phase(one), one.seconds))
    more = len(found) - NAMED
    several = f" {number(more)} more are slow." if more > 0 else ""
    return Finding(
        what=f"{what or ' '.join(map(_sentence, found[:NAMED]))}{several}",
        advice=advice,
        culprits=tuple(Culprit(kind, one.name, one.seconds, one.factor) for one in found),
        remedy=remedy,
        rows={f"{kind} {one.name}": one.seconds for one in found},
        taken=Taken(None if factors is None else without_excess(factors, phases), inside=inside),
    )


def _sentence(one: Slow) -> str:
    """What is slow of one, how much, and others that had exactly the same chunks."""
    phase, server = _phase(one), one.kind == ENDPOINT
    does = SLOW_IN.get(phase, "is slow")
    if phase in OF_FILE and one.kind in {ENDPOINT, FILE}:
        does = "delivers slowly" if server else OF_FILE[phase]
    low, high = (f"{bound:.2g}" for bound in one.interval)
    factor = f"{one.factor:.3g} times" + (f" ({low} to {high})" if low != high else "")
    did = f"its {counted(one.chunks, 'chunk')} took {factor} as long as expected"
    if one.kind == DATASET:
        did = f"its events take {factor} as long as those of the others"
    where = f" on {one.host}" if one.host not in {None, one.name} else ""
    others = " or ".join(f"{'server' if kind == ENDPOINT else kind} {name}" for kind, name in one.confounded_with)
    instead = f"; it may be {others} instead" if others else ""
    return f"{'Server' if server else one.kind.capitalize()} {one.name}{where} {does}: {did}{instead}."


def _of_kind(evidence: Evidence, kind: str) -> list[Slow]:
    return [one for one in evidence.slow if one.kind == kind]


@finding(
    "slow worker",
    "Slow worker",
    part="who is slow",
    shows="`compute` or `read` of one worker",
    first="`client.retire_workers`",
    outranks=True,
)
def slow_worker(evidence: Evidence) -> Finding | None:
    """A slow worker.

    Chunks on one worker take longer than the same work on others.

    **How to make sure.** `slowness` is the factor by which a worker's chunks are longer than their events, bytes,
    dataset and file predict, waiting for cores not counted. A slow worker has few chunks, so do not look at totals.

    ```python
    from roastcoffea import plot_worker_balance

    balance = measurement.worker_balance
    print(balance[["worker", "host", "chunks", "slowness", "cpu_share"]].sort_values("slowness"))
    plot_worker_balance(measurement)
    ```

    **What to do.**

    - "computes slowly": an older or throttled CPU, or a neighbour that takes the caches. Look at the host with `top`.
    - "waits for its storage": its network or disk is bad. Compare with other workers on its host.
    - Leave it out: `client.retire_workers([address])`, with the address of the finding.
    - If all workers of a host are slow, the finding is [slow host](slow-host.md).

    **When it is not a problem.** Clusters of mixed hardware have slower nodes, which still help. Smaller chunks
    make the last one end sooner. A worker is named only if chance does not explain it: the
    lower bound of its factor must be above 1.3.
    """
    found = _of_kind(evidence, WORKER)
    here = {life["worker"] for life in evidence.lives if life["stop"] >= evidence.run.stop}
    here |= {one.name for one in found} - evidence.hosts.keys()
    there = [f'"{one.name}"' for one in found if "://" in one.name and one.name in here]
    hosts, them = ("its host", "it") if len(found) == 1 else ("their hosts", "them")
    advice = f"Check what else runs on {hosts}{f', or retire {them}' if there else ''}."
    remedy = f"client.retire_workers([{', '.join(there)}])" if there else None
    return _slow(evidence, found, advice, remedy)


@finding(
    "slow host",
    "Slow host",
    part="who is slow",
    shows="`compute` or `read` of one host",
    first="leave it out",
    outranks=True,
)
def slow_host(evidence: Evidence) -> Finding | None:
    """A slow host.

    All workers of a host take longer than those of other hosts for the same work.

    **How to make sure.** At least two workers ran there, and all of them are slow. Compare its classes with those of
    other hosts: `compute` points to the CPU, `read` to its network, `contention` to other programs (which is a
    finding of its own).

    ```python
    ledger = measurement.time_ledger.by("host")
    print(ledger[["total", "compute", "read", "contention"]])
    print(measurement.worker_balance[["host", "worker", "chunks", "slowness"]].sort_values("host"))
    ```

    **What to do.**

    - Look at what else runs there, at the temperature and the frequency of its CPU, and at its network.
    - Leave it out. In HTCondor: `requirements = (Machine != "node-3")`; in SLURM: `--exclude=node-3`.
    - On a running cluster: `client.retire_workers([...])` with the addresses of its workers.

    **When it is not a problem.** An older CPU is slower. It still adds throughput as long as chunks are small enough
    not to make the tail.
    """
    return _slow(evidence, _of_kind(evidence, HOST), "Check what else runs there, or exclude it.")


@finding(
    "slow endpoint",
    "Slow storage server",
    part="who is slow",
    shows="`read` or `open` of one server",
    first="another replica",
    outranks=True,
)
def slow_endpoint(evidence: Evidence) -> Finding | None:
    """A slow endpoint.

    One server takes longer to deliver its files than the others. Behind an XRootD redirector it is the data server
    that is named.

    **How to make sure.** The finding tells which of three it is. *The server is slow*: it delivers few bytes per
    second, whatever is asked of it. *A cold cache*: it delivers slowly what is read for the first time, and fast what
    was read before. *Too many small requests*: most of their latency is the round trip, which no server can shorten.
    `endpoints` has what the finding rests on.

    ```python
    columns = [
        "endpoint",
        "redirector",
        "requests",
        "vector_reads",
        "bytes_per_request",
        "latency",
        "shortest_latency",
        "rate",
    ]
    print(measurement.endpoints[columns])
    print(measurement.endpoints[["endpoint", "seconds_per_open", "errors", "retries", "losses"]])
    ```

    **What to do.**

    - A slow server: read other replicas of its files, or tell the site that runs it.
    - A cold cache: run again. The second run shows what the cache is good for.
    - Small requests over a wide-area network: vector reads (`uproot_options={"handler": uproot.XRootDSource}`, or
      fsspec, which is uproot's default), larger chunks, or a copy that is nearer.

    **When it is not a problem.** Others may be using the server just now: compare with a run at another time.
    """
    found, what, factors = _of_kind(evidence, ENDPOINT), "", None
    if (measured := slow_servers(evidence)) and evidence.counted is not None:
        # requests are less noisy than durations of chunks
        chunks = with_endpoints(evidence.counted)
        names = np.array(chunks["endpoint"].to_pylist(), object)
        read, wall = amounts(chunks, "read_seconds"), amounts(chunks, "wall_seconds")
        own = np.maximum(wall - amounts(chunks, "core_wait_seconds") - amounts(chunks, "lock_seconds"), read)
        excess = read * (1 - 1 / np.array([measured.get(name, 1.0) for name in names]))
        factors = 1 - excess / np.maximum(own, SMALLEST)
        found = [
            Slow(ENDPOINT, name, factor, (factor, factor), float(excess[names == name].sum()), 0, "read")
            for name, factor in measured.items()
        ]
        found.sort(key=lambda one: -one.seconds)
        rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
        behind = {row["endpoint"]: f" behind {row['redirector']}" for row in rows if row["redirector"]}
        what = " ".join(
            f"Server {one.name}{behind.get(one.name, '')} delivers slowly: requests take {one.factor:.3g} times as "
            "long as elsewhere."
            for one in found[:NAMED]
        )
    advice, remedy = f"Read {'its' if len(found) == 1 else 'their'} files from another server.", None
    if len(found) == 1 and (why := answering(evidence, found[0].name)) is not None:
        what, advice, remedy = f"{what or _sentence(found[0])} It {why.what}", why.advice, why.remedy
    return _slow(evidence, found, advice, remedy, what, factors)


@finding(
    "slow file",
    "Slow file",
    part="who is slow",
    shows="`read`, `open` or `compute` of one file",
    first="another copy",
    outranks=True,
)
def slow_file(evidence: Evidence) -> Finding | None:
    """A slow file.

    Chunks of one file take longer than chunks of other files in its dataset.

    **How to make sure.** The finding tells what is slow: reading, opening or computing. If the run could not tell
    file and worker apart, because one worker had all of its chunks, it says so.

    ```python
    files = measurement.chunks.groupby("file")[["events", "wall_seconds", "read_seconds", "compute_seconds"]].sum()
    print(files.assign(per_event=files["wall_seconds"] / files["events"]).sort_values("per_event").tail())
    ```

    **What to do.**

    - "waits for its storage": another replica, or a copy of it: `xrdcp root://.../3.root .`, and the new path in the
      fileset.
    - "takes long to open": a file with many small baskets or clusters. Merge it anew with `hadd`.
    - "computes slowly": look at its events; an unusual trigger or run may have more objects.

    **When it is not a problem.** A file that comes from tape is slow once. Measure again before you move data.
    """
    found, servers = _of_kind(evidence, FILE), slow_servers(evidence)
    if servers and evidence.counted is not None:
        # files of a server that is slower than others are innocent
        places = with_endpoints(evidence.counted).group_by("file").aggregate([("endpoint", "distinct")]).to_pylist()
        theirs = {row["file"] for row in places if set(row["endpoint_distinct"]) <= servers.keys()}
        found = [one for one in found if one.name not in theirs]
    its, it = ("its", "it") if len(found) == 1 else ("their", "them")
    advice = f"Check what {its} events need that others do not."
    if found and _phase(found[0]) in OF_FILE:
        advice = f"Read another copy of {it}, or use faster storage."
    return _slow(evidence, found, advice)


@finding(
    "slow dataset",
    "Slow dataset",
    part="who is slow",
    shows="`compute` or `read` of one dataset",
    first="select earlier in its code",
    outranks=True,
)
def slow_dataset(evidence: Evidence) -> Finding | None:
    """A slow dataset.

    Events of one dataset take at least twice as long as those of others.

    **How to make sure.** Compare seconds per event by dataset, phase by phase. Multiplicity explains much: more jets
    make more pairs.

    ```python
    columns = ["events", "compute_seconds", "read_seconds", "decompress_seconds"]
    sums = measurement.chunks.groupby("dataset")[columns].sum()
    print(sums.div(sums["events"], axis=0))
    print(measurement.hot_functions[["dataset", "function", "line", "seconds"]].head())
    ```

    **What to do.**

    - Look at branches of the code that only this dataset takes: systematic variations, matching to generator
      particles.
    - Select earlier, where most of its events fail a cut in the end.
    - If it ends last, put it first in the fileset, so that its long chunks do not make the tail.

    **When it is not a problem.** Simulation with weights and variations costs more than data, and must. The saving is
    what the run would take if its events were as cheap as the others'.
    """
    found = _of_kind(evidence, DATASET)
    smaller = "" if evidence.larger else "; use smaller chunks for it if it finishes last"
    advice = f"Check what its events need that others do not{smaller}."
    if found and _phase(found[0]) in {"read", "open"}:
        advice = "Cache it nearby, or read another copy of it."
    return _slow(evidence, found, advice)


@finding(
    "slow chunk",
    "One chunk takes much longer than the others",
    part="who is slow",
    shows="`idle: tail`, and the phase that took longer",
    first="run it alone",
    outranks=True,
)
def slow_chunk(evidence: Evidence) -> Finding | None:
    """A slow chunk.

    One chunk takes much longer than its events, its file and its worker explain, and often the others wait for it.

    **How to make sure.** The finding has the file, the entries, and the line of your code that took most of the time,
    if the profile has that: it keeps the longest chunk of each dataset apart. Run this chunk alone, with the
    processor and an `IterativeExecutor`.

    ```python
    print(measurement.stragglers)  # all of them, with the phase that took longer
    chunks = measurement.chunks.sort_values("wall_seconds", ascending=False)
    print(chunks[["file", "entry_start", "entry_stop", "events", "worker", "wall_seconds", "compute_seconds"]].head())
    ```

    **What to do.**

    - "computes slowly": a few events with very many objects or combinations, or a part of the code that only these
      events reach. Cut on the number of objects first.
    - "waits long for storage", "opens files slowly": the storage had a bad moment, or the file is on tape. Measure
      again.
    - "is blocked": a service answered late. Set a time limit, and repeat the request.

    **When it is not a problem.** If another chunk is slow in the next run, it was the host or the storage, and not
    its events.
    """
    culprit = straggler(evidence)
    if culprit is None or evidence.counted is None or evidence.stragglers is None:
        return None
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    excess, phase, others = worst["excess_seconds"], worst["phase"], len(evidence.stragglers) - 1
    calls = {} if evidence.profile is None else evidence.profile.calls(worst["id"])
    line = next((call for call, (share, _) in calls.items() if share >= HALF), None)
    where = f": it {SLOW_IN[phase]}" if phase in SLOW_IN else ""
    wall, expected = worst["wall_seconds"], worst["expected_seconds"]
    what = f"A chunk of {entries_of(worst)} took {SECOND.text(wall)} instead of {SECOND.text(expected)}"
    what = f"{what}, most of it in {line}." if line else f"{what}{where}."
    more = f" {counted(others, 'other chunk')} took much longer than expected, too." if others else ""
    rows = pc.equal(evidence.counted["id"], worst["id"]).to_numpy()
    functions = (Culprit("function", str(line.place), calls[line][0] * excess),) if line else ()
    removal = without_excess(np.where(rows, expected / wall, 1.0), [phase if slow else None for slow in rows])
    return Finding(
        what=f"{what}{more}",
        advice=f"Check what {line.place if line else 'process()'} does with these events.",
        culprits=(culprit, *functions),
        rows={f"chunk of {entries_of(worst)}": excess},
        taken=Taken(removal, inside=_inside(evidence, phase or "", excess)),
    )
