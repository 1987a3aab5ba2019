"""Failed, repeated and missing work, and problems in the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.errors import MeasurementError, reported
from roastcoffea.metrics.catalogue import CHUNKS, fact, metric
from roastcoffea.metrics.facts import (
    FAILED,
    aggregated,
    among,
    joined,
    lost_calls,
    of_finished_calls,
    recorded,
    rows_where,
    rows_with,
    with_outcome,
)
from roastcoffea.metrics.facts import counted_chunks as last_attempts
from roastcoffea.metrics.statistics import having, moments, one_of, places
from roastcoffea.metrics.thread_activity import REPEATED, Records, estimated_intervals
from roastcoffea.metrics.workflow import disagreements
from roastcoffea.records.arrow import plain, row_codes, rows_in, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, SKIPPED
from roastcoffea.records.columns import Row, bytes_column, integer_column, picked, seconds_column, text_column
from roastcoffea.records.run import ASKED_COLUMNS, FINISHED, Run
from roastcoffea.records.workers import CANCELLED, LOST, OK, OTHER, PREPROCESSING, PROCESSOR, UNFINISHED
from roastcoffea.redaction import redacted
from roastcoffea.units import COUNT, are, counted, were

FAILED_COLUMNS: Final = (
    text_column("kind", '"processor", "merge" or "preprocessing"'),
    *picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    text_column("worker", "address of the worker"),
    seconds_column("start", "when the attempt began (Unix time)"),
    seconds_column(
        "seconds",
        "time for which the attempt occupied its thread, up to the end of the run if it was unfinished; "
        "estimated if its worker was lost, and 0 if it was only queued on that worker; none if unknown",
    ),
    bytes_column("bytes", "bytes requested from storage; none if the attempt left no record"),
    text_column(
        "reason",
        '"error", "skipped" (bad file), "worker lost", "cancelled", "unfinished" (at the end of the run) or "repeated"',
    ),
    *picked(CHUNK_COLUMNS, "error", "key"),
    integer_column("attempt", "attempt number for the task, starting at 1"),
)

FAILED_FILE_COLUMNS: Final = (
    *picked(CHUNK_COLUMNS, "dataset", "file"),
    integer_column("attempts", "number of failed attempts"),
    text_column("error", "last error message"),
    integer_column("missing", "number of the file's chunks that have no result; none if unknown"),
)

PLACE: Final = ("dataset", "file", "tree")
RANGE: Final = ("entry_start", "entry_stop")


@fact
def failed_work(run: Run, chunks: Table, counted_chunks: Table, lifetimes: Table | None = None) -> Table:
    # copying only these columns is cheaper than copying whole rows
    own = ("dataset", "file", *RANGE, "worker", "start", "error", "key", "run_id", "attempt", "outcome", "wall_seconds")
    used = among(chunks, counted_chunks)
    rows = chunks.select([*own, "bytes_requested"]).filter(pa.array(~used)).to_pylist()
    for row in rows:
        row |= {"kind": PROCESSOR, "reason": row["outcome"] if row["outcome"] in FAILED else REPEATED}
    failed = rows_in(run.preprocessing and with_outcome(run.preprocessing, (ERROR,)))
    rows += [row | {"kind": PREPROCESSING, "reason": ERROR} for row in failed]
    for row in rows:
        row |= {"seconds": row["wall_seconds"], "bytes": row["bytes_requested"]}
    known = {(row["key"], row["run_id"]) for row in rows if row["key"] is not None}
    lost = _failed_tasks(run, chunks, counted_chunks, lifetimes)
    rows += [row for row in lost if (row["key"], row["run_id"]) not in known]
    rows.sort(key=lambda row: (row["start"] is None, row["start"] or 0.0))
    return table_of_rows(FAILED_COLUMNS, rows)


def _failed_tasks(run: Run, chunks: Table, counted: Table, lifetimes: Table | None) -> Iterator[Row]:
    """Rows for task attempts that did not succeed.

    Details of the chunk come from the scheduler or from another attempt at the same task.
    """
    tasks = run.tasks
    if tasks is None:
        return
    wanted = pc.and_(pc.not_equal(tasks["kind"], OTHER), pc.not_equal(tasks["outcome"], OK))
    lost = tasks.filter(wanted)
    if not len(lost):
        return
    start, stop = moments(tasks, "start"), moments(tasks, "stop")
    seconds = stop - start
    if lifetimes is not None:
        start, stop = estimated_intervals(Records.of(run, lifetimes, chunks, counted), tasks)
        # an attempt that was only queued on a lost worker took no time
        seconds = np.where(having(tasks["outcome"], LOST) & np.isnan(start), 0.0, stop - start)
    names = ("dataset", "file", *RANGE)
    others = chunks.select(["key", *names])
    known = {row["key"]: row for row in rows_with(others, "key", {*lost["key"].drop_null().to_pylist()}).to_pylist()}
    spans = (pa.array(times[wanted.to_numpy()], from_pandas=True).to_pylist() for times in (start, seconds))
    for row, begun, lasted in zip(lost.to_pylist(), *spans, strict=True):
        place = known.get(row["key"], {}) if row["file"] is None else row
        own = {"start": begun, "seconds": lasted, "reason": row["outcome"]}
        yield row | {name: place.get(name) for name in names} | own


@fact
def missing_work(run: Run, counted_chunks: Table) -> Table:
    """Requested chunks without a result, and files without chunks (ASKED_COLUMNS).

    Runner calls that finished without chunk records are left out, because the outcome of their chunks is unknown.
    """
    lost = pa.array([call.id for call in lost_calls(run) if call.outcome == FINISHED], pa.string())
    asked = recorded(run, "asked")
    asked = rows_where(asked, ~one_of(asked["call"], lost))
    of_files = asked["entry_start"].is_null()
    wanted, files = asked.filter(pc.invert(of_files)), asked.filter(of_files)
    done = _in_output(run, counted_chunks)
    lacking = _without(_with_processor(run, wanted), _with_processor(run, done), ["processor", *PLACE, *RANGE])
    opened = wanted.select(PLACE)
    if run.preprocessing is not None:
        good = _outside_failed_calls(run, with_outcome(run.preprocessing, (OK,)))
        opened = joined([opened, good.select(PLACE)])
    names = [column.name for column in ASKED_COLUMNS]
    return joined([lacking.select(names), _without(files, opened, [*PLACE]).select(names)])


@fact
def failed_files(run: Run, failed_work: Table, missing_work: Table | None = None) -> Table:
    if missing_work is None and run.asked is not None:
        recorded(
            run, "asked"
        )  # raises NotMeasuredError if some requested chunks are unknown, because any of them may be missing
    place = ["dataset", "file"]
    lacking: dict[tuple[str, str], int | None] = {}
    if missing_work is not None:
        rows = aggregated(missing_work, place, {"missing": ("entry_start", "count")}, None).to_pylist()
        lacking = {(row["dataset"], row["file"]): row["missing"] or None for row in rows}
    erred = failed_work.filter(pc.and_(failed_work["error"].is_valid(), failed_work["file"].is_valid()))
    steps = {"attempts": ("error", "count"), "error": ("error", "last")}
    files = aggregated(erred, place, steps, None, use_threads=False).to_pylist()
    rows = [row | {"missing": lacking.get((row["dataset"], row["file"]), 0)} for row in files]
    return table_of_rows(FAILED_FILE_COLUMNS, rows)


def _in_output(run: Run, counted_chunks: Table) -> Table:
    """Chunks in the output of finished Runner calls and in the partial output of failed calls."""
    names = ["call", *PLACE, *RANGE]
    return joined([of_finished_calls(run, counted_chunks).select(names), partial_output(run).select(names)])


def partial_output(run: Run) -> Table:
    asked = recorded(run, "asked")
    parts = [asked.slice(0, 0)]
    for call in run.calls:
        if call.kept:
            chunks = asked.filter(pc.and_(pc.equal(asked["call"], call.id), asked["entry_start"].is_valid()))
            parts.append(
                chunks.take(pa.array([number for number in call.kept if 0 <= number < len(chunks)], pa.int64()))
            )
    return joined(parts)


def _without(wanted: Table, done: Table, keys: list[str]) -> Table:
    """First row in `wanted` for each key that is missing from `done`, sorted by key.

    Two nulls compare equal, unlike in an Arrow join, because the tree is null for Parquet files.
    """
    number = row_codes(joined([wanted.select(keys), done.select(keys)]))
    asked = number[: len(wanted)]
    lacking = np.flatnonzero(~np.asarray(pc.is_in(pa.array(asked), value_set=pa.array(number[len(wanted) :]))))
    first = lacking[np.unique(number[lacking], return_index=True)[1]]
    return plain(wanted.take(pa.array(first))).sort_by([(key, "ascending") for key in keys])


def _with_processor(run: Run, table: Table) -> Table:
    """Add a column with the processor of each row's call.

    One processor's result does not count as another's.
    """
    call = places(table["call"], [call.id for call in run.calls])
    names = pa.array([call.processor for call in run.calls], pa.string()).dictionary_encode()
    return table.append_column("processor", names.take(pa.array(call, mask=call < 0)))


def skipped_data(run: Run) -> Iterator[str]:
    """Messages about data that are missing from the output because coffea skipped them (`skipbadfiles`)."""
    if run.chunks is None or "chunks" in run.absent:
        return
    skipped, unread = of_finished_calls(run, with_outcome(run.chunks, (SKIPPED,))), _unread_files(run)
    if not len(skipped) and not len(unread):
        return
    done = _with_processor(run, of_finished_calls(run, last_attempts(run.chunks)))
    chunks = _without(_with_processor(run, skipped), done, ["processor", *PLACE, *RANGE])
    if len(chunks):
        events = pc.sum(pc.subtract(chunks["entry_stop"], chunks["entry_start"])).as_py()
        skipped = f"{counted(len(chunks), 'chunk')} with {events:,} events {were(len(chunks))} skipped"
        yield f"{skipped} and {are(len(chunks))} missing from the output: {_named(chunks)}"
    files = _without(unread, done, ["processor", *PLACE])
    if len(files):
        unopened = f"{counted(len(files), 'file')} could not be opened"
        yield f"{unopened} and {are(len(files))} missing from the output: {_named(files)}"


def _unread_files(run: Run) -> Table:
    """Files that preprocessing could not open, except for files in failed Runner calls."""
    keys = ["processor", *PLACE]
    if run.preprocessing is None:
        return pa.table({key: pa.array([], pa.string()) for key in keys})
    openings = _outside_failed_calls(run, run.preprocessing)
    erred, opened = (with_outcome(openings, (outcome,)) for outcome in (ERROR, OK))
    return _without(_with_processor(run, erred), _with_processor(run, opened), keys)


def _outside_failed_calls(run: Run, table: Table) -> Table:
    failed = pa.array([call.id for call in run.calls if call.outcome != FINISHED], pa.string())
    return rows_where(table, pc.invert(pc.is_in(table["call"], value_set=failed)))


def _named(rows: Table) -> str:
    files = [str(file) for file in rows["file"].unique().to_pylist()]
    more = [f"and {len(files) - 3} more files"] if len(files) > 3 else []
    return ", ".join([*files[:3], *more])


MissingFiles = Mapping[str, Mapping[str, str | None]]
"""Maps each dataset to its files that have no result, and each file to its tree (None for Parquet)."""


def files_in(rows: Iterable[Mapping[str, Any]]) -> MissingFiles:
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        found.setdefault(row["dataset"], {})[row["file"]] = row["tree"]
    return found


@fact
def unopened_files(missing_work: Table) -> MissingFiles:
    """Files that preprocessing could not open, so their chunks are unknown."""
    return files_in(row for row in missing_work.to_pylist() if row["entry_start"] is None)


@fact
def files_to_repeat(run: Run, counted_chunks: Table, missing_work: Table) -> MissingFiles:
    """Files without any result."""
    if not len(missing_work):
        return files_in(())
    done = _in_output(run, counted_chunks).group_by(PLACE, use_threads=False).aggregate([])
    some = {tuple(row[name] for name in PLACE) for row in done.to_pylist()}
    return files_in(row for row in missing_work.to_pylist() if tuple(row[name] for name in PLACE) not in some)


of_chunks = partial(metric, COUNT, group=CHUNKS)


@of_chunks(
    "missing", "requested chunks without a successful attempt", source="chunks requested by coffea, chunk records"
)
def num_missing_chunks(missing_work: Table) -> int:
    """Number of requested chunks that have no result.

    If a Runner call raised an error, its chunks are included unless they are in a partial output. Chunks of files that
    were never opened are not included.
    """
    return len(missing_work) - int(missing_work["entry_start"].null_count)


@of_chunks("failed attempts", "rows in the table of failed attempts", source="chunk records, tasks")
def num_failed_attempts(failed_work: Table) -> int:
    """Number of failed chunk attempts: errors, bad files, lost workers, and unfinished or repeated work.

    Attempts that were cancelled or were only queued on a lost worker are not included.
    """
    attempts, reason = having(failed_work["kind"], PROCESSOR), failed_work["reason"]
    queued = having(reason, LOST) & (moments(failed_work, "seconds") == 0)
    return int(np.count_nonzero(attempts & ~queued & ~having(reason, CANCELLED)))


@of_chunks("unfinished attempts", "rows in the table of failed attempts", source="tasks")
def num_unfinished_attempts(failed_work: Table) -> int:
    """Number of chunk attempts that were still running when the run stopped. They also count as failed."""
    unfinished = having(failed_work["reason"], UNFINISHED)
    return int(np.count_nonzero(unfinished & having(failed_work["kind"], PROCESSOR)))


@of_chunks(
    "files not opened",
    "requested files that preprocessing could not open",
    source="files requested by coffea, preprocessing records",
)
def num_missing_files(missing_work: Table) -> int:
    """Number of files that preprocessing could not open. Their chunks are unknown."""
    return int(missing_work["entry_start"].null_count)


def checked(run: Run) -> Run:
    """Add the problems found in a run's records to its list of problems."""
    return dataclasses.replace(run, problems=tuple(dict.fromkeys((*run.problems, *_found(run)))))


