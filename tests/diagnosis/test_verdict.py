"""The verdict of runs by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from handmade import handmade_run, one_kind_of_time, run_without_tables
from made_runs import made_run, plan

from roastcoffea.diagnosis.evidence import WORDS
from roastcoffea.diagnosis.finding import CAUSES
from roastcoffea.diagnosis.findings.scheduling import thread_time
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE

CAUSES_BY_HAND = ["missing data", "client", "memory"]


def test_findings_by_hand() -> None:
    """The run by hand has no replay, as its tasks do not follow each other: savings are shares of thread time."""
    measurement = Measurement(handmade_run())
    found = {finding.cause: finding for finding in measurement.verdict}
    assert measurement.bound == "client"
    assert list(found) == CAUSES_BY_HAND
    assert found["missing data"].severity == "incomplete result"
    assert found["missing data"].seconds is None
    seconds = {name: finding.seconds for name, finding in found.items() if finding.seconds is not None}
    # 440 thread seconds in 100 s; the tail without waiting for merging or preprocessing, 46.5 s, is too little
    assert seconds == pytest.approx({"client": 329.5 / 4.4, "memory": 32.25 / 4.4})
    assert found["memory"].rows == {"paused": 32.0, "lost or spilling": 0.25}
    assert all(finding.at_most for finding in found.values() if finding.seconds is not None)
    assert measurement.verdict.together == pytest.approx(sum(seconds.values()))


def test_a_run_that_was_not_measured_has_no_verdict() -> None:
    measurement = Measurement(run_without_tables())
    assert measurement.bound is None
    assert measurement.verdict == []
    assert measurement.verdict.absent
    assert not measurement.verdict.healthy


def test_findings_are_plain_data_in_the_metrics_of_other_programs(tmp_path: Path) -> None:
    measurement = Measurement(dataclasses.replace(handmade_run(), name="x"))
    written = json.loads((measurement.save(tmp_path) / "metrics.json").read_text())["metrics"]
    assert written["bound"]["value"] == "client"
    findings = written["verdict"]["value"]
    assert [finding["cause"] for finding in findings] == [finding.cause for finding in measurement.verdict]
    for finding, one in zip(findings, measurement.verdict, strict=True):
        assert (finding["text"], finding["severity"], finding["remedy"]) == (one.text, one.severity, one.remedy)
        assert finding["rows"] == pytest.approx(dict(one.rows))
        assert [set(culprit) for culprit in finding["culprits"]] == [
            {"kind", "name", "seconds", "factor", "label"} for _ in one.culprits
        ]
    assert CATALOGUE.entries["verdict"]


def test_nothing_is_said_of_idle_time_where_rows_are_lacking() -> None:
    measurement = Measurement(handmade_run(attempts={"merge": 5}))
    assert any("4 merge task attempts" in reason for reason in measurement.verdict.incomplete)
    assert [finding.cause for finding in measurement.verdict] == ["missing data", "memory"]
    assert not Measurement(handmade_run(attempts={"merge": 5}, pauses=None)).verdict.healthy
    assert measurement.bound is None
    assert "4 merge task attempts" in measurement.metrics.missing["bound"]


def test_a_run_that_computes_is_healthy() -> None:
    measurement = one_kind_of_time("compute_seconds")
    assert (measurement.bound, measurement.verdict) == ("compute", [])
    assert measurement.verdict.healthy


def test_the_bottleneck_is_in_the_words_of_findings() -> None:
    assert {*WORDS.values()} <= {*CAUSES}
    measurement = Measurement(made_run([plan(1.0, read=2.0, wait=0.5)] * 12, 2))
    amounts = thread_time(measurement.run, measurement.time_ledger)
    assert next(iter(amounts)) == measurement.bound == "storage"
    assert amounts["storage"] == pytest.approx(24.0)
    assert sum(amounts.values()) == pytest.approx(measurement.time_ledger.total)
    assert measurement.verdict.sheets()[0].title == "bottleneck: storage (57 % of thread time)"


def test_findings_show_themselves() -> None:
    verdict = Measurement(handmade_run()).verdict
    for text in (str(verdict), verdict.to_markdown()):
        assert "Fixing it saves at most 1 min 15 s of 1 min 40 s" in " ".join(text.split())
    assert "<em>fixing it saves at most 1 min 15 s</em>" in verdict._repr_html_()
