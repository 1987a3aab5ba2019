"""Folders of 0.1.2 load, with what their numbers mean and nothing more."""

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError
from roastcoffea.records.run import Run
from roastcoffea.storage.store import list_runs, load_run, save_run

ENTERED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc).timestamp()
ELAPSED = 10.5
ZONE = 3.5 * 3600
"""Local time of the hand-made folder, ahead of UTC."""


def local(seconds: float, zone: float = ZONE) -> str:
    """Naive local time, so long after the collector was entered."""
    return datetime.fromtimestamp(ENTERED + zone + seconds, timezone.utc).replace(tzinfo=None).isoformat()


def chunk(start: float, stop: float, **changes: Any) -> dict[str, Any]:
    return {
        "t_start": ENTERED + start,
        "t_end": ENTERED + stop,
        "duration": stop - start,
        "mem_before_mb": 100.5,
        "mem_after_mb": 101.0,
        "mem_delta_mb": 0.5,
        "bytes_read": 1000,
        "num_events": 50,
        "dataset": "tt",
        "file": "a.root",
        "uuid": None,
        "entry_start": 0,
        "entry_stop": 50,
        "accessed_branches": ["Jet_pt"],
        "timing": {"jets": 0.5},
        "memory": {},
        "bytes": {},
        **changes,
    }


def series(zone: float = ZONE, seconds: tuple[float, ...] = (0.0, 10.0), heartbeats: bool = True) -> dict[str, Any]:
    def of(value: Any) -> dict[str, Any]:
        return {"tcp://1": [[local(second, zone), value] for second in seconds]}

    seen = {"tcp://1": [[local(second, zone), ENTERED + second - 0.05] for second in seconds]}
    return {
        "worker_counts": {local(second, zone): 1 for second in seconds},
        "worker_memory": of(0),
        "worker_memory_limit": of(2**30),
        "worker_active_tasks": of(2),
        "worker_cores": of(4),
        "worker_nbytes": of(0),
        "worker_occupancy": of(0.5),
        "worker_executing": of(1),
        "worker_cpu": of(99.5),
        **({"worker_last_seen": seen} if heartbeats else {}),
    }


def metrics() -> dict[str, Any]:
    return {
        "elapsed_time_seconds": ELAPSED,
        "core_efficiency": 0.5,
        "peak_memory_bytes": None,
        "chunk_info": {"('a.root', 0, 50)": [ENTERED + 1, ENTERED + 3, 1000]},
        "tracking_data": series(),
        "raw_chunk_metrics": [chunk(1, 3), chunk(4, 10.25, error="no jets")],
        "raw_span_metrics": {
            "('execute', 'P', 'thread-cpu', 'seconds')": 1.5,
            "('gather-dep', 'network', 'bytes')": 2,
        },
    }


def written(folder: Path, saved_after: float = 12.0, **changes: Any) -> Path:
    """A folder as 0.1.2 wrote it."""
    folder.mkdir()
    metadata = {"timestamp": local(saved_after), "elapsed_time_seconds": ELAPSED, "format": legacy.FORMAT}
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
    (folder / "start_end_time.txt").write_text(f"100.25,{100.25 + ELAPSED}")
    (folder / "metrics.json").write_text(json.dumps(metrics() | changes))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(written(tmp_path / "old"))


def test_metrics_are_reported_ones(run: Run) -> None:
    reported = run.reported or {}
    assert run.reported_by == "roastcoffea 0.1.2"
    assert (reported["core_efficiency"], reported["peak_memory_bytes"]) == (0.5, None)
    assert (reported["t0"], reported["t1"]) == (100.25, 110.75)
    assert reported["raw_chunk_metrics"][0]["timing"] == {"jets": 0.5}
    assert reported.keys() & {"chunk_info", "raw_span_metrics"} == set()


def test_tracking_data_has_datetimes_again(run: Run) -> None:
    data = (run.reported or {})["tracking_data"]
    entered = datetime(2026, 3, 1, 15, 30)
    assert data["worker_counts"] == {entered: 1, entered + timedelta(seconds=10): 1}
    assert data["worker_cores"] == {"tcp://1": [(entered, 4), (entered + timedelta(seconds=10), 4)]}


