"""A run's client-side records and journal, combined with the backend's records."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.hosts import differing_versions
from roastcoffea.backends.recorder import FROM_CHUNKS, PROFILE, SAMPLED, TABLES, Recorder
from roastcoffea.errors import reported
from roastcoffea.instrument.calls import Files
from roastcoffea.instrument.hook import take_new_records
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.completeness import (
    AskedItems,
    Losses,
    attempts_without_record,
    calls_of_tasks,
    chunks_without_record,
)
from roastcoffea.log.journal import RECORDS, JournalWriter, remove_journal
from roastcoffea.log.journals import Journal, JournalError, claimed, hold, journal_in, journal_of
from roastcoffea.log.received import with_files
from roastcoffea.records.arrow import arrow_schema, packed_parts, smaller, unpacked_part
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    LOST,
    NO_FILE,
    OF_CALL,
    Environment,
    Run,
    RunnerCall,
)
from roastcoffea.redaction import redacted, redacted_values
from roastcoffea.storage.document import RUN_FILE, SPAN_FORMS, body_of, fields_by_name, tables_of
from roastcoffea.storage.document import SCHEMA as RUN_SCHEMA
from roastcoffea.storage.processes import remove_files
from roastcoffea.storage.reading import check_fields, check_times, plain, restored
from roastcoffea.storage.store import OWN_FILES, is_replaceable
from roastcoffea.units import SECONDS_PER_DAY, counted

START: Final = "start"
BEGAN: Final = "call began"
CALL: Final = "call"
ASKED: Final = "asked"
UNKNOWN_REQUESTS: Final = "requests unknown"
NO_CHUNKS: Final = "chunks lost"
NO_CHUNKS_OF: Final = "chunks of a call lost"
PROBLEM: Final = "problem"
REPORT: Final = "report"
"""Kinds of journal entries that come from the collector, not the backend."""


NO_FILES: Final[Files] = {}

Ending = tuple[str, str | None]
"""A run's outcome, and the error, if any, that ended the run."""


