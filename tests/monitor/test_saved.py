"""What a monitor recorded, saved and loaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask
import dask.bag
import pytest
from dask.utils import key_split
from distributed import Client

from roastcoffea import MeasurementError, TaskMonitor, load
from roastcoffea.cli import main


@pytest.fixture(scope="module")
def monitor(shared_client: Client) -> TaskMonitor:
    """Two periods, with keys that are tuples, a task that fails, and the workers' views."""
    monitor = TaskMonitor(shared_client, interval=0.02, worker_view=True, run_spec=True)
    for _ in range(2):
        with monitor:
            numbers = dask.bag.from_sequence(range(20), npartitions=2).map(abs)
            assert shared_client.compute(numbers.sum()).result() == 190
            assert shared_client.submit(int, "x").exception() is not None
    return monitor


def test_what_is_loaded_is_what_was_recorded(monitor: TaskMonitor, tmp_path: Path) -> None:
    path = monitor.save(tmp_path, "tasks")
    assert path == tmp_path / "tasks"
    loaded = TaskMonitor.load(path)
    assert any(isinstance(task["key"], tuple) for task in loaded.get_all_tasks())
    assert loaded.get_all_tasks() == monitor.get_all_tasks()
    assert loaded.worker_tasks == monitor.worker_tasks
    assert loaded.attempts.equals(monitor.attempts)
    assert loaded.to_dataframe().equals(monitor.to_dataframe())
    assert [dict(one) for one in loaded.snapshots] == [dict(one) for one in monitor.snapshots]
    assert (loaded.interval, loaded.problems) == (monitor.interval, monitor.problems)
    assert str(loaded) == str(monitor)


def test_what_an_earlier_version_saved_is_loaded() -> None:
    """Two periods saved by 1.0.0: a bag of two parts is summed, and a task fails."""
    loaded = TaskMonitor.load(Path(__file__).parents[1] / "data" / "monitor")
    tasks = {key_split(task["key"]): task for task in loaded.get_all_tasks()}
    assert {prefix: (task["state"], task["type"]) for prefix, task in tasks.items()} == {
        **dict.fromkeys(("finalize-hlgfinalizecompute", "sum-aggregate", "sum-part", "abs"), ("memory", "int")),
        "int": ("erred", None),
    }
    assert tasks["abs"]["key"] == ("abs-from_sequence-sum-part-33b9658e486b828f4fbf351ddface602", 1)
    assert [snapshot.num_tasks for snapshot in loaded.snapshots] == [6, 1, 6, 6, 6, 6]
    assert loaded.snapshots[0].states == {"released": 4, "processing": 1, "memory": 1}
    assert (len(loaded.worker_tasks), len(loaded.attempts), loaded.problems) == (16, 14, [])


def test_a_name_is_taken_once(monitor: TaskMonitor, tmp_path: Path) -> None:
    path = monitor.save(tmp_path)
    assert path.name.startswith("tasks-2")
    with pytest.raises(MeasurementError, match=r"exists; choose another name, or overwrite=True"):
        monitor.save(tmp_path, path.name)
    assert monitor.save(tmp_path, path.name, overwrite=True) == path
    (path / "notes.txt").write_text("mine")
    with pytest.raises(MeasurementError, match="contains other files"):
        monitor.save(tmp_path, path.name, overwrite=True)


def test_there_must_be_something_to_save(client: Client, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="has recorded nothing"):
        TaskMonitor(client).save(tmp_path)


def test_commands_for_measurements_name_what_loads_it(monitor: TaskMonitor, tmp_path: Path, capsys: Any) -> None:
    path = monitor.save(tmp_path, "tasks")
    for command in ("show", "report", "list"):
        assert main([command, str(path)]) == 1
        captured = capsys.readouterr()
        assert f"{path} was saved by a TaskMonitor" in captured.out + captured.err
        assert f"TaskMonitor.load('{path}')" in captured.out + captured.err
    assert main(["list", str(tmp_path)]) == 1
    assert f"{tmp_path} contains no measurement" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"TaskMonitor\.load"):
        load(path)


def test_what_cannot_be_read_is_named(monitor: TaskMonitor, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"not a saved TaskMonitor: it has no monitor\.json"):
        TaskMonitor.load(tmp_path)
    path = monitor.save(tmp_path, "damaged")
    document = json.loads((path / "monitor.json").read_text())
    (path / "monitor.json").write_text(json.dumps(document | {"schema": 99}))
    with pytest.raises(MeasurementError, match="roastcoffea-monitor 99"):
        TaskMonitor.load(path)
    (path / "monitor.json").write_text(json.dumps(document))
    (path / "states.parquet").write_bytes(b"PAR1")
    with pytest.raises(MeasurementError, match=r"states\.parquet cannot be read"):
        TaskMonitor.load(path)
