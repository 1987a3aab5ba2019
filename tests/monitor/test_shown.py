"""How a monitor shows its tasks."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import wait_until
from distributed import Client, Event

from roastcoffea import TaskMonitor, plot_task_stream
from roastcoffea.log.kinds import STATES
from roastcoffea.monitor.history import History, named
from roastcoffea.monitor.shown import states_over_time


def wait_for(event: str, number: int) -> int:
    Event(event).wait()
    return number


def fail_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).touch()
        raise OSError("once")
    return 1


def wait_for_file(marker: str, number: int) -> int:
    while not Path(marker).exists():
        time.sleep(0.01)
    return number


def fail_and_wait(marker: str) -> int:
    return fail_once(marker) and wait_for_file(f"{marker}-go", 1)


@pytest.fixture(scope="module")
def monitor(shared_client: Client) -> TaskMonitor:
    with TaskMonitor(shared_client) as monitor:
        shared_client.gather(shared_client.map(abs, range(10), pure=False))
        assert shared_client.submit(int, "x", pure=False).exception() is not None
    return monitor


def test_the_table_has_a_row_for_each_prefix(monitor: TaskMonitor) -> None:
    lines = str(monitor).splitlines()
    rows = {line.split()[0]: line.split()[1:5] for line in lines if re.match(r"  (abs|int) ", line)}
    assert rows == {"abs": ["other", "10", "10", "0"], "int": ["other", "1", "0", "1"]}
    assert max(map(len, lines)) <= 80
    html = monitor._repr_html_()
    assert "abs" in html
    assert "<script" not in html
    assert repr(monitor) == "<TaskMonitor: stopped>"


def row_of(monitor: TaskMonitor, prefix: str) -> dict[str, str]:
    """The row of a prefix in the printed table."""
    lines = [line.split() for line in str(monitor).splitlines()]
    (heads,) = [words for words in lines if words[:1] == ["prefix"]]
    (row,) = [words for words in lines if words[:1] == [prefix]]
    return dict(zip(heads, row, strict=False))


@pytest.mark.slow
def test_what_became_of_each_task_adds_up(client: Client, tmp_path: Path) -> None:
    with TaskMonitor(client) as monitor:
        waiting = client.map(wait_for_file, [str(tmp_path / "go")] * 10, range(10), pure=False)
        assert wait_until(lambda: monitor.snapshot().states["processing"] >= 2)
        queued = {task["key"] for task in monitor.snapshot().tasks if task["state"] == "queued"}
        assert queued
        given_up = [future for future in waiting if future.key in queued][:1]
        client.cancel(given_up)
        assert wait_until(lambda: monitor.snapshot().num_tasks == 9)
        failed = client.submit(int, "x", retries=1, pure=False)
        done = client.submit(fail_once, str(tmp_path / "marker"), retries=1, pure=False)
    fates = row_of(monitor, "wait_for_file")
    counts = {name: int(fates[name]) for name in ("tasks", "finished", "failed", "unfinished", "cancelled")}
    assert counts == {"tasks": 10, "finished": 0, "failed": 0, "unfinished": 9, "cancelled": 1}
    tasks = {task["key"]: task for task in monitor.get_all_tasks()}
    assert (tasks[given_up[0].key]["state"], tasks[given_up[0].key]["outcome"]) == ("queued", "cancelled")
    assert {tasks[future.key]["attempts"] for future in waiting} == {0}
    with TaskMonitor(client) as monitor:
        (tmp_path / "go").touch()
        assert failed.exception() is not None
        assert done.result() == 1
        client.gather([future for future in waiting if future not in given_up])
    assert [row_of(monitor, "wait_for_file")[name] for name in ("tasks", "finished", "failed")] == ["9", "9", "0"]
    # two attempts each; the one that failed in the end is one task
    assert [row_of(monitor, "int")[name] for name in ("tasks", "finished", "failed")] == ["1", "0", "1"]
    assert [row_of(monitor, "fail_once")[name] for name in ("tasks", "finished", "failed")] == ["1", "1", "0"]
    with TaskMonitor(client) as later:
        pass
    assert [row_of(later, "int")[name] for name in ("tasks", "finished", "failed")] == ["1", "0", "1"]
    with TaskMonitor(client) as monitor:
        again = client.submit(fail_and_wait, str(tmp_path / "again"), retries=5, pure=False)
        assert wait_until((tmp_path / "again").exists)
        assert wait_until(lambda: len(monitor.attempts) >= 1)
    assert [row_of(monitor, "fail_and_wait")[name] for name in ("tasks", "failed", "unfinished")] == ["1", "0", "1"]
    (tmp_path / "again-go").touch()
    assert again.result() == 1


def test_a_monitor_that_saw_nothing_says_so(client: Client) -> None:
    monitor = TaskMonitor(client)
    assert "No task was recorded." in str(monitor)
    with pytest.raises(ValueError, match="no task was recorded"):
        monitor.plot()
    with pytest.raises(ValueError, match="has recorded nothing"):
        plot_task_stream(monitor)


@pytest.mark.slow
def test_live_rows(client: Client, monkeypatch: Any) -> None:
    """Tasks by state and prefix, as the scheduler has them."""
    from roastcoffea.report import live

    shown: list[str] = []

    class Display:
        def show(self, text: str) -> None:
            shown.append(text)

        end = show

    monkeypatch.setattr(live, "display_for", lambda stream: Display())
    monkeypatch.setattr(live, "INTERVAL", 0.02)
    with TaskMonitor(client, live=True) as monitor:
        futures = client.map(wait_for, ["roastcoffea-live"] * 5, range(5), pure=False)

        def told() -> bool:
            rows = [line.split() for line in shown[-1].splitlines()] if shown else []
            states = monitor.snapshot().states
            waiting = [str(states[name]) for name in rows[1][1:-2]] if len(rows) > 1 else []
            return [*waiting, "0", "5"] == next((row[1:] for row in rows if row[0] == "wait_for"), None)

        assert wait_until(told), shown[-1:]
        Event("roastcoffea-live").set()
        client.gather(futures)
    first, *rows = shown[-1].splitlines()
    assert re.fullmatch(r"roastcoffea  .*, 2 workers, 5 tasks so far", first)
    assert [row.split()[-2:] for row in rows if "wait_for" in row] == [["5", "5"]]
    assert max(len(line) for text in shown for line in text.splitlines()) < 80
    assert monitor.problems == []


def test_the_picture_of_states_has_the_area_of_the_stays(monitor: TaskMonitor, tmp_path: Path) -> None:
    _, ax = monitor.plot(path=tmp_path / "states.png")
    assert (tmp_path / "states.png").stat().st_size > 1000
    assert ax.get_ylabel() == "tasks on the scheduler"
    assert {"processing", "memory"} <= set(ax.get_legend_handles_labels()[1])


def test_states_over_time_are_means() -> None:
    """Two tasks: one waits for a second and computes for two, the other is there from the third second on."""
    states = {
        "task": [0, 0, 1, 0],
        "state": ["waiting", "processing", "memory", "forgotten"],
        "time": [1.0, 2.0, 3.0, 4.0],
    }
    history = History(pa.table(states), [named("a"), named("b")])
    means = dict(zip(STATES, states_over_time(history, 5.0, np.array([0.0, 1.5, 3.0, 5.0])).tolist(), strict=True))
    expected = {"waiting": [0.5 / 1.5, 0.5 / 1.5, 0], "processing": [0, 1 / 1.5, 0.5], "memory": [0, 0, 1]}
    assert {name: means[name] for name in expected} == {name: pytest.approx(each) for name, each in expected.items()}


def test_the_task_stream_of_a_monitor(monitor: TaskMonitor) -> None:
    _, ax = plot_task_stream(monitor)
    assert len(ax.get_yticklabels()) == 2
    assert ax.get_legend_handles_labels()[1] == ["other tasks"]
