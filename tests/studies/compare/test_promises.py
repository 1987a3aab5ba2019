"""What a finding promised and what the next run got, of pairs whose numbers are computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from limited_runs import edited, profiled
from made_runs import made_run, plan

from roastcoffea.records.run import Run
from roastcoffea.studies.compare import Comparison, compare
from roastcoffea.studies.explanation import Kept

LOAD, REST = ["Dijets.process", "Dijets.scale", "load"], ["Dijets.process", "Dijets.pairs"]


def computing(chunks: int, cpu: float, load: float, **changes: Any) -> Run:
    """A run whose chunks take this CPU time, of which so much is a JSON file that each loads."""
    run = made_run([plan(cpu, **changes)] * chunks, 2)
    rest = (REST, [25, 40], "core", (cpu - load) * chunks)
    return profiled(run, rest, *([(LOAD, [21, 33, 293], "core", load * chunks)] if load else []))


def reading(chunks: int, read: float) -> Run:
    run = made_run([plan(0.5, read=read, file=f"root://store//{number % 4}.root") for number in range(chunks)], 2)
    return edited(run, chunks=lambda row: {"bytes_requested": 12_000_000})


def promises(found: Comparison) -> list[Kept]:
    return list(found.explanation.kept)


def test_cpu_time_of_a_function_that_was_cached() -> None:
    """Of 2 s of CPU a chunk, loading takes 1 s; afterwards a chunk takes 1.2 s, as something else needs 0.2 s."""
    found = compare(computing(40, 2.0, 1.0), computing(80, 1.2, 0.0))
    (one,) = promises(found)
    assert (one.what, one.quantity, one.per) == (
        "Loading is repeated from chunk to chunk (Dijets.scale)",
        "CPU time",
        "chunk",
    )
    assert one.promised == pytest.approx(1.0, rel=0.02)
    assert one.got == pytest.approx(0.8)
    assert not one.at_most  # a profile has an error, too
    assert (one.low, one.high) == pytest.approx((0.8, 0.8))  # all chunks are alike
    said = one.text
    assert said.endswith("of CPU time per chunk, got 800 ms")
    assert f"{said}." in " ".join(str(found).split())
    assert found.as_dict()["comparisons"][0]["explanation"]["kept"][0]["got"] == pytest.approx(0.8)


def looping(chunks: int, cpu: float, loop: float) -> Run:
    """A run whose chunks take this CPU time, so much of it in a loop with a comprehension."""
    run = made_run([plan(cpu)] * chunks, 2)
    inner = ["Dijets.process", "leading", "leading.<listcomp>"]
    rows = [(inner, [21, 15, 16], "core", 0.8 * loop * chunks), (inner[:2], [21, 15], "core", 0.2 * loop * chunks)]
    return profiled(run, (REST, [25, 40], "core", (cpu - loop) * chunks), *(rows if loop else []))


def test_functions_that_changed_are_named_with_their_comprehensions() -> None:
    found = compare(looping(40, 2.0, 1.5), looping(40, 0.6, 0.1))
    (table,) = (each for each in found.sheets() if each.title == "CPU time of your functions")
    ((name, before, after, change),) = table.rows
    assert name == "leading"
    assert [each.value for each in (before, after, change)] == pytest.approx([60.0, 4.0, -56.0], rel=0.01)
    other = compare(looping(40, 2.0, 1.5), looping(20, 0.6, 0.1))  # half as many events
    (table,) = (each for each in other.sheets() if each.title == "CPU time of your functions for the events of A")
    assert table.rows[0][2].value == pytest.approx(4.0, rel=0.01)
    assert not any("functions" in each.title for each in compare(looping(40, 2.0, 1.5), looping(40, 2.0, 1.5)).sheets())


def test_runs_with_other_chunk_sizes_are_compared_by_event() -> None:
    (one,) = promises(compare(computing(40, 2.0, 1.0), computing(20, 2.4, 0.0, events=200)))
    assert one.per == "event"
    assert one.promised == pytest.approx(0.01, rel=0.02)
    assert one.got == pytest.approx(0.02 - 0.012)


def test_thread_time_of_a_class() -> None:
    """Of 1.5 s of waiting a chunk, storage at twice the rate saves half; the nearer copy saves 1.2 s."""
    (one,) = promises(compare(reading(40, 1.5), reading(40, 0.3)))
    assert (one.what, one.quantity, one.at_most) == ("Reading waits for storage", "thread time", False)
    assert one.promised == pytest.approx(0.75, rel=0.02)
    assert one.got == pytest.approx(1.2)


def test_what_was_not_acted_upon_has_no_number() -> None:
    """The function is there as before, storage is as slow, or another cause was mended."""
    assert promises(compare(computing(40, 2.0, 1.0), computing(40, 2.0, 1.0))) == []
    assert promises(compare(reading(40, 1.5), reading(40, 1.4))) == []
    (other,) = promises(compare(computing(40, 2.0, 1.0), computing(40, 1.5, 1.0)))
    assert other.what == "One function dominates process() (Dijets.pairs)"


def test_without_a_profile_of_both_a_function_tells_nothing() -> None:
    after = made_run([plan(1.0)] * 40, 2)
    assert promises(compare(computing(40, 2.0, 1.0), after)) == []


def test_waiting_for_programs_of_others_is_no_promise_to_the_user() -> None:
    runs = [made_run([plan(1.0, core_wait=waited)] * 40, 2, others=8.0) for waited in (1.0, 0.0)]
    assert promises(compare(*runs)) == []


def test_scatter_of_chunks_is_the_interval_of_what_was_got() -> None:
    """Chunks of 0.4 and 0.6 s before: a mean of 0.5 s, with 1.96 x 0.1 s / sqrt(40) at either side."""
    before = made_run(
        [plan(0.5, read=1.5 + 0.1 * (-1) ** number, file="root://store//1.root") for number in range(40)], 2
    )
    (one,) = promises(compare(before, reading(40, 0.3)))
    assert one.got == pytest.approx(1.2)
    assert one.high is not None
    assert one.high - one.got == pytest.approx(1.96 * 0.1 / 40**0.5)
