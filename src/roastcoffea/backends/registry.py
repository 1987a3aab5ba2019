"""The backends by name. A new one is a module with its class, and an entry here."""

from __future__ import annotations

from typing import Any, Final

from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.local import LocalMetricsBackend

BACKENDS: Final[dict[str, type[AbstractMetricsBackend]]] = {
    backend.kind: backend for backend in (DaskMetricsBackend, LocalMetricsBackend)
}


def backend_for(name: str | None, client: Any, carried: Any) -> AbstractMetricsBackend:
    """Give the backend of this name for a collector; without one it is "dask" where there is a client, else "local".

    Parameters
    ----------
    carried
        What tasks need of ours, for workers that cannot import it.
    """
    if name is None:
        name = LocalMetricsBackend.kind if client is None else DaskMetricsBackend.kind
    if name not in BACKENDS:
        known = " and ".join(f'"{one}"' for one in BACKENDS)
        raise ValueError(f"unknown backend {name!r}; there are {known}")
    return BACKENDS[name].for_collector(client, carried)
