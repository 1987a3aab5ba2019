"""Memory of workers and datasets, computed by hand; runs on clusters are in `diagnosis/test_memory.py`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from handmade import MIB, T, chunk, handmade_run, run_with, with_chunks

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.memory import BY_NANNY, BY_SAMPLE


def test_a_worker_that_was_lost_near_its_limit_was_killed_by_the_last_sample() -> None:
    near = run_with("B", samples={"B": 810}).worker_memory.set_index("worker").loc["B"]
    assert (near["killed_memory"], near["killed_by"], near["lost_attempts"]) == (810 * MIB, BY_SAMPLE, 1)
    # from its assignment (or when a thread was free) until B left
    assert near["lost_seconds"] == pytest.approx(10.0)
    for other in (run_with("B", samples={"B": 790}), run_with(samples={"B": 810}), run_with("B", samples={})):
        assert other.worker_memory["killed_by"].isna().all()
    without_limit = run_with("B", samples={"B": 810}, limit=None)
    assert without_limit.worker_memory["killed_by"].isna().all()


def test_the_nanny_is_believed_before_samples() -> None:
    found = run_with("B", samples={"B": 810}, B=990 * MIB).worker_memory.set_index("worker")
    assert (found.loc["B", "killed_memory"], found.loc["B", "killed_by"]) == (990 * MIB, BY_NANNY)
    assert found.loc["B", "memory_peak"] == 990 * MIB
    assert found["killed_by"].notna().sum() == 1
    assert found.loc["B", "paused_seconds"] == 8.0


def test_datasets_say_why_they_tell_nothing() -> None:
    measurement = Measurement(handmade_run())
    # no chunk by hand tells how many others ran beside it
    assert measurement.dataset_memory["bytes_per_event"].isna().all()
    assert set(measurement.dataset_memory["reason"]) == {"chunk memory was not measured"}


def run_of(*sizes: int, fixed: int = 0, overlaps: int = 0, kept: int = 0, each: int = 1000) -> Measurement:
    """A run whose chunks of these events take so much each and a fixed part; the process keeps some of it."""
    rows: list[dict[str, Any]] = []
    for number, events in enumerate(sizes):
        before = 100 * MIB + (kept if number else 0)
        peak = 100 * MIB + fixed + each * events
        place = {"entry_start": 0, "entry_stop": events, "events": events, "start": T + number, "stop": T + number + 1}
        memory = {"memory_before": before, "memory_after": before, "memory_peak": peak, "overlaps": overlaps}
        rows.append(chunk("d", f"k{number}", number, "ok", attempt=1, worker="A", id=number) | place | memory)
    return Measurement(with_chunks(*rows))


def test_an_event_takes_what_the_peak_is_above_memory_before_the_first_chunk() -> None:
    # what the allocator keeps between chunks is theirs
    (row,) = run_of(*[1000] * 5, kept=900_000).dataset_memory.to_dict("records")
    assert (row["chunks"], row["bytes_per_event"], row["at_least"]) == (5, 1000.0, 0)


def test_what_does_not_grow_with_events_is_told_apart_where_chunks_differ() -> None:
    sizes = [1000 * number for number in range(1, 21)]
    (row,) = run_of(*sizes, fixed=50_000_000).dataset_memory.to_dict("records")
    assert row["bytes_per_event"] == pytest.approx(1000)
    assert row["fixed_bytes"] == pytest.approx(50_000_000)


def test_memory_that_does_not_grow_with_events_is_fixed() -> None:
    (row,) = grown_once([2500, 5000] * 10).dataset_memory.to_dict("records")
    assert (row["bytes_per_event"], row["fixed_bytes"]) == (0.0, 400 * MIB)
    (equal,) = grown_once([5000] * 10).dataset_memory.to_dict("records")
    assert (equal["bytes_per_event"], equal["least_bytes_per_event"]) == (400 * MIB / 5000, 400 * MIB / 5000)


def grown_once(sizes: list[int]) -> Measurement:
    """A run whose chunks take 400 MiB whatever their events."""
    return run_of(*sizes, fixed=400 * MIB, each=0)


def test_what_a_process_keeps_of_a_larger_chunk_is_not_fixed() -> None:
    """A process keeps what its first chunk of 5000 events took, so that smaller ones after it take as much."""
    (row,) = run_of(5000, *[2500] * 10, fixed=5_000_000, each=0, kept=5_000_000).dataset_memory.to_dict("records")
    assert math.isnan(row["fixed_bytes"])
    assert row["bytes_per_event"] == pytest.approx(2000)


def test_equal_chunks_tell_bounds_of_what_an_event_takes() -> None:
    (row,) = run_of(*[1000] * 5, kept=900_000).dataset_memory.to_dict("records")
    assert (row["least_bytes_per_event"], row["bytes_per_event"]) == (100.0, 1000.0)


def test_chunks_that_shared_a_process_tell_nothing() -> None:
    (row,) = run_of(1000, 1000, overlaps=1).dataset_memory.to_dict("records")
    assert row["reason"] == "its chunks shared processes with other chunks"
    assert row["chunks"] == 0


def test_without_pauses_that_were_recorded_none_are_told() -> None:
    unknown = Measurement(dataclasses.replace(handmade_run(), pauses=None))
    assert unknown.worker_memory["paused_seconds"].isna().all()
