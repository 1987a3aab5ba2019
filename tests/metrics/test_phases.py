"""The one table of phases and classes: what reads it, and that an entry is all that a new one takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from processes import PATIENCE

import roastcoffea
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.phases import (
    BUSY,
    BYTE_CLASSES,
    COLUMNS_OF,
    IDLE,
    OPENING,
    OVERHEAD,
    PHASES,
    READING,
    TIME_CLASSES,
    TIME_NAMES,
    Part,
    Volume,
    Work,
)
from roastcoffea.records.chunks import CHUNK_COLUMNS, PHASE_COLUMNS

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"

TIME_ENTRY = 'TimeClass("authorise", "waiting", READING, "storage", "events", "Waiting for tokens."),'
PHASE_ENTRY = 'Phase("token", "authorise", "waiting", "waiting for tokens", "Time in process() waiting for tokens"),'
BYTE_ENTRY = 'ByteClass("probe", "overhead", OPENING, "bytes_probe", "Bytes that probes requested."),'

ENTRIES = {
    "metrics/phases.py": {
        "    TimeClass(READ,": TIME_ENTRY,
        "    ByteClass(METADATA,": BYTE_ENTRY,
    },
    "records/chunks.py": {'    Phase("compute",': PHASE_ENTRY},
}
"""What is put before which line of which module."""

PROGRAM = """
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from handmade import evidence_of
from handmade import CHUNKS, handmade_run
import write_references
from roastcoffea.diagnosis import evidence, slowness
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.report.glossary import metric_reference
from roastcoffea.studies.explanation import DRIVERS
from roastcoffea.visualization import draw as colours
from roastcoffea.visualization.distributions import SHOWN

measurement = Measurement(handmade_run(chunks=table_of_rows(
    CHUNK_COLUMNS, [row | {"token_seconds": 0.0625} for row in CHUNKS])))
metrics, ledger, requested = measurement.metrics, measurement.time_ledger, measurement.byte_ledger
folder = Path(tempfile.mkdtemp())
trace = json.loads(measurement.export(folder / "trace.json", "perfetto").read_text())
print(json.dumps({
    "seconds": ledger["authorise"],
    "residual": ledger.residual,
    "over time": float((ledger.timeline(5)["authorise"] * ledger.timeline(5)["seconds"]).sum()),
    "bytes": requested["probe"],
    "metrics": [metrics["time_authorise_seconds"], metrics["chunk_token_seconds"], metrics["bytes_probe"]],
    "chunks": [chunk["token_seconds"] for chunk in metrics["raw_chunk_metrics"]],
    "word": evidence.WORDS["authorise"],
    "finding": sorted(evidence_of(measurement.run).rows_of("storage")),
    "comparison": DRIVERS["authorise"],
    "colours": [colours.OF_TIME["authorise"], colours.OF_PHASES["token"], colours.OF_BYTES["probe"]],
    "stream": "authorise" in SHOWN,
    "stragglers": slowness.PHASES.index("token_seconds"),
    "trace": sum(event.get("name") == "token" for event in trace["traceEvents"]),
    "tables": [name in write_references.column_page() for name in ("`authorise`", "`probe`", "`token_seconds`")],
    "reference": ["time_authorise_seconds" in metric_reference(), "bytes_probe" in metric_reference()],
    "shown": ["authorise" in str(ledger), "probe" in str(requested)],
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package with the entries of ENTRIES makes of a run."""
    folder = tmp_path_factory.mktemp("copy")
    package = Path(roastcoffea.__file__).parent
    shutil.copytree(package, folder / "roastcoffea", ignore=shutil.ignore_patterns("__pycache__"))
    for name, entries in ENTRIES.items():
        module = folder / "roastcoffea" / name
        text = module.read_text()
        for line, entry in entries.items():
            assert text.count(line) == 1
            text = text.replace(line, f"    {entry}\n{line}")
        module.write_text(text)
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), str(TESTS), str(DOCS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.slow
def test_a_new_class_is_in_the_ledger_and_its_metrics(found: dict[str, Any]) -> None:
    # three attempts counted, and the one without a task is in no task's time
    assert found["seconds"] == pytest.approx(2 * 0.0625)
    assert found["over time"] == pytest.approx(found["seconds"])
    assert found["residual"] == pytest.approx(0.0)
    assert found["bytes"] == 0
    assert found["metrics"] == [found["seconds"], 6 * 0.0625, 0]
    assert found["chunks"] == [0.0625] * 3


@pytest.mark.slow
def test_a_new_class_is_concluded_from(found: dict[str, Any]) -> None:
    assert found["word"] == "storage"
    assert found["finding"] == ["authorise", "read"]
    assert found["comparison"] == "events"
    assert found["stragglers"] == [phase.column for phase in PHASES].index("compute_seconds")


@pytest.mark.slow
def test_a_new_class_is_shown(found: dict[str, Any]) -> None:
    assert found["colours"] == [READING.light, READING.light, OPENING.light]
    assert found["stream"]
    assert found["trace"] > 0
    assert all([*found["tables"], *found["reference"], *found["shown"]])


def test_names_are_unique() -> None:
    for table in (TIME_CLASSES, BYTE_CLASSES, PHASES):
        assert len({one.name for one in table}) == len(table)
    metrics = [one.metric_name for one in (*TIME_CLASSES, *BYTE_CLASSES)]
    assert len({*metrics}) == len(metrics)
    assert {*metrics} <= CATALOGUE.entries.keys()


def test_entries_use_the_words_that_there_are() -> None:
    assert {one.work for one in (*TIME_CLASSES, *BYTE_CLASSES)} <= {*get_args(Work)}
    assert {one.grows_with for one in TIME_CLASSES} <= {*get_args(Volume), None}
    assert {phase.part for phase in PHASES} <= {*get_args(Part)}


def test_busy_classes_come_before_idle_ones_and_the_residual_last() -> None:
    assert (*BUSY, *IDLE, "not recorded", "residual") == TIME_NAMES


def test_every_phase_has_a_column_and_a_class() -> None:
    columns = [phase.column for phase in PHASES]
    assert [column.name for column in PHASE_COLUMNS if column.name != "process_seconds"] == columns
    assert {*PHASE_COLUMNS} <= {*CHUNK_COLUMNS}
    assert {phase.time_class for phase in PHASES} <= {*BUSY}


def test_every_phase_but_the_result_is_counted_in_one_class() -> None:
    counted = [column for columns in COLUMNS_OF.values() for column in columns]
    assert sorted(counted) == sorted(phase.column for phase in PHASES if phase.time_class != OVERHEAD)
