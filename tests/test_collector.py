"""The main job on a real cluster, against coffea's own report."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from analyses import Jets, count_events, runner_for
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from planted_work import Monitored, fill, highest_resident
from processes import PATIENCE, collected_until

import roastcoffea
from roastcoffea import measured
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import MeasurementError, RoastcoffeaError
from roastcoffea.recording.assembly import RunRecords
from roastcoffea.report.first_look import digest_of


@pytest.fixture(scope="module")
def run_of_sample(shared_client: Any, sample: Any) -> Any:
    with MetricsCollector(shared_client) as collector:
        output, report = runner_for(shared_client, 1000)(sample, processor_instance=Jets())
    return collector, output, report


def test_chunks_add_up_to_the_report_of_coffea(run_of_sample: Any) -> None:
    collector, _, report = run_of_sample
    chunks = collector.measurement.chunks
    assert len(chunks) == report["chunks"] == 16
    assert set(chunks["outcome"]) == {"ok"}
    assert chunks["events"].sum() == report["entries"] == 16000
    assert chunks["coffea_bytes_read"].sum() == report["bytesread"]
    assert chunks["coffea_process_seconds"].sum() == pytest.approx(report["processtime"])
    assert set(report["columns"]) == set().union(*chunks["coffea_columns"])


def test_what_people_try_first_is_on_the_collector(run_of_sample: Any, tmp_path: Path) -> None:
    collector, *_ = run_of_sample
    measurement = collector.measurement
    assert collector.verdict is measurement.verdict
    assert measurement.bottleneck == measurement.bound == measurement.metrics["bound"]
    page = collector.report(tmp_path / "page.html")
    assert "Jets" in page.read_text()
    figure, ax = collector.plot("time_ledger", path=tmp_path / "ledger.png", title="mine")
    assert (ax.get_title(), ax.figure, (tmp_path / "ledger.png").exists()) == ("mine", figure, True)
    saved = collector.save(tmp_path, "run", share=True)
    assert saved == tmp_path / "run"
    assert roastcoffea.load(saved).run.shared
    for again in (lambda: collector.report(page), lambda: collector.save(tmp_path, "run")):
        with pytest.raises(MeasurementError, match=r"exists; .*overwrite=True"):
            again()


@pytest.mark.parametrize("state", ["new", "open"])
def test_results_are_refused_until_the_block_has_ended(state: str, tmp_path: Path) -> None:
    collector = MetricsCollector(track_workers=False, journal=None)
    with collector if state == "open" else nullcontext():
        for result in (
            lambda: collector.verdict,
            lambda: collector.report(tmp_path / "page.html"),
            lambda: collector.plot("time_ledger"),
            lambda: collector.save(tmp_path),
            collector.print_summary,
        ):
            with pytest.raises(RoastcoffeaError, match="no measurement yet: leave the with block"):
                result()
    assert list(tmp_path.iterdir()) == []


def test_each_chunk_joins_its_task(run_of_sample: Any) -> None:
    collector, *_ = run_of_sample
    measurement = collector.measurement
    joined = measurement.chunks.merge(measurement.tasks, on=["key", "run_id"], suffixes=("", "_task"))
    assert len(joined) == 16
    assert (joined["worker"] == joined["worker_task"]).all()
    assert (joined["thread"] == joined["thread_task"]).all()
    assert set(joined["kind"]) == {"processor"}
    assert set(joined["prefix"]) == {"Jets"}
    assert (joined["wall_seconds"] <= joined["stop_task"] - joined["start_task"] + 0.001).all()


def test_tasks_are_told_apart_by_what_they_did(run_of_sample: Any) -> None:
    collector, *_ = run_of_sample
    kinds = collector.measurement.tasks.groupby(["kind", "prefix"]).size().to_dict()
    assert kinds == {
        ("preprocessing", "automatic_retries"): 4,
        ("preprocessing", "reduce"): 1,
        ("processor", "Jets"): 16,
        ("merge", "reduce"): 1,
        ("other", "lambda"): 1,
    }


def test_identity_and_memory_of_a_chunk(run_of_sample: Any, sample: Any) -> None:
    import uproot

    collector, *_ = run_of_sample
    chunk = collector.measurement.chunks.iloc[0]
    with uproot.open(chunk["file"]) as file:
        assert chunk["uuid"] == file.file.fUUID.hex()
        assert chunk["tree"] in file
    assert chunk["file"] in sample[chunk["dataset"]]["files"]
    assert chunk["entry_stop"] - chunk["entry_start"] == chunk["events"] == 1000
    assert chunk["memory_before"] <= chunk["memory_peak"] >= chunk["memory_after"]
    assert chunk["cpu_seconds"] <= chunk["wall_seconds"] * 1.05
    assert chunk["cpu_seconds"] <= chunk["process_cpu_seconds"] * 1.05
    if Path("/proc/self/schedstat").exists():
        assert 0 <= chunk["core_wait_seconds"] <= chunk["wall_seconds"] * 1.05 - chunk["cpu_seconds"]
    run = collector.measurement.run
    assert run.start <= chunk["start"] <= chunk["stop"] <= run.stop


def test_the_report_that_was_set_wins(shared_client: Any, sample: Any) -> None:
    with MetricsCollector(shared_client) as collector:
        runner_for(shared_client, 4000)(sample, processor_instance=Jets())
    assert collector.coffea_report["entries"] == 16000
    assert collector.metrics["total_events"] == 16000
    collector.set_coffea_report({"entries": 5, "bytesread": 7})
    assert collector.metrics["total_events"] == 5
    assert collector.metrics["total_bytes_read"] == 7
    with pytest.raises(TypeError, match="report must be a mapping, not int"):
        collector.set_coffea_report(3)  # type: ignore[arg-type]


def test_a_collector_measures_once(client: Any) -> None:
    collector = MetricsCollector(client)
    with pytest.raises(RoastcoffeaError, match="leave the with"):
        collector.get_metrics()
    with collector:
        pass
    with pytest.raises(RoastcoffeaError, match="make a new one"), collector:
        pass
    assert collector.measurement.outcome == "finished"


def test_two_calls_in_one_run_are_kept_with_their_own_times(client: Any, sample: Any) -> None:
    with MetricsCollector(client) as collector:
        runner = runner_for(client, 4000)
        runner({"qcd": sample["qcd"]}, processor_instance=Jets())
        runner({"zprime": sample["zprime"]}, processor_instance=Jets())
    first, second = collector.measurement.run.calls
    assert first.stop <= second.start
    assert first.fileset != second.fileset
    assert first.processor == "Jets"
    assert first.options["chunksize"] == 4000
    chunks = collector.measurement.chunks
    assert chunks.groupby("call")["dataset"].unique().map(list).to_dict() == {
        first.id: ["qcd"],
        second.id: ["zprime"],
    }
    assert collector.metrics["total_events"] == 16000


def test_nested_collectors_have_their_own_data(client: Any, sample: Any) -> None:
    runner = runner_for(client, 4000)
    with MetricsCollector(client) as outer:
        runner({"qcd": sample["qcd"]}, processor_instance=Jets())
        with MetricsCollector(client) as inner:
            runner({"zprime": sample["zprime"]}, processor_instance=Jets())
    assert set(inner.measurement.chunks["dataset"]) == {"zprime"}
    assert list(outer.measurement.chunks["dataset"]) == ["qcd", "qcd", "zprime", "zprime"]
    assert (inner.measurement.tasks["kind"] == "processor").sum() == 2
    assert (outer.measurement.tasks["kind"] == "processor").sum() == 4
    processor_cpu = ("execute", "Jets", "thread-cpu", "seconds")
    assert inner.span_metrics[processor_cpu] < outer.span_metrics[processor_cpu]


@pytest.mark.slow
def test_collectors_in_threads_have_their_own_data(client: Any, sample: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def measured(dataset: str) -> Any:
        with MetricsCollector(client) as collector:
            runner_for(client, 2000)({dataset: sample[dataset]}, processor_instance=Jets())
        return collector

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(measured, ("qcd", "zprime"))
    for collector, dataset in ((first, "qcd"), (second, "zprime")):
        measurement = collector.measurement
        assert list(measurement.chunks["dataset"]) == [dataset] * 4
        assert (measurement.tasks["kind"] == "processor").sum() == 4
        # Dask mixes the spans of tasks that have the same name at the same time: better no number than a wrong one
        assert "the same name" in measurement.metrics.missing["processor_cpu_time_seconds"]
        assert len(measurement.problems) == 1


@pytest.mark.slow
def test_four_collectors_in_a_row(client: Any, sample: Any) -> None:
    runner = runner_for(client, 4000)
    for _ in range(4):
        with MetricsCollector(client) as collector:
            runner({"qcd": sample["qcd"]}, processor_instance=Jets())
        assert len(collector.measurement.chunks) == 2
        assert collector.measurement.problems == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"client": None, "backend": "dask"}, ValueError, "needs a distributed.Client"),
        ({"backend": "spark"}, ValueError, "unknown backend 'spark'"),
        ({"live": "maybe"}, TypeError, "live must be True or False, not 'maybe'"),
        ({"worker_tracking_interval": 0}, ValueError, "positive number of seconds, not 0"),
        ({"worker_tracking_interval": float("nan")}, ValueError, "positive number of seconds, not nan"),
    ],
)
def test_bad_input_is_told(client: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MetricsCollector(**{"client": client, **options})


def test_an_asynchronous_client_is_refused() -> None:
    import asyncio

    from distributed import Client, Scheduler

    async def refused() -> None:
        async with (
            Scheduler(port=0, dashboard_address=":0") as scheduler,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            with pytest.raises(TypeError, match="asynchronous"):
                MetricsCollector(client)

    asyncio.run(refused())


def test_a_closed_client_is_refused(shared_client: Any) -> None:
    from distributed import Client

    client = Client(shared_client.scheduler.address)
    client.close()
    with pytest.raises(ValueError, match="this one is closed"):
        MetricsCollector(client)


def test_workers_are_not_sampled_where_not_asked(client: Any) -> None:
    with MetricsCollector(client, track_workers=False) as collector:
        client.submit(sum, [1, 2]).result()
    assert collector.tracking_data is None
    assert "track_workers" in collector.measurement.metrics.missing["tracking_data"]
    assert len(collector.measurement.lifetimes) == 2


def test_output_of_older_versions_is_cleaned(client: Any) -> None:
    collector = MetricsCollector(client)
    output: Any = {"n": 1, "__roastcoffea_metrics__": [1]}
    collector.extract_metrics_from_output(output)
    assert output == {"n": 1}
    for other in ([1], None, {"n": 1}):
        collector.extract_metrics_from_output(other)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("on_dask", [True, False])
@pytest.mark.parametrize("peak_memory", [True, False])
def test_the_kernel_s_mark_is_reset_for_peaks_alone(
    on_dask: bool, peak_memory: bool, request: pytest.FixtureRequest, sample: Any
) -> None:
    client = request.getfixturevalue("client") if on_dask else None
    run = runner_for(client, 4000, **({} if on_dask else {"executor": lambda **_: IterativeExecutor(status=False)}))
    held = min(client.run(fill).values()) if client is not None else fill()
    with MetricsCollector(client, peak_memory=peak_memory, track_workers=False) as collector:
        marks, _ = run(sample, processor_instance=Monitored())
        mark = measured(highest_resident)
        marks += [mark() if client is None else client.submit(mark, pure=False).result()]
    assert all((seen < held) == peak_memory for seen in marks), (held, marks)
    measurement = collector.measurement
    assert measurement.chunks[["memory_before", "memory_after"]].notna().all(axis=None)
    assert len(measurement.chunks) == len(marks)
    for table in (measurement.run.chunks, measurement.run.sections):
        assert table["memory_peak"].null_count == (0 if peak_memory else len(table))
    assert measurement.run.sections["memory_delta"].null_count == 0
    assert ("peak_memory_bytes" in measurement.metrics) == peak_memory
    if not peak_memory:
        assert measurement.run.absent["memory_peak"] == "peak_memory=False"
        assert measurement.metrics.missing["peak_memory_bytes"] == "peak_memory=False"
        assert set(measurement.run.problems) == set()


class Unkind(Jets):
    """Its attributes belong to itself."""

    @property
    def name(self) -> str:
        raise RuntimeError("not to be called")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_runs_and_processors_have_the_names_that_they_were_given(sample: Any, tmp_path: Path) -> None:
    run = runner_for(None, 4000, executor=lambda **_: IterativeExecutor(status=False))
    processor = Jets()
    processor.name = "zmumu\ttight?token=Plant10"
    with MetricsCollector(name="first\nlook, token=Plant11", profile=False) as collector:
        named, _ = run(sample, processor_instance=processor)
        unkind, _ = run(sample, processor_instance=Unkind())
    assert named == unkind
    recorded = collector.measurement.run
    assert recorded.name == "first look, token=***"
    assert [call.processor for call in recorded.calls] == ["zmumu tight?token=***", "Unkind"]
    assert recorded.problems == ()
    digest = digest_of(recorded, collector.measurement.metrics)
    assert digest.name == "first look, token=***"
    assert digest.facts[0] == "zmumu tight?token=***, Unkind"
    assert digest_of(replace(recorded, name=None), collector.measurement.metrics).name == digest.facts[0]
    saved = collector.save_measurement(tmp_path)
    assert saved.name == "first-look-token-001"
    assert roastcoffea.load(saved).run.name == recorded.name
    assert collector.save_measurement(tmp_path, "mine").name == "mine"


def test_a_name_is_a_text() -> None:
    with pytest.raises(TypeError, match="the name of a run must be a string"):
        MetricsCollector(name=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="visible character"):
        MetricsCollector(name="")


def test_tables_are_made_once_when_they_are_asked_for(
    client: Any, sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RunRecords] = []
    run = RunRecords.run

    def counted(records: RunRecords, *given: Any) -> Any:
        made.append(records)
        return run(records, *given)

    monkeypatch.setattr(RunRecords, "run", counted)
    with MetricsCollector(client, journal=tmp_path) as collector:
        runner_for(client, 4000)(sample, processor_instance=Jets())
    assert made == []
    assert len(list(tmp_path.iterdir())) == 1
    assert collector.problems == []
    assert len(collector.measurement.chunks) == 4
    assert collector.measurement is collector.measurement
    assert len(made) == 1
    with MetricsCollector(client, journal=tmp_path) as dropped:
        pass
    measurement = collector.measurement
    del collector, dropped
    made.clear()
    assert collected_until(lambda: len(list(tmp_path.iterdir())) == 1)  # of the measurement that is left
    del measurement
    assert collected_until(lambda: not list(tmp_path.iterdir()))


OURS = str(Path(roastcoffea.__file__).parent)
NOT_FAILED = ("errors.py", "interrupts.py", "redaction.py", "collector.py")
"""Modules whose functions are not failed: what reports errors, and the collector itself, which calls the others."""


class Planted:
    """Has one function of ours fail as it is first called: the one after `failed` while a collector is entered.

    Of all that are called then it fails one of `every`, in an order that is drawn.
    """

    def __init__(self, failed: set[CodeType], every: int, seed: int) -> None:
        self.failed, self.every, self.draw = failed, every, random.Random(seed)
        self.now: CodeType | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        ours = self.now is None and code.co_filename.startswith(OURS) and not code.co_filename.endswith(NOT_FAILED)
        if ours and code not in self.failed and code.co_name != "<genexpr>" and not is_in_finalizer(frame):
            self.failed.add(code)
            if self.draw.randrange(self.every) == 0:
                self.now = code
                raise RuntimeError("planted")

    def in_thread(self, name: str, frame: FrameType, event: str, argument: object) -> None:
        """The same in the thread of this name, in what its function calls."""
        before = frame.f_back
        if threading.current_thread().name == name and before and before.f_code.co_filename != threading.__file__:
            self(frame, event, argument)


def is_in_finalizer(frame: FrameType | None) -> bool:
    """Whether a function is called as garbage is collected, which may be at any time, and in any test's objects."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def check_entering(client: Any, sample: Any, folder: Path, every: int) -> None:
    def plain() -> Any:
        return runner_for(client, 4000, executor=executor)(sample, processor_instance=count_events)[0]

    executor = DaskExecutor if client is not None else lambda **_: IterativeExecutor(status=False)
    with MetricsCollector(client, journal=folder) as first:
        expected = plain()
    assert first.measurement.outcome == "finished"  # all is imported now that adds filters of warnings
    before, failed = (Runner.__dict__["run"], list(warnings.filters)), set[CodeType]()
    for seed in count():
        planted, collector = Planted(failed, every, seed), MetricsCollector(client, journal=folder)
        sys.settrace(planted)
        topic = collector._watcher.topic  # noqa: SLF001  (it is not entered yet)
        threading.settrace(partial(planted.in_thread, topic))
        try:
            collector.__enter__()
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        output = plain()
        collector.__exit__(None, None, None)
        assert output == expected
        assert (Runner.__dict__["run"], list(warnings.filters)) == before, planted.now
        if planted.now is None:
            break
        assert collector.measurement.outcome == "finished"
    assert len(failed) > 10


