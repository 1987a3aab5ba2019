"""The drawing of a history: heights, levels and what the pointer tells."""

from __future__ import annotations

import pytest
from made_runs import HIGH, LOW, entry, with_cpu
from pages import Parsed

from roastcoffea.studies.history_analysis import analysis_of
from roastcoffea.studies.history_page import drawing


def test_dots_levels_and_flags_are_where_they_belong() -> None:
    runs = with_cpu([*LOW, *HIGH])
    runs.insert(4, entry(90, reason="it failed: ValueError", failures=3))
    text = drawing(analysis_of(runs), {}, {})
    panels = text.split("<figure>")[1:]
    assert [panel.partition("<b>")[2].partition("</b>")[0] for panel in panels] == [
        "rate per core",
        "CPU per event",
        "bytes per event",
        "failed attempts",
    ]
    cpu = Parsed(panels[1].partition("</figure>")[0])
    lines = [attributes for tag, attributes in cpu.elements if tag == "line"]
    (change,) = [line for line in lines if line.get("class") == "change"]
    # 17 runs, of which the fifth is not used: the ninth that is used is the tenth
    assert change["x1"] == "9"
    levels = [line for line in lines if line.get("class") == "level"]
    assert [(level["x1"], level["x2"]) for level in levels] == [("0", "9"), ("9", "17")]
    dots = [line for line in lines if "class" not in line]
    assert [float(dot["x1"]) for dot in dots] == [0.5 + place for place in range(17)]
    heights = [float(dot["y1"]) for dot in dots]
    # from 0.98 ms at 92 % to 1.44 x 1.02 ms at 8 %
    assert heights[0] == pytest.approx(92 - 84 * (1.0 - 0.98) / (1.44 * 1.02 - 0.98), abs=0.1)
    assert heights[4] == 99.5
    assert heights[5] == pytest.approx(92)
    assert "left: 52.94%" in panels[1]
    assert "+44 %" in panels[1]
    assert "3 failed attempts" in panels[3]


def test_scatter_is_not_made_to_look_large() -> None:
    text = drawing(analysis_of(with_cpu(LOW)), {}, {})
    heights = [
        float(attributes["y1"])
        for tag, attributes in Parsed(text.split("<figure>")[2].partition("</figure>")[0]).elements
        if tag == "line" and "class" not in attributes
    ]
    # 4 % of scatter on a scale of a fifth of the largest
    assert max(heights) - min(heights) == pytest.approx(84 * 0.04 / 0.204, abs=0.2)


def test_one_run_and_none_that_is_used() -> None:
    assert "<svg" in drawing(analysis_of([entry(0)]), {}, {})
    assert "<svg" not in drawing(analysis_of([entry(0, reason="it failed: OSError")]), {}, {})
