"""Metering of files that a function opens itself, with totals per file and tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import add, sub
from threading import get_ident
from time import perf_counter
from typing import Any, Final
from weakref import WeakValueDictionary
from zlib import crc32

from roastcoffea.errors import error_text
from roastcoffea.instrument.meter.formats import (
    ColumnShadow,
    Decompression,
    Interpretation,
    Meter,
    leaves_once,
    metered_executor,
    watch_ntuple,
    watch_parquet,
)
from roastcoffea.instrument.meter.servers import watch_source
from roastcoffea.instrument.meter.tally import READ, BranchRead, Tally, branch_path, read_in
from roastcoffea.instrument.shared import Row
from roastcoffea.log.packing import BRANCHES
from roastcoffea.records.chunks import ERROR
from roastcoffea.redaction import Added, redacted

OPEN: Final = "open_seconds"
BUILD: Final = "build_seconds"

MIXED: Final = "the function read both Parquet files and other files"

AMOUNTS: Final = ("bytes_requested", "bytes_payload", "bytes_metadata", "baskets")
OTHER: Final = (
    "bytes_other",
    "bytes_other_transferred",
    "other_requested",
    "other_payload",
    "other_metadata",
    "other_baskets",
)


class TreeRead:
    def __init__(self, name: str | None, leaves: int | None = None) -> None:
        self.name = name
        self.leaves = leaves
        self.read: set[tuple[int, int]] = set()
        """Entry ranges that were requested."""
        self.branches: dict[str, BranchRead] = {}

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Entry ranges that were read, sorted; adjacent and overlapping ranges are merged."""
        found: list[tuple[int, int]] = []
        for start, stop in sorted(self.read):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(stop, found[-1][1])
            elif stop > start:
                found.append((start, stop))
        return found

    @property
    def entries(self) -> int:
        return sum(stop - start for start, stop in self.spans)


class OpenedFile:
    """A file that a function reads. Each time the file is opened, uproot creates a new source."""

    uuid: str | None = None
    bytes: int | None = None
    requested_before = 0
    """Bytes requested from the file's sources before the function began."""
    requested: int | None = 0
    transferred: int | None = 0
    error: str | None = None

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.sources: list[Any] = []
        self.kinds: list[str] = []
        self.trees: dict[str | None, TreeRead] = {}

    @property
    def tree(self) -> TreeRead:
        return max(self.trees.values(), key=lambda tree: tree.entries, default=TreeRead(None))

    def count(self) -> None:
        if self.sources:
            self.requested = sum(int(source.num_requested_bytes) for source in self.sources) - self.requested_before
            received: list[Any] = [getattr(getattr(source, "_fs", None), "received", None) for source in self.sources]
            self.transferred = None if None in received else sum(received)


