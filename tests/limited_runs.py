"""Made-up runs that are limited by one thing each: pages of `docs/limited` have what is printed for them."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
from handmade import MIB, T, branch_read
from made_runs import Plan, made_run, plan, with_call

from roastcoffea.diagnosis import Verdict
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS, PREPROCESSING_COLUMNS, PROFILE_COLUMNS, SECTION_COLUMNS, Run
from roastcoffea.records.workers import (
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    REQUEST_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    TASK_COLUMNS,
)

COLUMNS: Final = {
    "asked": ASKED_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "chunks": CHUNK_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
    "pauses": PAUSE_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "profile": PROFILE_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "sampling": SAMPLING_COLUMNS,
    "sections": SECTION_COLUMNS,
    "tasks": TASK_COLUMNS,
    "worker_requests": REQUEST_COLUMNS,
}

LIMITED: Final[dict[str, Callable[[], Run]]] = {}
"""By cause, what makes a run that it limits."""

Row = dict[str, Any]


def limited(make: Callable[[], Run]) -> Callable[[], Run]:
    """Put what makes a run into the table: its name is that of the cause."""
    LIMITED[make.__name__.replace("_", " ").replace("start up", "start-up").replace("re read", "re-read")] = make
    return make


def edited(run: Run, **edits: Callable[[Row], Mapping[str, Any]]) -> Run:
    """The same run with rows of these tables changed."""
    tables = {
        name: table_of_rows(COLUMNS[name], [row | edit(row) for row in getattr(run, name).to_pylist()])
        for name, edit in edits.items()
    }
    return replace(run, **tables)


def with_rows(run: Run, **rows: list[Row]) -> Run:
    """The same run with these rows added to its tables."""
    tables = {}
    for name, more in rows.items():
        table = getattr(run, name)
        before = [] if table is None else table.to_pylist()
        tables[name] = table_of_rows(COLUMNS[name], [*before, *more])
    return replace(run, **tables)


STORE: Final = "root://xrootd-3.example.org//store"


def plans(chunks: int = 40, cpu: float = 2.0, files: int = 4, **parts: Any) -> list[Plan]:
    """Chunks of nearly equal work, in files of one dataset."""
    usual = {"events": 100_000, "dataset": "ttbar", "wait": 0.0}
    places = [f"{STORE}/ttbar/{1 + number % files}.root" for number in range(chunks)]
    return [plan(cpu * (1 + number * 7 % 10 / 100), file=place, **usual | parts) for number, place in enumerate(places)]


def busy_run(workers: int = 4, *, cores: int = 64, **parts: Any) -> Run:
    """A run whose workers have chunks all the time."""
    return made_run(plans(**parts), workers, cores=cores)


def slower(
    chunks: list[Plan], workers: int, is_slow: Callable[[int, Plan], bool], factor: float, column: str = "cpu"
) -> Run:
    """A run in which some chunks take longer, by their worker or by what they are."""
    free, made = [0.0] * workers, []
    for each in chunks:
        worker = free.index(min(free))
        longer = dict(each) | ({column: factor * each[column]} if is_slow(worker, each) else {})
        free[worker] += longer["cpu"] + longer["wait"] + longer.get("read", 0.0)
        made.append(longer)
    return made_run(made, workers)


def as_computing(run: Run, column: str) -> Run:
    """The same run, with what was blocked as CPU time of another phase."""
    return edited(
        run,
        chunks=lambda row: {
            column: row["blocked_seconds"],
            "blocked_seconds": 0.0,
            "cpu_seconds": row["cpu_seconds"] + row["blocked_seconds"],
        },
    )


def with_gaps(run: Run) -> Run:
    """The same run, with what was blocked as time in which tasks are ready and do not begin."""
    assert run.chunks is not None
    seconds = {row["key"]: row["blocked_seconds"] for row in run.chunks.to_pylist()}

    def shorter(row: Row) -> Row:
        waited = row["blocked_seconds"]
        names = ("wall_seconds", "process_seconds", "blocked_seconds")
        return {name: row[name] - waited for name in names} | {"start": row["start"] + waited}

    def later(row: Row) -> Row:
        given = dict.fromkeys(("runnable", "assigned", "arrived", "ready"), row["start"])
        return given | {"start": row["start"] + seconds[row["key"]]}

    return edited(run, chunks=shorter, tasks=later)


def until(run: Run, stop: float) -> Run:
    """The same run, which ends later."""
    longer = edited(run, lifetimes=lambda row: {"stop": stop})
    return replace(longer, stop=stop, calls=tuple(replace(call, stop=stop) for call in longer.calls))


def task_row(kind: str, number: int, worker: str, start: float, stop: float, **values: Any) -> Row:
    given = dict.fromkeys(("runnable", "assigned", "arrived", "ready", "start"), start)
    names = {"key": f"{kind}-{number}", "prefix": kind, "kind": kind, "worker": worker, "thread": 1, "run_id": number}
    return names | given | {"stop": stop, "seen": stop, "attempt": 1, "outcome": "ok"} | values


def counted_by_dask(activity: str, seconds: float) -> Run:
    """A run in which Dask counted an activity in the chunks' tasks."""
    key = ("execute", "Made", activity, "seconds")
    each = {f"w{number}": {key: seconds / 4} for number in range(4)}
    return replace(busy_run(), span_metrics={key: seconds}, span_metrics_per_worker=each)


