"""Sections of a chunk against clocks, arrays and counts that are known."""

from __future__ import annotations

import contextvars
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import wait_until
from distributed import Client, span
from evidence import waiting_for_cores
from handmade import EXPECTED, SPAN, handmade_run

from roastcoffea import track_bytes, track_memory, track_metrics, track_time
from roastcoffea.backends.byvalue import packed_by_value
from roastcoffea.instrument import sections
from roastcoffea.instrument.gauges import Interval, resident_memory
from roastcoffea.instrument.sections import MOST_SECTIONS, SECTION_UNIT
from roastcoffea.instrument.track import OpenChunk, current_chunk, open_chunk
from roastcoffea.measurement import Measurement
from roastcoffea.records.chunks import SECTION_COLUMNS

MB = 1_000_000
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")


class Clock:
    """Stands for `time`: wall and CPU time go on when they are told to."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu

    def go(self, wall: float, cpu: float = 0.0) -> None:
        self.wall += wall
        self.cpu += cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sections, "time", clock)
    return clock


@pytest.fixture
def chunk() -> Iterator[OpenChunk]:
    """A chunk that is open on this thread; nothing of it may stay in the process."""
    chunk = OpenChunk()
    with open_chunk(chunk):
        yield chunk
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


def by_name(chunk: OpenChunk) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in chunk.sections.rows()}


def column(chunk: OpenChunk, name: str) -> dict[str, Any]:
    """One column of the rows, by section."""
    return {row["name"]: row[name] for row in chunk.sections.rows()}


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def read_on() -> Iterator[int]:
    """A generator with a section in it."""
    with track_time("generator"):
        yield 1
        yield 2


# what is measured


def test_a_loop_over_a_section_adds_up_on_the_real_clock(chunk: OpenChunk) -> None:
    with waiting_for_cores() as wait:
        began = time.perf_counter()
        for _ in range(3):
            with track_time("sleep"):
                time.sleep(0.1)
        whole = time.perf_counter() - began
    row = by_name(chunk)["sleep"]
    assert row["count"] == 3
    assert 0.3 <= row["wall_seconds"] <= whole
    assert row["wall_seconds"] == pytest.approx(whole, abs=0.02 + wait.seconds)
    assert row["self_seconds"] == row["wall_seconds"]
    assert 0.1 <= row["max_seconds"] <= whole - 0.2
    assert row["cpu_seconds"] < 0.05
    assert row["errors"] == 0


def test_cpu_time_is_that_of_the_thread(chunk: OpenChunk) -> None:
    with track_time("spin"):
        spin(0.2)
    row = by_name(chunk)["spin"]
    assert row["cpu_seconds"] == pytest.approx(0.2, abs=0.02)
    assert row["cpu_seconds"] <= row["wall_seconds"]


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_row_has_the_columns_of_the_table_and_null_for_what_was_not_asked_for(chunk: OpenChunk) -> None:
    with track_time("a"):
        pass
    (row,) = chunk.sections.rows()
    assert ["chunk", *row] == [column.name for column in SECTION_COLUMNS]
    assert (row["bytes"], row["memory_peak"], row["memory_delta"]) == (None, None, None)


def test_nested_sections_have_paths_and_their_time_is_not_the_outer_ones_own(chunk: OpenChunk, clock: Clock) -> None:
    for _ in range(2):
        with track_time("jets"):
            clock.go(1, cpu=0.5)
            with track_time("pt"):
                clock.go(2)
                with track_time("smear"):
                    clock.go(4, cpu=4)
            with track_time("eta"):
                clock.go(8)
    with track_time("pt"):
        clock.go(16)
    assert column(chunk, "count") == {"jets": 2, "jets/pt": 2, "jets/pt/smear": 2, "jets/eta": 2, "pt": 1}
    assert column(chunk, "wall_seconds") == {
        "jets": 30,
        "jets/pt": 12,
        "jets/pt/smear": 8,
        "jets/eta": 16,
        "pt": 16,
    }
    assert column(chunk, "self_seconds") == {
        "jets": 2,
        "jets/pt": 4,
        "jets/pt/smear": 8,
        "jets/eta": 16,
        "pt": 16,
    }
    assert column(chunk, "cpu_seconds") == {"jets": 9, "jets/pt": 8, "jets/pt/smear": 8, "jets/eta": 0, "pt": 0}


def test_the_longest_pass(chunk: OpenChunk, clock: Clock) -> None:
    for seconds in (1, 5, 2):
        with track_time("a"):
            clock.go(seconds)
    assert column(chunk, "max_seconds") == {"a": 5}


def test_two_kinds_of_one_name_are_one_section(chunk: OpenChunk, clock: Clock) -> None:
    chunk.requested_bytes = iter((100, 140)).__next__
    with track_time("a"), track_memory("a"), track_bytes("a"):
        clock.go(1)
    (row,) = chunk.sections.rows()
    assert (row["name"], row["count"], row["wall_seconds"], row["self_seconds"]) == ("a", 1, 1, 1)
    assert row["bytes"] == 40
    assert row["memory_delta"] is not None


def test_the_same_two_kinds_in_recursion_count_a_pass_each_time(chunk: OpenChunk, clock: Clock) -> None:
    requested = [0]
    chunk.requested_bytes = lambda: requested[0]

    def fall(depth: int) -> None:
        with track_time("fall"), track_bytes("fall"):
            clock.go(1, cpu=1)
            requested[0] += 10
            if depth > 1:
                fall(depth - 1)

    fall(4)
    (row,) = chunk.sections.rows()
    assert row["count"] == 4
    assert row["wall_seconds"] == row["self_seconds"] == row["cpu_seconds"] == row["max_seconds"] == 4
    assert row["bytes"] == 40


def test_recursion_through_another_section_is_nested(chunk: OpenChunk, clock: Clock) -> None:
    with track_time("a"), track_time("b"), track_time("a"):
        clock.go(1)
    assert column(chunk, "self_seconds") == {"a": 0, "a/b": 0, "a/b/a": 1}


def test_bytes_are_what_was_requested_meanwhile(chunk: OpenChunk) -> None:
    requested = [1000]
    chunk.requested_bytes = lambda: requested[0]
    for size in (10, 0, 5):
        with track_time("outer"), track_bytes(None, None, "read"):
            requested[0] += size
    assert column(chunk, "bytes") == {"outer": None, "outer/read": 15}


@pytest.mark.parametrize("requested", [(None, 10), (10, None), (0, 1, None, None), (None, None, 0, 1)])
def test_bytes_that_are_not_known_in_one_pass_are_not_known_at_all(
    chunk: OpenChunk, requested: tuple[int | None, ...]
) -> None:
    chunk.requested_bytes = iter(requested).__next__
    for _ in requested[::2]:
        with track_bytes("read"):
            pass
    assert column(chunk, "bytes") == {"read": None}


@linux
def test_a_spike_of_memory_is_seen_and_one_outside_is_not(chunk: OpenChunk) -> None:
    whole = Interval()
    np.ones(200 * MB // 8)
    with track_memory("quiet"):
        pass
    before = resident_memory()
    with track_memory("outer"):
        with track_memory("spike"):
            np.ones(500 * MB // 8)
        kept = mmap.mmap(-1, 100 * MB)  # what numpy gets may be memory that the process has held since an earlier test
        kept.write(bytes(100 * MB // 100) * 100)
    whole.close()
    assert before is not None
    peaks = {name: (peak - before) / MB for name, peak in column(chunk, "memory_peak").items()}
    assert peaks["outer/spike"] == pytest.approx(500, rel=0.1)
    assert peaks["outer"] == pytest.approx(500, rel=0.1)
    assert peaks["quiet"] < 20
    assert peaks["outer"] >= peaks["outer/spike"]
    deltas = column(chunk, "memory_delta")
    assert abs(deltas["outer/spike"]) < 20 * MB
    assert deltas["outer"] == pytest.approx(len(kept), rel=0.1)
    assert whole.peak == pytest.approx(before + 500 * MB, rel=0.1)
    assert whole.overlaps == 0


@linux
def test_the_peak_of_a_section_is_the_highest_of_its_passes_and_growth_adds_up(chunk: OpenChunk) -> None:
    before = resident_memory()
    kept = []
    for megabytes in (300, 100):
        with track_memory("a"):
            np.ones(megabytes * MB // 8)
            kept.append(np.ones(50 * MB // 8))
    row = by_name(chunk)["a"]
    assert before is not None
    assert (row["memory_peak"] - before) / MB == pytest.approx(300, rel=0.1)
    assert row["memory_delta"] / MB == pytest.approx(100, rel=0.1)


# errors, and other ways out


def test_an_exception_passes_unchanged_and_is_counted(chunk: OpenChunk, clock: Clock) -> None:
    planted = ZeroDivisionError("planted")
    with pytest.raises(ZeroDivisionError) as raised, track_time("outer"), track_time("a"), track_memory("a"):
        clock.go(1)
        raise planted
    assert raised.value is planted
    with track_time("outer"):
        pass
    assert column(chunk, "errors") == {"outer": 1, "outer/a": 1}
    assert column(chunk, "count") == {"outer": 2, "outer/a": 1}
    assert column(chunk, "wall_seconds") == {"outer": 1, "outer/a": 1}


def test_sections_that_end_in_another_order_keep_their_own_time(chunk: OpenChunk, clock: Clock) -> None:
    first, second, third, fourth = (track_time(name) for name in ("first", "second", "third", "fourth"))
    first.__enter__()
    clock.go(1)
    second.__enter__()
    clock.go(2)
    third.__enter__()
    clock.go(4)
    second.__exit__(None, None, None)
    clock.go(8)
    first.__exit__(None, None, None)
    clock.go(16)
    fourth.__enter__()
    clock.go(32)
    third.__exit__(None, None, None)
    clock.go(64)
    fourth.__exit__(None, None, None)
    assert column(chunk, "wall_seconds") == {
        "first": 15,
        "first/second": 6,
        "first/second/third": 60,
        "third/fourth": 96,
    }
    # third goes on in first after the end of second
    assert column(chunk, "self_seconds") == {
        "first": 1,
        "first/second": 2,
        "first/second/third": 28,
        "third/fourth": 96,
    }
    assert chunk.sections.problems == []


def test_a_generator_that_is_read_to_its_end(chunk: OpenChunk, clock: Clock) -> None:
    for _ in read_on():
        with track_time("a"):
            clock.go(1)
    assert column(chunk, "wall_seconds") == {"generator": 2, "generator/a": 2}
    assert column(chunk, "self_seconds") == {"generator": 0, "generator/a": 2}


def test_a_generator_that_is_closed_half_way_is_no_error(chunk: OpenChunk) -> None:
    generator = read_on()
    next(generator)
    generator.close()
    assert column(chunk, "errors") == {"generator": 0}
    assert column(chunk, "count") == {"generator": 1}


def test_what_is_open_at_the_end_is_told_and_not_counted_and_leaves_nothing_behind(clock: Clock) -> None:
    def sized() -> Iterator[None]:
        with track_memory("sized"):
            yield

    chunk, generators = OpenChunk(), [read_on(), sized()]
    with open_chunk(chunk):
        for generator in generators:
            next(generator)
        with track_time("a"):
            clock.go(1)
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]
    assert list(by_name(chunk)) == ["generator/sized/a"]
    assert sorted(chunk.sections.problems) == [
        f"section '{name}' was still open at the end of its chunk: that pass is not counted"
        for name in ("generator", "sized")
    ]
    for generator in generators:
        generator.close()
    assert list(by_name(chunk)) == ["generator/sized/a"]


def test_a_section_that_is_entered_as_its_chunk_ends_leaves_nothing_behind() -> None:
    """Another thread may have found the chunk while it was open."""
    chunk = OpenChunk()
    with open_chunk(chunk):
        pass
    entry = chunk.sections.enter("late", sections.MEMORY, lambda: 0)
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


# whose they are


def test_without_a_chunk_there_is_no_effect_but_for_wrong_calls() -> None:
    processor = object.__new__(type("Processor", (), {}))
    with track_time(processor, "a"), track_memory(processor, "b"), track_bytes(processor, [], "c"):
        assert current_chunk() is None
    assert vars(processor) == {}
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


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
    with pytest.raises(TypeError, match=rf"{track.__name__} takes the name of a section.*{track.__name__}\(self, "):
        track(*arguments)
    with open_chunk(OpenChunk()), pytest.raises(TypeError, match="it was given"):
        track(*arguments)


def test_chunks_may_nest(chunk: OpenChunk, clock: Clock) -> None:
    inner = OpenChunk()
    with track_time("outer"):
        with open_chunk(inner):
            assert current_chunk() is inner
            with track_time("a"):
                clock.go(1)
        assert current_chunk() is chunk
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


def test_a_thread_that_outlives_its_chunk_is_no_part_of_another(chunk: OpenChunk) -> None:
    gone = OpenChunk()
    with open_chunk(gone):
        context = contextvars.copy_context()

    def help_out() -> None:
        with track_time("late"):
            pass

    in_thread(lambda: context.run(help_out))
    assert by_name(chunk) == by_name(gone) == {}


def test_a_pass_that_another_thread_ends_has_no_cpu_time(chunk: OpenChunk, clock: Clock) -> None:
    generator = read_on()
    next(generator)
    clock.go(1)
    in_thread(generator.close)
    with track_time("generator"):
        clock.go(2, cpu=2)
    row = by_name(chunk)["generator"]
    assert (row["count"], row["wall_seconds"], row["cpu_seconds"]) == (2, 3, None)


# it does no harm


def test_a_gauge_that_fails_is_told_and_the_analysis_goes_on(chunk: OpenChunk) -> None:
    answers = iter((0, ValueError("planted"), ValueError("planted"), 0, 1))

    def requested() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    chunk.requested_bytes = requested
    for _ in range(3):
        with track_bytes("a"):
            done = True
    assert done
    assert chunk.sections.problems == ["a pass through a section was not counted: ValueError: planted"]


def test_names_made_in_a_loop_are_bounded(chunk: OpenChunk) -> None:
    for number in range(MOST_SECTIONS + 100):
        with track_time(f"event {number}"):
            pass
    with track_time("event 0"):
        pass
    assert len(chunk.sections.rows()) == MOST_SECTIONS
    assert by_name(chunk)["event 0"]["count"] == 2
    (problem,) = chunk.sections.problems
    assert str(MOST_SECTIONS) in problem


def test_the_decorator_of_old_leaves_process_as_it_is() -> None:
    def process() -> None:
        """Nothing."""

    assert track_metrics(process) is process


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


# on Dask


def processed(seconds: float, names: tuple[str, ...]) -> dict[str, float]:
    """Do what a probe does around a chunk, on a worker; give the wall time of each section."""
    chunk = OpenChunk()
    with open_chunk(chunk):
        for name in names:
            with track_time(name):
                spin(seconds)
    chunk.sections.meter_in_dask(chunk.sections.rows())
    assert chunk.sections.problems == []
    return column(chunk, "wall_seconds")


def span_metrics(client: Client, identity: str) -> dict[tuple[str, ...], float]:
    def of_scheduler(dask_scheduler: Any, identity: str) -> dict[tuple[str, ...], float]:
        return dict(dask_scheduler.extensions["spans"].spans[identity].cumulative_worker_metrics)

    return client.run_on_scheduler(of_scheduler, identity=identity)


def test_sections_are_in_the_span_and_the_cpu_time_is_as_before(client: Client) -> None:
    with span("sections") as identity:
        futures = [
            client.submit(processed, 0.05, ("a", "b", "a"), key=f"Processor-{number}", pure=False)
            for number in range(4)
        ]
        walls = client.gather(futures)
    expected = {name: sum(wall[name] for wall in walls) for name in ("a", "b")}
    assert wait_until(lambda: in_sections(span_metrics(client, identity)) == pytest.approx(expected))
    cpu = span_metrics(client, identity)["execute", "Processor", "thread-cpu", "seconds"]
    assert cpu == pytest.approx(4 * 3 * 0.05, rel=0.1)


def in_sections(metrics: dict[tuple[str, ...], float]) -> dict[str, float]:
    """Seconds by section, of the metrics of a span."""
    return {name: amount for (*_, name, unit), amount in metrics.items() if unit == SECTION_UNIT}


def test_a_thread_of_another_task_is_not_taken_for_a_helper(chunk: OpenChunk) -> None:
    from distributed.worker import thread_state

    def run_a_task() -> None:
        thread_state.key = "another"
        with track_time("a"):
            pass

    in_thread(run_a_task)
    assert by_name(chunk) == {}


def test_a_worker_is_not_told_of_ever_more_sections(monkeypatch: pytest.MonkeyPatch, chunk: OpenChunk) -> None:
    from distributed import worker

    def known() -> SimpleNamespace:
        digests = {("execute", "id", "P", "a", SECTION_UNIT): 1.0, ("execute", "id", "P", "x", "seconds"): 1.0}

        return SimpleNamespace(digests_total=digests)

    told: list[str] = []
    monkeypatch.setattr(worker, "get_worker", known)
    monkeypatch.setattr(worker.context_meter, "digest_metric", lambda *args: told.append(args[0]))
    monkeypatch.setattr(sections, "MOST_IN_DASK", 2)
    for name in ("b", "a", "c"):
        with track_time(name):
            pass
    chunk.sections.meter_in_dask(chunk.sections.rows())
    assert told == ["b", "a"]
    assert chunk.sections.problems == ["Dask's span lacks some sections: a worker counts at most 2 different ones"]


def test_outside_of_dask_nothing_is_told_to_it(chunk: OpenChunk) -> None:
    with track_time("a"):
        pass
    chunk.sections.meter_in_dask(chunk.sections.rows())
    assert chunk.sections.problems == []


def test_fine_metrics_are_the_same_with_sections_in_the_span() -> None:
    more = {
        ("execute", prefix, name, SECTION_UNIT): 7.0
        for prefix in ("Dijet", "reduce")
        for name in ("jets", "thread-cpu", "disk-read")
    }
    found = Measurement(handmade_run(span_metrics=SPAN | more)).metrics
    fine = [name for name, source in found.source.items() if "span" in source and name in EXPECTED]
    assert len(fine) >= 10
    assert {name: found[name] for name in fine} == {name: EXPECTED[name] for name in fine}