class FilesMeter(Meter):
    """Meter for a function's file reads, from construction to `close`.

    `chunk` is the meter of the chunk that opens these files in addition to its own file, if any.
    """

    added: Added | None = None
    dataset: str | None = None
    requested_before = 0
    ntuples = False
    of_shadows = 7.0
    opens_with: tuple[type, str] | None = None
    """Source class and path of the file being opened."""

    def __init__(self, chunk: Tally | None = None) -> None:
        super().__init__()
        if chunk is not None:
            self.places.own, self.in_process, self.reads = chunk.places.own, True, chunk.reads
            self.core_wait, self.delay, self.off_core = chunk.core_wait, chunk.delay, chunk.off_core
        self.files: dict[str | None, OpenedFile] = {}
        self.failed: list[OpenedFile] = []
        """Files that could not be opened, with one entry per attempt."""
        self.phases = {OPEN: 0.0, BUILD: 0.0}
        self._of_sources: dict[int, OpenedFile] = {}
        self._trees: dict[int, tuple[TreeRead, Any]] = {}
        """Maps the ID of a branch owner to its tree and the owner, which is kept so that its ID is not reused."""
        self._last: Any = (None,) * 6
        """Tree, entries and executors of the last call of `metered`, and its result."""
        self._baskets: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._entered: list[list[float]] = []
        self._asked_for = perf_counter()

    # hooks called when uproot and coffea open and read files

    def opening(self, path: Any) -> None:
        """Record that a file is about to be opened. Nothing has been requested yet."""
        self._file(str(path))
        self._asked_for = perf_counter()
        if self.without_source is not None:
            self.miss("bytes requested from storage", MIXED, *READ)
        self.requested_at_end = self.requested_at_end or 0

    def opened(self, file: Any) -> None:
        self.opens_with = None
        self._watch(file, perf_counter() - self._asked_for)

    def not_opened(self, path: Any, source: Any, error: BaseException) -> None:
        """Record that a file could not be opened. The function may catch the error and continue."""
        failed, file = OpenedFile(str(path)), self._file(str(path))
        failed.error = error_text(error, self.added)
        if id(source) in self._of_sources:
            failed.sources, failed.kinds = [source], [type(source).__name__]
            file.sources = [other for other in file.sources if other is not source]
        elif self.opens_with is not None:
            failed.kinds, self.opens_with = [self.opens_with[0].__name__], None
            self.kinds += failed.kinds
        if not file.sources and not file.trees:
            del self.files[file.path]
        self.failed.append(failed)

    def _file(self, path: str | None) -> OpenedFile:
        return self.files.get(path) or self.files.setdefault(path, OpenedFile(path))

    def _watch(self, of_uproot: Any, seconds: float = 0.0) -> OpenedFile:
        source = of_uproot.source
        file = self._of_sources[id(source)] = self._file(str(of_uproot.file_path))
        other = getattr(vars(source).get("chunks"), "tally", None)
        if other is not None:
            # the source's counter includes both functions' reads
            problem = "several functions read the same open file at the same time"
            for tally in (self, other):
                tally.miss("bytes requested from storage", problem, *(READ if hasattr(tally, "files") else ()))
            return file
        kinds = len(self.kinds)
        file.requested_before += int(source.num_requested_bytes)
        watch_source(self, source, seconds)
        file.kinds += self.kinds[kinds:]
        file.sources.append(source)
        return file

    def _tree(self, owner: Any) -> TreeRead:
        return (self._trees.get(id(owner)) or self._looked_up(owner))[0]

    def _looked_up(self, owner: Any) -> tuple[TreeRead, Any]:
        is_ntuple = hasattr(type(owner), "page_link_list")
        tree = owner if is_ntuple else owner.tree
        # if the source is unknown, the file was opened before the function began
        file = self._of_sources.get(id(tree.file.source)) or self._watch(tree.file)
        file.uuid, file.bytes = tree.file.fUUID.hex(), int(tree.file.fEND)
        name = str(tree.object_path).strip("/").rpartition(";")[0]
        if name not in file.trees:
            leaves = len(tree.fields) if is_ntuple else leaves_once(tree, file.bytes)
            file.trees[name] = TreeRead(name, leaves)
        if is_ntuple:
            self.ntuples, self.in_line = True, False
            watch_ntuple(self, tree)
        known = self._trees[id(owner)] = file.trees[name], owner
        return known

    def read_of(self, branch: Any) -> BranchRead:
        return read_in(self._tree(branch._parent).branches, branch_path(branch))

    def _reads(self) -> list[BranchRead]:
        trees = [tree for file in [*self.files.values()] for tree in [*file.trees.values()]]
        return [*super()._reads(), *chain.from_iterable([*tree.branches.values()] for tree in trees)]

    def is_new(self, basket: Any) -> bool:
        new = self._baskets.get(id(basket)) is not basket
        self._baskets[id(basket)] = basket
        return new

    def reading(self, tree: Any, start: int, stop: int) -> None:
        self._tree(tree).read.add((int(start), int(stop)))

    def reading_fields(self, fields: Any, options: Row) -> None:
        """Like `reading`, but for an RNTuple. Negative entry numbers count from the end."""
        entries = slice(options.get("entry_start"), options.get("entry_stop"))
        start, stop, _ = entries.indices(int(fields.ntuple.num_entries))
        self.reading(fields.ntuple, start, max(start, stop))

    def metered(self, owner: Any, start: int, stop: int, decompression: Any, interpretation: Any) -> Any:
        """Record the entries that are read from a tree or branch, and return metered executors."""
        # `parent`, a property, would take longer; most branches of a function are read in the same way
        tree = owner._parent if hasattr(type(owner), "basket") else owner
        same, first, last, one, two, metered = self._last
        if not (tree is same and decompression is one and interpretation is two and start == first and stop == last):
            self.reading(tree, start, stop)
            step = metered_executor(self, Decompression, decompression)
            metered = step, metered_executor(self, Interpretation, interpretation)
            self.in_line = not (self.pools or self.ntuples)
            self._last = tree, start, stop, decompression, interpretation, metered
        return metered

    def reading_column(self, original: Any) -> Any:
        """Metered version of an RNTuple method that reads a column across clusters."""
        self.in_line = False
        self._tree(original.__self__)
        return FieldShadow(original, self)

    def field(self, ntuple: Any, column: int) -> BranchRead:
        """Reads of the top-level field that an RNTuple column belongs to."""
        records, number = ntuple.field_records, int(ntuple.column_records[column].field_id)
        while records[number].parent_field_id != number:
            number = int(records[number].parent_field_id)
        return read_in(self._tree(ntuple).branches, str(records[number].field_name))

    def built(self, factory: Any, source: Any, metadata: Any) -> None:
        """Record that coffea has created an events factory; the factory's file is now open."""
        mapping = factory._mapping
        self.watch_cache(mapping)
        if type(mapping).__name__ != "ParquetSourceMapping":
            for tree in (mapping._cache or {}).values():
                self.reading(getattr(tree, "ntuple", tree), mapping._start, mapping._stop)
        elif self.files:
            self.miss("bytes requested from storage", MIXED, *READ)
        else:
            watch_parquet(self, mapping, factory.file_handle)
            file = self._file(str(getattr(source, "name", source)))
            file.kinds = self.kinds
            tree = file.trees[None] = TreeRead(None, self.tree_branches)
            tree.read.add((mapping._start, mapping._stop))
        if isinstance(metadata, dict) and self.dataset is None and metadata.get("dataset") is not None:
            self.dataset = str(metadata["dataset"])

    # time to exclude from process(): opening files and building events

    def begin(self, phase: str) -> str | None:
        """Begin a phase, which may be nested. Return None if this is not the function's thread."""
        if get_ident() != self.places.own or not self.in_process:
            return None
        if not self._entered:
            self._began = [*self.times()]
        self._entered.append([perf_counter(), 0.0])
        return phase

    def end(self, phase: str) -> None:
        began, inside = self._entered.pop()
        wall = perf_counter() - began
        self.phases[phase] += wall - inside
        if self._entered:
            self._entered[-1][1] += wall
        else:
            self.aside = [*map(add, self.aside, map(sub, self.times(), self._began))]

    # results

    def requested(self) -> int | None:
        requested = super().requested() if self.files or self.failed else 0
        if requested is None or self.closed:
            return requested
        return requested - sum(file.requested_before for file in self.files.values())

    def close(self) -> None:
        for file in (*self.files.values(), *self.failed):
            try:
                file.count()
            except Exception as problem:
                self.miss("bytes requested from storage", problem, *READ)
        super().close()
        self._of_sources.clear()
        self._trees.clear()
        self._last = (None,) * 6

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        """Return empty columns, because each file has its own record."""
        return self.columns_of({})

    def columns_of_files(self, metadata: int | None = None) -> list[Row]:
        """Columns for each file's record after `close`, sorted by the number of entries read, largest first.

        `metadata` is the total metadata size from individual requests. If it is None, all requested bytes other than
        payload count as metadata.
        """
        found = [self._columns(file) for file in sorted(self.files.values(), key=lambda file: -file.tree.entries)]
        if found and metadata is not None and self.without_source is None:
            found[0]["bytes_metadata"] = metadata - sum(other["bytes_metadata"] or 0 for other in found[1:])
        return found

    def other_columns(self, added: Added, *, with_failed: bool) -> Row:
        """Columns for the record of the chunk that opens these files; unknown values are None.

        For a failed chunk, the columns include files that could not be opened. Otherwise, these files have separate
        records.
        """
        failed = self.columns_of_failed()
        of_failed = sum(file["bytes_requested"] or 0 for file in failed)
        files = self.columns_of_files(self.late_metadata - of_failed)
        for file in files:
            branches = self._branches(self.files[file["file"]])
            baskets = sorted((name, sorted(read.sizes)) for name, read in branches.items())
            file["baskets"] = crc32(repr(baskets).encode())
        requested, received = self.requested(), None if "bytes_transferred" in self.unknown else self.transferred
        if with_failed:
            files += [dict.fromkeys(AMOUNTS, 0) | file | {"bytes_metadata": file["bytes_requested"]} for file in failed]
        else:
            requested = None if requested is None else requested - of_failed
            parts = [file["bytes_transferred"] for file in failed]
            received = None if None in (received, *parts) else received - sum(parts)
        columns: Row = dict.fromkeys(OTHER) | {"other_files": [redacted(str(file["file"]), added) for file in files]}
        if self.unknown.isdisjoint(READ):
            lists = ([file[amount] for file in files] for amount in AMOUNTS)
            columns |= zip(OTHER, (requested, received, *lists), strict=True)
        return columns

    def columns_of_failed(self) -> list[Row]:
        """Columns for the records of files that could not be opened.

        If a file was read in a later attempt, none of its events are missing.
        """
        return [
            {
                "file": file.path,
                "outcome": ERROR,
                "error": file.error,
                "bytes_transferred": file.transferred,
                "bytes_requested": file.requested,
                "source": ", ".join(file.kinds) or None,
                "events": 0 if file.path in self.files else None,
            }
            for file in self.failed
        ]

    def _branches(self, file: OpenedFile) -> dict[str, BranchRead]:
        """The file's branches; those of trees other than the main one are named after their trees."""
        main = file.tree
        found = self.branches | main.branches
        for name, tree in file.trees.items():
            if tree is not main:
                found |= {f"{name}/{branch}": read for branch, read in tree.branches.items()}
        return found

    def _columns(self, file: OpenedFile) -> Row:
        tree = file.tree
        columns = self.columns_of(self._branches(file))
        payload = sum(columns["bytes_payload"]) + sum(columns["bytes_again"])
        has_source = file.sources or self.without_source is None
        requested = file.requested if has_source else self.without_source
        spans = tree.spans
        return {
            "file": file.path,
            "tree": tree.name,
            "uuid": file.uuid,
            "entry_start": spans[0][0] if spans else None,
            "entry_stop": spans[-1][1] if spans else None,
            "events": tree.entries,
            BRANCHES: columns,
            "bytes_requested": requested,
            "bytes_payload": payload,
            "bytes_metadata": None if requested is None else requested - payload,
            "bytes_transferred": file.transferred if has_source else None,
            "bytes_uncompressed": sum(columns["bytes_uncompressed"]),
            "branches": len(columns["branch"]),
            "tree_branches": tree.leaves,
            "file_bytes": file.bytes,
            "source": ", ".join(dict.fromkeys(file.kinds)) or None,
        }


class FieldShadow(ColumnShadow):
    __slots__ = ()

    def column(self, args: tuple[Any, ...]) -> BranchRead | None:
        tally: Any = self.tally
        found: BranchRead = tally.field(self.original.__self__, int(args[0]))
        return found