class RunRecords:
    """The client's records of a run: ID, Runner calls, requests and problems.

    Parameters
    ----------
    id, name
        The run's ID and name.
    interval
        Seconds between worker samples; None if workers are not sampled.
    profile
        Whether functions are profiled.
    peak_memory
        Whether the peak memory of chunks is measured.
    """

    def __init__(  # `id` is named as in the record
        self,
        id: str,  # noqa: A002
        name: str | None,
        interval: float | None,
        *,
        profile: bool,
        peak_memory: bool = True,
    ) -> None:
        self.id, self.name, self.interval, self.profile, self.peak_memory = id, name, interval, profile, peak_memory
        self.environment = Environment(versions={}, client_host=None)
        self.calls: list[RunnerCall] = []
        self.running: dict[str, RunnerCall | None] = {}
        """Calls that have begun but not ended, by ID. The value is None until the call's record is known."""
        self.start: float | None = None
        self.lost = False
        self.asked = AskedItems()
        self.problems: list[str] = []
        self.report: Any = None
        self.custom_metrics: Any = None
        self.outside: dict[str, str] = {}
        """Deliberate exclusions, listed in the ledgers' certificates."""
        self.keep: Callable[[str, bytes], None] | None = None
        """Called with each journal entry."""
        self._began: list[str] = []
        self._files_of_functions: dict[str, Files] = {}
        self._functions: list[RunnerCall] = []
        self._requests_unknown = False
        self._why_no_chunks: str | None = None
        self._lost: dict[str, str] = {}
        """Reasons why the chunks of individual calls are missing, by call ID."""

    def started(self, moment: float) -> None:
        """Record the Unix time at which the run started."""
        self.start = moment
        self._keep(START, repr(moment))

    # from the hook

    def call_began(self, call: str, files: Files = NO_FILES) -> None:
        self._began.append(call)
        self._files_of_functions[call] = files
        self.running[call] = None
        self._keep(BEGAN, call)

    def call_runs(self, call: RunnerCall) -> None:
        """Store the record of a running Runner call, in case the client is lost."""
        self.running[call.id] = call
        self._keep_values(CALL, fields_by_name(call))

    def call_ended(self, call: RunnerCall) -> None:
        self.running.pop(call.id, None)
        self.calls.append(call)
        self._keep_values(CALL, fields_by_name(call))

    def items_requested(self, call: str, items: Sequence[Any]) -> None:
        """Store the chunks (or, for preprocessing, the files) that a Runner call requested."""
        table, merged = self.asked.add(call, items)
        if self.keep is not None:
            for part in packed_parts(table):
                self.keep(ASKED, part)
        if merged:
            names = f"names of {counted(merged, 'file')} differ"
            self.note(f"{names} from others only in redacted secrets; files with the same redacted name count as one")

    def requests_unknown(self) -> None:
        self._requests_unknown = True
        self._keep(UNKNOWN_REQUESTS, "")

    def chunks_lost(self, reason: str, call: str | None = None) -> None:
        self.note(reason)
        reason = redacted(reason)
        if call is None:
            self._why_no_chunks = reason
            self._keep(NO_CHUNKS, reason)
        else:
            self._lost[call] = reason
            self._keep_values(NO_CHUNKS_OF, {"reason": reason, "call": call})

    def note(self, problem: str) -> None:
        problem = redacted(problem)
        if problem not in self.problems:
            self.problems.append(problem)
            self._keep(PROBLEM, problem)

    def take_report(self, report: Any, custom_metrics: Any) -> None:
        """Store coffea's report, which has already been redacted."""
        self.report, self.custom_metrics = report, custom_metrics
        self._keep_values(REPORT, {"report": report, "custom_metrics": custom_metrics})

    # assembled with the backend's records

    def run_without_tables(self, backend: Recorder, start: float, stop: float, ending: Ending) -> Run:
        # reasons for the missing tables
        absent = (
            backend.absent
            if backend.was_open
            else dict.fromkeys((*TABLES, "span_metrics"), "the cluster was not recorded")
        )
        return self.run_of(backend, start, stop, ending, {}, absent)

    def run(self, backend: Recorder, start: float, stop: float, ending: Ending) -> Run:
        if not backend.was_open:
            return self.run_without_tables(backend, start, stop, ending)
        tables, absent = self._tables(backend, start, stop)
        with reported(self.note, "functions without a Runner could not be listed", Exception):
            self._functions = calls_of_tasks(tables["chunks"], tables.get("tasks"))
        absent = backend.absent | absent
        if self.interval is None:
            absent |= dict.fromkeys(SAMPLED, "track_workers=False")
        if not self.profile:
            absent[PROFILE] = "profile=False"
        if not self.peak_memory:
            absent["memory_peak"] = "peak_memory=False"
        if self._requests_unknown:
            absent["asked"] = "the requests of Runner calls were not recorded"
        elif self._functions and not self.calls:
            absent["asked"] = "functions without a Runner do not report what was requested"
        with reported(self.note, "chunk and task records could not be compared", Exception):
            absent |= self.reasons_against_chunks(backend, tables["chunks"], tables["asked"])
            if tables.get("tasks") is not None:
                for lack in attempts_without_record(tables["tasks"], tables["chunks"]):
                    self.note(lack)
        return self.run_of(backend, start, stop, ending, tables, absent)

    def _tables(self, backend: Recorder, start: float, stop: float) -> tuple[dict[str, Any], dict[str, str]]:
        tables: dict[str, Any] = {"asked": self.asked.table()}
        absent = {}
        for name in TABLES:
            unwanted = (name in SAMPLED and self.interval is None) or (name == PROFILE and not self.profile)
            with reported(self.note, f"the {name} records could not be read", Exception):
                if name == "chunks":
                    tables[name] = backend.chunks(self._began)
                else:
                    table = None if unwanted else backend.table(name, tables.get("chunks"), start, stop)
                    if name == PROFILE and table is not None:
                        table = with_files(table, self._files_of_functions)
                    tables[name] = table
            if name not in tables:
                absent[name] = self.problems[-1]
        return {name: table and smaller(table) for name, table in tables.items()}, absent

    def reasons_against_chunks(self, backend: Recorder, chunks: pa.Table, asked: pa.Table) -> dict[str, str]:
        """Return reasons for not using the chunk records, and report missing records as problems."""
        for call in self.running:
            number = counted(len(self.running), "Runner call")
            self.chunks_lost(f"{number} still running when the collector closed", call)
        known = [call for call in (*self.calls, *self._functions) if call.id not in self._lost]
        none = "no Runner call was recorded" if getattr(backend.functions, "stand_in", None) is None else NO_FILE
        why = self._why_no_chunks or (None if known else next(iter(self._lost.values()), none))
        if why is not None:
            return dict.fromkeys(("chunks", *FROM_CHUNKS), why)
        received = backend.received
        earlier = received.calls().difference(self._began, received.calls_of_tasks())
        cached = len(received.chunks(earlier)) if earlier else 0
        losses = Losses(backend.merges_equal_chunks, backend.dropped.get("chunks", 0), backend.refused, cached)
        if self.lost or backend.gaps:
            # reason for missing chunk records
            losses = replace(losses, otherwise="lost with the client" if self.lost else "while nothing was recorded")
        for lack in chunks_without_record(known, chunks, asked, losses):
            self.note(lack)
        return {f"{OF_CALL}{call}": reason for call, reason in self._lost.items()}

    def run_of(  # noqa: PLR0917
        self,
        backend: Recorder,
        start: float,
        stop: float,
        ending: Ending,
        tables: Mapping[str, Any],
        absent: Mapping[str, str],
    ) -> Run:
        notes: list[str] = []
        environment = self.environment
        with reported(self.note, "the environment of the run could not be described", Exception):
            versions = {**environment.versions, **differing_versions(backend.versions, environment.versions)}
            environment = replace(environment, hosts=tuple(backend.hosts), versions=versions)
        with reported(self.note, "the backend's problems could not be listed", Exception):
            notes = backend.notes()
        return Run(
            id=self.id,
            name=self.name and redacted(self.name),
            start=start,
            stop=stop,
            outcome=ending[0],
            error=ending[1],
            backend=backend.kind,
            environment=environment,
            sampling_interval=self.interval,
            calls=(*self.calls, *self._functions),
            **tables,
            span_metrics=backend.span_metrics,
            span_metrics_per_worker=backend.span_metrics_per_worker,
            coffea_report=self.report,
            custom_metrics=self.custom_metrics,
            gaps=tuple((max(since, start), min(until, stop)) for since, until in backend.gaps),
            attempts=backend.attempts,
            scheduler_clock_offset=backend.clock_offset,
            dropped=backend.dropped,
            absent=redacted_values({**absent, **self.outside}),
            problems=tuple(map(redacted, (*self.problems, *notes))),
        )

    # the journal

    def _keep(self, kind: str, text: str) -> None:
        if self.keep is not None:
            self.keep(kind, text.encode("utf-8", "surrogatepass"))

    def _keep_values(self, kind: str, values: Mapping[str, Any]) -> None:
        if self.keep is not None:
            with reported(self.note, f"the journal has no {kind}", Exception):
                self.keep(kind, packed_values(values))

    def take(self, kind: str, data: bytes) -> None:
        """Restore a journal entry from the collector. Other kinds of entries are ignored."""
        if kind == ASKED:
            self.asked.take(unpacked_part(data, arrow_schema(ASKED_COLUMNS)))
        elif kind == UNKNOWN_REQUESTS:
            self.requests_unknown()
        elif kind == START:
            check_times(float(data), float(data))
            self.started(float(data))
        elif kind == CALL:
            values = unpacked_values(data)
            call = RunnerCall(**values)
            check_fields(values, RunnerCall, "a Runner call")
            check_times(call.start, call.stop)
            (self.call_runs if call.outcome == LOST else self.call_ended)(call)
        elif kind in {NO_CHUNKS_OF, REPORT}:
            (self.take_report if kind == REPORT else self.chunks_lost)(**unpacked_values(data))
        else:
            takers: dict[str, Callable[[str], None]]
            takers = {BEGAN: self.call_began, NO_CHUNKS: self.chunks_lost, PROBLEM: self.note}
            if kind in takers:
                takers[kind](data.decode("utf-8", "surrogatepass"))


