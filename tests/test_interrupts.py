"""Signals while a measurement begins, goes on or ends: what a handler raises comes out, and nothing stays."""

from __future__ import annotations

import ast
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import interrupted
import numpy as np
import pyarrow as pa
import pytest
from analyses import COUNT_EVENTS, runner_for
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, Runner
from conftest import wait_until, what_stays
from interrupted import (
    PHASES,
    SEED,
    SIGNALS,
    Steps,
    interrupted_at,
    lost,
    number_of_steps,
    state_of_process,
    threads_of_ours,
    traced,
)
from processes import PATIENCE
from releases import NO_RETRIES, as_processor, tree_of
from stored import write_tree

import roastcoffea
from roastcoffea import interrupts
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import reported
from roastcoffea.instrument.attempt import Attempt
from roastcoffea.interrupts import Enterable, interrupts_held, uninterrupted, whole
from roastcoffea.log.byvalue import packed_by_value
from roastcoffea.log.received import Growing
from roastcoffea.monitor.task_monitor import TaskMonitor
from roastcoffea.recording.auto import Recorder, record

NOT_AWAITED = pytest.mark.filterwarnings("ignore:coroutine 'Client:RuntimeWarning")
"""A second interrupt may come after Dask's client made a coroutine, and before it awaits it."""

# what holds an interrupt back


@pytest.fixture(autouse=True)
def _usual_handler() -> Iterator[None]:
    """Python's own handler of SIGINT: dask-jobqueue sets one of its own where it is imported."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def handler() -> Iterator[Callable[[Any], None]]:
    """Sets the handler of SIGINT until the test ends."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_takes_effect_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)
        signal.raise_signal(signal.SIGINT)
        done.append(2)
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_is_called_once_after_the_outermost_block(handler: Callable[[Any], None]) -> None:
    called: list[Any] = []

    def of_the_user(number: int, frame: Any) -> None:
        called.append((number, frame is not None, inside))

    handler(of_the_user)
    inside = True
    with interrupts_held():
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert called == []
        inside = False
    assert called == [(signal.SIGINT, True, False)]
    assert signal.getsignal(signal.SIGINT) is of_the_user


