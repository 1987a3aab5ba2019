"""Changes in runs whose numbers and facts are written down by hand."""

from __future__ import annotations

import pytest
from made_runs import HIGH, LOW, entry, with_cpu

from roastcoffea.studies.history_analysis import BYTES, CPU, RATE, Entry, analysis_of


def upgraded(runs: list[Entry], first: int) -> list[Entry]:
    """The same runs, of which those from one on were made with a newer coffea."""
    newer = {"facts": {"coffea": "2026.1"}}
    return [entry(number, values=run.values, **(newer if number >= first else {})) for number, run in enumerate(runs)]


def test_a_change_with_its_size_and_what_changed_there() -> None:
    (mark,) = analysis_of(upgraded(with_cpu([*LOW, *HIGH]), 8)).marks
    assert (mark.place, mark.entry.name) == (8, "run-08")
    sizes = {step.label: (round(step.relative, 6), step.before, step.after) for step in mark.steps}
    # medians: 1.0025 ms and 1.44 times that; the rate is its inverse
    assert sizes == {CPU: (0.44, 8, 8), RATE: (round(1 / 1.44 - 1, 6), 8, 8)}
    assert mark.text == "rate per core -30.6 %, CPU per event +44 %"
    assert mark.why == "Changed in this run: coffea 2025.11 -> 2026.1."


def test_what_changed_beside_a_change_or_not_at_all() -> None:
    (mark,) = analysis_of(upgraded(with_cpu([*LOW, *HIGH]), 7)).marks
    assert mark.why == "Changed in the run before (run-07): coffea 2025.11 -> 2026.1."
    (mark,) = analysis_of(upgraded(with_cpu([*LOW, *HIGH]), 9)).marks
    assert mark.why == "Changed in the run after (run-09): coffea 2025.11 -> 2026.1."
    (mark,) = analysis_of(with_cpu([*LOW, *HIGH])).marks
    assert mark.why.startswith("Nothing recorded changed in this run")
    assert mark.facts == ()


def test_facts_that_change_all_the_time_are_not_blamed() -> None:
    runs = [
        entry(number, values=run.values, facts={"hosts": f"node{number}"})
        for number, run in enumerate(with_cpu([*LOW, *HIGH]))
    ]
    (mark,) = analysis_of(runs).marks
    assert mark.why == "Only hosts changed in this run. This happens often, so it may not be the cause."
    assert {name: list(map(str, found)) for name, found in analysis_of(runs).changed.items() if found} == {
        "run-08": ["hosts node7 -> node8"]
    }


def test_levels_are_medians_between_changes() -> None:
    one = analysis_of(with_cpu([*LOW, *HIGH]))
    (first, last, low), (begin, end, high) = one.levels(CPU)
    assert (first, last, begin, end) == (0, 7, 8, 15)
    assert (low, high) == (pytest.approx(1.0025e-3), pytest.approx(1.44 * 1.0025e-3))
    assert one.levels(BYTES) == [(0, 15, 1000.0)]


def test_bytes_of_the_same_files_are_certain() -> None:
    runs = [entry(number, values={BYTES: 1000.0 if number < 2 else 1310.0}) for number in range(4)]
    (mark,) = analysis_of(runs).marks
    assert (mark.entry.name, mark.text) == ("run-02", "bytes per event +31 %")
    other_files = [entry(0), entry(1, values={BYTES: 1310.0}, fileset="other")]
    assert analysis_of(other_files).marks == ()
    unknown_files = [entry(0, fileset=""), entry(1, values={BYTES: 1310.0}, fileset="")]
    assert analysis_of(unknown_files).marks == ()
    assert analysis_of([entry(0), entry(1, values={BYTES: 1005.0})]).marks == ()


def test_runs_that_are_not_used_change_nothing() -> None:
    slow = {"values": {CPU: 9e-3, RATE: 0.01}, "reason": "it failed: ValueError"}
    runs = with_cpu([*LOW, *LOW])
    runs[3:3] = [entry(100 + number, **slow) for number in range(8)]
    one = analysis_of(runs)
    assert one.marks == ()
    assert (len(one.entries), len(one.used)) == (24, 16)


def test_a_change_of_less_than_a_percent_is_not_worth_a_mark() -> None:
    steady = [1e-3 * (1 + 1e-5 * step) for step in range(8)]
    assert analysis_of(with_cpu([*steady, *(1.005 * value for value in steady)])).marks == ()
    assert len(analysis_of(with_cpu([*steady, *(1.05 * value for value in steady)])).marks) == 1
