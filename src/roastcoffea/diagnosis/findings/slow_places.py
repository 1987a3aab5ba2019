"""Findings about slow workers, hosts, servers, files, datasets and chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.diagnosis.evidence import NAMED, Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, Page, finding
from roastcoffea.diagnosis.findings.reading import HALF, STORAGE, answering, slow_servers
from roastcoffea.diagnosis.findings.scheduling import TAIL, entries_of, straggler
from roastcoffea.diagnosis.savings import Taken, without_excess
from roastcoffea.diagnosis.slowness import DATASET, ENDPOINT, FILE, HOST, SMALLEST, WORKER, Slow, Slowness
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.endpoints import LOCAL, UNKNOWN, with_endpoints, with_sites
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.records.arrow import plain, rows_in
from roastcoffea.records.run import Run
from roastcoffea.units import SECOND, counted, number

SLOW_IN: Final = {
    "read": "reads slowly",
    "open": "opens files slowly",
    "build": "opens files slowly",
    "compute": "computes slowly",
    "decompress": "decompresses slowly",
    "interpret": "builds arrays slowly",
    "blocked": "is blocked",
    "write_cpu": "writes slowly",
    "write_wait": "writes slowly",
}
"""Maps the phase with most of the excess time to a predicate for the culprit."""

OF_FILE: Final = {"read": "is slow to read", "open": "is slow to open", "build": "is slow to open"}

CLASS_OF: Final = {one.column.removesuffix("_seconds"): one.time_class for one in PHASES}


def _phase(one: Slow) -> str:
    return (one.phase or "").removesuffix("_seconds")


def _inside(evidence: Evidence, phase: str, seconds: float) -> dict[str, float]:
    """Excess thread time by class, in seconds. If the phase is unknown, it is spread over all classes of chunk time."""
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
    """Create a finding about slow hosts, files etc. Fixing the culprits scales chunk durations by `factors`, if
    known."""
    if not found:
        return None
    kind, slow = found[0].kind, {one.name: one for one in found}
    phases, others = list[str | None](), list[Numbers]()
    if evidence.counted is not None:
        chunks = with_endpoints(evidence.counted) if kind == ENDPOINT else evidence.counted
        names = chunks[WORKER if kind == HOST else kind].to_pylist()
        if kind == HOST:
            names = [evidence.hosts.get(worker) for worker in names]
        if factors is None:
            order = {name: place for place, name in enumerate(slow)}
            place_of = np.array([order.get(name, -1) for name in names], np.int64)
            likely = [(one.factor, *one.interval) for one in found]
            factors, *others = 1 / np.array([*likely, (1.0, 1.0, 1.0)]).T[:, place_of]
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
        taken=Taken(
            None if factors is None else without_excess(factors, phases),
            inside=inside,
            others=tuple(without_excess(each, phases) for each in others),
        ),
    )


def _sentence(one: Slow) -> str:
    phase, server = _phase(one), one.kind == ENDPOINT
    does = SLOW_IN.get(phase, "is slow")
    if phase in OF_FILE and one.kind in {ENDPOINT, FILE}:
        does = "is slow" if server else OF_FILE[phase]
    low, high = (f"{bound:.2g}" for bound in one.interval)
    factor = f"{one.factor:.3g} times" + (f" ({low} to {high})" if low != high else "")
    did = f"its {counted(one.chunks, 'chunk')} took {factor} as long as expected"
    if one.kind == DATASET:
        did = f"its events take {factor} as long as in other datasets"
    where = f" on {one.host}" if one.host not in {None, one.name} else ""
    others = " or ".join(f"{'server' if kind == ENDPOINT else kind} {name}" for kind, name in one.confounded_with)
    instead = f"; the cause may be {others} instead" if others else ""
    return f"{'Server' if server else one.kind.capitalize()} {one.name}{where} {does}: {did}{instead}."


def _of_kind(evidence: Evidence, kind: str) -> list[Slow]:
    seen = evidence.slowdown
    # what is slow from some time on, and files that were read since, have a finding of their own
    if seen is None:
        return [one for one in evidence.slow or () if one.kind == kind]
    return [
        one
        for one in evidence.slow or ()
        if kind == one.kind
        and (kind != seen.kind or one.name != seen.name)
        and (kind != FILE or one.factor > seen.interval[1])
    ]


SLOW_WORKER: Final = Page(
    "slow-worker",
    "Slow workers and hosts",
    """\
