"""Meters the chunks of clients that do not have roastcoffea: coffea's functions are wrapped on the worker.

Tasks hold these functions by name. Unpickled, they are ours; what a collector already measures is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from roastcoffea.instrument.channels import dask_worker
from roastcoffea.instrument.probe import Probe
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.recording.facility.recorder import NAME

CALL: Final = "facility"
"""Runner call of the records: which one it was only the client knows."""

FUNCTIONS: Final = {"_work_function": False, "metadata_fetcher_root": True}
"""Functions of the Runner that tasks call, and whether they open a file for preprocessing."""

_originals: Final[dict[str, Any]] = {}


def start() -> None:
    """Wrap coffea's functions in this process."""
    from coffea.processor import Runner

    for name, of_files in FUNCTIONS.items():
        original = Runner.__dict__.get(name)
        if name not in _originals and isinstance(original, staticmethod):
            _originals[name] = original
            setattr(Runner, name, staticmethod(_metered(original.__func__, of_files)))


def stop() -> None:
    """Restore coffea's functions."""
    from coffea.processor import Runner

    while _originals:
        name, original = _originals.popitem()
        setattr(Runner, name, original)


def _metered(function: Callable[..., Any], of_files: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_ours():
            return function(*args, **kwargs)
        *options, item = args
        closure = partial(function, *options, **kwargs)
        # the form in which coffea passes a closure to executors
        return Probe(partial(_called, 0, False, closure), CALL, CALL, ((NAME,), None, False), of_files)(item)

    return call


def _called(_retries: int, _skipped: bool, closure: Callable[[Any], Any], item: Any) -> Any:
    return closure(item)


def _is_ours() -> bool:
    """Whether a task runs here that no collector measures, on a worker with the facility's plugin."""
    worker = dask_worker()
    if worker is None or NAME not in worker.plugins:
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    annotations = None if task is None else task.annotations
    return task is not None and ANNOTATION not in (annotations or {})
