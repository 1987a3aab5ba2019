"""Slow workers, hosts, servers and files, and heavy datasets: one model of all chunks, with a law of their duration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.diagnosis.blame import (
    ENDPOINT,
    FILE,
    HOST,
    KINDS,
    WORKER,
    Blame,
    Estimates,
    Levels,
    Noise,
    Parts,
    blamed,
    estimated,
    total,
)
from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import fact, refuse_if
from roastcoffea.metrics.endpoints import with_endpoints
from roastcoffea.metrics.facts import rows_where, with_outcome
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, moments
from roastcoffea.records import chunks as chunk_records

FEWEST_TO_FIT: Final = 8
"""Chunks that a dataset needs for a law of its own; smaller datasets share one."""

ROUNDS: Final = 20
MOST_TO_FIT: Final = 2_000
"""Chunks drawn at random for the fit: enough for three parameters."""

SMALLEST: Final = 1e-9


def typical_seconds(dataset: Integers, traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Duration predicted from a chunk's traits, by the law of its dataset, or of all datasets if it has few chunks."""
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = predicted(traits, seconds, usual) if few.any() else np.empty(len(seconds))
    order = np.argsort(dataset, kind="stable")
    for rows in np.split(order, np.cumsum(numbers)[:-1]):
        if len(rows) >= FEWEST_TO_FIT:
            typical[rows] = predicted(traits[rows], seconds[rows], usual[rows])
    return typical


