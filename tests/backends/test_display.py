"""A collector's plugin has its scheduler show the run, where that has the package."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import wait_until
from distributed import Client, SubprocessCluster

from roastcoffea.collector import MetricsCollector

PLUGIN: Any = SimpleNamespace(scheduler="scheduler", name="roastcoffea-1", token="token-1")


@pytest.mark.slow
def test_a_scheduler_without_a_dashboard_loads_no_bokeh() -> None:
    def modules_of_bokeh(dask_scheduler: Any = None) -> list[str] | None:
        """Those that the scheduler has loaded; None until it shows the run."""

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
