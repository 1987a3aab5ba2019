"""What stands between uproot and its objects while an attempt is metered; a copy or a pickle of it is the original."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from threading import get_ident
from time import thread_time
from typing import Any

from roastcoffea.instrument.meter.tally import BY_BRANCH, BranchRead, Tally


class Shadow:
    """A method of one object, that goes through the tally; a copy or a pickle of it is the method itself."""

    __slots__ = ("original", "tally")

    def __init__(self, original: Any, tally: Tally) -> None:
        self.original = original
        self.tally = tally

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.original.__self__, self.original.__name__)


class StandIn:
    """Has all other attributes of an object that it stands in for; a copy or a pickle of it is that object."""

    __slots__ = ("_inner",)
    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._inner,), 0)


class ColumnShadow(Shadow):
    """`extract_column` of the mapping behind events, where fields or whole columns are read: not of a TTree."""

    __slots__ = ("name",)

    def __init__(self, name: Callable[[Any], Any], original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        self.name = name
        """Gives the name of a field or column, of the handle that coffea has for it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        here = tally.places[get_ident()]
        read = None if here.branch is not None or not args or args[0] is None else self._read(args[0])
        if read is None:
            return self.original(*args, **kwargs)
        here.branch = read
        waited, stepped, began, before = here.waited, here.stepped, thread_time(), here.source_cpu
        try:
            return self.original(*args, **kwargs)
        finally:
            here.branch = None
            cpu = thread_time() - began - here.stepped + stepped - here.source_cpu + before
            with tally.lock:
                read.read = (read.read or 0.0) + here.waited - waited
                if here.own:
                    read.interpret += cpu
                else:
                    tally.helper_cpu += cpu

    def _read(self, handle: Any) -> BranchRead | None:
        try:
            return self.tally.branch_read(str(self.name(handle)))
        except Exception as problem:
            self.tally.miss("bytes of branches", problem, *BY_BRANCH)
        return None
