"""Missing data and failed attempts: their extent and causes, and code to process what is missing."""

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
from roastcoffea.records.arrow import pairs, plain, rows_in
from roastcoffea.records.chunks import ERROR, OK, SKIPPED
from roastcoffea.records.run import FAILED, FINISHED, LOST, NO_FILE, Run, RunnerCall
from roastcoffea.units import BYTE, FRACTION, are, counted, number, rough

TARGET: Final = 0.6
"""Fraction of a worker's memory limit that chunks may use. Above this, Dask spills results to disk by default."""

WITHOUT_EVENTS: Final = "chunk memory does not depend on the number of events"

Row = dict[str, Any]


class Fit(NamedTuple):
    """The largest chunk size that fits in a worker's memory, with the inputs to the calculation."""

    events: int
    dataset: str
    """Dataset that needs the most memory per event."""
    limit: int
    threads: int
    baseline: float
    """Resident memory before the first chunk, plus the fixed memory of one chunk per thread."""
    bytes_per_event: float
    at_most: bool
    """Whether an even smaller size may be needed, because attempts were killed before their memory use peaked."""

    @property
    def arithmetic(self) -> str:
        threads = f" / {number(self.threads)} threads" if self.threads > 1 else ""
        return (
            f"({BYTE.text(self.limit)} x {TARGET:g} - {BYTE.text(self.baseline)} before chunks){threads} / "
            f"{BYTE.text(self.bytes_per_event)} per event"
        )

    def peak(self, events: float) -> float:
        """Memory that a worker needs when all its threads process chunks of this size, in bytes."""
        return self.baseline + self.threads * self.bytes_per_event * events

    def limit_for(self, events: float) -> float:
        return self.peak(events) / TARGET


