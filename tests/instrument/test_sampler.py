"""Stacks of threads in process(), against what the code did by its own clocks."""

from __future__ import annotations

import _thread
import gc
import json
import math
import multiprocessing
import random
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from profiled import (
    Planned,
    nap,
    packed_profile,
    raise_problem,
    rows_of,
    seconds_in,
    threads_here,
    wait_until_none_but,
)

from roastcoffea.instrument import sampler
from roastcoffea.instrument.sampler import Stacks
from roastcoffea.log import stacks
from roastcoffea.log.byvalue import packed_by_value
from roastcoffea.records.chunks import DEEPER, OTHER

LINUX = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> float:
    """Samples are taken a hundred times a second, so that tests are short."""
    monkeypatch.setattr(sampler, "PERIOD", 0.01)
    return 0.01


def within(samples: float, period: float) -> float:
    """Five deviations of a sum of so many samples; and some for a host that delays single ones."""
    return 5 * math.sqrt(samples + 4) * period + 0.1


@pytest.mark.slow
@LINUX
def test_functions_have_the_time_and_the_state_that_they_took(often: float) -> None:
    taken: dict[str, float] = {}
    processor = Planned(rounds=60)
    rows = rows_of([packed_profile(lambda: taken.update(processor.process(None)))])
    samples = sum(row["samples"] for row in rows)
    for name in ("heavy", "light", "nap"):
        assert seconds_in(rows, name) == pytest.approx(taken[name], abs=within(taken[name] / often, often)), taken
    for name in ("heavy", "light"):
        found, cpu = seconds_in(rows, name, "core_seconds"), taken[f"{name} cpu"]
        assert found == pytest.approx(cpu, abs=within(cpu / often, often))
    # who has slept may have to wait for a core as well
    planned = 60 * processor.parts["nap"]
    blocked = seconds_in(rows, "nap", "blocked_seconds")
    assert blocked == pytest.approx(planned, abs=within(planned / often, often))
    assert seconds_in(rows, "heavy", "blocked_seconds") < 0.3 * seconds_in(rows, "heavy")
    assert samples > 20
    first = {tuple(row["functions"][:2]) for row in rows if "heavy" in row["functions"]}
    assert {functions[-1] for functions in first} == {"Planned.process"}


def test_the_interpreter_is_handed_over_as_before(often: float) -> None:
    time.sleep(0.1)  # until the sampler of an earlier test has ended
    usual = sys.getswitchinterval()
    packed_profile(nap, 0.1)
    time.sleep(0.1)
    assert sys.getswitchinterval() == usual


@pytest.mark.slow
def test_short_attempts_are_counted_without_bias() -> None:
    """Each is shorter than the time between samples: a sample in one of them stands for those that it missed."""
    wall = 0.0
    packed = []
    for _ in range(300):
        began = time.perf_counter()
        packed.append(packed_profile(nap, 0.005))
        wall += time.perf_counter() - began
    rows = rows_of(packed)
    assert sum(1 for one in packed if one) < 100
    found = sum(row["seconds"] for row in rows)
    assert found == pytest.approx(wall, abs=within(wall / sampler.PERIOD, sampler.PERIOD))


def profiled_nap(planned: float) -> tuple[float, float]:
    """Seconds of a nap by its profile, and by the clock."""
    began = time.perf_counter()
    packed = packed_profile(nap, planned)
    wall = time.perf_counter() - began
    return sum(row["seconds"] for row in rows_of([packed])), wall


def test_threads_are_told_apart(often: float) -> None:
    planned = [0.2, 0.4, 0.6, 0.8]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(profiled_nap, planned))
    for least, (seconds, wall) in zip(planned, found, strict=True):
        assert least - 5 * often < seconds < wall + within(0, often)


def down(levels: int) -> None:
    if levels:
        down(levels - 1)
    else:
        nap(0.2)


def test_deep_stacks_keep_both_ends(often: float) -> None:
    (row,) = (row for row in rows_of([packed_profile(down, 700)]) if row["functions"][-1:] == ["nap"])
    assert len(row["functions"]) == sampler.OUTERMOST + sampler.INNERMOST + 1
    assert row["functions"][0] == "down"
    assert row["functions"][sampler.OUTERMOST] == DEEPER
    assert (row["files"][sampler.OUTERMOST], row["lines"][sampler.OUTERMOST]) == ("", 0)


@LINUX
def test_nothing_stays_behind() -> None:
    before, of_python = threads_here(), {*threading.enumerate()}
    begun: list[set[threading.Thread]] = []

    def look() -> None:
        nap(0.15)
        begun.append({*threading.enumerate()} - of_python)

    packed_profile(look)
    assert begun == [set()]
    wait_until_none_but(before)
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


@LINUX
def test_files_of_the_kernel_are_closed(often: float) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    packed_profile(nap, 0.1)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 0


class OwnError(Exception):
    """The user's."""