def profiled(run: Run, *stacks: tuple[list[str], list[int], str, float], chunk: int | None = None) -> Run:
    """The same run with a profile, of one chunk if given: functions, lines, state and thread seconds of each stack."""
    rows = [
        {"call": "c1", "dataset": "ttbar", "functions": functions, "chunk": chunk}
        | {"files": ["json/__init__.py" if name == "load" else "/home/me/dijets.py" for name in functions]}
        | {"lines": lines, "samples": round(10 * seconds), "seconds": seconds}
        | dict.fromkeys(("core_seconds", "contention_seconds", "blocked_seconds"), 0.0)
        | {f"{state}_seconds": seconds}
        for functions, lines, state, seconds in stacks
    ]
    return replace(run, profile=table_of_rows(PROFILE_COLUMNS, rows))


@limited
def storage() -> Run:
    """Reading takes three times as long as computing."""
    return edited(busy_run(cpu=0.5, read=1.5), chunks=lambda row: {"bytes_requested": 12_000_000})


def writing_to(run: Run, folder: str, cpu: float, rate: float = 20e6, kind: str = "ROOT") -> Run:
    """The same run, but chunks write files instead of being blocked; `cpu` is the share of this time on a core."""

    def written(row: Row) -> Row:
        seconds, size = row["blocked_seconds"], int(rate * row["blocked_seconds"])
        return {
            "write_cpu_seconds": cpu * seconds,
            "write_wait_seconds": (1 - cpu) * seconds,
            "blocked_seconds": 0.0,
            "cpu_seconds": row["cpu_seconds"] + cpu * seconds,
            "files_written": 1,
            "bytes_written": size,
            "written_files": [f"{folder}/{row['id']}.root"],
            "written_kinds": [kind],
            "written_sizes": [size],
            "written_bytes": [size],
            "written_microseconds": [round(1e6 * seconds)],
        }

    return edited(run, chunks=written)


@limited
def writing() -> Run:
    return writing_to(busy_run(cpu=0.5, wait=1.0), f"{STORE}/skims", 0.2)


