"""What stands between uproot and its objects while an attempt is metered; a copy or a pickle of it is the original."""

from __future__ import annotations

from operator import getitem
from typing import Any

from roastcoffea.instrument.meter.tally import Tally


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
