"""Whose the sections are: which chunk called the code, whatever thread it is on."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import Clock, by_name, column, in_thread, read_on

from roastcoffea import track_bytes, track_memory, track_time
from roastcoffea.instrument import track
from roastcoffea.instrument.track import OpenChunk, open_chunk, open_chunk_of
from roastcoffea.log.byvalue import packed_by_value


def test_a_section_that_is_entered_as_its_chunk_ends_leaves_nothing_behind() -> None:
    """Another thread may have found the chunk while it was open."""
    chunk = OpenChunk()
    with open_chunk(chunk):
        pass
    entry = chunk.sections.enter("late", track.MEMORY, lambda: 0)
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]
    assert entry is not None
    entry.leave(failed=False)
    assert by_name(chunk) == {}


def test_a_generator_that_outlives_its_chunk_is_no_part_of_the_next() -> None:
    generator = read_on()
    first, second = OpenChunk(), OpenChunk()
    with open_chunk(first):
        next(generator)
    with open_chunk(second):
        assert list(generator) == [2]
        with track_time("a"):
            pass
    assert list(by_name(second)) == ["a"]
    assert by_name(first) == {}


@pytest.mark.parametrize("track", [track_time, track_memory, track_bytes])
def test_all_ways_to_call(chunk: OpenChunk, track: Callable[..., Any]) -> None:
    processor = object.__new__(type("Processor", (), {}))
    with track("a"):
        pass
    with track(processor, "a"):
        pass
    assert column(chunk, "count") == {"a": 2}
    assert vars(processor) == {}


@pytest.mark.parametrize("track", [track_time, track_memory, track_bytes])
@pytest.mark.parametrize("arguments", [(), (1,), (None, None), ("a", "b", "c", "d"), (b"a",)])
def test_a_wrong_call_is_the_users_to_see_with_and_without_a_collector(
    track: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(TypeError, match=rf"{track.__name__} takes the section name.*{track.__name__}\(self, "):
        track(*arguments)
    with open_chunk(OpenChunk()), pytest.raises(TypeError, match="got "):
        track(*arguments)


def test_chunks_may_nest(chunk: OpenChunk, clock: Clock) -> None:
    inner = OpenChunk()
    with track_time("outer"):
        with open_chunk(inner):
            assert open_chunk_of(print) is inner
            with track_time("a"):
                clock.go(1)
        assert open_chunk_of(print) is chunk
    assert column(inner, "wall_seconds") == {"a": 1}
    assert column(chunk, "self_seconds") == {"outer": 1}


def test_threads_with_a_chunk_each_keep_them_apart() -> None:
    chunks = [OpenChunk() for _ in range(4)]
    together = threading.Barrier(4)

    def process(number: int) -> None:
        with open_chunk(chunks[number]):
            together.wait()
            for _ in range(number + 1):
                with track_time("a"), track_memory("a"), track_time(f"b{number}"):
                    time.sleep(0.01)
            together.wait()

    threads = [threading.Thread(target=process, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, chunk in enumerate(chunks):
        assert column(chunk, "count") == {"a": number + 1, f"a/b{number}": number + 1}
        assert column(chunk, "wall_seconds")["a"] >= 0.01 * (number + 1)
        assert chunk.sections.problems == []
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


def test_threads_of_a_processor_belong_to_the_only_chunk(chunk: OpenChunk) -> None:
    def help_out() -> None:
        for _ in range(500):
            with track_time("help"), track_time("more"):
                pass

    with track_time("main"):
        threads = [threading.Thread(target=help_out) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert column(chunk, "count") == {"main": 1, "help": 2000, "help/more": 2000}
    assert chunk.sections.problems == []


def test_a_thread_of_one_of_several_chunks_is_counted_in_none_and_told_once() -> None:
    chunks = [OpenChunk(), OpenChunk()]

    def help_out() -> None:
        with track_time("help"):
            pass

    with open_chunk(chunks[0]), open_chunk(chunks[1]):
        in_thread(help_out)
        in_thread(help_out)
        in_thread(lambda: contextvars.copy_context().run(help_out))
        context = contextvars.copy_context()
        in_thread(lambda: context.run(help_out))
    assert [column(chunk, "count") for chunk in chunks] == [{}, {"help": 1}]
    for chunk in chunks:
        (problem,) = chunk.sections.problems
        assert "copy_context" in problem


def test_code_that_was_pickled_by_value_finds_the_same_chunk(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(packed_by_value((OpenChunk, open_chunk, track_time)))
    script = f"""
import pickle, sys
OpenChunk, open_chunk, track_time = pickle.loads(open({str(packed)!r}, "rb").read())
assert not [name for name in sys.modules if name.startswith("roastcoffea")]
import roastcoffea
assert roastcoffea.track_time is not track_time
chunk = OpenChunk()
with open_chunk(chunk):
    with roastcoffea.track_time("a"), track_time("b"), roastcoffea.track_memory("b"):
        pass
assert [(row["name"], row["count"]) for row in chunk.sections.rows()] == [("a", 1), ("a/b", 1)]
assert chunk.sections.problems == []
assert not [name for name in sys.modules if name.startswith("_roastcoffea")]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_thread_of_another_task_is_not_taken_for_a_helper(chunk: OpenChunk) -> None:
    from distributed.worker import thread_state

    def run_a_task() -> None:
        thread_state.key = "another"
        with track_time("a"):
            pass

    in_thread(run_a_task)
    assert by_name(chunk) == {}
