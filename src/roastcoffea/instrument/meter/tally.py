"""Totals of an attempt's reads, waits and CPU times, added up from its threads' steps.

The steps are recorded by shadows of individual objects' methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, getitem, sub
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.gauges import Delays
from roastcoffea.instrument.shared import Action
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.packing import BRANCHES_HAVE

VALUES_OF_STEP: Final = 9
"""Number of values recorded for each step.

A thread that turns baskets into arrays itself reads its CPU clock (a system call) only when it requests baskets and at
the end of each interpretation. Each interpretation is recorded together with the preceding decompressions. The values
of a decompression are

    None, None, None, None, branch, basket number, bytes in the file, wall time at the start, wall time at the end

and the values of an interpretation are

    thread, CPU time and wall time at the last read, seconds spent waiting for a core since then, branch, basket
    number (None if already known), uncompressed bytes, CPU time and wall time at the end

The branch is None if no interpretation followed. The CPU time is None if it is unknown because another thread ran the
step.
"""

MOST_VALUES: Final = 40_000
"""Maximum number of recorded values before steps are added up."""


class BranchRead:
    __slots__ = ("again", "decompress", "interpret", "parts", "read", "sizes", "uncompressed")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.parts: set[Any] | None = None
        self.again = self.uncompressed = 0
        self.read: float | None = None
        self.decompress = self.interpret = 0.0

    def add(self, basket: int, size: int) -> None:
        if basket in self.sizes:
            self.again += size
        else:
            self.sizes[basket] = size

    def add_part(self, cluster: int, part: Any, size: int) -> None:
        parts = self.parts = self.parts or set()
        if (cluster, part) in parts:
            self.again += size
            return
        parts.add((cluster, part))
        self.sizes[cluster] = self.sizes.get(cluster, 0) + size


def read_in(branches: dict[str, BranchRead], name: str) -> BranchRead:
    return branches.get(name) or branches.setdefault(name, BranchRead())


class ReadingThread:
    branch: BranchRead | None = None
    """The RNTuple field or Parquet column that the thread is reading."""
    pages: tuple[int, int] | None = None
    """The RNTuple cluster and column whose pages the thread is reading."""
    waited = 0.0
    source_cpu = 0.0
    stepped = 0.0
    """CPU time that was measured separately and does not belong to the current field or column."""
    in_chunks = False

    delay = 0.0
    """Seconds spent waiting for a core since the CPU clock was last read."""
    steps = False
    """Whether the CPU clock was last read at the end of a step, with no request since."""

    def __init__(self, *, own: bool) -> None:
        self.own = own
        """Whether this thread created the meter."""
        self.cpu, self.wall = thread_time(), perf_counter()
        """Clock readings when the CPU clock was last read, if the thread itself decompresses baskets."""
        self.begun: list[Any] = []
        """Decompressions since the CPU clock was last read."""


class ReadingThreads(dict[int, ReadingThread]):
    """Each thread's reads by thread ID. The thread that creates this object is the meter's own."""

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
"""Chunk record columns that are unknown if any of the meter's shadows is missing."""

OF_CLASS: Final = object()
"""Marks an attribute that an object inherits from its class."""