@pytest.mark.parametrize("error", [OwnError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_come_out_as_they_are(error: BaseException, often: float) -> None:
    def fail() -> None:
        nap(0.1)
        raise error

    def seconds_of_a_failure() -> float:
        stacks = Stacks(raise_problem)
        with pytest.raises(type(error)) as found:
            stacks.run(fail)
        assert found.value is error
        return seconds_in(rows_of([stacks.packed()]), "nap")

    assert wait_until(lambda: seconds_of_a_failure() > 0)  # a busy host may take no sample in a tenth of a second


def test_objects_of_the_user_live_no_longer(often: float) -> None:
    gone: list[int] = []

    class Large:
        def __del__(self) -> None:
            gone.append(1)

    def hold() -> None:
        large = Large()
        nap(0.15)
        del large

    def keep() -> None:
        large = Large()  # noqa: F841
        nap(0.15)

    gc.disable()
    try:
        packed_profile(hold)
        packed_profile(keep)
        assert wait_until(lambda: len(gone) == 2)
    finally:
        gc.enable()


def test_random_numbers_of_the_user_stay_the_same(often: float) -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    packed_profile(nap, 0.1)
    assert random.random() == expected


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_samples_itself() -> None:
    found: list[tuple[float, float]] = []

    def fork() -> None:
        nap(0.12)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found.extend(pool.map(profiled_nap, [0.3]))

    assert packed_profile(fork)
    ((seconds, wall),) = found
    assert 0.1 < seconds < wall + within(0, sampler.PERIOD)


def test_pickled_by_value_it_needs_no_package() -> None:
    script = textwrap.dedent("""
        import pickle, sys, time
        sys.modules["roastcoffea"] = None
        stacks = pickle.loads(sys.stdin.buffer.read())(print)
        began = time.perf_counter()
        stacks.run(time.sleep, 0.3)
        wall = time.perf_counter() - began
        texts, frames, found = stacks.packed()
        print(sum(found[2::6]) / 10_000, wall)
    """)
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, input=packed_by_value(Stacks), capture_output=True, check=True)
    seconds, wall = map(float, answer.stdout.split())
    assert 0.1 < seconds < wall + within(0, sampler.PERIOD)


def test_secrets_are_taken_out(often: float) -> None:
    names: dict[str, Any] = {"nap": nap}
    exec(compile("def f():\n    nap(0.3)\n", "https://jane:pw@example.org/a.py?token=abc", "exec"), names)
    packed = packed_profile(names["f"])
    assert "pw@" not in json.dumps(packed)
    assert "abc" not in json.dumps(packed)
    assert "https://***@example.org/a.py?token=***" in packed[0]


def many_stacks(number: int) -> None:
    """Naps in so many different functions."""
    for at in range(number):
        names: dict[str, Any] = {"time": time}
        exec(compile(f"def function_{at}():\n    time.sleep(0.03)\n", f"/a/{at}.py", "exec"), names)
        names[f"function_{at}"]()


@pytest.mark.parametrize("limit", ["MOST_STACKS", "MOST_BYTES"])
def test_a_record_is_bounded(limit: str, often: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stacks if limit == "MOST_BYTES" else sampler, limit, {"MOST_STACKS": 5, "MOST_BYTES": 600}[limit]
    )
    began = time.perf_counter()
    packed = packed_profile(many_stacks, 20)
    wall = time.perf_counter() - began
    rows = rows_of([packed])
    assert seconds_in(rows, OTHER) > 0
    assert sum(row["seconds"] for row in rows) == pytest.approx(wall, abs=0.15)
    if limit == "MOST_BYTES":
        assert len(json.dumps(packed)) < 900
    else:
        assert len(rows) <= 6


def test_a_thread_that_cannot_start_costs_the_profile_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    time.sleep(0.3)  # the sampler of an earlier test may go on
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    problems: list[str] = []
    assert Stacks(problems.append).run(lambda: 5) == 5
    assert problems == ["a chunk has no profile: RuntimeError: can't start new thread"]


COLLECTING = """
    import gc
    import sys
    import threading
    import time

    from roastcoffea.instrument.sampler import Stacks
    from roastcoffea.instrument.sampler import uncollected

    def let_go_on(phase, _):
        if threading.get_ident() != main:
            time.sleep(0.0003)

    def deep(depth):
        return deep(depth - 1) + 1 if depth else 0

    def work():
        visiting.start()
        calls = 0
        while time.monotonic() < end:
            calls += 1
            deep(calls * 37 % 900)

    def visit():
        while time.monotonic() < end:
            with uncollected():
                frame = sys._current_frames().get(main)
            stacks.sample(frame, time.perf_counter(), 0.1)
            time.sleep(0.0005)

    main, end, stacks = threading.get_ident(), time.monotonic() + 3, Stacks(print)
    visiting = threading.Thread(target=visit)
    sys.setrecursionlimit(5000)
    gc.set_threshold(3, 1000, 1000)
    gc.callbacks.append(let_go_on)
    stacks.run(work)
    visiting.join()
    print("alive", gc.get_threshold())
"""


@pytest.mark.slow
def test_a_thread_goes_on_while_the_sampler_visits_its_frames() -> None:
    """Python 3.11 may collect as it makes the object of another thread's frame, which is gone afterwards."""
    call = [sys.executable, "-c", textwrap.dedent(COLLECTING)]
    done = subprocess.run(call, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "alive (3, 1000, 1000)\n"), done.stderr
