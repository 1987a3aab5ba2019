"""Measurements from the journals of lost runs, and from other programs' reports."""

from __future__ import annotations

import ast
import dataclasses
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

import roastcoffea
from roastcoffea.backends.local import ProcessRecorder
from roastcoffea.backends.recorder import OF_CLIENT, LoggedCluster, Recorder
from roastcoffea.errors import error_text, reported
from roastcoffea.log.journals import DAMAGED, Entry, Journal, JournalError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked
from roastcoffea.recording.assembly import END, SPANS, RunRecords
from roastcoffea.records.arrow import arrow_schema, table_of_rows, unpacked_part
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, OK
from roastcoffea.records.run import LOST, Environment, Run, unwatched_run
from roastcoffea.redaction import redacted_values
from roastcoffea.storage.document import (
    SCHEMA,
    SPAN_FORMS,
    TABLES,
    body_of,
    check_body,
    restored_body,
    run_of,
    tables_of,
)
from roastcoffea.storage.reading import check_times
from roastcoffea.units import moment

NOT_IN_REPORT: Final = "the report of a Dask collection does not contain it"
ABSENT: Final = (
    *("branch_reads", "calls", "client_host", "coffea_report", "hosts", "lifetimes", "pauses", "preprocessing"),
    *("samples", "sampling", "sampling_interval", "scheduler_clock_offset", "sections", "span_metrics", "tasks"),
    *("worker_states", *OF_CLIENT),
)

Row = dict[str, Any]


def measurement_from_report(
    report: Any,
    *,
    start: float | None = None,
    stop: float | None = None,
    name: str | None = None,
    live: Measurement | None = None,
) -> Measurement:
    """Create a measurement of a computed Dask collection from uproot's report.

    Each partition becomes a chunk with the values in the report: file, tree, entries, duration and requested bytes, or
    the error. All other values are missing. The duration includes opening and reading, but not the later computation.

    Parameters
    ----------
    report : awkward.Array, or mapping from datasets to arrays
        The report from `allow_read_errors_with_report`, computed with `dask.compute(output, report)`.
    start, stop
        Unix times in seconds before and after the `dask.compute` call, because the report contains no times.
    name
        Name of the measurement.
    live
        A collector's measurement of the call, to be passed instead of `start` and `stop`. Its tasks, workers and chunks
        are kept. The report adds the datasets, and the partitions that have no record.

    Raises
    ------
    TypeError
        The report was not computed or is not from uproot, or neither `start` and `stop` nor `live` is given.

    Examples
    --------
    >>> options = {"allow_read_errors_with_report": True}  # doctest: +SKIP
    >>> outputs, reports = apply_to_fileset(analysis, fileset, uproot_options=options)  # doctest: +SKIP
    >>> start = time.time()  # doctest: +SKIP
    >>> outputs, reports = dask.compute(outputs, reports)  # doctest: +SKIP
    >>> measurement_from_report(reports, start=start, stop=time.time()).save("runs")  # doctest: +SKIP
    """
    reports = report if isinstance(report, Mapping) else {None: report}
    rows = [_row(dataset, partition) for dataset, each in reports.items() for partition in _partitions(each)]
    if live is not None:
        return Measurement(_joined(live.run, redacted_values(rows), name))
    if start is None or stop is None:
        raise TypeError("the report has no times: pass start and stop, or the live measurement")
    chunks, absent = table_of_rows(CHUNK_COLUMNS, redacted_values(rows)), dict.fromkeys(ABSENT, NOT_IN_REPORT)
    facts = {"backend": "dask-awkward", "chunks": chunks, "absent": absent, "problems": tuple(_problems(rows))}
    return Measurement(unwatched_run(name=name, start=start, stop=stop, **facts))


def _joined(live: Run, rows: Sequence[Row], name: str | None) -> Run:
    """Combine a live run with a report's partitions. Each partition is counted only once."""
    recorded: list[Row] = []
    absent = dict(live.absent)
    if live.chunks is not None and absent.pop("chunks", None) is None:
        recorded = live.chunks.to_pylist()
    else:
        absent |= dict.fromkeys(("branch_reads", "sections", "profile"), NOT_IN_REPORT)
    fresh = _without_records(rows, recorded)
    return dataclasses.replace(
        live,
        name=name or live.name,
        chunks=table_of_rows(CHUNK_COLUMNS, [*recorded, *fresh]),
        absent=absent,
        problems=(*live.problems, *_problems(fresh)),
    )


