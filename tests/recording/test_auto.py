"""Recording without a change to the analysis: a script runs as with python, and each Runner call is measured once."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import analyses
import pytest
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from conftest import wait_until
from distributed import Client, LocalCluster
from processes import PATIENCE
from releases import Processor, needs_own_cluster
from scripts_run import MEASURED, PYTHON, START, TOLD, printed, run_in, saved_in

import roastcoffea
from roastcoffea.collector import MetricsCollector
from roastcoffea.recording.auto import record

SPAWNING = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import roastcoffea.auto

def doubled(number):
    return 2 * number

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        print(list(pool.map(doubled, [1, 2])))
        print(call(analyses.COUNT_EVENTS, FuturesExecutor(pool=pool, status=False)))
"""
ON_DASK = """
from distributed import Client, LocalCluster
from coffea.processor import ProcessorABC

class Mine(ProcessorABC):
    def process(self, events):
        return {"events": len(events)}

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        print(call(Mine(), DaskExecutor(client=client, status=False)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "workers", "by_import", "prints"),
    [
        pytest.param(SPAWNING, None, False, ["[2, 4]", "{'events': 16000}"], id="spawn, run"),
        pytest.param(ON_DASK, 1, True, ["{'events': 16000}"], id="dask, import"),
    ],
)
def test_processes_of_the_script_work_and_record_nothing(
    folder: Path, script: str, workers: int | None, by_import: bool, prints: list[str]
) -> None:
    imported = "import roastcoffea.auto\n" if by_import else ""
    (folder / "script.py").write_text(imported + START + script)
    command = PYTHON if by_import else MEASURED
    measured = run_in(folder, *command, "script.py", **({"ROASTCOFFEA": "runs"} if by_import else {}))
    assert (measured.returncode, printed(measured)) == (0, prints), measured.stderr
    (measurement,) = saved_in(folder)
    assert measurement.metrics["num_chunks"] == 16
    assert measurement.metrics.get("peak_workers") == (workers or measurement.metrics.get("peak_workers"))
    assert len(TOLD.findall(measured.stderr)) == 1
    assert ("All tables: " in measured.stderr) == (not by_import)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "words", "by_import"),
    [(signal.SIGTERM, -15, "SIGTERM", True), (signal.SIGINT, -2, "KeyboardInterrupt", False)],
)
def test_what_was_seen_is_saved_when_a_signal_ends_the_script(
    folder: Path, number: signal.Signals, status: int, words: str, by_import: bool
) -> None:
    calls = (
        "call(analyses.COUNT_EVENTS)\ntry:\n    call(analyses.StuckInSecond(60, '.'))\nfinally:\n    print('finally')\n"
    )
    (folder / "script.py").write_text(f"import roastcoffea.auto\n{START}\n{calls}")
    command = PYTHON if by_import else MEASURED
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "ROASTCOFFEA": "runs" if by_import else "",
    }
    with subprocess.Popen(
        [*command, "script.py"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert wait_until(lambda: len(list(folder.glob(f"{process.pid}-*"))) > 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, err
    assert ("finally" in out) == (number == signal.SIGINT)
    finished, ended = saved_in(folder)
    assert finished.outcome == "finished"
    assert ended.outcome == "failed"
    assert words in str(ended.error)
    assert ended.run.start < ended.run.stop
    (call,) = ended.run.calls
    assert (call.processor, call.outcome, call.chunks) == ("StuckInSecond", "failed", len(finished.chunks))
    assert ended.chunks["outcome"].iloc[0] == "ok"
    assert len(ended.chunks) < call.chunks
    assert ended.metrics["num_chunks"] > 0
    assert not ended.byte_ledger.certificate.complete
    assert err.count("All tables: ") == (0 if by_import else 2)


# in this process


def runner(executor: Any = None, **options: Any) -> Runner:
    return Runner(
        executor=executor or IterativeExecutor(status=False),
        schema=analyses.NanoAODSchema,
        chunksize=4000,
        metadata_cache={},
        **options,
    )


def test_coffea_is_as_it_was_afterwards(sample: Any, tmp_path: Path) -> None:
    original = Runner.__dict__["run"]
    with record(tmp_path) as recorder:
        assert Runner.__dict__["run"] is not original
        with MetricsCollector():
            runner()(sample, processor_instance=analyses.COUNT_EVENTS)
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
    assert Runner.__dict__["run"] is original
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    (path,) = recorder.saved
    assert roastcoffea.load(path).metrics["num_chunks"] == 4


@pytest.mark.slow
def test_the_logger_has_the_name_that_is_imported(
    sample: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(tmp_path) as recorder:
        logging.getLogger("roastcoffea.auto").addHandler(caplog.handler)  # which goes with the recording
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
    assert caplog.messages == [f"measured a Runner call: {recorder.saved[0]}"]
    assert logging.getLogger("roastcoffea.auto").handlers == []


def preprocessed_and_run(sample: Any, by_runner: Any = None) -> Any:
    """What a script gives that preprocesses by itself."""
    runner_itself = by_runner or runner()
    items = list(runner_itself.preprocess(sample))
    return runner_itself(items, processor_instance=analyses.COUNT_EVENTS)


@pytest.mark.slow
def test_preprocessing_that_is_called_by_itself_belongs_to_the_run(sample: Any, tmp_path: Path) -> None:
    originals = [Runner.__dict__[name] for name in ("run", "preprocess")]
    with MetricsCollector() as collector:
        output = preprocessed_and_run(sample)
    with record(tmp_path) as recorder:
        assert preprocessed_and_run(sample) == output
        assert preprocessed_and_run(sample) == output
    assert [Runner.__dict__[name] for name in ("run", "preprocess")] == originals
    expected = collector.measurement
    assert expected.byte_ledger["preprocessing"] > 0
    assert len(recorder.saved) == 2
    for path in recorder.saved:
        found = roastcoffea.load(path)
        assert found.byte_ledger == expected.byte_ledger
        assert len(found.preprocessing) == len(expected.preprocessing) == 4
        assert found.metrics["num_chunks"] == 4
        assert found.problems == []
        assert str(found.byte_ledger.certificate).endswith("outside its Runner calls is not recorded.")
        assert found.run.start <= found.preprocessing["start"].min()


def test_preprocessing_without_a_run_is_saved_as_it_ended(sample: Any, tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        list(runner().preprocess(sample))
        ended = time.time()
        time.sleep(0.3)
    (path,) = recorder.saved
    found = roastcoffea.load(path)
    assert (found.preprocessing["bytes_requested"] > 0).tolist() == [True] * 4
    assert found.run.stop <= ended + 0.05


@pytest.mark.slow
def test_a_run_long_after_preprocessing_is_measured_by_itself(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roastcoffea.recording.auto.LONGEST_PAUSE", 0.0)
    with record(tmp_path) as recorder:
        preprocessed_and_run(sample)
    first, second = map(roastcoffea.load, recorder.saved)
    assert (len(first.preprocessing), len(second.preprocessing)) == (4, 0)
    assert second.metrics["num_chunks"] == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Performed attempt")
def test_preprocessing_that_raises(sample: Any, tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        with pytest.raises(FileNotFoundError):
            list(runner().preprocess({"a": {"files": {"/nowhere/to/be/found.root": "Events"}}}))
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
    failed, good = map(roastcoffea.load, recorder.saved)
    assert (failed.outcome, good.outcome) == ("failed", "finished")


@pytest.mark.slow
def test_recording_that_begins_inside_of_a_collector_leaves_calls_to_it(sample: Any, tmp_path: Path) -> None:
    original = Runner.__dict__["run"]
    with MetricsCollector() as collector, record(tmp_path) as recorder:
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
    assert Runner.__dict__["run"] is original
    assert recorder.saved == []
    assert collector.metrics["num_chunks"] == 4


def test_the_name_of_a_recording_names_its_runs_and_their_folders(sample: Any, tmp_path: Path) -> None:
    with record(tmp_path, name="zmumu: tight") as recorder:
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
        list(runner().preprocess(sample))
    assert [path.name for path in recorder.saved] == ["zmumu-tight-001", "zmumu-tight-002"]
    assert {roastcoffea.load(path).run.name for path in recorder.saved} == {"zmumu: tight"}
    with pytest.raises(ValueError, match="visible character"):
        record(tmp_path, name=" ")


def test_the_inner_of_two_recordings_has_the_call(sample: Any, tmp_path: Path) -> None:
    with record(tmp_path / "outer") as outer, record(tmp_path / "inner") as inner:
        runner()(sample, processor_instance=analyses.COUNT_EVENTS)
    assert (len(outer.saved), len(inner.saved)) == (0, 1)


@pytest.mark.slow
def test_threads_that_call_at_the_same_time(sample: Any, tmp_path: Path) -> None:
    outputs = []

    def call(processor: Any) -> None:
        outputs.append(runner()(sample, processor_instance=processor))

    with record(tmp_path) as recorder:
        threads = [threading.Thread(target=call, args=(analyses.Sleeping(0.2),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outputs == [{"events": 16000}] * 3
    measurements = [roastcoffea.load(path) for path in recorder.saved]
    assert [measurement.metrics["num_chunks"] for measurement in measurements] == [4, 4, 4]
    assert len({measurement.run.calls[0].id for measurement in measurements}) == 3


class InTurns(Processor):
    """Says that its first chunk has begun, and waits for something in each."""

    begun: dict[str, threading.Event]
    go_on: dict[str, threading.Event]

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, events: Any) -> dict[str, int]:
        InTurns.begun[self.name].set()
        assert InTurns.go_on[self.name].wait(PATIENCE)
        return {"events": len(events)}


@pytest.mark.slow
@pytest.mark.parametrize(("with_dask", "first_to_end"), [(False, "qcd"), (True, "zprime")], ids=["here", "dask"])
def test_a_thread_that_calls_while_another_call_goes_on(
    sample: Any, tmp_path: Path, with_dask: bool, first_to_end: str
) -> None:
    InTurns.begun, InTurns.go_on = ({name: threading.Event() for name in sample} for _ in range(2))
    outputs: dict[str, Any] = {}

    def call(dataset: str) -> None:
        executor = DaskExecutor(client=client, status=False) if with_dask else None
        outputs[dataset] = runner(executor)({dataset: sample[dataset]}, processor_instance=InTurns(dataset))

    cluster = LocalCluster(n_workers=1, threads_per_worker=5, processes=False, dashboard_address=":0")
    with cluster, Client(cluster) as client, record(tmp_path) as recorder:
        threads = {dataset: threading.Thread(target=call, args=(dataset,)) for dataset in sample}
        for dataset, thread in threads.items():
            thread.start()
            assert InTurns.begun[dataset].wait(PATIENCE)
        for dataset in sorted(threads, key=first_to_end.__ne__):
            InTurns.go_on[dataset].set()
            threads[dataset].join(PATIENCE)
    assert outputs == {"qcd": {"events": 8000}, "zprime": {"events": 8000}}
    measurements = [roastcoffea.load(path) for path in recorder.saved]
    assert sorted(map(list, (measurement.chunks["dataset"] for measurement in measurements))) == [
        ["qcd", "qcd"],
        ["zprime", "zprime"],
    ]
    for measurement in measurements:
        assert len(measurement.run.calls) == 1
        assert [one for one in measurement.problems if "no fine metrics: Dask counted" not in one] == []


def break_opening(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    def broken(self: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr(MetricsCollector, "__enter__", broken)
    return "a Runner call is not measured: OSError: planted"


def break_saving(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    (folder / "runs").touch()
    return f"the measurement of a Runner call was lost: MeasurementError: nothing was saved in {folder / 'runs'}"


def break_leaving(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    def broken(self: Any, *error: Any) -> None:
        leave(self, *error)
        raise OSError("planted")

    leave = MetricsCollector.__exit__
    monkeypatch.setattr(MetricsCollector, "__exit__", broken)
    return "the measurement of a Runner call was lost: OSError: planted"


def error_of_raising(fileset: Any) -> BaseException:
    try:
        runner()(fileset, processor_instance=analyses.Raising(0))
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


@pytest.mark.slow
@pytest.mark.parametrize("breaking", [break_opening, break_saving, break_leaving])
def test_what_cannot_be_measured_runs_all_the_same(
    sample: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaking: Callable[[pytest.MonkeyPatch, Path], str],
) -> None:
    reason = breaking(monkeypatch, tmp_path)
    with record(tmp_path / "runs") as recorder:
        assert runner()(sample, processor_instance=analyses.COUNT_EVENTS) == {"events": 16000}
        error = error_of_raising(sample)
    plain = error_of_raising(sample)
    assert (type(error), str(error)) == (type(plain), str(plain))
    assert recorder.saved == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"roastcoffea: {reason}") for line in lines if line.startswith("roastcoffea")] == [True] * 2


@pytest.mark.slow
def test_calls_of_dask_tasks_are_not_recorded(client: Any, sample: Any, tmp_path: Path) -> None:
    done = run_in(
        tmp_path,
        *PYTHON,
        "-c",
        "import roastcoffea.auto, sys\nfrom distributed import Client\n"
        "from scripts_run import call_in_a_task\n"
        "with Client(processes=False, n_workers=1, dashboard_address=':0') as client:\n"
        f"    print(client.submit(call_in_a_task, {sample!r}).result())\n",
        ROASTCOFFEA="runs",
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "{'events': 16000}")
    assert saved_in(tmp_path) == []


@pytest.mark.slow
def test_preprocessing_on_dask_belongs_to_the_run(sample: Any, tmp_path: Path, client: Any) -> None:
    with record(tmp_path) as recorder:
        preprocessed_and_run(sample, runner(DaskExecutor(client=client, status=False)))
    (path,) = recorder.saved
    found = roastcoffea.load(path)
    assert found.byte_ledger["preprocessing"] > 0
    assert found.byte_ledger.certificate.complete
    assert found.time_ledger["preprocessing"] > 0
    assert found.time_ledger.certificate.complete
    assert found.problems == []


@pytest.mark.slow
@needs_own_cluster
# coffea's own cluster always asks for this port; where it is taken, Tornado does not close the socket that it tried
@pytest.mark.filterwarnings("ignore:Port 8787", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_coffea_makes_is_measured(sample: Any, tmp_path: Path) -> None:
    executor = DaskExecutor(status=False)
    plain = runner(executor, savemetrics=True)(sample, processor_instance=analyses.Jets())[0]
    with record(tmp_path) as recorder:
        output, report = runner(executor, savemetrics=True)(sample, processor_instance=analyses.Jets())
        with pytest.raises(Exception, match="planted"):
            runner(executor)(sample, processor_instance=analyses.Raising(0))
        chunks = list(runner(executor).preprocess(sample))
    gc.collect()  # such a socket is not to end in another test
    assert output == plain
    assert executor.client is None
    whole, failed, preprocessing = map(roastcoffea.load, recorder.saved)
    assert whole.run.backend == "dask"
    assert whole.problems == []
    assert whole.metrics["total_events"] == report["entries"]
    assert whole.chunks["bytes_requested"].sum() == report["bytesread"]
    for ledger in (whole.byte_ledger, whole.time_ledger):
        assert ledger.certificate.complete, ledger.certificate.reasons
        assert ledger.residual == pytest.approx(0, abs=1e-4)
    assert failed.outcome == "failed"
    assert failed.chunks["error"].str.contains("planted").any()
    assert len(preprocessing.preprocessing) == len({chunk.filename for chunk in chunks})


@pytest.mark.parametrize("folder_set", ["", "runs"])
def test_the_import_loads_no_heavy_library(folder_set: str, tmp_path: Path) -> None:
    code = "import roastcoffea.auto, sys; print(*sys.modules)"
    done = run_in(tmp_path, *PYTHON, "-c", code, ROASTCOFFEA=folder_set)
    assert {"coffea", "numpy", "distributed", "pyarrow"}.isdisjoint(done.stdout.split())
    assert done.stderr == ""
