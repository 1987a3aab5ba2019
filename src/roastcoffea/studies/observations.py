"""What is compared: a measurement or its repeats, their numbers, both ledgers, and what they were made on."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.errors import ComparisonError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.metrics.statistics import Numbers, moments
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.chunks import PHASES
from roastcoffea.records.run import Run
from roastcoffea.report.summary import title_of
from roastcoffea.storage.store import is_measurement, list_runs
from roastcoffea.studies.merging import are_jobs, measurement_of, merged_run
from roastcoffea.units import STRUCTURE, WORD, moment, number

IN_PROCESS: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES if phase.in_process))
"""Classes of the time ledger that are spent in process()."""

OF_LOAD: Final = ("contention", "interpreter lock")
"""Classes that come from others on the same cores or in the same process: no chunk size brings them."""

SPLIT: Final = tuple(name for name in IN_PROCESS if name not in OF_LOAD)


class Fixed(NamedTuple):
    """Seconds that the chunks of two runs took whatever their size, before and after, and those of one chunk."""

    before: float
    after: float
    each: float


Sizes = Mapping[str, Numbers]
"""For each dataset a row for each chunk: its events, its bytes, and the seconds of SPLIT."""


def sizes_of(chunks: pa.Table | None) -> Sizes:
    """Sizes of the chunks that counted, with their seconds in process(); NaN where unknown."""
    if chunks is None or chunks["dataset"].null_count:
        return {}
    seconds = [sum(moments(chunks, column) for column in phases.COLUMNS_OF[name]) for name in SPLIT]
    read = moments(chunks, "bytes_payload") + np.nan_to_num(moments(chunks, "bytes_other"))
    rows, dataset = np.column_stack([moments(chunks, "events"), read, *seconds]), np.array(chunks["dataset"])
    return {str(name): rows[dataset == name] for name in np.unique(dataset)}


def fixed_costs(name: str, trait: str, before: Sizes, after: Sizes) -> Fixed | None:
    """What the chunks of two runs cost in a class whatever their size.

    One law is drawn through the chunks of both runs of a dataset: fixed seconds per chunk, and seconds per event (or
    a byte). None where no dataset has chunks of other sizes, or the fixed cost cannot be told apart from noise.
    """
    fixed, chunks = np.zeros(2), 0
    for dataset in before.keys() | after.keys():
        sides = [run.get(dataset, np.empty((0, 2 + len(SPLIT)))) for run in (before, after)]
        rows = np.concatenate(sides)
        each = _of_a_chunk(rows[:, int(trait == "bytes")], rows[:, 2 + SPLIT.index(name)])
        fixed += each * np.array([len(side) for side in sides])
        chunks += len(rows) if each else 0
    return Fixed(float(fixed[0]), float(fixed[1]), float(fixed.sum() / chunks)) if chunks else None


def _of_a_chunk(sizes: Numbers, seconds: Numbers) -> float:
    """Seconds that a chunk takes whatever its size; 0 where they do not stand out or are unknown."""
    if len(sizes) < 4 or not sizes.std() > 0.1 * sizes.mean():
        return 0.0
    from scipy.stats import linregress

    law = linregress(sizes, seconds)
    each, error = float(law.intercept), float(law.intercept_stderr)
    if law.slope < 0:  # an event takes no time back: then all of it is the chunk's, and the rest is scatter
        each, error = float(seconds.mean()), error / max(1 - float(law.rvalue) ** 2, 1e-12) ** 0.5
    return each if each > 2 * error else 0.0


KNOWN: Final = {column.name for column in BRANCH_COLUMNS}
OF_BRANCHES: Final = {phase.time_class: phase.column for phase in phases.PHASES if phase.column in KNOWN}
"""Classes of the time ledger whose seconds are known by branch."""


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
    """What a comparison takes from one run; the records themselves are not kept.

    `facts` are what the run was made on and with, in words. `time` are thread seconds by class, empty without a time
    ledger. `incomplete` is what the ledgers lack, `lacks` what its result lacks, None where nothing is missing or that
    is not known. `core_wait_share` is the time in which chunks waited for a core beside their duration.
    """

    id: str
    name: str
    start: float | None = None
    facts: Mapping[str, str]
    metrics: Mapping[str, float]
    missing: Mapping[str, str]
    time: Mapping[str, float]
    time_absent: str | None
    client_of: Mapping[str, float]
    bytes: Mapping[str, int | None]
    branches: Mapping[str, Branch]
    hosts: Mapping[str, Work]
    chunk_seconds: Numbers
    chunk_cpu_seconds: Numbers
    incomplete: tuple[str, ...]
    lacks: str | None = None
    core_wait_share: float | None = None
    sizes: Sizes = field(default_factory=dict)

    @property
    def thread_seconds(self) -> float:
        """Worker threads x time."""
        return sum(self.time.values())

    @property
    def wall_seconds(self) -> float:
        """Wall time."""
        return self.metrics["elapsed_time_seconds"]


Runs = Sequence[Observation]


def observed(measurement: Measurement, name: str | None = None) -> Observation:
    """What a comparison takes from a measurement."""
    run, metrics = measurement.run, measurement.metrics
    # attempts of chunks that counted; None where they were not recorded
    chunks = None if run.chunks is None or "chunks" in run.absent else counted_chunks(run.chunks)
    wall, waited = _values(chunks, "wall_seconds"), _values(chunks, "core_wait_seconds")
    time, read = measurement.time_ledger, measurement.byte_ledger
    # the others are not asked for: the verdict among them takes replays of the run
    plain = [name for name, unit in metrics.unit.items() if unit not in (STRUCTURE, WORD)]
    known = {name: metrics[name] for name in plain if name in metrics}
    lacks = None
    with suppress(NotMeasuredError):
        missing = metrics.evaluator.value("incompleteness")
        if not missing.complete:
            lacks = missing.how_much if missing.files or missing.chunks else missing.what
    return Observation(
        id=run.id,
        name=name or title_of(run),
        start=run.start,
        facts=facts_of_run(run) | ({"bottleneck": str(metrics["bound"])} if "bound" in metrics else {}),
        metrics={
            name: float(value)
            for name, value in known.items()
            if isinstance(value, Real) and not isinstance(value, bool) and np.isfinite(float(value))
        },
        missing={name: metrics.missing[name] for name in plain if name in metrics.missing},
        time=dict(time),
        time_absent=time.absent,
        client_of=time.client_of,
        bytes=dict(read),
        branches=_branches(read.branches),
        hosts=_hosts(chunks, time),
        chunk_seconds=wall,
        chunk_cpu_seconds=_values(chunks, "cpu_seconds"),
        core_wait_share=float(waited.sum() / wall.sum()) if len(waited) and wall.sum() else None,
        sizes=sizes_of(chunks),
        incomplete=tuple(
            f"{what}: {reason}"
            for what, one in (("time ledger", time), ("byte ledger", read))
            if one.absent is None
            for reason in one.certificate.reasons
        ),
        lacks=lacks,
    )


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


def _hosts(chunks: pa.Table | None, ledger: TimeLedger) -> dict[str, Work]:
    """What was done on each host; nothing where the hosts are unknown."""
    if chunks is None or not len(chunks) or ledger.absent is not None:
        return {}
    hosts = [ledger.hosts.get(worker) for worker in chunks["worker"].to_pylist()]
    if None in hosts:
        return {}
    amounts = chunks.select(["events", "bytes_payload", "bytes_other"]).to_pandas().fillna(0)
    sums, numbers = amounts.groupby(hosts).sum(), Counter(hosts)
    # not the sums over chunks: start-up is taken out of the classes
    seconds = ledger.by("host").reindex(columns=list(phases.COLUMNS_OF), fill_value=0.0)
    return {
        host: Work(events, payload + others, numbers[host], seconds.loc[host].to_dict())
        for host, events, payload, others in sums.itertuples()
    }


def bytes_of_branches(observation: Observation) -> float | None:
    """Bytes of baskets that were requested, of other files as well; None where that is not known."""
    amounts = [observation.bytes.get(name) for name in (phases.PAYLOAD, phases.REREAD)]
    others = observation.bytes.get(phases.OTHER_FILES) or 0
    return None if None in amounts else float(others + sum(amount or 0 for amount in amounts))


# What a run was made on


def facts_of_run(run: Run) -> dict[str, str]:
    """Versions, machines, processor, settings and data of a run, in words."""
    environment, calls = run.environment, run.calls
    facts: dict[str, Any] = {**environment.versions, "backend": run.backend, "client host": environment.client_host}
    facts["hosts"] = _named(host.name for host in environment.hosts)
    facts["cores of hosts"] = _tallied(host.cores for host in environment.hosts)
    if run.lifetimes is not None:
        facts["threads of workers"] = _tallied(run.lifetimes["threads"].drop_null().to_pylist())
    facts |= {name: _named(getattr(call, name) for call in calls) for name in ("processor", "executor")}
    facts["fileset"] = _named(call.fileset[:12] for call in calls if call.fileset)
    options = dict.fromkeys(name for call in calls for name in call.options)
    facts |= {name: _named(call.options[name] for call in calls if name in call.options) for name in options}
    table = run.asked or run.chunks
    if table is not None:
        files, datasets = (sorted(filter(None, table[name].unique().to_pylist())) for name in ("file", "dataset"))
        facts |= {"datasets": _named(datasets), "files": number(len(files))}
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _named(values: Iterable[Any]) -> str:
    """Different values, each once; a long list is cut, and its rest counted."""
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    return ", ".join(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])


def _tallied(values: Iterable[Any]) -> str:
    """Different values with how often each occurs."""
    return _named(f"{times} x {value}" for value, times in sorted(Counter(values).items(), key=str))


LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Repeats of one run, under the letter that tables call them by."""

    letter: str
    label: str
    runs: tuple[Observation, ...]
    left_out: tuple[str, ...] = ()
    """What was given and is not compared, with the reason."""