def _without_records(rows: Sequence[Row], recorded: Sequence[Row]) -> list[Row]:
    """Return the report's partitions that have no live record, and add datasets to the other records.

    If the report lacks a partition's file or entries, the partition matches any record with the same values in the
    other columns.
    """
    kinds = [tuple(column for column in PLACE if row.get(column) is not None) for row in rows]
    left, fresh = list(recorded), []
    for known in sorted(set(kinds), key=lambda names: (-len(names), "entry_start" not in names)):
        places: dict[tuple[Any, ...], list[Row]] = {}
        for record in left:
            places.setdefault(tuple(record.get(column) for column in known), []).append(record)
        matched: set[int] = set()
        for row in (row for row, kind in zip(rows, kinds, strict=True) if kind == known):
            found = places.get(tuple(row[column] for column in known), [])
            # attempts at the same partition have equal values in all these columns; different partitions may share some
            ours = found if len(known) == len(PLACE) else [found.pop(0)] if found else []
            for record in ours:
                record["dataset"] = row["dataset"] or record["dataset"]
                matched.add(record["id"])
            fresh += [] if ours else [row]
        left = [record for record in left if record["id"] not in matched]
    return fresh


PLACE: Final = ("file", "tree", "entry_start", "entry_stop")
"""Columns that identify a partition."""


def _partitions(report: Any) -> list[Row]:
    import awkward as ak

    if not isinstance(report, ak.Array):
        text = (
            f"the report must be the awkward.Array from dask.compute(output, report), not {type(report).__name__}; "
            "compute it together with the output"
        )
        raise TypeError(text)
    # uproot's fields for each partition
    lacking = [
        field
        for field in ("args", "duration", "performance_counters", "exception", "message", "call_time")
        if field not in report.fields
    ]
    if lacking:
        text = f"the report has no {', '.join(lacking)}: it is not a report from uproot's allow_read_errors_with_report"
        raise TypeError(text)
    partitions: list[Row] = report.to_list()
    return partitions


def _row(dataset: str | None, partition: Row) -> Row:
    place = _place(partition["args"])
    row: Row = {"id": secrets.randbits(63), "dataset": dataset, **place}
    if partition["exception"] is not None:
        error = f"{partition['exception']}: {partition['message']} (on {partition['hostname']})"
        return row | {"outcome": ERROR, "error": error, "start": 1e-9 * partition["call_time"]}
    # for a tree that was already open, this number includes requests by all its readers
    requested = partition["performance_counters"]["num_requested_bytes"] if "file" in place else None
    return row | {
        "outcome": OK,
        "wall_seconds": partition["duration"],
        "bytes_requested": requested,
        "events": place["entry_stop"] - place["entry_start"] if "entry_stop" in place else None,
    }


def _place(arguments: Sequence[str]) -> Row:
    """Parse the file, tree and entries from uproot's printed reader arguments.

    For a tree opened earlier, the arguments are (tree, start, stop), without a file name. Otherwise, they are (file,
    tree, start, stop, "True") or (file, tree, step, steps, "False"). In the latter case, the entries depend on the
    length of the file.
    """
    if len(arguments) == 3:
        _, start, stop = arguments
        return {"entry_start": int(start), "entry_stop": int(stop)}
    file, tree, start, stop, is_range = map(ast.literal_eval, arguments)
    entries = {"entry_start": start, "entry_stop": stop} if is_range else {}
    return {"file": file, "tree": tree, **entries}


def _problems(rows: Sequence[Row]) -> Iterator[str]:
    if opened := sum("file" not in row for row in rows):
        yield (
            f"{opened} of {len(rows)} partitions read trees that were already open: the report lacks their files and "
            "requested bytes (pass open_files=False, or files with steps)"
        )
    if steps := sum("entry_stop" not in row for row in rows):
        yield (
            f"{steps} of {len(rows)} partitions are fractions of a file: the report does not list their entries "
            "(pass files with steps, as from coffea's preprocess)"
        )


