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

ASKED, INTERRUPTED, DELAYED, DECOMPRESSED, INTERPRETED, WHOLE = range(6)
"""Steps of reading branches of a TTree.

Decompression and interpretation are recorded as: step, thread, branch, number of the basket (None: already recorded),
its bytes in the file or uncompressed, CPU time of the thread at the start (None: at the end of the previous step) and
at the end, wall time at the end. The first has the number of baskets, CPU and wall time; the wall time is None if
waiting is not recorded. The second has its seconds of CPU and of wall time, the third its seconds without a core.

A thread that also interprets what it decompresses reads its CPU clock, which is a system call, at the end of both if
the basket is small: the first of them then has its wall time at the start, and no CPU time at the end.

Almost always a thread asks for a single small basket, and does nothing else until it has made an array of it. All of
that is one step, which takes the values of two: step, thread, CPU and wall time of the request, branch, number of the
basket, its bytes in the file, wall time at the start of its decompression; then that at its end, CPU and wall time at
the end of all, and its uncompressed bytes. Until then `ReadingThread.begun` has the first of these values.
"""

SMALL: Final = 32768
"""Bytes of baskets whose decompression and interpretation share a reading of the CPU clock: larger ones take so long
that a second reading makes no difference."""

VALUES_OF_STEP: Final = 8
REQUESTED: Final = 4
BEGUN: Final = 9
"""Values of `ReadingThread.begun` for a basket that was asked for, and for one that has been decompressed."""
BRANCH: Final = 4
"""Where its branch is among them."""

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

    wall: float | None = None
    cpu = 0.0
    """Times at the last reading of the CPU clock, if the thread itself decompresses baskets."""
    last = 0.0
    """Wall time at the end of the previous step."""
    delay = 0.0
    """Seconds without a core since that reading."""
    awaited = 0
    """Number of baskets still to arrive."""
    mark = 0.0
    """CPU time at the end of the previous step."""

    def __init__(self, *, own: bool) -> None:
        self.own = own
        """Whether it is the thread that made the meter."""
        self.begun: list[Any] = []
        """First values of a step with a whole basket, which was asked for alone."""
        self.steps: list[tuple[BranchRead, float, float | None]] = []
        """Decompression since that reading: branch, duration, and time since the previous step, if it was awaited."""

    def read_clocks(self, cpu: float, wall: float | None) -> None:
        """Begin anew at these times."""
        self.mark = self.cpu = cpu
        self.wall, self.delay = wall, 0.0
        self.last = wall or 0.0

    def begins(self, began: float | None, ended: float) -> float:
        """CPU time from which a step counts: not before the end of a step inside it."""
        if began is None:
            return self.mark
        # a later end belongs to another thread that had the same identity
        return max(began, self.mark) if self.mark <= ended else began


