"""What releases of coffea, distributed and uproot do differently, or lack; also on workers and schedulers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

UNMARKED: Final = 'contained in "open": coffea marks where opening a file ends since 2025.11'


def marker_of_opening(arguments: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What coffea calls once it has opened a chunk's file; None before 2025.11, which calls nothing there."""
    marker = arguments.get("cache_function")
    return marker if callable(marker) else None


def output_of(result: Any) -> Any:
    """Output of `Runner.run`; since 2026.7 it may be inside a result."""
    return result if isinstance(result, Mapping) else getattr(result, "value", None)


def captured_error(result: Any) -> BaseException | None:
    """The error that coffea captured instead of raising it; since 2026.7 it may be inside a result."""
    output = output_of(result)
    captured = output.get("exception") if isinstance(output, Mapping) else getattr(result, "exception", None)
    return captured if isinstance(captured, BaseException) else None


def own_client(runner: Any) -> AbstractContextManager[Any]:
    """Context in which a `DaskExecutor` without a client has one of coffea's own, with its cluster; its value is that.

    Before 2026.9 coffea made one for each step, and kept it.
    """
    made: AbstractContextManager[Any] = getattr(runner, "_auto_dask_client", nullcontext)()
    return made


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


READS_ON: Final = "uproot before 5.7.6 also reads the basket behind each chunk; later releases do not"


def reads_on(version: str | None) -> bool:
    """Whether a release also reads the basket that begins where a range of entries ends."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return found is not None and tuple(map(int, found.groups())) < (5, 7, 6)


class ColumnReaders(NamedTuple):
    """Names of the methods with which an RNTuple reads a column, in a range of clusters and in one of them."""

    of_clusters: str
    """In a range of clusters."""
    of_cluster: str
    """In one cluster."""
    cluster: int
    """Place of the cluster among the arguments of the second."""

    def place(self, arguments: Sequence[Any]) -> tuple[int, int]:
        """Cluster and column that the second is called with."""
        return int(arguments[self.cluster]), int(arguments[1 - self.cluster])


def column_readers(ntuple: type) -> ColumnReaders:
    """How RNTuples of this class read columns, which changed with 5.7."""
    if hasattr(ntuple, "read_cluster_range"):
        return ColumnReaders("read_cluster_range", "read_cluster_pages", 0)
    return ColumnReaders("read_col_pages", "read_col_page", 1)
