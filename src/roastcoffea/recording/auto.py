"""Recording of all Runner calls in a script or process, without changes to the code."""

from __future__ import annotations

import _thread
import atexit
import builtins
import functools
import importlib
import importlib.util
import inspect
import io
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import pairwise
from pathlib import Path
from pkgutil import get_importer
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.compat import older_keywords
from roastcoffea.errors import RoastcoffeaError, reported
from roastcoffea.generations import own_client
from roastcoffea.instrument.calls import current, given_name, is_watched
from roastcoffea.interrupts import Enterable, exchange_handler, whole
from roastcoffea.records.run import OUTSIDE
from roastcoffea.units import duration

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector


FOLDER_VARIABLE: Final = "ROASTCOFFEA"
RUNNER_MODULE: Final = "coffea.processor.executor"

SAMPLED: Final = "its first Runner call processed only a sample of the chunks"

LONGEST_PAUSE: Final = 60.0
"""Maximum number of seconds between a script's own preprocessing and its Runner call."""


log = logging.getLogger("roastcoffea.auto")
_recorders: list[Recorder] = []
_is_unmeasured: Final[ContextVar[bool]] = ContextVar("roastcoffea_unmeasured_call", default=False)
"""Whether an unmeasured Runner call is active. If so, nested calls are not measured either."""


class TerminatedError(RoastcoffeaError):
    """The process was terminated during a measurement."""


@older_keywords(folder="path")
def record(path: str | os.PathLike[str], *, profile: bool = True, name: str | None = None) -> whole[Recorder]:
    """Measure and save each Runner call in a `with` block, on any thread.

    Calls inside an open `MetricsCollector` are measured by that collector instead. A call that cannot be measured still
    runs, and a message on stderr explains why the call was not measured.

    Parameters
    ----------
    path : str or os.PathLike
        Folder for the measurements.
    profile : bool
        Whether to profile the functions and lines of process().
    name : str, optional
        Name for the runs, which appears in their titles and folder names.

    Raises
    ------
    ValueError
        The name is blank.
    TypeError
        The name is not a string.

    Examples
    --------
    >>> with record("runs") as recorder:  # doctest: +SKIP
    ...     runner(fileset, processor_instance=processor)
    >>> recorder.saved  # doctest: +SKIP
    [PosixPath('/home/me/runs/2026-11-21T120000Z-001')]
    """
    return whole(_recorded(Recorder(path, profile=profile, name=name)))


@contextmanager
def _recorded(recorder: Recorder) -> Iterator[Recorder]:
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


