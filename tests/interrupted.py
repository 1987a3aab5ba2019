"""Measured runs that signals interrupt at a moment of their life; as a script, at random moments."""

from __future__ import annotations

import dis
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dask
from analyses import count_events, runner_for
from coffea.processor import Runner
from coffea.processor.executor import ExecutorBase
from conftest import wait_until, what_stays
from distributed import Client, LocalCluster
from processes import PATIENCE

import roastcoffea
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.instrument import calls, hook

OURS = str(Path(roastcoffea.__file__).parent)
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
]
TYPES = (Exception, BaseException, TimeoutError, OSError, ValueError, KeyError, AttributeError, TypeError)
"""Of which some are expected, and handled, in many places of ours and of others."""


class Watchdog:
    """Raises what it is told from the handlers of all signals, and knows where it did."""

    def __init__(self) -> None:
        self.raises: BaseException = Exception()
        self.places: list[str] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.places.append("nowhere" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}")
        raise self.raises

    @contextmanager
    def at_work(self) -> Iterator[None]:
        before = {number: signal.signal(number, self) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def lost(work: Callable[[], object], seconds: float, trials: int, seed: int, *, dask: bool) -> list[str]:
    """Trials in which what the handler raised did not come out of the work, and where it was raised.

    Others handle errors of some types, and Dask all of them where it hashes a graph: those are none of ours.
    """
    draw, found = random.Random(seed), []
    dog = Watchdog()
    handled: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda dropped: handled.append(repr(dropped.object))
    try:
        with dog.at_work():
            for _ in range(trials):
                number, kind, delay = draw.choice(SIGNALS), draw.choice(TYPES), draw.uniform(0, seconds)
                dog.raises, dog.places = type("TooLong", (kind,), {})("from the handler"), []
                handled.clear()
                if not any(one is dog.raises for one in causes(_outcome(work, number, delay))):
                    ours = dog.places[0].startswith(OURS) or "roastcoffea" in str(handled)
                    if ours or (kind in {Exception, BaseException} and not handled and not dask):
                        found.append(f"{number!r} {kind.__name__} at {dog.places[0]}, dropped by {handled}")
                assert all(signal.getsignal(each) is dog for each in SIGNALS)
    finally:
        sys.unraisablehook = hook
    return found


def _outcome(work: Callable[[], object], number: int, delay: float) -> BaseException | None:
    """What comes out of the work, or of the moment after it."""

    def send() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), number)

    sending = threading.Thread(target=send)
    raised: Any = None
    try:
        sending.start()
        work()
    except BaseException as error:
        raised = error
    for _ in range(2):  # the signal may come at the end of the first
        try:
            sending.join()
            time.sleep(0.01)
        except BaseException as error:
            raised = error
    return raised


PHASES = ("entering", "running", "leaving")
SEED = 20261121
CLEAN_IN = 60.0
"""Seconds after which nothing of ours may be left on the cluster, however busy the host."""


@dataclass
class Life:
    """One measured run; `reached` is called when a phase begins."""

    client: Client
    fileset: dict[str, Any]
    reached: Callable[[str], None]
    collector: MetricsCollector | None = None
    earlier: set[threading.Thread] = field(default_factory=set)
    state: dict[str, Any] = field(default_factory=dict)
    entered: bool = False
    raised: str | None = None
    problems: list[str] = field(default_factory=list)

    def live(self, at_end: Callable[[], object]) -> None:
        """Enter, run and leave; `at_end` is the last thing that an interrupt may hit."""
        self.earlier = threads_of_ours()
        self.state = state_of_process(self.earlier)
        try:
            self.collector = MetricsCollector(self.client)
            self.reached("entering")
            with self.collector:
                self.entered = True
                self.reached("running")
                runner_for(self.client, 2000)(self.fileset, processor_instance=count_events)
                self.reached("leaving")
            self.reached("over")
            at_end()
        except KeyboardInterrupt:
            self.raised = "KeyboardInterrupt"

    def check(self) -> None:
        """Collect what is not as it should be."""
        state = self.state
        if not wait_until(lambda: what_stays(self.client) == [], CLEAN_IN):
            self.problems.append(f"on the cluster: {what_stays(self.client)}")
        now = state_of_process(self.earlier)
        self.problems += [f"{name} is {now[name]}, was {state[name]}" for name in state if now[name] != state[name]]
        assert self.collector is not None
        self.problems += lacks_of(self.collector, self.entered)


def lacks_of(collector: MetricsCollector, entered: bool) -> list[str]:
    """What the measurement of an interrupted run lacks, of the 8 chunks where they were all processed."""
    try:
        measurement = collector.measurement
    except RoastcoffeaError as error:
        return [str(error)] if entered else []
    finished = measurement.outcome == "finished" or any(call.outcome == "finished" for call in measurement.run.calls)
    if len(measurement.chunks) != 8 and finished:
        return [f"{len(measurement.chunks)} chunks; {measurement.problems}"]
    return []


def threads_of_ours() -> set[threading.Thread]:
    """Also those of earlier tests: some end a moment after what they served."""
    return {thread for thread in threading.enumerate() if "roastcoffea" in thread.name}


def state_of_process(earlier: Collection[threading.Thread]) -> dict[str, Any]:
    """What a collector changes in its process while it is open; without threads that were there earlier."""
    return {
        "the Runner": Runner.__dict__["run"],
        "copy of executors": ExecutorBase.__dict__["copy"],
        "collectors": list(calls.active),
        "calls": [*calls.open_calls, *hook.open_executor_calls],
        "collectors here": list(calls.here.get() or ()),
        "call here": calls.current.get(),
        "annotations": dict(dask.get_annotations()),
        "threads": [thread.name for thread in threads_of_ours() - {*earlier}],
        "handler": signal.getsignal(signal.SIGINT),
        "filters of warnings": list(warnings.filters),
    }


