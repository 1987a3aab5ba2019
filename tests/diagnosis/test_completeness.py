"""What the output of a run lacks, against coffea's own report, and the lines that run the rest."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from analyses import COUNT_EVENTS, Failing
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from distributed import Client
from handmade import handmade_run
from releases import NO_RETRIES
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.diagnosis.completeness import Incompleteness, commonest, is_outside
from roastcoffea.measurement import Measurement

pytestmark = pytest.mark.filterwarnings("ignore:Skipping bad file:UserWarning")

EVENTS = 2000
"""Events of a file of two baskets."""


def runner_with(skip: Any, client: Client | None = None, chunks: int = 1) -> Runner:
    kind: Any = IterativeExecutor(status=False, **NO_RETRIES)
    if client is not None:
        kind = DaskExecutor(client=client, status=False, retries=0)
    size = EVENTS // chunks
    return Runner(
        executor=kind, schema=BaseSchema, chunksize=size, skipbadfiles=skip, savemetrics=True, metadata_cache={}
    )


def files(*paths: Path) -> dict[str, Any]:
    return {"a": {"files": {str(path): "Events" for path in paths}}}


def found_in(measurement: Measurement) -> Incompleteness:
    found: Incompleteness = measurement.metrics.evaluator.value("incompleteness")
    return found


def lines_run(lines: str, measurement: Measurement, fileset: Any, runner: Runner) -> list[Any]:
    """What the lines give that are to be copied, as they are."""
    runner.savemetrics = False  # as by default: the lines take the output alone
    given = {"measurement": measurement, "fileset": fileset, "runner": runner, "processor": COUNT_EVENTS}
    outputs = []
    for line in lines.split("; "):
        names: dict[str, Any] = {}
        exec(line, dict(given), names)
        outputs.append(names["rest"])
    return outputs


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "good.root", baskets=2)


def test_a_good_run_lacks_nothing(good: Path) -> None:
    with MetricsCollector() as collector:
        runner_with(True)(files(good), processor_instance=COUNT_EVENTS)
    found = found_in(collector.measurement)
    assert found.complete
    assert (found.files, found.chunks, found.events, found.remedy, found.names) == ([], [], 0, None, [])


@pytest.mark.parametrize("on_dask", [False, True])
def test_a_missing_file_that_was_skipped(good: Path, on_dask: bool, client: Client) -> None:
    missing = good.with_name("missing.root")
    cluster = client if on_dask else None
    fileset = files(good, missing)
    with MetricsCollector(cluster) as collector:
        _, report = runner_with(True, cluster)(fileset, processor_instance=COUNT_EVENTS)
    found = found_in(collector.measurement)
    assert not found.complete
    assert [row["file"] for row in found.files] == [str(missing)]
    assert (found.events, found.chunks, found.asked_events) == (0, [], report["entries"])
    # the file would have been as long as the other one
    assert (found.events_of_files, found.share) == (EVENTS, 0.5)
    assert found.names == [str(missing)]
    assert "1 file that could not be opened is missing from the output" in found.what
    assert found.what.count(missing.name) == 1  # the error names it as well
    assert "FileNotFoundError" in found.what
    of_file = f"About {EVENTS:,} events (estimated from the other files)"
    assert found.how_much.startswith(f"{of_file} are missing, 50 % of all")
    write_tree(missing, baskets=2)
    assert found.remedy is not None
    assert lines_run(found.remedy, collector.measurement, fileset, runner_with(False)) == [{"events": EVENTS}]


def test_skipped_chunks_of_a_file_of_which_others_came(good: Path, tmp_path: Path) -> None:
    bad, missing = write_tree(tmp_path / "bad.root", baskets=2), tmp_path / "missing.root"
    fileset = files(good, bad, missing)
    processor = Failing(OSError("planted in it"), "bad", EVENTS // 2)
    with MetricsCollector() as collector:
        output, report = runner_with(True, chunks=2)(fileset, processor_instance=processor)
    found = found_in(collector.measurement)
    assert output == {"events": report["entries"]} == {"events": 3 * EVENTS // 2}
    assert (len(found.chunks), found.events, found.skipped, found.uncertain) == (1, EVENTS // 2, 1, 0)
    assert found.asked_events - found.events == report["entries"]
    assert found.failed_for_good >= 2
    assert "1 chunk" in found.what
    assert found.names == [str(missing), str(bad)]
    write_tree(missing, baskets=2)
    assert found.remedy is not None
    rest = lines_run(found.remedy, collector.measurement, fileset, runner_with(False))
    # with what came there is each event once
    assert sum(each["events"] for each in rest) + output["events"] == 3 * EVENTS


def test_chunks_that_left_no_record_are_not_said_to_be_missing(good: Path) -> None:
    for skip in (True, False):
        with MetricsCollector() as collector:
            runner_with(skip, chunks=2)(files(good), processor_instance=COUNT_EVENTS)
        run = collector.measurement.run
        assert run.chunks is not None
        lost = Measurement(dataclasses.replace(run, chunks=run.chunks.slice(1)))
        assert len(lost.missing) == 1
        # coffea's report has its events, or it would have raised
        assert found_in(lost).complete
        (call,) = run.calls
        silent = dataclasses.replace(lost.run, calls=(dataclasses.replace(call, report=None),))
        found = found_in(Measurement(silent))
        assert found.uncertain == (1 if skip else 0)
        if skip:
            assert "which may be in the output" in found.what


@pytest.mark.parametrize("on_dask", [False, True])
def test_an_error_that_ends_the_run(good: Path, tmp_path: Path, on_dask: bool, client: Client) -> None:
    bad, cluster = write_tree(tmp_path / "bad.root", baskets=2), client if on_dask else None
    fileset = files(good, bad)
    with pytest.raises(Exception, match="planted"), MetricsCollector(cluster) as collector:
        runner_with(False, cluster)(fileset, processor_instance=Failing(KeyError("planted"), "bad"))
    found = found_in(collector.measurement)
    # an output that was not given has nothing, whatever was computed
    assert (len(found.chunks), found.events, found.share) == (2, 2 * EVENTS, 1.0)
    assert found.what.startswith("The run failed (KeyError: 'planted'): 2 chunks are missing from the output")
    assert found.failed_for_good == 1
    assert found.advice.startswith("Fix this first, or it will fail again: KeyError: 'planted'.")
    assert found.line is None
    assert found.remedy is not None
    assert lines_run(found.remedy, collector.measurement, fileset, runner_with(False)) == [{"events": 2 * EVENTS}]


def test_an_interrupted_run(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_tree(tmp_path / "late.root", baskets=2)
    fileset = files(good, bad)
    with pytest.raises(KeyboardInterrupt), MetricsCollector() as collector:
        runner_with(False, chunks=2)(fileset, processor_instance=Failing(KeyboardInterrupt(), "late", EVENTS // 2))
    measurement = collector.measurement
    assert measurement.error == "KeyboardInterrupt"
    found = found_in(measurement)
    assert (len(found.chunks), found.run_error) == (4, "KeyboardInterrupt")
    assert found.what.startswith("The run was interrupted: 4 chunks are missing from the output")
    assert str(found.line).startswith("rest = runner(measurement.missing_fileset(fileset)")
    assert measurement.metrics["num_failed_attempts"] == len(measurement.failed)
    collector.print_summary()
    shown = capsys.readouterr().out
    assert "KeyboardInterrupt: " not in shown
    # a part of the chunks does not tell how long files are; what was asked for does
    assert set(re.findall(r"chunksize=(\d+)", shown)) <= {str(EVENTS)}


def test_a_missing_file_that_ends_the_run_leaves_nothing_of_the_others(good: Path) -> None:
    fileset = files(good, good.with_name("missing.root"))
    with pytest.raises(OSError, match="missing"), MetricsCollector() as collector:
        runner_with(False)(fileset, processor_instance=COUNT_EVENTS)
    found = found_in(collector.measurement)
    assert {row["file"] for row in found.files} == set(fileset["a"]["files"])
    assert collector.measurement.missing_fileset(fileset) == fileset
    assert "1 file that could not be opened and 1 file that was not reached are missing" in found.what
    assert found.share is None
    assert "The number of events in 2 files is unknown" in found.how_much


def test_what_raises_after_the_last_call_leaves_its_output_whole(good: Path) -> None:
    with pytest.raises(ZeroDivisionError), MetricsCollector() as collector:
        runner_with(False)(files(good), processor_instance=COUNT_EVENTS)
        raise ZeroDivisionError("mine")
    assert found_in(collector.measurement).complete


def test_a_corrupt_file_that_was_skipped(good: Path, tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt.root"
    corrupt.write_bytes(good.read_bytes()[:200])
    with MetricsCollector() as collector:
        _, report = runner_with((Exception,))(files(good, corrupt), processor_instance=COUNT_EVENTS)
    found = found_in(collector.measurement)
    assert report["entries"] == EVENTS == found.asked_events
    assert [row["file"] for row in found.files] == [str(corrupt)]
    assert found.files[0]["error"] is not None
    assert found.error is not None


def test_the_run_by_hand() -> None:
    found = found_in(Measurement(handmade_run()))
    assert (len(found.chunks), found.events, found.skipped) == (1, 10, 1)
    assert [row["file"] for row in found.files] == ["/data/never.root"]
    assert found.remedy is not None
    assert "missing_fileset(fileset)" in found.remedy


def test_the_commonest_error_is_one_line_that_is_not_too_long() -> None:
    assert commonest([]) is commonest([None, ""]) is None
    found = commonest(["A: 1", "RuntimeError: x; caused by OSError: y\nmore", "OSError: y", None])
    assert found is not None
    assert (found.text, found.times, str(found)) == ("OSError: y", 2, "OSError: y (2 times)")
    (long,) = (commonest(["E: " + "x" * 500]),)
    assert long is not None
    assert len(long.text) == 120
    assert long.text.endswith("...")


@pytest.mark.parametrize(
    ("error", "outside"),
    [
        (None, True),
        ("KeyboardInterrupt", True),
        ("KilledWorker: task died 4 times", True),
        ("TimeoutError", True),
        ("Exception: Failed to open file; caused by ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("OSError: File did not open properly: [ERROR] Operation expired", True),
        ("OSError: XRootD error: [3011] No servers are available: Network is unreachable", True),
        ("ValueError: planted", False),
        ("ValueError: preset tight not found", False),
        ("KeyError: 'timeout'", False),
        ("AttributeError: 'Events' object has no attribute 'connection'", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/network/model.json'", False),
        ("OSError: cannot read /store/user/payload_2018.json", False),
        (
            "Exception: Failed to open file; caused by FileNotFoundError: [Errno 2] No such file: 'a'",
            False,
        ),
        ("OSError: XRootD error: [3011] no such file or block", False),
        ("PermissionError: [Errno 13] Permission denied: 'a.root'", False),
        *(
            (f"ClientResponseError: {status}, message='{text}', url='https://cache.example.org/a.root'", outside)
            for status, text, outside in (
                (429, "Too Many Requests", True),
                (502, "Bad Gateway", True),
                (503, "Service Unavailable", True),
                (504, "Gateway Timeout", True),
                (401, "Unauthorized", False),
                (404, "Not Found", False),
            )
        ),
        ("HTTPError: HTTP Error 503: Service Unavailable", True),
        ("RemoteDisconnected: Remote end closed connection without response", True),
        ("ServerDisconnectedError: Server disconnected", True),
        ("ClientPayloadError: Response payload is not completed", True),
        ("ClientConnectorError: Cannot connect to host cache.example.org:443", True),
        ("EndpointConnectionError: Could not connect to the endpoint URL", True),
        ("gaierror: [Errno -3] Temporary failure in name resolution", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("CommClosedError: in <TCP>: Stream is closed", True),
        ("CancelledError: process-1", True),
        ("FSTimeoutError", True),
        ("URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", True),
        ("ConnectError: [Errno 111] Connection refused", True),
        ("MaxRetryError: HTTPSConnectionPool: Max retries exceeded with url (Caused by Connection refused)", True),
        ("ProtocolError: Connection aborted.", True),
        ("BrokenProcessPool: A process in the process pool was terminated abruptly", True),
        ("TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated.", True),
        ("OSError: [FATAL] Socket timeout", True),
        ("OSError: [FATAL] Auth failed: VOMS proxy has expired", False),
        ("OSError: token expired", False),
        ("RuntimeError: could not connect jets to leptons", False),
        ("RuntimeError: payload has no jets", False),
        ("RuntimeError: counter reset without events", False),
        ("CorrectionError: network output has NaN", False),
        ("MyError: selection cancelled by the veto", False),
        ("DeserializationError: expected 4 bytes while reading payload", False),
        ("error: Error -3 while decompressing data: incorrect header check", False),
    ],
)
def test_what_comes_again_is_to_be_fixed_first(error: str | None, outside: bool) -> None:
    assert is_outside(error) is outside