`slowness` is chunk time divided by the time predicted from the chunk's events, bytes, dataset and file, excluding waits
for a core. A worker or host is named if the lower bound on its `slowness` exceeds 1.3.

```python
balance = measurement.worker_balance
print(balance[["worker", "host", "chunks", "slowness", "cpu_share"]].sort_values("slowness"))
measurement.plot("worker_balance")
```""",
)


@finding(
    "slow worker",
    "Slow worker",
    part="who is slow",
    shows="`compute`, `read`",
    outranks=True,
    page=SLOW_WORKER,
)
def slow_worker(evidence: Evidence) -> Finding | None:
    """A slow worker.

    The worker takes longer than others for the same work.

    **Check.** Do not compare totals: slow workers process fewer chunks.

    **Fix.** *computes slowly:* an older or throttled CPU, or another process that fills the caches; check with `top`.
    *reads slowly:* a slow network or disk; compare workers on the same host. Or exclude the worker:
    `client.retire_workers([address])`.

    **Fine if** hardware is mixed: slow nodes still help.
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
    shows="`compute`, `read`",
    outranks=True,
    page=SLOW_WORKER,
)
def slow_host(evidence: Evidence) -> Finding | None:
    """A slow host.

    The host's workers (at least two) are all slow.

    **Check.** `compute` points to the CPU, `read` to the network, `contention` to other programs.

    ```python
    ledger = measurement.time_ledger.by("host")
    print(ledger[["total", "compute", "read", "contention"]])
    ```

    **Fix.** Check the CPU's temperature and frequency, and the network. Or exclude the host: `requirements =
    (Machine != "node-3")` in HTCondor or `--exclude=node-3` in SLURM.

    **Fine if** the CPU is older and chunks are too small to cause a tail.
    """
    return _slow(evidence, _of_kind(evidence, HOST), "Check what else runs there, or exclude it.")


