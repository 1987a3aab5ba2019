"""Reads of one attempt: steps of threads and how they add up to waiting, decompression and interpretation.

Methods of single objects are shadowed for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, getitem
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.gauges import Delays
from roastcoffea.instrument.shared import Action
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.packing import BRANCHES_HAVE

VALUES_OF_STEP: Final = 9
"""A thread that turns the baskets it asks for into arrays itself reads its CPU clock, which is a system call, when it
asks for them and at the end of each interpretation. What came before that is recorded with it: of each decompression

    None, None, None, None, branch, number of the basket, its bytes in the file, wall time at the start, and at the end

and of the interpretation

    thread, CPU and wall time at the last reading, seconds without a core since, branch, number of the basket (None: it
    is known already), its uncompressed bytes, CPU and wall time at the end

where the branch is None if something else followed, and the CPU time if that of another thread is not known.
"""

MOST_VALUES: Final = 40_000
"""Values recorded before they are added up."""


class BranchRead:
    """One branch as read by this attempt."""

    __slots__ = ("again", "decompress", "interpret", "parts", "read", "sizes", "uncompressed")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.parts: set[Any] | None = None
        self.again = self.uncompressed = 0
        self.read: float | None = None
        self.decompress = self.interpret = 0.0

    def add(self, basket: int, size: int) -> None:
        """Count a requested basket."""
        if basket in self.sizes:
            self.again += size
        else:
            self.sizes[basket] = size

    def add_part(self, cluster: int, part: Any, size: int) -> None:
        """Count a requested part of a cluster."""
        parts = self.parts = self.parts or set()
        if (cluster, part) in parts:
            self.again += size
            return
        parts.add((cluster, part))
        self.sizes[cluster] = self.sizes.get(cluster, 0) + size


class ReadingThread:
    """What a thread is reading, and its times so far."""

    branch: BranchRead | None = None
    """Field of an RNTuple, or column."""
    pages: tuple[int, int] | None = None
    """Cluster and column of an RNTuple."""
    waited = 0.0
    source_cpu = 0.0
    stepped = 0.0
    """CPU time measured separately, which does not belong to the current field or column."""
    in_chunks = False

    delay = 0.0
    """Seconds without a core since that reading."""
    steps = False
    """Whether that reading was at the end of a step, after which it has asked for nothing."""

    def __init__(self, *, own: bool) -> None:
        self.own = own
        """Whether it is the thread that made the meter."""
        self.cpu, self.wall = thread_time(), perf_counter()
        """Times at the last reading of the CPU clock, if the thread itself decompresses baskets."""
        self.begun: list[Any] = []
        """Decompression since the last reading."""


class ReadingThreads(dict[int, ReadingThread]):
    """What each thread reads, by its identity; the thread that creates this is the meter's own. See also `Sections`."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = get_ident()

    def __missing__(self, thread: int) -> ReadingThread:
        return self.setdefault(thread, ReadingThread(own=thread == self.own))


SIZES: Final = ("bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches")
BY_BRANCH: Final = (*SIZES, "decompress_seconds", "interpret_seconds", "compute_seconds")
WAITED: Final = ("read_seconds", "lock_seconds", "blocked_seconds", "wait_seconds")
READ: Final = (*SIZES, "bytes_requested", "bytes_transferred")
"""Columns of a chunk's record that are unknown if one of the meter's views is missing."""

OF_CLASS: Final = object()
"""Marks an attribute that came from the class itself."""