def with_report(run: Run, report: Any, custom_metrics: Any) -> Run:
    """Replace the coffea report of a checked run, and update the problems that result from comparing sources."""
    former = _found(run)
    own = tuple(problem for problem in run.problems if problem not in former)
    return checked(dataclasses.replace(run, coffea_report=report, custom_metrics=custom_metrics, problems=own))


def _found(run: Run) -> list[str]:
    found: list[str] = []
    # reports are user-supplied objects, so reading them may raise any exception
    with reported(found.append, "whether data were skipped is unknown", Exception):
        found += skipped_data(run)
    with reported(found.append, "whether coffea's report covers the run is unknown", Exception):
        found += disagreements(run)
    return found


def missing_fileset(lacking: MissingFiles, fileset: Mapping[str, Any] | None) -> Row:
    """Create a fileset of the files that have no result.

    If the run's fileset is given, the result has the same format and names.
    """
    if fileset is None:
        return {dataset: {"files": files} for dataset, files in lacking.items()}
    _check_fileset(fileset)
    clean = {dataset: redacted(str(dataset)) for dataset in fileset}
    return {name: _only(fileset[name], lacking[known]) for name, known in clean.items() if known in lacking}


def missing_items(missing: Table, fileset: Mapping[str, Any] | None) -> list[Any]:
    """Create work items for the chunks that have no result.

    If the run's fileset is given, names and metadata are taken from it.
    """
    from coffea.processor.executor import WorkItem

    given: dict[str, tuple[Any, Mapping[str, Any], Any]] = {}
    if fileset is not None:
        _check_fileset(fileset)
        for name, dataset in fileset.items():
            described = dataset if isinstance(dataset, Mapping) else {"files": dataset}
            given[redacted(str(name))] = name, _by_recorded_name(described["files"]), described.get("metadata")
    items = []
    for row in missing.filter(missing["entry_start"].is_valid()).to_pylist():
        name, files, metadata = given.get(row["dataset"], (row["dataset"], {}, None))
        file, uuid = str(files.get(row["file"], row["file"])), bytes.fromhex(row["uuid"])
        items.append(WorkItem(name, file, row["tree"], row["entry_start"], row["entry_stop"], uuid, metadata))
    return items


