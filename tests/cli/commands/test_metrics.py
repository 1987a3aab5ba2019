"""`roastcoffea metrics`."""

from __future__ import annotations

import pytest

from roastcoffea.cli import main
from roastcoffea.report.glossary import metric_reference


def test_metrics_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--markdown"]) == 0
    assert capsys.readouterr().out == metric_reference()
    assert main(["metrics"]) == 0
    assert "core_efficiency" in capsys.readouterr().out
