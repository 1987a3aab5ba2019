"""Sources of studies, and measurements of independent jobs made into one, as if one collector had watched them all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import facts
from roastcoffea.metrics.facts import on_host
from roastcoffea.records.run import FAILED, FINISHED, Environment, Host, MergedRun, Run
from roastcoffea.storage.document import RECORDS, TABLES
from roastcoffea.storage.store import is_measurement, paths_in
from roastcoffea.units import counted

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector


Source: TypeAlias = "Measurement | MetricsCollector | Run | str | PathLike[str]"


def measurement_of(source: Source) -> Measurement:
    """Measurement from any of the sources."""
    if isinstance(source, str | PathLike):
        return load(source)
    found = getattr(source, "measurement", source)
    if isinstance(found, Run):
        return Measurement(found)
    if isinstance(found, Measurement):
        return found
    raise TypeError(f"pass a measurement, a collector, a Run or a path, not {type(source).__name__}")


def name_of(source: Source) -> str:
    """Name of the run: that of its folder, otherwise its own, otherwise its processor's with a part of its identity."""
    if isinstance(source, str | PathLike):
        return Path(source).resolve().name
    run = measurement_of(source).run
    return run.name or f"{facts.name_of(run)} {run.id[:8]}".strip()


NOT_OF_SEVERAL: Final = {
    "coffea_report": "each of the merged runs has its own",
    "custom_metrics": "each of the merged runs has its own",
    "scheduler_clock_offset": "the merged runs had schedulers of their own",
    "sampling_interval": "the merged runs were sampled at different intervals",
}
"""Fields that independent runs do not share, with the reason."""


def merge(*sources: Source | Iterable[Source], name: str | None = None) -> Measurement:
    """Merge measurements of independent jobs into one.

    Chunks, workers and Runner calls of all jobs are put side by side, at the times that each job recorded on its own
    host's clock; the elapsed time is that in which at least one job ran. Sums are those of the jobs. Idle time is
    explained within each job, as no worker of one could take over chunks of another.

    Parameters
    ----------
    *sources
        Measurements, collectors or paths, or sequences of these. A folder that holds measurements stands for all of
        them.
    name
        Name of the merged measurement; without one, the name that all have in common.

    Raises
    ------
    MeasurementError
        If there is nothing to merge, a measurement cannot be read, one was given twice, or they cannot be merged: runs
        with a Dask scheduler and runs without, and numbers that another program computed.

    Examples
    --------
    >>> campaign = merge("jobs")  # doctest: +SKIP
    >>> campaign.save("roastcoffea-runs", "campaign")  # doctest: +SKIP
    """
    # reading waits for storage: threads let others read meanwhile
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(measurement_of, chain.from_iterable(map(_each, sources))))
    if not found:
        raise MeasurementError("there is nothing to merge; give measurements, or a folder that holds some")
    if len(found) == 1 and name is None:
        return found[0]
    return Measurement(merged_run([each.run for each in found], name))


def measurement_at(path: str | PathLike[str]) -> Measurement:
    """Measurement at a path; for a folder with the jobs of one campaign, all of them merged.

    Raises
    ------
    MeasurementError
        If there is none, it cannot be read, or the folder holds runs that are not jobs of one campaign: they ran
        different processors, or processed the same files.
    """
    found = merge(path)
    calls = found.run.calls
    filesets = [call.fileset for call in calls if call.fileset is not None]
    if found.run.merged and (len({call.processor for call in calls}) > 1 or len(set(filesets)) < len(filesets)):
        raise MeasurementError(
            f"{path} holds {len(found.run.merged)} runs that are not jobs of one campaign: they ran different "
            f"processors, or processed the same files; give one of them (roastcoffea list {path} shows them), or merge "
            "those that are"
        )
    return found


def are_jobs(runs: Sequence[Run]) -> bool:
    """Whether several runs are jobs of one campaign: of one processor, and each with files of its own."""
    calls = [call for run in runs for call in run.calls]
    filesets = {call.fileset for call in calls} - {None}
    return len(runs) > 1 and len(filesets) == len(calls) and len({call.processor for call in calls}) == 1


