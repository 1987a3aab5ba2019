"""Find chunks and attempts without a record, and the sites of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.records.arrow import arrow_schema, plain, row_codes
from roastcoffea.records.chunks import CHECKPOINT, ERROR, OK, PHASES, TRACED
from roastcoffea.records.run import ASKED_COLUMNS, FINISHED, OF_TASKS, RunnerCall
from roastcoffea.records.workers import PROCESSOR
from roastcoffea.redaction import redacted_each
from roastcoffea.units import counted

KEYS: Final = ("site", "sites", "replicas")
"""Dataset metadata keys that name sites. The value is one site for all files, or maps sites to files or files to sites.
"""

MAP: Final = Path(".sites_map.json")
"""File in the working directory in which coffea's `rucio_utils` stores each site's URL prefixes."""


def sites_of(items: Sequence[Any]) -> list[str | None]:
    """Site of the file that each coffea item reads; None if unknown."""
    prefixes: dict[str, str] | None = None
    known: dict[tuple[int, str], str | None] = {}
    found = []
    for item in items:
        given, file = getattr(item, "usermeta", None), str(item.filename)
        metadata = getattr(item, "metadata", None) if given is None else given
        place = id(metadata), file
        if place not in known:
            known[place] = _by_metadata(metadata, file)
            if known[place] is None and "://" in file:
                prefixes = _prefixes() if prefixes is None else prefixes
                known[place] = next((site for prefix, site in prefixes.items() if file.startswith(prefix)), None)
        found.append(known[place])
    return found


def _by_metadata(metadata: Any, file: str) -> str | None:
    for key in KEYS if isinstance(metadata, Mapping) else ():
        named = metadata.get(key)
        if isinstance(named, str):
            return named
        if isinstance(named, Mapping):
            if isinstance(named.get(file), str):
                return str(named[file])
            for site, files in named.items():
                if isinstance(files, (list, tuple, set)) and file in files:
                    return str(site)
    return None


def _prefixes() -> dict[str, str]:
    """Maps URL prefixes to sites, longest prefix first."""
    try:
        sites = json.loads(MAP.read_text(encoding="utf-8"))
        # a site has one prefix, or one per rule in its catalogue
        rules = [
            (site, rule)
            for site, given in sites.items()
            for rule in (given.values() if isinstance(given, Mapping) else [given])
            if isinstance(rule, str)
        ]
    except (OSError, ValueError, AttributeError):
        return {}
    found = {rule.partition("$")[0]: str(site) for site, rule in rules}
    return {prefix: found[prefix] for prefix in sorted(found, key=len, reverse=True) if "://" in prefix}


ATTEMPT = ["key", "run_id"]


EQUAL_CHUNKS = "equal to another chunk (file listed twice; one task in Dask, two in coffea's report)"


class AskedItems:
    """Files and chunks requested from a Runner. Secrets in file names are masked.

    Attributes
    ----------
    files : int
        Number of files for which metadata was requested.
    chunks : int
        Number of requested chunks.
    """

    def __init__(self) -> None:
        self.files = self.chunks = 0
        self._tables: list[pa.Table] = [arrow_schema(ASKED_COLUMNS).empty_table()]

    def add(self, call: str, items: Sequence[Any]) -> tuple[pa.Table, int]:
        """Add a Runner call's coffea items.

        Return their table and the number of file names that became duplicates when they were masked.
        """
        uuids = [getattr(item, "fileuuid", None) for item in items]
        files = [str(item.filename) for item in items]
        clean_files = redacted_each(files)
        columns = {
            "call": [call] * len(items),
            "dataset": redacted_each(str(item.dataset) for item in items),
            "file": clean_files,
            "tree": redacted_each(None if item.treename is None else str(item.treename) for item in items),
            "uuid": [None if uuid is None else uuid.hex() for uuid in uuids],
            "entry_start": [getattr(item, "entrystart", None) for item in items],
            "entry_stop": [getattr(item, "entrystop", None) for item in items],
            "site": redacted_each(sites_of(items)),
        }
        table = pa.table(columns, schema=arrow_schema(ASKED_COLUMNS))
        self.take(table)
        return table, len(set(files)) - len(set(clean_files))

    def take(self, table: pa.Table) -> None:
        files = table["entry_start"].null_count
        self.files += files
        self.chunks += len(table) - files
        self._tables.append(table)

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables)


@dataclass(frozen=True)
class Losses:
    """Reasons for missing chunk records.

    If `equal_run_once` is set, identical chunks share one task. `dropped` is the number of chunk records that were
    dropped, and `refused` is the number of refused log entries. `cached` is the number of records from earlier runs
    that arrived with cached results. `otherwise` is the reason for all other missing records.
    """

    equal_run_once: bool = False
    dropped: int = 0
    refused: int = 0
    cached: int = 0
    otherwise: str = "for an unknown reason"

    def reasons(self, equal: int, others: int) -> Iterator[str]:
        reasons = {
            EQUAL_CHUNKS: equal,
            "records dropped on the scheduler": others and self.dropped,
            "refused scheduler log entries": others and self.refused,
            "cached results from earlier runs": min(others, self.cached),
            self.otherwise: max(others - self.dropped - self.refused - self.cached, 0),
        }
        return (f"{reason}: {number}" for reason, number in reasons.items() if number)


def chunks_without_record(
    calls: Iterable[RunnerCall], chunks: pa.Table, asked: pa.Table, losses: Losses
) -> Iterator[str]:
    """Report the chunks without a record in each successful Runner call, with the reasons.

    Parameters
    ----------
    chunks
        Received attempt records.
    asked
        Chunks requested in these calls.
    """
    recorded = ended_chunks(chunks)
    for call in calls:
        lacking = (call.chunks or 0) - recorded.get(call.id, 0)
        if call.outcome == FINISHED and lacking > 0:
            equal = min(lacking, equal_chunks(asked, call.id)) if losses.equal_run_once else 0
            reasons = "; ".join(losses.reasons(equal, lacking - equal))
            yield f"{lacking} of {call.chunks} chunks have no record of their own: {reasons}"


def attempts_without_record(tasks: pa.Table, chunks: pa.Table) -> Iterator[str]:
    attempts = tasks.select([*ATTEMPT, "outcome"]).filter(pc.equal(tasks["kind"], PROCESSOR))
    lacking = attempts["outcome"].filter(pa.array(~are_recorded(attempts, chunks.select(ATTEMPT))))
    for count in lacking.value_counts().to_pylist():
        yield (
            f"{counted(count['counts'], 'chunk attempt')} left no record (task outcome: {count['values']}): "
            "sums over chunks do not include them"
        )


def ended_chunks(chunks: pa.Table) -> dict[str, int]:
    """Number of recorded chunks that did not fail, by Runner call. A retried chunk is counted once."""
    ended = pc.fill_null(pc.not_equal(chunks["outcome"], ERROR), True)
    counts = {row["values"]: row["counts"] for row in chunks["call"].filter(ended).value_counts().to_pylist()}
    tried_again = chunks["key"].filter(pc.greater(chunks["attempt"], 1)).drop_null()
    if len(tried_again):
        of_these = pc.is_in(chunks["key"], tried_again.combine_chunks())
        again = chunks.select(["call", "key"]).filter(pc.and_(ended, of_these)).group_by("call")
        for row in again.aggregate([("key", "count"), ("key", "count_distinct")]).to_pylist():
            counts[row["call"]] -= row["key_count"] - row["key_count_distinct"]
    return counts


def equal_chunks(asked: pa.Table, call: str) -> int:
    chunks = asked.filter(pc.and_(pc.equal(asked["call"], call), pc.is_valid(asked["entry_start"])))
    codes = row_codes(chunks.select(["file", "entry_start"]))
    in_order = np.sort(codes)
    # the file and the first entry are enough to distinguish most chunks
    alike = chunks.filter(pa.array(np.isin(codes, in_order[1:][in_order[1:] == in_order[:-1]])))
    return len(alike) - len(alike.group_by(alike.column_names, use_threads=False).aggregate([]))


def are_recorded(attempts: pa.Table, records: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each task attempt's key and run_id match a record. Nulls match each other."""
    # the run_id nearly always identifies a record; only other cases are compared in full
    first = pc.index_in(attempts["run_id"], records["run_id"].combine_chunks())
    same_key = pc.equal(attempts["key"], records["key"].combine_chunks().take(first))
    recorded: npt.NDArray[np.bool_] = pc.fill_null(same_key, False).to_numpy()
    others = attempts.select(ATTEMPT).filter(pa.array(~recorded))
    near = records.filter(pc.is_in(records["run_id"], others["run_id"].combine_chunks()))
    recorded[~recorded] = are_among(others, near)
    return recorded


