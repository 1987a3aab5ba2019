"""What a client knows of a run: told by the hook, kept in a journal, and assembled with the backend's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.hosts import differing_versions
from roastcoffea.backends.recorder import FROM_CHUNKS, PROFILE, SAMPLED, TABLES, Recorder
from roastcoffea.errors import reported
from roastcoffea.instrument.calls import calls_of_tasks
from roastcoffea.instrument.names import Files
from roastcoffea.log.completeness import AskedItems, Losses, attempts_without_record, chunks_without_record
from roastcoffea.log.profiles import with_files
from roastcoffea.records.arrow import arrow_schema, packed_parts, unpacked_part
from roastcoffea.records.run import ASKED_COLUMNS, LOST, NO_FILE, OF_CALL, Environment, Run, RunnerCall
from roastcoffea.redaction import redacted, redacted_values
from roastcoffea.storage.document import fields_by_name
from roastcoffea.storage.reading import check_fields, check_times, plain, restored
from roastcoffea.units import counted

START: Final = "start"
BEGAN: Final = "call began"
CALL: Final = "call"
ASKED: Final = "asked"
UNKNOWN_REQUESTS: Final = "requests unknown"
NO_CHUNKS: Final = "chunks lost"
NO_CHUNKS_OF: Final = "chunks of a call lost"
PROBLEM: Final = "problem"
REPORT: Final = "report"
"""Kinds of entries in a journal, in addition to those of the backend."""

LOST_WITH_CLIENT: Final = "lost with the client"
IN_GAP: Final = "while nothing was recorded"
"""Why chunks have no record."""

NOT_RECORDED: Final = "the cluster was not recorded"
"""Why a run has no tables."""

NO_FILES: Final[Files] = {}
"""Of functions whose files are not known."""

Ending = tuple[str, str | None]
"""Outcome of a run, and the error that ended it."""


class RunRecords:
    """Identity, Runner calls, requests and problems of a run.

    Parameters
    ----------
    id, name
        Identity and name of the run.
    interval
        Seconds between samples of the workers; None without.
    profile
        Whether functions are sampled.
    peak_memory
        Whether the peak memory of chunks is measured.
    """

    def __init__(  # the identity is called as in the record
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
        """Calls that began and have not ended; None where no more is known."""
        self.start: float | None = None
        self.lost = False
        """Whether the client was lost."""
        self.asked = AskedItems()
        self.problems: list[str] = []
        self.report: Any = None
        self.custom_metrics: Any = None
        self.outside: dict[str, str] = {}
        """What is excluded on purpose, for the ledgers' certificates."""
        self.keep: Callable[[str, bytes], None] | None = None
        """Takes entries for the journal."""
        self._began: list[str] = []
        self._files_of_functions: dict[str, Files] = {}
        self._functions: list[RunnerCall] = []
        self._requests_unknown = False
        self._why_no_chunks: str | None = None
        self._lost: dict[str, str] = {}
        """Why the chunks of single calls are missing."""

    def started(self, moment: float) -> None:
        """Learn when the run starts (Unix seconds)."""
        self.start = moment
        self._keep(START, repr(moment))

    # from the hook

    def call_began(self, call: str, files: Files = NO_FILES) -> None:
        """Learn the identity of a Runner call that begins, and the files of its processor's functions."""
        self._began.append(call)
        self._files_of_functions[call] = files
        self.running[call] = None
        self._keep(BEGAN, call)

    def call_runs(self, call: RunnerCall) -> None:
        """Take the record of a running Runner call, as it would be if the client were lost now."""
        self.running[call.id] = call
        self._keep_values(CALL, fields_by_name(call))

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""
        self.running.pop(call.id, None)
        self.calls.append(call)
        self._keep_values(CALL, fields_by_name(call))

    def items_requested(self, call: str, items: Sequence[Any]) -> None:
        """Take what a Runner call requested: files for preprocessing, or chunks."""
        table, merged = self.asked.add(call, items)
        if self.keep is not None:
            for part in packed_parts(table):
                self.keep(ASKED, part)
        if merged:
            names = f"names of {counted(merged, 'file')} differ"
            self.note(f"{names} from others only in masked secrets: they count as one")

    def requests_unknown(self) -> None:
        """Learn that a Runner call's requests are unknown."""
        self._requests_unknown = True
        self._keep(UNKNOWN_REQUESTS, "")

    def chunks_lost(self, reason: str, call: str | None = None) -> None:
        """Learn why the chunks of this Runner call are missing, or of all of them."""
        self.note(reason)
        reason = redacted(reason)
        if call is None:
            self._why_no_chunks = reason
            self._keep(NO_CHUNKS, reason)
        else:
            self._lost[call] = reason
            self._keep_values(NO_CHUNKS_OF, {"reason": reason, "call": call})

    def note(self, problem: str) -> None:
        """Add a problem."""
        problem = redacted(problem)
        if problem not in self.problems:
            self.problems.append(problem)
            self._keep(PROBLEM, problem)

    def take_report(self, report: Any, custom_metrics: Any) -> None:
        """Take a report of coffea's, without secrets."""
        self.report, self.custom_metrics = report, custom_metrics
        self._keep_values(REPORT, {"report": report, "custom_metrics": custom_metrics})

    # assembled with what the backend has

    def run_without_tables(self, backend: Recorder, start: float, stop: float, ending: Ending) -> Run:
        """The run as known before its tables are made: they, and what only they can tell, are missing."""
        absent = backend.absent if backend.was_open else dict.fromkeys((*TABLES, "span_metrics"), NOT_RECORDED)
        return self.run_of(backend, start, stop, ending, {}, absent)

    def run(self, backend: Recorder, start: float, stop: float, ending: Ending) -> Run:
        """The run, with the tables of a backend that was recording."""
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
        with reported(self.note, "records of chunks and tasks could not be compared", Exception):
            absent |= self.reasons_against_chunks(backend, tables["chunks"], tables["asked"])
            if tables.get("tasks") is not None:
                for lack in attempts_without_record(tables["tasks"], tables["chunks"]):
                    self.note(lack)
        return self.run_of(backend, start, stop, ending, tables, absent)

    def _tables(self, backend: Recorder, start: float, stop: float) -> tuple[dict[str, Any], dict[str, str]]:
        """Tables of a run by name, and why others are missing."""
        tables: dict[str, Any] = {"asked": self.asked.table()}
        absent = {}
        for name in TABLES:
            with reported(self.note, f"the records of {name} could not be read", Exception):
                if name == "chunks":
                    tables[name] = backend.chunks(self._began)
                else:
                    tables[name] = self._table(backend, name, tables.get("chunks"), start, stop)
            if name not in tables:
                absent[name] = self.problems[-1]
        return tables, absent

    def _table(
        self, backend: Recorder, name: str, chunks: pa.Table | None, start: float, stop: float
    ) -> pa.Table | None:
        """One of `TABLES` except the first; None for what is switched off."""
        if (name in SAMPLED and self.interval is None) or (name == PROFILE and not self.profile):
            return None
        table = backend.table(name, chunks, start, stop)
        return with_files(table, self._files_of_functions) if name == PROFILE and table is not None else table

    def reasons_against_chunks(self, backend: Recorder, chunks: pa.Table, asked: pa.Table) -> dict[str, str]:
        """Why the records of chunks cannot be used for numbers, if so; missing records are noted."""
        for call in self.running:
            number = counted(len(self.running), "Runner call")
            self.chunks_lost(f"{number} still running when the collector was left", call)
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
            losses = replace(losses, otherwise=LOST_WITH_CLIENT if self.lost else IN_GAP)
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
        """The run with these tables."""
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
            with reported(self.note, f"the journal lacks a {kind}", Exception):
                self.keep(kind, packed_values(values))

    def take(self, kind: str, data: bytes) -> None:
        """Take an entry of a journal, as when it was new; those of other kinds are ignored."""
        taken = self._takers.get(kind)
        if taken is not None:
            taken(data)

    @property
    def _takers(self) -> dict[str, Callable[[bytes], None]]:
        return {
            START: lambda data: self._take_start(float(data)),
            BEGAN: lambda data: self.call_began(_text(data)),
            CALL: lambda data: self._take_call(unpacked_values(data)),
            ASKED: lambda data: self.asked.take(unpacked_part(data, arrow_schema(ASKED_COLUMNS))),
            UNKNOWN_REQUESTS: lambda _: self.requests_unknown(),
            NO_CHUNKS_OF: lambda data: self.chunks_lost(**unpacked_values(data)),
            NO_CHUNKS: lambda data: self.chunks_lost(_text(data)),
            PROBLEM: lambda data: self.note(_text(data)),
            REPORT: lambda data: self.take_report(**unpacked_values(data)),
        }

    def _take_start(self, moment: float) -> None:
        check_times(moment, moment)
        self.started(moment)

    def _take_call(self, values: dict[str, Any]) -> None:
        call = RunnerCall(**values)
        check_fields(values, RunnerCall, "a Runner call")
        check_times(call.start, call.stop)
        (self.call_runs if call.outcome == LOST else self.call_ended)(call)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def packed_values(values: Mapping[str, Any]) -> bytes:
    """Values by name as bytes; those that JSON does not know are text."""
    return json.dumps(plain(values, "journal", []), allow_nan=False).encode()


def unpacked_values(data: bytes) -> dict[str, Any]:
    """Values by name from `packed_values`."""
    return dict(restored(json.loads(data)))
