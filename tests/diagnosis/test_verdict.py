"""The verdict of runs by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest
from handmade import handmade_run, run_without_tables
from one_kind_of_time import one_kind_of_time

from roastcoffea.diagnosis import Finding, Verdict
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


FINDING = Finding("storage", 3.0, "80 % of the threads' time waits", {"read": 12.0})


def items(verdict: Verdict) -> list[str]:
    (sheet,) = verdict.sheets()
    return list(sheet.items)


def test_findings_are_lines_with_what_they_are_worth() -> None:
    verdict = Verdict([FINDING], bound="storage", elapsed=10.0)
    assert items(verdict) == ["storage, worth 3 s of 10 s: 80 % of the threads' time waits."]
    assert verdict.sheets()[0].title == "bound by storage"
    assert str(FINDING) == "storage: 80 % of the threads' time waits"
    assert not verdict.healthy


def test_what_is_missing_comes_first() -> None:
    verdict = Verdict([FINDING], incomplete=["2 rows were lost"], elapsed=10.0)
    assert verdict.sheets()[0].title == "incomplete"
    assert items(verdict)[0] == "Incomplete, so that nothing is said of idle time: 2 rows were lost."
    assert len(items(verdict)) == 2


def test_a_healthy_run_is_told_so() -> None:
    assert Verdict().healthy
    assert items(Verdict()) == ["No change of the settings would save time."]
    assert items(Verdict(failed=True)) == ["Nothing was found before it failed."]


def test_a_verdict_that_is_absent_gives_its_reason() -> None:
    verdict = Measurement(run_without_tables()).verdict
    (sheet,) = verdict.sheets()
    assert verdict.absent
    assert sheet.lead == [f"Not measured: {verdict.absent}."]


def test_it_is_a_list_that_shows_itself() -> None:
    verdict = Measurement(handmade_run()).verdict
    assert [finding.cause for finding in verdict] == ["client", "tail", "memory"]
    for text in (str(verdict), verdict.to_markdown(), verdict._repr_html_()):
        assert "worth 1 min 15 s of 1 min 40 s" in " ".join(text.split())
