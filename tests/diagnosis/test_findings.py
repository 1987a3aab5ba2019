"""What is shown of a verdict."""

from __future__ import annotations

from handmade import handmade_run, run_without_tables

from roastcoffea.diagnosis import Finding, Verdict
from roastcoffea.measurement import Measurement

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
    assert items(Verdict()) == ["Nothing was found that could be won by a change of the settings."]
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