def predicted(traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Durations by a linear law in the traits, fitted to the usual chunks with least absolute deviations.

    Coefficients are not negative, so a few extra bytes cannot explain a straggler, nor can a small difference between
    two files explain why one of them is many times slower.
    """
    scale = np.abs(traits).max(axis=0)
    scaled = traits[:, scale > 0] / scale[scale > 0]
    rows = np.flatnonzero(usual) if usual.any() else np.arange(len(seconds))
    if len(rows) > MOST_TO_FIT:
        rows = np.random.default_rng(1).choice(rows, MOST_TO_FIT, replace=False)
    fitted, aims = scaled[rows], seconds[rows]
    weights, finest = np.ones(len(aims)), SMALLEST + 1e-3 * np.median(aims)
    for _ in range(ROUNDS):
        basis, triangle = np.linalg.qr(fitted * weights[:, None])
        law = scipy.optimize.nnls(triangle, basis.T @ (aims * weights))[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(aims - fitted @ law), finest))
    # where few chunks have such traits, a law may fall below every recorded chunk
    return np.asarray(np.maximum(scaled @ law, max(float(seconds.min()), SMALLEST)))


DATASET: Final = "dataset"

HEAVY: Final = float(np.log(2.0))
"""Smallest effect of a heavy dataset: datasets differ by nature, and less is no surprise."""

USUAL: Final = 2.0
"""Chunks this many times slower than expected are left out of the fit."""

WITHOUT_FIRST: Final = 3
"""Later chunks that a worker needs before first chunks on its threads are left out."""

PASSES: Final = 2

CORE_WAIT: Final = ("contention_seconds", "core_wait_seconds")
"""Columns for time without a free core, the better one first."""

LOCK: Final = "lock_seconds"
COLLECTED: Final = "gc_seconds"

BY_CHANCE: Final = (*CORE_WAIT, LOCK)
"""Columns of time that a chunk loses to other activity, which is nobody's slowness."""

PHASES: Final = tuple(
    phase.column for phase in phases.PHASES if phase.part != "saving" and phase.column not in BY_CHANCE
)
"""Columns of the phases that work on a chunk's events and file."""

OF_CHUNKS: Final = (
    *("id", "dataset", "file", "entry_start", "entry_stop", "worker", "wall_seconds"),
    *("events", "bytes_payload", *PHASES),
)


class Slow(NamedTuple):
    """A worker, host, endpoint or file that is slower than the others, or a dataset that is heavier per event."""

    kind: str
    name: str
    factor: float
    """Duration of its chunks divided by what they would take elsewhere."""
    interval: tuple[float, float]
    seconds: float
    """Thread time in excess of the model, without waiting for a core or the interpreter."""
    chunks: int
    phase: str | None = None
    """Phase with most of the excess: `read` waits for storage, `compute` computes slowly; None if not measured."""
    phase_seconds: float = 0.0
    """Excess seconds in that phase."""
    host: str | None = None
    """Host of a worker, if known."""
    confounded_with: tuple[tuple[str, str], ...] = ()
    """Kinds and names that had the same chunks and explain them as well: the run cannot distinguish them."""


@dataclass(frozen=True)
class Slowness:
    """Durations of chunks compared with the model."""

    slow: list[Slow]
    """Levels that are certainly slower than the others, most seconds first."""
    factors: Mapping[str, pa.Table]
    """All levels by kind: `name`, `chunks` (used for it), `factor` (shrunk towards 1 as far as chance explains it),
    `low` and `high`."""
    chunks: pa.Table
    """Attempts that were computed and counted: OF_CHUNKS, `typical_seconds` (predicted from events and bytes, by
    dataset), `slowness` (of worker and host) and `expected_seconds` (with all effects and its contention)."""
    first_factor: float
    """Duration of a thread's first chunk divided by that of a later one."""


@dataclass(frozen=True)
class _Coded:
    """Chunks as arrays."""

    table: pa.Table
    seconds: Numbers
    lost: Numbers
    """Seconds without a core or the interpreter, or in garbage collection, which `seconds` excludes."""
    levels: Mapping[str, Levels]
    names: Mapping[str, Sequence[str | None]]
    host_of: Integers
    endpoint_of: Integers
    """Endpoint of each pair of a file and an endpoint that it was read from."""
    pairs: Levels
    first: Flags
    counts: Flags
    """Whether a chunk is used for the model: it has events, and is not the first of several on its thread."""

    @cached_property
    def traits(self) -> Numbers:
        """Variables in which a chunk's duration is linear."""
        return np.column_stack([np.ones(len(self.seconds)), self.events, amounts(self.table, "bytes_payload")])

    @cached_property
    def events(self) -> Numbers:
        """Events of each chunk."""
        return amounts(self.table, "events")

    def counted(self, kind: str) -> Levels:
        """Levels of the chunks used for the model."""
        return self._used(self.levels[kind])

    def parts(self) -> dict[str, Parts]:
        """Workers of hosts, and files of endpoints, of the chunks used for the model."""
        hosts = Parts(self.counted(WORKER), self.host_of)
        endpoints = Parts(self._used(self.pairs), self.endpoint_of)
        return {kind: each for kind, each in ((HOST, hosts), (ENDPOINT, endpoints)) if kind in self.levels}

    def _used(self, levels: Levels) -> Levels:
        return Levels.of(levels.codes[self.counts], len(levels.sizes))


@dataclass(frozen=True)
class _Fitted:
    """The fitted model."""

    blame: Blame
    typical: Numbers
    effect: Numbers
    first: float
    usual: Flags

    @property
    def expected(self) -> Numbers:
        """Expected seconds of each chunk, except losses by chance."""
        return np.asarray(self.typical * np.exp(self.effect))


@fact
def slowness(counted_chunks: pa.Table, lifetimes: pa.Table | None = None) -> Slowness:
    """Slow workers, hosts, endpoints and files and heavy datasets, from chunks that were computed and counted."""
    computed = with_endpoints(with_outcome(counted_chunks, (chunk_records.OK,)))
    chunks = _coded(rows_where(computed, computed["wall_seconds"].is_valid()), lifetimes)
    refuse_if(not len(chunks.seconds), "no chunk with a duration was computed")
    fitted = _fitted(chunks)
    heavy = _heaviness(chunks, fitted)
    describer = _Describer(chunks, fitted)
    slow = [*_slow(chunks, fitted, describer), *_heavy(chunks, describer, heavy)]
    return Slowness(
        slow=sorted(slow, key=lambda one: -one.seconds),
        factors=_factors(chunks, fitted.blame.estimates | {DATASET: heavy}),
        chunks=_expected(chunks, fitted),
        first_factor=float(np.exp(fitted.first)),
    )


def _coded(table: pa.Table, lifetimes: pa.Table | None) -> _Coded:
    """Durations of the chunks without losses by chance, and their levels."""
    wall = amounts(table, "wall_seconds")
    # a full collection takes as long as a short chunk, and hits any of them
    collected = _known(table, COLLECTED)
    lost = _known(table, *CORE_WAIT) + _known(table, LOCK) + collected
    worked = np.minimum(amounts(table, "cpu_seconds"), wall) - collected
    seconds = np.maximum(wall - lost, np.maximum(worked, SMALLEST))
    encoded = {kind: _encoded(table[kind]) for kind in (WORKER, ENDPOINT, FILE, DATASET)}
    levels = {kind: Levels.of(numbers, len(names)) for kind, (numbers, names) in encoded.items()}
    names: dict[str, Sequence[str | None]] = {kind: known for kind, (_, known) in encoded.items()}
    host_of, names[HOST] = _hosts(names[WORKER], lifetimes)
    if len(names[HOST]) > 1 and len(names[HOST]) < len(host_of):
        levels = {HOST: Levels.of(host_of[levels[WORKER].codes], len(names[HOST]))} | levels
    pairs, endpoint_of = _pairs(levels[FILE], levels[ENDPOINT])
    if not 1 < len(names[ENDPOINT]) < len(endpoint_of):
        del levels[ENDPOINT]
    first = _first_of_threads(table)
    events = amounts(table, "events")
    later = np.bincount(levels[WORKER].codes, ~first, minlength=len(names[WORKER]))[levels[WORKER].codes]
    counts = (~first | (later < WITHOUT_FIRST)) & ((events > 0) | (not events.any()))
    return _Coded(table, seconds, wall - seconds, levels, names, host_of, endpoint_of, pairs, first, counts)


def _pairs(files: Levels, endpoints: Levels) -> tuple[Levels, Integers]:
    """Pairs of a file and an endpoint that it was read from, and the endpoint of each."""
    number = len(endpoints.sizes)
    found, rows = np.unique(files.codes * number + endpoints.codes, return_inverse=True)
    return Levels.of(rows, len(found)), found % max(number, 1)


def _known(table: pa.Table, *names: str) -> Numbers:
    """Seconds of each chunk from the first of these columns that has values; 0 if none has."""
    known = [table[name] for name in names if name in table.column_names]
    found = pc.coalesce(*known, pa.scalar(0.0)) if known else pa.nulls(len(table), pa.float64())
    return np.asarray(pc.fill_null(pc.cast(found, pa.float64()), 0.0).to_numpy(), np.float64)


def _encoded(column: pa.ChunkedArray) -> tuple[Integers, list[str | None]]:
    """A number for each name, in order of appearance, and the names."""
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), np.int64), encoded.dictionary.to_pylist()


