"""Measurements as version 0.1.2 loaded them."""

import io
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from handmade import T, handmade_run, run_without_tables

import roastcoffea
from roastcoffea.cli import main
from roastcoffea.compat.measurements import load_measurement, save_measurement
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load

DATA = os.environ.get("ROASTCOFFEA_TEST_DATA")


def test_load_measurement_gives_a_plain_dictionary(tmp_path):
    metrics, start, stop = load_measurement(Measurement(handmade_run()).save(tmp_path))
    assert (start, stop) == (T, T + 100)
    assert type(metrics) is dict
    assert metrics["wall_time"] == metrics["elapsed_time_seconds"] == 100
    assert metrics["processor_io_wait_percent"] == 25
    assert len(metrics["raw_chunk_metrics"]) == 3
    assert "core_efficiency" not in load_measurement(Measurement(run_without_tables()).save(tmp_path))[0]


@pytest.mark.skipif(DATA is None, reason="ROASTCOFFEA_TEST_DATA is not set")
def test_a_folder_of_the_older_prototype():
    folder = Path(str(DATA)) / "measurement-0.1.2"
    stored = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metrics, start, stop = load_measurement(folder)
    assert (start, stop) == (4044.576345519, 4056.612675873)
    bulky = {"tracking_data", "raw_chunk_metrics", "raw_span_metrics", "chunk_info"}
    for name in set(stored) - bulky:
        assert metrics[name] == stored[name]
    measurement = load(folder)
    assert measurement.metrics.source["core_efficiency"] == "reported by roastcoffea 0.1.2"
    assert len(measurement.chunks) == len(metrics["raw_chunk_metrics"]) == 40
    assert metrics["raw_chunk_metrics"][0]["num_events"] == 50_000
    assert "worker_cpu_time_seconds" in measurement.metrics.missing
    file = io.StringIO()
    measurement.print_summary(file)
    assert "98.7 Mbit/s" in file.getvalue()


MOMENT = datetime(2026, 3, 1, 12, 30)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            {"tracking_data": {"worker_memory": {"w": [(1.0, 2)]}}},
            {"tracking_data": {"worker_memory": {"w": [[1.0, 2]]}}},
        ),
        (tracked := {"tracking_data": {"worker_counts": None, "worker_memory": {"w": [(MOMENT, 2)]}}}, tracked),
        ({"tracking_data": {"worker_counts": {20260301: 2}}}, {"tracking_data": {"worker_counts": {"20260301": 2}}}),
        (
            {"tracking_data": {"worker_counts": {MOMENT: 2, 1.5: 3}}},
            {"tracking_data": {"worker_counts": {MOMENT: 2, "1.5": 3}}},
        ),
        ({"tracking_data": [1]}, {"tracking_data": [1]}),
        ({"raw_span_metrics": {"execute": 2.0, ("a", "s"): 1}}, {"raw_span_metrics": {"execute": 2.0, ("a", "s"): 1}}),
        ({"raw_span_metrics": {("a", frozenset({1})): 2.0}}, {"raw_span_metrics": {"('a', [1])": 2.0}}),
        ({"raw_span_metrics": {(1, 2): 2.0, "(1,2)": 3.0}}, {"raw_span_metrics": {"(1, 2)": 2.0, "(1,2)": 3.0}}),
        ({"chunk_info": {"f": (1.0, 2.0, 3)}}, {"chunk_info": {"f": [1.0, 2.0, 3]}}),
        ({"chunk_info": {("f", 0, 10): (1.0, 2.0, 3)}}, {"chunk_info": {("f", 0, 10): [1.0, 2.0, 3]}}),
    ],
)
def test_names_of_the_older_prototype_may_hold_anything(tmp_path, metrics, expected):
    folder = save_measurement(metrics, 0.0, 10.0, tmp_path, "first")
    loaded = load_measurement(folder)[0]
    assert {name: loaded[name] for name in metrics} == expected
    again = load_measurement(save_measurement(loaded, 0.0, 10.0, tmp_path, "again"))[0]
    assert {name: again[name] for name in metrics} == expected


def test_errors_are_those_that_scripts_of_the_older_prototype_catch(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder") as error:
        load_measurement(tmp_path / "nowhere")
    assert isinstance(error.value, MeasurementError)
    with pytest.raises(FileNotFoundError, match="is not a measurement"):
        load_measurement(tmp_path)
    folder = Measurement(handmade_run()).save(tmp_path)
    (folder / "chunks.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"chunks.parquet is missing; restore"):
        load_measurement(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json cannot be read .*; restore") as error:
        load_measurement(folder)
    assert isinstance(error.value, MeasurementError)


def test_settings_come_back_with_the_metrics(tmp_path):
    folder = save_measurement({"total_events": 5}, 1.0, 3.0, tmp_path, "named", {"bins": [1, 2], "token": "abc"})
    metrics, t0, t1, config = load_measurement(folder, config=True)
    assert (metrics, t0, t1) == load_measurement(folder)
    assert (metrics["total_events"], t0, t1) == (5, 1.0, 3.0)
    assert config["bins"] == [1, 2]
    assert config["token"] != "abc"
    assert load_measurement(save_measurement({}, 0.0, 1.0, tmp_path), config=True)[3] is None
    with pytest.raises(TypeError, match=r"config must be a mapping .* not list"):
        save_measurement({}, 0.0, 1.0, tmp_path, config=[1])


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="ROASTCOFFEA_TEST_DATA is not set")
def test_a_folder_of_the_older_prototype_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, new = str(Path(str(DATA), "measurement-0.1.2")), str(Measurement(handmade_run()).save(tmp_path, "new"))

    def printed(*arguments):
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    assert "complete: 40 chunks, 2,000,000 events" in (first := printed("show", folder))
    assert "as reported by roastcoffea 0.1.2" in first
    shown = printed("show", folder, "--all")
    assert max(map(len, shown.splitlines())) <= 80
    for words in ("Numbers as reported by roastcoffea 0.1.2", "2,000,000", "82.6 %", "used wall time as CPU time"):
        assert words in shown
    drawn = printed("plot", folder, "runtime_vs_events", "worker_count_timeline", "--out", "pictures").split()
    assert [Path(file).stat().st_size > 10_000 for file in drawn] == [True, True]
    compared = printed("compare", folder, new)
    for words in ("reported by roastcoffea 0.1.2", "2,000,000", "core efficiency"):
        assert words in compared
    assert "149 MB" in printed("compare", folder, folder, "--all")


@pytest.mark.parametrize("load", [load_measurement, roastcoffea.load_measurement])
def test_metrics_saved_the_old_way_come_back(load: Callable[..., tuple[dict, float, float]], tmp_path: Path) -> None:
    saved = {"elapsed_time_seconds": 12.5, "total_events": 4000}
    metrics, t0, t1 = load(save_measurement(saved, 100.0, 112.5, tmp_path, "good [red]run"))
    assert {name: metrics[name] for name in saved} == saved
    assert (t0, t1) == (100.0, 112.5)
    with pytest.raises(MeasurementError, match="or overwrite=True to replace it"):
        save_measurement(saved, 100.0, 112.5, tmp_path, "good [red]run")
    folder = save_measurement({"total_events": 1}, 100.0, 112.5, tmp_path, "good [red]run", overwrite=True)
    assert load(folder)[0]["total_events"] == 1
