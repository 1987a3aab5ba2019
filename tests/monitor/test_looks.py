"""What Dask counts itself, against the scheduler's own tasks in the same call."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from distributed import Client

from roastcoffea.monitor import shown as module
from roastcoffea.monitor.shown import counts_now, looks


@pytest.mark.slow
def test_counts_are_those_of_the_scheduler_s_tasks(client: Client, monkeypatch: Any) -> None:
    truth: list[dict[str, Counter[str]]] = []

    def both(dask_scheduler: Any) -> Any:
        tasks: dict[str, Counter[str]] = {}
        for task in dask_scheduler.tasks.values():
            tasks.setdefault(task.prefix.name, Counter())[task.state] += 1
        truth.append(tasks)  # the scheduler is in this process
        return counts_now(dask_scheduler)

    def asked(connection: Any, function: Any, arguments: Any) -> Any:
        return client.sync(on_loop)

    async def on_loop() -> Any:
        return both(client.cluster.scheduler)

    monkeypatch.setattr(module.Connection, "answer", asked)
    watch = looks(client, 0.02)
    found = [next(watch)]
    futures = client.map(abs, range(300), pure=False)
    found += islice(watch, 15)
    client.gather(futures)
    found.append(next(watch))
    assert [look.prefixes for look in found] == truth
    assert [look.num_tasks for look in found] == [sum(map(Counter.total, each.values())) for each in truth]
    assert found[-1].finished["abs"] == 300
    assert {look.num_workers for look in found} == {2}
    assert found[-1].states["memory"] >= 300
    assert found[-1].timestamp.timestamp() == pytest.approx(found[-1].time, abs=1e-5)


def test_looks_end_with_the_connection(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        watch = looks(other, 0.01)
        assert next(watch).num_workers == 2
    assert list(watch) == []