# at a step of our code


@cache
def ends_of_blocks(code: CodeType) -> frozenset[int]:
    """Offsets at which a `with` calls `__exit__`: Python looks for no signals there, so that nothing stays open."""
    steps = list(dis.get_instructions(code))
    loads = [(one.opname, one.argval) == ("LOAD_CONST", None) for one in steps]
    return frozenset(
        one.offset
        for at, one in enumerate(steps)
        for first in [at + (one.opname == "SWAP")]
        if loads[first : first + 3] == [True] * 3
    )


@contextmanager
def traced(step: Callable[[], object]) -> Iterator[None]:
    """Call a function before each line of ours, and at the beginning and end of each function of ours."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        # Python loses an interrupt in a generator that is let go of; `_call` helps where one has come at the worst
        # moment, and another one right there is too many
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_name in ("<genexpr>", "_call"):
            return None
        if event != "exception" and not (event == "line" and frame.f_lasti in ends_of_blocks(frame.f_code)):
            step()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


class Steps:
    """Counts the steps of our code in each phase, and interrupts at one of them."""

    def __init__(self, phase: str = "", number: int = 0, again: int = 0) -> None:
        self.counts = dict.fromkeys(("before", *PHASES, "over"), 0)
        self.phase = "before"
        self._at = (phase, number)
        self._again = again
        self._left: int | None = None
        self.interrupts = 0

    def reached(self, phase: str) -> None:
        self.phase = phase

    def step(self) -> None:
        self.counts[self.phase] += 1
        if self._left is not None:
            self._left -= 1
        if (self.phase, self.counts[self.phase]) == self._at or self._left == 0:
            self._left = self._again
            self.interrupts += 1
            signal.raise_signal(signal.SIGINT)


def interrupted_at(client: Client, fileset: dict[str, Any], phase: str, number: int, again: int = 0) -> Life:
    """A run that is interrupted at a step of our code, and once more after some steps."""
    steps = Steps(phase, number, again)
    life = Life(client, fileset, steps.reached)
    with traced(steps.step):
        life.live(lambda: None)
    life.check()
    if steps.interrupts and life.raised is None:
        life.problems.append("the interrupt was lost")
    return life


def number_of_steps(client: Client, fileset: dict[str, Any]) -> dict[str, int]:
    """Steps of our code in each phase of a run."""
    steps = Steps()
    with traced(steps.step):
        Life(client, fileset, steps.reached).live(lambda: None)
    return steps.counts


# at a moment


class Moments:
    """Sends signals some seconds after a phase has begun."""

    def __init__(self, *moments: tuple[str, float]) -> None:
        self._moments = moments
        self._sent = [threading.Event() for _ in moments]
        self.times: dict[str, float] = {}

    def reached(self, phase: str) -> None:
        self.times[phase] = time.monotonic()
        for (of_phase, seconds), sent in zip(self._moments, self._sent, strict=True):
            if of_phase == phase:
                timer = threading.Timer(seconds, self._send, [sent])
                timer.daemon = True
                timer.start()

    def _send(self, sent: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    def wait(self) -> None:
        """Wait for signals that come late."""
        for (phase, _), sent in zip(self._moments, self._sent, strict=True):
            assert phase not in self.times or sent.wait(PATIENCE)
        time.sleep(0.05)


def trial(client: Client, fileset: dict[str, Any], *moments: tuple[str, float]) -> tuple[Life, dict[str, float]]:
    """A run with signals at these moments, and when its phases began."""
    sender = Moments(*moments)
    life = Life(client, fileset, sender.reached)
    life.live(sender.wait)
    for _ in moments:
        with suppress(KeyboardInterrupt):
            sender.wait()
    life.check()
    return life, sender.times


class Finalizers:
    """Interrupts that Python drops because they came in a finalizer, where none can come out."""

    def __init__(self) -> None:
        self.dropped = 0
        sys.unraisablehook = self.take

    def take(self, unraisable: Any) -> None:
        frames = traceback.extract_tb(unraisable.exc_traceback)
        ours = {frame.name for frame in frames if frame.filename.startswith(OURS)}
        if unraisable.exc_type is KeyboardInterrupt and not ours:
            self.dropped += 1
        sys.__unraisablehook__(unraisable)


def main(fileset: dict[str, Any], trials: int) -> None:
    """Print a line for each trial: a third of the signals come while the collector is left."""
    draw, finalizers = random.Random(SEED), Finalizers()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        trial(client, fileset)
        _, times = trial(client, fileset)
        before, leaving = times["leaving"] - times["entering"], times["over"] - times["leaving"]
        print(json.dumps({"seconds before": before, "seconds of leaving": leaving}), flush=True)
        for number in range(trials):
            lost_elsewhere = True
            while lost_elsewhere:
                finalizers.dropped = 0
                at = ("leaving", draw.uniform(0, leaving)) if number % 3 == 0 else ("entering", draw.uniform(0, before))
                second = [("leaving", draw.uniform(0, leaving))] if number % 6 == 0 else []
                life, times = trial(client, fileset, at, *second)
                # another moment: the same one would meet the same finalizer
                lost_elsewhere = life.raised is None and not life.problems and finalizers.dropped > 0
            reached = [phase for phase in PHASES if phase in times]
            told = {"at": at, "reached": reached[-1], "raised": life.raised, "problems": life.problems}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
