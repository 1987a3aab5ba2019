"""What releases of coffea from 2025.7 on do differently. It runs on workers as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

UNMARKED: Final = 'contained in "open": coffea marks where opening a file ends since 2025.11'


def marker_of_opening(arguments: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What coffea calls once it has opened a chunk's file; None before 2025.11, which calls nothing there."""
    marker = arguments.get("cache_function")
    return marker if callable(marker) else None


def with_options(fetcher: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """coffea's function for a file's metadata, with changed options for uproot; None before 2026.4, which has none."""
    if isinstance(fetcher, partial) and fetcher.args and isinstance(fetcher.args[-1], dict):
        *others, options = fetcher.args
        return partial(fetcher.func, *others, change(options), **fetcher.keywords)
    return None


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
