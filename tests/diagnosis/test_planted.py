"""Causes that are planted in short runs are found, with their culprits.

What else is found depends on the host; which finding comes first is measured by `benchmarks/causes.py`, of all causes.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from planted_work import Analysis, Calibrated
from plants import Ground, measured

pytestmark = pytest.mark.slow


def finding_of(cause: str, measurement: Any) -> Any:
    """The finding on this cause."""
    (found,) = [finding for finding in measurement.verdict if finding.cause == cause]
    return found


def names(finding: Any, kind: str) -> list[str]:
    return [culprit.name for culprit in finding.culprits if culprit.kind == kind]


@pytest.fixture
def fileset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Ground(tmp_path_factory.getbasetemp()).sample()


def test_a_section_that_sleeps(client: Any, fileset: Any) -> None:
    plan = Analysis(cpu=0.005, section="calibration", sleep=0.1)
    finding = finding_of("blocked", measured(client, fileset, plan))
    assert names(finding, "section") == ["calibration"]
    assert "calibration" in finding.text
    # 12,000 events in each of four files, on two threads; a host without free cores leaves less to be saved
    assert finding.seconds == pytest.approx(4 * 12 * 0.1 / 2, rel=0.5)


def test_a_file_that_each_chunk_loads(client: Any, fileset: Any, tmp_path: Path) -> None:
    path = tmp_path / "corrections.json"
    path.write_text(json.dumps([{"edges": [each, each + 1], "content": [each / 3] * 4} for each in range(200_000)]))
    measurement = measured(client, fileset, Calibrated(str(path)))
    finding = finding_of("repeated work", measurement)
    assert finding.what.startswith("json.load, called in corrections (")
    (function,) = finding.culprits
    assert "planted_work.py" in function.name
    cpu = measurement.chunks["cpu_seconds"].sum()
    assert 0.5 * cpu <= (function.seconds or 0.0) <= cpu
    out = io.StringIO()
    measurement.print_summary(out)
    shown = " ".join(out.getvalue().partition("your code")[2].split())
    assert re.search(r"corrections \(\S+/planted_work\.py:\d+\)", shown)


def test_a_file_that_is_missing(client: Any, fileset: Any, tmp_path: Path) -> None:
    files = {**fileset["qcd"]["files"], str(tmp_path / "lost.root"): "Events"}
    finding = measured(client, {"qcd": {"files": files}}, Analysis(cpu=0.01), skipbadfiles=True).verdict[0]
    assert finding.cause == "missing data"
    assert any("lost.root" in name for name in names(finding, "file"))
