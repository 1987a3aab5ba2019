"""The examples of docs/extending.md: each is inserted where it says, and is all that the change takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from handmade import handmade_run
from processes import PATIENCE

import roastcoffea
from roastcoffea.metrics.phases import READING
from roastcoffea.storage.store import save_run

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "contributing.md"
EXTENDING = (TESTS.parent / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGE = Path(roastcoffea.__file__).parent
BLOCK = re.compile(r"<!-- tests/test_contributing.py runs this -->\n```python\n# in (\S+), (.*?)\n(.*?)```", re.DOTALL)
EXAMPLES = BLOCK.findall(EXTENDING)

PROGRAM = """
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
import roastcoffea
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from made_runs import made_run, plan, waiting_in
from roastcoffea import Measurement, MetricsCollector, compare, load, what_if
from roastcoffea.demo import DijetProcessor, write_sample
from roastcoffea.report.glossary import metric_reference
from roastcoffea.visualization.draw import OF_PHASES, OF_TIME

folder = Path(tempfile.mkdtemp())
fileset = write_sample(folder / "sample", files=1, events=1000, baskets=1)
run = Runner(IterativeExecutor(status=False), chunksize=500, schema=NanoAODSchema)
with MetricsCollector(backend="farm") as collector:
    run(fileset, treename="Events", processor_instance=DijetProcessor())
measurement = load(collector.save_measurement(folder / "runs"))
older = [load(path) for path in (Path(sys.argv[2]) / "data" / "schema6", sys.argv[3])]
figure, axes = roastcoffea.plot_chunk_events(measurement)

def waiting_for_tokens(seconds):
    plans = [plan(1.0, 6 * seconds if row == 7 else seconds, open_wait=0.5, core_wait=1.0) for row in range(40)]
    return Measurement(waiting_in(made_run(plans, 4), "token_seconds"))