class Tally(Delays):
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
    others: Any = None
    """What meters the files that process() opens itself, once it opened one."""
    reads: Any = None
    """What counts the bytes that the thread reads, while process() runs."""
    metered_reads = 0
    """Bytes of these that were read for what is metered."""

    problems: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Columns of a chunk's record that could not be metered."""

    read = 0.0
    """Time for which the thread has waited for storage so far."""
    helper_cpu = 0.0
    """CPU time of other threads so far."""

    def __init__(self) -> None:
        # few objects, because each brings the next garbage collection nearer, which takes a worker some 0.4 s
        self.branches: dict[Any, BranchRead] = {}
        self.places = ReadingThreads()
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

    def branch_read(self, name: Any) -> BranchRead:
        """The branch, field or column of this name."""
        return self.branches.get(name) or self.branches.setdefault(name, BranchRead())

    def add_steps(self, noted: Iterable[Any]) -> None:  # noqa: PLR0912  (a call takes longer than a step)
        """Add up steps in order, `VALUES_OF_STEP` values each.

        Without its core, and in no queue for one, a thread waits for baskets, as far as there was time for that between
        its steps. What it had of the core in the rest of the time is that of each step in proportion.
        """
        own, known, read = self.places.own, None, BranchRead()
        begun: list[tuple[Any, ...]] = []
        rows = zip(*[iter(noted)] * VALUES_OF_STEP, strict=True)
        for thread, cpu, asked, delay, branch, basket, size, ended, wall in rows:
            if thread is None:
                begun.append((branch, basket, size, ended, wall))
                continue
            last, between = asked, 0.0
            for _, _, _, start, end in begun:
                if start > last:
                    between += start - last
                last = end
            passed = wall - asked
            had = passed - between if ended is None else ended - cpu
            waited = passed - had - delay
            waited = between if waited > between else waited if waited > 0.0 else 0.0
            busy = had / (passed - waited) if passed > waited + had else 1.0
            last = asked
            for of, number, compressed, start, end in begun:
                if of is not known:
                    known, read = of, self.branch_read(self.name_of_branch(of))
                read.add(number, compressed)
                read.read = (read.read or 0.0) + (waited * (start - last) / between if start > last else 0.0)
                last = end
                if thread == own:
                    read.decompress += (end - start) * busy
                else:
                    self.helper_cpu += (end - start) * busy
            if thread == own:
                self.read += waited
            if begun:
                begun = []
            if branch is None:
                continue
            if branch is not known:
                known, read = branch, self.branch_read(self.name_of_branch(branch))
            if basket is not None:
                # it came with the tree, without a request of its own
                read.add(basket, 0)
            read.uncompressed += size
            if thread == own:
                read.interpret += (wall - last) * busy
            else:
                self.helper_cpu += (wall - last) * busy

    def own(self, here: ReadingThread, cpu: float) -> float:
        """CPU time of the meter's own thread; that of others is what helpers took."""
        if here.own:
            return cpu
        self.helper_cpu += cpu
        return 0.0

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

    def received(self, size: int) -> None:
        """Count bytes that were transferred, unless another source does not tell."""
        with self.lock:
            if self.transferred is not None:
                self.transferred += size

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        """Columns of the branches that were read, see `log.packing.packed_records`."""
        return self.columns_of(self.branches)

    def columns_of(self, branches: dict[Any, BranchRead]) -> dict[str, Sequence[Any]]:
        """Columns of these branches, by name."""
        with self.lock:
            names = [name for name, read in sorted(branches.items()) if read.sizes or read.uncompressed]
            if not names:
                return dict.fromkeys(BRANCHES_HAVE, ())
            values = attrgetter("sizes", "again", "uncompressed", "read", "decompress", "interpret")
            rows: list[Any] = [values(branches[name]) for name in names]
            sizes, again, uncompressed, *seconds = zip(*rows, strict=True)
            counts = listed = [*map(len, sizes)]
            payload = [*map(sum, map(dict.values, sizes))]
            if sum(counts) > 256 + 2 * len(counts):  # else each basket is listed
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

    def read_apart(self, read: Action, *args: Any, **kwargs: Any) -> Any:
        """Result of a read that is metered: what the thread has to `read()` for it is known."""
        before = self.reads.bytes() if self.reads is not None and get_ident() == self.places.own else None
        try:
            return read(*args, **kwargs)
        finally:
            if before is not None:
                self.metered_reads += (self.reads.bytes() or before) - before

    def waiting(self, original: Action, *args: Any, **kwargs: Any) -> Any:
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
            # that is not spent on baskets
            here.cpu += cpu
            here.wall += wall
            here.source_cpu += cpu
            here.waited += waited
            if here.own:
                with self.lock:
                    self.read += waited

    def settle(self, thread: int, here: ReadingThread, cpu: float | None, wall: float) -> None:
        """Record decompression that no interpretation followed until now."""
        begun, here.begun = here.begun[:], []
        if begun and begun[-VALUES_OF_STEP] is None:  # else the thread records it itself
            self.steps.extend((*begun, thread, here.cpu, here.wall, here.delay, None, None, 0, cpu, wall))

    def add_up(self, *, ended: bool = False) -> None:
        """Add up the recorded steps of threads; `ended` if this thread makes no more."""
        with self.lock:
            if ended:
                here = self.places[get_ident()]
                cpu, wall = thread_time(), perf_counter()
                self.settle(get_ident(), here, cpu, wall)
                here.cpu, here.wall, here.delay = cpu, wall, 0.0
            noted = self.steps[:]
            del self.steps[: len(noted)]
            if not self.closed:
                try:
                    self.add_steps(noted)
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
    except (AttributeError, LookupError, TypeError):
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
