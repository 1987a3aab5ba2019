"""What a scheduler shows while somebody measures it, and that nothing of it stays."""

from __future__ import annotations

import http.client
import urllib.parse
from typing import TYPE_CHECKING, Any

import pytest
from browser import Browser
from processes import PATIENCE, wait_until

from roastcoffea.collector import MetricsCollector

if TYPE_CHECKING:
    from pathlib import Path

    from distributed import Client

PAGES = ("/roastcoffea", "/individual-roastcoffea")


def text_at(client: Client, path: str) -> str:
    """What the scheduler's web server answers; empty where it has no such page."""
    address = urllib.parse.urlsplit(client.dashboard_link)
    connection = http.client.HTTPConnection(str(address.netloc), timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status in {200, 404}
    return text if answer.status == 200 else ""


def shown(client: Client) -> dict[str, bool]:
    places = {path: bool(text_at(client, path)) for path in PAGES}
    listed = {
        path: "roastcoffea" in text_at(client, path) for path in ("/metrics", "/individual-plots.json", "/status")
    }
    return places | listed


def state(dask_scheduler: Any) -> dict[str, Any]:
    """What could be left behind on a scheduler."""
    from bokeh.server.tornado import BokehTornado

    servers = [one for one in dask_scheduler.http_application.applications if isinstance(one, BokehTornado)]
    return {"plugins": sorted(map(str, dask_scheduler.plugins)), "paths": [sorted(one.app_paths) for one in servers]}


@pytest.mark.slow
def test_page_and_metrics_are_there_until_the_last_collector_is_left(client: Client) -> None:
    assert not any(shown(client).values())
    before = client.run_on_scheduler(state)  # Dask's own page, which was looked at, leaves a plugin
    with MetricsCollector(client):
        assert wait_until(lambda: all(shown(client).values())), shown(client)
        with MetricsCollector(client):
            assert all(shown(client).values())
        assert all(shown(client).values())
    assert wait_until(lambda: not any(shown(client).values())), shown(client)
    assert client.run_on_scheduler(state) == before


def test_a_collector_that_is_left_at_once_leaves_nothing(client: Client) -> None:
    before = client.run_on_scheduler(state)
    for _ in range(3):
        with MetricsCollector(client):
            pass
    assert client.run_on_scheduler(state) == before


@pytest.mark.slow
def test_a_browser_shows_a_run_while_it_goes_on(client: Client, browser: Browser, sample: Any, tmp_path: Path) -> None:
    from analyses import Jets
    from coffea.nanoevents import NanoAODSchema
    from coffea.processor import DaskExecutor, Runner

    with MetricsCollector(client):
        runner = Runner(DaskExecutor(client=client, status=False), chunksize=500, schema=NanoAODSchema)
        runner(sample, processor_instance=Jets())
        assert wait_until(lambda: bool(text_at(client, "/roastcoffea")))
        browser.call("Page.navigate", url=client.dashboard_link.rpartition("/")[0] + "/roastcoffea")
        inner = "[...document.querySelectorAll('*')].filter((e) => e.shadowRoot)"
        browser.evaluate(
            "window.text = (root) => [...root.querySelectorAll('*')].map((e) => e.shadowRoot ?"
            " window.text(e.shadowRoot) : e.tagName === 'TD' ? e.textContent : '').join(' ')"
        )
        browser.wait(f"{inner}.length && window.text && window.text(document).includes('32 of 32')")
        assert not browser.messages
    browser.call("Page.navigate", url="about:blank")
