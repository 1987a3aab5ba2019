import dataclasses
import json

import pytest
from handmade import handmade_run, run_without_tables

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.time import CLASSES
from roastcoffea.metrics.verdict import CAUSES, LEAST, LEAST_OF, WORDS


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


def test_every_class_has_a_word_and_every_threshold_a_cause():
    assert {*WORDS} == {*CLASSES} - {"residual"}
    assert LEAST_OF.keys() <= CAUSES.keys()
    assert all(least >= LEAST for least in LEAST_OF.values())


def test_findings_are_plain_for_other_programs(tmp_path):
    path = Measurement(dataclasses.replace(handmade_run(), name="x")).save(tmp_path)
    told = json.loads((path / "metrics.json").read_text())["metrics"]
    assert told["bound"]["value"] == "client"
    assert [finding["cause"] for finding in told["verdict"]["value"]] == ["client", "tail", "memory"]
    assert CATALOGUE.entries["verdict"]