def rounded_down(size: float) -> int:
    """Round down to two significant digits. coffea still keeps slightly longer files in one chunk."""
    unit = int(10 ** max(len(str(int(size))) - 2, 0))
    return max(int(size) // unit * unit, 1)


@dataclass(frozen=True, kw_only=True)
class MemoryEvidence:
    """Evidence about a run's memory use.

    Attributes
    ----------
    workers : list of dict
        Rows of `worker_memory`.
    datasets : list of dict
        Rows of `dataset_memory`, with `filled`: events in the dataset's largest chunk, relative to the median chunk (at
        most 1). Datasets of small files never need the memory of a full chunk.
    fit : Fit or None
        The chunk size that fits in memory. If None, `fit_absent` contains the reason.
    chunk_events : float or None
        Median number of events per chunk; None if unknown.
    """

    workers: list[dict[str, Any]]
    datasets: list[dict[str, Any]]
    fit: Fit | None
    fit_absent: str | None
    chunk_events: float | None

    @property
    def killed(self) -> list[dict[str, Any]]:
        found = [row for row in self.workers if row["killed_by"] is not None]
        return sorted(found, key=lambda row: -row["lost_seconds"])

    @property
    def paused(self) -> list[dict[str, Any]]:
        return sorted((row for row in self.workers if row["paused_seconds"]), key=lambda row: -row["paused_seconds"])

    @property
    def spilled(self) -> list[dict[str, Any]]:
        found = [row for row in self.workers if (row["spilled"] or 0) > 0.01 * (row["memory_limit"] or 0)]
        return sorted(found, key=lambda row: -(row["spilled"] or 0))

    @property
    def lacking(self) -> list[dict[str, Any]]:
        return self.killed or self.paused or self.spilled

    @property
    def results_fill_it(self) -> bool:
        """Whether stored results, rather than chunks, use most of a worker's memory."""
        lacking = [row for row in self.workers if row["killed_by"] or row["paused_seconds"] or row["spilled"]]
        return any(
            row["results"] >= 0.5 * row["memory_peak"] for row in lacking if row["results"] and row["memory_peak"]
        )

    @property
    def heaviest(self) -> dict[str, Any] | None:
        known = [row for row in self.datasets if row["bytes_per_event"] is not None]
        return max(known, key=_need, default=None)


def _need(row: Row) -> float:
    """Memory that a chunk of the dataset needs, per event of a typical chunk."""
    return float((row["bytes_per_event"] or 0.0) * row["filled"])


# Fit


@fact
def memory_evidence(
    run: Run, worker_memory: pa.Table, dataset_memory: pa.Table | None = None, chunks: pa.Table | None = None
) -> MemoryEvidence:
    workers = worker_memory.to_pylist()
    datasets = rows_in(dataset_memory)
    # use the requested chunks or, if they are unknown, the attempted chunks
    every = run.asked if run.asked is not None and len(run.asked) else chunks
    sizes = [] if every is None else pc.subtract(every["entry_stop"], every["entry_start"]).drop_null().to_numpy()
    typical = float(np.median(sizes)) if len(sizes) else None
    largest = {} if every is None else _largest(every)
    for row in datasets:
        row["filled"] = min(largest.get(row["dataset"], np.inf) / typical, 1.0) if typical else 1.0
    found = _fit(workers, datasets, typical_before(worker_memory), typical)
    fit, absent = (found, None) if isinstance(found, Fit) else (None, found)
    return MemoryEvidence(workers=workers, datasets=datasets, fit=fit, fit_absent=absent, chunk_events=typical)


def _largest(chunks: pa.Table) -> dict[str, int]:
    """Number of events in the largest chunk of each dataset."""
    sizes = pa.table({"dataset": chunks["dataset"], "size": pc.subtract(chunks["entry_stop"], chunks["entry_start"])})
    found = sizes.drop_null().group_by("dataset").aggregate([("size", "max")])
    return pairs(found, "dataset", "size_max")


def _fit(workers: Sequence[Row], datasets: Sequence[Row], floor: float | None, typical: float | None) -> Fit | str:
    """Chunk size for the worker with the least memory per thread, or the reason why it is unknown."""
    limited = [row for row in workers if row["memory_limit"]]
    if not limited or floor is None:
        return "worker memory was not measured" if limited else "no worker has a memory limit"
    tightest = min(limited, key=lambda row: row["memory_limit"] / row["threads"])
    limit, threads = tightest["memory_limit"], tightest["threads"]
    known = [row for row in datasets if row["bytes_per_event"]]
    if not known and any(row["bytes_per_event"] is not None for row in datasets):
        return WITHOUT_EVENTS
    worst = max(known, key=_need, default=None)
    if worst is None:
        # if chunks shared a process, use its memory growth when all threads process typical chunks
        growth = max((row["memory_peak"] - floor for row in limited if row["memory_peak"] is not None), default=0)
        if not typical or growth <= 0:
            return "the memory per event could not be measured for any chunk"
        each = growth / threads / typical
        worst = {"dataset": "all datasets", "at_least": 0, "fixed_bytes": 0.0, "bytes_per_event": each, "filled": 1.0}
    used, each = floor + threads * (worst["fixed_bytes"] or 0.0), _need(worst)
    if TARGET * limit <= used:
        return f"a worker uses {BYTE.text(used)} before the first event, and its limit is {BYTE.text(limit)}"
    size = rounded_down((TARGET * limit - used) / threads / each)
    return Fit(size, worst["dataset"], limit, threads, used, each, bool(worst["at_least"]))


MOST_NAMED: Final = 3

INTERRUPT: Final = "KeyboardInterrupt"

COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
BROKEN: Final = "failed"
INTERRUPTED: Final = "interrupted"
NOTHING: Final = "nothing was run"
NO_RUNNER: Final = "no Runner was called"


class CommonError(NamedTuple):
    text: str
    times: int

    def __str__(self) -> str:
        return f"{self.text}{self.how_often}"

    @property
    def how_often(self) -> str:
        return f" ({number(self.times)} times)" if self.times > 1 else ""


def shortened(error: str) -> str:
    cause = root_cause(error).strip()
    return cause if len(cause) <= 120 else f"{cause[:117]}..."


def is_interrupt(error: str | None) -> bool:
    return (error or "").partition(":")[0].strip() == INTERRUPT


OUTSIDE: Final = re.compile(
    r"time(d )?[ -]?out|connect|network|unreachable|broken pipe|closed by|reset|temporar|try again|operation expired"
    r"|disconnected|payload|too many requests|unavailable|gateway|killed ?worker|commclosed|cancel|aborted"
    r"|terminated (abruptly|unexpectedly)|unexpectedly terminated"
    r"|^ClientResponseError: (429|50[0234])\b",
    re.IGNORECASE,
)
"""Words that mark an error of the types below as external, i.e. not caused by the analysis or its files."""

OF_SYSTEM: Final = re.compile(
    r"OSError|IOError|gaierror|BrokenPipe|CommClosed|Killed|Client|Server|HTTP|Remote|XRootD|(Future)?Cancelled"
    r"|URLError|MaxRetry|Protocol|BrokenProcessPool|TerminatedWorker|\w*(Timeout|Connect)",
    re.IGNORECASE,
)

NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*")
"""Quoted strings and paths in an error message, ignored because they may contain any word."""


def is_outside(error: str | None) -> bool:
    """Whether a retry may succeed, e.g. after Ctrl-C, a lost worker, a timeout or a network error."""
    if error is None or is_interrupt(error):
        return True
    cause = root_cause(error)
    return OF_SYSTEM.match(cause) is not None and OUTSIDE.search(NAMES.sub("", cause)) is not None


def commonest(errors: Iterable[str | None]) -> CommonError | None:
    found = Counter(shortened(error) for error in errors if error)
    return CommonError(*found.most_common(1)[0]) if found else None


@dataclass(frozen=True, kw_only=True)
class Incompleteness:
    """Data missing from a run's output.

    Attributes
    ----------
    files : list of dict
        Files with unknown chunks (`dataset`, `file`, `tree`, `error`). They could not be opened or, if `error` is
        None, the run failed before reaching them.
    chunks : list of dict
        Chunks without a result (`dataset`, `file`, `tree`, `entry_start`, `entry_stop`).
    events : int
        Number of events in `chunks`.
    events_of_files : float or None
        Number of events in `files`, estimated from the mean per opened file; None if no file was opened.
    asked_events : int
        Number of events in all requested chunks.
    skipped : int
        Number of chunks skipped because of `skipbadfiles`.
    uncertain : int
        Number of chunks that may or may not be missing: they have no record, and the run may have skipped some.
    failed_for_good : int
        Number of failed attempts to process `chunks` or open `files`.
    error : CommonError or None
        Most common error in these attempts or, if there is none, the error that ended the run.
    run_error : str or None
        Error that ended the run or a Runner call; None if all calls finished.
    ending : str
        How the run ended, as a predicate such as "was lost".
    remedy : str or None
        Line of code that processes the missing data; None if no data are known to be missing.
    partial : int
        Number of chunks found only in the partial output of failed calls.
    to_fix : CommonError or None
        Most common error that would recur; None if all causes were external (a lost worker, a timeout, the network,
        Ctrl-C).
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
        """Whether no requested data are known to be missing, and no error ended the run."""
        return not self.files and not self.chunks and self.run_error is None

    @property
    def share(self) -> float | None:
        """Fraction of events that are missing, including the estimate for unopened files; None if unknown."""
        if self.files and self.events_of_files is None:
            return None
        of_files = self.events_of_files or 0.0
        total = self.asked_events + of_files
        return (self.events + of_files) / total if total else None

    @property
    def what(self) -> str:
        if not self.files and not self.chunks:
            return f"{self._ended()}: it is unknown whether its output is complete."
        things = [self._unread()] if self.files else []
        things += [counted(len(self.chunks), "chunk")] if self.chunks else []
        verb = are(len(self.files) + len(self.chunks))
        start = f"{self._ended()}: " if self.run_error is not None else ""
        return f"{start}{' and '.join(things)} {verb} missing from the output ({named(self.names)}){self._why()}."

    @property
    def how_much(self) -> str:
        about = self.events_of_files if self.files else None
        lost = [f"{number(self.events)} events{'' if about is None else ' in chunks'}"] if self.chunks else []
        if about is not None:
            of = " in files" if self.chunks else ""
            lost.append(f"about {number(round(about))} events{of} (estimated from the other files)")
        share = "" if self.share is None else f", {rough(self.share, FRACTION)} of all"
        parts = [f"{' and '.join(lost)} are missing{share}"] if lost else []
        if self.files and about is None:
            parts.append(f"the number of events in {counted(len(self.files), 'file')} is unknown")
        failed = f"; {counted(self.failed_for_good, 'attempt')} failed" if self.failed_for_good else ""
        text = f"{', and '.join(parts) or 'no events are known to be lost'}{failed}."
        return text[0].upper() + text[1:]

    @property
    def advice(self) -> str:
        if self.to_fix is not None:
            others = " `measurement.missing` lists the other files." if len(self.names) > MOST_NAMED else ""
            return f"Fix this first, or it will fail again: {self._without_names(self.to_fix.text)}.{others}"
        return "Run it again." if self.remedy is None else "Process the rest."

    @property
    def line(self) -> str | None:
        return self.remedy if self.to_fix is None else None

    @property
    def names(self) -> list[str]:
        """Files with missing data: files without chunks first, then by number of missing events, largest first."""
        events = dict.fromkeys((row["file"] for row in self.files), 0)
        for row in self.chunks:
            events[row["file"]] = events.get(row["file"], 0) + row["entry_stop"] - row["entry_start"]
        return sorted(events, key=lambda file: (events[file] > 0, -events[file]))

    def _unread(self) -> str:
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
        for name in self.names[:MOST_NAMED]:
            error = error.replace(f": '{name}'", "").replace(f": {name}", "")
        return error

    def _why(self) -> str:
        reasons = [f"{number(self.skipped)} skipped by skipbadfiles"] if self.skipped else []
        reasons += [f"{number(self.uncertain)} without a record, which may be in the output"] if self.uncertain else []
        if self.partial:
            reasons.append(f"{number(self.partial)} others are only in the partial output returned with the error")
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
    rows = missing_work.to_pylist()
    chunks = [row for row in rows if row["entry_start"] is not None]
    files = [row for row in rows if row["entry_start"] is None]
    attempts = None if run.chunks is None else run.chunks.filter(pc.equal(run.chunks["outcome"], SKIPPED))
    skipped = set(map(_key, rows_in(attempts, "call", *PLACE, *RANGE)))
    in_output, unknown = _without_record(run, chunks, skipped)
    chunks = [row for row in chunks if _key(row) not in in_output]
    # the last error of each file that preprocessing could not open
    preprocessing = rows_in(run.preprocessing)
    errors = {_file(row): row["error"] for row in preprocessing if row["outcome"] == ERROR}
    files = [{name: row[name] for name in PLACE} | {"error": errors.get(_file(row))} for row in files]
    failed = _failed_of(failed_work, chunks, files)
    # an error after the last call does not affect the output
    inside = run.ended_early and any(call.outcome != FINISHED for call in run.calls)
    ended = (run.error or "no error message was kept") if inside else None
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
    names = [*PLACE, *RANGE]
    kept, chunks = partial_output(run), run.chunks
    if chunks is None or not len(kept):
        return len(kept)
    done = of_finished_calls(run, with_outcome(chunks, (OK,))).select(names).to_pylist()
    whole = {tuple(row.values()) for row in done}
    return sum(tuple(row.values()) not in whole for row in kept.select(names).to_pylist())


class CaughtErrors(NamedTuple):
    """Errors that did not stop a task: unopened files, and exceptions returned as values."""

    files: list[str]
    of_files: CommonError | None
    returned: int
    of_returned: CommonError | None

    @property
    def what(self) -> str:
        parts = []
        if self.files:
            names = named(self.files)
            parts.append(f"{counted(len(self.files), 'file')} could not be opened in tasks that continued ({names})")
        if self.returned:
            parts.append(f"tasks returned {counted(self.returned, 'exception')} among their values")
        errors = [str(error) for error in (self.of_files, self.of_returned) if error is not None]
        what = f"{' and '.join(parts)}: {'; '.join(errors)}."
        return f"{what[0].upper()}{what[1:]}"


def caught_errors(run: Run) -> CaughtErrors | None:
    """Errors that did not stop a task, if any. Files that the same attempt also read are excluded."""
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
    more = [f"and {number(len(files) - MOST_NAMED)} more files"] if len(files) > MOST_NAMED else []
    return ", ".join([*files[:MOST_NAMED], *more])


def state_of(run: Run, missing: Incompleteness | None) -> str:
    if run.outcome == LOST:
        return LOST
    if run.outcome == FAILED:
        # interrupts after the last Runner call do not affect the output
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
    """Split the unskipped chunks of finished calls into those in the output and uncertain ones.

    Without `skipbadfiles`, a call raises an error if a chunk fails, so a finished call's output is complete. For other
    calls, coffea's report decides.
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
    if call.options.get("skipbadfiles") is False:
        return True
    entries = (call.report or {}).get("entries")
    if run.asked is None or not isinstance(entries, int):
        return False
    return entries + lost >= _events(run.asked.filter(pc.equal(run.asked["call"], call.id)))


def _events(asked: pa.Table | None) -> int:
    if asked is None:
        return 0
    chunks = asked.filter(asked["entry_start"].is_valid()).group_by([*PLACE, *RANGE]).aggregate([])
    return int(known_sum(pc.subtract(chunks["entry_stop"], chunks["entry_start"])))


def _estimated_events(asked: pa.Table | None, files: Sequence[Row]) -> float | None:
    if asked is None or not files:
        return 0.0 if not files else None
    chunks = asked.filter(asked["entry_start"].is_valid()).select(["dataset", "file", "entry_stop"])
    chunks = plain(chunks).to_pandas()
    sizes = chunks.groupby(["dataset", "file"])["entry_stop"].max()
    means = sizes.groupby(level="dataset").mean()
    return float(sum(means.get(row["dataset"], sizes.mean()) for row in files)) if len(sizes) else None


def _failed_of(failed: pa.Table | None, chunks: Sequence[Row], files: Sequence[Row]) -> list[Row]:
    """Failed attempts at missing chunks and files, excluding attempts that never ran or were interrupted."""
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
    trees = [row["tree"] for row in (*chunks, *files) if row["tree"]]
    tree = f', treename="{trees[0]}"' if trees else ""
    what = ["missing_fileset(fileset)"] if chunks or files else []
    if any(row["file"] not in lacking.get(row["dataset"], {}) for row in chunks):
        what = ["missing_items(fileset)", *(["missing_fileset(fileset, unopened=True)"] if files else [])]
    lines = (f"rest = runner(measurement.{one}{tree}, processor_instance=processor)" for one in what)
    return "; ".join(lines) or None


# Failed attempts

FEWEST: Final = 2
"""Minimum number of failed chunks before the worker, host, file or dataset they share is named."""


class Cluster(NamedTuple):
    """Failures on a worker or host, or in a file or dataset, compared with chance.

    The probability comes from the hypergeometric distribution over chunks. Repeated attempts at a chunk on the same
    worker are counted once.
    """

    kind: str
    name: str
    failed: int
    tried: int
    all_failed: int
    all_tried: int
    probability: float
    """Probability of at least this many failures by chance, multiplied by the number of names tested."""


@dataclass(frozen=True, kw_only=True)
class FailureEvidence:
    """Failed attempts, excluding those on workers killed for exceeding their memory limit.

    Attributes
    ----------
    attempts : int
        Number of chunk attempts that raised an error or were lost with their worker.
    chunks : int
        Number of chunks with failed attempts.
    repeated : int
        Number of these chunks for which another attempt succeeded.
    seconds : float
        Thread time spent on these attempts, in seconds.
    by_reason : mapping
        Thread time in seconds, by reason.
    error : CommonError or None
        The most common error.
    cluster : Cluster or None
        Worker, host, file or dataset with a cluster of failures; None if there is no cluster.
    common : Cluster or None
        Worker, host, file or dataset shared by all failures but not by all attempts, if there is no cluster.
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
    killed = [] if memory_evidence is None else [row["worker"] for row in memory_evidence.killed]
    failed, place = _not_for_memory(failed_work.to_pandas(), killed), ["dataset", "file", *RANGE]
    tested = _tested(chunks, failed, place, lifetimes) if len(failed) else []
    cluster = min(
        (one for one in tested if one.failed >= 0.5 * one.all_failed), key=attrgetter("probability"), default=None
    )
    if cluster is not None and cluster.probability >= 0.01:
        cluster = None
    # names shared by all failures but not by all attempts; report the name with the fewest attempts
    shared = [one for one in tested if FEWEST <= one.failed == one.all_failed and one.tried < one.all_tried]
    places = failed[place].drop_duplicates()
    done = places.merge(plain(counted_chunks.select(place)).to_pandas().drop_duplicates()) if len(failed) else places
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
    """Failed chunk attempts that took time, except interrupts and attempts lost because a worker ran out of memory."""
    with_worker = failed["worker"].isin(killed) & failed["reason"].isin([task_records.LOST, REPEATED])
    own = (
        failed["kind"].eq(task_records.PROCESSOR)
        & failed["reason"].isin([ERROR, task_records.LOST, REPEATED])
        & failed["seconds"].ne(0)
    )
    return failed[own & ~with_worker & ~failed["error"].map(is_interrupt, na_action="ignore").eq(True)]


def _tested(chunks: pa.Table, failed: pd.DataFrame, place: list[str], lifetimes: pa.Table | None) -> list[Cluster]:
    """Names with failures, each with the probability of at least that many failures by chance.

    The probability is corrected for the number of names. Of two equally unlikely names, the first is reported.
    """
    names = [*place, "worker"]
    bad = failed.loc[failed["reason"] != REPEATED, names]
    every = pd.concat([plain(chunks.select(names)).to_pandas(), bad], ignore_index=True)
    every["bad"] = every.index >= len(chunks)
    every["chunk"] = every.groupby(place, dropna=False).ngroup()
    if lifetimes is not None:
        # a worker that reconnected has several lifetimes
        every["host"] = every["worker"].map(
            plain(lifetimes.select(["worker", "host"])).to_pandas().groupby("worker").max()["host"]
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
