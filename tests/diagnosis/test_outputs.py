"""Outputs of chunks, and the bottleneck of runs in which handling them takes the time."""

from __future__ import annotations

import re

import pytest
from handmade import TASKS, handmade_run
from limited_runs import merged

from roastcoffea.diagnosis.findings.scheduling import large_output, merged_output, mostly_moved, thread_time
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import TASK_COLUMNS


def test_the_mean_output_is_that_of_chunks() -> None:
    sizes = [1_000_000 + 1_000_000 * place for place in range(5)]
    tasks = [row | {"nbytes": size} for row, size in zip(TASKS, sizes, strict=False)]
    assert large_output(handmade_run(tasks=table_of_rows(TASK_COLUMNS, tasks))) == pytest.approx(3e6)
    small = [row | {"nbytes": 999_999} for row in TASKS]
    for lacking in (table_of_rows(TASK_COLUMNS, small), table_of_rows(TASK_COLUMNS, []), None):
        assert large_output(handmade_run(tasks=lacking)) == 0.0


@pytest.mark.parametrize(("each", "fetched", "moved"), [(20.0, 0.1, False), (5.0, 25.0, True)])
def test_the_bottleneck_and_its_share_are_those_of_the_finding(each: float, fetched: float, moved: bool) -> None:
    """Merging takes less than chunks compute, but more with what moves to the merges and who waits for them."""
    run = merged(each, fetched)
    measurement = Measurement(run)
    ledger = measurement.time_ledger
    assert max(ledger["merge"], ledger["transfer"]) < ledger["compute"]
    assert mostly_moved(ledger) == moved
    assert merged_output(run, ledger) == (0.0 if moved else pytest.approx(40e6 * 40 / 43, rel=0.1))
    amounts = thread_time(run, ledger)
    assert sum(amounts.values()) == pytest.approx(ledger.total)
    finding = next(one for one in measurement.verdict if one.cause == "merge")
    assert amounts["merge"] == pytest.approx(sum(finding.rows.values()))
    assert measurement.bound == max(amounts, key=lambda cause: amounts[cause])
    if not moved:
        assert measurement.bound == "merge"
        share = measurement.verdict.sheets()[0].title.split("(")[1].split(" of")[0]
        work_and_waiting = [float(percent) for percent in re.findall(r"([\d.]+) %", finding.what)]
        assert sum(work_and_waiting) == pytest.approx(float(share.removesuffix(" %")), abs=0.2)
