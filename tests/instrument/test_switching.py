"""How soon the interpreter is handed over, and whether it collects garbage: meanwhile, afterwards, in children."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roastcoffea.instrument.sampler import COLLECTS_FOR_FRAMES, PROMPT, prompt, uncollected, usual_interval
from roastcoffea.log.byvalue import packed_by_value

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
USUAL = 0.007


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """An interval that is nobody's default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def in_child(tell: Callable[[], float] = sys.getswitchinterval) -> float:
    """What a child that is forked now tells, by default its interval."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(float(tell())).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        return float(answer.read())


def test_the_usual_interval_is_known_while_it_is_shortened() -> None:
    assert usual_interval() == pytest.approx(USUAL)
    with prompt():
        assert sys.getswitchinterval() == pytest.approx(PROMPT)
        assert usual_interval() == pytest.approx(USUAL)
    assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_what_the_user_sets_meanwhile_stays() -> None:
    with prompt():
        sys.setswitchinterval(0.02)
        assert usual_interval() == pytest.approx(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


@FORK
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_the_usual_interval() -> None:
    with prompt():
        assert in_child() == pytest.approx(USUAL)
        assert sys.getswitchinterval() == pytest.approx(PROMPT)
    sys.setswitchinterval(1e-4)
    assert in_child() == pytest.approx(1e-4)


def test_copies_that_were_pickled_by_value_know_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    with prompt():
        pass
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: registered.append(calls), raising=False)
    copies: list[Any] = [pickle.loads(packed_by_value([prompt, usual_interval])) for _ in range(2)]
    (first, usual_of_first), (second, usual_of_second) = copies
    assert first is not second
    with first():
        assert usual_of_second() == pytest.approx(USUAL)
        with second():
            assert usual_of_first() == pytest.approx(USUAL)
        assert sys.getswitchinterval() == pytest.approx(PROMPT)
    assert sys.getswitchinterval() == pytest.approx(USUAL)
    assert registered == []


def collects() -> bool:
    return gc.isenabled() and gc.get_threshold()[0] > 0


def test_garbage_is_collected_again_after_the_last_visit_of_frames() -> None:
    copies: list[Any] = [pickle.loads(packed_by_value([uncollected])) for _ in range(2)]
    (first,), (second,) = copies
    assert first is not second
    before = gc.get_threshold()
    with first():
        with second():
            assert collects() is not COLLECTS_FOR_FRAMES
        assert collects() is not COLLECTS_FOR_FRAMES
    assert gc.get_threshold() == before


@pytest.mark.parametrize("threshold", [0, 123])
def test_what_the_user_sets_for_garbage_stays(threshold: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(threshold)
        with uncollected():
            assert gc.isenabled()  # who saves that, and restores it later, switches nothing off
            gc.disable()
        assert (gc.isenabled(), gc.get_threshold()[0]) == (False, threshold)
        with uncollected():
            gc.set_threshold(456)
        assert gc.get_threshold()[0] == 456
    finally:
        gc.enable()
        gc.set_threshold(*before)


@FORK
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_collects_garbage() -> None:
    with uncollected():
        assert in_child(collects) == 1
        assert collects() is not COLLECTS_FOR_FRAMES


LISTING = """
import gc, sys, threading, time
from roastcoffea.instrument.sampler import Stacks

def sleeps(depth):  # each frame on the way becomes an object when frames are listed
    sleeps(depth - 1) if depth else time.sleep(60)

def pause(phase, info):  # Python's own collector calls this; another thread may run meanwhile
    if lists:
        paused.append(phase)
        time.sleep(0.3)

def listed():
    global lists
    lists = True
    try:
        return real()
    finally:
        lists = False

def work():
    for _ in range(5):
        frames = sys._current_frames()
        frames.clear()
        time.sleep(0.1)

lists, paused, real = False, [], sys._current_frames
sys._current_frames = listed
for _ in range(50):
    threading.Thread(target=sleeps, args=(3,), daemon=True).start()
stacks = Stacks(print)
gc.set_threshold(2)
gc.callbacks.append(pause)
if sys.argv[1] == "sampled":
    stacks.run(work)
    while sys._current_frames is not listed:
        time.sleep(0.01)
else:
    work()
print(len(paused), gc.get_threshold()[0], flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not COLLECTS_FOR_FRAMES, reason="this version of Python collects nothing while it lists frames")
def test_profilers_that_list_frames_collect_nothing_while_chunks_are_sampled() -> None:
    def ran(how: str) -> list[int]:
        command = [sys.executable, "-c", LISTING, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [int(each) for each in done.stdout.split()]

    collections, threshold = ran("alone")
    assert (collections > 0, threshold) == (True, 2)
    assert ran("sampled") == [0, 2]
