"""Steps of threads that read branches of a TTree: how they add up to waiting, decompression and interpretation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

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
the end of all, and its uncompressed bytes. Until then `Place.begun` has the first of these values.
"""

SMALL: Final = 32768
"""Bytes of baskets whose decompression and interpretation share a reading of the CPU clock: larger ones take so long
that a second reading makes no difference."""

VALUES_OF_STEP: Final = 8
REQUESTED: Final = 4
BEGUN: Final = 9
"""Values of `Place.begun` for a basket that was asked for, and for one that has been decompressed."""
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


class Place:
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

    def interrupted(self, cpu: float, wall: float) -> None:
        """Leave out seconds that were not spent on baskets."""
        if self.wall is not None:
            self.wall += wall
            self.last += wall
            self.cpu += cpu

    def decompressed(self, read: BranchRead, began: float, ended: float) -> None:
        """Take note of a step of which only wall times are known until the CPU clock is read."""
        since = None
        if self.awaited > 0 and self.wall is not None:
            self.awaited -= 1
            since = max(began - self.last, 0.0)
        self.steps.append((read, ended - max(began, self.last), since))
        self.last = ended

    def begins(self, began: float | None, ended: float) -> float:
        """CPU time from which a step counts: not before the end of a step inside it."""
        if began is None:
            return self.mark
        # a later end belongs to another thread that had the same identity
        return max(began, self.mark) if self.mark <= ended else began


class Places(dict[int, Place]):
    """What each thread reads, by its identity; the thread that creates this is the meter's own. See also `Sections`."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = get_ident()

    def __missing__(self, thread: int) -> Place:
        return self.setdefault(thread, Place(own=thread == self.own))


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
        self.places = Places()

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
        elif step == INTERRUPTED:
            here.interrupted(ended, wall)
        elif step == DELAYED:
            here.delay += wall
        elif step == DECOMPRESSED:
            read = self.branch_read(self.name_of_branch(branch))
            read.add(basket, size)
            if ended is None:
                here.decompressed(read, began, wall)
                return
            self._settle_before(here, began)
            self._wait_for(here, read, wall - (here.wall or 0.0) - ended + here.cpu - here.delay)
            read.decompress += self._own(here, ended - here.begins(began, ended))
            here.read_clocks(ended, None if here.wall is None else wall)
        else:
            read = self.branch_read(self.name_of_branch(branch))
            if basket is not None:
                # it came with the tree, without a request of its own
                read.add(basket, 0)
            read.uncompressed += size
            self._settle_before(here, began)
            cpu = self._settle(here, ended, wall) if here.steps else ended - here.begins(began, ended)
            read.interpret += self._own(here, cpu)
            here.read_clocks(ended, None if here.wall is None else wall)

    def _settle_before(self, here: Place, cpu: float | None) -> None:
        """Count what came before a step at the start of which the CPU clock was read."""
        if cpu is not None and here.steps:
            self._settle(here, cpu, here.last)
            here.read_clocks(cpu, here.last)

    def _own(self, here: Place, cpu: float) -> float:
        """CPU time of the meter's own thread; that of others is what helpers took."""
        if here.own:
            return cpu
        self.helper_cpu += cpu
        return 0.0

    def _wait_for(self, here: Place, read: BranchRead, waited: float) -> None:
        """Count the wait for a basket that has arrived, if it was awaited."""
        if here.wall is not None and here.awaited > 0:
            here.awaited -= 1
            self._waited(here, read, max(waited, 0.0))

    def _waited(self, here: Place, read: BranchRead, waited: float) -> None:
        read.read = (read.read or 0.0) + waited
        if here.own:
            self.read += waited

    def _settle(self, here: Place, cpu: float, wall: float) -> float:
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
            read.decompress += self._own(here, seconds * busy)
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
