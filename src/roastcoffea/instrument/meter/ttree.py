"""Branches of a TTree: executors that note decompression and interpretation of each basket."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.meter.tally import BY_BRANCH, DECOMPRESSED, INTERPRETED, StandIn, Tally

MOST_COUNTED: Final = 100
_counted: Final[dict[tuple[bytes, str, int], int]] = {}


def leaves_once(tree: Any, file_bytes: int) -> int:
    """Number of leaves of a tree, which is not counted again for each chunk: a wide file has thousands."""
    # what uproot has of the file's identity as text would take longer than all else here
    key = tree.file.fUUID, getattr(tree.parent, "fSeekKey", None) or tree.object_path, file_bytes
    number = _counted.get(key)
    if number is None:
        if len(_counted) >= MOST_COUNTED:
            _counted.clear()
        number = _counted[key] = _leaves(tree)
    return number


def _leaves(tree: Any) -> int:
    """Number of branches that hold data of their own."""
    return sum([_leaves(branch) if branch.branches else 1 for branch in tree.branches])


class NotingExecutor(StandIn):
    """uproot's own executor, which runs a task at once, with its tasks noted.

    When the attempt has ended it has no tally, which a file that keeps this executor would keep until garbage is
    collected.
    """

    __slots__ = ("_future", "tally")

    def __init__(self, inner: Any, future: type, tally: Tally) -> None:
        self._inner = inner
        self._future = future
        self.tally: Tally | None = tally


class Decompression(NotingExecutor):
    """A basket's first step."""

    __slots__ = ()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        if tally is None:
            return self._inner.submit(task, *args, **kwargs)
        began = thread_time()
        result = task(*args, **kwargs)
        ended, wall = thread_time(), perf_counter()
        try:
            chunk, branch, basket = args
            size = chunk.stop - chunk.start
            tally.stepping = thread = get_ident()
            tally.steps.extend((DECOMPRESSED, thread, branch, basket, size, began, ended, wall))
        except Exception as problem:
            tally.miss("bytes of branches", problem, *BY_BRANCH)
        return self._future(result)


class Interpretation(NotingExecutor):
    """A basket's last step, to which the CPU time since the step before belongs, if there was one on this thread."""

    __slots__ = ()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tally = self.tally
        if tally is None:
            return self._inner.submit(task, *args, **kwargs)
        thread = get_ident()
        began = None if tally.in_line and tally.stepping == thread else thread_time()
        result = task(*args, **kwargs)
        ended, wall = thread_time(), perf_counter()
        try:
            (basket,) = args
            number, size = None, basket.uncompressed_bytes
            if basket.is_embedded:
                # its header tells the size of its buffer, used or not, where it came with the tree
                parts = basket.data, basket.byte_offsets
                number, size = basket.basket_num, sum([int(part.nbytes) for part in parts if part is not None])
            tally.stepping = thread
            tally.steps.extend((INTERPRETED, thread, basket.parent, number, size, began, ended, wall))
        except Exception as problem:
            tally.miss("bytes of branches", problem, *BY_BRANCH)
        return self._future(result)


EXECUTORS: Final[tuple[tuple[str, type[NotingExecutor]], ...]] = (
    ("decompression_executor", Decompression),
    ("interpretation_executor", Interpretation),
)
"""Options for `uproot.open`, also attributes of coffea's mapping, and what stands in for their values."""


def noting_executor(tally: Tally, kind: type[NotingExecutor], given: Any) -> Any:
    """An executor that notes its steps, and works like the given one; None is uproot's own, which has no state."""
    from uproot.source.futures import TrivialExecutor, TrivialFuture

    executor = tally.executors.get(kind)
    if executor is None:
        executor = tally.executors[kind] = kind(TrivialExecutor(), TrivialFuture, tally)
    if given is None or type(given) is TrivialExecutor:
        return executor
    tally.pools = True
    return _Pool(given, executor.submit)


class _Pool(StandIn):
    """An executor of the user's that runs what another one notes."""

    __slots__ = ("_submit",)

    def __init__(self, inner: Any, submit: Callable[..., Any]) -> None:
        self._inner = inner
        self._submit = submit

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._inner.submit(_result, self._submit, task, *args, **kwargs)


def _result(submit: Callable[..., Any], task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return submit(task, *args, **kwargs).result()