@limited
def re_read() -> Run:
    """Each chunk reads three baskets, of which the next chunk reads two again."""
    run = busy_run()
    amounts = {"bytes_requested": 3_010_000, "bytes_payload": 3_000_000, "bytes_metadata": 10_000}
    amounts |= {"bytes_transferred": 3_010_000, "source": "FSSpecSource"}
    read = edited(run, chunks=lambda row: amounts)
    rows = [branch_read(number, "Jet_pt", number // 4, [1_000_000] * 3) for number in range(40)]
    return with_rows(read, branch_reads=rows)


@limited
def decompression() -> Run:
    """Decompression takes as long as all else."""
    return as_computing(busy_run(cpu=1.5, wait=2.0), "decompress_seconds")


@limited
def interpretation() -> Run:
    """Two jagged branches take as long as computing."""
    run = as_computing(busy_run(wait=2.0), "interpret_seconds")
    rows = [
        {"chunk": number, "branch": branch, "interpret_seconds": seconds}
        for number in range(40)
        for branch, seconds in (("GenPart_pt", 1.2), ("Jet_btagDeepFlavB", 0.8))
    ]
    return with_rows(run, branch_reads=rows)


@limited
def metadata() -> Run:
    """Files of one chunk each, three for each of sixteen threads, that take 1.6 s to open."""
    return busy_run(16, chunks=48, files=48, open_cpu=0.4, open_wait=1.2)


@limited
def start_up() -> Run:
    """The first chunk of each worker imports and compiles for ten seconds."""
    chunks = plans()
    run = made_run([each | {"cpu": each["cpu"] + 10 * (place < 4)} for place, each in enumerate(chunks)], 4)
    imports = ["awkward", "coffea", "numba"]
    return edited(run, chunks=lambda row: {"thread": 1, "imports": imports if row["id"] < 4 else None})


@limited
def contention() -> Run:
    """Eight threads on four cores."""
    return busy_run(8, cores=4, core_wait=2.0)


@limited
def interpreter_lock() -> Run:
    """Four threads of one process, of which one at a time computes."""
    run = busy_run(cpu=1.0, wait=3.0)
    whole = edited(
        run,
        chunks=lambda row: {
            "worker": "w0",
            "thread": int(row["worker"][1:]),
            "lock_seconds": row["blocked_seconds"],
            "blocked_seconds": 0.0,
            "overlaps": 3,
        },
        tasks=lambda row: {"worker": "w0", "thread": int(row["worker"][1:])},
        lifetimes=lambda row: {"threads": 4},
    )
    assert whole.lifetimes is not None
    stacks = [
        (["Dijets.process", f"Dijets.{name}"], [21, line], "core", 10.0)
        for name, line in (("pairs", 40), ("btag", 63), ("fill", 80))
    ]
    return profiled(replace(whole, lifetimes=whole.lifetimes.slice(0, 1)), *stacks)


@limited
def blocked() -> Run:
    """A request to a service of 1.5 s in a section of each chunk."""
    run = busy_run(cpu=1.0, wait=1.5)
    rows = [
        {"chunk": number, "name": "corrections", "count": 1, "wall_seconds": 1.5, "self_seconds": 1.5}
        | {"cpu_seconds": 0.0, "max_seconds": 1.5, "errors": 0}
        for number in range(40)
    ]
    return with_rows(profiled(run, (["Dijets.process", "fetch"], [21, 12], "blocked", 60.0)), sections=rows)


@limited
def compute() -> Run:
    """Most of the CPU time is a loop in Python."""
    loop, rest = ["Dijets.process", "Dijets.pairs"], ["Dijets.process"]
    return profiled(busy_run(), (loop, [21, 40], "core", 70.0), (rest, [25], "core", 12.0))


@limited
def repeated_work() -> Run:
    """Half of the CPU time is a JSON file that each chunk loads."""
    load, rest = ["Dijets.process", "Dijets.scale", "load"], ["Dijets.process", "Dijets.pairs"]
    return profiled(busy_run(), (load, [21, 33, 293], "core", 42.0), (rest, [25, 40], "core", 40.0))


@limited
def checkpoint() -> Run:
    """Saving a checkpoint takes half as long as computing."""
    return edited(
        busy_run(wait=1.0),
        chunks=lambda row: {
            "checkpoint_seconds": row["blocked_seconds"],
            "blocked_seconds": 0.0,
            "process_seconds": row["process_seconds"] - row["blocked_seconds"],
        },
    )


@limited
def chunk_size() -> Run:
    """Each chunk costs 150 ms of CPU whatever its size, and an event 0.1 ms."""
    chunks = [
        plan(0.15 + size / 10_000, events=size, file=f"{STORE}/ttbar/{file}.root")
        for file in range(1, 5)
        for size in [2500, 5000] * 16
    ]
    return made_run(chunks, 2)


@limited
def scheduler() -> Run:
    """Files of one short chunk each, whose tasks are ready for 0.1 s before they begin."""
    return with_gaps(busy_run(chunks=400, files=400, cpu=0.1, wait=0.1))


def merged(each: float, fetched: float) -> Run:
    """A run whose outputs of 40 MB are merged at the end, twenty at a time: seconds of each merge, and before it."""
    run = with_call(busy_run(), options={"chunksize": 100_000, "executor.treereduction": 20})
    run = edited(run, tasks=lambda row: {"nbytes": 40_000_000})
    rows, came = [], run.stop
    for number, worker in enumerate(("w0", "w1", "w0")):
        came += (fetched + each) * (number == 2)
        given = dict.fromkeys(("runnable", "assigned", "arrived"), came) | {"ready": came + fetched}
        begin = came + fetched
        rows.append(task_row("merge", number, worker, begin, begin + each, prefix="reduce") | given)
    whole = until(with_rows(run, tasks=rows), came + fetched + each)
    return replace(whole, attempts={"processor": 40, "merge": 3})


@limited
def transfer() -> Run:
    """Merges wait 5 s for outputs of other workers, and take 1 s."""
    return merged(1.0, 5.0)


@limited
def merge() -> Run:
    """Merges of large outputs take 6 s each."""
    return merged(6.0, 0.1)


@limited
def preprocessing() -> Run:
    """Eight files are opened for 5 s each before the first chunk."""
    run = made_run(plans(files=8), 4, before=10.0)
    rows = [
        task_row("preprocessing", number, f"w{number % 4}", T + 5 * (number // 4), T + 5 * (number // 4) + 5)
        for number in range(8)
    ]
    whole = with_rows(run, tasks=rows)
    return replace(whole, attempts={"processor": 40, "preprocessing": 8})


@limited
def tail() -> Run:
    """Four chunks of 30 s on sixteen workers."""
    return busy_run(16, chunks=4, cpu=30.0)


@limited
def client() -> Run:
    """For 20 s after the last chunk there is nothing to do."""
    run = busy_run()
    return replace(until(run, run.stop + 20), calls=run.calls)


@limited
def memory() -> Run:
    """A worker of 2 GB is killed with its chunk; an event takes 10 kB."""
    run = busy_run()
    peaks = {"memory_before": 300 * MIB, "memory_peak": 300 * MIB + 100_000 * 15_000}
    run = edited(run, chunks=lambda row: peaks | {"memory_after": 400 * MIB, "overlaps": 0})
    lost = {
        "dataset": "ttbar",
        "file": f"{STORE}/ttbar/1.root",
        "entry_start": 0,
        "entry_stop": 100_000,
    }
    gone = [
        task_row(
            "processor", 100 + number, f"w{number}", T, run.stop, key=f"lost{number}", outcome="worker lost", **lost
        )
        | {"start": None, "stop": None}
        for number in range(4, 6)
    ]
    lives = [
        {"worker": f"w{number}", "host": "10.0.0.1", "threads": 1, "start": T, "stop": run.stop}
        | {"cpu_seconds": 15.0, "killed_memory": 1_920_000_000}
        for number in range(4, 6)
    ]
    whole = with_rows(run, tasks=gone, lifetimes=lives)
    whole = edited(whole, lifetimes=lambda row: {"memory_limit": 2_000_000_000})
    return replace(whole, attempts={"processor": 42})


@limited
def memory_grows() -> Run:
    """Each chunk leaves 12 MB on one of three workers, whose limit is 2 GB; the first ones of each leave 100 MB."""
    places: dict[str, int] = {}

    def left(row: Row) -> Row:
        place = places[row["worker"]] = places.get(row["worker"], -1) + 1
        scatter = (row["id"] * 7 % 11 - 5) * 1_000_000
        size = 300_000_000 + 100_000_000 * min(place, 2) + 12_000_000 * place * (row["worker"] == "w1") + scatter
        return {"memory_before": size - 5_000_000, "memory_after": size, "overlaps": 0}

    return edited(busy_run(3, chunks=60), chunks=left, lifetimes=lambda row: {"memory_limit": 2_000_000_000})


@limited
def time_limit() -> Run:
    """Workers of jobs of an hour are there for its last ten seconds, and are not replaced."""
    run = busy_run()
    lives = [
        {"worker": f"w{number}", "host": "10.0.0.1", "threads": 1, "start": T, "stop": T + 10, "cpu_seconds": 8.0}
        | {"batch_system": "slurm", "job": str(number), "job_cores": 1.0}
        | {"job_start": T + 10 - 3600, "job_limit": 3600.0}
        for number in range(4, 6)
    ]
    return with_rows(run, lifetimes=lives)


@limited
def missing_workers() -> Run:
    """Four of ten workers arrive; three jobs are held, and three are pending."""
    run = edited(busy_run(), lifetimes=lambda row: {"name": row["worker"]})
    states = [("submitted", None)] * 4 + [("held", "JobHeldUser")] * 3 + [("pending", "Resources")] * 3
    rows = [
        {"name": f"w{number}", "state": state, "job": str(8145 + number), "reason": reason}
        for number, (state, reason) in enumerate(states)
    ]
    return with_rows(run, worker_requests=rows)


@limited
def stuck_worker() -> Run:
    """One of five workers hangs from the start, with a task."""
    run = busy_run()
    beats = [
        {"worker": f"w{number}", "time": moment, "last_seen": moment}
        for number in range(5)
        for moment in [T, *(T + second for second in range(1, int(run.stop - T) + 1) if number < 4)]
    ]
    life = {"worker": "w4", "host": "10.0.0.1", "threads": 1, "start": T, "stop": run.stop, "cpu_seconds": 0.0}
    task = task_row("processor", 100, "w4", T, run.stop, outcome="unfinished") | {"stop": None}
    whole = with_rows(run, lifetimes=[life], samples=beats, tasks=[task])
    return replace(whole, attempts={"processor": 41}, sampling_interval=1.0)


@limited
def failures() -> Run:
    """Before the first chunk each worker fails at two chunks of one file, after 3 s each."""
    run = made_run(plans(), 4, before=6.0)
    assert run.chunks is not None
    file = f"{STORE}/ttbar/3.root"
    theirs = [row for row in run.chunks.to_pylist() if row["file"] == file][:8]
    chunks, tasks = [], []
    for number, row in enumerate(theirs):
        worker, start = f"w{number % 4}", T + 3 * (number // 4)
        place = {name: row[name] for name in ("key", "dataset", "file", "entry_start", "entry_stop", "call")}
        error = {"outcome": "error", "error": "OSError: XRootD error: [3011] no such file or block", "attempt": 1}
        chunks.append(
            place
            | error
            | {"id": 100 + number, "run_id": 100 + number, "worker": worker, "start": start}
            | {"stop": start + 3, "wall_seconds": 3.0, "cpu_seconds": 1.0}
        )
        tasks.append(task_row("processor", 100 + number, worker, start, start + 3, key=row["key"], outcome="error"))
    runnable = edited(run, tasks=lambda row: {"runnable": T, "assigned": T, "arrived": T, "ready": T})
    return replace(with_rows(runnable, chunks=chunks, tasks=tasks), attempts={"processor": 48})


@limited
def missing_data() -> Run:
    """A file could not be opened, and was skipped."""
    run = with_call(busy_run(), options={"chunksize": 100_000, "skipbadfiles": True}, report={"entries": 4_000_000})
    run = edited(run, chunks=lambda row: {"tree": "Events"})
    assert run.chunks is not None
    names = ("dataset", "file", "tree", "entry_start", "entry_stop", "call")
    asked = [{name: row[name] for name in names} for row in run.chunks.to_pylist()]
    lost = {"dataset": "ttbar", "file": f"{STORE}/ttbar/5.root", "tree": "Events", "call": "c1"}
    tried = lost | {"id": 1, "key": "p1", "run_id": 1, "outcome": "error", "error": "FileNotFoundError: no such file"}
    return with_rows(run, asked=[*asked, lost], preprocessing=[tried])


@limited
def serialization() -> Run:
    """A quarter of the time goes into pickling."""
    return counted_by_dask("serialize", 25.0)


@limited
def compression() -> Run:
    """A quarter of the time goes into compression of what is spilled."""
    return counted_by_dask("compress", 25.0)


@limited
def other_tasks() -> Run:
    """For 10 s before the first chunk, others use the workers."""
    run = made_run(plans(), 4, before=10.0)
    rows = [task_row("other", number, f"w{number}", T, T + 10) for number in range(4)]
    return replace(with_rows(run, tasks=rows), attempts={"processor": 40, "other": 4})


@limited
def slow_worker() -> Run:
    """One of four workers computes five times more slowly."""
    return slower(plans(60), 4, lambda worker, _: worker == 2, 5.0)


@limited
def slow_host() -> Run:
    """All workers of one host of four compute three times more slowly."""
    run = slower(plans(120), 8, lambda worker, _: worker in {4, 5}, 4.0)
    return edited(run, lifetimes=lambda row: {"host": f"node-{1 + int(row['worker'][1:]) // 2}"})


@limited
def slow_file() -> Run:
    """One file of four is read ten times more slowly."""
    chunks = plans(cpu=1.0, read=0.5)
    return slower(chunks, 4, lambda _, each: each["file"].endswith("/3.root"), 10.0, "read")


@limited
def slow_endpoint() -> Run:
    """One of two data servers behind a redirector is read ten times more slowly."""
    chunks = [
        each | {"file": f"{STORE}/ttbar/{1 + place % 8}.root"} for place, each in enumerate(plans(cpu=1.0, read=0.5))
    ]
    run = slower(chunks, 4, lambda _, each: int(each["file"][-6]) > 4, 10.0, "read")

    def told(row: Row) -> Row:
        slow = int(row["file"][-6]) > 4
        seconds = 4.0 if slow else 0.4
        names = {"endpoint": f"data-{1 + slow}.example.org", "opens": 1, "connect_seconds": 0.02, "requests": 5}
        latency = {"request_seconds": seconds, "shortest_request_seconds": 0.001, "metadata_requests": 2}
        sizes = dict.fromkeys(("bytes_requested", "bytes_transferred"), 24_000_000)
        early = {"metadata_request_seconds": 0.1 * seconds, "bytes_metadata": 2_400_000, "vector_reads": 3}
        return names | latency | sizes | early

    return edited(run, chunks=told)


@limited
def slow_chunk() -> Run:
    """One chunk of 40 takes twenty times as long as the others, in a loop over its candidates."""
    chunks = plans()
    chunks[30] = dict(chunks[30]) | {"cpu": 40.0}
    loop = ["Dijets.process", "Dijets.candidates"]
    return profiled(made_run(chunks, 4), (loop, [21, 52], "core", 38.0), (loop[:1], [21], "core", 2.0), chunk=30)


@limited
def slows_down() -> Run:
    """Halfway through the run, one of three data servers begins to deliver ten times more slowly."""
    free, made = [0.0] * 4, []
    for place, each in enumerate(plans(240, cpu=1.5, files=12)):
        worker, server = free.index(min(free)), 1 + place % 3
        longer = {"read": each["cpu"] / 7.5 * (10.0 if server == 2 and free[worker] >= 60.0 else 1.0)}
        made.append(dict(each) | longer | {"file": f"root://xrootd-{server}.example.org//store/{place % 12}.root"})
        free[worker] += made[-1]["cpu"] + made[-1]["read"]
    return edited(made_run(made, 4), chunks=lambda row: {"thread": 1})


@limited
def slow_dataset() -> Run:
    """Events of one dataset of three need four times as much."""
    chunks = [
        each | {"dataset": name, "file": f"{STORE}/{name}/{1 + place % 2}.root"}
        for place, each in enumerate(plans(60))
        for name in [("ttbar", "wjets", "qcd")[place % 3]]
    ]
    return slower(chunks, 4, lambda _, each: each["dataset"] == "ttbar", 5.0)


@contextmanager
def in_utc() -> Iterator[None]:
    """Times of day are those of UTC meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@cache
def measured(cause: str) -> Measurement:
    """The run of a cause, made once."""
    return Measurement(LIMITED[cause]())


def verdict_of(cause: str) -> Verdict:
    """What is found in the run of a cause."""
    return measured(cause).verdict


def printed(cause: str) -> str:
    """What is printed of it, without the saving, which is one of a made-up run."""
    with in_utc():
        first = verdict_of(cause)[0]
    text = " ".join(first.text.replace(first.saving, "").split())
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


MORE, FEWER, APART = "2 threads per core", "fewer threads", "processes with one thread each"


def contradictions(found: list[Finding]) -> list[str]:
    """What two findings of a run must not say together."""
    causes, texts = {one.cause for one in found}, [one.text for one in found]
    more, fewer, apart = (any(words in text for text in texts) for words in (MORE, FEWER, APART))
    lines = {
        line for text in texts for line in re.findall(r"(?:--nworkers \d+ )?--nthreads \d+|LocalCluster\(.*?\)", text)
    }
    sizes = {found[1] for text in texts if (found := re.search(r"chunksize=(\d+)", text))}
    wrong = {
        "more threads and fewer": more and fewer,
        "more threads where threads wait for cores": more and "contention" in causes,
        "more threads where threads wait for the interpreter": more and "interpreter lock" in causes,
        "more threads where memory is short": more and "memory" in causes,
        "more processes where memory is short": apart and "memory" in causes,
        "more threads where they are idle at the end": more and "tail" in causes,
        f"several lines {lines}": len(lines) > 1,
        f"several chunk sizes {sizes}": len(sizes) > 1,
    }
    return [what for what, is_so in wrong.items() if is_so]


def assert_left_is_no_more_than_all(found: list[Finding], together: float | None) -> None:
    known = [one for one in found if one.seconds is not None]
    assert sum(one.left or 0.0 for one in known) <= (together or 0.0) * (1 + 1e-9)
    assert all((one.left or 0.0) <= (one.seconds or 0.0) * (1 + 1e-9) for one in known)
