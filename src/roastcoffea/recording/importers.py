"""Measurements from reports of other programs."""

from __future__ import annotations

import ast
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, OK
from roastcoffea.records.run import Run, unwatched_run
from roastcoffea.redaction import redacted_values

NANOSECONDS: Final = 1e-9
FIELDS: Final = ("args", "duration", "performance_counters", "exception", "message", "call_time")
"""uproot's fields for each partition."""

NOT_IN_REPORT: Final = "the report of a Dask collection does not contain it"
ABSENT: Final = (
    *("branch_reads", "calls", "client_host", "coffea_report", "hosts", "lifetimes", "pauses", "preprocessing"),
    *("samples", "sampling", "sampling_interval", "scheduler_clock_offset", "sections", "span_metrics", "tasks"),
    *("worker_states", "client_steps"),
)
OPENED_BEFORE: Final = (
    "{} of {} partitions read trees that were already open: the report has neither their files nor their "
    "requested bytes (pass open_files=False, or files with steps)"
)
STEPS: Final = (
    "{} of {} partitions are fractions of a file: the report does not have their entries "
    "(pass files with steps, as from coffea's preprocess)"
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
    """Measurement of a computed Dask collection, from the report that uproot and coffea make of its partitions.

    Each partition is a chunk with the facts in the report: file, tree, entries, duration and bytes requested, or the
    error. The rest is missing. `duration` covers opening and reading, without the later computation.

    Parameters
    ----------
    report : awkward.Array, or mapping of datasets to such
        The report of `allow_read_errors_with_report`, as computed by `dask.compute(output, report)`.
    start, stop
        Unix time in seconds before and after that `dask.compute`; the report has no times.
    name
        Name of the measurement.
    live
        Measurement by a collector around that `dask.compute`, instead of `start` and `stop`. The result has its
        tasks, workers and chunks; the report adds datasets, and partitions without a record.

    Raises
    ------
    TypeError
        The report was not computed, or is not uproot's; or neither `start` and `stop` nor `live` is given.

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
    """A live run with the partitions of a report, each of which counts once."""
    recorded: list[Row] = []
    absent = dict(live.absent)
    if live.chunks is not None and absent.pop("chunks", None) is None:
        recorded = live.chunks.to_pylist()
    else:
        absent |= dict.fromkeys(OF_CHUNKS, NOT_IN_REPORT)
    fresh = _without_records(rows, recorded)
    return dataclasses.replace(
        live,
        name=name or live.name,
        chunks=table_of_rows(CHUNK_COLUMNS, [*recorded, *fresh]),
        absent=absent,
        problems=(*live.problems, *_problems(fresh)),
    )


def _without_records(rows: Sequence[Row], recorded: Sequence[Row]) -> list[Row]:
    """Partitions of a report that no live record is of; records get the datasets of the others.

    Where the report lacks file or entries, a partition is that of any record with the same rest.
    """
    left = list(recorded)
    fresh: list[Row] = []
    for known in sorted({_known(row) for row in rows}, key=lambda names: (-len(names), "entry_start" not in names)):
        of_this_kind = [row for row in rows if _known(row) == known]
        left, without = _matched(of_this_kind, left, known)
        fresh += without
    return fresh


def _matched(rows: Sequence[Row], recorded: Sequence[Row], known: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Records without a partition that is equal in the known columns, and partitions without such a record."""
    places: dict[tuple[Any, ...], list[Row]] = {}
    for record in recorded:
        places.setdefault(_place_in(record, known), []).append(record)
    matched: set[int] = set()
    fresh = []
    for row in rows:
        found = places.get(_place_in(row, known), [])
        # attempts at one partition share all columns; several partitions may share some
        ours = found if len(known) == len(PLACE) else [found.pop(0)] if found else []
        for record in ours:
            record["dataset"] = row["dataset"] or record["dataset"]
            matched.add(record["id"])
        fresh += [] if ours else [row]
    return [record for record in recorded if record["id"] not in matched], fresh


def _known(row: Row) -> tuple[str, ...]:
    """Columns of its place that a row has."""
    return tuple(column for column in PLACE if row.get(column) is not None)


def _place_in(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(column) for column in columns)


OF_CHUNKS: Final = ("branch_reads", "sections", "profile")
PLACE: Final = ("file", "tree", "entry_start", "entry_stop")
"""Columns that identify a partition."""


def _partitions(report: Any) -> list[Row]:
    import awkward as ak

    if not isinstance(report, ak.Array):
        text = (
            f"a report is the awkward.Array from dask.compute(output, report), not {type(report).__name__}; "
            "compute it together with the output"
        )
        raise TypeError(text)
    lacking = [field for field in FIELDS if field not in report.fields]
    if lacking:
        text = f"the report has no {', '.join(lacking)}: it is not a report of uproot's allow_read_errors_with_report"
        raise TypeError(text)
    partitions: list[Row] = report.to_list()
    return partitions


def _row(dataset: str | None, partition: Row) -> Row:
    place = _place(partition["args"])
    row: Row = {"id": secrets.randbits(63), "dataset": dataset, **place}
    if partition["exception"] is not None:
        error = f"{partition['exception']}: {partition['message']} (on {partition['hostname']})"
        return row | {"outcome": ERROR, "error": error, "start": NANOSECONDS * partition["call_time"]}
    # a tree that was already open counts the requests of all its readers
    requested = partition["performance_counters"]["num_requested_bytes"] if "file" in place else None
    return row | {
        "outcome": OK,
        "wall_seconds": partition["duration"],
        "bytes_requested": requested,
        "events": place["entry_stop"] - place["entry_start"] if "entry_stop" in place else None,
    }


def _place(arguments: Sequence[str]) -> Row:
    """Columns of what was read, from the printed arguments of uproot's reader.

    A tree opened earlier is (tree, start, stop), and the tree's text does not name its file. Otherwise it is (file,
    tree, start, stop, "True"), or (file, tree, step, steps, "False"), whose entries depend on the length of the file.
    """
    if len(arguments) == 3:
        _, start, stop = arguments
        return {"entry_start": int(start), "entry_stop": int(stop)}
    file, tree, start, stop, is_range = map(ast.literal_eval, arguments)
    entries = {"entry_start": start, "entry_stop": stop} if is_range else {}
    return {"file": file, "tree": tree, **entries}


def _problems(rows: Sequence[Row]) -> list[str]:
    opened = sum("file" not in row for row in rows)
    steps = sum("entry_stop" not in row for row in rows)
    return [text.format(number, len(rows)) for text, number in ((OPENED_BEFORE, opened), (STEPS, steps)) if number]
