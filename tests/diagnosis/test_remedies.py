"""Remedies: none is given on a run where it cannot be followed, or would change nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from handmade import evidence_of, memory_of
from limited_runs import LIMITED, edited, with_rows
from made_runs import in_two_calls, made_run, plan, with_call

from roastcoffea.diagnosis.finding import CAUSES
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import Run


def plain(run: Run) -> Run:
    """The same tasks without a Runner, as `client.map` makes them: nothing is known of what they do."""
    return edited(
        replace(run, calls=(), chunks=table_of_rows(CHUNK_COLUMNS, []), attempts={"other": len(run.tasks or ())}),
        tasks=lambda row: {"kind": "other"},
    )


def local(run: Run, executor: str = "IterativeExecutor") -> Run:
    """The same chunks without a cluster."""
    return with_call(replace(run, tasks=None), executor=executor)


def with_pool(name: str | None) -> Callable[[Run], Run]:
    """The same chunks by a pool of a class that the executor calls, else by one that it was given."""
    options = {"executor.workers": 1} | ({"executor.pool": name} if name else {})
    return lambda run: with_call(local(run, "FuturesExecutor"), options=options)


def of_schema(name: str) -> Callable[[Run], Run]:
    return lambda run: with_call(run, options={"schema": name})


def one_branch(run: Run) -> Run:
    return edited(run, branch_reads=lambda row: {"branch": "Jet_pt"})


def came_late(run: Run) -> Run:
    """The same run, whose workers came after it had begun."""
    return edited(run, lifetimes=lambda row: {"start": run.start + 10})


def client_before(*, in_call: bool = False) -> Run:
    """A run with 20 s before its first task, before or in the Runner call."""
    run = made_run([plan(1.0)] * 16, 2, before=20.0)
    return run if in_call else with_call(run, start=run.start + 19.5)


def traced(run: Run, seconds: float, worker: str | None = None) -> Run:
    """The same run, of which coffea spent these seconds on finding out which columns to preload."""
    row = {"outcome": "traced", "wall_seconds": seconds, "worker": worker, "call": run.calls[0].id}
    return with_rows(run, preprocessing=[row | {"start": run.start, "stop": run.start + seconds}])


def client_between() -> Run:
    """Half of the chunks 20 s after the others."""
    run = made_run([plan(1.0)] * 16, 2)
    assert run.tasks is not None
    half = run.start + 4.0
    times = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seen")

    def later(row: dict[str, Any]) -> dict[str, Any]:
        moved = 20.0 * (row["start"] >= half - 0.5)
        return {name: row[name] + moved for name in times if row.get(name) is not None}

    longer = edited(run, tasks=later, chunks=later, lifetimes=lambda row: {"stop": run.stop + 20})
    return with_call(replace(longer, stop=run.stop + 20), stop=run.stop + 20)


def advice(cause: str, run: Run, **facts: Any) -> str:
    """All that a cause says of a run, with the lines to copy."""
    drafts = list(CAUSES[cause].findings(evidence_of(run, **facts)))
    assert drafts, f"{cause} is not found"
    return " ".join(f"{draft.what} {draft.advice} {draft.remedy}" for draft in drafts)


def without_calls(run: Run) -> Run:
    return replace(run, calls=())


def waiting_scheduler(run: Run) -> Run:
    """The same run, whose scheduler was ready to run and had no core for a third of the time."""
    rows = [{"time": time, "loop_queue_seconds": (time - run.start) / 3} for time in (run.start, run.stop)]
    return with_rows(run, sampling=rows)


CASES: Final = [
    ("storage", local, "threads per core", "Cache the dataset nearby"),
    ("storage", lambda run: made_run([plan(0.5, read=1.5)] * 4, 4), "threads per core", "Move the files"),
    ("metadata", of_schema("BaseSchema"), "schema with fewer", "Read the files from nearer storage"),
    ("interpretation", one_branch, "Read fewer branches", "fewer events"),
    ("contention", lambda run: made_run([plan(1.0, core_wait=1.0)] * 8, 2, others=0.0), "Stop other", "Leave a core"),
    (
        "interpreter lock",
        lambda run: edited(run, lifetimes=lambda row: {"threads": 1}),
        "processes with one thread",
        "Replace plain Python loops",
    ),
    ("scheduler", plain, "dedicated core", "fewer, longer tasks"),
    ("scheduler", lambda run: run, "dedicated core", "tasks"),
    ("transfer", plain, "treereduction", "Return smaller results"),
    ("transfer", plain, "histograms", "Return smaller results"),
    ("merge", without_calls, "treereduction", "Return smaller results"),
    ("start-up", local, "Reuse the processes", "have each process run more"),
    ("start-up", with_pool(None), "Reuse the processes", "have each process run more"),
    ("start-up", with_pool("ThreadPoolExecutor"), "get_reusable_executor", "have each process run more"),
    ("start-up", lambda run: local(run, "ParslExecutor"), "Reuse the processes", "have each process run more"),
    ("tail", plain, "chunk", "tasks"),
    ("client", lambda run: client_before(), "Start workers", "Enter the `with`"),
    ("client", lambda run: plain(client_before()), "chunks", "Enter the `with`"),
    ("client", lambda run: client_between(), "fewer Runner calls", "smaller output"),
    ("client", lambda run: plain(client_between()), "Runner", "submit many at once"),
    (
        "client",
        lambda run: client_before(in_call=True),
        "Enter the `with`",
        "The Runner is preparing for most of this time",
    ),
    ("client", lambda run: traced(client_between(), 18.0), "smaller output", "trace=trace"),
    ("client", lambda run: traced(client_between(), 2.0), "trace=trace", "smaller output"),
    ("client", local, "cluster", "Exit the collector"),
    ("serialization", without_calls, "processor", "functions"),
]
"""Cause, what becomes of the run that it limits, what must not be said of that, and what is said."""


@pytest.mark.parametrize(("cause", "change", "never", "instead"), CASES)
def test_a_remedy_that_does_not_apply_is_not_given(
    cause: str, change: Callable[[Run], Run], never: str, instead: str
) -> None:
    said = advice(cause, change(LIMITED[cause]()))
    assert never not in said
    assert instead in said


@pytest.mark.parametrize(
    ("cause", "change", "said"),
    [
        ("scheduler", waiting_scheduler, "Give the scheduler a dedicated core"),
        ("client", lambda run: came_late(client_before()), "Start workers when chunks are ready"),
        ("client", lambda run: in_two_calls(client_between(), 8), "Make fewer Runner calls"),
        ("client", lambda run: run, "Close the cluster"),
        ("contention", lambda run: made_run([plan(1.0, core_wait=1.0)] * 8, 2, others=9.0), "Stop other processes"),
        ("storage", lambda run: run, "2 threads per core"),
        ("metadata", of_schema("NanoAODSchema"), "schema with fewer collections"),
        ("interpretation", lambda run: run, "Read fewer branches"),
        ("interpreter lock", lambda run: run, "processes with one thread each"),
        ("tail", lambda run: run, "chunksize=25000"),
        ("merge", lambda run: run, "treereduction"),
        ("start-up", with_pool("ProcessPoolExecutor"), "pool=loky.get_reusable_executor(max_workers=1)"),
        ("start-up", lambda run: run, "worker preload"),
    ],
)
def test_a_remedy_that_applies_is_given(cause: str, change: Callable[[Run], Run], said: str) -> None:
    assert said in advice(cause, change(LIMITED[cause]()))


@pytest.mark.parametrize(
    ("affinity", "line"),
    [(True, "DaskExecutor(worker_affinity=False)"), (False, "distributed.scheduler.worker-saturation: 1.0")],
)
def test_misplaced_tasks_are_no_reason_for_a_core_of_the_scheduler(affinity: bool, line: str) -> None:
    """Tasks that are ready on one worker, one after the other, while the other one has none."""
    run = with_call(made_run([plan(1.0)] * 16, 1), options={"executor.worker_affinity": affinity})
    assert run.lifetimes is not None
    idle = run.lifetimes.to_pylist()[0] | {"worker": "w1", "name": "w1"}
    ready = dict.fromkeys(("runnable", "assigned", "arrived", "ready"), run.start)
    piled = edited(with_rows(run, lifetimes=[idle]), tasks=lambda row: ready)
    said = advice("scheduler", piled)
    assert "most of it idle: misplaced" in said
    assert "dedicated core" not in said
    assert line in said


def test_workers_that_left_are_not_retired() -> None:
    address = dict.fromkeys(("chunks", "tasks", "lifetimes"), lambda row: {"worker": f"tcp://{row['worker']}:1"})
    run = edited(LIMITED["slow worker"](), **address)
    slow = [Slow("worker", f"tcp://{name}:1", 3.0, (2.0, 4.0), 30.0, 9) for name in ("w0", "w1")]
    assert 'client.retire_workers(["tcp://w0:1", "tcp://w1:1"])' in advice("slow worker", run, slow=slow)
    left = edited(run, lifetimes=lambda row: {"stop": row["stop"] - 5 * (row["worker"] == "tcp://w0:1")})
    assert 'client.retire_workers(["tcp://w1:1"])' in advice("slow worker", left, slow=slow)


@pytest.mark.slow
def test_a_file_whose_events_compute_long_needs_no_faster_storage() -> None:
    for phase, faster in (("read_seconds", True), ("compute_seconds", False)):
        slow = Slow("file", "a.root", 3.0, (2.0, 4.0), 30.0, 9, phase)
        assert ("faster storage" in advice("slow file", LIMITED["slow file"](), slow=[slow])) == faster


def test_tasks_without_chunks_get_no_smaller_chunks_for_memory() -> None:
    said = advice("memory", plain(LIMITED["tail"]()), memory=memory_of(None, 100.0))
    assert "chunk" not in said.partition("Give workers")[2]
    assert "Give workers more memory" in said


def test_plain_tasks_are_told_how_they_are_measured() -> None:
    """Whether or not something around the tasks is found."""
    for run in (plain(LIMITED["tail"]()), plain(made_run([plan(1.0)] * 64, 2))):
        verdict = Measurement(run).verdict
        assert not verdict.healthy or "Healthy" not in verdict.conclusion
        assert "MetricsCollector(client, everything=True)" in verdict.conclusion
        assert "roastcoffea.measured(function)" in verdict.conclusion
        printed = io.StringIO()
        Measurement(run).print_summary(file=printed)
        assert "everything=True" in printed.getvalue()
    assert "everything=True" not in Measurement(LIMITED["tail"]()).verdict.conclusion


EVERY: Final = {cause for cause, *_ in CASES} | {"slow worker", "slow file", "memory"}
FOR_ANY_RUN: Final = {
    "blocked": "names a function or section of the run, else how to find one",
    "checkpoint": "only found with checkpoints",
    "chunk size": "a size that was weighed on the run",
    "compression": "only found where Dask compressed",
    "compute": "names a function of the run",
    "decompression": "only found where much was decompressed",
    "failures": "names what failed",
    "memory grows": "none without a cluster, whose workers can be restarted",
    "missing workers": "needs jobs without a worker: tests/diagnosis/findings/test_absent_workers.py",
    "missing data": "made of what is missing: tests/diagnosis/test_completeness.py",
    "other tasks": "only found beside Runner calls",
    "re-read": "says why it was read again: tests/diagnosis/test_advice.py",
    "preprocessing": "only found with preprocessing",
    "repeated work": "names the line of the run that loads",
    "slow chunk": "names a chunk of the run, and its line",
    "slow dataset": "tests/diagnosis/findings/test_slow_places.py",
    "slow endpoint": "only found with several servers",
    "slow host": "only found with several hosts",
    "slows down": "tests/diagnosis/findings/test_slowing.py",
    "stuck worker": "names workers of the run: tests/diagnosis/findings/test_absent_workers.py",
    "writing": "tests/diagnosis/findings/test_writing.py",
    "time limit": "only found for workers that a limit ended",
}
"""Causes whose remedy applies wherever they are found, and why."""


def test_all_remedies_are_checked() -> None:
    assert EVERY | FOR_ANY_RUN.keys() == CAUSES.keys()
    assert not EVERY & FOR_ANY_RUN.keys()
