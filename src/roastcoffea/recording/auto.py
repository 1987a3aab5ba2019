"""Recording without changes to the analysis: a script's Runner calls, or all of a process."""

from __future__ import annotations

import _thread
import atexit
import builtins
import functools
import importlib
import importlib.util
import io
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import pairwise
from pathlib import Path
from pkgutil import get_importer
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.errors import RoastcoffeaError, reported
from roastcoffea.generations import own_client
from roastcoffea.instrument.calls import given_name, is_watched
from roastcoffea.interrupts import Enterable, exchange_handler, whole
from roastcoffea.records.run import OUTSIDE
from roastcoffea.units import duration

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector


FOLDER_VARIABLE: Final = "ROASTCOFFEA"
RUNNER_MODULE: Final = "coffea.processor.executor"

LONGEST_PAUSE: Final = 60.0
"""Seconds between preprocessing that a script calls itself and the Runner call to which it belongs, at most."""


log = logging.getLogger("roastcoffea.auto")  # as the module is imported
_recorders: list[Recorder] = []
_is_unmeasured: Final[ContextVar[bool]] = ContextVar("roastcoffea_unmeasured_call", default=False)
"""Whether a Runner call that could not be measured is active: nor are the calls that it makes."""


class TerminatedError(RoastcoffeaError):
    """The process was terminated while it was measured."""


def record(folder: str | os.PathLike[str], *, profile: bool = True, name: str | None = None) -> whole[Recorder]:
    """Measure each Runner call in the block, in any thread, and save the measurements in a folder.

    Calls inside an open `MetricsCollector` are left to it. Calls that cannot be measured still run, and a line on
    stderr says why.

    Parameters
    ----------
    folder : str or os.PathLike
        Folder for the measurements.
    profile : bool
        Whether to sample functions and lines of process().
    name : str, optional
        Name of the runs, which is their title and names their folders.

    Raises
    ------
    ValueError
        The name is blank.
    TypeError
        The name is not text.

    Examples
    --------
    >>> with record("runs") as recorder:  # doctest: +SKIP
    ...     runner(fileset, processor_instance=processor)
    >>> recorder.saved  # doctest: +SKIP
    [PosixPath('/home/me/runs/2026-11-21T120000Z-001')]
    """
    return whole(_recorded(Recorder(folder, profile=profile, name=name)))


@contextmanager
def _recorded(recorder: Recorder) -> Iterator[Recorder]:
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


