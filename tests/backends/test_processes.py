"""Processes of this host as the operating system shows them, also those that end between two looks."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from conftest import wait_until
from local_work import cpu_of_children

from roastcoffea.backends.processes import ProcessTree, Sample, WatchedProcess


@pytest.mark.slow
def test_a_process_that_ended_between_two_looks_lacks_no_cpu() -> None:
    tree = ProcessTree()
    tree.scan(sample=False)
    code = "import time\nwhile time.process_time() < {}: pass\ninput()\nwhile time.process_time() < {}: pass"
    children = [
        subprocess.Popen([sys.executable, "-c", code.format(0.2, end)], stdin=subprocess.PIPE) for end in (0.5, 0.5)
    ]
    handles = [psutil.Process(child.pid) for child in children]
    assert wait_until(lambda: min(sum(handle.cpu_times()[:2]) for handle in handles) >= 0.18)
    tree.scan(sample=False)
    before = {process.pid: process.cpu_seconds for process in tree.seen}
    used = -cpu_of_children()
    for child in children:
        child.communicate(b"\n")
    used += cpu_of_children()
    tree.scan(sample=False)
    seen = {process.pid: process for process in tree.seen}
    for child in children:
        assert before[child.pid] < 0.4
        assert seen[child.pid].cpu_seconds > 0.5 - 0.06
        assert seen[child.pid].ended
    assert sum(seen[child.pid].cpu_seconds for child in children) == pytest.approx(used, abs=0.05)


def test_a_process_that_ends_during_a_look_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ProcessTree()
    tree.scan(sample=False)
    code = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    tree.scan(sample=False)
    used = -cpu_of_children()
    children[0].communicate(b"\n")
    listed = psutil.pids

    def listed_before_an_end() -> list[int]:
        monkeypatch.undo()
        found = listed()
        children[1].communicate(b"\n")
        return found

    monkeypatch.setattr(psutil, "pids", listed_before_an_end)
    for _ in range(3):
        tree.scan(sample=False)
    used += cpu_of_children()
    ended = [process for process in tree.seen if process.pid in {child.pid for child in children}]
    assert [process.ended for process in ended] == [True, True]
    assert sum(process.cpu_seconds for process in ended) == pytest.approx(used, abs=0.05)


def test_a_dead_process_that_nobody_waits_for_has_ended() -> None:
    tree = ProcessTree()
    tree.scan(sample=True)
    before = time.time()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    began = time.time()
    tree.scan(sample=True)
    looked = time.time()
    assert child.stdin is not None
    child.stdin.close()
    assert wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    tree.scan(sample=True)
    (process,) = [process for process in tree.seen if process.pid == child.pid]
    child.wait()
    assert process.ended
    assert process.seen <= looked
    assert before - 0.05 < process.born < began + 0.05
    assert len(process.samples) == 1


@pytest.mark.slow
def test_beginnings_are_known_better_than_to_a_second() -> None:
    for _ in range(5):
        tree = ProcessTree()
        tree.scan(sample=False)
        before = time.time()
        child = subprocess.Popen(["sleep", "600"])
        began = time.time()
        time.sleep(0.23)
        tree.scan(sample=False)
        (process,) = [process for process in tree.seen if process.pid == child.pid]
        child.kill()
        child.wait()
        assert before - 0.05 < process.born < began + 0.05


def test_a_process_that_begins_during_a_long_look_is_as_old_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    read, tree, begun = WatchedProcess.read, ProcessTree(), []

    def read_slowly(self: WatchedProcess, *, sample: bool) -> None:
        if not begun:
            before = time.time()
            begun.append(
                (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE), before, time.time())
            )
            time.sleep(0.5)
        read(self, sample=sample)

    monkeypatch.setattr(WatchedProcess, "read", read_slowly)
    tree.scan(sample=False)
    ((child, before, after),) = begun
    with child:
        tree.scan(sample=False)
        child.kill()
    (found,) = (process for process in tree.seen if process.pid == child.pid)
    assert before - 0.05 <= found.born <= after + 0.05


def test_a_daemon_that_an_ancestor_started_is_another_program() -> None:
    """As process 1 of a container does, where it shares our session and adopts the daemons of a batch system."""
    code = "from roastcoffea.backends.processes import ProcessTree as T; t = T(); t.scan(sample=False); "
    code += "print(*(process.pid for process in t.seen))"
    shell = 'setsid sleep 600 & echo $$ $!; "$0" -c "$1"; kill $!'
    output = subprocess.run(
        ["sh", "-c", shell, sys.executable, code], capture_output=True, text=True, check=True
    ).stdout
    (ancestor, daemon), seen = (line.split() for line in output.splitlines())
    assert ancestor in seen
    assert daemon not in seen


def test_neighbours_become_one_sample_with_their_highest_memory() -> None:
    tree = ProcessTree()
    tree.scan(sample=False)
    (own,) = (process for process in tree.family() if process.pid == os.getpid())
    own.samples = [
        Sample(1.0, None, 30, 0.1, 5),
        Sample(2.0, 50.0, 10, 0.6, 6),
        Sample(3.0, 20.0, 40, 0.8, 7),
        Sample(4.0, 40.0, 20, 1.2, 8),
        Sample(5.0, 10.0, 15, 1.3, 9),
    ]
    assert own.merge_neighbours() == 2
    assert own.samples == [
        Sample(2.0, 50.0, 30, 0.6, 6),
        Sample(4.0, 30.0, 40, 1.2, 8),
        Sample(5.0, 10.0, 15, 1.3, 9),
    ]
