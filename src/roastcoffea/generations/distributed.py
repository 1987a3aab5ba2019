"""What releases of distributed from 2025.3 on may lack, as it is not documented. It runs on schedulers."""

from __future__ import annotations

from typing import Any


def event_topics(scheduler: Any) -> dict[str, Any]:
    """Topics with events in Dask; none where they are kept in another way."""
    topics: dict[str, Any] = getattr(getattr(scheduler, "_broker", None), "_topics", {})
    return topics


def unwrapped(result: Any) -> Any:
    """A worker's return value, without a wrapper, which releases have or not."""
    from distributed.protocol.serialize import Serialize, Serialized, deserialize

    if isinstance(result, Serialized):
        return deserialize(result.header, result.frames)
    return result.data if isinstance(result, Serialize) else result
