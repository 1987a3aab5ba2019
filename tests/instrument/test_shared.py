"""State that the code of a process shares while somebody is a member of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

from roastcoffea.instrument.shared import joined, leave, lock_of, name_here
from roastcoffea.instrument.track import (
    OpenChunk,
    open_chunk,
    record,
    track_bytes,
    track_memory,
    track_metrics,
    track_time,
)

NAME = "_roastcoffea_test"


def test_members_share_a_state_that_goes_with_the_last_of_them() -> None:
    first = joined(NAME, "a", number=1)
    first.lock.release()
    second = joined(NAME, "b", number=2)
    second.lock.release()
    assert second is first is sys.modules[name_here(NAME)]
    assert (first.number, first.open, first.process) == (1, {"a", "b"}, os.getpid())
    leave(first, "a")
    assert sys.modules[name_here(NAME)] is first
    leave(first, "b")
    leave(first, "b")
    assert name_here(NAME) not in sys.modules
    again = joined(NAME, "c", number=3)
    again.lock.release()
    leave(again, "c")
    assert again is not first
    assert again.number == 3


def test_many_threads_that_join_and_leave_lose_nobody() -> None:
    together = threading.Barrier(4)
    wrong: list[object] = []

    def join_and_leave(member: int) -> None:
        together.wait()
        for _ in range(500):
            state = joined(NAME, member)
            state.lock.release()
            if sys.modules.get(name_here(NAME)) is not state or member not in state.open:
                wrong.append(member)
            with lock_of(state):
                leave(state, member)

    threads = [threading.Thread(target=join_and_leave, args=(member,)) for member in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert name_here(NAME) not in sys.modules


def test_a_lock_that_a_parent_held_is_not_waited_for() -> None:
    """A forked child has the state of its parent, whose lock nobody in the child would release."""
    state = joined(NAME, "a")
    try:
        state.process = os.getpid() + 1
        assert lock_of(state) is not state.lock
        with lock_of(state):
            pass
    finally:
        leave(state, "a")
        state.lock.release()


ALONE = """
import pickle, sys
sys.modules["roastcoffea"] = None  # an import of it raises
functions = pickle.load(open(sys.argv[1], "rb"))
for function in functions[:3]:
    with function("a"):
        pass
functions[3]("a", 1)
print(functions[4](abs)(-1), *(function.__name__ for function in functions))
"""


def test_functions_for_users_unpickle_without_the_package_in_few_bytes(tmp_path: Path) -> None:
    functions = [track_time, track_memory, track_bytes, record, track_metrics]
    packed = tmp_path / "packed"
    packed.write_bytes(pickle.dumps(functions))
    assert packed.stat().st_size < 30_000
    done = subprocess.run([sys.executable, "-c", ALONE, str(packed)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1 track_time track_memory track_bytes record track_metrics\n", "")


def test_a_function_for_users_that_was_pickled_finds_the_chunk() -> None:
    chunk = OpenChunk()
    with open_chunk(chunk), pickle.loads(pickle.dumps(track_time))("a"):
        pass
    assert chunk.entered is not None
    assert [row["name"] for row in chunk.entered.rows()] == ["a"]
