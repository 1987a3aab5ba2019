"""Histories of folders: what is read, kept apart, skipped, and how it is shown."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import HIGH, LOW, entry, made_run, plan, with_call, with_cpu

import roastcoffea
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import FAILED
from roastcoffea.studies.history import History, history
from roastcoffea.studies.history_analysis import BYTES, CPU, RATE, Entry, analysis_of


def saved(folder: Path, name: str, cpu: float = 1.0, processor: str = "Made", **changes: object) -> Path:
    run = with_call(made_run([plan(cpu)] * 4, 2, id=name.ljust(32, "0")), processor=processor)
    return Measurement(replace(run, **changes)).save(folder, name)  # type: ignore[arg-type]


def of(entries: Sequence[Entry], skipped: Sequence[str] = ()) -> History:
    return History(folder=Path("runs"), analyses=(analysis_of(entries),), skipped=tuple(skipped))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for number in range(3):
        saved(folder, f"run-{number}", cpu=1.0 + number)
    saved(folder, "broken", outcome=FAILED, error="ValueError: no jets")
    saved(folder, "muons", processor="Muons")
    shutil.copytree(folder / "run-1", folder / "run-1-again")
    damaged = shutil.copytree(folder / "run-2", folder / "without-chunks")
    (damaged / "chunks.parquet").write_bytes(b"PAR1")
    (folder / "unreadable").mkdir()
    (folder / "unreadable" / "run.json").write_text("{")
    (folder / "sample").mkdir()
    (folder / ".ipynb_checkpoints").mkdir()
    return folder


@pytest.mark.slow
def test_analyses_are_kept_apart_and_bad_folders_are_named(folder: Path) -> None:
    found = history(folder)
    names = {one.title: [each.name for each in one.entries] for one in found.analyses}
    assert names == {
        "Made on data": ["broken", "run-0", "run-1", "run-1-again", "run-2"],
        "Muons on data": ["muons"],
    }
    (made,) = (one for one in found.analyses if one.processors == ("Made",))
    assert {each.name: each.reason for each in made.entries if not each.used} == {
        "broken": "it failed: ValueError: no jets",
        "run-1-again": "it is the same run as run-1",
    }
    # 4 chunks of 100 events with 1, 2 and 3 s of CPU
    assert [each.values[CPU] for each in made.used] == pytest.approx([0.01, 0.02, 0.03])
    assert sorted(text.partition(":")[0] for text in found.skipped) == ["sample", "unreadable", "without-chunks"]


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="there are no measurements in"):
        history(tmp_path)
    with pytest.raises(MeasurementError, match="cannot be listed"):
        history(tmp_path / "nowhere")
    with pytest.raises(MeasurementError, match="ttbar is a single measurement; pass its parent folder"):
        history(Measurement(made_run([plan(1.0)] * 4, 2)).save(tmp_path, "ttbar"))


def test_a_run_that_ended_before_its_datasets_were_known_is_with_the_others(tmp_path: Path) -> None:
    saved(tmp_path, "good")
    saved(tmp_path, "early", outcome=FAILED, error="OSError", chunks=None, asked=None, tasks=None)
    (one,) = roastcoffea.history(tmp_path).analyses
    assert {each.name: each.used for each in one.entries} == {"good": True, "early": False}


def test_it_is_printed_with_bars_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    runs = with_cpu([*LOW, *HIGH])
    runs.append(entry(16, reason="it failed: ValueError", failures=3))
    of(runs, ["odd: not a measurement"]).print()
    text = capsys.readouterr().out
    lines = text.splitlines()
    (bars,) = [line for line in lines if line.strip().startswith("CPU per event")]
    before, _, after = bars.split()[3].partition("|")
    assert (len(before), len(after)) == (8, 8)
    assert set(after) <= set("▇█")
    assert max(before) < min(after)
    assert "+44 %" in bars
    flat = " ".join(text.split())
    assert f"17 runs from {runs[0].when} to {runs[16].when}, 1 of them not used" in flat
    assert f"Since run-08 ({runs[8].when}): rate per core" in flat
    assert "run-16: it failed: ValueError" in flat
    assert "odd: not a measurement" in flat
    assert max(map(len, lines)) <= 80
    (last,) = [line for line in lines if line.strip().startswith("run-16 ")]
    assert last.split()[-3:] == ["3", "not", "used"]


def test_of_many_runs_the_latest_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = of(with_cpu([*LOW, *LOW, *HIGH]))
    found.print()
    said = capsys.readouterr().out
    assert "the latest 15 of 24" in said
    assert "run-08 " not in said
    assert "run-23 " in said
    found.print(everything=True)
    assert "run-00 " in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["ascii", "cp437"])
def test_outputs_without_block_characters_get_others(encoding: str) -> None:
    """Some of them are not enough."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    of(with_cpu([*LOW, *HIGH])).print(file)
    file.flush()
    text = raw.getvalue().decode(encoding)
    assert "\\u" not in text
    assert "|##" in text.replace("*", "#")


def test_programs_get_all_of_it() -> None:
    found = of(with_cpu([*LOW, *HIGH]), ["odd: not a measurement"])
    said = json.loads(json.dumps(found.as_dict()))
    (one,) = said["analyses"]
    assert len(one["runs"]) == 16
    assert one["changes"][0]["run"] == "run-08"
    assert one["runs"][8]["values"][CPU] == HIGH[0]
    assert said["units"] == found.to_dataframe().attrs["units"] == {RATE: "kHz", CPU: "s", BYTES: "B"}
    frame = found.to_dataframe()
    assert frame[CPU].tolist() == [*LOW, *HIGH]
    assert set(frame["coffea"]) == {"2025.11"}
    assert frame["start"].is_monotonic_increasing
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)
    assert "rate/core" in found.to_markdown()
    assert "CPU/event" in found._repr_html_()


def test_runs_of_a_day_are_listed_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [replace(run, start=1_700_000_000.0 + 60 * number) for number, run in enumerate(with_cpu(LOW))]
    of(runs).print()
    table = capsys.readouterr().out.partition("\nRuns\n")[2]
    assert [line.split()[1] for line in table.splitlines()[1:9]] == [run.when.split()[1] for run in runs]