class Recorder:
    """The recorder returned by `record`, with the folder and the saved measurements.

    `at_end` is called before a SIGTERM ends the process.
    """

    def __init__(self, folder: str | os.PathLike[str], *, profile: bool = True, name: str | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.profile = profile
        self.name = given_name(name)
        self.saved: list[Path] = []
        self.at_end: Callable[[], None] = lambda: None
        self.import_seconds = 0.0
        """What importing the collector took, which no measurement contains."""
        self._open: dict[int, MetricsCollector] = {}
        self._waiting: dict[int, MetricsCollector] = {}
        """By thread: a collector that has measured preprocessing, and waits for the call that it was done for."""
        self.recording = False
        self._saves_at_exit = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start recording, without importing coffea."""
        self.recording = True
        if not _recorders:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("roastcoffea: %(message)s"))
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            log.propagate = False
            exchange_handler(signal.SIGTERM, signal.SIG_DFL, _terminated)
        _recorders.append(self)
        # analyses may set the environment of numerical libraries before importing them: do not import them earlier
        if RUNNER_MODULE in sys.modules:
            self._patch(sys.modules[RUNNER_MODULE])
        else:
            finder = _Finder(self._patch)
            sys.meta_path.insert(0, finder)
            self._undo.append(finder.leave)

    def stop(self) -> None:
        """Stop recording; an active call is recorded to its end."""
        self.recording = False
        self.save_waiting()
        while self._undo:
            self._undo.pop()()
        _recorders.remove(self)
        if not _recorders:
            log.handlers.clear()
            log.propagate = True
            exchange_handler(signal.SIGTERM, _terminated, signal.SIG_DFL)

    def save_waiting(self) -> None:
        """Save what was measured of preprocessing that no Runner call of its thread followed."""
        for thread in list(self._waiting):
            self._close(self._waiting.pop(thread), None)

    def save_open(self, error: BaseException) -> None:
        """Save the records of active calls so far."""
        for collector in list(self._open.values()):
            self._close(collector, error)

    def _patch(self, module: ModuleType) -> None:
        # by now coffea has imported the numerical libraries; later, the imports would fall into the first Runner call
        began = time.perf_counter()
        with reported(_warn, "the collector could not be imported before the first Runner call", Exception):
            importlib.import_module("roastcoffea.collector")
        self.import_seconds = time.perf_counter() - began
        for name in ("run", "preprocess"):
            self._patch_method(module.Runner, name)

    def _patch_method(self, runner: Any, name: str) -> None:
        original = getattr(runner, name)

        @functools.wraps(original)
        def recorded(runner_itself: Any, *args: Any, **kwargs: Any) -> Any:
            worker = sys.modules.get("distributed.worker")
            # `get_worker` would also return one that shares the process
            in_task = worker is not None and hasattr(worker.thread_state, "execution_state")
            if not self.recording or in_task or is_watched() or _is_unmeasured.get():
                return original(runner_itself, *args, **kwargs)
            with _Recording(self, runner_itself, waits=name == "preprocess") as is_measured:
                # while the call is measured, the collector's hook wraps this function
                return (getattr(runner, name) if is_measured else original)(runner_itself, *args, **kwargs)

        def undo() -> None:
            if getattr(runner, name) is recorded:
                setattr(runner, name, original)

        setattr(runner, name, recorded)
        self._undo.append(undo)

    def _entered_for(self, executor: Any) -> MetricsCollector:
        """A collector for one Runner call of this context alone, or the one that measured preprocessing for it."""
        from roastcoffea.instrument.hook import watch

        waiting = self._waiting.pop(threading.get_ident(), None)
        if waiting is not None:
            pause = time.perf_counter() - (waiting.paused_at or 0.0)
            if waiting.out_of_reach(executor) is None and pause < LONGEST_PAUSE:
                waiting.paused_at = None
                watch(waiting)
                return waiting
            self._close(waiting, None)
        collector = self._collector_for(executor)
        try:
            return collector.__enter__()
        except BaseException:
            self._open.pop(id(collector), None)
            raise

    def _wait(self, collector: MetricsCollector) -> None:
        """Have a collector wait for the Runner call that comes after preprocessing; the context is as it was."""
        from roastcoffea.instrument.hook import unwatch

        unwatch(collector)
        collector._leave_span()
        collector.paused_at = time.perf_counter()
        self._waiting[threading.get_ident()] = collector
        if not self._saves_at_exit:
            self._saves_at_exit = True
            atexit.register(self.save_waiting)

    def _collector_for(self, executor: Any) -> MetricsCollector:
        """A collector for one Runner call of this context alone."""
        from coffea.processor import DaskExecutor

        from roastcoffea.collector import MetricsCollector

        client = executor.client if isinstance(executor, DaskExecutor) else None
        collector = MetricsCollector(client, profile=self.profile, name=self.name)
        collector.of_all_contexts = False
        collector._records.outside[OUTSIDE] = "what the script does outside of its Runner calls is not recorded"
        self._open[id(collector)] = collector
        return collector

    def _close(self, collector: MetricsCollector, error: BaseException | None) -> None:
        """Save the records of a Runner call, unless already saved."""
        if self._open.pop(id(collector), None) is None:
            return
        with reported(_warn, "the measurement of a Runner call was lost", Exception):
            collector.__exit__(*((type(error), error, error.__traceback__) if error is not None else (None,) * 3))
            self.saved.append(collector.save_measurement(self.folder))
            log.info("measured a Runner call: %s", self.saved[-1])


class _Recording(Enterable):
    """Context in which one Runner call is measured, and saved at the end; otherwise the reason is reported.

    Preprocessing that is called by itself `waits`: it belongs to the call that follows, unless its cluster ends first.
    """

    def __init__(self, recorder: Recorder, runner: Any, *, waits: bool) -> None:
        self._recorder, self._runner, self._waits = recorder, runner, waits
        self._cluster = ExitStack()
        self._collector: MetricsCollector | None = None
        self._unmeasured: Token[bool] | None = None

    def __enter__(self) -> bool:
        self._is_open = True
        with reported(_warn, "a Runner call is not measured", Exception):
            if self._cluster.enter_context(own_client(self._runner)) is not None:
                self._waits = False
            self._collector = self._recorder._entered_for(self._runner.executor)
            return True
        self._unmeasured = _is_unmeasured.set(True)
        return False

    def _leave(self, error: BaseException | None) -> None:
        if self._unmeasured is not None:
            _is_unmeasured.reset(self._unmeasured)
        with self._cluster:
            if self._collector is not None and self._waits and error is None:
                self._recorder._wait(self._collector)
            elif self._collector is not None:
                self._recorder._close(self._collector, error)


def _warn(text: str) -> None:
    log.warning("%s", " ".join(text.split()))


# patching a module once it is imported


class _Finder:
    """Import hook that finds the Runner's module and patches it right after its execution."""

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self._patch = patch

    def leave(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != RUNNER_MODULE:
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


# termination


def _terminated(number: int, _frame: FrameType | None) -> None:
    """Save the records and die of the signal; nothing of the analysis runs any more, as without us."""
    signal.signal(number, signal.SIG_DFL)
    # Saving may need a lock held by the interrupted thread, so it runs in its own thread with a time limit.
    # threading.Thread takes such a lock itself.
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(_save_all_open, (done,))
    # time for saving when the process is terminated; batch systems kill it after about half a minute
    done.acquire(timeout=15.0)
    os.kill(os.getpid(), number)


def _save_all_open(done: _thread.LockType) -> None:
    try:
        for recorder in list(_recorders):
            recorder.save_open(TerminatedError("the process was terminated (SIGTERM)"))
            recorder.at_end()
    finally:
        done.release()


def _stop_in_child() -> None:
    """Record nothing in a process forked from ours."""
    for recorder in list(_recorders):
        recorder._waiting.clear()
        recorder.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)

if os.environ.get(FOLDER_VARIABLE) and multiprocessing.current_process().name == "MainProcess":
    Recorder(os.environ[FOLDER_VARIABLE]).start()


LONGEST_PAGES: Final = 30.0
"""Seconds after which, as the process ends, only a first page is still made."""


def runnable(
    script: str,
    arguments: Sequence[str],
    *,
    as_module: bool,
    out: Path,
    profile: bool = True,
    open_page: bool = False,
    name: str | None = None,
) -> Callable[[], None]:
    """Function that runs the script as `__main__` and measures it.

    A script that is a directory or a zip file runs its `__main__.py`. At the end of the process each measurement gets
    its page, and the first look at it is printed on stderr; `open_page` opens the last page in a browser. `name` is
    that of all its measurements.

    Raises
    ------
    OSError
        The script cannot be read.
    ValueError
        The name is blank.
    """
    recorder = Recorder(out, profile=profile, name=name)
    recorder.at_end = partial(print_summaries, recorder)  # there is no time for pages
    at_exit = partial(print_summaries, recorder, pages=True, open_page=open_page)
    first, place = script, Path(script).absolute()
    if as_module:
        execute, first, place = partial(_run_module, script, True), "-m", Path.cwd()
    elif get_importer(script) is not None:
        execute = partial(_run_module, "__main__", False)
    else:
        file = os.path.join(Path.cwd(), script)  # noqa: PTH118  (python keeps the dots that a Path would drop)
        with io.open_code(file) as opened:
            execute, place = partial(_run_source, opened.read(), file), Path(file).resolve().parent
    return partial(_measured, execute, [first, *arguments], place, recorder, at_exit)


def _measured(
    execute: Callable[[], None], argv: list[str], place: Path, recorder: Recorder, at_exit: Callable[[], None]
) -> None:
    recorder.start()
    # handlers registered first are called last: the script's own may call a Runner, too
    errors: list[BaseException] = []
    atexit.register(_interrupt_again, errors)
    atexit.register(at_exit)
    sys.argv[:] = argv
    if not sys.flags.safe_path:
        sys.path[0] = str(place)
    # it stays there: threads and exit handlers of the script outlive this function
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    try:
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        errors.append(error)
        sys.excepthook = partial(_shown_without_us, sys.excepthook)
        raise


def _interrupt_again(errors: Sequence[BaseException]) -> None:
    """Let python end as after an interrupt, which it forgets if `exec` is called with text in between.

    Modules that define dataclasses or named tuples do that on import.
    """
    if any(type(error) is KeyboardInterrupt for error in errors):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _run_source(source: bytes, file: str) -> None:
    main = sys.modules["__main__"].__dict__
    main |= {"__file__": file, "__cached__": None, "__loader__": SourceFileLoader("__main__", file)}
    exec(compile(source, file, "exec", dont_inherit=True), main)


def _run_module(name: str, alter_argv: bool) -> None:
    # called by `python -m` itself; runpy.run_module removes __main__ before exit handlers run
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def print_summaries(recorder: Recorder, *, pages: bool = False, open_page: bool = False) -> None:
    """Print on stderr what was measured, or that nothing was; in a process that was forked, nothing.

    Parameters
    ----------
    pages
        Whether to make a page of each measurement: of the first ones, where that takes long.
    open_page
        Whether to open the last page in a browser.
    """
    if recorder.recording and not recorder.saved:
        _tell("nothing was saved: no Runner call was measured")
    end, made = time.monotonic() + LONGEST_PAGES, None
    for path in recorder.saved if recorder.recording else ():
        _tell(str(path))
        with reported(_tell, "it cannot be shown", Exception):
            # few modules can be imported while python exits, but whoever saved has imported this one
            from roastcoffea.measurement import load
            from roastcoffea.storage.store import PAGE_FILE

            measurement = load(path)
            if pages and (made is None or time.monotonic() < end):
                with reported(_tell, "its page cannot be made", Exception):
                    made = measurement.report(path / PAGE_FILE, overwrite=True)
            measurement.print_summary(sys.stderr)
    # seconds of imports that are worth a line
    if recorder.recording and recorder.saved and recorder.import_seconds >= 0.1:
        took = duration(recorder.import_seconds)
        _tell(f"importing it took {took}, right after coffea was imported; measurements do not contain this time")
    if open_page and made is not None:
        with reported(_tell, "the page cannot be opened", Exception):
            import webbrowser

            if not webbrowser.open(made.as_uri()):
                _tell(f"there is no browser to open {made} with")


def _tell(text: str) -> None:
    sys.stderr.write(f"roastcoffea: {' '.join(text.split())}\n")


def _shown_without_us(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error as without us: from the script's first frame on, and without the probes' frames."""
    starting = {function.__code__ for function in (_measured, _run_source, _run_module)}
    started = [entry for entry in _entries(trace) if entry.tb_frame.f_code in starting]
    trace = started[-1].tb_next if started else trace
    for chained in _chain(error):
        chained.__traceback__ = _without_probes(chained.__traceback__ if chained is not error else trace)
    show(kind, error, error.__traceback__)


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and all errors it came from or during."""
    found = [error]
    for each in found:
        found += [other for other in (each.__cause__, each.__context__) if other is not None and other not in found]
    return found


def _without_probes(trace: TracebackType | None) -> TracebackType | None:
    """Traceback without our frames that only led to others."""
    entries = list(_entries(trace))
    kept = [
        entry
        for entry in entries
        # prefixes of modules whose frames are between those of the script and coffea when it is measured
        if entry is entries[-1]
        or not str(entry.tb_frame.f_globals.get("__name__")).startswith(
            ("roastcoffea.recording.auto", "roastcoffea.instrument.", "roastcoffea.interrupts")
        )
    ]
    for entry, following in pairwise(kept):
        entry.tb_next = following
    return kept[0] if kept else None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
