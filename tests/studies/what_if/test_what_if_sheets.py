"""Predictions as sheets."""

from __future__ import annotations

from made_runs import made_run, plan

from roastcoffea.report.sheets import Heading, Sheet
from roastcoffea.studies.what_if.what_if import WhatIf, what_if

RUN = made_run([plan(1.0, 2.0)] * 16, 2)


def titles(found: WhatIf) -> list[str]:
    return [sheet.title for sheet in found.sheets()]


def sheet(found: WhatIf, title: str) -> Sheet:
    return next(sheet for sheet in found.sheets() if sheet.title.startswith(title))


def test_one_screen_without_what_there_is_not() -> None:
    found = what_if(RUN)
    assert titles(found) == [
        "made",
        "Wall time, each 2 workers with 64 cores of their own; give or take 10 %",
        "Wall time with one thing changed, by workers",
        "Runs that were made, and what was predicted for them",
    ]
    assert isinstance(found.sheets()[0], Heading)


def test_many_clusters_take_several_tables_of_changes() -> None:
    found = what_if(RUN, workers=[1, 2, 3, 4, 5, 6, 7])
    changed = [sheet for sheet in found.sheets() if sheet.rows and sheet.rows[0][0] == "as recorded"]
    assert [len(sheet.columns) for sheet in changed] == [6, 3]
    assert [bool(sheet.title) for sheet in changed] == [True, False]


def test_a_size_without_a_number_has_its_reason_and_range() -> None:
    sizes = sheet(what_if(RUN, chunksize=[200]), "Wall time in chunks of other sizes")
    ((size, seconds, within),) = sizes.rows
    assert (size, seconds) == ("200", None)
    assert " to " in str(within)
    assert sizes.notes[0].startswith("No number, but what it is between: chunks of data")


def test_doubts_have_the_clusters_that_they_are_of() -> None:
    doubts = sheet(what_if(RUN, workers=[2, 4], threads=[2]), "Not to be trusted fully")
    (doubt,) = doubts.items
    assert doubt.endswith("(2 x 2, 4 x 2 workers).")


def test_it_is_shown_as_markdown_and_in_notebooks() -> None:
    found = what_if(RUN)
    assert "| workers | as recorded | range | scheduler busy |" in found.to_markdown()
    assert "<table>" in found._repr_html_()
