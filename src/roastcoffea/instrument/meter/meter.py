"""The meter of one attempt: inserting it into what coffea opens, and removing it again."""

from __future__ import annotations

from typing import Any

from roastcoffea.instrument.meter.formats import (
    EXECUTORS,
    CountedCache,
    leaves_once,
    metered_executor,
    watch_ntuple,
    watch_parquet,
)
from roastcoffea.instrument.meter.servers import OF_SERVERS
from roastcoffea.instrument.meter.sources import OPTION, watched_source
from roastcoffea.instrument.meter.tally import BY_BRANCH, READ, Tally
from roastcoffea.instrument.shared import made_once


class Meter(Tally):
    """Meters the reading of one attempt, from `options` to `close`."""

    _of_servers: dict[str, Any] | None = None

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options for `uproot.open` that lead through the meter."""
        ours = dict(given)
        self.handler = given.get("handler")
        try:
            ours |= {"handler": made_once(watched_source), OPTION: self}
        except Exception as problem:
            self.miss("bytes requested from storage", problem, *READ)
        try:
            for name, kind in EXECUTORS:
                ours[name] = metered_executor(self, kind, given.get(name))
        except Exception as problem:
            self.miss("reads ahead of process()", problem)
        return ours

    def events_are_built(self, events: Any) -> None:
        """Meter lazy reads of events."""
        try:
            factory = events.attrs["@events_factory"]
            mapping = factory._mapping
            self.watch_cache(mapping)
            if type(mapping).__name__ == "ParquetSourceMapping":
                watch_parquet(self, mapping, factory.file_handle)
            else:
                self._watch_trees(mapping)
        except Exception as problem:
            self.miss("bytes of branches", problem, *BY_BRANCH, "bytes_cached")

    def watch_cache(self, mapping: Any) -> None:
        """Count arrays that coffea's cache has, if there is one."""
        if (cache := getattr(mapping, "_buffer_cache", None)) is not None:
            self.change(mapping, "_buffer_cache", CountedCache(cache, self), cache)

    def _watch_trees(self, mapping: Any) -> None:
        for name, kind in EXECUTORS:
            executor = getattr(mapping, name)
            self.change(mapping, name, metered_executor(self, kind, executor), executor)
        self.in_line = not self.pools
        for tree in (mapping._cache or {}).values():
            self.file_bytes = int(tree.file.fEND)
            try:
                # options used only for opening cannot be pickled
                tree.file.options["handler"] = self.handler
                tree.file.options.pop(OPTION, None)
            except Exception as problem:
                self.miss("pickling of the file", problem)
            ntuple = getattr(tree, "ntuple", None)
            if ntuple is None:
                self.tree_branches = leaves_once(tree, self.file_bytes)
            else:
                self.in_line = False
                self.tree_branches = len(tree.fields)
                watch_ntuple(self, mapping, ntuple)

    def server_columns(self) -> dict[str, Any]:
        """Columns of a record about servers; none where the file was not read from one."""
        found = self._of_servers if self.servers is None else self.servers.columns()
        return {name: value for name, value in (found or {}).items() if name not in self.unknown}

    def close(self) -> None:
        """Remove all shadows, and release the files."""
        if self.others is not None:
            self.others.close()
            self.problems += self.others.problems
        if self.servers is not None:
            try:
                self.servers.settle()
            except Exception as problem:
                self.miss("the server of the file", problem, *OF_SERVERS[:2])
            # each holds the other, which only the garbage collector would end
            self._of_servers, self.servers = self.servers.columns(), None
        self.restore()
        for executor in self.executors.values():
            executor.tally = None
        self.requested_at_end = self.requested()
        with self.lock:
            for thread, here in [*self.places.items()]:
                self.note_begun(thread, here)
            self.add_up(ended=True)
            self.closed = True
        self.sources.clear()
        self.asked.clear()
        self.places.clear()