def _each(source: Source | Iterable[Source]) -> Iterator[Source]:
    """What was given, one by one; for a folder of measurements those in it."""
    if isinstance(source, str | PathLike):
        path = Path(source)
        # loading a folder without measurements says what is wrong
        yield from [path] if not path.is_dir() or is_measurement(path) else paths_in(path) or [path]
    elif isinstance(source, Iterable):
        for one in source:
            yield from _each(one)
    else:
        yield source


def merged_run(runs: Sequence[Run], name: str | None = None) -> Run:
    """One run that holds all that was seen of several."""
    _check(runs)
    runs = sorted(runs, key=lambda run: run.start)
    worked = [run for run in runs if run.calls or run.chunks or run.tasks]
    if 0 < len(worked) < len(runs):
        found, empty = merged_run(worked, name), len(runs) - len(worked)
        left_out = f"{counted(empty, 'run')} in which nothing ran {'was' if empty == 1 else 'were'} left out"
        return replace(found, problems=(*found.problems, left_out))
    renamed = [*_with_workers_of_their_own(runs)]
    failed = [run for run in runs if run.ended_early]
    own: dict[str, Any] = {field: _common(getattr(run, field) for run in runs) for field in NOT_OF_SEVERAL}
    tables: dict[str, Any] = {name: _table([getattr(run, name) for run in renamed]) for name in RECORDS}
    return Run(
        # equal for the same runs
        id=hashlib.sha256(" ".join(sorted(_ids(runs))).encode()).hexdigest()[:32],
        name=name or _common(run.name for run in runs),
        start=runs[0].start,
        stop=max(run.stop for run in runs),
        outcome=FAILED if failed else FINISHED,
        error=f"{counted(len(failed), 'run')} of {len(runs)} failed: {failed[0].error}" if failed else None,
        backend=", ".join(dict.fromkeys(run.backend for run in runs)),
        environment=_environment([run.environment for run in runs]),
        calls=tuple(call for run in runs for call in run.calls),
        merged=tuple(part for run in runs for part in run.merged or (_part(run),)),
        attempts=_sum(run.attempts for run in runs),
        dropped=_sum(run.dropped for run in runs) or {},
        absent=dict(_absent(runs, {name for name, value in own.items() if value is None})),
        problems=tuple(_problems(runs)),
        span_metrics=_sum(run.span_metrics for run in runs),
        # no two have the name of a worker in common
        span_metrics_per_worker=_sum(run.span_metrics_per_worker for run in renamed),
        shared=all(run.shared for run in runs),
        **own,
        **tables,
    )


def _check(runs: Sequence[Run]) -> None:
    twice = [run for run, times in Counter(_ids(runs)).items() if times > 1]
    if twice:
        raise MeasurementError(f"run {twice[0]} was given more than once: its chunks would count twice; give it once")
    for run in runs:
        if run.reported is not None:
            known = f"{run.name or run.id} has numbers of {run.reported_by} and no records"
            raise MeasurementError(f"{known}: it cannot be merged; leave it out")
    if len({run.tasks is None for run in runs}) > 1:
        name = next(run.name or run.id for run in runs if run.tasks is None)
        raise MeasurementError(f"runs with a scheduler and without ({name}) cannot be merged; merge each kind alone")


def _ids(runs: Iterable[Run]) -> Iterator[str]:
    """Identities of runs, of merged ones those of what they were merged from."""
    for run in runs:
        yield from [part.id for part in run.merged] or [run.id]


def _part(run: Run) -> MergedRun:
    facts = {each.name: getattr(run, each.name) for each in fields(MergedRun) if each.name != "client_host"}
    return MergedRun(**facts, client_host=run.environment.client_host)


def _common(values: Iterable[Any]) -> Any:
    """The value that all have; None where they differ."""
    first, *others = values
    return first if all(other == first for other in others) else None


