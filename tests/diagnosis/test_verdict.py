"""The verdict of runs by hand."""

import dataclasses
import json

import pytest
from handmade import handmade_run, run_without_tables
from one_kind_of_time import one_kind_of_time

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE


def test_findings_by_hand():
    measurement = Measurement(handmade_run())
    ledger = measurement.time_ledger
    assert measurement.bound == "client"
    assert [finding.cause for finding in measurement.verdict] == ["client", "tail", "memory"]
    client, tail, memory = measurement.verdict
    assert client.seconds == pytest.approx(329.5 / 4.4)
    assert memory.seconds == pytest.approx((ledger["paused"] + 0.25) / 4.4)
    assert tail.seconds == pytest.approx(46.5 / 4.4)  # for the rest it was merging, or preprocessing
    for finding in measurement.verdict:
        assert finding.text
        assert sum(finding.rows.values()) == pytest.approx(finding.seconds * ledger.total / 100)


def test_a_run_that_was_not_measured_has_no_verdict():
    measurement = Measurement(run_without_tables())
    assert measurement.bound is None
    assert measurement.verdict == []
    assert measurement.verdict.absent
    assert not measurement.verdict.healthy


def test_findings_are_plain_for_other_programs(tmp_path):
    path = Measurement(dataclasses.replace(handmade_run(), name="x")).save(tmp_path)
    told = json.loads((path / "metrics.json").read_text())["metrics"]
    assert told["bound"]["value"] == "client"
    assert [finding["cause"] for finding in told["verdict"]["value"]] == ["client", "tail", "memory"]
    assert CATALOGUE.entries["verdict"]


def test_nothing_is_said_of_idle_time_where_rows_are_lacking():
    measurement = Measurement(handmade_run(attempts={"merge": 5}))
    assert any("4 attempts of merge tasks" in reason for reason in measurement.verdict.incomplete)
    assert [finding.cause for finding in measurement.verdict] == ["memory"]
    assert not Measurement(handmade_run(attempts={"merge": 5}, pauses=None)).verdict.healthy
    assert measurement.bound is None
    assert "4 attempts of merge tasks" in measurement.metrics.missing["bound"]


def test_a_run_that_computes_is_healthy():
    measurement = one_kind_of_time("compute_seconds")
    assert (measurement.bound, measurement.verdict) == ("compute", [])
    assert measurement.verdict.healthy