def _hosts(workers: Sequence[str | None], lifetimes: pa.Table | None) -> tuple[Integers, list[str | None]]:
    """Host number of each worker, and the hosts; a worker without a known host has one of its own."""
    known = (
        {}
        if lifetimes is None
        else dict(zip(*(lifetimes[name].to_pylist() for name in ("worker", "host")), strict=True))
    )
    hosts = {known.get(worker) or (worker,): known.get(worker) for worker in workers}
    number = {host: place for place, host in enumerate(hosts)}
    return np.array([number[known.get(worker) or (worker,)] for worker in workers], np.int64), list(hosts.values())


def _first_of_threads(table: pa.Table) -> Flags:
    """Whether each chunk is the first of its thread; none is if threads or start times are unknown."""
    start = moments(table, "start")
    if table["thread"].null_count or np.isnan(start).any():
        return np.zeros(len(table), np.bool_)
    number = codes(table["worker"]) * (len(table) + 1) + codes(table["thread"])
    threads = codes(pa.chunked_array([pa.array(number)]))
    earliest = np.full(int(threads.max(initial=-1)) + 1, np.inf)
    np.minimum.at(earliest, threads, start)
    return np.asarray(start == earliest[threads])


def _fitted(chunks: _Coded) -> _Fitted:
    """Law, factors and culprits; the law is refitted without the culprits."""
    groups = {kind: chunks.counted(kind) for kind in KINDS if kind in chunks.levels}
    datasets = chunks.counted(DATASET)
    every = {kind: chunks.levels[kind] for kind in groups}
    parts = chunks.parts()
    effect, usual, traits = np.zeros(len(chunks.seconds)), ~chunks.first, chunks.traits
    fitted = None
    for _ in range(PASSES):
        plain = chunks.seconds / np.exp(effect)
        typical = typical_seconds(chunks.levels[DATASET].codes, traits, plain, usual)
        # a straggler with rare traits would determine its own law
        typical = typical_seconds(chunks.levels[DATASET].codes, traits, plain, usual & (plain <= USUAL * typical))
        values = np.log(chunks.seconds / typical)
        first = _first_effect(values - (total(fitted.blame.effects, every) if fitted else 0.0), chunks)
        values = values - first * chunks.first
        known = fitted.blame if fitted else None
        blame = blamed(values[chunks.counts], groups, datasets, parts, known)
        effect = total(blame.effects, every) + first * chunks.first
        usual = chunks.seconds <= USUAL * typical * np.exp(effect)
        fitted = _Fitted(blame, typical, effect, first, usual)
        if not effect.any():
            break
    assert fitted is not None
    return fitted


