"""Dask spans: the annotations under which the work of a run is counted and recognized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed.spans import span

from roastcoffea.interrupts import exit_in_any_case, interrupts_held, uninterrupted
from roastcoffea.log.marks import ANNOTATION


class RunSpan:
    """The span of a run: opened around it, and opened again in threads that do not inherit the context.

    Parameters
    ----------
    name : str
        Tag of the span.
    topic : str, optional
        Collector as whose own the tasks are marked. The mark is needed beside the span: Dask counts tasks of a group
        that is still alive in the span of that group, whatever their own annotation says.
    """

    def __init__(self, name: str, topic: str | None = None) -> None:
        self.name = name
        self.topic = topic
        self.id: str | None = None
        self._annotation: dict[str, tuple[str, ...]] = {}
        self._open = ExitStack()
        self._is_open = False
        self._awaited_end: Any = None

    def __enter__(self) -> str:
        try:
            with interrupts_held():
                self._is_open = True
                return self._enter()
        except BaseException:
            self.__exit__()
            raise

    def _enter(self) -> str:
        self.id = str(self._open.enter_context(span(self.name)))
        self._annotation = dask.get_annotations()["span"]
        if self.topic is not None:
            collectors = dask.get_annotations().get(ANNOTATION, {}).get("collectors", ())
            mark = {"collectors": (*collectors, self.topic), "step": None, "prefix": None}
            self._open.enter_context(dask.annotate(**{ANNOTATION: mark}))
        return self.id

    @exit_in_any_case
    def __exit__(self, *exception: object) -> None:
        uninterrupted(self._leave)

    def _leave(self) -> None:
        self._is_open, self._awaited_end = False, None
        self._open.close()

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
