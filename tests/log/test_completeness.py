"""What leaving a collector says of chunks and attempts without a record, against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from analyses import Jets, runner_for
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, IterativeExecutor, ProcessorABC, Runner
from distributed import Client
from releases import NO_RETRIES, needs_kinds_of_skips
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.log.completeness import Losses, attempts_without_record, chunks_without_record
from roastcoffea.log.received import numbered_attempts
from roastcoffea.measurement import load
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS, FINISHED, RunnerCall
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.units import counted

Rows = list[dict[str, Any]]


def calls_of(chunks: dict[str, int]) -> list[RunnerCall]:
    """Runner calls with their numbers of chunks."""
    parts: Any = {"processor": "Jets", "executor": "DaskExecutor", "start": 0.0, "stop": 1.0, "outcome": FINISHED}
    return [RunnerCall(id=call, chunks=number, **parts) for call, number in chunks.items()]


def chunk_table(rows: Rows) -> Any:
    """Table of records of chunks, numbered as those that came home are."""
    return numbered_attempts(table_of_rows(CHUNK_COLUMNS, rows))


def random_chunks(draw: random.Random, number: int) -> Rows:
    """Records with few different keys, run_ids and calls, some of them null."""
    return [
        {
            "id": identity,
            "call": draw.choice(("a", "b", None)),
            "key": draw.choice((None, *map(str, range(number // 2)))),
            "run_id": draw.choice((None, *range(number))),
            "outcome": draw.choice(("ok", "error", "skipped")),
        }
        for identity in range(number)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_what_lacks_a_record(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice((0, 1, 5, 40))
    chunks = random_chunks(draw, size)
    names = {"kind": ("processor", "merge"), "outcome": ("ok", "error", "worker lost")}
    tasks = [
        {name: draw.choice(values) for name, values in names.items()}
        | {"key": str(draw.randrange(size // 2 + 1)), "run_id": draw.choice((None, *range(size)))}
        for _ in range(size)
    ]
    chunk_rows = chunk_table(chunks)
    asked = table_of_rows(ASKED_COLUMNS, [])
    of_chunks = chunks_without_record(calls_of({"a": 50, "b": 60}), chunk_rows, asked, Losses(equal_run_once=True))
    of_attempts = attempts_without_record(table_of_rows(TASK_COLUMNS, tasks), chunk_rows)
    ended = {(row["call"], row["key"] or row["id"]) for row in chunks if row["outcome"] != "error"}
    ended_of = Counter(call for call, _ in ended)
    recorded = {(row["key"], row["run_id"]) for row in chunks}
    lacking = Counter(
        task["outcome"]
        for task in tasks
        if task["kind"] == "processor" and (task["key"], task["run_id"]) not in recorded
    )
    assert [problem.split(" have no")[0] for problem in of_chunks] == [
        f"{number - ended_of[call]} of {number} chunks" for call, number in {"a": 50, "b": 60}.items()
    ]
    assert [problem.split(": sums")[0] for problem in of_attempts] == [
        f"{counted(number, 'chunk attempt')} left no record (task outcome: {outcome})"
        for outcome, number in lacking.items()
    ]


def asked_twice(files: dict[str, int]) -> Any:
    """Table of chunks that were asked for, each so many times."""
    rows: Rows = [
        {"call": "a", "dataset": "d", "file": file, "tree": None, "uuid": "u", "entry_start": 0, "entry_stop": 10}
        for file, number in files.items()
        for _ in range(number)
    ]
    others = [{**rows[0], "entry_start": None, "entry_stop": None, "uuid": None}] * 2
    alike = [{**rows[0], "dataset": "e"}, {**rows[0], "entry_stop": 9}, {**rows[0], "call": "b"}]
    return table_of_rows(ASKED_COLUMNS, [*rows, *others, *alike])


EQUAL = "equal to another chunk (file listed twice; one task in Dask, two in coffea's report)"
DROPPED, REFUSED = "records dropped on the scheduler", "refused scheduler log entries"


@pytest.mark.parametrize(
    ("equal_run_once", "recorded", "dropped", "refused", "reasons"),
    [
        (True, 7, 0, 0, None),
        (True, 4, 0, 0, [f"{EQUAL}: 3"]),
        (True, 6, 5, 5, [f"{EQUAL}: 1"]),
        (True, 2, 0, 0, [f"{EQUAL}: 3", "for an unknown reason: 2"]),
        (True, 1, 1, 0, [f"{EQUAL}: 3", f"{DROPPED}: 1", "for an unknown reason: 2"]),
        (True, 1, 1, 2, [f"{EQUAL}: 3", f"{DROPPED}: 1", f"{REFUSED}: 2"]),
        (False, 4, 0, 0, ["for an unknown reason: 3"]),
    ],
)
def test_the_reason_is_said_only_where_it_is_known(
    equal_run_once: bool, recorded: int, dropped: int, refused: int, reasons: list[str] | None
) -> None:
    rows = [{"id": number, "call": "a", "key": str(number), "outcome": "ok"} for number in range(recorded)]
    losses = Losses(equal_run_once, dropped, refused)
    lacks = chunks_without_record(calls_of({"a": 7}), chunk_table(rows), asked_twice({"x": 3, "y": 2}), losses)
    expected = f"{7 - recorded} of 7 chunks have no record of their own: "
    assert list(lacks) == ([] if reasons is None else [expected + "; ".join(reasons)])


pytestmark = pytest.mark.filterwarnings("ignore:Skipping bad file", "ignore:Performed attempt")

EVENTS = 1000


class Counting(ProcessorABC):
    """Counts events; raises in chunks that begin at these entries: once, where there is a folder to remember it in."""

    def __init__(
        self, error: type[Exception] = OSError, entries: tuple[int, ...] = (), folder: Path | None = None
    ) -> None:
        self.error = error
        self.entries = entries
        self.folder = folder

    def process(self, events: Any) -> dict[str, int]:
        metadata = events.metadata
        if metadata["entrystart"] in self.entries:
            marker = None if self.folder is None else self.folder / f"{Path(metadata['filename']).name}-once"
            if marker is None or not marker.exists():
                if marker is not None:
                    marker.touch()
                raise self.error("planted")
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def runner(skip: Any = True, retries: int = 0, client: Client | None = None, **options: Any) -> Runner:
    kind: Any = IterativeExecutor(status=False, **(NO_RETRIES | ({"retries": retries} if retries else {})))
    if client is not None:
        kind = DaskExecutor(client=client, status=False, retries=retries)
    return Runner(executor=kind, schema=BaseSchema, chunksize=EVENTS, skipbadfiles=skip, savemetrics=True, **options)


def files(*paths: Path) -> dict[str, dict[str, dict[str, str]]]:
    return {"a": {"files": {str(path): "Events" for path in paths}}}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "good.root", baskets=2)


@pytest.mark.parametrize("on_dask", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_file_that_cannot_be_opened_is_a_problem(good: Path, on_dask: bool, client: Client) -> None:
    missing = good.with_name("missing.root")
    cluster = client if on_dask else None
    with MetricsCollector(cluster) as collector:
        runner(client=cluster, metadata_cache={})(files(good, missing), processor_instance=Counting())
    assert collector.measurement.problems == [f"1 file could not be opened and is missing from the output: {missing}"]


def test_files_that_are_lost_are_counted_and_the_first_are_named(good: Path) -> None:
    missing = [good.with_name(f"missing{number}.root") for number in range(5)]
    with MetricsCollector() as collector:
        runner(metadata_cache={})(files(good, *missing), processor_instance=Counting())
    named = ", ".join(map(str, missing[:3]))
    assert collector.measurement.problems == [
        f"5 files could not be opened and are missing from the output: {named}, and 2 more files"
    ]


@pytest.mark.parametrize(
    ("skip", "error", "on_dask"),
    [(True, OSError, True), pytest.param((OSError, LookupError), KeyError, False, marks=needs_kinds_of_skips)],
)
def test_chunks_that_are_skipped_are_a_problem(
    good: Path, skip: Any, error: type[Exception], on_dask: bool, client: Client
) -> None:
    cluster = client if on_dask else None
    with MetricsCollector(cluster) as collector:
        output, _ = runner(skip, client=cluster, metadata_cache={})(
            files(good), processor_instance=Counting(error, (EVENTS,))
        )
    assert output == {"events": EVENTS}
    told = f"1 chunk with 1,000 events was skipped and is missing from the output: {good}"
    assert collector.measurement.problems == [told]


def test_what_is_lost_stays_with_a_stored_measurement(good: Path, tmp_path: Path, capsys: Any) -> None:
    with MetricsCollector() as collector:
        runner(metadata_cache={})(files(good, good.with_name("missing.root")), processor_instance=Counting())
    (told,) = collector.measurement.problems
    assert load(collector.save_measurement(tmp_path / "runs", "one")).problems == [told]
    collector.print_summary()
    assert "could not be opened" in capsys.readouterr().out


def test_a_file_that_was_lost_before_the_runner_call_is_a_problem(good: Path) -> None:
    missing = good.with_name("missing.root")
    tolerant = runner(metadata_cache={})
    with MetricsCollector() as collector:
        items = list(tolerant.preprocess(files(good, missing)))
        tolerant(items, processor_instance=Counting())
    assert collector.measurement.problems == [f"1 file could not be opened and is missing from the output: {missing}"]


def test_what_another_call_of_the_same_processor_gave_is_not_lost(good: Path) -> None:
    missing = good.with_name("later.root")
    tolerant = runner(metadata_cache={})
    with MetricsCollector() as collector:
        tolerant(files(missing, good), processor_instance=Counting())
        write_tree(missing, baskets=1)
        tolerant(files(missing), processor_instance=Counting())
    assert collector.measurement.problems == []


@pytest.mark.parametrize(
    ("fails", "options"),
    [
        (False, {}),
        pytest.param(True, {"retries": 2}, marks=needs_kinds_of_skips),
        (False, {"maxchunks": 1}),
        (False, {"maxchunks": 3}),
    ],
    ids=["good", "repeated", "one chunk", "three chunks"],
)
def test_where_nothing_is_lost_there_is_no_problem(good: Path, fails: bool, options: dict[str, Any]) -> None:
    other = write_tree(good.with_name("other.root"), baskets=2)
    processor = Counting(entries=(EVENTS,) if fails else (), folder=good.parent)
    with MetricsCollector() as collector:
        runner(metadata_cache={}, **options)(files(good, other), processor_instance=processor)
    assert collector.metrics["num_failed_chunks"] == (2 if fails else 0)
    assert collector.measurement.problems == []


def test_a_call_that_raised_says_so_itself(good: Path) -> None:
    with pytest.raises(FileNotFoundError), MetricsCollector() as collector:
        runner(skip=False, metadata_cache={})(files(good.with_name("missing.root")), processor_instance=Counting())
    assert collector.measurement.problems == []


# Several Runner calls, and the report of one


@pytest.mark.slow
@pytest.mark.parametrize("when", ["within", "after"])
def test_the_report_of_the_last_of_two_calls_does_not_stand_for_both(
    client: Client, sample: dict[str, Any], when: str
) -> None:
    analysis = runner_for(client, 4000)
    with MetricsCollector(client) as collector:
        analysis({"qcd": sample["qcd"]}, processor_instance=Jets())
        _, report = analysis({"zprime": sample["zprime"]}, processor_instance=Jets())
        if when == "within":
            collector.set_coffea_report(report)
    if when == "after":
        collector.set_coffea_report(report)
    metrics, measurement = collector.metrics, collector.measurement
    assert metrics["total_events"] == measurement.chunks["events"].sum() == 2 * report["entries"]
    assert metrics["total_bytes_read"] == measurement.chunks["bytes_requested"].sum() > report["bytesread"]
    elapsed = metrics["elapsed_time_seconds"]
    assert metrics["event_rate_elapsed_khz"] == pytest.approx(2e-3 * report["entries"] / elapsed)
    assert metrics["data_rate_gbps"] == pytest.approx(8e-9 * metrics["total_bytes_read"] / elapsed)
    first, second = measurement.problems
    assert "has 8,000 of 16,000 events: total_events and its rates cover all 2 Runner calls" in first
    assert "total_bytes_read and its rates cover all 2 Runner calls" in second


def test_the_report_of_the_only_call_is_no_problem(client: Client, sample: dict[str, Any]) -> None:
    with MetricsCollector(client) as collector:
        _, report = runner_for(client, 4000)(sample, processor_instance=Jets())
    collector.set_coffea_report(report)
    assert collector.measurement.problems == []
    assert collector.metrics.source["total_events"] == "coffea report (set_coffea_report)"
