"""Runs of a scheduler's journals as measurements on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roastcoffea.log.journals import journal_in
from roastcoffea.measurement import Measurement
from roastcoffea.recording.facility.index import RUNNING, Index
from roastcoffea.recording.facility.journaled import run_of


def save_ended(found: Index, output: Path) -> Iterator[Path]:
    """Save the runs of an index that go on no longer; existing ones stay as they are."""
    for row in found.runs.to_pylist():
        if row["state"] != RUNNING and not (output / row["journal"]).exists():
            yield Measurement(run_of(journal_in(found.folder / row["journal"]))).save(output, row["journal"])