def side_of(letter: str, given: Any, label: str | None = None, folder: Path | None = None) -> Side:
    """What was given, as repeats of one run.

    Parameters
    ----------
    given
        A measurement, a collector, a path or pattern, or a sequence of such.
    folder
        Where a name is looked for that is no path.

    Raises
    ------
    MeasurementError, ComparisonError
        If there is nothing to be read, or nothing in it that can be compared.
    """
    runs: list[Observation] = []
    left_out: list[str] = []
    for name, measurement in _measurements(given, folder):
        if measurement.run.ended_early:
            left_out.append(f"{name or title_of(measurement.run)} {measurement.run.ending}: {measurement.error}")
            continue
        if not measurement.run.calls and not measurement.run.chunks and measurement.run.reported is None:
            raise ComparisonError(f"{name or title_of(measurement.run)} cannot be compared: no Runner was called in it")
        run = observed(measurement, name)
        if run.metrics.get("total_events") == 0 or "elapsed_time_seconds" not in run.metrics:
            reason = run.missing.get("elapsed_time_seconds", "it has no events")
            raise ComparisonError(f"{run.name} cannot be compared: {reason}; give a run that did something")
        runs.append(run)
    if not label:
        label = runs[0].name if len(runs) == 1 else letter
        if isinstance(given, str | os.PathLike):  # who reads it may not have the folders of an absolute path
            label = Path(given).name if Path(given).is_absolute() else str(given)
    if not runs:
        reason = "; ".join(left_out) or "nothing was given"
        raise ComparisonError(f"{label} has no run that can be compared: {reason}")
    return Side(letter=letter, label=label, runs=tuple(runs), left_out=tuple(left_out))


