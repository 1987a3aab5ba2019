"""Running a script like python does, with each of its Runner calls measured."""

from __future__ import annotations

import atexit
import builtins
import io
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType, TracebackType
from typing import Final

from roastcoffea.errors import reported
from roastcoffea.recording.auto import Recorder
from roastcoffea.units import duration

BETWEEN = ("roastcoffea.recording.auto", "roastcoffea.instrument.", "roastcoffea.interrupts")
"""Prefixes of modules whose frames are between those of the script and coffea when it is measured."""


SHORTEST_IMPORTS: Final = 0.1
"""Seconds of imports that are worth a line."""

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
    if as_module:
        return partial(_measured, partial(_run_module, script, True), ["-m", *arguments], Path.cwd(), recorder, at_exit)
    if get_importer(script) is not None:
        place = Path(script).absolute()
        return partial(
            _measured, partial(_run_module, "__main__", False), [script, *arguments], place, recorder, at_exit
        )
    file = os.path.join(Path.cwd(), script)  # noqa: PTH118  (python keeps the dots that a Path would drop)
    with io.open_code(file) as opened:
        execute = partial(_run_source, opened.read(), file)
    return partial(_measured, execute, [script, *arguments], Path(file).resolve().parent, recorder, at_exit)


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
    if recorder.recording and recorder.saved and recorder.import_seconds >= SHORTEST_IMPORTS:
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
    started = [entry for entry in _entries(trace) if entry.tb_frame.f_globals is globals()]
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
        if entry is entries[-1] or not str(entry.tb_frame.f_globals.get("__name__")).startswith(BETWEEN)
    ]
    for entry, following in pairwise(kept):
        entry.tb_next = following
    return kept[0] if kept else None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