def test_chunks(run: Run) -> None:
    assert run.chunks is not None
    first, second = run.chunks.to_pylist()
    assert {name: value for name, value in first.items() if value is not None} == {
        "dataset": "tt",
        "file": "a.root",
        "entry_start": 0,
        "entry_stop": 50,
        "events": 50,
        "outcome": "ok",
        "start": ENTERED + 1,
        "stop": ENTERED + 3,
        "wall_seconds": 2.0,
        "memory_before": 105_381_888,
        "memory_after": 105_906_176,
    }
    assert (second["outcome"], second["error"], second["events"]) == ("error", "no jets", None)


def test_samples(run: Run) -> None:
    assert run.samples is not None
    first, second = run.samples.to_pylist()
    assert {name: value for name, value in first.items() if value is not None} == {
        "worker": "tcp://1",
        "time": ENTERED,
        "last_seen": ENTERED - 0.05,
        "cpu_percent": 99.5,
        "memory_limit": 2**30,
        "processing": 2,
        "executing": 1,
        "nbytes": 0,
        "occupancy": 0.5,
    }
    assert second["time"] == ENTERED + 10


def test_span_metrics_have_tuples_again(run: Run) -> None:
    assert run.span_metrics == {("execute", "P", "thread-cpu", "seconds"): 1.5, ("gather-dep", "network", "bytes"): 2}


def test_identity(run: Run, tmp_path: Path) -> None:
    assert (run.name, run.outcome, run.error, run.backend) == ("old", "finished", None, "dask")
    assert run.environment.versions == {"roastcoffea": "0.1.2"}
    moved = (tmp_path / "old").rename(tmp_path / "moved")
    assert load_run(moved).id == run.id
    assert load_run(written(tmp_path / "other", core_efficiency=0.25)).id != run.id


def test_what_is_absent_has_a_reason(run: Run) -> None:
    none = {"calls", "coffea_report", "lifetimes", "sampling_interval", "scheduler_clock_offset", "tasks"}
    assert none <= run.absent.keys()
    for table, rows in {"chunks": run.chunks, "samples": run.samples}.items():
        assert rows is not None
        empty = {f"{table}.{column}" for column in rows.column_names if rows[column].null_count == len(rows)}
        assert empty <= run.absent.keys()
        assert {name for name in run.absent if name.startswith(table + ".")} == empty
    assert "samples.memory" in run.absent


def test_raw_data_that_were_not_taken_are_absent(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"raw_chunk_metrics": [], "tracking_data": None, "raw_span_metrics": None}
    run = load_run(written(tmp_path / "old", **nothing))
    assert run.chunks is run.samples is run.span_metrics is None
    assert run.absent.keys() >= {"chunks", "samples", "span_metrics"}
    assert run.stop == pytest.approx(ENTERED + ZONE + 12)
    assert run.stop - run.start == ELAPSED
    assert run.problems[-1] == legacy.UNKNOWN_ZONE


HOUR = 3600.0


@pytest.mark.parametrize("zone", [-9.5 * HOUR, -HOUR, 0.0, 0.25 * HOUR, 5.75 * HOUR, 14 * HOUR])
@pytest.mark.parametrize("heartbeats", [True, False])
def test_the_zone_is_found(zone: float, heartbeats: bool, tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "old", tracking_data=series(zone, heartbeats=heartbeats)))
    assert run.samples is not None
    assert run.samples["time"].to_pylist() == [ENTERED, ENTERED + 10]
    assert run.problems == legacy.CAUTIONS


@pytest.mark.parametrize("saved_after", [10.5, 12.0, 60.0, 5 * HOUR])
def test_the_run_lasts_over_all_that_was_seen(saved_after: float, tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "old", saved_after))
    assert run.start == pytest.approx(ENTERED, abs=1e-6)  # the first sample is taken on entering
    assert run.stop == pytest.approx(ENTERED + ELAPSED, abs=1e-6)


