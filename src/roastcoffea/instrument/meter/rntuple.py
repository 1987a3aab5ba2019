"""Fields of an RNTuple: pages of its clusters."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from threading import get_ident
from time import thread_time
from typing import Any

from roastcoffea.instrument.meter.shadows import ColumnShadow, Shadow
from roastcoffea.instrument.meter.tally import BY_BRANCH, SIZES, Tally

FieldShadow = partial(ColumnShadow, attrgetter("path"))


def watch_ntuple(tally: Tally, mapping: Any, ntuple: Any) -> None:
    """Meter the reading of an RNTuple's pages."""
    tally.shadow(ntuple, "read_cluster_pages", partial(PagesShadow, ntuple))
    tally.shadow(ntuple, "read_locator", LocatorShadow)
    if getattr(mapping, "preloaded_arrays", None):
        tally.miss("bytes of branches", "what is preloaded of an RNTuple is read before it can be seen", *SIZES)


class PagesShadow(Shadow):
    """`read_cluster_pages` of an RNTuple: tells which cluster and column the pages are of."""

    __slots__ = ("ntuple",)

    def __init__(self, ntuple: Any, original: Any, tally: Tally) -> None:
        super().__init__(original, tally)
        self.ntuple = ntuple

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        here = self.tally.places[get_ident()]
        before = here.pages
        try:
            self.ntuple.page_link_list  # noqa: B018  (a list of pages is metadata, read when it is first asked for)
            cluster, column = [*args, *kwargs.values()][:2]
            here.pages = int(cluster), int(column)
        except Exception as problem:
            self.tally.miss("bytes of branches", problem, *BY_BRANCH)
        try:
            return self.original(*args, **kwargs)
        finally:
            here.pages = before


class LocatorShadow(Shadow):
    """`read_locator` of an RNTuple: reads and decompresses one page."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        here = tally.places[get_ident()]
        read, pages = here.branch, here.pages
        if pages is None or read is None:
            return self.original(*args, **kwargs)
        began, before = thread_time(), here.source_cpu
        result = self.original(*args, **kwargs)
        cpu = thread_time() - began - (here.source_cpu - before)
        here.stepped += cpu
        with tally.lock:
            try:
                locator, uncompressed = [*args, *kwargs.values()][:2]
                (cluster, column), size = pages, int(locator.num_bytes)
                read.add_part(cluster, (column, int(locator.offset)), size)
                read.uncompressed += int(uncompressed)
                if here.own:
                    read.decompress += cpu
                else:
                    tally.helper_cpu += cpu
            except Exception as problem:
                tally.miss("bytes of branches", problem, *BY_BRANCH)
        return result
