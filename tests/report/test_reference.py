import io
import re
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
    page = metric_reference()
    for metric in CATALOGUE.metrics():
        before, heading, entry = page.partition(f"\n### `{metric.name}`\n")
        entry = re.split(r"\n#+ ", entry)[0].strip()
        assert heading
        assert metric.meaning in entry
        assert f"\n\n`{metric.formula}`" in entry
        usual = next(line for line in reversed(before.splitlines()) if line.startswith("Unit: "))
        unit, source = re.fullmatch(r"Unit: (.+); source: (.+)\.", usual).groups()
        facts = entry.rpartition(f"\n\n`{metric.formula}`")[2]
        assert (unit == str(metric.unit)) is (str(metric.unit) not in facts.split("; "))
        assert (source == metric.source) is (f"; {metric.source}" not in facts)
        assert metric.alias is None or f"alias: `{metric.alias}`" in entry


def test_it_prints_in_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    print_reference(file)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert {metric.name for metric in CATALOGUE.metrics()} <= {line.strip() for line in lines}
    assert any("alias: wall_time" in line for line in lines)


@pytest.mark.slow
def test_the_command_alone_knows_what_diagnosis_adds() -> None:
    code = "from roastcoffea.report.glossary import metric_reference; print(metric_reference())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "### `verdict`" in done.stdout
