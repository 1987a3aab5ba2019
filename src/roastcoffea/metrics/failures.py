"""Failed and repeated work: which attempts failed and why, which files failed, what is missing; problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import MeasurementError, reported
from roastcoffea.metrics.busy import Records, estimated_intervals
from roastcoffea.metrics.catalogue import CHUNKS, fact, metric
from roastcoffea.metrics.facts import FAILED, of_finished_calls, recorded, rows_where, with_outcome
from roastcoffea.metrics.facts import counted_chunks as last_attempts
from roastcoffea.metrics.statistics import Flags, having, moments
from roastcoffea.metrics.totals import disagreements
from roastcoffea.records import tasks as task_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.calls import ASKED_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, SKIPPED
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import FINISHED, Run
from roastcoffea.redaction import redacted
from roastcoffea.units import COUNT, counted, were

REPEATED: Final = "repeated"
"""Reason of an attempt whose result came, and was not used."""

REASONS: Final = (
    '"error", "skipped" (bad file), "worker lost", "cancelled", "unfinished" (when the run stopped) or "repeated"'
)
WITH_ESTIMATES: Final = (
    "how long it kept its thread: estimated where its worker was lost (0 if it was queued there), until the end of the "
    "run where it was unfinished; none where that was not seen"
)
FAILED_COLUMNS: Final = (
    Column("kind", "text", None, '"processor", "merge" or "preprocessing"'),
    *picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    Column("worker", "text", None, "address of the worker"),
    Column("start", "number", "s", "when the attempt began (Unix time)"),
    Column("seconds", "number", "s", WITH_ESTIMATES),
    Column("bytes", "integer", "B", "requested from storage by it; none where it left no record"),
    Column("reason", "text", None, REASONS),
    *picked(CHUNK_COLUMNS, "error", "key"),
    Column("attempt", "integer", None, "which attempt of its task it was, from 1"),
)
"""One row for each failed attempt, in order of time."""

FAILED_FILE_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset", "file"),
    Column("attempts", "integer", None, "attempts that failed"),
    Column("error", "text", None, "text of the last error"),
    Column("missing", "integer", None, "chunks of it without a result; none where even their number is unknown"),
)
"""One row for each file in which an attempt failed."""

OF_CHUNKS: Final = (
    *("dataset", "file", "entry_start", "entry_stop", "worker", "start", "error", "key", "run_id", "attempt"),
    *("id", "call", "tree", "outcome", "wall_seconds", "bytes_requested"),
)
"""Columns of chunks that are looked at: a copy of some rows of them is not one of all."""

PLACE: Final = ("dataset", "file", "tree")
RANGE: Final = ("entry_start", "entry_stop")
MOST_NAMED: Final = 3
"""Files that are named in a problem."""


@fact
def failed_work(run: Run, chunks: pa.Table, counted_chunks: pa.Table, lifetimes: pa.Table | None = None) -> pa.Table:
    """Failed attempts, with FAILED_COLUMNS."""
    rows = [*_failed_chunks(chunks.select(OF_CHUNKS), counted_chunks), *_failed_openings(run)]
    recorded_tasks = {(row["key"], row["run_id"]) for row in rows if row["key"] is not None}
    lost = _failed_tasks(run, chunks, counted_chunks, lifetimes)
    rows += [row for row in lost if (row["key"], row["run_id"]) not in recorded_tasks]
    rows.sort(key=lambda row: (row["start"] is None, row["start"] or 0.0))
    return table_of_rows(FAILED_COLUMNS, rows)


def _failed_chunks(chunks: pa.Table, counted: pa.Table) -> Iterator[dict[str, Any]]:
    used = counted["id"].combine_chunks()
    for row in chunks.filter(pc.invert(pc.is_in(chunks["id"], value_set=used))).to_pylist():
        reason = row["outcome"] if row["outcome"] in FAILED else REPEATED
        yield _failed(row, row["wall_seconds"], reason) | {"kind": task_records.PROCESSOR}


def _failed_openings(run: Run) -> Iterator[dict[str, Any]]:
    failed = [] if run.preprocessing is None else with_outcome(run.preprocessing, (ERROR,)).to_pylist()
    for row in failed:
        yield _failed(row, row["wall_seconds"], ERROR) | {"kind": task_records.PREPROCESSING}


def _failed(row: dict[str, Any], seconds: float | None, reason: str) -> dict[str, Any]:
    return row | {"seconds": seconds, "bytes": row.get("bytes_requested"), "reason": reason}


def _failed_tasks(
    run: Run, chunks: pa.Table, counted: pa.Table, lifetimes: pa.Table | None
) -> Iterator[dict[str, Any]]:
    """Attempts of tasks that ended otherwise; their chunk is told by the scheduler, or by another attempt of it."""
    if run.tasks is None:
        return
    wanted = pc.and_(
        pc.not_equal(run.tasks["kind"], task_records.OTHER), pc.not_equal(run.tasks["outcome"], task_records.OK)
    )
    lost = run.tasks.filter(wanted).to_pylist()
    records = None if lifetimes is None else Records.of(run, lifetimes, chunks, counted)
    spans = _spans(run.tasks, records, np.asarray(wanted.to_numpy())) if lost else ()
    names = ("dataset", "file", *RANGE)
    theirs = chunks.select(["key", *names])
    theirs = theirs.filter(pc.is_in(theirs["key"], value_set=pa.array({row["key"] for row in lost}, pa.string())))
    known = {row["key"]: row for row in theirs.to_pylist()}
    for row, (start, seconds) in zip(lost, spans, strict=True):
        place = known.get(row["key"], {}) if row["file"] is None else row
        yield _failed(row, seconds, row["outcome"]) | {name: place.get(name) for name in names} | {"start": start}


def _spans(tasks: pa.Table, records: Records | None, wanted: Flags) -> Iterator[tuple[float | None, float | None]]:
    """Start and duration of these attempts; one that was only queued on a worker that was lost took 0 s."""
    start, stop = moments(tasks, "start"), moments(tasks, "stop")
    if records is not None:
        start, stop = estimated_intervals(records, tasks)
    queued = having(tasks["outcome"], task_records.LOST) & np.isnan(start) & (records is not None)
    for begun, ended, never in zip(start[wanted], stop[wanted], queued[wanted], strict=True):
        seconds = 0.0 if never else float(ended - begun)
        yield None if np.isnan(begun) else float(begun), None if np.isnan(seconds) else seconds


@fact
def missing_work(run: Run, counted_chunks: pa.Table) -> pa.Table:
    """Requested chunks without a result, and files without chunks, with ASKED_COLUMNS."""
    asked = recorded(run, "asked")
    of_files = asked["entry_start"].is_null()
    wanted, files = asked.filter(pc.invert(of_files)), asked.filter(of_files)
    came = of_finished_calls(run, counted_chunks)
    lacking = _without(_with_processor(run, wanted), _with_processor(run, came), ["processor", *PLACE, *RANGE])
    names = [column.name for column in ASKED_COLUMNS]
    return pa.concat_tables([lacking.select(names), _files_without_chunks(run, files, wanted).select(names)])


@fact
def failed_files(run: Run, failed_work: pa.Table, missing_work: pa.Table | None = None) -> pa.Table:
    """Files in which an attempt failed, with FAILED_FILE_COLUMNS."""
    if missing_work is None and run.asked is not None:
        recorded(run, "asked")  # what was asked for is known in part: it cannot be said what is missing of a file
    lacking: dict[tuple[str, str], int | None] = {}
    for row in [] if missing_work is None else missing_work.to_pylist():
        place = row["dataset"], row["file"]
        lacking[place] = None if row["entry_start"] is None else (lacking.get(place) or 0) + 1
    files: dict[tuple[str, str], dict[str, Any]] = {}
    for row in failed_work.to_pylist():
        if row["error"] is not None and row["file"] is not None:
            place = row["dataset"], row["file"]
            file = files.setdefault(place, {"dataset": place[0], "file": place[1], "attempts": 0})
            file |= {"attempts": file["attempts"] + 1, "error": row["error"], "missing": lacking.get(place, 0)}
    return table_of_rows(FAILED_FILE_COLUMNS, list(files.values()))


def _without(wanted: pa.Table, came: pa.Table, keys: list[str]) -> pa.Table:
    """First row of `wanted` for each key that `came` does not have, sorted by key.

    A key that is not known (Parquet has no trees) equals another one that is not known: a join of Arrow's would keep
    them apart.
    """
    rows = pa.concat_tables([wanted.select(keys), came.select(keys)])
    groups = rows.append_column("row", [np.arange(len(rows))]).group_by(keys)
    spans = groups.aggregate([("row", "min"), ("row", "max")])
    lacking = spans.filter(pc.less(spans["row_max"], len(wanted)))
    return wanted.take(lacking["row_min"]).sort_by([(key, "ascending") for key in keys])


def _with_processor(run: Run, table: pa.Table) -> pa.Table:
    """Rows with the processor of their call: what one did is nothing to another."""
    calls = pa.array([call.id for call in run.calls], pa.string())
    names = pa.array([call.processor for call in run.calls], pa.string())
    return table.append_column("processor", names.take(pc.index_in(table["call"], value_set=calls)))


def _files_without_chunks(run: Run, files: pa.Table, wanted: pa.Table) -> pa.Table:
    """Files that were asked for, could not be opened, and of which no chunk was asked for."""
    opened = set()
    if run.preprocessing is not None:
        good = _outside_failed_calls(run, with_outcome(run.preprocessing, (task_records.OK,)))
        opened = {tuple(row.values()) for row in good.select(PLACE).to_pylist()}
    opened |= {tuple(row.values()) for row in wanted.select(PLACE).group_by(list(PLACE)).aggregate([]).to_pylist()}
    rows = {tuple(row[name] for name in PLACE): row for row in files.to_pylist()}
    return table_of_rows(ASKED_COLUMNS, [row for place, row in rows.items() if place not in opened])


def skipped_data(run: Run) -> Iterator[str]:
    """What coffea skipped because of errors (`skipbadfiles`), and the output of the run lacks, in words."""
    if run.chunks is None or "chunks" in run.absent:
        return
    skipped, unread = of_finished_calls(run, with_outcome(run.chunks, (SKIPPED,))), _unread_files(run)
    if not len(skipped) and not len(unread):
        return
    came = _with_processor(run, of_finished_calls(run, last_attempts(run.chunks)))
    chunks = _without(_with_processor(run, skipped), came, ["processor", *PLACE, *RANGE])
    if len(chunks):
        events = pc.sum(pc.subtract(chunks["entry_stop"], chunks["entry_start"])).as_py()
        skipped = f"{counted(len(chunks), 'chunk')} with {events:,} events {were(len(chunks))} skipped"
        yield f"{skipped}, not in the output: {_named(chunks)}"
    files = _without(unread, came, ["processor", *PLACE])
    if len(files):
        yield f"{counted(len(files), 'file')} could not be opened, not in the output: {_named(files)}"


def _unread_files(run: Run) -> pa.Table:
    """Files that preprocessing could not open, in a Runner call that went on without them or outside of any."""
    keys = ["processor", *PLACE]
    if run.preprocessing is None:
        return pa.table({key: pa.array([], pa.string()) for key in keys})
    openings = _outside_failed_calls(run, run.preprocessing)
    erred, opened = (with_outcome(openings, (outcome,)) for outcome in (ERROR, task_records.OK))
    return _without(_with_processor(run, erred), _with_processor(run, opened), keys)


def _outside_failed_calls(run: Run, table: pa.Table) -> pa.Table:
    """Rows of Runner calls that gave their output, and of none."""
    failed = pa.array([call.id for call in run.calls if call.outcome != FINISHED], pa.string())
    return rows_where(table, pc.invert(pc.is_in(table["call"], value_set=failed)))


def _named(rows: pa.Table) -> str:
    """The first few of the files in these rows."""
    files = [str(file) for file in rows["file"].unique().to_pylist()]
    more = [f"and {len(files) - MOST_NAMED} more files"] if len(files) > MOST_NAMED else []
    return ", ".join([*files[:MOST_NAMED], *more])


Lacking = Mapping[str, Mapping[str, str | None]]
"""Files of which nothing came, with their trees (Parquet has none), by dataset."""


def files_in(rows: Iterable[Mapping[str, Any]]) -> Lacking:
    """Files of these rows, with their trees, by dataset."""
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        found.setdefault(row["dataset"], {})[row["file"]] = row["tree"]
    return found


@fact
def unopened_files(missing_work: pa.Table) -> Lacking:
    """Files that preprocessing could not open: their chunks are not known."""
    return files_in(row for row in missing_work.to_pylist() if row["entry_start"] is None)


@fact
def files_to_repeat(run: Run, counted_chunks: pa.Table, missing_work: pa.Table) -> Lacking:
    """Files of which nothing came."""
    some = {tuple(row.values()) for row in of_finished_calls(run, counted_chunks).select(PLACE).to_pylist()}
    return files_in(row for row in missing_work.to_pylist() if tuple(row[name] for name in PLACE) not in some)


of_chunks = partial(metric, COUNT, group=CHUNKS, source="chunks that coffea asked for, chunk records")
of_files = partial(metric, COUNT, group=CHUNKS, source="files that coffea asked for, records of preprocessing")


@of_chunks(label="missing", formula="chunks asked for of which no attempt gave a result")
def num_missing_chunks(missing_work: pa.Table) -> int:
    """Requested chunks without a result: all of a Runner call that raised, as it gives no output.

    Files that were never opened are not among them.
    """
    return len(missing_work) - int(missing_work["entry_start"].null_count)


@metric(COUNT, group=CHUNKS, source="chunk records, tasks", label="failed attempts", formula="rows of `failed`")
def num_failed_attempts(failed_work: pa.Table) -> int:
    """Attempts of chunks that failed, for whatever reason: errors, bad files, lost workers, unfinished, repeated.

    Those that were only queued on a worker that was lost are not among them.
    """
    of_chunks = having(failed_work["kind"], task_records.PROCESSOR)
    queued = having(failed_work["reason"], task_records.LOST) & (moments(failed_work, "seconds") == 0)
    return int(np.count_nonzero(of_chunks & ~queued))


@of_files(label="files not opened", formula="files asked for that preprocessing could not open")
def num_missing_files(missing_work: pa.Table) -> int:
    """Files that preprocessing could not open, so that not even their chunks are known."""
    return int(missing_work["entry_start"].null_count)


def checked(run: Run) -> Run:
    """The run, with the problems that show in its records among its own."""
    return dataclasses.replace(run, problems=(*run.problems, *_found(run)))


def with_report(run: Run, report: Any, custom_metrics: Any) -> Run:
    """A checked run with another report of coffea's, and the problems that it has with this one."""
    former = _found(run)
    own = tuple(problem for problem in run.problems if problem not in former)
    return checked(dataclasses.replace(run, coffea_report=report, custom_metrics=custom_metrics, problems=own))


