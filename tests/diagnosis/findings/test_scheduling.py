"""Causes around chunks: when each is found, whom it names, and what it advises."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from handmade import T, evidence_of, handmade_run, memory_of, one_kind_of_time
from limited_runs import preprocessing
from made_runs import made_run, plan, with_call

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import CAUSES, Culprit, Finding
from roastcoffea.diagnosis.findings.scheduling import LARGE_OUTPUT
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS

SMALL = made_run([plan(0.2, open_cpu=0.5, open_wait=0.5, file=f"{number % 4}.root") for number in range(80)], 4)
UNEVEN = made_run([plan(1.0)] * 19 + [plan(20.0)], 4)


def findings(seen: Evidence) -> dict[str, Finding]:
    return {finding.cause: finding for finding in conclusions(seen)[0]}


def with_outputs(run: Run, size: int) -> Run:
    assert run.tasks is not None
    return dataclasses.replace(
        run, tasks=table_of_rows(TASK_COLUMNS, [row | {"nbytes": size} for row in run.tasks.to_pylist()])
    )


def test_small_chunks_have_one_size_to_use() -> None:
    seen = evidence_of(SMALL)
    finding = findings(seen)["chunk size"]
    assert finding.what == "Chunks of 100 events are too small: each has a fixed cost of 1 s."
    assert finding.remedy == seen.chunk_size.line
    assert finding.culprits == (Culprit("chunk size", "100 events", pytest.approx(80.0)),)
    assert finding.rows == {"fixed cost of chunks": pytest.approx(80.0)}
    assert "metadata" not in findings(seen)  # a consequence


def test_the_chunk_size_is_the_one_that_was_asked_for() -> None:
    """Files of 1200 events are cut into twelve chunks of 100 with a chunk size of 109; 1000 is of no use to name."""
    for asked, named in ((109, "109 events"), (1000, "100 events")):
        run = with_call(SMALL, options={"chunksize": asked})
        assert findings(evidence_of(run))["chunk size"].culprits[0].name == named


def test_large_outputs_are_not_the_chunk_sizes_fault() -> None:
    assert "chunk size" in findings(evidence_of(with_outputs(SMALL, LARGE_OUTPUT - 1)))
    assert "chunk size" not in findings(evidence_of(with_outputs(SMALL, LARGE_OUTPUT)))


def test_a_tail_names_the_longest_chunk_and_a_smaller_size() -> None:
    finding = findings(evidence_of(UNEVEN))["tail"]
    # one thread works for 19 s more than the three others
    assert finding.rows == {"idle: tail": pytest.approx(57.0)}
    assert finding.seconds == pytest.approx(24.0 - 39.0 / 4, rel=0.02)
    assert "a.root, entries 1900 to 2000" in finding.what
    assert finding.remedy is not None
    assert [one.kind for one in finding.culprits] == ["file"]


def test_a_tail_of_merging_is_the_merges() -> None:
    seen = evidence_of(handmade_run())
    assert seen.ledger.tail_of["merge"] + seen.ledger.tail_of["preprocessing"] == pytest.approx(58.75 - 46.5)
    merge = next(iter(CAUSES["merge"].findings(seen)))
    assert merge.rows == {"merge": 2.0, "idle: tail (merge)": pytest.approx(seen.ledger.tail_of["merge"])}
    preprocessing = next(iter(CAUSES["preprocessing"].findings(seen)))
    assert preprocessing.rows is not None
    assert preprocessing.rows["preprocessing"] == 1.75


def test_the_client_says_when_it_kept_workers_idle() -> None:
    found = findings(evidence_of(made_run([plan(1.0)] * 20, 2, before=10.0)))["client"]
    assert (
        found.what
        == "The workers sit idle for 50 % of thread time while the client works (10 s before the first task)."
    )
    assert found.seconds == pytest.approx(10.0, rel=0.01)


def test_scheduling_names_tasks_and_their_length() -> None:
    """20 tasks of 200 ms on two threads, of which the chunk takes 100 ms."""
    run = made_run([plan(0.1)] * 20, 2)
    assert run.tasks is not None
    assert run.chunks is not None
    assert run.lifetimes is not None
    starts = [T + 0.2 * (place // 2) for place in range(20)]
    tasks, chunks = (
        [row | {"start": start, "stop": start + seconds} for row, start in zip(table.to_pylist(), starts, strict=True)]
        for table, seconds in ((run.tasks, 0.2), (run.chunks, 0.1))
    )
    tables: dict[str, Any] = {
        "tasks": table_of_rows(TASK_COLUMNS, tasks),
        "chunks": table_of_rows(CHUNK_COLUMNS, chunks),
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, [row | {"stop": T + 2.0} for row in run.lifetimes.to_pylist()]),
    }
    (draft,) = CAUSES["scheduler"].findings(evidence_of(dataclasses.replace(run, stop=T + 2.0, **tables)))
    assert draft.what == "Scheduling 20 tasks of 200 ms takes 50 % of thread time, most of it task overhead."


def test_memory_names_the_worker_and_the_size_that_fits() -> None:
    seen = evidence_of(UNEVEN, memory=memory_of(40, 100.0, lost=40.0))
    found = findings(seen)
    memory = found["memory"]
    assert memory.what.startswith("1 of 1 worker was paused for lack of memory (w0, peak 900 MB, 90 % of its 1 GB).")
    assert "now about 100" in memory.advice
    assert memory.remedy == "chunksize=40"
    assert memory.culprits[0][:2] == ("worker", "w0")
    assert all("chunksize=40" in one.text for one in found.values() if "chunksize=" in one.text)


def test_memory_that_fits_is_no_reason_for_a_chunk_size() -> None:
    memory = findings(evidence_of(UNEVEN, memory=memory_of(300, 100.0, lost=40.0)))["memory"]
    assert memory.remedy is None
    assert "Give workers more memory" in memory.advice
    unknown = findings(evidence_of(UNEVEN, memory=memory_of(None, 100.0, lost=40.0)))["memory"]
    assert unknown.remedy is None
    assert "the size that would fit is unknown" in unknown.advice


def test_failures_are_named_with_their_error() -> None:
    seen = evidence_of(failures=Measurement(handmade_run()).metrics.evaluator.value("failure_evidence"))
    draft = next(iter(CAUSES["failures"].findings(seen)))
    assert "boom" in draft.what
    assert draft.rows is not None
    assert draft.rows["failed"] > 0
    assert list(CAUSES["failures"].findings(evidence_of(failures=None))) == []


@pytest.mark.parametrize(
    ("activity", "cause", "words"),
    [
        (
            "serialize",
            "serialization",
            "Dask's serialization inside tasks takes 12 % of thread time (serialization 12 s).",
        ),
        ("deserialize", "serialization", "(deserialization 12 s)"),
        ("compress", "compression", "Dask's own compression inside tasks (not ROOT's) takes 12 % of thread time"),
        ("decompress", "compression", "(decompression 12 s)"),
    ],
)
def test_what_dask_counts_in_tasks_is_found_where_it_is_a_large_share(activity: str, cause: str, words: str) -> None:
    run = one_kind_of_time("compute_seconds").run
    key = ("execute", "Dijet", activity, "seconds")

    def verdict(*seconds: float) -> Any:
        counted = {f"worker {place}": {key: amount} for place, amount in enumerate(seconds)}
        changes: dict[str, Any] = {"span_metrics": {key: sum(seconds)}, "span_metrics_per_worker": counted}
        return Measurement(dataclasses.replace(run, **changes)).verdict

    (finding,) = verdict(9.0, 3.0)
    assert finding.cause == cause
    assert finding.seconds == pytest.approx(12)
    assert finding.at_most
    assert words in finding.text
    assert verdict(1.0, 1.0).healthy


@pytest.mark.parametrize(("now", "remedy"), [(20, "DaskExecutor(treereduction=50)"), (100, None), (None, None)])
def test_merging_more_at_once_is_advised_where_fewer_are_merged(now: int | None, remedy: str | None) -> None:
    run = with_call(with_outputs(SMALL, 2 * LARGE_OUTPUT), options={"chunksize": 100, "executor.treereduction": now})
    (draft,) = CAUSES["merge"].findings(evidence_of(run))
    assert draft.remedy == remedy


def test_a_size_is_smaller_than_the_largest_chunk_though_many_are_small() -> None:
    """A file of 40,000 events and three of 1000, each of which is a chunk as 100,000 events were asked for."""
    files = [(40_000, "a"), (1000, "b"), (1000, "c"), (1000, "d")]
    plans = [plan(1.0 + events / 8000, events=events, file=f"{name}.root") for events, name in files]
    seen = evidence_of(with_call(made_run(plans, 3), options={"chunksize": 100_000}))
    size = seen.chunk_size
    assert size.size is not None
    assert size.now < size.size < 40_000
    assert (seen.larger, seen.smaller) == (None, size.line)
    tail = findings(seen)["tail"]
    assert tail.remedy == size.line
    assert "workers" not in tail.advice


@pytest.mark.parametrize(("size", "asked", "larger", "smaller"), [(800, 1000, False, True), (1500, 1000, True, False)])
def test_a_size_is_compared_with_the_one_that_was_asked_for(size: int, asked: int, larger: bool, smaller: bool) -> None:
    found = evidence_of(SMALL).chunk_size._replace(size=size, now=300.0, asked=asked, largest=1200.0)
    assert (found.is_larger, found.is_smaller, found.usual) == (larger, smaller, 300)
    assert found._replace(now=950.0).usual == asked


@pytest.mark.parametrize(("tree", "line"), [("Events", 'fileset, treename="Events"'), (None, "fileset")])
def test_chunks_are_kept_with_the_tree_that_was_asked_for(tree: str | None, line: str) -> None:
    run = preprocessing()
    row = {"dataset": "data", "file": "a.root", "tree": tree}
    seen = evidence_of(dataclasses.replace(run, asked=table_of_rows(ASKED_COLUMNS, [row])))
    (draft,) = CAUSES["preprocessing"].findings(seen)
    assert draft.remedy == f"chunks = list(runner.preprocess({line}))"