def packed_values(values: Mapping[str, Any]) -> bytes:
    """Encode values by name as JSON. Values of types that JSON does not support become strings."""
    return json.dumps(plain(values, "journal", []), allow_nan=False).encode()


def unpacked_values(data: bytes) -> dict[str, Any]:
    return dict(restored(json.loads(data)))


END: Final = "end"
"""Kind of the last entry for a finished run, which contains everything except the tables."""

SPANS: Final = "spans "
"""Prefix of the entry kinds for span metrics, which are written before the last entry."""


Place = str | os.PathLike[str] | bool | None


def state_folder() -> Path:
    """Default journal directory, in the user's XDG state directory."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "roastcoffea" / "journals"


def checked_place(place: Place) -> Place:
    """Check a `journal` argument: a path, True for the default folder, or None or False for no journal."""
    if isinstance(place, bool) or place is None:
        return place
    if isinstance(place, str | os.PathLike) and os.fspath(place):
        return Path(place)
    raise TypeError(f"journal must be a folder, True for the state directory, or None, not {place!r}")


class BlackBox:
    """Journal for a collector and its backend; `place` is the location, as for `checked_place`."""

    def __init__(self, records: RunRecords, backend: Recorder, place: Place) -> None:
        self._records, self._backend = records, backend
        self._place = place
        self._writer: JournalWriter | None = None

    def open(self) -> None:
        if not self._place:
            return
        folder = state_folder() if self._place is True else Path(self._place)
        records, now = self._records, time.time()
        name = f"{datetime.fromtimestamp(now, timezone.utc):%Y-%m-%dT%H%M%SZ}-{records.id[:8]}"
        header = {
            "id": records.id,
            "name": records.name and redacted(records.name),
            "start": now,
            "backend": self._backend.kind,
            "interval": records.interval,
            "profile": records.profile,
            "peak_memory": records.peak_memory,
            "outside": records.outside,
            "environment": asdict(records.environment),
        }
        if self._place is True:
            with reported(records.note, "journals of earlier runs could not be removed", OSError):
                remove_old(folder)
        with interrupts_held():  # the journal's thread must not be left running
            self._writer = JournalWriter(folder / name, header, records.note, look=self._look)
        records.keep = self._backend.keep = self._writer.write

    def records(self, packed: bytes) -> None:
        """Add packed records that did not pass through a scheduler."""
        if self._writer is not None:
            self._writer.write(RECORDS, packed)

    def end(self, owner: object, run: Run) -> None:
        """Write the run, except tables that earlier entries cover, and close the journal.

        The journal is kept until its owner is saved or garbage-collected.
        """
        if self._writer is not None:
            self._write_news()
            for name, table in tables_of(run).items():
                for part in packed_parts(table) if name in SPAN_FORMS else ():
                    self._writer.write(f"{SPANS}{name}", part)
            self._writer.write(END, json.dumps({"schema": RUN_SCHEMA, "run": body_of(run)}, allow_nan=False).encode())
            self._writer.close()
            hold(owner, self._writer)
            self._records.keep = self._backend.keep = None

    def hand_on(self, before: object, after: object) -> None:
        if self._writer is not None and journal_of(before) is not None:
            hold(after, self._writer)

    def give_up(self) -> None:
        """Remove the journal, because the run never began."""
        if self._writer is not None:
            self._writer.remove()

    def _look(self) -> None:
        with reported(self._records.note, "records could not be fetched for the journal", Exception):
            take_new_records()
            self._write_news()

    def _write_news(self) -> None:
        if self._writer is not None:
            for kind, data in self._backend.news():
                self._writer.write(kind, data)


# the default limits apply to lost runs in the state directory
def remove_old(folder: Path, days: float | None = 30.0, gigabytes: float | None = 2.0) -> list[Path]:
    """Remove journals and measurements beyond the age or size limit, and return their paths.

    The oldest are removed first. Journals and measurements are recognised by their content. Nothing else is removed,
    nor is anything that is still being written or recovered.
    """
    kept: list[tuple[float, int, Path, Journal | None]] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # another process may remove or change the folder at any time
            if path.is_symlink():
                continue
            try:
                journal = journal_in(path)
                kept.append((journal.last, journal.size, path, journal))
            except JournalError:
                if (path / RUN_FILE).is_file() and is_replaceable(path):
                    states = [file.stat() for file in path.iterdir()]
                    last = max(state.st_mtime for state in states)
                    kept.append((last, sum(state.st_size for state in states), path, None))
    together, removed = 0, []
    for last, size, path, its in sorted(kept, key=lambda each: each[0], reverse=True):
        together += size
        is_old = days is not None and time.time() - last > days * SECONDS_PER_DAY
        is_much = gigabytes is not None and together > 1e9 * gigabytes
        if (is_old or is_much) and _is_removed(path, its):
            removed.append(path)
    return removed


def _is_removed(path: Path, journal: Journal | None) -> bool:
    """Remove a measurement or journal. Return False if the journal may be in use."""
    if journal is None:
        remove_files(path, [path / name for name in OWN_FILES])
        return True
    # a live scheduler has closed most of its journals already
    ended = journal.is_locked is None and "facility" in journal.header
    if journal.is_recent if ended else journal.is_written:
        return False
    with claimed(path) as ours:
        if ours:
            remove_journal(path)
        return ours