@finding(
    "slow endpoint",
    "Slow storage server",
    part="who is slow",
    shows="`read`, `open`",
    outranks=True,
    page=STORAGE,
)
def slow_endpoint(evidence: Evidence) -> Finding | None:
    """A slow endpoint.

    A storage server (for XRootD, the data server behind the redirector) is slow.

    **Check.**

    ```python
    columns = ["endpoint", "redirector", "requests", "vector_reads", "bytes_per_request"]
    print(measurement.endpoints[[*columns, "latency", "shortest_latency", "rate"]])
    print(measurement.endpoints[["endpoint", "seconds_per_open", "errors", "retries", "losses"]])
    ```

    **Fix.** *Slow server*: read other replicas, or contact the site. *Cold cache* (only first reads are slow): run
    again. *Small requests* (mostly round-trip time): use vector reads (`uproot_options={"handler":
    uproot.XRootDSource}`, or fsspec, uproot's default), larger chunks, or a nearer copy.

    **Fine if** other users keep the server busy: run later.
    """
    found, what, factors = _of_kind(evidence, ENDPOINT), "", None
    if (measured := slow_servers(evidence.endpoints)) and evidence.counted is not None:
        # request durations are less noisy than chunk durations
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
        rows = rows_in(evidence.endpoints)
        behind = {row["endpoint"]: f" behind {row['redirector']}" for row in rows if row["redirector"]}
        what = " ".join(
            f"Server {one.name}{behind.get(one.name, '')} is slow: requests take {one.factor:.3g} times as "
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
    shows="`read`, `open`, `compute`",
    outranks=True,
    page=STORAGE,
)
def slow_file(evidence: Evidence) -> Finding | None:
    """A slow file.

    One file is slower than others in its dataset.

    **Check.**

    ```python
    files = measurement.chunks.groupby("file")[["events", "wall_seconds", "read_seconds", "compute_seconds"]].sum()
    print(files.assign(per_event=files["wall_seconds"] / files["events"]).sort_values("per_event").tail())
    ```

    **Fix.** *is slow to read:* use another replica, or copy the file (`xrdcp root://.../3.root .`) and change the
    fileset. *is slow to open:* it has many small baskets or clusters; rewrite it with `hadd`. *computes slowly:* its
    events may contain more objects than usual.

    **Fine if** the file came from tape, which is slow only once: measure again.
    """
    found, servers = _of_kind(evidence, FILE), slow_servers(evidence.endpoints)
    if servers and evidence.counted is not None:
        # files on a slow server are not blamed
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
    shows="`compute`, `read`",
    outranks=True,
)
def slow_dataset(evidence: Evidence) -> Finding | None:
    """A slow dataset.

    The dataset takes at least twice as long per event as others.

    **Check.** Multiplicity is often the reason: more jets form more pairs.

    ```python
    columns = ["events", "compute_seconds", "read_seconds", "decompress_seconds"]
    sums = measurement.chunks.groupby("dataset")[columns].sum()
    print(sums.div(sums["events"], axis=0))
    print(measurement.hot_functions[["dataset", "function", "line", "seconds"]].head())
    ```

    **Fix.** Look at code that runs only for this dataset, such as systematic variations. Select events
    earlier. If this dataset finishes last, put it first in the fileset.

    **Fine if** this is simulation with weights and variations. The saving assumes that events are as fast as in other
    datasets.
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
    shows="`idle: tail`",
    outranks=True,
    page=TAIL,
)
def slow_chunk(evidence: Evidence) -> Finding | None:
    """A slow chunk.

    The chunk's events, file and worker do not explain its duration.

    **Check.** Each dataset's longest chunk has its own profile. Run this chunk alone with an `IterativeExecutor`.

    ```python
    chunks = measurement.chunks.sort_values("wall_seconds", ascending=False)
    print(chunks[["file", "entry_start", "entry_stop", "events", "worker", "wall_seconds", "compute_seconds"]].head())
    ```

    **Fix.** *computes slowly:* a few events have many objects or combinations, or take a rare code path; cut on
    the number of objects first. *reads slowly, opens files slowly:* storage was briefly slow, or the file is on tape;
    measure again. *is blocked:* a service was slow to respond; set a timeout, and retry the request.

    **Fine if** the next run has a different slow chunk: the host or storage was just slow.
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
    what = f"A chunk ({entries_of(worst)}) took {SECOND.text(wall)} instead of {SECOND.text(expected)}"
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


# What the next run should avoid

CHANCE: Final = 0.01
"""A server is blamed if the probability of at least this many failures by chance is below this value."""


class Avoided(NamedTuple):
    """Servers to avoid, with reasons, and sites whose attempts mostly used these servers."""

    servers: dict[str, str]
    sites: list[str]


@fact
def avoided(run: Run, chunks: pa.Table, endpoints: pa.Table, slowness: Slowness | None = None) -> Avoided:
    slow = {one.name: one.factor for one in (slowness.slow if slowness else ()) if one.kind == ENDPOINT}
    slow |= slow_servers(endpoints)
    servers = {name: f"takes {factor:.3g} times as long as expected" for name, factor in slow.items()}
    tried = endpoints.to_pandas().query("attempts > 0").set_index("endpoint")[["errors", "attempts"]].fillna(0)
    all_failed, all_tried = tried.sum()
    for name, errors, attempts in tried.itertuples():
        chance = scipy.stats.hypergeom.sf(errors - 1, all_tried, all_failed, attempts)
        if errors > 1 and chance * len(tried) < CHANCE:
            servers[name] = f"{number(errors)} of {number(attempts)} attempts failed"
    for name in (LOCAL, UNKNOWN):
        servers.pop(name, None)
    places = with_sites(with_endpoints(chunks), run.asked).select(["endpoint", "site"])
    places = plain(places).to_pandas()
    share = places["endpoint"].isin(servers).groupby(places["site"]).mean()
    return Avoided(servers, sorted(share.index[share > 0.5]))
