"""What a comparison draws: ledgers on one scale, and causes in the colour of their time."""

from __future__ import annotations

import pytest
from made_runs import made_run, plan

from roastcoffea.studies.compare import Comparison, bars_of, compare

FAST, SLOW = [plan(1.0)] * 64, [plan(1.5)] * 64


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(made_run(FAST, 2, name="fast"), made_run(SLOW, 2, name="slow"))


def test_thread_time_of_both_sides_has_one_scale(found: Comparison) -> None:
    first, other = (bar for bar in bars_of(found.sides) if "thread time" in bar.title)
    assert first.title.startswith("A: thread time, 1 min 4 s")
    assert (first.length, other.length) == (pytest.approx(64 / 96, rel=0.05), 1.0)
    assert sum(100 * part.fraction for part in other.segments) == pytest.approx(100, abs=1)
    assert other.segments[0].name == "compute"


def test_a_notebook_shows_bars_and_cards_and_folds_tables(found: Comparison) -> None:
    html = found._repr_html_()
    assert html.count('class="of-bar"') == 2
    assert "<ol" in html
    before = html.partition("<table>")[0]
    assert before.rpartition("<details>")[2].count("</details>") == 0
    assert "<h5>Compute <em>+16 s of wall time</em></h5>" in html
