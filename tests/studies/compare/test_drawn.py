"""What a comparison draws: ledgers on one scale, and causes in the colour of their time."""

from __future__ import annotations

import pytest
from made_runs import made_run, plan

from roastcoffea.metrics.phases import COMPUTING
from roastcoffea.studies.compare.comparison import MOST_CARDS, Comparison, bars_of, card_of, compare
from roastcoffea.studies.compare.explanation import Part

FAST, SLOW = [plan(1.0)] * 64, [plan(1.5)] * 64


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(made_run(FAST, 2, name="fast"), made_run(SLOW, 2, name="slow"))


def test_thread_time_of_both_sides_has_one_scale(found: Comparison) -> None:
    first, other = (bar for bar in bars_of(found.sides, found.rows) if "thread time" in bar.title)
    assert first.title.startswith("A: thread time, 1 min 4 s")
    assert (first.length, other.length) == (pytest.approx(64 / 96, rel=0.05), 1.0)
    assert sum(float(part.width) for part in other.segments) == pytest.approx(100, abs=1)
    assert other.segments[0].name == "compute"


def test_a_cause_is_a_card_in_the_colour_of_its_time() -> None:
    part = Part(cause="compute", text="3 s instead of 2 s", thread_seconds=8.0, wall_seconds=4.0, rows={"compute": 8.0})
    card = card_of(part)
    assert (card.title, card.saving, card.what, card.family) == (
        "Compute",
        "+4 s of wall time",
        "3 s instead of 2 s",
        COMPUTING,
    )
    assert card_of(Part(cause="x", text="", thread_seconds=0.0, wall_seconds=-1.0, rows={})).family is None
    residual = Part(cause="residual", text="", thread_seconds=0.0, wall_seconds=1.0, rows={"residual": 1.0})
    assert card_of(residual).title == "Unaccounted"
    assert MOST_CARDS > 1


def test_a_notebook_shows_bars_and_cards_and_folds_tables(found: Comparison) -> None:
    html = found._repr_html_()
    assert html.count('class="of-bar"') == 2
    assert "<ol" in html
    before = html.partition("<table>")[0]
    assert before.rpartition("<details>")[2].count("</details>") == 0
    assert "<h5>Compute <em>+16 s of wall time</em></h5>" in html