def _with_workers_of_their_own(runs: Sequence[Run]) -> Iterator[Run]:
    """The same runs, in which no two have the name of a worker, or the number of an attempt, in common."""
    taken: set[str] = set()
    last = 0
    for number, run in enumerate(runs, 1):
        tables: dict[str, pa.Table] = {name: table for name in RECORDS if (table := getattr(run, name))}
        spans, here = run.span_metrics_per_worker, run.environment.client_host
        named = [table["worker"].unique().to_pylist() for table in tables.values() if "worker" in table.column_names]
        names = {}
        for worker in dict.fromkeys(filter(None, chain(*named, spans or ()))):
            names[worker] = on_host(worker, here)
            names[worker] += f"/{number}" if names[worker] in taken else ""
        taken.update(names.values())
        new: dict[str, Any] = {name: _own(run, table, names, last) for name, table in tables.items()}
        if spans is not None:
            new["span_metrics_per_worker"] = {names[worker]: metrics for worker, metrics in spans.items()}
        attempts = (pc.max(table["run_id"]).as_py() for table in tables.values() if "run_id" in table.column_names)
        last += max((each or 0 for each in attempts), default=0) + 1
        yield replace(run, **new)


def _own(run: Run, table: pa.Table, names: Mapping[str, str], last: int) -> pa.Table:
    """A table of the run, with names and numbers that no other run has."""
    here = run.environment.client_host
    for place, name in enumerate(table.column_names):
        column = table[name]
        if name == "worker":
            column = _mapped(column, names.get)
        elif name == "run_id":
            column = pc.add(column, last)
        elif name == "run" and not run.merged:
            column = pa.repeat(pa.scalar(run.id), len(table))
        elif name == "host" and here is not None:
            column = _mapped(column, lambda host: on_host(host, here))
        table = table.set_column(place, name, column)
    return table


def _mapped(column: pa.ChunkedArray, change: Callable[[str], str | None]) -> pa.Array:
    """Texts with a change of each different one; null stays."""
    known = column.combine_chunks().dictionary_encode()
    return pa.array(map(change, known.dictionary.to_pylist()), pa.string()).take(known.indices)


def _table(recorded: Sequence[pa.Table | None]) -> pa.Table | None:
    """Rows of all runs that recorded a table."""
    tables = [table for table in recorded if table is not None]
    filled = list(filter(len, tables)) or tables[:1]
    return pa.concat_tables(filled, promote_options="default").combine_chunks() if filled else None


def _sum(amounts: Iterable[Mapping[Any, Any] | None]) -> dict[Any, Any] | None:
    """Sums by key; None where one of the runs has none."""
    found: dict[Any, Any] = {}
    for each in amounts:
        if each is None:
            return None
        found |= {key: found[key] + amount if key in found else amount for key, amount in each.items()}
    return found


def _environment(environments: Sequence[Environment]) -> Environment:
    """Versions and hosts of all; a package with several versions has them all."""
    packages = dict.fromkeys(name for each in environments for name in each.versions)
    versions = {
        name: ", ".join(dict.fromkeys(each.versions[name] for each in environments if name in each.versions))
        for name in packages
    }
    hosts: dict[str, Host] = {}
    for host in (host for each in environments for host in each.hosts):
        known = hosts.setdefault(host.name, host)
        # what two jobs could use of a host together is not known where they could use different parts
        other = {name: None for name, value in asdict(known).items() if value != getattr(host, name)}
        hosts[host.name] = replace(known, **other)  # type: ignore[arg-type]
    client = _common(each.client_host for each in environments)
    return Environment(versions=versions, client_host=client, hosts=tuple(hosts.values()))


def _absent(runs: Sequence[Run], differing: Collection[str]) -> Iterator[tuple[str, str]]:
    """Why fields are missing: as a run without them tells."""
    yield from ((name, reason) for name, reason in NOT_OF_SEVERAL.items() if name in differing)
    for name in dict.fromkeys([*TABLES, *(name for run in runs for name in run.absent)]):
        lacking = [run for run in runs if name in run.absent or (name in TABLES and getattr(run, name) is None)]
        if lacking and name not in NOT_OF_SEVERAL:
            reason = next((run.absent[name] for run in lacking if name in run.absent), "it was not recorded")
            yield name, reason if len(lacking) == len(runs) else f"in {len(lacking)} of {len(runs)} runs: {reason}"


def _problems(runs: Sequence[Run]) -> Iterator[str]:
    """Problems of all runs, each once, with how many runs have it."""
    for problem, times in Counter(problem for run in runs for problem in dict.fromkeys(run.problems)).items():
        yield problem if times == len(runs) else f"{problem} (in {times} of {len(runs)} runs)"