@pytest.mark.parametrize(("saved_after", "start"), [(10.6, 0.1), (300.0, 1.0)])
def test_chunks_alone_bound_the_run(saved_after: float, start: float, tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "old", saved_after, tracking_data=None))
    assert run.start == pytest.approx(ENTERED + start, abs=1e-5)
    assert run.problems == legacy.CAUTIONS


def test_numbers_that_are_none_are_not_taken(tmp_path: Path) -> None:
    folder = written(tmp_path / "old", core_efficiency=float("nan"), speedup_factor=float("inf"))
    reported = load_run(folder).reported or {}
    assert reported["core_efficiency"] is reported["speedup_factor"] is None


def test_it_can_be_saved_as_one_of_ours(run: Run, tmp_path: Path) -> None:
    assert load_run(save_run(run, tmp_path)) == run
    replaced = save_run(run, tmp_path, "old", overwrite=True)
    assert load_run(replaced) == run


def test_it_is_listed(run: Run, tmp_path: Path) -> None:
    broken = written(tmp_path / "broken")
    (broken / "start_end_time.txt").unlink()
    first, second = list_runs(tmp_path)
    assert (first.name, first.start, first.outcome, first.elapsed) == ("old", run.start, "finished", ELAPSED)
    assert "start_end_time.txt is missing" in str(second.error)


@pytest.mark.parametrize("name", ["metadata.json", "metrics.json", "start_end_time.txt"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2, 3]", b"\xff", b"null"])
def test_a_damaged_file_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    folder = written(tmp_path / "old")
    (folder / name).write_bytes(content)
    with pytest.raises(MeasurementError, match=rf"old/{name} cannot be read .*; restore"):
        load_run(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"raw_span_metrics": {"__import__('os').abort()": 1}},
        {"raw_span_metrics": {"'text'": 1}},
        {"raw_span_metrics": {"(1": 1}},
        {"raw_chunk_metrics": [{"t_start": "late"}]},
        {"raw_chunk_metrics": [1]},
        {"tracking_data": {"worker_memory": {"a": [["noon", 1]]}}},
        {"tracking_data": {"worker_memory": [1]}},
    ],
)
def test_damaged_raw_data_are_an_error(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"old/metrics.json cannot be read"):
        load_run(written(tmp_path / "old", **changes))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "old")
    (folder / "metadata.json").write_text('{"format": "other"}')
    with pytest.raises(MeasurementError, match=r"metadata.json was not written by roastcoffea 0.1.2"):
        load_run(folder)
    with pytest.raises(MeasurementError, match="another name"):
        save_run(load_run(written(tmp_path / "good")), tmp_path, "old", overwrite=True)


@pytest.fixture
def genuine() -> Run:
    data = os.environ.get("ROASTCOFFEA_TEST_DATA")
    if not data:
        pytest.skip("ROASTCOFFEA_TEST_DATA is not set")
    return load_run(Path(data) / "measurement-0.1.2")


def test_a_genuine_one(genuine: Run, tmp_path: Path) -> None:
    reported = genuine.reported or {}
    assert genuine.chunks is not None
    assert genuine.samples is not None
    assert genuine.span_metrics is not None
    chunks, samples = genuine.chunks, genuine.samples
    assert (len(chunks), sum(chunks["events"].to_pylist())) == (40, reported["total_events"])
    assert sum(chunks["wall_seconds"].to_pylist()) / 40 == pytest.approx(reported["chunk_duration_mean"])
    assert max(samples["memory"].to_pylist()) == reported["peak_memory_bytes"]
    assert genuine.span_metrics[("execute", "TrackedProcessor", "thread-cpu", "seconds")] == pytest.approx(
        reported["processor_cpu_time_seconds"]
    )
    assert genuine.stop - genuine.start == pytest.approx(reported["elapsed_time_seconds"])
    seen = [*chunks["start"].to_pylist(), *chunks["stop"].to_pylist(), *samples["time"].to_pylist()]
    assert genuine.start <= min(seen) < max(seen) <= genuine.stop
    assert load_run(save_run(genuine, tmp_path)) == genuine
