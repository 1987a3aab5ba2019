"""How a run slows down, at constant workers: on the run of its page."""

from __future__ import annotations

import pytest
from handmade import T
from limited_runs import LIMITED, edited

from roastcoffea.diagnosis.slowdown import Slowdown
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.report.tables import known


def found(run: Run) -> Slowdown | None:
    slowdown: Slowdown | None = known(Measurement(run).metrics.evaluator, "slowdown")
    return slowdown


def test_onset_factor_server_and_seconds() -> None:
    run = LIMITED["slows down"]()
    one = found(run)
    assert one is not None
    assert (one.time_class, one.kind, one.name) == ("read", "endpoint", "xrootd-2.example.org")
    assert one.factor == pytest.approx(10.0, rel=0.02)
    assert one.onset - T == pytest.approx(60.0, abs=1.0)
    assert run.chunks is not None
    slow = [row["read_seconds"] for row in run.chunks.to_pylist() if row["read_seconds"] > 1]
    assert one.excess.sum() == pytest.approx(0.9 * sum(slow), rel=0.02)
    assert len(one.ids) == len(slow)


def test_few_chunks_and_constant_ones_do_not_slow_down() -> None:
    run = LIMITED["slows down"]()
    assert (
        found(edited(run, chunks=lambda row: {"read_seconds": 0.2, "wall_seconds": row["compute_seconds"] + 0.2}))
        is None
    )
    assert found(LIMITED["storage"]()) is None
