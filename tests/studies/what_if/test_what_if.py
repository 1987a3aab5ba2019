"""Predictions from runs that are written down by hand, and one from a run that is really made."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from made_runs import FOUR, in_two_calls, made_run, plan, with_call
from made_runs import predicted_seconds as seconds

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PREPROCESSING_COLUMNS
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.replay.stages import recorded_run
from roastcoffea.sheets.sheet import Heading, Sheet
from roastcoffea.studies.what_if import WhatIf, what_if


def printed(found: WhatIf) -> str:
    out = StringIO()
    found.print(out)
    return " ".join(out.getvalue().split())


def test_workers_by_hand() -> None:
    found = what_if(made_run(FOUR, 2), workers=[1, 2, 4, 16, 30])
    assert seconds(found) == [48.0, 24.0, 12.0, 3.0, 3.0]
    assert (found.spread, found.doubts) == (None, [])
    assert [round(check.error, 3) for check in found.checks] == [0.0]
    first = found.predictions[0]
    assert (first.low, first.high) == pytest.approx((48.0 / (1 + 0.1), 48.0 * (1 + 0.1)), rel=0.01)


def test_workers_bring_cores_or_share_those_of_one_host() -> None:
    run = made_run([plan(3.0)] * 16, 2, cores=2)
    assert seconds(what_if(run, workers=[1, 8])) == [48.0, 6.0]
    shared = what_if(run, workers=[1, 2, 8], same_host=True)
    # four processes on each core, which no run had: CPU time may grow by 20 % for each of two doublings
    assert seconds(shared) == [48.0, 24.0, -1.0]
    last = shared.predictions[2]
    assert "4 processes share a core" in str(last.reason)
    assert last.low < 24.0 < 24.0 * 1.4 < last.high
    assert ["share a core" in " ".join(prediction.doubts) for prediction in shared.predictions[:3]] == [
        False,
        False,
        True,
    ]


def test_which_cores_workers_have_is_told() -> None:
    run = made_run([plan(3.0)] * 16, 2, cores=2)
    apart, shared = what_if(run), what_if(run, same_host=True)
    assert [found.as_dict()["same_host"] for found in (apart, shared)] == [False, True]
    assert "recorded: 24 s on 2 workers, 1 host of 2 cores, chunks of 100 events" in printed(apart)
    assert "Wall time with 2 cores for every 2 workers, within 10 %" in printed(apart)
    assert "Wall time with workers sharing 2 cores, within 10 %" in printed(shared)
    alone = printed(what_if(made_run([plan(3.0)] * 16, 1, cores=1)))
    assert "on 1 worker, 1 host of 1 core," in alone
    assert "1 core per worker" in alone


def test_what_lies_outside_of_tasks_stays() -> None:
    run = made_run(FOUR, 2, before=7.0)
    assert recorded_run(run, Measurement(run).metrics, "made").client == pytest.approx(7.0)
    assert seconds(what_if(run, workers=[4])) == [19.0]


def test_waiting_for_a_core_is_not_waiting() -> None:
    """Two workers that shared one core: each chunk waited for it as long as it computed."""
    run = made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=1)
    found = what_if(run, workers=[1, 2, 4], same_host=True)
    # four share it for 16 s, or up to 1.4 / 1.2 times as long as the two that were recorded
    assert seconds(found) == [16.0, 16.0, pytest.approx(16.0 * (1.4 / 1.2) ** 0.5, abs=0.3)]
    assert found.doubts == []


def test_others_that_used_the_cores_use_them_in_predictions_too() -> None:
    """Chunks waited as long as they computed, although there were eight cores for two workers: 14 jobs of others."""
    foreign = made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=8)
    found = what_if(foreign, workers=[2])
    assert seconds(found) == pytest.approx([16.0], rel=0.02)
    assert ["other programs used the cores while made was recorded" in doubt for doubt in found.doubts] == [True]
    assert found.error == 0.1
    # 14 of others and one of ours on eight cores: each gets 8 / 15
    assert seconds(what_if(foreign, workers=[1], same_host=True)) == pytest.approx([16 * 15 / 8], rel=0.02)


def test_the_first_chunk_of_a_process_is_paid_by_each() -> None:
    plans = [plan(5.0), plan(5.0), *[plan(1.0)] * 14]
    assert seconds(what_if(made_run(plans, 2), workers=[1, 2, 4])) == [20.0, 12.0, 8.0]


CHANGES = [plan(1.0, 0.5, open_cpu=0.5, open_wait=0.5, read=1.0, file=file) for file in ("a", "b") for _ in range(8)]


def test_scenarios_by_hand() -> None:
    found = what_if(made_run(CHANGES, 1), storage=2.0)
    assert seconds(found) == [16 * 3.5]
    assert seconds(found, "no metadata re-reads") == [16 * 2.5 + 2]
    assert seconds(found, "storage 2 x faster") == [16 * 2.75]
    assert seconds(found, "no stragglers") == [16 * 3.5]
    assert seconds(found, "no Dask overhead") == [16 * 3.5]


def test_faster_storage_for_preprocessing() -> None:
    """A file is opened within 4 s, one of them CPU, before the chunks begin."""
    run = made_run(FOUR, 2, before=4.0)
    assert run.tasks is not None
    moments = dict.fromkeys(("runnable", "assigned", "arrived", "ready", "start"), run.start)
    opening = {"key": "p", "run_id": 1, "worker": "w0", "attempt": 1, "outcome": "ok", "thread": 1} | moments
    opening |= {"stop": run.start + 4, "seen": run.start + 4, "prefix": "get", "kind": "preprocessing"}
    tasks = table_of_rows(TASK_COLUMNS, [opening, *run.tasks.to_pylist()])
    record = {"id": 1, "key": "p", "run_id": 1, "cpu_seconds": 1.0, "outcome": "ok"}
    opened = replace(run, tasks=tasks, preprocessing=table_of_rows(PREPROCESSING_COLUMNS, [record]))
    found = what_if(opened, storage=3.0)
    assert seconds(found) == [28.0]
    assert seconds(found, "storage 3 x faster") == [26.0]


def test_without_stragglers() -> None:
    plans = [*[plan(1.0)] * 15, plan(1.0, 9.0)]
    found = what_if(made_run(plans, 2))
    assert seconds(found) == [17.0]
    assert seconds(found, "no stragglers") == [8.0]


def test_the_recorded_chunk_size_is_another_prediction() -> None:
    found = what_if(made_run([plan(1.0, 0.5)] * 16, 1), chunksize=[100], workers=[2])
    assert [(one.workers, one.rechunked) for one in found.predictions] == [(2, False)] * 5 + [(1, True)]
    text = printed(found)
    # on two workers, and in chunks of 100 events between all fixed and almost nothing fixed
    assert "2 12 s 10.9 s to 13.2 s" in text
    assert "100 - 21.8 s to 26.4 s" in text


# Several runs


@pytest.mark.slow
def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="pass runs of the same analysis"):
        what_if(made_run(FOUR, 2), made_run(FOUR[:8], 2))
    files, others = (with_call(made_run(FOUR, 2, name=name), fileset=name) for name in ("aa", "bb"))
    with pytest.raises(NotMeasuredError, match="bb and aa read different files"):
        what_if(files, made_run(FOUR, 2), others)
    with pytest.raises(NotMeasuredError, match="aa ran Other and made Made"):
        what_if(made_run(FOUR, 2), with_call(files, processor="Other"))
    with pytest.raises(NotMeasuredError, match="made ran Made, Made and made Made"):
        what_if(made_run(FOUR, 2), in_two_calls(made_run(FOUR, 2), 8))
    with pytest.raises(NotMeasuredError, match="no scheduler"):
        what_if(made_run(FOUR, 2, tasks=None, absent={"tasks": "no scheduler"}))
    with pytest.raises(NotMeasuredError, match="made cannot be replayed: no chunk has a result"):
        empty = made_run(FOUR, 2)
        what_if(made_run(FOUR, 2, chunks=empty.chunks.slice(0, 0)))  # type: ignore[union-attr]


def test_what_is_not_known_makes_doubts() -> None:
    run = made_run(FOUR, 2, cores=None)
    assert "its hosts' core counts are unknown" in what_if(run).doubts[0]
    assert seconds(what_if(run, workers=[16], same_host=True)) == [3.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": [2, 0]},
        {"threads": [-1]},
        {"chunksize": [0]},
        {"storage": 0.0},
        {"workers": "4"},
        {"workers": 4},
        {"threads": [1.5]},
        {"storage": "2"},
    ],
    ids=repr,
)
def test_settings_are_above_0(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*above 0"):
        what_if(made_run(FOUR, 2), **settings)


@pytest.mark.parametrize("settings", [{"workers": [10_001]}, {"threads": [257]}], ids=repr)
def test_clusters_have_limits(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is (10,001; pass at most 10,000|257; pass at most 256)"):
        what_if(made_run(FOUR, 2), **settings)


def test_a_failed_run_is_named() -> None:
    failed = made_run(FOUR, 2, name="broken", outcome="failed")
    with pytest.raises(NotMeasuredError, match="broken failed: leave it out"):
        what_if(made_run(FOUR, 2), failed)


def test_tables_name_doubts_and_reasons() -> None:
    out = StringIO()
    what_if(made_run(FOUR, 2, cores=None), chunksize=[400], threads=[2]).print(out)
    text = " ".join(out.getvalue().split())
    assert "Caveats - its hosts' core counts are unknown" in text
    assert "(2 x 2 workers)" in text
    assert "Range only: chunks of data" in text


# Sheets


RUN = made_run([plan(1.0, 2.0)] * 16, 2)


def titles(found: WhatIf) -> list[str]:
    return [sheet.title for sheet in found.sheets()]


def sheet(found: WhatIf, title: str) -> Sheet:
    return next(sheet for sheet in found.sheets() if sheet.title.startswith(title))


def test_one_screen_without_what_there_is_not() -> None:
    found = what_if(RUN)
    assert titles(found) == [
        "made",
        "Wall time with 64 cores for every 2 workers, within 10 %",
        "Wall time with one change, by number of workers",
        "Measured and predicted",
    ]
    assert isinstance(found.sheets()[0], Heading)


def test_many_clusters_take_several_tables_of_changes() -> None:
    found = what_if(RUN, workers=[1, 2, 3, 4, 5, 6, 7])
    changed = [sheet for sheet in found.sheets() if sheet.rows and sheet.rows[0][0] == "as recorded"]
    assert [len(sheet.columns) for sheet in changed] == [6, 3]
    assert [bool(sheet.title) for sheet in changed] == [True, False]


def test_a_size_without_a_number_has_its_reason_and_range() -> None:
    sizes = sheet(what_if(RUN, chunksize=[200]), "Wall time with other chunk sizes")
    ((size, seconds, within),) = sizes.rows
    assert (size, seconds) == ("200", None)
    assert " to " in str(within)
    assert sizes.notes[0].startswith("Range only: chunks of data")


def test_what_has_no_number_has_its_reason_whatever_is_changed() -> None:
    found = what_if(RUN)
    unknown = [replace(one, seconds=None, reason="nobody knows") for one in found.predictions[1:]]
    shown = replace(found, predictions=[found.predictions[0], *unknown])
    assert "Range only: nobody knows." in sheet(shown, "Wall time with 64").notes


def test_doubts_have_the_clusters_that_they_are_of() -> None:
    doubts = sheet(what_if(RUN, workers=[2, 4], threads=[2]), "Caveats")
    (doubt,) = doubts.items
    assert doubt.endswith("(2 x 2, 4 x 2 workers).")


def test_it_is_shown_as_markdown_and_in_notebooks() -> None:
    found = what_if(RUN)
    assert "| workers | as recorded | range | scheduler busy |" in found.to_markdown()
    assert "<table>" in found._repr_html_()


# Really


def test_large_errors_are_factors_and_workers_on_one_host_are_explained() -> None:
    assert "within a factor of 2.5" in printed(what_if(made_run([plan(1.0, core_wait=1.5)] * 16, 2, cores=None)))
    run = made_run([plan(1.0)] * 16, 2, cores=8)
    assert what_if(replace(run, name=None)).runs[0].name == f"Made {run.id[:8]}"
    assert "To keep 8 cores in total, pass --same-host (same_host=True)" in printed(what_if(run, workers=[4]))
    assert "same_host" not in printed(what_if(run, workers=[4], same_host=True))
    assert "same_host" not in printed(what_if(run, workers=[1, 2]))


def test_a_load_of_others_that_differed_between_the_runs_leaves_no_number() -> None:
    """None beside one run, and as much beside its repeat that it took three times as long; both have one name."""
    quiet, loaded = (made_run([plan(1.0, core_wait=wait)] * 16, 2, cores=2) for wait in (0.0, 2.0))
    found = what_if(quiet, loaded)
    as_recorded = found.predictions[0]
    assert as_recorded.seconds is None
    assert "other programs used 0 to 4" in str(as_recorded.reason)
    assert as_recorded.low < 8.0
    assert as_recorded.high > 24.0
    assert "Range only: other programs used 0 to 4" in printed(found)
