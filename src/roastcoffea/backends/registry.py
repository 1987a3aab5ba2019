"""Backends by name. A new one is a module with its class, and an entry here."""

from __future__ import annotations

import pkgutil
from typing import Any, Final

from roastcoffea.backends.adapted import AdaptedRecorder
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.backends.recorder import Recorder

BACKENDS: Final[dict[str, type[AbstractMetricsBackend] | str]] = {
    "dask": "roastcoffea.backends.dask:DaskMetricsBackend",
    "local": LocalMetricsBackend,
}
"""Backends, or where to find them: `distributed` is not imported for a run without it."""


def backend_for(backend: str | AbstractMetricsBackend | None, client: Any, carried: Any) -> Recorder:
    """Make a collector's recorder from the name of a backend, or from a user's backend.

    Parameters
    ----------
    backend
        By default "dask" with a client, otherwise "local".
    carried
        Our code for tasks, for workers that cannot import it.
    """
    if isinstance(backend, Recorder):
        return backend.renewed(client, carried)
    if isinstance(backend, AbstractMetricsBackend):
        return AdaptedRecorder(backend)
    known = " and ".join(f'"{one}"' for one in BACKENDS)
    if backend is None:
        backend = "local" if client is None else "dask"
    if not isinstance(backend, str):
        takes = f"backend takes {known}, or an instance of a subclass of AbstractMetricsBackend"
        found = f"the class {backend.__name__}" if isinstance(backend, type) else type(backend).__name__
        raise TypeError(f"{takes}, not {found}")
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; choose from {known}")
    found = BACKENDS[backend]
    named: type[AbstractMetricsBackend] = pkgutil.resolve_name(found) if isinstance(found, str) else found
    return named.for_collector(client, carried) if issubclass(named, Recorder) else AdaptedRecorder(named())