def _first_effect(values: Numbers, chunks: _Coded) -> float:
    """Effect of being the first chunk of a thread; measurable if most chunks are later ones."""
    number = int(chunks.first.sum())
    if not number or 2 * number > len(values):
        return 0.0
    return max(float(np.sort(values[chunks.first])[(number - 1) // 2] - np.median(values[~chunks.first])), 0.0)


def _heaviness(chunks: _Coded, fitted: _Fitted) -> Estimates:
    """Weight of each dataset's events relative to the others, with slow levels removed."""
    common = predicted(chunks.traits[:, :2], chunks.seconds / np.exp(fitted.effect), fitted.usual)
    values = (np.log(chunks.seconds / common) - fitted.effect)[chunks.counts]
    levels = chunks.counted(DATASET)
    tests = int(np.count_nonzero(levels.sizes))
    return estimated(values, levels, Noise.around(values, [levels]), tests, scatter=False)


def _slow(chunks: _Coded, fitted: _Fitted, describer: _Describer) -> Iterator[Slow]:
    """Workers, hosts and files that are blamed."""
    for kind, effects in fitted.blame.effects.items():
        for level in np.flatnonzero(effects):
            others = fitted.blame.confounded.get((kind, int(level)), [])
            confounded = [(other, chunks.names[other][one]) for other, one in others]
            yield from describer.described((kind, int(level)), fitted.blame.estimates[kind], confounded)


def _heavy(chunks: _Coded, describer: _Describer, heavy: Estimates) -> Iterator[Slow]:
    """Datasets that are heavy."""
    levels = chunks.counted(DATASET)
    if np.count_nonzero(levels.sizes) < 2:
        return
    for level in np.flatnonzero((heavy.low > HEAVY) & (levels.sizes > 1)):
        yield from describer.described((DATASET, int(level)), heavy, _same_chunks(chunks, int(level)))


def _same_chunks(chunks: _Coded, dataset: int) -> Iterator[tuple[str, str | None]]:
    """Hosts, workers, endpoints and files that had exactly the chunks of a dataset."""
    rows = chunks.levels[DATASET].codes == dataset
    for kind in KINDS:
        if kind in chunks.levels:
            own = chunks.levels[kind].codes[rows]
            if (own == own[0]).all() and chunks.levels[kind].sizes[own[0]] == len(own):
                yield kind, chunks.names[kind][own[0]]


class _Describer:
    """Describes slow levels relative to the usual: the share of each phase in chunks that are not slow, by dataset."""

    def __init__(self, chunks: _Coded, fitted: _Fitted) -> None:
        self.chunks, self.fitted = chunks, fitted
        self.dataset = chunks.levels[DATASET].codes
        self.later = ~chunks.first
        self.phases = np.column_stack([amounts(chunks.table, name) for name in PHASES])
        free = np.flatnonzero((fitted.effect == 0) & fitted.usual & chunks.counts)
        number = len(chunks.names[DATASET])
        weights = [chunks.seconds[free], *self.phases[free].T]
        sums = np.array([np.bincount(self.dataset[free], weight, minlength=number) for weight in weights])
        self.seconds, self.of_phases = sums[0], sums[1:].T

    def described(
        self, who: tuple[str, int], estimates: Estimates, confounded: Iterable[tuple[str, str | None]]
    ) -> Iterator[Slow]:
        """Description of a slow level, by kind and number; nothing if it has no name."""
        (kind, level), chunks, fitted = who, self.chunks, self.fitted
        name, own = chunks.names[kind][level], estimates.effect[level]
        if name is None:
            return
        rows = np.flatnonzero(chunks.levels[kind].codes == level)
        expected = fitted.typical[rows] * np.exp(fitted.effect[rows] - own)
        phase, beyond = self.excess(kind, rows, expected)
        yield Slow(
            kind=kind,
            name=name,
            factor=float(np.exp(own)),
            interval=(float(np.exp(estimates.low[level])), float(np.exp(estimates.high[level]))),
            seconds=float(np.sum(chunks.seconds[rows] - expected)),
            chunks=len(rows),
            phase=phase,
            phase_seconds=beyond,
            host=chunks.names[HOST][chunks.host_of[level]] if kind == WORKER else None,
            confounded_with=tuple((other, text) for other, text in confounded if text is not None),
        )

    def excess(self, kind: str, rows: Integers, expected: Numbers) -> tuple[str | None, float]:
        """Phase in which chunks exceed the usual share most, and the excess."""
        later = self.later[rows]
        rows, expected = (rows[later], expected[later]) if later.any() else (rows, expected)
        here = self.dataset[rows]
        every = np.full(len(self.seconds), fill_value=True)
        like = every & (np.arange(len(every)) != here[0]) if kind == DATASET else every
        overall, total_seconds = self.of_phases[like].sum(axis=0), self.seconds[like].sum()
        if not total_seconds:
            return None, 0.0
        known = (self.seconds > 0) & (kind != DATASET)
        shares = (
            np.where(known[:, None], self.of_phases, overall) / np.where(known, self.seconds, total_seconds)[:, None]
        )
        of_dataset = np.bincount(here, expected, minlength=len(every))
        beyond = self.phases[rows].sum(axis=0) - of_dataset @ shares
        most = int(np.argmax(beyond))
        return (PHASES[most].removesuffix("_seconds"), float(beyond[most])) if beyond[most] > 0 else (None, 0.0)


def _factors(chunks: _Coded, found: Mapping[str, Estimates]) -> dict[str, pa.Table]:
    """Factors of all levels, by kind."""
    return {
        kind: pa.table(
            {
                "name": pa.array(chunks.names[kind], pa.string()),
                "chunks": chunks.counted(kind).sizes,
                "factor": np.exp(estimates.shrunk),
                "low": np.exp(estimates.low),
                "high": np.exp(estimates.high),
            }
        )
        for kind, estimates in found.items()
    }


def _expected(chunks: _Coded, fitted: _Fitted) -> pa.Table:
    """The chunks with their expected durations."""
    place = chunks.levels[WORKER].codes
    effects, estimates = fitted.blame.effects, fitted.blame.estimates
    own = np.where(effects[WORKER] > 0, effects[WORKER], estimates[WORKER].shrunk)
    if HOST in effects:
        own = own + effects[HOST][chunks.host_of]
    columns = {
        "typical_seconds": fitted.typical,
        "slowness": np.exp(own)[place],
        "expected_seconds": fitted.expected + chunks.lost,
    }
    found = chunks.table.select(OF_CHUNKS)
    for name, values in columns.items():
        found = found.append_column(name, pa.array(values))
    return found
