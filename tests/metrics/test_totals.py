"""Totals of several Runner calls, and reports that do not cover them."""

from dataclasses import replace

import pyarrow.compute as pc
import pytest
from handmade import handmade_run, run_without_tables

from roastcoffea.metrics.evaluation import evaluate
from roastcoffea.metrics.failures import checked, with_report
from roastcoffea.records.run import FAILED

RATES = ("event_rate_elapsed_khz", "event_rate_cpu_total_khz", "event_rate_core_khz", "data_rate_gbps")
WHOLE = {"entries": 450, "bytesread": 4500}
PARTS = ({"entries": 100, "bytesread": 1000}, {"entries": 350, "bytesread": 3500})


def a_run(**changes):
    """The run by hand, of which no chunk was skipped."""
    run = handmade_run(**changes)
    return replace(run, chunks=run.chunks.filter(pc.not_equal(run.chunks["outcome"], "skipped")))


def custom(entries, requested):
    return {"all": {"entries": entries, "performance_counters": {"num_requested_bytes": requested}}}


def totals(run):
    metrics = evaluate(run)
    return metrics["total_events"], metrics["total_bytes_read"]


@pytest.mark.parametrize("part", PARTS)
def test_the_report_of_one_call_does_not_stand_for_all(part):
    run = with_report(a_run(), part, None)
    assert totals(run) == (450, 4500)
    rest = "and its rates cover all 2 Runner calls"
    assert list(run.problems) == [
        f"the report passed to set_coffea_report has {part['entries']} of 450 events: total_events {rest}",
        f"the report passed to set_coffea_report has {part['bytesread']:,} of 4,500 bytes: total_bytes_read {rest}",
    ]
    found, whole = evaluate(run), evaluate(a_run())
    assert {name: found[name] for name in RATES} == {name: whole[name] for name in RATES}


def test_calls_without_reports_are_covered_by_their_chunks():
    run = a_run()
    run = replace(run, calls=tuple(replace(call, report=None) for call in run.calls))
    found = with_report(run, PARTS[0], None)
    assert totals(found)[0] == 450
    assert any("100 of 450 events" in problem for problem in found.problems)


@pytest.mark.parametrize("report", [WHOLE, {"entries": 450}, None])
def test_a_report_that_covers_all_is_no_problem(report):
    run = with_report(a_run(), report, None)
    assert totals(run) == (450, 4500)
    assert run.problems == ()


def test_the_report_of_the_only_call_that_gave_an_output_covers_all():
    run = a_run()
    run = replace(run, calls=(replace(run.calls[0], outcome=FAILED, report=None), run.calls[1]))
    run = with_report(run, PARTS[1], None)
    assert totals(run) == (350, 3500)
    assert run.problems == ()


@pytest.mark.parametrize(
    ("report", "breakdown", "source"),
    [
        ({"entries": 900, "bytesread": 9000}, None, "coffea report (set_coffea_report)"),
        (WHOLE, custom(900, 9000), "custom_metrics (set_coffea_report)"),
        (None, custom(900, 9000), "custom_metrics (set_coffea_report)"),
        (PARTS[0], custom(100, 1000), "custom_metrics (set_coffea_report)"),
    ],
)
def test_other_totals_of_the_user_are_used_and_their_mismatch_is_told(report, breakdown, source):
    run = with_report(a_run(), report, breakdown)
    events, read = totals(run)
    assert list(run.problems) == [
        f"{name} is {amount:,} according to the {source}, "
        f"but {expected:,} according to the coffea report (from the Runner call): the first value is used"
        for name, amount, expected in (("total_events", events, 450), ("total_bytes_read", read, 4500))
    ]
    assert (events, read) == ((100, 1000) if report == PARTS[0] else (900, 9000))


def test_the_report_of_a_single_call_is_held_against_it():
    run = a_run()
    run = replace(run, calls=(replace(run.calls[1], report=WHOLE),))
    run = with_report(run, {"entries": 5, "bytesread": 4500}, None)
    assert totals(run) == (5, 4500)
    assert len(run.problems) == 1
    assert run.problems[0].startswith("total_events is 5 according to the coffea report")


def test_another_report_takes_its_problems_with_it():
    run = with_report(a_run(problems=("of before",)), PARTS[0], None)
    assert len(run.problems) == 3
    assert with_report(run, WHOLE, None).problems == ("of before",)


def test_reports_that_lack_events_of_the_chunks_are_told():
    run = a_run()
    call = replace(run.calls[0], chunks=3, report={"entries": 400, "bytesread": 4500})
    told = "coffea's reports have 400 events, but the chunk records have 450"
    assert checked(replace(run, calls=(call,))).problems == (told,)
    unrecorded = replace(call, chunks=4)
    assert checked(replace(run, calls=(unrecorded,))).problems == ()


class Broken(dict):
    def get(self, *_):
        raise LookupError("planted")


@pytest.mark.parametrize("report", [{}, {"entries": "many"}])
def test_a_report_without_numbers_is_a_problem(report):
    (problem,) = with_report(a_run(), report, None).problems
    assert problem == (
        "the report passed to set_coffea_report has no number for entries or bytesread: totals come from other sources"
    )


def test_a_report_that_cannot_be_asked_is_a_problem_and_no_error():
    run = with_report(a_run(), Broken(), None)
    assert list(run.problems) == ["whether coffea's report covers the run is unknown: LookupError: planted"]


def test_a_run_without_records_has_nothing_to_compare():
    assert checked(run_without_tables()).problems == run_without_tables().problems
