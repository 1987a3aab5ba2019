"""What a comparison takes from a run: its numbers, both ledgers, and what it was made on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.completeness import Incompleteness
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import Metrics, phases
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.metrics.facts import lifetimes as known_lifetimes
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.report.summary import title_of
from roastcoffea.studies.compare.chunk_costs import Products, products
from roastcoffea.units import STRUCTURE, WORD, Unit, number

KNOWN: Final = {column.name for column in BRANCH_COLUMNS}
OF_BRANCHES: Final = {phase.time_class: phase.column for phase in phases.PHASES if phase.column in KNOWN}
"""Classes of the time ledger whose seconds are known by branch."""

MOST_NAMES: Final = 6
FINGERPRINT: Final = 12


class Branch(NamedTuple):
    """What a branch cost over a run: bytes that were requested, and thread seconds by class."""

    bytes: int
    seconds: Mapping[str, float]


class Work(NamedTuple):
    """What was done on a host: events, bytes and chunks, and thread seconds by class."""

    events: float
    bytes: float
    chunks: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a comparison takes from one run; the records themselves are not kept."""

    id: str
    name: str
    start: float | None = None
    """Unix time at which the run began."""
    facts: Mapping[str, str]
    """What the run was made on and with, in words."""
    metrics: Mapping[str, float]
    units: Mapping[str, Unit]
    missing: Mapping[str, str]
    time: Mapping[str, float]
    """Thread seconds by class; empty where there is no time ledger."""
    time_absent: str | None
    client_of: Mapping[str, float]
    bytes: Mapping[str, int | None]
    branches: Mapping[str, Branch]
    hosts: Mapping[str, Work]
    chunk_seconds: Numbers
    chunk_cpu_seconds: Numbers
    incomplete: tuple[str, ...]
    """What the ledgers lack."""
    lacks: str | None = None
    """What its result lacks; None where nothing is missing, or that is not known."""
    core_wait_share: float | None = None
    """Time in which chunks waited for a core beside their duration; None where that is not known."""
    products: Products = field(default_factory=dict)
    """By dataset, what least squares need of the chunks: see `chunk_costs`."""

    @property
    def thread_seconds(self) -> float:
        """Worker threads x time."""
        return sum(self.time.values())


Runs = Sequence[Observation]


def observed(measurement: Measurement, name: str | None = None) -> Observation:
    """What a comparison takes from a measurement."""
    run, metrics = measurement.run, measurement.metrics
    # attempts of chunks that counted; None where they were not recorded
    chunks = None if run.chunks is None or "chunks" in run.absent else counted_chunks(run.chunks)
    wall, waited = _values(chunks, "wall_seconds"), _values(chunks, "core_wait_seconds")
    time, read = measurement.time_ledger, measurement.byte_ledger
    # the others are not asked for: the verdict among them takes replays of the run
    of_numbers = [name for name, unit in metrics.unit.items() if unit not in (STRUCTURE, WORD)]
    known = {what: one for what, one in (("time ledger", time), ("byte ledger", read)) if one.absent is None}
    return Observation(
        id=run.id,
        name=name or title_of(run),
        start=run.start,
        facts=facts_of_run(run) | ({"bottleneck": str(metrics["bound"])} if "bound" in metrics else {}),
        metrics=_numbers(metrics, of_numbers),
        units=dict(metrics.unit),
        missing={name: metrics.missing[name] for name in of_numbers if name in metrics.missing},
        time=dict(time),
        time_absent=time.absent,
        client_of=time.client_of,
        bytes=dict(read),
        branches=_branches(read.branches),
        hosts=_hosts(run, chunks, time),
        chunk_seconds=wall,
        chunk_cpu_seconds=_values(chunks, "cpu_seconds"),
        core_wait_share=float(waited.sum() / wall.sum()) if len(waited) and wall.sum() else None,
        products=products(chunks),
        incomplete=tuple(f"{what}: {reason}" for what, one in known.items() for reason in one.certificate.reasons),
        lacks=_lacks(metrics),
    )


def _lacks(metrics: Metrics) -> str | None:
    """How many events the result lacks, else what it lacks."""
    try:
        missing: Incompleteness = metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return None
    if missing.complete:
        return None
    return missing.how_much if missing.files or missing.chunks else missing.what