@pytest.mark.parametrize("nothing_raises", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_that_raises_nothing_is_left_alone(handler: Callable[[Any], None], nothing_raises: Any) -> None:
    handler(nothing_raises)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is nothing_raises
    assert signal.getsignal(signal.SIGINT) is nothing_raises


def test_a_handler_in_c_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[int] = []
    monkeypatch.setattr("_signal.getsignal", lambda number: None)
    monkeypatch.setattr("_signal.signal", lambda number, handler: changed.append(number))
    with interrupts_held():
        pass
    assert changed == []


def test_a_handler_that_the_block_sets_stays(handler: Callable[[Any], None]) -> None:
    with interrupts_held():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_hold_nothing() -> None:
    handlers = []

    def hold() -> None:
        with interrupts_held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_an_interrupt_while_rows_become_a_table_loses_none() -> None:
    def interrupted(rows: list[int]) -> pa.Table:
        if rows:
            signal.raise_signal(signal.SIGINT)
        return pa.table({"number": pa.array(rows, pa.int64())})

    growing = Growing("rows", interrupted)
    for number in range(3):
        growing.add(number)
    with pytest.raises(KeyboardInterrupt):
        growing.table()
    assert growing.table()["number"].to_pylist() == [0, 1, 2]
    assert growing.problems() == []


def test_an_interrupt_while_our_code_is_pickled_leaves_nothing_registered() -> None:
    interrupts = []
    while not interrupts or interrupts[-1]:
        steps = Steps("before", len(interrupts) + 1)
        with suppress(KeyboardInterrupt), traced(steps.step):
            packed_by_value(Steps)
        assert roastcoffea.__name__ not in cloudpickle.list_registry_pickle_by_value()
        interrupts.append(steps.interrupts)
    assert len(interrupts) > 20


class Noting:
    """A context that notes when it was entered and left, in two steps each."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __enter__(self) -> None:
        self.done.append("entering")
        self.done.append("entered")

    def __exit__(self, *exception: object) -> None:
        self.done.append("leaving")
        self.done.append("left")


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError("mine")])
def test_a_whole_context_is_entered_and_left_at_any_step(error: Exception | None) -> None:
    results = []
    while True:
        steps, context = Steps("before", len(results) + 1), Noting()
        raised = None
        try:
            with traced(steps.step), whole(context):
                if error is not None:
                    raise error
        except (KeyboardInterrupt, ValueError) as problem:
            raised = problem
        if not steps.interrupts:
            break
        results.append((type(raised), context.done))
    all_done = ["entering", "entered", "leaving", "left"]
    assert len(results) > 30
    assert all(raised is KeyboardInterrupt and done in ([], all_done) for raised, done in results), results
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_action_is_done_once_whatever_it_raises() -> None:
    done = []

    def act() -> None:
        done.append(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        uninterrupted(act)
    assert done == [1]


# collectors


def drawn_steps(counts: dict[str, int], number: int, seed: int) -> list[tuple[str, int, int]]:
    """Phases in turn, with a step of each, and after how many more steps there is another interrupt."""
    draw = random.Random(seed)
    phases = [PHASES[index % len(PHASES)] for index in range(number)]
    return [(phase, draw.randint(1, counts[phase]), draw.choice((0, 30, 300))) for phase in phases]


def check_steps(client: Any, fileset: Any, number: int) -> None:
    number_of_steps(client, fileset)
    counts = number_of_steps(client, fileset)
    found = {
        step: problems
        for step in drawn_steps(counts, number, SEED)
        if (problems := interrupted_at(client, fileset, *step).problems)
    }
    assert found == {}


@pytest.mark.slow
@NOT_AWAITED
def test_a_run_that_is_interrupted_at_many_steps(client: Any, sample: Any) -> None:
    check_steps(client, sample, 12)


@pytest.mark.parametrize("first_line", ["__enter__", "__exit__"])
def test_an_interrupt_before_the_first_line_of_the_collector(client: Any, sample: Any, first_line: str) -> None:
    life = interrupted.Life(client, sample, lambda phase: None)
    seen = []

    def trace(frame: Any, event: str, argument: object) -> None:
        is_collector = isinstance(frame.f_locals.get("self"), MetricsCollector)
        if is_collector and frame.f_code.co_name == first_line and not seen:
            seen.append(event)
            signal.raise_signal(signal.SIGINT)

    sys.settrace(trace)
    life.live(lambda: None)
    sys.settrace(None)
    life.check()
    assert (seen, life.raised, life.problems) == (["call"], "KeyboardInterrupt", [])


@pytest.mark.slow
def test_signals_at_random_moments(sample: Any, tmp_path: Path) -> None:
    """A third of them come while the collector is left, and half of those a second time."""
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    script = [sys.executable, interrupted.__file__, str(tmp_path / "sample.json"), "3"]
    done = subprocess.run(script, check=False, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    _, *trials = map(json.loads, done.stdout.splitlines())
    print(done.stdout, done.stderr)
    assert [trial for trial in trials if trial["raised"] != "KeyboardInterrupt" or trial["problems"]] == []
    assert sum(trial["reached"] == "leaving" for trial in trials) >= 1


# handlers of any signal


def executors(client: Any) -> dict[str, Callable[..., Any]]:
    return {
        "dask": partial(DaskExecutor, client=client, status=False, retries=0),
        "iterative": partial(IterativeExecutor, status=False, **NO_RETRIES),
        "futures": partial(FuturesExecutor, pool=ThreadPoolExecutor, workers=2, status=False, **NO_RETRIES),
    }


def check_signals(client: Any, path: Path, kind: str, trials: int) -> None:
    def work() -> None:
        with MetricsCollector(client if kind == "dask" else None, journal=path.parent) as collector:
            runner = Runner(executors(client)[kind](), schema=BaseSchema, chunksize=1000)
            runner({"few": [str(path)]}, treename="Events", processor_instance=as_processor(reading))
        assert len(collector.measurement.chunks) == 4

    for _ in range(2):
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    assert lost(work, 1.1 * seconds, trials, SEED, dask=kind == "dask") == []


def reading(events: Any) -> dict[str, float]:
    return {"sum": float(np.sum(np.asarray(events["f0"])))}


@pytest.mark.parametrize("kind", ["dask", "iterative", "futures"])
def test_what_a_handler_raises_comes_out(client: Any, tmp_path: Path, kind: str) -> None:
    check_signals(client, write_tree(tmp_path / "tree.root", baskets=4), kind, 8)


class Bound:
    def handler(self, number: int, frame: Any) -> None:
        raise TimeoutError

    __call__ = handler


def of_any_arguments(*_: Any) -> None:
    raise TimeoutError


def without_its_frame(number: int, frame: Any) -> None:
    del number, frame
    raise TimeoutError


@pytest.mark.parametrize(
    "handler",
    [
        Bound().handler,
        Bound(),
        of_any_arguments,
        partial(of_any_arguments, 1),
        lambda number, frame: Bound()(number, 1),
        without_its_frame,
    ],
    ids=["method", "object", "any arguments", "partial", "nested", "without its frame"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_no_problem_is_made_of_what_a_handler_raises(handler: Any, number: int) -> None:
    before, problems = signal.signal(number, handler), list[str]()
    try:
        with pytest.raises(TimeoutError), reported(problems.append, "it failed", OSError):
            try:
                signal.raise_signal(number)
            except OSError as error:
                raise ConnectionError("no answer") from error
    finally:
        signal.signal(number, before)
    with reported(problems.append, "it failed", OSError):
        raise TimeoutError
    assert problems == ["it failed: TimeoutError"]


def test_a_signal_as_a_chunk_begins_leaves_nothing_behind(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Attempt):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            signal.raise_signal(signal.SIGINT)

    before = list(gc.callbacks)
    runner = runner_for(None, 1000, lambda **_: IterativeExecutor(status=False))
    with MetricsCollector(journal=None) as whole:
        runner(sample, processor_instance=COUNT_EVENTS)
    # other tests may have left chunks open
    (overlaps,) = set(whole.measurement.chunks["overlaps"])
    with monkeypatch.context() as interrupted:
        interrupted.setattr("roastcoffea.instrument.probe.Attempt", Interrupted)
        with pytest.raises(KeyboardInterrupt), MetricsCollector(journal=None) as collector:
            runner(sample, processor_instance=COUNT_EVENTS)
    assert gc.callbacks == before
    assert collector.measurement.chunks["overlaps"].tolist() == [overlaps]
    with MetricsCollector(journal=None) as after:
        runner(sample, processor_instance=COUNT_EVENTS)
    assert set(after.measurement.chunks["overlaps"]) == {overlaps}


class Interrupting:
    """A path whose use a signal interrupts."""

    def __fspath__(self) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return __file__


def test_what_a_handler_raises_as_modules_of_a_chunk_are_sized_comes_out(sample: Any) -> None:
    def importing(events: Any) -> dict[str, int]:
        module = sys.modules["imported_by_a_chunk"] = ModuleType("imported_by_a_chunk")
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.__spec__.cached = Interrupting()  # type: ignore[assignment]
        return {"events": len(events)}

    before = signal.signal(signal.SIGUSR1, of_any_arguments)
    try:
        runner = runner_for(None, 1000, lambda **_: IterativeExecutor(status=False, **NO_RETRIES))
        with pytest.raises(Exception) as raised, MetricsCollector(journal=None):  # noqa: PT011  (coffea's, of it)
            runner(sample, processor_instance=as_processor(importing))
        assert isinstance(raised.value.__cause__ or raised.value, TimeoutError)
    finally:
        signal.signal(signal.SIGUSR1, before)
        del sys.modules["imported_by_a_chunk"]


def fail(problems: list[str]) -> None:
    with reported(problems.append, "it failed", OSError):
        raise ConnectionError("no answer")


def test_what_was_caught_before_is_not_raised_again() -> None:
    """A fallback in the `except` block: errors of ours have what led there as their context."""
    before, problems = signal.signal(signal.SIGUSR1, Bound().handler), list[str]()
    try:
        signal.raise_signal(signal.SIGUSR1)
    except TimeoutError:
        fail(problems)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert problems == ["it failed: ConnectionError: no answer"]


class Leaving(Enterable):
    def __enter__(self) -> None:
        self._is_open = True

    def _leave(self, error: BaseException | None) -> None:
        signal.raise_signal(signal.SIGUSR1)


def test_what_comes_while_a_callback_leaves_is_raised_after_it() -> None:
    before, context = signal.signal(signal.SIGUSR1, Bound().handler), Leaving()
    try:
        with pytest.raises(TimeoutError):
            end = context.__exit__  # as a with takes it, which a signal ends before it calls it
            context.__enter__()
            del end
            wait_until(lambda: False)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_main_thread_that_waits_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first signal comes just before it waits, which therefore does not end."""
    sent, kill, calls = list[int](), signal.pthread_kill, list[int]()

    def late(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    def handle(number: int, frame: Any) -> None:
        calls.append(number)
        Bound().handler(number, frame)

    monkeypatch.setattr(signal, "pthread_kill", late)
    before, context = signal.signal(signal.SIGUSR1, handle), Leaving()
    try:
        with pytest.raises(TimeoutError):
            end = context.__exit__
            context.__enter__()
            del end
            time.sleep(PATIENCE)
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(sent) >= 2
    assert calls == [signal.SIGUSR1]


def test_several_signals_take_effect_after_the_block() -> None:
    called: list[int] = []
    before = {number: signal.signal(number, lambda number, _: called.append(number)) for number in SIGNALS}
    with interrupts_held(), interrupts_held():
        for number in (*SIGNALS, *SIGNALS):
            signal.raise_signal(number)
        assert called == []
    for number, handler in before.items():
        signal.signal(number, handler)
    assert called == SIGNALS


NOT_OF_THE_USER = {
    "backends/attempts.py": "the scheduler's event loop",
    "backends/deployment.py": "the scheduler's event loop",
    "backends/scheduler.py": "the scheduler's event loop",
    "monitor/states.py": "the scheduler's event loop",
    "recording/facility/observer.py": "the scheduler's event loop",
    "recording/facility/recorder.py": "the scheduler's event loop",
    "monitor/views.py": "a worker's event loop",
    "monitor/task_monitor.py": "a thread of its own",
    "instrument/sampler.py": "a thread of its own",
    "studies/rereading.py": "a task on a worker",
    "cli/reading.py": "prints what came, and ends",
}
"""Modules that go on after any error, and why no handler can have raised it there."""


@pytest.mark.slow
def test_what_goes_on_after_any_error_lets_signals_through() -> None:
    package = Path(roastcoffea.__file__).parent
    for path in package.rglob("*.py"):
        place = path.relative_to(package).as_posix()
        for node in ast.walk(tree_of(path)):
            # suppress lets nothing through, and goes on in the midst of a chunk
            suppresses = isinstance(node, ast.alias) and node.name == "suppress" and place.startswith("instrument/")
            assert not suppresses or place in NOT_OF_THE_USER, place
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type is not None else "BaseException"
            text, last = " ".join(map(ast.unparse, node.body)), node.body[-1]
            passes = "raise_if_interrupted(" in text or ".miss(" in text or isinstance(last, ast.Raise)
            goes_on = caught in {"Exception", "BaseException"} and not passes
            assert not goes_on or place in NOT_OF_THE_USER, f"{place}:{node.lineno}"


# monitors and recordings


def test_a_monitor_that_is_interrupted_at_steps_of_its_life(client: Any) -> None:
    def monitored(steps: Steps) -> TaskMonitor:
        monitor = TaskMonitor(client)
        try:
            with traced(steps.step):
                steps.reached("entering")
                with monitor:
                    steps.reached("running")
                    client.submit(sum, [1, 2], pure=False).result()
                    steps.reached("leaving")
        except KeyboardInterrupt:
            assert steps.interrupts
        else:
            assert not steps.interrupts
        return monitor

    earlier = threads_of_ours()
    before = state_of_process(earlier)
    counts = Steps()
    monitored(counts)
    for phase, number, again in drawn_steps(counts.counts | {"running": 1}, 12, SEED):
        monitor = monitored(Steps(phase, number, again))
        assert wait_until(lambda: what_stays(client) == []), (phase, number, again)
        assert repr(monitor) == "<TaskMonitor: stopped>"
        if phase == "leaving":
            assert len(monitor.attempts) == 1, (phase, number, again, counts.counts, monitor.problems)
            assert monitor.problems == []
    # a thread of a monitor that was interrupted ends soon after
    assert wait_until(lambda: state_of_process(earlier) == before), state_of_process(earlier)


@pytest.mark.slow
def test_a_recording_that_is_interrupted_while_it_is_saved(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(steps: Steps) -> Recorder:
        leave = MetricsCollector.__exit__

        def leave_counted(self: MetricsCollector, *arguments: Any) -> None:
            steps.reached("leaving")
            leave(self, *arguments)

        monkeypatch.setattr(MetricsCollector, "__exit__", leave_counted)
        try:
            with traced(steps.step), record(tmp_path) as recorder:
                runner = runner_for(None, 4000, executor=lambda **_: IterativeExecutor(status=False))
                runner(sample, processor_instance=COUNT_EVENTS)
                steps.reached("over")
        except KeyboardInterrupt:
            assert steps.interrupts
        else:
            assert not steps.interrupts
        monkeypatch.undo()
        return recorder

    earlier = threads_of_ours()
    before = state_of_process(earlier)
    counts = Steps()
    recorded(counts)
    draw = random.Random(SEED)
    for _ in range(3):
        recorder = recorded(Steps("leaving", draw.randint(1, counts.counts["leaving"]), draw.choice((0, 100))))
        (path,) = recorder.saved
        assert len(roastcoffea.load(path).chunks) == 4
        recorder.save_open(KeyboardInterrupt())
        assert recorder.saved == [path]
    assert state_of_process(earlier) == before
    assert len(list(tmp_path.iterdir())) == 4


def test_a_signal_sent_later_leaves_the_handlers_of_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, first, second = list[int](), list[int](), list[int]()
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: sent.append(number))
    before = signal.signal(signal.SIGUSR1, lambda number, _: first.append(number))
    try:
        resent = interrupts.Resent(signal.SIGUSR1)
        found = signal.signal(signal.SIGUSR1, lambda number, _: second.append(number))
        resent.send(0)
        assert sent == [signal.SIGUSR1]
        signal.signal(signal.SIGUSR1, found)  # as users do who had replaced it
        for _ in range(3):
            found(signal.SIGUSR1, None)
        assert first == [signal.SIGUSR1] * 3
        assert second == []
    finally:
        signal.signal(signal.SIGUSR1, before)
