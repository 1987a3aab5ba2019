"""Spans of past runs do not pile up: neither on the scheduler, nor their counts on the workers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from conftest import wait_until
from distributed import Client, Future, span

from roastcoffea import MetricsCollector
from roastcoffea.backends import plugin_lifetime as past_spans


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty spans are forgotten at once; the scheduler is in this process."""
    monkeypatch.setattr(past_spans, "UNTIL_GONE", 0.1)
    monkeypatch.setattr(past_spans, "PAUSES", (0.05,) * 6000)  # a busy host lets tests take long


def spans_on(dask_scheduler: Any) -> list[str]:
    known = dask_scheduler.extensions["spans"]
    listed = [known.root_spans, known.spans.values(), *known.spans_search_by_name.values()]
    return [each.id for spans in (*listed, *known.spans_search_by_tag.values()) for each in spans]


def counts_on(dask_worker: Any) -> list[str]:
    return [key[1] for key in dask_worker.digests_total if isinstance(key, tuple) and key[0] == "execute"]


def tasks(client: Client, number: int) -> list[Future]:
    """Tasks of a group of their own: others of a group that is alive are counted in its span."""
    return client.map(str, range(number), key=f"task{uuid.uuid4().hex}")


def known(client: Client) -> set[str]:
    """Identities of spans that scheduler and workers know."""
    places = [client.run_on_scheduler(spans_on), *client.run(counts_on).values()]
    return {identity for place in places for identity in place}


@pytest.mark.slow
def test_nothing_of_many_runs_stays(client: Client) -> None:
    before = known(client)
    for _ in range(3):
        with MetricsCollector(client) as collector:
            client.gather(tasks(client, 20))
            with MetricsCollector(client) as inner:
                client.gather(tasks(client, 20))
        assert collector.measurement.fine_metrics
        assert inner.measurement.fine_metrics
    assert wait_until(lambda: known(client) <= before), known(client) - before


def test_a_span_whose_tasks_are_kept_stays_as_long_as_they_do(client: Client) -> None:
    before = known(client)
    with MetricsCollector(client):
        kept = tasks(client, 3)
        client.gather(kept)
    (mine,) = known(client) - before
    with MetricsCollector(client) as second:
        client.gather(tasks(client, 3))
    assert mine in known(client)
    assert second.measurement.outcome == "finished"
    del kept
    assert wait_until(lambda: known(client) <= before), known(client) - before


def test_spans_of_the_users_stay(client: Client) -> None:
    before = known(client)
    with span("outer"), MetricsCollector(client):
        client.gather(tasks(client, 3))
    with MetricsCollector(client), span("inner"):
        client.gather(tasks(client, 3))
    assert not wait_until(lambda: len(known(client) - before) < 4, 0.5)