def _numbers(metrics: Metrics, names: Sequence[str]) -> dict[str, float]:
    plain = {name: metrics[name] for name in names if name in metrics}
    numbers = {name: float(value) for name, value in plain.items() if isinstance(value, Real)}
    return {name: value for name, value in numbers.items() if np.isfinite(value) and not isinstance(plain[name], bool)}


def _values(chunks: pa.Table | None, column: str) -> Numbers:
    """Values of all chunks; none where one lacks it."""
    if chunks is None or chunks[column].null_count:
        return np.empty(0)
    return np.asarray(chunks[column].to_numpy(), dtype=np.float64)


def _branches(branches: pa.Table) -> dict[str, Branch]:
    """Bytes and seconds by name of the branch, over files and datasets; those of unknown size are left out."""
    amounts = ("bytes_payload", "bytes_reread", *OF_BRANCHES.values())
    sums = branches.group_by("branch").aggregate([(name, "sum") for name in amounts])
    return {
        row["branch"]: Branch(
            (row["bytes_payload_sum"] or 0) + (row["bytes_reread_sum"] or 0),
            {of: row[f"{column}_sum"] or 0.0 for of, column in OF_BRANCHES.items()},
        )
        for row in sums.to_pylist()
    }


def _hosts(run: Run, chunks: pa.Table | None, ledger: TimeLedger) -> dict[str, Work]:
    """What was done on each host; nothing where the hosts are unknown."""
    try:
        lifetimes = known_lifetimes(run)
    except NotMeasuredError:
        return {}
    if chunks is None or not len(chunks) or not len(lifetimes) or ledger.absent is not None:
        return {}
    place = pc.index_in(chunks["worker"], value_set=lifetimes["worker"].combine_chunks())
    host = lifetimes["host"].combine_chunks().take(place.combine_chunks())
    if host.null_count:
        return {}
    sums = chunks.select(["events", "bytes_payload", "bytes_other"]).append_column("host", host).group_by("host")
    totals = sums.aggregate(
        [("host", "count"), *((name, "sum") for name in ("events", "bytes_payload", "bytes_other"))]
    )
    # not the sums over chunks: start-up is taken out of the classes
    seconds = ledger.by("host").reindex(columns=list(phases.COLUMNS_OF), fill_value=0.0)
    return {row["host"]: _work(row, seconds.loc[row["host"]].to_dict()) for row in totals.to_pylist()}


def _work(row: Mapping[str, Any], seconds: Mapping[str, float]) -> Work:
    read = (row["bytes_payload_sum"] or 0) + (row["bytes_other_sum"] or 0)
    return Work(row["events_sum"] or 0, read, row["host_count"], seconds)


def bytes_of_branches(observation: Observation) -> float | None:
    """Bytes of baskets that were requested, of other files as well; None where that is not known."""
    amounts = [observation.bytes.get(name) for name in (phases.PAYLOAD, phases.REREAD)]
    others = observation.bytes.get(phases.OTHER_FILES) or 0
    return None if None in amounts else float(others + sum(amount or 0 for amount in amounts))


# What a run was made on


def facts_of_run(run: Run) -> dict[str, str]:
    """Versions, machines, processor, settings and data of a run, in words."""
    environment, hosts = run.environment, run.environment.hosts
    facts: dict[str, Any] = {**environment.versions, "backend": run.backend, "client host": environment.client_host}
    facts |= {"hosts": _named(host.name for host in hosts), "cores of hosts": _tallied(host.cores for host in hosts)}
    if run.lifetimes is not None:
        facts["threads of workers"] = _tallied(run.lifetimes["threads"].drop_null().to_pylist())
    for name in ("processor", "executor"):
        facts[name] = _named(getattr(call, name) for call in run.calls)
    facts["fileset"] = _named(call.fileset[:FINGERPRINT] for call in run.calls if call.fileset)
    for name in dict.fromkeys(name for call in run.calls for name in call.options):
        facts[name] = _named(call.options[name] for call in run.calls if name in call.options)
    table = run.asked if run.asked is not None and len(run.asked) else run.chunks
    if table is not None:
        files, datasets = (sorted(filter(None, table[name].unique().to_pylist())) for name in ("file", "dataset"))
        facts |= {"datasets": _named(datasets), "files": number(len(files))}
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _named(values: Iterable[Any]) -> str:
    """Different values, each once; a long list is cut, and its rest counted."""
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return ", ".join(names)


def _tallied(values: Iterable[Any]) -> str:
    """Different values with how often each occurs."""
    return _named(f"{times} x {value}" for value, times in sorted(Counter(values).items(), key=str))
