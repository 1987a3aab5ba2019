"""The page of a study of scaling says why at its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_run, plan

from roastcoffea.errors import MeasurementError
from roastcoffea.studies.scaling.scaling import scaling


@pytest.mark.slow
def test_the_reason_comes_first(tmp_path: Path) -> None:
    study = scaling([made_run([plan(1.0)] * 32, workers, before=4.0) for workers in (1, 2, 4)])
    text = study.page(tmp_path / "new" / "page.html").read_text()
    assert text.index("Client limits these runs from about") < text.index("<nav")
    assert "All workers wait for the client, 4 s before the first task" in text
    assert "4 workers: " in text
    with pytest.raises(MeasurementError, match="exists"):
        study.page(tmp_path / "new" / "page.html")
    study.page(tmp_path / "new" / "page.html", overwrite=True)