class Recorder:
    """Recorder returned by `record`, with the folder and the saved measurements.

    `at_end` is called before a SIGTERM terminates the process.
    """

    def __init__(self, folder: str | os.PathLike[str], *, profile: bool = True, name: str | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.profile = profile
        self.name = given_name(name)
        self.saved: list[Path] = []
        self.at_end: Callable[[], None] = lambda: None
        self.import_seconds = 0.0
        """Seconds spent importing the collector, which measurements exclude."""
        self._open: dict[int, MetricsCollector] = {}
        self._waiting: dict[int, MetricsCollector] = {}
        """Collectors that are waiting for the next Runner call after preprocessing, by thread ID."""
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
        # analyses may set environment variables before importing numerical libraries, so import no such library here
        if RUNNER_MODULE in sys.modules:
            self._patch(sys.modules[RUNNER_MODULE])
        else:
            finder = _Finder(self._patch)
            sys.meta_path.insert(0, finder)
            self._undo.append(finder.leave)

    def stop(self) -> None:
        """Stop recording. A call in progress is still recorded until it ends."""
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
        """Save measured preprocessing if no Runner call followed."""
        for thread in list(self._waiting):
            self._close(self._waiting.pop(thread), None)

    def save_open(self, error: BaseException) -> None:
        for collector in list(self._open.values()):
            self._close(collector, error)

    def _patch(self, module: ModuleType) -> None:
        # coffea has now imported numerical libraries; importing our modules later would count towards the first Runner
        # call
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
            # `get_worker` would also return a worker whose tasks run on other threads of this process
            in_task = worker is not None and hasattr(worker.thread_state, "execution_state")
            if not self.recording or in_task or is_watched() or _is_unmeasured.get():
                return original(runner_itself, *args, **kwargs)
            with _Recording(self, runner_itself, waits=name == "preprocess") as is_measured:
                # while the call is measured, the collector's hook wraps this function
                return (getattr(runner, name) if is_measured else original)(runner_itself, *args, **kwargs)

        self._replace(runner, name, recorded)

    def _replace(self, runner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Replace a method until recording stops."""
        original = getattr(runner, name)

        def undo() -> None:
            if getattr(runner, name) is replacement:
                setattr(runner, name, original)

        setattr(runner, name, replacement)
        self._undo.append(undo)

    def _entered_for(self, executor: Any) -> MetricsCollector:
        """Enter a new collector for a Runner call, or reuse the collector from its preprocessing."""
        from roastcoffea.instrument.hook import watch

        waiting = self._waiting.pop(threading.get_ident(), None)
        if waiting is not None:
            pause = time.perf_counter() - (waiting._paused_at or 0.0)
            if waiting._watcher.out_of_reach(executor) is None and pause < LONGEST_PAUSE:
                waiting._paused_at = None
                watch(waiting._watcher)
                return waiting
            self._close(waiting, None)
        collector = self._collector_for(executor)
        try:
            return collector.__enter__()
        except BaseException:
            self._open.pop(id(collector), None)
            raise

    def _wait(self, collector: MetricsCollector) -> None:
        """Keep the collector for the Runner call after preprocessing, and restore the context."""
        from roastcoffea.instrument.hook import unwatch

        unwatch(collector._watcher)
        collector._leave_span()
        collector._paused_at = time.perf_counter()
        self._waiting[threading.get_ident()] = collector
        if not self._saves_at_exit:
            self._saves_at_exit = True
            atexit.register(self.save_waiting)

    def _collector_for(self, executor: Any) -> MetricsCollector:
        """Create a collector for a single Runner call, in this context only."""
        from coffea.processor import DaskExecutor

        from roastcoffea.collector import MetricsCollector

        client = executor.client if isinstance(executor, DaskExecutor) else None
        collector = MetricsCollector(client, profile=self.profile, name=self.name)
        collector._watcher.of_all_contexts = False
        collector._records.outside[OUTSIDE] = "what the script does outside its Runner calls is not recorded"
        self._open[id(collector)] = collector
        return collector

    def _close(self, collector: MetricsCollector, error: BaseException | None) -> None:
        if self._open.pop(id(collector), None) is None:
            return
        with reported(_warn, "the measurement of a Runner call was lost", Exception):
            collector.__exit__(*((type(error), error, error.__traceback__) if error is not None else (None,) * 3))
            self.saved.append(collector.save(self.folder))
            log.info("measured a Runner call: %s", self.saved[-1])


class _Recording(Enterable):
    """Context manager that measures and saves a Runner call, or reports why it cannot.

    If `waits` is set (for separate preprocessing), the records are kept for the next call, unless coffea started
    its own client for this call.
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


class AtFirstCall(Recorder):
    """Calls a function instead of the first Runner call, and then ends the script.

    Otherwise the script would continue without its results.

    Parameters
    ----------
    act
        Function that receives the Runner, and the arguments of the call as keyword arguments.
    nothing, ending
        Texts for stderr: what is missing if the script calls no Runner, and otherwise why the script ends.
    """

    def __init__(self, act: Callable[..., object], nothing: str, ending: str = SAMPLED) -> None:
        super().__init__(os.curdir)
        self._act, self._nothing, self._ending, self.has_acted = act, nothing, ending, False

    def _patch_method(self, runner: Any, name: str) -> None:
        original = getattr(runner, name)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if not self.recording or _is_unmeasured.get():
                return original(*args, **kwargs)
            # before 2025, coffea passes the name of the tree by position
            (_, asked), *given = inspect.signature(original).bind(*args, **kwargs).arguments.items()
            self._call(asked, **dict(given))
            _tell(f"the script ends here: {self._ending}")
            raise SystemExit(0)

        if name == "run":
            self._replace(runner, name, replaced)

    def _call(self, runner: Any, **given: Any) -> None:
        self.has_acted = True
        # a collector in the script would take the records
        token, outer = _is_unmeasured.set(True), current.set(None)
        try:
            self._act(runner, **given)
        except RoastcoffeaError as error:
            _tell(str(error))
            raise SystemExit(1) from None
        finally:
            current.reset(outer)
            _is_unmeasured.reset(token)

    def say_end(self) -> None:
        """Print on stderr at the end of the process if no Runner was called."""
        if self.recording and not self.has_acted:
            _tell(f"{self._nothing}, because no Runner was called")


def modules_in(folder: Path, known: Collection[str]) -> dict[str, ModuleType]:
    """Modules in a folder, except installed ones and those already known."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name not in known and name.partition(".")[0] not in {"__main__", "roastcoffea"}
        if (file := getattr(module, "__file__", None)) is not None and "site-packages" not in file
        if Path(file).is_relative_to(folder)
    }


def _warn(text: str) -> None:
    log.warning("%s", " ".join(text.split()))


# patching a module once it is imported


class _Finder:
    """Import hook that patches the Runner's module right after executing the module."""

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
    """Save the records, and let the signal terminate the process without running more analysis code."""
    signal.signal(number, signal.SIG_DFL)
    # Saving may need a lock held by the interrupted thread, so a separate thread saves, with a time limit.
    # Creating a threading.Thread would need such a lock, too.
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(_save_all_open, (done,))
    # saving must be quick, because batch systems kill the process about half a minute later
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
    for recorder in list(_recorders):
        recorder._waiting.clear()
        recorder.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)

if os.environ.get(FOLDER_VARIABLE) and multiprocessing.current_process().name == "MainProcess":
    Recorder(os.environ[FOLDER_VARIABLE]).start()


LONGEST_PAGES: Final = 30.0
"""Time limit, in seconds after the script ends, for starting to write a page."""


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
    """Create a function that runs the script as `__main__` and measures it.

    If the script is a directory or a zip file, its `__main__.py` is run. When the process ends, a page is written for
    each measurement, and summaries are printed on stderr. `open_page` opens the last page in a browser. `name` applies
    to all measurements.

    Raises
    ------
    OSError
        The script cannot be read.
    ValueError
        The name is blank.
    """
    recorder = Recorder(out, profile=profile, name=name)
    recorder.at_end = partial(print_summaries, recorder)  # when the process is terminated, there is no time for pages
    at_exit = partial(print_summaries, recorder, pages=True, open_page=open_page)
    return runnable_with(recorder, at_exit, script, arguments, as_module=as_module)


def runnable_with(
    recorder: Recorder, at_exit: Callable[[], None], script: str, arguments: Sequence[str], *, as_module: bool
) -> Callable[[], None]:
    """Function that runs the script as `__main__` while recording, and calls `at_exit` at the end of the process.

    Raises
    ------
    OSError
        The script cannot be read.
    """
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
    # exit handlers run in reverse order, and the script's own exit handlers may also call a Runner
    errors: list[BaseException] = []
    atexit.register(_interrupt_again, errors)
    atexit.register(at_exit)
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path[0] = str(place)
    # not restored, because the script's threads and exit handlers outlive this function
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
    """Make Python exit as it does after an interrupt, even if `exec` has compiled source since then.

    Importing a module that defines dataclasses or named tuples compiles source.
    """
    if any(type(error) is KeyboardInterrupt for error in errors):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _run_source(source: bytes, file: str) -> None:
    main = sys.modules["__main__"].__dict__
    main |= {"__file__": file, "__cached__": None, "__loader__": SourceFileLoader("__main__", file)}
    exec(compile(source, file, "exec", dont_inherit=True), main)


def _run_module(name: str, alter_argv: bool) -> None:
    # `python -m` uses this function as well; runpy.run_module removes __main__ before exit handlers run
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def print_summaries(recorder: Recorder, *, pages: bool = False, open_page: bool = False) -> None:
    """Print a summary of each measurement on stderr, except in a forked process.

    Parameters
    ----------
    pages
        Whether to write a page for each measurement. If this takes too long, only the first few pages are written.
    open_page
        Whether to open the last page in a browser.
    """
    if recorder.recording and not recorder.saved:
        _tell("nothing was saved: no Runner call was measured")
    end, made = time.monotonic() + LONGEST_PAGES, None
    for path in recorder.saved if recorder.recording else ():
        _tell(str(path))
        with reported(_tell, "this measurement cannot be shown", Exception):
            # few modules can be imported while Python is exiting, but saving has already imported these modules
            from roastcoffea.measurement import load
            from roastcoffea.storage.store import PAGE_FILE

            measurement = load(path)
            measurement.print_summary(sys.stderr)
            if pages and (made is None or time.monotonic() < end):
                with reported(_tell, "its page cannot be written", Exception):
                    made = measurement.report(path / PAGE_FILE, overwrite=True)
                    _tell(f"page: {made}")
    # shorter imports are not worth reporting
    if recorder.recording and recorder.saved and recorder.import_seconds >= 0.1:
        _tell(f"importing roastcoffea took {duration(recorder.import_seconds)}, which is not included above")
    if open_page and made is not None:
        open_in_browser(made)


def open_in_browser(page: Path) -> None:
    """Open a page in the user's browser, or report on stderr that no browser is available."""
    with reported(_tell, "the page cannot be opened", Exception):
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            _tell(f"no browser is available to open {page}")


def _tell(text: str) -> None:
    sys.stderr.write(f"roastcoffea: {' '.join(text.split())}\n")


def _shown_without_us(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error without our frames, starting at the script's first frame."""
    starting = {function.__code__ for function in (_measured, _run_source, _run_module)}
    started = [entry for entry in _entries(trace) if entry.tb_frame.f_code in starting]
    trace = started[-1].tb_next if started else trace
    for chained in _chain(error):
        chained.__traceback__ = _without_probes(chained.__traceback__ if chained is not error else trace)
    show(kind, error, error.__traceback__)


def _chain(error: BaseException) -> list[BaseException]:
    found = [error]
    for each in found:
        found += [other for other in (each.__cause__, each.__context__) if other is not None and other not in found]
    return found


def _without_probes(trace: TracebackType | None) -> TracebackType | None:
    """Remove our own frames from the middle of a traceback."""
    entries = list(_entries(trace))
    kept = [
        entry
        for entry in entries
        # prefixes of modules whose frames lie between the script's and coffea's
        if entry is entries[-1]
        or not str(entry.tb_frame.f_globals.get("__name__")).startswith(
            (
                "roastcoffea.recording.auto",
                "roastcoffea.instrument.",
                "roastcoffea.interrupts",
                "roastcoffea.studies.",
                "roastcoffea.cli.",
            )
        )
    ]
    for entry, following in pairwise(kept):
        entry.tb_next = following
    return kept[0] if kept else None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
