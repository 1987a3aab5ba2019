"""State that the code of a process shares while somebody is a member of it."""

from __future__ import annotations

import os
import sys
import threading

from roastcoffea.instrument.shared import joined, leave, lock_of, made_once, name_here

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


def test_who_joins_holds_the_lock_and_may_take_it_again() -> None:
    state = joined(NAME, "a")
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(state.lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [False]
    with lock_of(state):
        leave(state, "a")
    state.lock.release()


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


def test_a_class_is_made_once() -> None:
    def only_in_this_test() -> type:
        return type("Made", (), {})

    assert made_once(only_in_this_test) is made_once(only_in_this_test)