@pytest.mark.slow
def test_nothing_that_fails_in_entering_stops_the_analysis(sample: Any, tmp_path: Path) -> None:
    check_entering(None, sample, tmp_path, every=6)


@pytest.mark.slow
def test_nothing_that_fails_in_entering_stops_the_analysis_on_dask(client: Any, sample: Any, tmp_path: Path) -> None:
    check_entering(client, sample, tmp_path, every=12)


def test_results_that_cannot_be_imported_do_not_stop_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "roastcoffea.measurement", None)
    with MetricsCollector(journal=None) as collector:
        pass
    assert "import of roastcoffea.measurement halted" in collector.problems[0]
    with pytest.raises(RoastcoffeaError, match="there is no measurement: roastcoffea failed"):
        _ = collector.measurement


WITHOUT_A_HOME = """
import os
import coffea.processor
import roastcoffea.measurement
from roastcoffea import MetricsCollector
os.setuid(12345)  # after the imports, as the package may be where only root reads
os.environ.pop("HOME", None)
with MetricsCollector() as collector:
    print("it runs")
print(collector.problems)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_without_a_home_is_measured_without_a_journal() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG")}
    # what may be imported is read before the user is another one
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_HOME],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it runs\n['there is no journal of the run: RuntimeError: Could not determine home")


def test_a_coffea_without_a_runner_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import coffea.processor

    monkeypatch.delattr(coffea.processor, "Runner")
    with MetricsCollector(journal=tmp_path) as collector:
        pass
    assert collector.problems == []
    assert collector.measurement.outcome == "finished"
