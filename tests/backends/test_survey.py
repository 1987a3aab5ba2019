"""Workers are asked all at once; those that fail or are silent hold up nobody, and are named."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from distributed.protocol.pickle import dumps
from processes import PATIENCE

from roastcoffea.backends.deployment import Connection
from roastcoffea.backends.plugin_lifetime import ask_workers


async def broadcast(msg: dict[str, Any], workers: list[str], on_error: str) -> dict[str, Any]:
    (address,) = workers
    if address == "silent":
        await asyncio.sleep(PATIENCE)
    if address == "failing":
        return {address: OSError("gone")}
    return {address: {"status": "OK" if address == "well" else "error", "result": address}}


def test_who_fails_or_is_silent_is_named_and_waited_for_no_longer_than_said() -> None:
    scheduler = SimpleNamespace(workers=dict.fromkeys(["silent", "failing", "well", "refusing"]), broadcast=broadcast)
    began = time.monotonic()
    answers = asyncio.run(ask_workers(scheduler, b"", {}, 0.05))
    assert answers == ({"well": "well"}, ["failing", "refusing", "silent"])
    assert time.monotonic() - began < PATIENCE / 2


def test_workers_answer_for_themselves(client: Any) -> None:
    async def asked(dask_scheduler: Any) -> Any:
        return await ask_workers(dask_scheduler, dumps(address_and), {"number": 3}, 30.0)

    answers, silent = Connection(client).answer(asked, {})
    assert answers == {address: [address, 3] for address in client.scheduler_info()["workers"]}
    assert silent == []


def address_and(number: int, dask_worker: Any) -> list[Any]:
    return [dask_worker.address, number]
