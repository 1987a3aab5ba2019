"""Sections of a chunk against clocks, arrays and counts that are known."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import wait_until
from distributed import Client, span
from handmade import EXPECTED, SPAN, handmade_run
from processes import waiting_for_cores
from stored import Clock, by_name, column, in_thread, read_on

from roastcoffea import track_bytes, track_memory, track_time
from roastcoffea.instrument.gauges import Interval, resident_memory
from roastcoffea.instrument.track import MOST_SECTIONS, SECTION_UNIT, OpenChunk, open_chunk
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import SECTION_COLUMNS

MB = 1_000_000
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")


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


def test_bytes_are_what_was_requested_meanwhile(chunk: OpenChunk) -> None:
    requested = [1000]
    chunk.requested_bytes = lambda: requested[0]
    for size in (10, 0, 5):
        with track_time("outer"), track_bytes(None, None, "read"):
            requested[0] += size
    assert column(chunk, "bytes") == {"outer": None, "outer/read": 15}


@pytest.mark.slow
@linux
def test_a_spike_of_memory_is_seen_and_one_outside_is_not(chunk: OpenChunk) -> None:
    others = Interval()
    others.close()
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
    assert whole.overlaps <= others.overlaps  # of threads of earlier tests


@pytest.mark.slow
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


# errors, and other transport out


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
        f"section '{name}' was still open at the end of its chunk: that entry is not counted"
        for name in ("generator", "sized")
    ]
    for generator in generators:
        generator.close()
    assert list(by_name(chunk)) == ["generator/sized/a"]


# whose they are


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
    assert chunk.sections.problems == ["an entry into a section was not counted: ValueError: planted"]


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
