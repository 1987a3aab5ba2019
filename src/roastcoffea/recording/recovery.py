"""Measurements from journals of runs that were lost with their client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

import roastcoffea
from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.backends.logged import LoggedCluster
from roastcoffea.backends.processes import PROCESSES, remember
from roastcoffea.backends.recorder import Recorder
from roastcoffea.errors import error_text, reported
from roastcoffea.log.journals import DAMAGED, Entry, Journal, JournalError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked, with_report
from roastcoffea.recording.assembly import REPORT, RunRecords, unpacked_values
from roastcoffea.recording.black_box import END, SPANS
from roastcoffea.records.arrow import arrow_schema, unpacked_part
from roastcoffea.records.run import LOST, Environment, Run
from roastcoffea.storage.document import SCHEMA, body_of, check_body, restored_body, run_of
from roastcoffea.storage.reading import check_times
from roastcoffea.storage.tables import SPAN_FORMS, TABLES, tables_of
from roastcoffea.units import moment

NOT_ASKED: Final = "the client was lost before it asked for them"


class _Replayed(Recorder):
    """A recorder that records nothing itself."""

    def open(self, interval: float | None, span: str | None = None) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to stop."""

    def reaches(self, executor: Any) -> bool:  # noqa: ARG002  (it records nothing)
        return False


class ReplayedCluster(_Replayed, LoggedCluster):
    """A Dask cluster from a journal."""

    def _reset(self) -> None:
        super()._reset()
        self.absent["span_metrics"] = NOT_ASKED


class ReplayedProcesses(_Replayed, LocalMetricsBackend):
    """Processes of one host from a journal."""

    def take(self, kind: str, data: bytes) -> None:
        if kind == PROCESSES:
            remember(json.loads(data), self.processes.seen, self._steps)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        super().learn(facts)
        if "process" in facts:  # else they are of a backend of the user's
            self._host, self._process = facts["host"], facts["process"]
            self._cpu_at_open, self._job = facts["cpu_at_open"], facts["job"]
            self._withheld = tuple(facts["withheld"])


def replayed(kind: str) -> Recorder:
    """A recorder that takes the entries of a journal, of a backend of this kind."""
    if kind == ReplayedCluster.kind:
        return ReplayedCluster()
    recorder = ReplayedProcesses()
    recorder.kind = kind
    return recorder


LOST_ERROR: Final = "the client was lost (killed, out of memory, or without power); its journal ends at {}"
LACKS: Final = (
    "the client was lost: what came after {} is missing, with the tasks that were running then, the last reports of "
    "the workers, and Dask's fine metrics"
)


def recovered(journal: Journal) -> Measurement:
    """The measurement that a journal has: of a run that was lost, or one that ended and was not saved.

    Raises
    ------
    JournalError
        Its header is damaged.
    """
    try:
        replay = _Replay(journal.header)
        for entry in journal.entries():
            replay.take(entry)
        return Measurement(checked(replay.run(journal.problems)))
    except DAMAGED as error:
        raise JournalError(f"{journal.folder} cannot be read: {error_text(error)}") from error


def _as_saved(run: Run) -> Run:
    """The run; raises one of `DAMAGED` if it could not be loaded once it is saved."""
    check_times(run.start, run.stop)
    check_body(restored_body(body_of(run)))
    return run


class _Replay:
    """A run that is learned from its journal."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        wanted = {"profile": header["profile"], "peak_memory": header.get("peak_memory", True)}
        self._records = RunRecords(header["id"], header["name"], header["interval"], **wanted)
        self._records.environment = Environment(**{**header["environment"], "hosts": ()})
        self._records.outside = dict(header["outside"])
        self._backend = replayed(header["backend"])
        self._start = self._last = float(header["start"])
        self._spans: dict[str, list[pa.Table]] = {}
        self._end: dict[str, Any] | None = None
        self._late_report: dict[str, Any] | None = None
        if header["version"] != roastcoffea.__version__:
            self._records.note(
                f"roastcoffea {header['version']} wrote the journal: entries of a form unknown here are lost"
            )

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        self._last = max(self._last, entry.time)
        with reported(self._records.note, f"the journal has {entry.kind!r} that cannot be read", Exception):
            if entry.kind.startswith(SPANS):
                name = entry.kind.removeprefix(SPANS)
                self._spans.setdefault(name, []).append(unpacked_part(entry.data, arrow_schema(TABLES[name])))
            elif entry.kind == END:
                self._end = json.loads(entry.data)
            elif entry.kind == REPORT and self._end is not None:
                self._late_report = unpacked_values(entry.data)
            else:
                self._records.take(entry.kind, entry.data)
                self._backend.take(entry.kind, entry.data)

    def run(self, problems: Sequence[str]) -> Run:
        """The run so far."""
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
        for problem in (LACKS.format(moment(self._last)), *self._journal_problems):
            records.note(problem)
        records.lost = True
        ending = LOST, LOST_ERROR.format(moment(self._last))
        return records.run(self._backend, start, max(self._last, start), ending)

    def _ended_run(self, end: Mapping[str, Any]) -> Run:
        """A run that ended, and was not saved: what is in no table is known."""
        body = restored_body(end["run"])
        check_body(body)
        replayed_run = self._records.run(self._backend, body["start"], body["stop"], (body["outcome"], body["error"]))
        tables = tables_of(replayed_run) | {name: pa.concat_tables(parts) for name, parts in self._spans.items()}
        problems, absent = [*body["problems"], *self._journal_problems], body["absent"]
        if end["rows"] is None:  # the client ended before it made the tables: what they tell comes from the replay
            problems = [*dict.fromkeys((*replayed_run.problems, *problems))]
            absent = absent | {name: why for name, why in replayed_run.absent.items() if name not in SPAN_FORMS}
        else:
            wanted = end["rows"].items()
            lacking = [name for name, rows in wanted if name not in tables or len(tables[name]) != rows]
            problems += [f"the journal lacks rows of {', '.join(lacking)}"] if lacking else []
            tables = {name: tables[name] for name, _ in wanted if name in tables}
        run = run_of(body | {"absent": absent, "problems": problems}, tables)
        if end["rows"] is None:
            run = replace(run, calls=replayed_run.calls)
        return run if self._late_report is None else with_report(run, **self._late_report)
