"""Recording without a change to the analysis: each Runner call is measured by a collector of its own, and saved.

With `ROASTCOFFEA=FOLDER` in the environment, `import roastcoffea.auto` records until the process ends, and tells of
each measurement on stderr. Without it the import does nothing; nor does it in processes that multiprocessing started.
"""

from __future__ import annotations

import _thread
import functools
import importlib.util
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.errors import RoastcoffeaError, reported
from roastcoffea.interrupts import exit_in_any_case, uninterrupted, whole

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector

FOLDER_VARIABLE: Final = "ROASTCOFFEA"
RUNNER_MODULE: Final = "coffea.processor.executor"
LAST_SECONDS: Final = 15.0
"""What saving may take when the process was told to end; batch systems kill after half a minute or so."""

log = logging.getLogger(__name__)
_recorders: list[Recorder] = []


class TerminatedError(RoastcoffeaError):
    """The process was told to end while it was measured."""


def record(folder: str | os.PathLike[str]) -> whole[Recorder]:
    """Measure each Runner call in the block, whatever thread makes it, and save the measurements in a folder.

    A call inside of an open `MetricsCollector` is left to that. What cannot be measured runs all the same, and a line
    on stderr says why.

    Examples
    --------
    >>> with record("runs") as recorder:  # doctest: +SKIP
    ...     runner(fileset, processor_instance=processor)
    >>> recorder.saved  # doctest: +SKIP
    [PosixPath('/home/me/runs/2026-11-21T120000Z-001')]
    """
    return whole(_recorded(Recorder(folder)))


@contextmanager
def _recorded(recorder: Recorder) -> Iterator[Recorder]:
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


