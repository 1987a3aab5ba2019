"""Missing data and failed attempts: what a run lacks, why, and the line that processes the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.errors import root_cause
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.facts import known_sum, of_finished_calls, with_outcome
from roastcoffea.metrics.failures import PLACE, RANGE, MissingFiles, partial_output
from roastcoffea.metrics.memory import typical_before
from roastcoffea.metrics.thread_activity import REPEATED
from roastcoffea.records import workers as task_records
from roastcoffea.records.chunks import ERROR, OK, SKIPPED
from roastcoffea.records.run import FAILED, FINISHED, LOST, NO_FILE, Run, RunnerCall
from roastcoffea.units import BYTE, FRACTION, are, counted, number

TARGET: Final = 0.6
"""Share of a worker's limit that chunks may fill: above it Dask spills results to disk (its default)."""

WITHOUT_EVENTS: Final = "what chunks take does not depend on their events"

Row = dict[str, Any]


class Fit(NamedTuple):
    """The chunk size that fits into the memory of a worker's threads, with its inputs."""

    events: int
    dataset: str
    """The dataset that needs most memory per event."""
    limit: int
    threads: int
    baseline: float
    """Resident memory before the first chunk, plus the fixed part of a chunk."""
    bytes_per_event: float
    at_most: bool
    """Whether the fitting size may be smaller still, because attempts were killed before their peak."""

    @property
    def arithmetic(self) -> str:
        """The computation, written out."""
        threads = f" / {number(self.threads)} threads" if self.threads > 1 else ""
        return (
            f"({BYTE.text(self.limit)} x {TARGET:g} - {BYTE.text(self.baseline)} before chunks){threads} / "
            f"{BYTE.text(self.bytes_per_event)} per event"
        )

    def peak(self, events: float) -> float:
        """Bytes that a worker needs with chunks of this many events on all threads."""
        return self.baseline + self.threads * self.bytes_per_event * events

    def limit_for(self, events: float) -> float:
        """Memory limit of a worker that fits chunks of this many events."""
        return self.peak(events) / TARGET


