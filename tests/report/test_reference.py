import io
import subprocess
import sys
from pathlib import Path

import pytest

from roastcoffea.metrics import CATALOGUE
from roastcoffea.report.glossary import metric_reference, print_reference

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_up_to_date():
    refresh = "docs/metrics.md is stale: run `roastcoffea metrics --markdown > docs/metrics.md`"
    assert PAGE.read_text(encoding="utf-8") == metric_reference(), refresh


def test_it_has_every_metric_with_its_unit_formula_and_alias():
    entries = {text.split("`")[1]: text for text in metric_reference().split("\n### ")[1:]}
    for metric in CATALOGUE.metrics():
        entry = entries[metric.name]
        assert metric.meaning in entry
        assert f"unit: {metric.unit}; source: {metric.source}" in entry
        assert f"formula: `{metric.formula}`" in entry
        assert metric.alias is None or f"alias: `{metric.alias}`" in entry


def test_it_prints_in_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    print_reference(file)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {metric.name for metric in CATALOGUE.metrics()} <= {line.strip() for line in lines}
    assert any("unit: s; source: " in line and "alias: wall_time" in line for line in lines)


@pytest.mark.slow
def test_the_command_alone_knows_what_diagnosis_adds() -> None:
    code = "from roastcoffea.report.glossary import metric_reference; print(metric_reference())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "### `verdict`" in done.stdout
