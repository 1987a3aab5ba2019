"""What a finding and a verdict say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roastcoffea.diagnosis.finding import Culprit, Finding, Verdict


def finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "cause": "storage",
        "what": "Reading dominates: 80 % of thread time waits for far.org.",
        "advice": "Cache the dataset nearby.",
        "seconds": 3.0,
        "interval": (2.0, 4.0),
        "culprits": (Culprit("endpoint", "far.org", 12.0),),
        "rows": {"read": 12.0},
        "elapsed": 10.0,
    }
    return Finding(**fields | changes)


def items(verdict: Verdict) -> list[str]:
    (sheet,) = verdict.sheets()
    return list(sheet.items)


def test_three_parts_make_the_text() -> None:
    text = (
        "Reading dominates: 80 % of thread time waits for far.org. Fixing it saves about 3 s (2 to 4 s) of 10 s. "
        "Cache the dataset nearby."
    )
    assert finding().text == text
    assert str(finding()) == repr(finding()) == f"storage: {text}"
    assert f"{[finding()]}" == f"[storage: {text}]"


@pytest.mark.parametrize(
    ("changes", "saving"),
    [
        ({"at_most": True}, "Fixing it saves at most 3 s of 10 s."),
        ({"interval": None}, "Fixing it saves about 3 s of 10 s."),
        ({"interval": (3.0001, 3.0002)}, "Fixing it saves about 3 s of 10 s."),
        ({"seconds": None, "interval": None}, ""),
    ],
)
def test_what_is_saved(changes: dict[str, Any], saving: str) -> None:
    assert finding(**changes).saving == saving


def test_a_saving_that_is_not_known_leaves_two_parts() -> None:
    one = finding(seconds=None, interval=None)
    assert one.text == f"{one.what} {one.advice}"


def test_severity_follows_the_saving_and_a_result_that_lacks_data_is_the_most_severe() -> None:
    assert finding(seconds=2.0).severity == "high"
    assert finding(seconds=2.0 - 0.1).severity == "medium"
    assert finding(seconds=None).severity == "medium"
    assert finding(seconds=None, incomplete=True).severity == "incomplete result"


def test_other_programs_get_plain_data() -> None:
    plain = json.loads(json.dumps(finding().to_dict()))
    assert plain == {
        "cause": "storage",
        "what": finding().what,
        "advice": "Cache the dataset nearby.",
        "seconds": 3.0,
        "left": None,
        "interval": [2.0, 4.0],
        "at_most": False,
        "culprits": [{"kind": "endpoint", "name": "far.org", "seconds": 12.0, "factor": None, "label": None}],
        "remedy": None,
        "rows": {"read": 12.0},
        "elapsed": 10.0,
        "severity": "high",
        "text": finding().text,
        "page": "limited/storage#storage",
    }


def test_a_culprit_is_named_with_its_kind() -> None:
    assert str(Culprit("worker", "tcp://a:1")) == "worker tcp://a:1"


def test_a_verdict_has_a_line_for_each_finding_and_one_for_all() -> None:
    one = Verdict([finding()], bound="storage", share=0.8, together=3.0, elapsed=10.0)
    assert items(one) == [str(finding())]
    assert one.sheets()[0].title == "bottleneck: storage (80 % of thread time)"
    assert not one.healthy
    two = Verdict([finding(), finding(cause="client", seconds=4.0)], together=6.0, elapsed=10.0)
    assert items(two)[-1] == "Fixing all of them saves about 6 s of 10 s."
    assert two.together == 6.0
    assert two.sheets()[0].title == "verdict"


def test_an_upper_limit_close_to_the_whole_run_is_not_printed() -> None:
    both = [finding(at_most=True), finding(cause="client", seconds=4.0)]
    (*_, last), last_of_most = (items(Verdict(both, together=each, elapsed=10.0)) for each in (8.0, 8.1))
    assert last == "Fixing all of them saves at most 8 s of 10 s."
    assert last_of_most == [str(each) for each in both]


def test_what_the_measurement_lacks_comes_first() -> None:
    verdict = Verdict([finding()], incomplete=["2 rows were lost"], elapsed=10.0)
    assert verdict.sheets()[0].title == "verdict: the measurement is incomplete"
    lacking, said = items(verdict)
    assert lacking == "The measurement is incomplete, so idle time is not interpreted: 2 rows were lost."
    assert said == str(finding())
    assert not Verdict(incomplete=["2 rows were lost"]).healthy


def test_a_healthy_run_is_called_so() -> None:
    assert Verdict().healthy
    assert items(Verdict()) == ["Healthy: no single change would save as much as 5 % of the wall time."]
    assert items(Verdict(failed=True)) == ["No bottleneck was found before the run ended."]


def test_a_verdict_that_is_absent_gives_its_reason() -> None:
    verdict = Verdict(absent="no worker was present")
    (sheet,) = verdict.sheets()
    assert sheet.lead == ["Not measured: no worker was present."]
    assert not verdict.healthy


def test_a_verdict_shows_itself_everywhere() -> None:
    verdict = Verdict([finding()], bound="storage", share=0.8, elapsed=10.0)
    for text in (str(verdict), verdict.to_markdown()):
        assert "Fixing it saves about 3 s (2 to 4 s) of 10 s." in " ".join(text.split())
    html = verdict._repr_html_()
    assert "<em>fixing it saves about 3 s</em>" in html
    assert "waits for <b>far.org</b>." in html


def test_cards_have_what_their_verdict_says_of_all() -> None:
    both = [finding(), finding(cause="client", seconds=4.0)]
    html = Verdict(both, incomplete=["2 rows were lost"], together=6.0, elapsed=10.0)._repr_html_()
    assert "Fixing all of them saves about 6 s of 10 s." in html
    assert "2 rows were lost" in html
    assert html.count("<li") == 2
    assert "Healthy: no single change" in Verdict()._repr_html_()