def rounded_down(size: float) -> int:
    """Number of events, rounded down to two digits, so that a slightly longer file is still one chunk."""
    unit = int(10 ** max(len(str(int(size))) - 2, 0))
    return max(int(size) // unit * unit, 1)


@dataclass(frozen=True, kw_only=True)
class MemoryEvidence:
    """Evidence about memory in a run.

    Attributes
    ----------
    workers : list of dict
        Rows of `worker_memory`.
    datasets : list of dict
        Rows of `dataset_memory`.
    fit : Fit or None
        The chunk size that fits; if None, `fit_absent` has the reason.
    chunk_events : float or None
        Events of the typical chunk.
    """

    workers: list[dict[str, Any]]
    datasets: list[dict[str, Any]]
    fit: Fit | None
    fit_absent: str | None
    chunk_events: float | None

    @property
    def killed(self) -> list[dict[str, Any]]:
        """Workers that were killed, largest loss first."""
        found = [row for row in self.workers if row["killed_by"] is not None]
        return sorted(found, key=lambda row: -row["lost_seconds"])

    @property
    def paused(self) -> list[dict[str, Any]]:
        """Workers that were paused, longest pause first."""
        return sorted((row for row in self.workers if row["paused_seconds"]), key=lambda row: -row["paused_seconds"])

    @property
    def spilled(self) -> list[dict[str, Any]]:
        """Workers that spilled, largest amount first: Dask spills a few bytes on any worker."""
        found = [row for row in self.workers if (row["spilled"] or 0) > 0.01 * (row["memory_limit"] or 0)]
        return sorted(found, key=lambda row: -(row["spilled"] or 0))

    @property
    def lacking(self) -> list[dict[str, Any]]:
        """Workers that were killed, else paused, else spilling."""
        return self.killed or self.paused or self.spilled

    @property
    def results_fill_it(self) -> bool:
        """Whether the results that workers hold, not their chunks, use most of the memory."""
        lacking = [row for row in self.workers if row["killed_by"] or row["paused_seconds"] or row["spilled"]]
        return any(
            row["results"] >= 0.5 * row["memory_peak"] for row in lacking if row["results"] and row["memory_peak"]
        )

    @property
    def heaviest(self) -> dict[str, Any] | None:
        """The dataset that needs most memory per event."""
        known = [row for row in self.datasets if row["bytes_per_event"] is not None]
        return max(known, key=lambda row: row["bytes_per_event"], default=None)


# Fit


@fact
def memory_evidence(
    run: Run, worker_memory: pa.Table, dataset_memory: pa.Table | None = None, chunks: pa.Table | None = None
) -> MemoryEvidence:
    """Evidence about memory, and the chunk size that fits."""
    workers = worker_memory.to_pylist()
    datasets = [] if dataset_memory is None else dataset_memory.to_pylist()
    # of the requested chunks, else of the attempted ones
    every = run.asked if run.asked is not None and len(run.asked) else chunks
    sizes = [] if every is None else pc.subtract(every["entry_stop"], every["entry_start"]).drop_null().to_numpy()
    typical = float(np.median(sizes)) if len(sizes) else None
    found = _fit(workers, datasets, typical_before(worker_memory), typical)
    fit, absent = (found, None) if isinstance(found, Fit) else (None, found)
    return MemoryEvidence(workers=workers, datasets=datasets, fit=fit, fit_absent=absent, chunk_events=typical)


def _fit(workers: Sequence[Row], datasets: Sequence[Row], floor: float | None, typical: float | None) -> Fit | str:
    """The chunk size that fits into the smallest worker, or why it is unknown."""
    limited = [row for row in workers if row["memory_limit"]]
    if not limited or floor is None:
        return "the memory of workers was not measured" if limited else "no worker has a memory limit"
    tightest = min(limited, key=lambda row: row["memory_limit"] / row["threads"])
    limit, threads = tightest["memory_limit"], tightest["threads"]
    known = [row for row in datasets if row["bytes_per_event"]]
    if not known and any(row["bytes_per_event"] is not None for row in datasets):
        return WITHOUT_EVENTS
    worst = max(known, key=lambda row: row["bytes_per_event"], default=None)
    if worst is None:
        # chunks shared processes: take the joint growth of all threads for their usual chunks
        growth = max((row["memory_peak"] - floor for row in limited if row["memory_peak"] is not None), default=0)
        if not typical or growth <= 0:
            return "the memory per event could not be measured for any chunk"
        each = growth / threads / typical
        worst = {"dataset": "all datasets", "at_least": 0, "fixed_bytes": 0.0, "bytes_per_event": each}
    used, each = floor + threads * (worst["fixed_bytes"] or 0.0), worst["bytes_per_event"]
    if TARGET * limit <= used:
        return f"a worker uses {BYTE.text(used)} before any event, and its limit is {BYTE.text(limit)}"
    size = rounded_down((TARGET * limit - used) / threads / each)
    return Fit(size, worst["dataset"], limit, threads, used, each, bool(worst["at_least"]))


MOST_NAMED: Final = 3
"""Number of files that a text names."""

INTERRUPT: Final = "KeyboardInterrupt"

COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
BROKEN: Final = "failed"
INTERRUPTED: Final = "interrupted"
NOTHING: Final = "nothing was run"
NO_RUNNER: Final = "no Runner was called"


class CommonError(NamedTuple):
    """The error that ended most failed attempts, in one line, and how many it ended."""

    text: str
    times: int

    def __str__(self) -> str:
        return f"{self.text}{self.how_often}"

    @property
    def how_often(self) -> str:
        """How often it occurred, in parentheses; empty if once."""
        return f" ({number(self.times)} times)" if self.times > 1 else ""


def shortened(error: str) -> str:
    """The root cause of an error, shortened to one line."""
    cause = root_cause(error).strip()
    return cause if len(cause) <= 120 else f"{cause[:117]}..."


def is_interrupt(error: str | None) -> bool:
    """Whether an error is Ctrl-C, with or without text."""
    return (error or "").partition(":")[0].strip() == INTERRUPT


OUTSIDE: Final = re.compile(
    r"time(d )?[ -]?out|connect|network|unreachable|broken pipe|closed by|reset|temporar|try again|operation expired"
    r"|disconnected|payload|too many requests|unavailable|gateway|killed ?worker|commclosed|cancel|aborted"
    r"|terminated (abruptly|unexpectedly)|unexpectedly terminated"
    r"|^ClientResponseError: (429|50[0234])\b",
    re.IGNORECASE,
)
"""Words of errors whose cause was neither the analysis nor its files, in errors of these types:"""

OF_SYSTEM: Final = re.compile(
    r"OSError|IOError|gaierror|BrokenPipe|CommClosed|Killed|Client|Server|HTTP|Remote|XRootD|(Future)?Cancelled"
    r"|URLError|MaxRetry|Protocol|BrokenProcessPool|TerminatedWorker|\w*(Timeout|Connect)",
    re.IGNORECASE,
)

NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*")
"""Quoted texts and paths in an error, which may have any words."""


def is_outside(error: str | None) -> bool:
    """Whether another attempt may succeed without a change: no error, Ctrl-C, a lost worker, a timeout, the network."""
    if error is None or is_interrupt(error):
        return True
    cause = root_cause(error)
    return OF_SYSTEM.match(cause) is not None and OUTSIDE.search(NAMES.sub("", cause)) is not None


def commonest(errors: Iterable[str | None]) -> CommonError | None:
    """The most common of these errors; None if there are none."""
    found = Counter(shortened(error) for error in errors if error)
    return CommonError(*found.most_common(1)[0]) if found else None


@dataclass(frozen=True, kw_only=True)
class Incompleteness:
    """Data missing from the output of a run.

    Attributes
    ----------
    files : list of dict
        Files whose chunks are unknown (`dataset`, `file`, `tree`, `error`): they could not be opened or, without an
        error, the run failed before reaching them.
    chunks : list of dict
        Chunks without a result (`dataset`, `file`, `tree`, `entry_start`, `entry_stop`).
    events : int
        Events of those chunks.
    events_of_files : float or None
        Events of those files, estimated by the mean of the opened files; None if there are none.
    asked_events : int
        Events of all requested chunks.
    skipped : int
        Chunks that `skipbadfiles` left out.
    uncertain : int
        Chunks without a record in a run that may skip chunks: they may or may not be missing.
    failed_for_good : int
        Failed attempts of these chunks and files.
    error : CommonError or None
        The most common error of these attempts, else the error of the run.
    run_error : str or None
        Error that ended the run or one of its Runner calls; None if all finished.
    ending : str
        How the run ended, as a verb.
    remedy : str or None
        Line to copy that processes the rest; None if nothing is known to be missing.
    partial : int
        Chunks in the partial output of calls that failed.
    to_fix : CommonError or None
        The most common error that would come again; None if all causes were outside: a lost worker, a timeout, the
        network, Ctrl-C.
    """

    files: list[Row]
    chunks: list[Row]
    events: int
    events_of_files: float | None
    asked_events: int
    skipped: int
    uncertain: int
    failed_for_good: int
    error: CommonError | None
    run_error: str | None
    ending: str
    remedy: str | None
    to_fix: CommonError | None = None
    partial: int = 0

    @property
    def complete(self) -> bool:
        """Whether the output has everything that was requested, as far as is known."""
        return not self.files and not self.chunks and self.run_error is None

    @property
    def share(self) -> float | None:
        """Share of the events that is lost, with the estimate for files; None if unknown."""
        if self.files and self.events_of_files is None:
            return None
        of_files = self.events_of_files or 0.0
        total = self.asked_events + of_files
        return (self.events + of_files) / total if total else None

    @property
    def what(self) -> str:
        """What is missing, and from which files."""
        if not self.files and not self.chunks:
            return f"{self._ended()}: it is unknown whether its output is complete."
        things = [self._unread()] if self.files else []
        things += [counted(len(self.chunks), "chunk")] if self.chunks else []
        verb = are(len(self.files) + len(self.chunks))
        start = f"{self._ended()}: " if self.run_error is not None else ""
        return f"{start}{' and '.join(things)} {verb} missing from the output ({named(self.names)}){self._why()}."

    @property
    def how_much(self) -> str:
        """Lost events: known and estimated."""
        about = self.events_of_files if self.files else None
        lost = [f"{number(self.events)} events{'' if about is None else ' of chunks'}"] if self.chunks else []
        if about is not None:
            of = " of files" if self.chunks else ""
            lost.append(f"about {number(round(about))} events{of} (estimated from the other files)")
        share = "" if self.share is None else f", {FRACTION.text(self.share)} of all"
        parts = [f"{' and '.join(lost)} are missing{share}"] if lost else []
        if self.files and about is None:
            parts.append(f"the number of events in {counted(len(self.files), 'file')} is unknown")
        failed = f"; {counted(self.failed_for_good, 'attempt')} failed" if self.failed_for_good else ""
        text = f"{', and '.join(parts) or 'no lost event is known'}{failed}."
        return text[0].upper() + text[1:]

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.to_fix is not None:
            others = " `measurement.missing` lists the other files." if len(self.names) > MOST_NAMED else ""
            return f"Fix this first, or it will fail again: {self._without_names(self.to_fix.text)}.{others}"
        return "Run it again." if self.remedy is None else "Process the rest."

    @property
    def line(self) -> str | None:
        """Line to copy that processes the rest, if nothing has to be fixed first."""
        return self.remedy if self.to_fix is None else None

    @property
    def names(self) -> list[str]:
        """Files that lack data: those without chunks, then the ones that lack most events."""
        events = dict.fromkeys((row["file"] for row in self.files), 0)
        for row in self.chunks:
            events[row["file"]] = events.get(row["file"], 0) + row["entry_stop"] - row["entry_start"]
        return sorted(events, key=lambda file: (events[file] > 0, -events[file]))

    def _unread(self) -> str:
        """Files without chunks: files that could not be opened, and files that a failed run did not reach."""
        bad = sum(row["error"] is not None for row in self.files)
        left = len(self.files) - bad
        parts = [f"{counted(bad, 'file')} that could not be opened"] if bad else []
        parts += [f"{counted(left, 'file')} that {'was' if left == 1 else 'were'} not reached"] if left else []
        return " and ".join(parts)

    def _ended(self) -> str:
        if self.run_error == INTERRUPT:
            return "The run was interrupted"
        return f"The run {self.ending} ({shortened(self.run_error or '')})"

    def _without_names(self, error: str) -> str:
        """An error without the file that is named before it."""
        for name in self.names[:MOST_NAMED]:
            error = error.replace(f": '{name}'", "").replace(f": {name}", "")
        return error

    def _why(self) -> str:
        reasons = [f"{number(self.skipped)} skipped by skipbadfiles"] if self.skipped else []
        reasons += [f"{number(self.uncertain)} without a record, which may be in the output"] if self.uncertain else []
        if self.partial:
            reasons.append(f"{number(self.partial)} others are only in the partial output that came with the error")
        ended = self.run_error is not None and self.error is not None and self.error.text in self._ended()
        if self.error is not None and not ended and not is_interrupt(self.error.text):
            reasons.append(f"most common error{self.error.how_often}: {self._without_names(self.error.text)}")
        return f"; {'; '.join(reasons)}" if reasons else ""


@fact
def incompleteness(
    run: Run,
    missing_work: pa.Table,
    files_to_repeat: MissingFiles,
    failed_work: pa.Table | None = None,
) -> Incompleteness:
    """Data missing from the output; complete if it has everything that was requested."""
    rows = missing_work.to_pylist()
    chunks = [row for row in rows if row["entry_start"] is not None]
    files = [row for row in rows if row["entry_start"] is None]
    attempts = None if run.chunks is None else run.chunks.filter(pc.equal(run.chunks["outcome"], SKIPPED))
    skipped = set() if attempts is None else set(map(_key, attempts.select(["call", *PLACE, *RANGE]).to_pylist()))
    in_output, unknown = _without_record(run, chunks, skipped)
    chunks = [row for row in chunks if _key(row) not in in_output]
    # the last error of each file that preprocessing could not open
    preprocessing = [] if run.preprocessing is None else run.preprocessing.to_pylist()
    errors = {_file(row): row["error"] for row in preprocessing if row["outcome"] == ERROR}
    files = [{name: row[name] for name in PLACE} | {"error": errors.get(_file(row))} for row in files]
    failed = _failed_of(failed_work, chunks, files)
    # an error after the last call leaves the output whole
    inside = run.ended_early and any(call.outcome != FINISHED for call in run.calls)
    ended = (run.error or "no error text was kept") if inside else None
    return Incompleteness(
        files=files,
        chunks=[{name: row[name] for name in (*PLACE, *RANGE)} for row in chunks],
        events=sum(row["entry_stop"] - row["entry_start"] for row in chunks),
        events_of_files=_estimated_events(run.asked, files),
        asked_events=_events(run.asked),
        skipped=sum(_key(row) in skipped for row in chunks),
        uncertain=sum(_key(row) in unknown for row in chunks),
        failed_for_good=len(failed),
        error=commonest(row["error"] for row in failed) or commonest([ended]),
        run_error=INTERRUPT if ended is not None and is_interrupt(ended) else ended,
        partial=_only_partial(run),
        ending=run.ending,
        remedy=_line(chunks, files, files_to_repeat),
        to_fix=commonest(error for error in (*(row["error"] for row in failed), ended) if not is_outside(error)),
    )


def _only_partial(run: Run) -> int:
    """Number of chunks that are in a partial output and in that of no finished call."""
    names = [*PLACE, *RANGE]
    kept, chunks = partial_output(run), run.chunks
    if chunks is None or not len(kept):
        return len(kept)
    done = of_finished_calls(run, with_outcome(chunks, (OK,))).select(names).to_pylist()
    whole = {tuple(row.values()) for row in done}
    return sum(tuple(row.values()) not in whole for row in kept.select(names).to_pylist())


class CaughtErrors(NamedTuple):
    """Errors of tasks that went on: files that they could not open, and exceptions among the values they returned."""

    files: list[str]
    of_files: CommonError | None
    returned: int
    of_returned: CommonError | None

    @property
    def what(self) -> str:
        """What the results of these tasks lack."""
        parts = []
        if self.files:
            names = named(self.files)
            parts.append(f"{counted(len(self.files), 'file')} could not be opened in tasks that went on ({names})")
        if self.returned:
            parts.append(f"tasks returned {counted(self.returned, 'exception')} among their values")
        errors = [str(error) for error in (self.of_files, self.of_returned) if error is not None]
        what = f"{' and '.join(parts)}: {'; '.join(errors)}."
        return f"{what[0].upper()}{what[1:]}"


def caught_errors(run: Run) -> CaughtErrors | None:
    """Errors of tasks that went on, except of files that the same attempt read; None if there are none."""
    if run.chunks is None:
        return None
    errors = pc.and_(pc.equal(run.chunks["outcome"], ERROR), run.chunks["wall_seconds"].is_null())
    rows = run.chunks.select(["file", "error", "events"]).filter(errors).to_pylist()
    unopened = [row for row in rows if row["file"] is not None and row["events"] is None]
    returned = [row["error"] for row in rows if row["file"] is None]
    if not unopened and not returned:
        return None
    files = list(dict.fromkeys(row["file"] for row in unopened))
    return CaughtErrors(files, commonest(row["error"] for row in unopened), len(returned), commonest(returned))


def named(files: Sequence[str]) -> str:
    """Names of the first few of these files."""
    more = [f"and {number(len(files) - MOST_NAMED)} more files"] if len(files) > MOST_NAMED else []
    return ", ".join([*files[:MOST_NAMED], *more])


def state_of(run: Run, missing: Incompleteness | None) -> str:
    """State of a run in a few words, such as "complete"; `missing` is None where it is not known what is missing."""
    if run.outcome == LOST:
        return LOST
    if run.outcome == FAILED:
        # what interrupts after the last Runner call leaves its output whole
        error = missing.run_error if missing is not None and missing.run_error else run.error or ""
        return INTERRUPTED if is_interrupt(error) else BROKEN
    if not run.calls and run.reported is None and not (run.chunks is not None and len(run.chunks)):
        without = NO_FILE if run.absent.get("chunks") == NO_FILE else NO_RUNNER
        return without if run.tasks is not None and len(run.tasks) else NOTHING
    return INCOMPLETE if missing is not None and not missing.complete else COMPLETE


def _file(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["dataset"], row["file"]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("call", *PLACE, *RANGE))


def _without_record(
    run: Run, chunks: Sequence[Row], skipped: set[tuple[Any, ...]]
) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Chunks of finished calls that no record shows as skipped: in the output, or unknown.

    A call that skips nothing raises when a chunk fails, so its output is complete; otherwise coffea's report decides.
    """
    inside: set[tuple[Any, ...]] = set()
    unknown: set[tuple[Any, ...]] = set()
    for call in run.calls:
        mine = [row for row in chunks if row["call"] == call.id]
        if call.outcome == FINISHED and (silent := set(map(_key, mine)) - skipped):
            lost = sum(row["entry_stop"] - row["entry_start"] for row in mine if _key(row) in skipped)
            (inside if _has_all(run, call, lost) else unknown).update(silent)
    return inside, unknown


def _has_all(run: Run, call: RunnerCall, lost: int) -> bool:
    """Whether the output of a call has everything that was not skipped."""
    if call.options.get("skipbadfiles") is False:
        return True
    entries = (call.report or {}).get("entries")
    if run.asked is None or not isinstance(entries, int):
        return False
    return entries + lost >= _events(run.asked.filter(pc.equal(run.asked["call"], call.id)))


def _events(asked: pa.Table | None) -> int:
    """Events of the requested chunks, each counted once."""
    if asked is None:
        return 0
    chunks = asked.filter(asked["entry_start"].is_valid()).group_by([*PLACE, *RANGE]).aggregate([])
    return int(known_sum(pc.subtract(chunks["entry_stop"], chunks["entry_start"])))


def _estimated_events(asked: pa.Table | None, files: Sequence[Row]) -> float | None:
    """Events of files that were not opened: the mean over opened files of the dataset, else over all."""
    if asked is None or not files:
        return 0.0 if not files else None
    chunks = asked.filter(asked["entry_start"].is_valid()).select(["dataset", "file", "entry_stop"]).to_pandas()
    sizes = chunks.groupby(["dataset", "file"])["entry_stop"].max()
    means = sizes.groupby(level="dataset").mean()
    return float(sum(means.get(row["dataset"], sizes.mean()) for row in files)) if len(sizes) else None


def _failed_of(failed: pa.Table | None, chunks: Sequence[Row], files: Sequence[Row]) -> list[Row]:
    """Failed attempts of missing chunks and files, without those that never began, or were cut off or interrupted."""
    if failed is None:
        return []
    names = ["dataset", "file", *RANGE]
    ranges, unopened = {tuple(row[name] for name in names) for row in chunks}, set(map(_file, files))
    return [
        row
        for row in failed.filter(pc.is_in(failed["reason"], pa.array([ERROR, SKIPPED, task_records.LOST]))).to_pylist()
        if row["seconds"] != 0
        and not is_interrupt(row["error"])
        and (
            _file(row) in unopened
            if row["kind"] == task_records.PREPROCESSING
            else tuple(row[name] for name in names) in ranges
        )
    ]


def _line(chunks: Sequence[Row], files: Sequence[Row], lacking: MissingFiles) -> str | None:
    """Lines that process what is missing, and nothing twice."""
    trees = [row["tree"] for row in (*chunks, *files) if row["tree"]]
    tree = f', treename="{trees[0]}"' if trees else ""
    what = ["missing_fileset(fileset)"] if chunks or files else []
    if any(row["file"] not in lacking.get(row["dataset"], {}) for row in chunks):
        what = ["missing_items(fileset)", *(["missing_fileset(fileset, unopened=True)"] if files else [])]
    lines = (f"rest = runner(measurement.{one}{tree}, processor_instance=processor)" for one in what)
    return "; ".join(lines) or None


# Failed attempts

FEWEST: Final = 2
"""Chunks that must have failed before anything is said of where."""


class Cluster(NamedTuple):
    """A name shared by most failures, far more often than by all attempts.

    Tested with the hypergeometric distribution over chunks: attempts of one chunk on one worker count once.
    """

    kind: str
    name: str
    failed: int
    tried: int
    all_failed: int
    all_tried: int
    probability: float
    """Chance of as many failures under this name, times the number of names tested."""


@dataclass(frozen=True, kw_only=True)
class FailureEvidence:
    """Failed attempts, except those whose worker was killed for its memory.

    Attributes
    ----------
    attempts : int
        Attempts of chunks that raised an error or were lost with their worker.
    chunks : int
        Number of their chunks.
    repeated : int
        Chunks of these that succeeded in another attempt.
    seconds : float
        Thread seconds of the attempts.
    by_reason : mapping
        Thread seconds by reason.
    error : CommonError or None
        The most common error.
    cluster : Cluster or None
        Name on which they cluster; None if they do not.
    common : Cluster or None
        Name that all of them share, and not all attempts, where they are too few for a cluster.
    """

    attempts: int
    chunks: int
    repeated: int
    seconds: float
    by_reason: Mapping[str, float]
    error: CommonError | None
    cluster: Cluster | None
    common: Cluster | None = None


@fact
def failure_evidence(
    chunks: pa.Table,
    counted_chunks: pa.Table,
    failed_work: pa.Table,
    lifetimes: pa.Table | None = None,
    memory_evidence: MemoryEvidence | None = None,
) -> FailureEvidence:
    """Attempts that failed for reasons other than memory."""
    killed = [] if memory_evidence is None else [row["worker"] for row in memory_evidence.killed]
    failed, place = _not_for_memory(failed_work.to_pandas(), killed), ["dataset", "file", *RANGE]
    tested = _tested(chunks, failed, place, lifetimes) if len(failed) else []
    cluster = min(
        (one for one in tested if one.failed >= 0.5 * one.all_failed), key=attrgetter("probability"), default=None
    )
    if cluster is not None and cluster.probability >= 0.01:
        cluster = None
    # the name with the fewest attempts that has all failures, but not all attempts
    shared = [one for one in tested if FEWEST <= one.failed == one.all_failed and one.tried < one.all_tried]
    places = failed[place].drop_duplicates()
    done = places.merge(counted_chunks.select(place).to_pandas().drop_duplicates()) if len(failed) else places
    by_reason: dict[str, float] = dict(failed.groupby("reason", sort=False)["seconds"].sum())
    return FailureEvidence(
        attempts=len(failed),
        chunks=len(places),
        repeated=len(done),
        seconds=sum(by_reason.values()),
        by_reason=by_reason,
        error=commonest(failed["error"].dropna()),
        cluster=cluster,
        common=min(shared, key=attrgetter("tried"), default=None) if cluster is None else None,
    )


def _not_for_memory(failed: pd.DataFrame, killed: list[str]) -> pd.DataFrame:
    """Failed attempts of chunks that took time, but not by Ctrl-C or with a worker that was killed for its memory."""
    with_worker = failed["worker"].isin(killed) & failed["reason"].isin([task_records.LOST, REPEATED])
    own = (
        failed["kind"].eq(task_records.PROCESSOR)
        & failed["reason"].isin([ERROR, task_records.LOST, REPEATED])
        & failed["seconds"].ne(0)
    )
    return failed[own & ~with_worker & ~failed["error"].map(is_interrupt, na_action="ignore").eq(True)]


def _tested(chunks: pa.Table, failed: pd.DataFrame, place: list[str], lifetimes: pa.Table | None) -> list[Cluster]:
    """Names with failures, each with the chance of as many, corrected for all names.

    Of two equally unlikely ones the first is reported.
    """
    names = [*place, "worker"]
    bad = failed.loc[failed["reason"] != REPEATED, names]
    every = pd.concat([chunks.select(names).to_pandas(), bad], ignore_index=True)
    every["bad"] = every.index >= len(chunks)
    every["chunk"] = every.groupby(place, dropna=False).ngroup()
    if lifetimes is not None:
        # a worker that came back has several lifetimes
        every["host"] = every["worker"].map(
            lifetimes.select(["worker", "host"]).to_pandas().groupby("worker").max()["host"]
        )
    found = []
    for kind in ("worker", "host", "file", "dataset"):
        if kind in every:
            pairs = every.groupby([kind, "chunk"])["bad"].max().groupby(level=0).agg(["sum", "size"])
            wrong, tried = pairs.sum()
            pairs = pairs[pairs["sum"] > 0]
            chance = scipy.stats.hypergeom.sf(pairs["sum"] - 1, tried, wrong, pairs["size"])
            rows = zip(pairs.index, pairs["sum"].tolist(), pairs["size"].tolist(), chance.tolist(), strict=True)
            found += [Cluster(kind, name, own, size, int(wrong), int(tried), each) for name, own, size, each in rows]
    return [one._replace(probability=min(one.probability * len(found), 1.0)) for one in found]