def recovered(journal: Journal) -> Measurement:
    """Recover the measurement of a lost or unsaved run.

    Raises
    ------
    JournalError
        The journal's header is damaged.
    """
    try:
        replay = _Replay(journal.header)
        for entry in journal.entries():
            replay.take(entry)
        return Measurement(checked(replay.run(journal.problems)))
    except DAMAGED as error:
        raise JournalError(f"{journal.folder} cannot be read: {error_text(error)}") from error


def _as_saved(run: Run) -> Run:
    """Return the run, or raise one of the `DAMAGED` exceptions if a saved copy could not be loaded."""
    check_times(run.start, run.stop)
    check_body(restored_body(body_of(run)))
    return run


class _Replay:
    def __init__(self, header: Mapping[str, Any]) -> None:
        wanted = {"profile": header["profile"], "peak_memory": header.get("peak_memory", True)}
        self._records = RunRecords(header["id"], header["name"], header["interval"], **wanted)
        self._records.environment = Environment(**{**header["environment"], "hosts": ()})
        self._records.outside = dict(header["outside"])
        self._backend: Recorder = LoggedCluster() if header["backend"] == LoggedCluster.kind else ProcessRecorder()
        self._backend.kind = header["backend"]
        if isinstance(self._backend, LoggedCluster):
            self._backend.absent["span_metrics"] = "the client was lost before it requested them"
        self._start = self._last = float(header["start"])
        self._spans: dict[str, list[pa.Table]] = {}
        self._end: dict[str, Any] | None = None
        if header["version"] != roastcoffea.__version__:
            self._records.note(
                f"roastcoffea {header['version']} wrote the journal: entries that this version does not recognise "
                "are lost"
            )

    def take(self, entry: Entry) -> None:
        self._last = max(self._last, entry.time)
        with reported(self._records.note, f"the journal has an unreadable entry {entry.kind!r}", Exception):
            if entry.kind.startswith(SPANS):
                name = entry.kind.removeprefix(SPANS)
                self._spans.setdefault(name, []).append(unpacked_part(entry.data, arrow_schema(TABLES[name])))
            elif entry.kind == END:
                self._end = json.loads(entry.data)
            else:
                self._records.take(entry.kind, entry.data)
                self._backend.take(entry.kind, entry.data)

    def run(self, problems: Sequence[str]) -> Run:
        self._journal_problems = problems
        run = None
        with reported(self._records.note, "the end of the run in the journal cannot be read", DAMAGED):
            if self._end is not None and self._end["schema"] == SCHEMA:
                run = _as_saved(self._ended_run(self._end))
        return run or _as_saved(self._lost_run())

    def _lost_run(self) -> Run:
        records, start = self._records, self._records.start or self._start
        for call in filter(None, list(records.running.values())):
            records.call_ended(replace(call, stop=max(self._last, call.start)))
        records.running.clear()
        end = moment(self._last)
        records.note(
            f"the client was lost: everything after {end} is missing, as are tasks that were running then, the "
            "workers' last reports, and Dask's fine metrics"
        )
        for problem in self._journal_problems:
            records.note(problem)
        records.lost = True
        ending = LOST, f"the client was lost (killed, out of memory, or power failure); its journal ends at {end}"
        return records.run(self._backend, start, max(self._last, start), ending)

    def _ended_run(self, end: Mapping[str, Any]) -> Run:
        """Restore a run that ended but was not saved. Only its tables are assembled again."""
        body = restored_body(end["run"])
        check_body(body)
        replayed = self._records.run(self._backend, body["start"], body["stop"], (body["outcome"], body["error"]))
        tables = tables_of(replayed) | {name: pa.concat_tables(parts) for name, parts in self._spans.items()}
        absent = body["absent"] | {name: why for name, why in replayed.absent.items() if name not in SPAN_FORMS}
        problems = [*dict.fromkeys((*replayed.problems, *body["problems"], *self._journal_problems))]
        return replace(run_of(body | {"absent": absent, "problems": problems}, tables), calls=replayed.calls)
