"""Reads of one attempt added up, and shadowing of methods of single objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, getitem
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.gauges import Delays
from roastcoffea.instrument.meter.steps import (
    ASKED,
    BEGUN,
    DECOMPRESSED,
    DELAYED,
    INTERRUPTED,
    REQUESTED,
    BranchRead,
    Place,
    Steps,
)
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.packing import BRANCHES_HAVE

INNER_SIZES: Final = 256
"""Most baskets listed individually in a record, in addition to two per branch."""

SIZES: Final = ("bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches")
BY_BRANCH: Final = (*SIZES, "decompress_seconds", "interpret_seconds", "compute_seconds")
AS_COLUMNS: Final = attrgetter("sizes", "again", "uncompressed", "read", "decompress", "interpret")
WAITED: Final = ("read_seconds", "lock_seconds", "blocked_seconds", "wait_seconds")
READ: Final = (*SIZES, "bytes_requested", "bytes_transferred")
"""Columns of a chunk's record that are unknown if one of the meter's views is missing."""

OF_CLASS: Final = object()
"""Marks an attribute that came from the class itself."""


class Tally(Delays, Steps):
    """What one attempt has read so far.

    A shadow that is not removed holds its object weakly: otherwise the data in it would wait for the garbage collector.

    Clocks are those of the thread that created the tally; work of other threads for it is in `helper_cpu`.
    """

    in_process = False
    """Whether process() is running: only then is waiting recorded, and metadata read then is late."""
    preloads = False
    """Whether baskets are read before process(), as coffea does on request."""
    in_line = False
    """Whether a thread that reads a branch of a TTree turns its baskets into arrays itself."""
    late_metadata = 0
    transferred: int | None = 0
    without_source: int | None = None
    """Bytes requested from a file without an uproot source."""
    requested_at_end: int | None = None
    requested_before: int | None = None
    """Bytes requested before process()."""
    tree_branches: int | None = None
    file_bytes: int | None = None
    servers: Any = None
    """What was asked of servers; None where the file was not read from one whose requests are counted."""
    cached = 0
    """Bytes of arrays from coffea's buffer cache."""
    handler: Any = None
    """The user's own class for sources."""
    keeps_baskets = False
    """Whether uproot keeps baskets of one step for the next."""
    name_of: Callable[[Any], Any] = attrgetter("path")
    """Returns the name of a field or column for coffea's handle."""
    closed = False
    pools = False
    """Whether executors of the user are involved."""
    stepping: int | None = None
    """Thread of the last step, unless baskets were requested since."""

    others: Any = None
    """What meters the files that process() opens itself, once it opened one."""
    reads: Any = None
    """What counts the bytes that the thread reads, while process() runs."""
    metered_reads = 0
    """Bytes of these that were read for what is metered."""

    problems: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Columns of a chunk's record that could not be metered."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Any] = []
        """Steps of threads reading branches of a TTree, not yet added up: `VALUES_OF_STEP` values per step.

        Recording a step is cheaper than adding it up when the analysis has evicted the caches.
        """
        self.lock = threading.RLock()
        self.sources: list[Any] = []
        self.asked: list[Any] = []
        """Ranges that process() requested from sources."""
        self.kinds: list[str] = []
        """Names of the classes that read the file."""
        self.changed: list[tuple[Any, str, Any]] = []
        """Objects, names of their attributes, and the previous values."""
        self.executors: dict[type, Any] = {}
        """Executors that record steps, by class."""

    # results

    def seconds(self) -> tuple[float, float, float]:
        """Times of the thread so far: waiting for storage, CPU time in decompression, and in interpretation."""
        reads = self._reads()
        return self.read, sum([read.decompress for read in reads], 0.0), sum([read.interpret for read in reads], 0.0)

    @property
    def payload(self) -> int:
        """Bytes of baskets requested so far."""
        return sum([sum(read.sizes.values()) + read.again for read in self._reads()])

    def _reads(self) -> list[BranchRead]:
        """All branches so far; other threads may still add to them."""
        self.add_up(ended=True)
        return [*self.branches.values()]

    @property
    def source(self) -> str | None:
        """What read the file; None if nothing was recorded."""
        return ", ".join(dict.fromkeys(self.kinds)) or None

    def requested(self) -> int | None:
        """Bytes requested from storage so far; None if no source was recorded, or one does not count them."""
        if self.without_source is not None:
            return self.without_source
        if not self.sources:
            return self.requested_at_end
        try:
            counted = sum([int(source.num_requested_bytes) for source in self.sources])
            if len(self.places) < 2:
                return counted
            # if two threads add to uproot's counter at the same moment, one addition is lost
            asked: int = sum([stop - start for ranges in [*self.asked] for start, stop in ranges])
            return max(counted, (self.requested_before or 0) + asked)
        except Exception as problem:
            self.miss("bytes requested from storage", problem, *READ)
            return None

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        """Columns of the branches that were read, see `log.packing.packed_records`."""
        return self.columns_of(self.branches)

    def columns_of(self, branches: dict[Any, BranchRead]) -> dict[str, Sequence[Any]]:
        """Columns of these branches, by name."""
        with self.lock:
            names = [name for name, read in sorted(branches.items()) if read.sizes or read.uncompressed]
            if not names:
                return dict.fromkeys(BRANCHES_HAVE, ())
            rows: list[Any] = [AS_COLUMNS(branches[name]) for name in names]
            sizes, again, uncompressed, *seconds = zip(*rows, strict=True)
            counts = listed = [*map(len, sizes)]
            payload = [*map(sum, map(dict.values, sizes))]
            if sum(counts) > INNER_SIZES + 2 * len(counts):
                sizes = tuple(map(_ends, sizes))
                listed = [*map(len, sizes)]
            baskets = [*chain.from_iterable(sizes)]
            bytes_of_baskets = [*chain.from_iterable(map(dict.values, sizes))]
            columns: list[Any] = [names, payload, again, uncompressed, counts, *seconds]
            columns += listed, baskets, bytes_of_baskets
            return dict(zip(BRANCHES_HAVE, columns, strict=True))

    # reports from shadows

    def name_of_branch(self, branch: Any) -> Any:
        """Name of a branch of a TTree among what was read."""
        return branch_path(branch)

    def is_new(self, basket: Any) -> bool:  # noqa: ARG002  (for what reads in steps)
        """Whether an array is made of this basket for the first time: it may be kept for the next step."""
        return True

    def miss(self, what: str, problem: Exception | str, *unknown: str) -> None:
        """Report what could not be metered; the chunk must be processed all the same."""
        if isinstance(problem, Exception):
            raise_if_interrupted(problem)
        reason = problem if isinstance(problem, str) else error_text(problem)
        text = f"{what} could not be metered: {reason}"
        with self.lock:
            self.unknown |= set(unknown)
            if text not in self.problems:
                self.problems += (text,)

    def shadow(self, thing: Any, method: str, shadow: Callable[[Any, Tally], Any]) -> None:
        """Route a method of one object through this, until `restore`."""
        self.change(thing, method, shadow(getattr(thing, method), self), OF_CLASS)

    def change(self, thing: Any, name: str, value: Any, before: Any) -> None:
        """Set an attribute of an object, until `restore`."""
        setattr(thing, name, value)
        self.changed.append((thing, name, before))

    def restore(self) -> None:
        """Restore all objects."""
        while self.changed:
            thing, name, before = self.changed.pop()
            try:
                if before is OF_CLASS:
                    thing.__dict__.pop(name, None)
                else:
                    setattr(thing, name, before)
            except Exception as problem:
                self.miss("a shadow was left behind", problem)

    def read_apart(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Result of a read that is metered: what the thread has to `read()` for it is known."""
        before = self.reads.bytes() if self.reads is not None and get_ident() == self.places.own else None
        try:
            return read(*args, **kwargs)
        finally:
            if before is not None:
                self.metered_reads += (self.reads.bytes() or before) - before

    def waiting(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Result of a function, with its duration counted as waiting for storage."""
        here = self.places[get_ident()]
        cpu, wall = thread_time(), perf_counter()
        if here.own:
            self.waits(wall - cpu)
        try:
            return original(*args, **kwargs)
        finally:
            ended, now = thread_time(), perf_counter()
            cpu, wall = ended - cpu, now - wall
            waited = max(wall - cpu - (self.delayed(now - ended) if here.own else 0.0), 0.0)
            if self.in_line:
                self.note_begun(get_ident(), here)
                self.steps.extend((INTERRUPTED, get_ident(), None, 0, 0, None, cpu, wall))
            here.source_cpu += cpu
            here.waited += waited
            if here.own:
                with self.lock:
                    self.read += waited

    def without_core(self, thread: int, off_core: float) -> None:
        """Record for how long a thread had no core during a long wait that ends now; `off_core` as for `delayed`."""
        if off_core - self.waits_since > self.shortest and thread == self.places.own:
            self.note_begun(thread, self.places[thread])
            self.steps.extend((DELAYED, thread, None, 0, 0, None, 0.0, self.delayed(off_core)))

    def note_begun(self, thread: int, here: Place) -> None:
        """Record the steps of a basket of which another step of this thread keeps it from being recorded as a whole."""
        if not here.begun:
            return
        # another thread may be about to record it as a whole
        begun, here.begun = here.begun[:], []
        if len(begun) not in {REQUESTED, BEGUN}:
            return
        _, _, cpu, wall, *made = begun
        self.steps.extend((ASKED, thread, None, 1, 0, None, cpu, wall))
        if made:
            branch, basket, size, began, ended = made
            self.steps.extend((DECOMPRESSED, thread, branch, basket, size, began, None, ended))

    def add_up(self, *, ended: bool = False) -> None:
        """Add up the recorded steps of threads, which may have `ended` or go on."""
        with self.lock:
            if ended:
                self.note_begun(get_ident(), self.places[get_ident()])
            noted = self.steps[:]
            del self.steps[: len(noted)]
            if not self.closed:
                try:
                    self.add_steps(noted)
                    if ended:
                        self.settle_rest()
                except Exception as problem:
                    self.miss("bytes of branches", problem, *BY_BRANCH)


def _ends(sizes: dict[int, int]) -> dict[int, int]:
    """Sizes of the first and the last basket."""
    return {end(sizes): sizes[end(sizes)] for end in (min, max) if sizes}


def branch_path(branch: Any) -> str:
    """Names of a branch and its parents, below the tree."""
    try:
        # where its properties find them after half a dozen calls
        name, parent = branch._bases[0]._members["fName"], branch._parent
    except (AttributeError, LookupError, TypeError) as error:
        raise_if_interrupted(error)
        name, parent = branch.name, branch.parent
    return f"{branch_path(parent)}/{name}" if hasattr(type(parent), "basket") else str(name)


class Shadow:
    """A method of one object that goes through the tally; a copy or pickle of it is the method itself."""

    __slots__ = ("original", "tally")

    def __init__(self, original: Any, tally: Tally) -> None:
        self.original = original
        self.tally = tally

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.original.__self__, self.original.__name__)


class StandIn:
    """Delegates all other attributes to the object it replaces; a copy or pickle of it is that object."""

    __slots__ = ("_inner",)
    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._inner,), 0)