made, slower = waiting_for_tokens(2.0), waiting_for_tokens(4.0)
trace = json.loads(made.export(folder / "trace", "perfetto").read_text())
explained = compare(made, slower).explanation.parts
legend = made.plot("chunk_phases")[1].get_legend().get_texts()
print(json.dumps({
    "problems": measurement.problems,
    "metric": measurement.metrics["events_per_chunk"],
    "in the reference": "events_per_chunk" in metric_reference(),
    "plot": [axes.get_title(), sum(bar.get_height() for bar in axes.patches), "plot_chunk_events" in dir(roastcoffea)],
    "class": {name: seconds for name, seconds in made.time_ledger.items() if seconds},
    "class in tables": "authorize" in str(made.time_ledger),
    "bound": made.bound,
    "findings": [[finding.cause, finding.rows, finding.text] for finding in made.verdict],
    "compared": {part.cause: part.thread_seconds for part in explained},
    "phase": int(measurement.chunks["token_seconds"].notna().sum()),
    "colours": [OF_TIME["authorize"], OF_PHASES["token"]],
    "metrics": [made.metrics["time_authorize_seconds"], made.metrics["chunk_token_seconds"]],
    "stragglers": made.stragglers[["phase", "wall_seconds"]].values.tolist(),
    "slices": sorted(event["dur"] for event in trace["traceEvents"] if event["name"] == "token"),
    "drawn": "token" in [text.get_text() for text in legend],
    "what if": {one.scenario: one.seconds for one in what_if(made).predictions},
    "backend": [measurement.run.backend, measurement.lifetimes["worker"].tolist()],
    "column": bool((measurement.chunks["depth"] > 100).all()),
    "older": [int(each.chunks["depth"].notna().sum()) for each in older],
}))
"""


def inserted(text: str, place: str, example: str) -> str:
    """Text of a module with an example at its end, or beside the only line that holds what the place names."""
    side, _, beside = place.partition(" ")
    if side == "at":
        return f"{text}\n\n{example}"
    lines = text.splitlines(keepends=True)
    (number,) = (number for number, line in enumerate(lines) if beside in line and not line.startswith("from"))
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    entry = f"{example.rstrip()},\n" if lines[number].rstrip().endswith(",") else example
    lines.insert(number + (side == "below"), f"{indent}{entry}")
    return "".join(lines)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package does with all examples inserted."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "roastcoffea", ignore=shutil.ignore_patterns("__pycache__"))
    for name, place, example in EXAMPLES:
        module = folder / "roastcoffea" / name
        module.write_text(example if place == "a new module" else inserted(module.read_text(), place, example))
    before = save_run(handmade_run(), folder, "before")  # with the columns of now
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), str(TESTS), str(before)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_the_page_counts_the_places_rightly() -> None:
    chapters = [chapter for chapter in EXTENDING.split("\n## ")[1:] if " place" in chapter.partition("\n")[0]]
    counted = [re.search(r": (one|two|three) place", chapter.partition("\n")[0]) for chapter in chapters]
    numbers = [("one", "two", "three").index(found[1]) + 1 for found in counted if found]
    assert numbers == [len(BLOCK.findall(chapter)) for chapter in chapters] == [1, 1, 1, 1, 1, 2, 2]


@pytest.mark.slow
def test_a_metric(found: dict[str, Any]) -> None:
    assert found["metric"] == 500
    assert found["in the reference"]


@pytest.mark.slow
def test_a_plot(found: dict[str, Any]) -> None:
    assert found["plot"] == ["Events of chunks\nDijetProcessor, complete", 4, True]


# Of 40 chunks with 1 s of CPU each 39 wait 2 s for tokens, and one 12 s; each waits 0.5 s for its file and 1 s for a
# core.
TOKENS = [2.0] * 39 + [12.0]


@pytest.mark.slow
def test_a_class_is_in_its_ledger_and_all_that_reads_it(found: dict[str, Any]) -> None:
    classes = found["class"]
    assert {name: classes[name] for name in classes if not name.startswith("idle")} == {
        "compute": 40,
        "authorize": sum(TOKENS),
        "contention": 40,
        "open": 20,
    }
    assert found["class in tables"]
    assert found["bound"] == "storage"
    rows, text = {cause: said for cause, *said in found["findings"]}["storage"]
    assert rows == {"authorize": sum(TOKENS)}
    assert "of thread time is spent waiting for local files" in text
    assert found["compared"]["authorize"] == pytest.approx(sum(TOKENS))
    assert found["colours"][0] == READING.light


@pytest.mark.slow
def test_a_phase_is_in_its_class_and_all_that_reads_it(found: dict[str, Any]) -> None:
    assert found["phase"] == 0  # no probe fills it
    assert found["metrics"] == [sum(TOKENS)] * 2
    assert found["stragglers"] == [["token", 14.5]]
    assert found["slices"] == [1e6 * seconds for seconds in TOKENS]
    assert found["drawn"]
    assert found["colours"][1] == READING.light


@pytest.mark.slow
def test_a_phase_that_waits_for_storage_is_replayed_so(found: dict[str, Any]) -> None:
    """Chunks of 4.5 s and one of 14.5 s on four workers; with half of the waiting 3.25 s and 8.25 s.

    The last ones begin when the first worker has done ten chunks, at 45 and at 32.5 s.
    """
    assert found["what if"]["as recorded"] == pytest.approx(45 + 4.5, rel=0.03)
    # how much storage was shared is open
    assert found["what if"]["storage 2 x faster"] == pytest.approx(32.5 + 3.25, rel=0.1)


@pytest.mark.slow
def test_a_cause_is_a_finding(found: dict[str, Any]) -> None:
    rows, text = {cause: said for cause, *said in found["findings"]}["token service"]
    assert rows == {"authorize": sum(TOKENS)}
    assert text.startswith("Waiting for tokens takes ")
    assert text.endswith("Ask for one token a worker.")
    assert "Fixing it saves at most " in text


@pytest.mark.slow
def test_a_backend(found: dict[str, Any]) -> None:
    assert found["problems"] == []
    assert found["backend"] == ["farm", ["farm"]]


@pytest.mark.slow
def test_a_column(found: dict[str, Any]) -> None:
    assert found["column"]
    assert found["older"] == [0, 0]


def test_every_room_is_on_the_page() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"export"}
    assert set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(), re.MULTILINE)) == rooms


def test_every_module_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)`", PAGE.read_text())
    assert named
    assert [name for name in named if not ((PACKAGE / name).exists() or (TESTS.parent / name).exists())] == []
    # beside a module of a room others of that room go by their own names
    for row in PAGE.read_text().splitlines():
        rooms = [(PACKAGE / room) for room in re.findall(r"`(\w+/[\w/]*?)(?:\w+\.py)?`", row)]
        for name in re.findall(r"`(\w+\.py)`", row):
            assert any((room / name).exists() for room in [*rooms, PACKAGE]), row
