"""Conditions of the gate: what they say, what is refused, and what becomes of them."""

from __future__ import annotations

import re

import pytest
from made_runs import observation, with_metric

from roastcoffea.errors import ComparisonError
from roastcoffea.studies.observations import FAILED, PASSED, UNKNOWN, condition_of, outcome_of


@pytest.mark.parametrize(
    ("text", "name", "limit", "relative"),
    [
        ("event_rate_core_khz < -10%", "event_rate_core_khz", -0.1, True),
        ("wall_time>+5e0%", "elapsed_time_seconds", 0.05, True),
        ("elapsed_time_seconds >= 2min", "elapsed_time_seconds", 120.0, False),
        ("elapsed_time_seconds > .5", "elapsed_time_seconds", 0.5, False),
        ("bytes_payload > 1.5 GB", "bytes_payload", 1.5e9, False),
        ("event_rate_elapsed_khz <= -3 Hz", "event_rate_elapsed_khz", -0.003, False),
        ("core_efficiency < -5 points", "core_efficiency", -0.05, False),
        ("chunk_mem_delta_max_mb > 1GiB", "chunk_mem_delta_max_mb", 1024.0, False),
        ("data_rate_gbps < -100 Mbit/s", "data_rate_gbps", -0.1, False),
    ],
)
def test_a_condition_is_understood(text: str, name: str, limit: float, relative: bool) -> None:
    condition = condition_of(text)
    assert (condition.name, condition.relative) == (name, relative)
    assert condition.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a condition"),
        ("elapsed_time_seconds", "is not a condition"),
        ("elapsed_time_seconds = 5%", "is not a condition"),
        ("elapsed_time_seconds > five", "is not a condition"),
        ("elapsed_time_seconds > 5 % or so", "is not a condition"),
        ("elapsed_time_second > 5%", "did you mean elapsed_time_seconds"),
        ("elapsed_time_seconds > 5 GB", "is in s, not in 'GB'"),
        ("bytes_payload > 5 kHz", "is in B, not in 'kHz'"),
        ("event_rate_core_khz < -100%", "nothing can fall by 100 % or more"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, words: str) -> None:
    with pytest.raises(ComparisonError, match=re.escape(words)):
        condition_of(text)


FAST = [observation(metrics={"event_rate_core_khz": rate, "bytes_reread": 0.0}) for rate in (10.0, 10.1, 10.2, 9.9)]
SLOW = with_metric("event_rate_core_khz", 8.0, 8.1, 8.2, 7.9)
WILD = with_metric("event_rate_core_khz", 8.0, 12.0, 10.0, 9.0)


@pytest.mark.parametrize(
    ("runs", "text", "word"),
    [
        (SLOW, "event_rate_core_khz < -10%", FAILED),
        (FAST, "event_rate_core_khz < -10%", PASSED),
        (WILD, "event_rate_core_khz < -10%", UNKNOWN),
        (SLOW, "event_rate_core_khz < -20%", UNKNOWN),
        (SLOW, "event_rate_core_khz < -30%", PASSED),
        (SLOW, "event_rate_core_khz < -1 kHz", FAILED),
        (SLOW[:1], "event_rate_core_khz < -10%", UNKNOWN),
        (FAST, "total_events < 0%", PASSED),
        (FAST, "total_events <= 0%", FAILED),
        ([observation(events=900)], "total_events < -5%", FAILED),
        (FAST, "bytes_reread > 0%", PASSED),
        (with_metric("bytes_reread", 10.0), "bytes_reread > 0%", UNKNOWN),
        (with_metric("bytes_reread", 10.0), "bytes_reread > 5 B", FAILED),
    ],
)
def test_what_becomes_of_a_condition(runs: list, text: str, word: str) -> None:
    outcome = outcome_of(condition_of(text), FAST, runs, "B")
    assert outcome.word == word, outcome.text
    assert text in outcome.text


@pytest.mark.parametrize(("after", "text"), [((5.0, 5.0), "peak_workers > 5%"), ((3.0, 3.0), "peak_workers >= 50%")])
def test_two_repeats_that_are_equal_tell_nothing(after: tuple[float, ...], text: str) -> None:
    before = with_metric("peak_workers", 4.0, 4.0)
    outcome = outcome_of(condition_of(text), before, with_metric("peak_workers", *after), "B")
    assert outcome.word == UNKNOWN, outcome.text


def test_a_relative_limit_beside_0_is_refused_with_the_way_out() -> None:
    before = with_metric("bytes_reread", 0.0, 0.0, 0.0, 5.0)
    outcome = outcome_of(condition_of("bytes_reread > 5%"), before, FAST, "B")
    assert outcome.word == UNKNOWN
    assert "not in %" in outcome.text


def test_a_run_that_lacks_the_metric_is_refused() -> None:
    lacking = observation(missing={"event_rate_core_khz": "no cluster was seen"})
    with pytest.raises(ComparisonError, match="by hand has no event_rate_core_khz: no cluster was seen"):
        outcome_of(condition_of("event_rate_core_khz < -10%"), FAST, [lacking], "B")
