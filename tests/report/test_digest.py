"""The first look at runs that are written down by hand."""

from __future__ import annotations

import pytest
from handmade import handmade_run
from made_runs import made_run, plan, with_call

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF
from roastcoffea.records.run import Run
from roastcoffea.report.digest import Digest, digest_of


def digest(run: Run) -> Digest:
    measurement = Measurement(run)
    return digest_of(measurement.run, measurement.metrics)


def test_bars_hold_all_of_both_ledgers() -> None:
    run = handmade_run()
    found, measurement = digest(run), Measurement(run)
    assert found.time is not None
    assert found.bytes is not None
    for bar, ledger in ((found.time, measurement.time_ledger), (found.bytes, measurement.byte_ledger)):
        assert sum(share.fraction for share in bar.shares) == pytest.approx(1.0, abs=0.01)
        shown = {name for share in bar.shares for name in share.classes}
        assert shown == {name for name, amount in ledger.items() if amount > 0}
        assert [share.family for share in bar.shares] == [
            one for one in FAMILIES if one in {s.family for s in bar.shares}
        ]
        assert all(FAMILY_OF[name] == share.family for share in bar.shares for name in share.classes)


def test_a_remark_tells_of_what_is_unaccounted_where_it_matters() -> None:
    assert digest(made_run([plan(1.0)] * 4, 2)).time.remark == "everything is accounted for"  # type: ignore[union-attr]
    bar = digest(handmade_run()).bytes
    assert bar is not None
    assert bar.remark == "unaccounted 50 B"  # of 6.05 kB


def test_a_healthy_run_is_complete_and_told_so() -> None:
    found = digest(made_run([plan(1.0)] * 40, 2))
    assert (found.state, found.findings) == ("complete", [])
    assert found.verdict.startswith("Healthy")
    assert found.coverage == "40 of 40 chunks, 4,000 events"
    assert [tile.label for tile in found.tiles][:2] == ["elapsed", "event rate"]


@pytest.mark.parametrize(("error", "state"), [("ValueError: no", "failed"), ("KeyboardInterrupt", "interrupted")])
def test_how_a_run_ended(error: str, state: str) -> None:
    run = made_run([plan(1.0)] * 4, 2, outcome="failed", error=error)
    assert digest(with_call(run, outcome="failed")).state == state