def _check_fileset(fileset: object) -> None:
    if not isinstance(fileset, Mapping):
        raise TypeError(f"pass the run's fileset, a mapping from dataset names to files, not {type(fileset).__name__}")


def _only(dataset: Any, files: Mapping[str, str | None]) -> Any:
    """Restrict a dataset of a fileset to these files, given by their recorded names (which omit secrets)."""
    listed = dataset["files"] if isinstance(dataset, Mapping) else dataset
    own = [file for recorded, file in _by_recorded_name(listed).items() if recorded in files]
    if not isinstance(dataset, Mapping):
        return own
    return {**dataset, "files": {file: listed[file] for file in own} if isinstance(listed, Mapping) else own}


def _by_recorded_name(files: Iterable[Any]) -> Row:
    """Files of a dataset, keyed by the names under which they were recorded.

    Raises
    ------
    MeasurementError
        If several files share a recorded name, which makes the missing file ambiguous.
    """
    found: Row = {}
    for file in files:
        recorded = redacted(str(file))
        if recorded in found and str(found[recorded]) != str(file):
            raise MeasurementError(
                f"several files were recorded as {recorded}, because their names differ only in "
                f"masked secrets, so it is unknown which of them is missing; use missing_fileset() without a fileset"
            )
        found[recorded] = file
    return found
