"""Loading measurements for studies, and merging independent jobs into one measurement."""

from __future__ import annotations

import glob
import hashlib
import re
import shlex
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

from roastcoffea.errors import MeasurementError, MissingMeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import facts
from roastcoffea.metrics.facts import joined, on_host
from roastcoffea.records.run import FAILED, FINISHED, Environment, Host, MergedRun, Run
from roastcoffea.storage.document import RECORDS, RUN_FILE, TABLES
from roastcoffea.storage.store import is_measurement, is_monitor, list_runs, not_a_measurement, paths_in
from roastcoffea.units import counted

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector


Source: TypeAlias = "Measurement | MetricsCollector | Run | str | PathLike[str]"


def measurement_of(source: Source) -> Measurement:
    if isinstance(source, str | PathLike):
        return load(source)
    found = getattr(source, "measurement", source)
    if isinstance(found, Run):
        return Measurement(found)
    if isinstance(found, Measurement):
        return found
    raise TypeError(f"pass a measurement, a collector, a Run or a path, not {type(source).__name__}")


def name_of(source: Source) -> str:
    """Return the name of the run's folder, the run's own name, or its processor and part of its ID."""
    if isinstance(source, str | PathLike):
        return Path(source).resolve().name
    run = measurement_of(source).run
    return run.name or f"{facts.name_of(run)} {run.id[:8]}".strip()


NOT_OF_SEVERAL: Final = {
    "coffea_report": "each of the merged runs has its own",
    "custom_metrics": "each of the merged runs has its own",
    "scheduler_clock_offset": "each of the merged runs had its own scheduler",
    "sampling_interval": "the merged runs were sampled at different intervals",
}
"""Fields missing from merged runs, with the reasons."""


def merge(*sources: Source | Iterable[Source], name: str | None = None) -> Measurement:
    """Merge measurements from independent jobs into one.

    Chunks, workers and Runner calls from all jobs are combined. Each job's times come from its own host's clock. The
    elapsed time is the time during which at least one job was running. Totals are sums over all jobs. Idle time is
    explained within each job, because workers cannot take over chunks from another job.

    Parameters
    ----------
    *sources
        Measurements, collectors, paths, or sequences of these. A folder stands for all measurements in the folder.
    name
        Name of the merged measurement. The default is the name that all sources share, if any.

    Raises
    ------
    MeasurementError
        If there is nothing to merge, if a measurement cannot be read or was passed twice, if only some of the runs had
        a Dask scheduler, or if a run contains only numbers computed by another program.

    Examples
    --------
    >>> campaign = merge("jobs")  # doctest: +SKIP
    >>> campaign.save("roastcoffea-runs", "campaign")  # doctest: +SKIP
    """
    # loading is I/O-bound, so threads make it faster
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(measurement_of, chain.from_iterable(map(_each, sources))))
    if not found:
        raise MeasurementError("there is nothing to merge; pass measurements or a folder of them")
    if len(found) == 1 and name is None:
        return found[0]
    return Measurement(merged_run([each.run for each in found], name))


def measurement_at(path: str | PathLike[str], found_there: Sequence[Path] = ()) -> Measurement:
    """Load the measurement at a path. If the path is a folder of jobs from one campaign, merge the jobs.

    Pass `found_there` if the measurement folders are already known.

    Raises
    ------
    MeasurementError
        If there is no readable measurement, or if there are several runs that are not jobs of one campaign, because
        they ran different processors or processed the same files.
    """
    paths = found_there or paths_of(path)
    found = merge(paths)
    found.path = found.path or Path(path)
    calls = found.run.calls
    filesets = [call.fileset for call in calls if call.fileset is not None]
    if len(paths) > 1 and (len({call.processor for call in calls}) > 1 or len(set(filesets)) < len(filesets)):
        raise MeasurementError(
            f"{path} matches {len(paths)} runs that are not jobs of one campaign: they ran different processors or "
            f"processed the same files; pass one of them, such as {shlex.quote(str(paths[-1]))}"
        )
    return found


def paths_of(given: str | PathLike[str], folder: Path | None = None) -> list[Path]:
    """Find the measurement folders for a path, pattern or name.

    A folder stands for all measurements in the folder (repeats, or jobs of one campaign). A name also matches numbered
    measurements, such as name-1 and name-2. Names are first tried as paths, and then looked up in `folder`.
    """
    path = Path(given)
    if is_measurement(path):
        return [path]
    if path.is_file():
        if path.name != RUN_FILE:
            raise MissingMeasurementError(f"{given} is a file; pass a measurement folder")
        return [path.parent]
    if path.is_dir() and (found := [stored.path for stored in list_runs(path)]):
        return found
    for place in map(str, [path] if folder is None else [path, folder / path]):
        # Path.glob does not accept absolute patterns
        named, longer = glob.glob(place), glob.glob(f"{glob.escape(place)}*")  # noqa: PTH207
        repeats = [one for one in longer if re.fullmatch(r"[-_. ]\d+", one.removeprefix(place))]
        for names in (named, repeats):
            if found := [one for one in map(Path, sorted(names)) if is_measurement(one)]:
                return found
    if is_monitor(path):
        raise MissingMeasurementError(not_a_measurement(path))
    if path.is_dir():
        raise MissingMeasurementError(f"{given} contains no measurement; pass a measurement or a folder of them")
    raise MissingMeasurementError(f"no measurement found at {given}, and none matching it; see roastcoffea list")


def are_jobs(runs: Sequence[Run]) -> bool:
    """Return whether runs are jobs of one campaign, i.e. ran the same processor on different files."""
    calls = [call for run in runs for call in run.calls]
    filesets = {call.fileset for call in calls} - {None}
    return len(runs) > 1 and len(filesets) == len(calls) and len({call.processor for call in calls}) == 1


