"""Dask spans: the annotation under which the work of a run is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed.spans import span


class RunSpan:
    """The span of a run: opened around it, and opened again in threads that do not inherit the context."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id: str | None = None
        self._annotation: dict[str, tuple[str, ...]] = {}
        self._context: Any = None

    def __enter__(self) -> str:
        self._context = span(self.name)
        self.id = self._context.__enter__()
        self._annotation = dask.get_annotations()["span"]
        return str(self.id)

    def __exit__(self, *exception: object) -> None:
        # not the exception itself: distributed's generator would have to let it through
        self._context.__exit__(None, None, None)

    @contextmanager
    def ensured(self) -> Iterator[None]:
        """Have tasks submitted here counted in the span, whatever thread this is."""
        here = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        if self.id is None or self.id in here["ids"]:
            yield
            return
        both = {part: (*self._annotation[part], *here[part]) for part in ("name", "ids")}
        with dask.annotate(span=both):
            yield