def _found(run: Run) -> list[str]:
    """Problems that show when the records of a run are held against each other."""
    found: list[str] = []
    # reports are the user's own objects, and anything may come of asking them
    with reported(found.append, "whether data were skipped is not known", Exception):
        found += skipped_data(run)
    with reported(found.append, "whether coffea's report covers the run is not known", Exception):
        found += disagreements(run)
    return found


class Given(NamedTuple):
    """A dataset of a fileset: its own name, its metadata, and its own names of files by those that were recorded."""

    name: str
    metadata: Any
    files: Mapping[str, str]


def missing_fileset(lacking: Lacking, fileset: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fileset of the files of which nothing came; with that of the run, in its form and under its names."""
    if fileset is None:
        return {dataset: {"files": files} for dataset, files in lacking.items()}
    _refuse_other_than_filesets(fileset)
    clean = {dataset: redacted(dataset) for dataset in fileset}
    return {name: _only(fileset[name], lacking[known]) for name, known in clean.items() if known in lacking}


def missing_items(missing: pa.Table, fileset: Mapping[str, Any] | None) -> list[Any]:
    """Chunks without a result, as work items; with the fileset of the run, under its names and with its metadata."""
    from coffea.processor.executor import WorkItem

    if fileset is not None:
        _refuse_other_than_filesets(fileset)
    given = {redacted(name): _given(name, described) for name, described in (fileset or {}).items()}
    items = []
    for row in missing.to_pylist():
        if row["entry_start"] is not None:
            dataset = given.get(row["dataset"], Given(row["dataset"], None, {}))
            file, uuid = dataset.files.get(row["file"], row["file"]), bytes.fromhex(row["uuid"])
            entries = row["entry_start"], row["entry_stop"]
            items.append(WorkItem(dataset.name, file, row["tree"], *entries, uuid, dataset.metadata))
    return items


def _refuse_other_than_filesets(fileset: object) -> None:
    if not isinstance(fileset, Mapping) or not all(isinstance(name, str) for name in fileset):
        raise TypeError(
            f"give the fileset of the run, a mapping of names of datasets to their files, not {type(fileset).__name__}"
        )


def _only(dataset: Any, files: Mapping[str, str | None]) -> Any:
    """A dataset of a fileset with none but these files, which are recorded without secrets, in its own form."""
    if not isinstance(dataset, Mapping):
        return [file for recorded, file in _by_recorded_name(dataset).items() if recorded in files]
    listed = dataset["files"]
    own = [file for recorded, file in _by_recorded_name(listed).items() if recorded in files]
    return {**dataset, "files": {file: listed[file] for file in own} if isinstance(listed, Mapping) else own}


def _given(name: str, dataset: Any) -> Given:
    described = isinstance(dataset, Mapping)
    files = _by_recorded_name(dataset["files"] if described else dataset)
    own = {recorded: str(file) for recorded, file in files.items()}
    return Given(name, dataset.get("metadata") if described else None, own)


def _by_recorded_name(files: Iterable[Any]) -> dict[str, Any]:
    """Files of a dataset by the names under which they were recorded.

    Raises
    ------
    MeasurementError
        If that is one name for several: which of them is missing is not known then.
    """
    found: dict[str, Any] = {}
    for file in files:
        recorded = redacted(str(file))
        if recorded in found and str(found[recorded]) != str(file):
            raise MeasurementError(
                f"several files were recorded as {recorded}, as they differ only in what was masked in their names: "
                "which of them is missing is not known; use missing_fileset() without a fileset"
            )
        found[recorded] = file
    return found