def distinct(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Sides whose labels, and whose runs' names, are told apart: equal ones get when the run began, or its identity."""
    labels = _told_apart({side.letter: (side.label, side.runs[0].start) for side in sides})
    names = _told_apart({run.id: (run.name, run.start) for side in sides for run in side.runs})
    return tuple(
        replace(side, label=labels[side.letter], runs=tuple(replace(run, name=names[run.id]) for run in side.runs))
        for side in sides
    )


def _told_apart(named: Mapping[str, tuple[str, float | None]]) -> dict[str, str]:
    """Names by identity, which is added to a name that others have at the same time of start."""
    names, at_once = Counter(name for name, _ in named.values()), Counter(named.values())
    found = {}
    for one, (name, start) in named.items():
        when = one[:8] if start is None or at_once[name, start] > 1 else moment(start)
        found[one] = name if names[name] == 1 else f"{name} ({when})"
    return found


def _measurements(given: Any, folder: Path | None) -> Iterator[tuple[str | None, Measurement]]:
    """Measurements one by one, with the name of their folder where they were loaded."""
    if isinstance(given, str | os.PathLike):
        found = [(path.name, load(path)) for path in paths_of(given, folder)]
        runs = [measurement.run for _, measurement in found]
        yield from [(Path(given).name, Measurement(merged_run(runs)))] if are_jobs(runs) else found
    elif isinstance(given, Sequence):
        for one in given:
            yield from _measurements(one, folder)
    else:
        yield None, measurement_of(given)


def paths_of(given: str | os.PathLike[str], folder: Path | None = None) -> list[Path]:
    """Folders of measurements that a path, a pattern or a name stands for.

    A folder of measurements stands for all in it, which are repeats or the jobs of one campaign; a name for the
    measurements of that name with a number behind it, in its folder, else in `folder`.
    """
    path = Path(given)
    if path.is_file() or is_measurement(path):
        return [path]
    if path.is_dir():
        found = [stored.path for stored in list_runs(path)]
        if not found:
            raise ComparisonError(f"{given} holds no measurement")
        return found
    # Path.glob takes no pattern that begins with a root
    matching = map(Path, sorted(glob.glob(str(given))))  # noqa: PTH207
    found = list(filter(is_measurement, matching)) or _repeats(path)
    if not found and folder is not None and not path.is_absolute():
        found = [folder / path] if is_measurement(folder / path) else _repeats(folder / path)
    if not found:
        raise ComparisonError(f"{given} is no measurement, no pattern of some, and no name with repeats")
    return found


def _repeats(name: Path) -> list[Path]:
    """Measurements of this name with a number behind it."""
    numbered = re.compile(re.escape(name.name) + r"[-_. ]\d+")
    inside = sorted(name.parent.iterdir()) if name.parent.is_dir() else []
    return [path for path in inside if numbered.fullmatch(path.name) and is_measurement(path)]