class Tally(Delays):
    """Running totals of an attempt's reads.

    Shadows that are left in place hold only weak references to their objects, so that the objects' data can be freed
    without a garbage collection.

    Times are measured on the thread that created the tally. `helper_cpu` is the CPU time of other threads that work for
    this thread.
    """

    in_process = False
    """Whether process() is running. Only then are waits recorded and metadata reads counted as late."""
    preloads = False
    """Whether coffea has been asked to preload baskets, i.e. to read them before process()."""
    in_line = False
    """Whether a thread that reads a TTree branch turns the baskets into arrays itself."""
    late_metadata = 0
    transferred: int | None = 0
    without_source: int | None = None
    """Bytes requested from a file that has no uproot source."""
    requested_at_end: int | None = None
    requested_before: int | None = None
    tree_branches: int | None = None
    file_bytes: int | None = None
    servers: Any = None
    """Counter of requests to servers, or None if the file's requests are not counted."""
    cached = 0
    """Total size, in bytes, of arrays found in coffea's buffer cache."""
    handler: Any = None
    """The user's source class, if any."""
    keeps_baskets = False
    """Whether uproot keeps baskets from one step for use in the next step."""
    name_of: Callable[[Any], Any] = attrgetter("path")
    """Returns the field or column name for coffea's handle."""
    closed = False
    pools = False
    """Whether the user passed any executor."""
    others: Any = None
    """Meter for files that process() opens itself; None before the first such file."""
    writes: Any = None
    """Meter for files that process() writes; None before the first such file."""
    aside: Sequence[float] = (0.0,) * 6
    """How much the values of `times` increased while files were opened and events were built."""
    reads: Any = None
    """Gauge for the bytes that the thread reads and writes while process() is running."""
    metered_reads = 0
    """Number of bytes in `reads` that belong to metered reads."""

    problems: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    """Chunk record columns that could not be metered."""

    summing = 0.0
    """CPU time that adding up steps has taken so far."""
    baskets, timed, noting = 0, 0, 0.0
    """Number of baskets interpreted by the chunk's thread, how many were timed, and the CPU time to note those."""
    longest = 1e-4
    """Maximum CPU time to note a basket, in seconds. Anything longer contains a garbage collection."""
    of_shadows = 5.5
    """CPU time of all shadows for a basket, relative to the time to note its interpretation."""

    read = 0.0
    """Seconds that the thread has waited for storage so far."""
    helper_cpu = 0.0

    def __init__(self) -> None:
        # create few objects, because each one brings the next garbage collection (about 0.4 s on a worker) closer
        self.branches: dict[str, BranchRead] = {}
        self.places = ReadingThreads()
        self.steps: list[Any] = []
        """Steps not yet added up, from threads that read TTree branches: `VALUES_OF_STEP` values per step.

        Recording a step is cheaper than adding it up immediately, because the CPU caches contain the analysis's data at
        that time.
        """
        self.lock = threading.RLock()
        self.sources: list[Any] = []
        self.asked: list[Any] = []
        """Ranges that process() requested from sources."""
        self.kinds: list[str] = []
        """Names of the classes that read the file."""
        self.changed: list[tuple[Any, str, Any]] = []
        """Changed objects, attribute names and previous values."""
        self.executors: dict[type, Any] = {}

    def branch_read(self, name: str) -> BranchRead:
        return read_in(self.branches, name)

    def add_steps(self, noted: Iterable[Any]) -> None:  # noqa: PLR0912  (a call takes longer than a step)
        """Add up steps in order, with `VALUES_OF_STEP` values per step.

        A thread that is neither on a core nor in the run queue counts as waiting for baskets, but only up to the time
        between its steps. During the remaining time, the thread had some share of a core, and each step is charged that
        share of its duration.
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
                    known, read = of, self.read_of(of)
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
                known, read = branch, self.read_of(branch)
            if basket is not None:
                # the basket came with the tree, not from a separate request
                read.add(basket, 0)
            read.uncompressed += size
            if thread == own:
                read.interpret += (wall - last) * busy
            else:
                self.helper_cpu += (wall - last) * busy

    def measuring(self) -> float:
        """CPU time of baskets' shadows so far, estimated from what was timed, and of adding up their steps."""
        shadows = self.of_shadows * self.noting * self.baskets / self.timed if self.timed else 0.0
        return shadows + self.summing

    def own(self, here: ReadingThread, cpu: float) -> float:
        """Return the CPU time if this is the meter's own thread; otherwise, add it to `helper_cpu` and return 0."""
        if here.own:
            return cpu
        self.helper_cpu += cpu
        return 0.0

    # results

    def seconds(self) -> tuple[float, float, float]:
        """Times so far, in seconds: storage waits, CPU time for decompression, CPU time for interpretation."""
        reads = self._reads()
        return self.read, sum([read.decompress for read in reads], 0.0), sum([read.interpret for read in reads], 0.0)

    def times(self) -> Iterator[float]:
        """For this thread: time waiting for a core, wall time, CPU time, and the values of `seconds`, minus `aside`."""
        read, delay = self.seconds(), None if self.core_wait is None else self.core_wait.seconds()
        return map(sub, (delay or 0.0, perf_counter(), thread_time(), *read), self.aside)

    @property
    def payload(self) -> int:
        """Basket bytes requested so far."""
        return sum([sum(read.sizes.values()) + read.again for read in self._reads()])

    def _reads(self) -> list[BranchRead]:
        """Copy of the branches so far; other threads may still add branches."""
        self.add_up(ended=True)
        return [*self.branches.values()]

    @property
    def source(self) -> str | None:
        """Names of the classes that read the file, or None if nothing was recorded."""
        return ", ".join(dict.fromkeys(self.kinds)) or None

    def requested(self) -> int | None:
        """Bytes requested from storage so far, or None if they are not counted."""
        if self.without_source is not None:
            return self.without_source
        if not self.sources:
            return self.requested_at_end
        try:
            counted = sum([int(source.num_requested_bytes) for source in self.sources])
            if len(self.places) < 2:
                return counted
            # if two threads increase uproot's counter at the same moment, one increase is lost
            asked: int = sum([stop - start for ranges in [*self.asked] for start, stop in ranges])
            return max(counted, (self.requested_before or 0) + asked)
        except Exception as problem:
            self.miss("bytes requested from storage", problem, *READ)
            return None

    def received(self, size: int) -> None:
        """Add transferred bytes, unless some source does not report them."""
        with self.lock:
            if self.transferred is not None:
                self.transferred += size

    def branch_columns(self) -> dict[str, Sequence[Any]]:
        return self.columns_of(self.branches)

    def columns_of(self, branches: dict[str, BranchRead]) -> dict[str, Sequence[Any]]:
        with self.lock:
            names = [name for name, read in sorted(branches.items()) if read.sizes or read.uncompressed]
            if not names:
                return dict.fromkeys(BRANCHES_HAVE, ())
            values = attrgetter("sizes", "again", "uncompressed", "read", "decompress", "interpret")
            rows: list[Any] = [values(branches[name]) for name in names]
            sizes, again, uncompressed, *seconds = zip(*rows, strict=True)
            counts = listed = [*map(len, sizes)]
            payload = [*map(sum, map(dict.values, sizes))]
            if sum(counts) > 256 + 2 * len(counts):  # if there are fewer baskets, all of them are listed
                sizes = tuple(map(_ends, sizes))
                listed = [*map(len, sizes)]
            baskets = [*chain.from_iterable(sizes)]
            bytes_of_baskets = [*chain.from_iterable(map(dict.values, sizes))]
            columns: list[Any] = [names, payload, again, uncompressed, counts, *seconds]
            columns += listed, baskets, bytes_of_baskets
            return dict(zip(BRANCHES_HAVE, columns, strict=True))

    # called by the shadows

    def read_of(self, branch: Any) -> BranchRead:
        return read_in(self.branches, branch_path(branch))

    def is_new(self, basket: Any) -> bool:  # noqa: ARG002  (for subclasses that read in steps)
        """Whether a basket is being interpreted for the first time. uproot may keep baskets for later reads."""
        return True

    def miss(self, what: str, problem: Exception | str, *unknown: str) -> None:
        """Report that something could not be metered. The chunk must be processed in any case."""
        if isinstance(problem, Exception):
            raise_if_interrupted(problem)
        reason = problem if isinstance(problem, str) else error_text(problem)
        text = f"{what} could not be metered: {reason}"
        with self.lock:
            self.unknown |= set(unknown)
            if text not in self.problems:
                self.problems += (text,)

    def shadow(self, thing: Any, method: str, shadow: Callable[[Any, Tally], Any]) -> None:
        """Replace an object's method with a shadow until `restore`."""
        self.change(thing, method, shadow(getattr(thing, method), self), OF_CLASS)

    def change(self, thing: Any, name: str, value: Any, before: Any) -> None:
        setattr(thing, name, value)
        self.changed.append((thing, name, before))

    def restore(self) -> None:
        while self.changed:
            thing, name, before = self.changed.pop()
            try:
                if before is OF_CLASS:
                    thing.__dict__.pop(name, None)
                else:
                    setattr(thing, name, before)
            except Exception as problem:
                self.miss("reads after a shadow was left behind", problem)

    def read_apart(self, read: Action, *args: Any, **kwargs: Any) -> Any:
        """Run a metered read, and count the bytes that the thread reads in `read()` calls."""
        before = self.reads.bytes() if self.reads is not None and get_ident() == self.places.own else None
        try:
            return read(*args, **kwargs)
        finally:
            if before is not None:
                self.metered_reads += (self.reads.bytes() or before) - before

    def waiting(self, original: Action, *args: Any, **kwargs: Any) -> Any:
        """Run a function, and count its off-CPU time as a wait for storage."""
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
            # this time must not be charged to baskets
            here.cpu += cpu
            here.wall += wall
            here.source_cpu += cpu
            here.waited += waited
            if here.own:
                with self.lock:
                    self.read += waited

    def settle(self, thread: int, here: ReadingThread, cpu: float | None, wall: float) -> None:
        """Record the thread's decompressions that no interpretation has followed yet."""
        begun, here.begun = here.begun[:], []
        if begun and begun[-VALUES_OF_STEP] is None:  # unless the thread records the steps itself
            self.steps.extend((*begun, thread, here.cpu, here.wall, here.delay, None, None, 0, cpu, wall))

    def add_up(self, *, ended: bool = False) -> None:
        """Add up the recorded steps, including this thread's latest decompressions if `ended` is set."""
        with self.lock:
            if ended:
                here = self.places[get_ident()]
                cpu, wall = thread_time(), perf_counter()
                self.settle(get_ident(), here, cpu, wall)
                here.cpu, here.wall, here.delay = cpu, wall, 0.0
            noted = self.steps[:]
            del self.steps[: len(noted)]
            if noted and not self.closed:
                began = thread_time()
                try:
                    self.add_steps(noted)
                except Exception as problem:
                    self.miss("bytes by branch", problem, *BY_BRANCH)
                if get_ident() == self.places.own:
                    self.summing += thread_time() - began


def _ends(sizes: dict[int, int]) -> dict[int, int]:
    return {end(sizes): sizes[end(sizes)] for end in (min, max) if sizes}


def branch_path(branch: Any) -> str:
    """Path of a branch within its tree, including parent branches."""
    try:
        # read the stored members, because the properties make half a dozen calls
        name, parent = branch._bases[0]._members["fName"], branch._parent
    except (AttributeError, LookupError, TypeError):
        name, parent = branch.name, branch.parent
    return f"{branch_path(parent)}/{name}" if hasattr(type(parent), "basket") else str(name)


class Shadow:
    """Metered replacement for an object's method. Copies and pickles contain the original method."""

    __slots__ = ("original", "tally")

    def __init__(self, original: Any, tally: Tally) -> None:
        self.original = original
        self.tally = tally

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.original.__self__, self.original.__name__)


class StandIn:
    """Stand-in that delegates to an object. Copies and pickles contain the object itself."""

    __slots__ = ("_inner",)
    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, ((self._inner,), 0)