class ReadingThreads(dict[int, ReadingThread]):
    """What each thread reads, by its identity; the thread that creates this is the meter's own. See also `Sections`."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = get_ident()

    def __missing__(self, thread: int) -> ReadingThread:
        return self.setdefault(thread, ReadingThread(own=thread == self.own))


class Steps:
    """Steps of all threads of an attempt added up."""

    read = 0.0
    """Time for which the thread has waited for storage so far."""
    helper_cpu = 0.0
    """CPU time of other threads so far."""
    name_of_branch: Callable[[Any], Any]

    def __init__(self) -> None:
        # few objects, because each brings the next garbage collection nearer, which takes a worker some 0.4 s
        self.branches: dict[Any, BranchRead] = {}
        self.places = ReadingThreads()

    def branch_read(self, name: Any) -> BranchRead:
        """The branch, field or column of this name."""
        return self.branches.get(name) or self.branches.setdefault(name, BranchRead())

    def add_steps(self, noted: Iterable[Any]) -> None:
        """Add up steps in order, `VALUES_OF_STEP` values each."""
        places, branches, name_of = self.places, self.branches, self.name_of_branch
        steps = zip(*[iter(noted)] * VALUES_OF_STEP, strict=True)
        for values in steps:
            if values[0] != WHOLE:
                self._add_step(*values)
                continue
            # adds the same as its three steps would, in less time
            _, thread, cpu, asked, branch, basket, size, began = values
            made, ended, wall, uncompressed, _, _, _, _ = next(steps)
            here = places[thread]
            if here.steps:
                self._settle(here, cpu, asked)
            name = name_of(branch)
            read = branches.get(name)
            if read is None:
                read = branches[name] = BranchRead()
            if basket in read.sizes:
                read.again += size
            else:
                read.sizes[basket] = size
            read.uncompressed += uncompressed
            had, passed, between = ended - cpu, wall - asked, began - asked
            waited = passed - had
            waited = between if waited > between else waited if waited > 0.0 else 0.0
            busy = had / (passed - waited) if passed > waited + had else 1.0
            read.read = waited if read.read is None else read.read + waited
            if here.own:
                self.read += waited
                read.decompress += (made - began) * busy
                read.interpret += (wall - made) * busy
            else:
                self.helper_cpu += (wall - began) * busy
            here.mark = here.cpu = ended
            here.wall = here.last = wall
            here.delay, here.awaited = 0.0, 0

    def _add_step(  # noqa: PLR0917
        self, step: int, thread: int, branch: Any, basket: Any, size: int, began: Any, ended: Any, wall: Any
    ) -> None:
        """Add one step."""
        here = self.places[thread]
        if step == ASKED:
            if here.steps:
                self._settle(here, ended, here.last if wall is None else wall)
            here.awaited = basket
            here.read_clocks(ended, wall)
            return
        if step == INTERRUPTED:
            if here.wall is not None:
                # seconds that were not spent on baskets
                here.wall, here.last, here.cpu = here.wall + wall, here.last + wall, here.cpu + ended
            return
        if step == DELAYED:
            here.delay += wall
            return
        read, waits = self.branch_read(self.name_of_branch(branch)), False
        if step == DECOMPRESSED:
            read.add(basket, size)
            if here.wall is not None and here.awaited > 0:
                here.awaited, waits = here.awaited - 1, True
            if ended is None:
                # only wall times are known until the CPU clock is read
                since = max(began - here.last, 0.0) if waits else None
                here.steps.append((read, wall - max(began, here.last), since))
                here.last = wall
                return
            self._settle_before(here, began)
            if waits:
                self._waited(here, read, max(wall - (here.wall or 0.0) - ended + here.cpu - here.delay, 0.0))
            read.decompress += self.own(here, ended - here.begins(began, ended))
        else:
            if basket is not None:
                # it came with the tree, without a request of its own
                read.add(basket, 0)
            read.uncompressed += size
            self._settle_before(here, began)
            cpu = self._settle(here, ended, wall) if here.steps else ended - here.begins(began, ended)
            read.interpret += self.own(here, cpu)
        here.read_clocks(ended, None if here.wall is None else wall)

    def _settle_before(self, here: ReadingThread, cpu: float | None) -> None:
        """Count what came before a step at the start of which the CPU clock was read."""
        if cpu is not None and here.steps:
            self._settle(here, cpu, here.last)
            here.read_clocks(cpu, here.last)

    def own(self, here: ReadingThread, cpu: float) -> float:
        """CPU time of the meter's own thread; that of others is what helpers took."""
        if here.own:
            return cpu
        self.helper_cpu += cpu
        return 0.0

    def _waited(self, here: ReadingThread, read: BranchRead, waited: float) -> None:
        read.read = (read.read or 0.0) + waited
        if here.own:
            self.read += waited

    def _settle(self, here: ReadingThread, cpu: float, wall: float) -> float:
        """CPU time of what ends now, after that of the decompression since the clock was last read is known.

        Without its core, and in no queue for one, a thread waits for baskets, as far as there was time for that between
        the steps. What it had of the core in the rest of the time is that of each step in proportion.
        """
        steps, here.steps = here.steps, []
        rest = max(wall - here.last, 0.0)
        between = sum([since or 0.0 for _, _, since in steps])
        waited, busy = 0.0, 1.0
        if here.wall is not None:
            passed, had = wall - here.wall, cpu - here.cpu
            waited = min(max(passed - had - here.delay, 0.0), between)
            busy = min(max(had / (passed - waited), 0.0), 1.0) if passed > waited else 1.0
        for read, seconds, since in steps:
            read.decompress += self.own(here, seconds * busy)
            if since is not None:
                self._waited(here, read, waited * since / between if between else 0.0)
        return rest * busy

    def settle_rest(self) -> None:
        """Count decompression that no interpretation followed, such as that of what never came."""
        me = get_ident()
        for thread, here in [*self.places.items()]:
            if not here.steps:
                continue
            if thread == me:
                cpu, wall = thread_time(), perf_counter()
            else:
                # its clock cannot be read: what passed between its steps was waiting
                between = sum([since or 0.0 for _, _, since in here.steps])
                cpu, wall = here.cpu + here.last - (here.wall or here.last) - between, here.last
            self._settle(here, cpu, wall)
            here.read_clocks(cpu, wall)


SIZES: Final = ("bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches")
BY_BRANCH: Final = (*SIZES, "decompress_seconds", "interpret_seconds", "compute_seconds")
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

    def note_begun(self, thread: int, here: ReadingThread) -> None:
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