def _each(source: Source | Iterable[Source]) -> Iterator[Source]:
    """Flatten sequences of sources, and expand folders into their measurements."""
    if isinstance(source, str | PathLike):
        path = Path(source)
        # yield an empty folder, because trying to load it raises the right error
        yield from [path] if not path.is_dir() or is_measurement(path) else paths_in(path) or [path]
    elif isinstance(source, Iterable):
        for one in source:
            yield from _each(one)
    else:
        yield source


def merged_run(runs: Sequence[Run], name: str | None = None) -> Run:
    _check(runs)
    runs = sorted(runs, key=lambda run: run.start)
    worked = [run for run in runs if run.calls or run.chunks or run.tasks]
    if 0 < len(worked) < len(runs):
        found, empty = merged_run(worked, name), len(runs) - len(worked)
        left_out = f"{counted(empty, 'empty run')} {'was' if empty == 1 else 'were'} left out"
        return replace(found, problems=(*found.problems, left_out))
    renamed = [*_with_workers_of_their_own(runs)]
    failed = [run for run in runs if run.ended_early]
    own: dict[str, Any] = {field: _common(getattr(run, field) for run in runs) for field in NOT_OF_SEVERAL}
    tables: dict[str, Any] = {name: _table([getattr(run, name) for run in renamed]) for name in RECORDS}
    return Run(
        # merging the same runs always results in the same ID
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
        # `renamed` has unique worker names
        span_metrics_per_worker=_sum(run.span_metrics_per_worker for run in renamed),
        shared=all(run.shared for run in runs),
        **own,
        **tables,
    )


def _check(runs: Sequence[Run]) -> None:
    twice = [run for run, times in Counter(_ids(runs)).items() if times > 1]
    if twice:
        raise MeasurementError(
            f"run {twice[0]} was passed more than once, so its chunks would be counted twice; pass it once"
        )
    for run in runs:
        if run.reported is not None:
            known = f"{run.name or run.id} has only numbers from {run.reported_by} and no records"
            raise MeasurementError(f"{known}: it cannot be merged; leave it out")
    if len({run.tasks is None for run in runs}) > 1:
        name = next(run.name or run.id for run in runs if run.tasks is None)
        raise MeasurementError(
            f"runs with and without a scheduler ({name}) cannot be merged; merge each kind separately"
        )


def _ids(runs: Iterable[Run]) -> Iterator[str]:
    """Yield the IDs of the runs. For merged runs, yield the IDs of the original runs."""
    for run in runs:
        yield from [part.id for part in run.merged] or [run.id]


def _part(run: Run) -> MergedRun:
    facts = {each.name: getattr(run, each.name) for each in fields(MergedRun) if each.name != "client_host"}
    return MergedRun(**facts, client_host=run.environment.client_host)


def _common(values: Iterable[Any]) -> Any:
    first, *others = values
    return first if all(other == first for other in others) else None


def _with_workers_of_their_own(runs: Sequence[Run]) -> Iterator[Run]:
    """Make worker names and attempt numbers unique across the runs."""
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
    """Apply a function to each distinct string in a column. Nulls remain null."""
    known = column.combine_chunks().dictionary_encode()
    return pa.array(map(change, known.dictionary.to_pylist()), pa.string()).take(known.indices)


def _table(recorded: Sequence[pa.Table | None]) -> pa.Table | None:
    tables = [table for table in recorded if table is not None]
    filled = list(filter(len, tables)) or tables[:1]
    return joined(filled).combine_chunks() if filled else None


def _sum(amounts: Iterable[Mapping[Any, Any] | None]) -> dict[Any, Any] | None:
    """Sum amounts by key, or return None if any run lacks the amounts."""
    found: dict[Any, Any] = {}
    for each in amounts:
        if each is None:
            return None
        found |= {key: found[key] + amount if key in found else amount for key, amount in each.items()}
    return found


def _environment(environments: Sequence[Environment]) -> Environment:
    """Combine the versions and hosts of all runs. If versions of a package differ, list all of them."""
    packages = dict.fromkeys(name for each in environments for name in each.versions)
    versions = {
        name: ", ".join(dict.fromkeys(each.versions[name] for each in environments if name in each.versions))
        for name in packages
    }
    hosts: dict[str, Host] = {}
    for host in (host for each in environments for host in each.hosts):
        known = hosts.setdefault(host.name, host)
        # unknown if jobs disagree, because each job may use a different part of the host
        other = {name: None for name, value in asdict(known).items() if value != getattr(host, name)}
        hosts[host.name] = replace(known, **other)  # type: ignore[arg-type]
    client = _common(each.client_host for each in environments)
    return Environment(versions=versions, client_host=client, hosts=tuple(hosts.values()))


def _absent(runs: Sequence[Run], differing: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the missing fields, each with the reason given by a run that lacks the field."""
    yield from ((name, reason) for name, reason in NOT_OF_SEVERAL.items() if name in differing)
    for name in dict.fromkeys([*TABLES, *(name for run in runs for name in run.absent)]):
        lacking = [run for run in runs if name in run.absent or (name in TABLES and getattr(run, name) is None)]
        if lacking and name not in NOT_OF_SEVERAL:
            reason = next((run.absent[name] for run in lacking if name in run.absent), "it was not recorded")
            yield name, reason if len(lacking) == len(runs) else f"in {len(lacking)} of {len(runs)} runs: {reason}"


def _problems(runs: Sequence[Run]) -> Iterator[str]:
    for problem, times in Counter(problem for run in runs for problem in dict.fromkeys(run.problems)).items():
        yield problem if times == len(runs) else f"{problem} (in {times} of {len(runs)} runs)"