class Recorder:
    """What `record` gives: where measurements are saved, and which there are.

    `at_end` is called before the process ends by a SIGTERM.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.saved: list[Path] = []
        self.at_end: Callable[[], None] = lambda: None
        self._open: dict[int, MetricsCollector] = {}
        self.recording = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Record from now on; coffea is not loaded for it."""
        self.recording = True
        if not _recorders:
            _tell_on_stderr()
            _hear_of_termination()
        _recorders.append(self)
        _when_imported(RUNNER_MODULE, self._patch, self._undo)

    def stop(self) -> None:
        """Record no more; a call that goes on is recorded to its end."""
        self.recording = False
        while self._undo:
            self._undo.pop()()
        _recorders.remove(self)
        if not _recorders:
            _be_silent()
            _be_deaf_to_termination()

    def save_open(self, error: BaseException) -> None:
        """Save what has been seen of calls that go on."""
        for collector in list(self._open.values()):
            self._close(collector, error)

    def _patch(self, module: ModuleType) -> None:
        runner = module.Runner
        original = runner.run

        @functools.wraps(original)
        def run(runner_itself: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._takes_call():
                return original(runner_itself, *args, **kwargs)
            with _Recording(self, runner_itself.executor) as is_measured:
                # where it is measured, the collector's hook stands around this function now
                return (runner.run if is_measured else original)(runner_itself, *args, **kwargs)

        def undo() -> None:
            if runner.run is run:
                runner.run = original

        runner.run = run
        self._undo.append(undo)

    def _takes_call(self) -> bool:
        return self.recording and not _in_dask_task() and not _is_in_collector()

    def _collector_for(self, executor: Any) -> MetricsCollector:
        """A collector for one Runner call of this context alone."""
        from coffea.processor import DaskExecutor

        from roastcoffea.collector import MetricsCollector

        collector = MetricsCollector(executor.client if isinstance(executor, DaskExecutor) else None)
        collector.of_all_contexts = False
        self._open[id(collector)] = collector
        return collector

    def _forget(self, collector: MetricsCollector) -> None:
        """Save nothing of a collector that could not be entered."""
        self._open.pop(id(collector), None)

    def _close(self, collector: MetricsCollector, error: BaseException | None) -> None:
        """Save what was measured of a Runner call, unless that is done already."""
        if self._open.pop(id(collector), None) is None:
            return
        with reported(_warn, "the measurement of a Runner call was lost", Exception):
            collector.__exit__(*((type(error), error, error.__traceback__) if error is not None else (None,) * 3))
            self.saved.append(collector.save_measurement(self.folder))
            log.info("measured a Runner call: %s", self.saved[-1])


class _Recording:
    """Context in which one Runner call is measured, and at whose end the measurement is saved; or why not is told."""

    def __init__(self, recorder: Recorder, executor: Any) -> None:
        self._recorder = recorder
        self._executor = executor
        self._collector: MetricsCollector | None = None
        self._is_open = False
        self._awaited_end: Any = None

    def __enter__(self) -> bool:
        self._is_open = True
        with reported(_warn, "a Runner call is not measured", Exception):
            collector = self._collector = self._recorder._collector_for(self._executor)
            try:
                collector.__enter__()
            except BaseException:
                self._recorder._forget(collector)
                raise
            return True
        return False

    @exit_in_any_case
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        uninterrupted(partial(self._close, error))

    def _close(self, error: BaseException | None) -> None:
        self._is_open, self._awaited_end = False, None
        if self._collector is not None:
            self._recorder._close(self._collector, error)


def _warn(text: str) -> None:
    log.warning("%s", " ".join(text.split()))


def _is_in_collector() -> bool:
    """Whether an open collector takes the Runner calls of this context."""
    from roastcoffea.instrument.calls import is_watched

    return is_watched()


def _in_dask_task() -> bool:
    """Whether this thread runs a task of a Dask worker; `get_worker` would also give one that shares the process."""
    worker = sys.modules.get("distributed.worker")
    return worker is not None and hasattr(worker.thread_state, "execution_state")


# lines on stderr


def _tell_on_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("roastcoffea: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _be_silent() -> None:
    log.handlers.clear()
    log.propagate = True


# patching a module when it is there


def _when_imported(name: str, patch: Callable[[ModuleType], None], undo: list[Callable[[], None]]) -> None:
    """Patch a module, at once or when it is imported; what ends the waiting is added to `undo`.

    An analysis may set the environment of numerical libraries before it imports them: they must not come earlier.
    """
    if name in sys.modules:
        patch(sys.modules[name])
        return
    finder = _Finder(name, patch)
    sys.meta_path.insert(0, finder)
    undo.append(finder.leave)


class _Finder(MetaPathFinder):
    """Finds one module as the others do, and patches it right after it was executed."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch

    def leave(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._patch(module)

        loader.exec_module = exec_module
        return spec


# being told to end


def _hear_of_termination() -> None:
    """Save before a SIGTERM ends the process, where it would end it."""
    with suppress(ValueError):  # not the main thread
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)


def _be_deaf_to_termination() -> None:
    with suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, _frame: FrameType | None) -> None:
    """Save what was seen and die of the signal; nothing of the analysis runs any more, as it would not without us."""
    signal.signal(number, signal.SIG_DFL)
    # Saving may need a lock that the interrupted thread holds, so it gets a thread of its own and limited time.
    # threading.Thread takes such a lock itself.
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(_save_all_open, (done,))
    done.acquire(timeout=LAST_SECONDS)
    os.kill(os.getpid(), number)


def _save_all_open(done: _thread.LockType) -> None:
    try:
        for recorder in list(_recorders):
            recorder.save_open(TerminatedError("the process was told to end (SIGTERM)"))
            recorder.at_end()
    finally:
        done.release()


def _stop_in_child() -> None:
    """A process that was forked from ours records nothing."""
    for recorder in list(_recorders):
        recorder.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)

if os.environ.get(FOLDER_VARIABLE) and multiprocessing.current_process().name == "MainProcess":
    Recorder(os.environ[FOLDER_VARIABLE]).start()
