"""A collector's plugin has its scheduler show the run, where that has the package."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import wait_until
from distributed import Client, SubprocessCluster

from roastcoffea.backends.display import SHOWN_BY, Display
from roastcoffea.collector import MetricsCollector

PLUGIN: Any = SimpleNamespace(scheduler="scheduler", name="roastcoffea-1", token="token-1")


@pytest.mark.slow
def test_a_scheduler_without_a_dashboard_loads_no_bokeh() -> None:
    def modules_of_bokeh(dask_scheduler: Any = None) -> list[str] | None:
        """Those that the scheduler has loaded; None until it shows the run."""
        import sys

        if "roastcoffea-observer" not in dask_scheduler.plugins:
            return None
        return [name for name in sys.modules if name.partition(".")[0] == "bokeh"]

    with SubprocessCluster(n_workers=1, scheduler_kwargs={"dashboard": False}) as cluster, Client(cluster) as client:
        with MetricsCollector(client, journal=None) as collector:
            assert wait_until(lambda: client.run_on_scheduler(modules_of_bokeh) is not None)
            assert client.run_on_scheduler(modules_of_bokeh) == []
        assert collector.problems == []


@pytest.mark.slow
def test_what_is_heavy_is_loaded_beside_the_event_loop(command_line_cluster: Any) -> None:
    def watch_imports(dask_scheduler: Any = None) -> None:
        import sys
        import threading

        class Watching:
            """Notes what is imported for the first time on the thread of the event loop."""

            def find_spec(self, name: str, *_: object) -> None:
                if threading.get_ident() == self.loop:
                    dask_scheduler.imported_on_loop.append(name)

            loop = threading.get_ident()

        dask_scheduler.imported_on_loop = []
        sys.meta_path.insert(0, Watching())

    def imported(dask_scheduler: Any = None) -> tuple[bool, list[str]]:
        return "roastcoffea-observer" in dask_scheduler.plugins, dask_scheduler.imported_on_loop

    cluster = command_line_cluster(workers=1)
    with Client(scheduler_file=str(cluster.file)) as client:
        client.run_on_scheduler(watch_imports)
        with MetricsCollector(client, journal=None) as collector:
            assert wait_until(lambda: client.run_on_scheduler(imported)[0])
            client.gather(client.map(str, range(10), pure=False))
        assert collector.measurement.problems == []
        _, names = client.run_on_scheduler(imported)
    assert set(names) <= {"roastcoffea"}  # which is only looked for


def shown(monkeypatch: pytest.MonkeyPatch, module: Any, done: Callable[[], object]) -> None:
    """Start and end the addition on a scheduler with this module, which does something."""
    monkeypatch.setitem(sys.modules, SHOWN_BY, module)

    async def run() -> None:
        display = Display()
        display.start(PLUGIN)
        for _ in range(500):
            if done():
                break
            await asyncio.sleep(0.01)
        display.end()

    asyncio.run(run())


def test_it_joins_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    module: Any = ModuleType("display")
    module.join = lambda *given: calls.append(given)
    module.leave = lambda *given: calls.append(given)
    module.load = lambda scheduler: calls.append((scheduler,))
    shown(monkeypatch, module, lambda: len(calls) > 1)
    assert calls == [("scheduler",), ("scheduler", "roastcoffea-1", "token-1"), ("scheduler", "roastcoffea-1")]


def test_a_scheduler_that_cannot_show_it_says_so_in_its_debug_log_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "roastcoffea"):
        shown(monkeypatch, None, lambda: caplog.records)  # as if the module were missing
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "does not show the run" in record.message


def test_it_waits_for_the_module_that_another_collector_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = "import time\ntime.sleep(0.3)\njoined = []\ndef join(*given): joined.append(given)\n"
    slow += "leave = join\nload = print\n"
    (tmp_path / "slow_to_load.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("roastcoffea.backends.display.SHOWN_BY", "slow_to_load")

    async def run() -> None:
        first, second = Display(), Display()
        first.start(PLUGIN)
        while "slow_to_load" not in sys.modules:
            await asyncio.sleep(0.01)
        second.start(PLUGIN)
        while len(getattr(sys.modules["slow_to_load"], "joined", ())) < 2:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))
