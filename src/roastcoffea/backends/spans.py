"""Dask spans: the annotations under which the work of a run is counted and recognized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dask

from roastcoffea.interrupts import whole
from roastcoffea.log.marks import ANNOTATION


class RunSpan(whole[str]):
    """The span of a run: opened around it, and again in threads that do not inherit the context.

    Parameters
    ----------
    name : str
        Tag of the span.
    topic : str, optional
        Collector whose mark the tasks get. The span is not enough: Dask counts tasks of a group that is still alive in
        that group's span, regardless of their annotation.
    """

    def __init__(self, name: str, topic: str | None = None) -> None:
        super().__init__(self._opened(name, topic))
        self.id: str | None = None
        self._annotation: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def _opened(self, name: str, topic: str | None) -> Iterator[str]:
        from distributed.spans import span  # which a run without a cluster does not need

        with ExitStack() as opened:
            self.id = str(opened.enter_context(span(name)))
            self._annotation = dask.get_annotations()["span"]
            if topic is not None:
                collectors = dask.get_annotations().get(ANNOTATION, {}).get("collectors", ())
                mark = {"collectors": (*collectors, topic), "step": None, "prefix": None}
                opened.enter_context(dask.annotate(**{ANNOTATION: mark}))
            yield self.id

    @contextmanager
    def ensured(self) -> Iterator[None]:
        """Context that counts submitted tasks in the span, in any thread."""
        here = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        if self.id is None or self.id in here["ids"]:
            yield
            return
        both = {part: (*self._annotation[part], *here[part]) for part in ("name", "ids")}
        with dask.annotate(span=both):
            yield