def are_among(rows: pa.Table, others: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row also occurs in the other table. Nulls match each other."""
    codes = row_codes(pa.concat_tables(map(plain, (rows, others))))
    return np.isin(codes[: len(rows)], codes[len(rows) :])


CLASSES: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES))
CLASS_OF_COLUMN: Final = tuple((phase.column, phase.time_class) for phase in PHASES)

GAVE: Final = (OK, CHECKPOINT)
"""Outcomes of attempts that returned a result."""
SUMMED: Final = (
    *("bytes_requested", "events", "wall_seconds", "cpu_seconds", "helper_cpu_seconds"),
    *(phase.column for phase in PHASES),
)


@dataclass(slots=True)
class Tally:
    """Running totals over the records received.

    `chunks` and `events` include only chunks that returned a result. `failed` and `bytes` also cover preprocessing;
    `bytes` is None until an attempt reports bytes. All times are sums over chunk attempts.
    """

    chunks: int = 0
    events: int = 0
    failed: int = 0
    bytes: int | None = None
    files: int = 0
    wall_seconds: float = 0.0
    wall_squares: float = 0.0
    failed_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    """No keys are ever added, because another thread may be copying the dictionary."""

    def add(self, record: Mapping[str, Any], *, preprocessing: bool) -> None:
        outcome, wall = record.get("outcome"), record.get("wall_seconds") or 0.0
        self.files += preprocessing and outcome in GAVE
        self.wall_squares += 0.0 if preprocessing else wall * wall
        self._add(record, int(outcome != TRACED), gave=outcome in GAVE, of_chunks=not preprocessing)

    def add_table(self, chunks: pa.Table) -> None:
        gave = pc.is_in(chunks["outcome"], pa.array(GAVE))
        self.wall_squares += pc.sum(pc.multiply(chunks["wall_seconds"], chunks["wall_seconds"])).as_py() or 0.0
        counted_columns = chunks.select(SUMMED)
        for of_these, useful in ((gave, True), (pc.invert(gave), False)):
            rows = counted_columns.filter(of_these)
            self._add({name: pc.sum(rows[name]).as_py() for name in SUMMED}, len(rows), gave=useful, of_chunks=True)

    def _add(self, sums: Mapping[str, Any], rows: int, *, gave: bool, of_chunks: bool) -> None:
        if sums.get("bytes_requested") is not None:
            self.bytes = (self.bytes or 0) + sums["bytes_requested"]
        self.failed += 0 if gave else rows
        if not of_chunks:
            return
        wall = sums.get("wall_seconds") or 0.0
        self.wall_seconds += wall
        self.cpu_seconds += (sums.get("cpu_seconds") or 0.0) + (sums.get("helper_cpu_seconds") or 0.0)
        if not gave:
            self.failed_seconds += wall
            return
        self.chunks += rows
        self.events += sums.get("events") or 0
        for column, time_class in CLASS_OF_COLUMN:
            self.seconds[time_class] += sums.get(column) or 0.0


def calls_of_tasks(chunks: pa.Table, tasks: pa.Table | None) -> list[RunnerCall]:
    """Group non-Runner tasks by name into stand-ins for Runner calls.

    A stand-in call lasts from when its first task became runnable until its last task ended.

    Parameters
    ----------
    chunks
        Attempt records, including the records of non-Runner tasks.
    tasks
        Attempts at Dask tasks, or None if there is no scheduler.
    """
    ours = plain(chunks.select(["call", "key", "start", "stop"]))
    ours = ours.filter(pc.starts_with(ours["call"], OF_TASKS)).to_pandas()
    if tasks is not None and len(ours):
        runnable = tasks.select(["key", "runnable"]).to_pandas().groupby("key", observed=True)["runnable"].min()
        ours["start"] = ours["start"].combine(ours["key"].map(runnable), min)
    spans = ours.groupby("call", observed=True, sort=False).agg({"start": "min", "stop": "max"})
    return [
        RunnerCall(
            id=call,
            processor=call.removeprefix(OF_TASKS),
            executor="none: tasks of their own",
            start=start,
            stop=stop,
            outcome=FINISHED,
        )
        for call, start, stop in spans.itertuples()
    ]
