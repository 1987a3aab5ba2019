"""Exports: what other programs read is what the measurement has, and nothing is ever half there."""

from __future__ import annotations

import csv
import gzip
import json
import stat
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from analyses import Jets, runner_for
from handmade import CHUNKS, EXPECTED, LIFETIMES, TASKS, T, empty_run, handmade_run, run_without_tables
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from roastcoffea.cli import main
from roastcoffea.cli.commands.export import FORMATS as EXPORT_FORMATS
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import CATALOGUE
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.report.exports import perfetto, tables
from roastcoffea.report.exports.formats import FORMATS
from roastcoffea.report.exports.openmetrics import BASE_UNITS, family_name
from roastcoffea.units import BYTE, COUNT, GIGABIT_PER_SECOND, KILOHERTZ, MEBIBYTE, PERCENT, RATIO, SECOND

FOLDERS = ("csv", "parquet", "json")
READERS = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}
HOSTILE = ["=1+1", "+cmd|' /C calc'!A0", "-dy", "@SUM(A1)", "\tx", "\rx", "\nx", "'quoted"]
HOSTILE += ['a "b", c', "../../x", "ä\\n"]


@pytest.fixture
def handmade() -> Measurement:
    return Measurement(handmade_run())


@pytest.fixture
def hostile() -> Measurement:
    """A measurement whose datasets have names that mean something to other programs."""
    rows = [{**CHUNKS[-1], "id": number, "dataset": name, "error": name} for number, name in enumerate(HOSTILE)]
    return Measurement(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows)))


# Tables


def test_no_dataframe_of_a_measurement_is_left_out(handmade: Measurement) -> None:
    names = [name for name, value in vars(Measurement).items() if isinstance(value, property)]
    frames = [name for name in names if isinstance(getattr(handmade, name), pd.DataFrame)]
    assert "chunks" in frames
    assert set(frames) <= set(handmade.tables)


@pytest.mark.parametrize("file_format", FOLDERS)
def test_every_table_comes_back(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    folder = handmade.export(tmp_path / "new" / "export", file_format)
    described = json.loads((folder / "columns.json").read_text())["tables"]
    assert {file.name for file in folder.iterdir()} == {"columns.json", *(told["file"] for told in described.values())}
    assert set(described) == {"metrics", *handmade.tables}
    for name, frame in handmade.tables.items():
        read = READERS[file_format](folder / described[name]["file"])
        assert len(read) == described[name]["rows"] == len(frame)
        if len(frame):
            assert list(read.columns) == list(frame.columns)
        for column in frame.select_dtypes("number").columns if len(frame) else ():
            expected = frame[column].astype("float64").to_numpy()
            assert np.allclose(read[column].astype("float64"), expected, rtol=1e-9, equal_nan=True), (name, column)


@pytest.mark.parametrize("file_format", FOLDERS)
def test_the_metrics_are_a_table(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    folder = handmade.export(tmp_path / "export", file_format)
    rows = READERS[file_format](folder / f"metrics.{file_format}").set_index("name")
    for name in ("total_bytes_read", "core_efficiency", "bytes_failed", "avg_workers"):
        assert rows.loc[name, "value"] == pytest.approx(EXPECTED[name])
    assert rows.loc["bound", "text"] == "client"
    assert rows.loc["data_rate_gbps", "unit"] == "Gbit/s"
    assert set(handmade.metrics.missing) <= set(rows.index[rows["missing"].notna()])


def test_columns_are_documented_with_their_units(handmade: Measurement, tmp_path: Path) -> None:
    described = json.loads((handmade.export(tmp_path / "export", "json") / "columns.json").read_text())
    assert described["tables"]["chunks"]["columns"]["wall_seconds"]["unit"] == "s"
    assert described["tables"]["byte_ledger_by_dataset"]["columns"]["payload"]["unit"] == "B"
    assert described["run"]["id"] == "0123abcd"
    untold = [
        (table, column)
        for table, told in described["tables"].items()
        for column, told_of_column in told["columns"].items()
        if not told_of_column["meaning"]
    ]
    assert untold == []


@pytest.mark.parametrize("run", [empty_run(), run_without_tables()])
@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_a_run_of_which_little_is_known_is_exported(run: Any, file_format: str, tmp_path: Path) -> None:
    path = Measurement(run).export(tmp_path / "export", file_format)
    if file_format in FOLDERS and run.chunks is None:
        told = json.loads((path / "columns.json").read_text())["tables"]
        assert told["chunks"]["absent"] == "chunks were not recorded"
    assert path.exists()


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_a_measurement_of_0_1_2_is_exported(real_files: Any, file_format: str, tmp_path: Path) -> None:
    data = Path(next(iter(real_files["dy"]["files"]))).parent
    path = load(data / "measurement-0.1.2").export(tmp_path / "export", file_format)
    assert path.exists()


def test_text_in_csv_is_never_a_formula_and_comes_back(hostile: Measurement, tmp_path: Path) -> None:
    folder = hostile.export(tmp_path / "export", "csv")
    with (folder / "chunks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for column in ("dataset", "error"):
        cells = [row[column] for row in rows]
        assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))] == []
        assert sorted(cell.removeprefix("'") for cell in cells) == sorted(HOSTILE)
    assert "no spreadsheet runs it" in json.loads((folder / "columns.json").read_text())["note"]


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_names_from_data_are_names_of_no_file(hostile: Measurement, file_format: str, tmp_path: Path) -> None:
    hostile.export(tmp_path / "inner" / "export", file_format)
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["export"]
    if file_format in FOLDERS:
        files = {path.name for path in (tmp_path / "inner" / "export").iterdir()}
        assert files == {"columns.json", *(f"{name}.{file_format}" for name in ("metrics", *hostile.tables))}


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_what_is_there_is_replaced_only_when_asked(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    before = path.stat().st_ino
    with pytest.raises(MeasurementError, match="export exists"):
        handmade.export(path, file_format)
    assert path.stat().st_ino == before
    handmade.export(path, file_format, overwrite=True)
    assert path.stat().st_ino != before
    assert [other.name for other in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_no_folder_of_others_is_replaced(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(MeasurementError, match="precious"):
        handmade.export(tmp_path / "precious", file_format, overwrite=True)
    assert (tmp_path / "precious" / "file").read_text() == "mine"


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_an_export_that_fails_leaves_all_as_it_was(
    handmade: Measurement, file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    before = path.stat().st_ino

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    for target in (path, tmp_path / "other"):
        with pytest.raises(MeasurementError, match="no space left"):
            handmade.export(target, file_format, overwrite=True)
    assert path.stat().st_ino == before
    assert [other.name for other in tmp_path.iterdir()] == ["export"]


def test_an_export_is_known_by_its_own_file(tmp_path: Path) -> None:
    assert not tables.is_export(tmp_path, ["metrics"])
    (tmp_path / "columns.json").write_bytes(b"\xff")
    assert not tables.is_export(tmp_path, ["metrics"])
    (tmp_path / "columns.json").write_text(f'{{"mine": "{tables.EXPORT_FORMAT}"}}')
    assert not tables.is_export(tmp_path, ["metrics"])


def test_an_export_with_anything_else_in_it_is_not_replaced(handmade: Measurement, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", "csv")
    assert handmade.export(path, "json", overwrite=True) == path
    (path / "thesis.csv").write_text("mine")
    with pytest.raises(MeasurementError, match="holds other files"):
        handmade.export(path, "csv", overwrite=True)
    assert (path / "thesis.csv").read_text() == "mine"


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_exports_are_the_users_own(handmade: Measurement, file_format: str, tmp_path: Path) -> None:
    path = handmade.export(tmp_path / "export", file_format)
    expected = {0o700, 0o600} if path.is_dir() else {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, *path.glob("*"))} == expected


# The command


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_the_command_names_what_it_wrote(
    handmade: Measurement,
    file_format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handmade.save(tmp_path / "runs", "good run")
    monkeypatch.chdir(tmp_path)
    command = ["export", "runs/good run", "--format", file_format]
    assert main(command) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert path == f"good run{FORMATS[file_format]}"
    assert Path(path).exists()
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"roastcoffea: {path} exists")
    assert main([*command, "--overwrite"]) == 0
    assert main([*command, "-o", "here/other"]) == 0
    assert (tmp_path / "here" / "other").exists()


def test_the_formats_of_the_command_are_those_that_there_are() -> None:
    assert tuple(FORMATS) == EXPORT_FORMATS
    with pytest.raises(MeasurementError, match="choose csv"):
        Measurement(empty_run()).export("nowhere", "xls")


# OpenMetrics


def families(measurement: Measurement, folder: Path) -> dict[str, Any]:
    text = measurement.export(folder / "metrics.txt", "openmetrics").read_bytes().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_are_in_base_units(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    for name, factor, family in (
        ("data_rate_gbps", 1.25e8, "roastcoffea_data_rate_bytes_per_second"),
        ("event_rate_elapsed_khz", 1e3, "roastcoffea_event_rate_elapsed_hertz"),
        ("chunk_mem_delta_max_mb", 2**20, "roastcoffea_chunk_mem_delta_max_bytes"),
        ("busy_percent", 0.01, "roastcoffea_busy_ratio"),
        ("core_efficiency", 1, "roastcoffea_core_efficiency_ratio"),
        ("elapsed_time_seconds", 1, "roastcoffea_elapsed_time_seconds"),
        ("num_chunks", 1, "roastcoffea_num_chunks"),
    ):
        (sample,) = found[family].samples
        assert sample.value == pytest.approx(EXPECTED[name] * factor)
        assert sample.labels == {"run": "0123abcd"}
        assert float(sample.timestamp) == T + 100


def test_every_number_of_the_catalogue_is_there_under_a_name_of_its_own(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    numbers = [metric for metric in CATALOGUE.metrics() if metric.unit in BASE_UNITS]
    names = [family_name(metric.name, metric.unit) for metric in numbers]
    assert len(set(names)) == len(names)
    told = {name for metric, name in zip(numbers, names, strict=True) if metric.name in handmade.metrics}
    assert told <= set(found)
    for metric, name in zip(numbers, names, strict=True):
        if name in found and metric.unit is not COUNT:
            assert found[name].unit == BASE_UNITS[metric.unit].word
    units = {SECOND, BYTE, MEBIBYTE, GIGABIT_PER_SECOND, KILOHERTZ, PERCENT, RATIO, COUNT}
    assert units <= set(BASE_UNITS)


def test_ledgers_and_datasets_have_labels(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    ledger = {sample.labels["class"]: sample.value for sample in found["roastcoffea_byte_ledger_bytes"].samples}
    assert ledger == dict(handmade.byte_ledger)
    time = {sample.labels["class"]: sample.value for sample in found["roastcoffea_time_ledger_seconds"].samples}
    assert time == pytest.approx(dict(handmade.time_ledger))
    events = {sample.labels["dataset"]: sample.value for sample in found["roastcoffea_dataset_total_events"].samples}
    assert events == {"data": 400, "mc": 50}


def test_text_from_data_is_escaped_in_labels(hostile: Measurement, tmp_path: Path) -> None:
    found = families(hostile, tmp_path)
    datasets = {sample.labels["dataset"] for sample in found["roastcoffea_dataset_num_chunks"].samples}
    assert datasets == set(HOSTILE)


def test_what_is_missing_is_told_with_its_reason(tmp_path: Path) -> None:
    measurement = Measurement(run_without_tables())
    found = families(measurement, tmp_path)
    told = {sample.labels["metric"]: sample.labels["reason"] for sample in found["roastcoffea_missing"].samples}
    assert told == dict(measurement.metrics.missing)
    assert "roastcoffea_num_chunks" not in found


# Perfetto


def events_of(measurement: Measurement, folder: Path, name: str = "trace.json") -> list[dict[str, Any]]:
    path = measurement.export(folder / name, "perfetto")
    data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    trace = json.loads(data)
    check_format(trace)
    return list(trace["traceEvents"])


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


def check_format(trace: dict[str, Any]) -> None:
    """Check what the format of trace events asks for, and that slices of a track nest."""
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    tracks: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    named: dict[str, set[Any]] = defaultdict(set)
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "C", "M"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event.get("tid")))
        else:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(nanoseconds(event))
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    assert set(tracks) <= named["thread_name"]
    assert {(process, None) for process, _ in tracks} <= named["process_name"]
    threads = [thread for _, thread in named["thread_name"]]
    assert len(set(threads) | {process for process, _ in named["process_name"]}) == len(threads) + len(
        named["process_name"]
    )
    for slices in tracks.values():
        check_nesting(slices)


def check_nesting(slices: list[tuple[int, int]]) -> None:
    """Check that each of two slices lies within the other, or beside it."""
    open_until: list[int] = []
    for start, stop in sorted(slices, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or stop <= open_until[-1]
        open_until.append(stop)


def test_slices_that_cross_fail_the_check() -> None:
    check_nesting([(0, 10), (0, 4), (4, 10), (10, 12)])
    with pytest.raises(AssertionError):
        check_nesting([(0, 10), (5, 11)])


def test_attempts_lie_within_their_tasks_with_their_phases(handmade: Measurement, tmp_path: Path) -> None:
    events = events_of(handmade, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    tasks = {(event["args"]["key"], event["args"].get("run_id")): event for event in slices if event["cat"] in KINDS}
    assert set(tasks) == {(task["key"], task["run_id"]) for task in TASKS}
    times = {key: (event["ts"] / 1e6, event["dur"] / 1e6) for key, event in tasks.items()}
    assert times["k1", 1] == (10, 2.5)
    assert times["r1", None] == (40, 2)
    assert tasks["k2", 2]["args"]["outcome"] == "error"
    assert "cname" in tasks["k2", 2]
    assert "cname" not in tasks["k1", 1]
    chunk = next(event for event in slices if event["cat"] == "chunk" and event["args"].get("bytes_requested") == 3000)
    assert chunk["name"] == "data: a.root"
    assert chunk["args"]["entry_start"] == 100
    assert chunk["args"]["entry_stop"] == 400


def test_phases_are_as_long_as_they_were(tmp_path: Path) -> None:
    chunk = {**CHUNKS[3], "worker": "B", "start": T + 22.25, "stop": T + 28.25}
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, [chunk]))
    slices = [event for event in events_of(Measurement(run), tmp_path) if event["ph"] == "X"]
    phases = {event["name"]: (event["ts"] / 1e6, event["dur"] / 1e6) for event in slices if event["cat"] == "phase"}
    assert phases == {
        "open": (22.25, 0.125),
        "build": (22.375, 0.125),
        "process": (22.5, 5.25),
        "read": (22.5, 1.0),
        "decompress": (23.5, 0.5),
        "interpret": (24.0, 0.25),
        "compute": (24.25, 3.0),
        "wait": (27.25, 0.5),
        "result": (27.75, 0.25),
    }


KINDS = {"processor", "merge", "preprocessing", "other"}


def test_counters_tell_workers_memory_and_rate(handmade: Measurement, tmp_path: Path) -> None:
    counters: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    events = events_of(handmade, tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    for event in events:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            counters[names[event["pid"]], event["name"]].append((event["ts"] / 1e6, value))
    assert counters["run", "workers"] == [(0, 1), (20, 2), (60, 2), (80, 1), (100, 0)]
    assert counters["worker A", "memory"] == [(0, 100), (10, 300), (40, 300)]
    # B comes with 500 B, and leaves at 60
    assert counters["run", "memory of all workers"] == [(0, 100), (10, 300), (30, 800), (40, 800), (60, 300)]


def test_the_rate_adds_up_to_the_bytes(tmp_path: Path) -> None:
    rows = [
        {**CHUNKS[0], "id": number, "start": T + number, "stop": T + number + 4, "bytes_requested": 10**9}
        for number in range(5)
    ]
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), preprocessing=None)
    events = [event for event in events_of(Measurement(run), tmp_path) if event["name"] == "storage rate"]
    times = np.array([event["ts"] / 1e6 for event in events])
    rates = np.array([event["args"]["Gbit/s"] for event in events])
    assert list(times) == [*range(9)]
    assert list(rates) == [2, 4, 6, 8, 8, 6, 4, 2, 0]
    assert np.sum(rates[:-1] * np.diff(times)) == 5 * 8


def test_a_long_series_of_rates_keeps_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MOST_POINTS", 50)
    random = np.random.default_rng(1)
    starts = random.random(1000) * 100
    stops = starts + random.random(1000)
    heights = random.random(1000)
    times, values = perfetto.steps(starts, stops, heights)
    assert len(times) == 50
    assert np.sum(values[:-1] * np.diff(times)) == pytest.approx(np.sum((stops - starts) * heights))


def overlapping() -> Iterator[dict[str, Any]]:
    times = [(0, 2), (1, 3), (1.5, 2.5), (2.9995, 4), (4, 4), (5, None)]
    for number, (start, stop) in enumerate(times):
        row = {"key": f"k{number}", "run_id": number, "prefix": "p", "kind": "other", "outcome": "ok", "worker": "A"}
        ended = {"stop": T + stop} if stop is not None else {"outcome": "unfinished"}
        yield row | {"thread": 7, "start": T + start} | ended


def test_tasks_of_a_thread_that_overlap_get_tracks_of_their_own(tmp_path: Path) -> None:
    run = handmade_run(tasks=table_of_rows(TASK_COLUMNS, overlapping()), chunks=None, preprocessing=None)
    events = events_of(Measurement(run), tmp_path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = [names[event["tid"]] for event in events if event["ph"] == "X" and event["cat"] == "other"]
    assert tracks == [*["thread 7"] * 4, *["thread 7 (at the same time)"] * 2]
    assert next(event for event in events if event["args"].get("stop") == "not known")["dur"] == 0


def test_a_trace_can_be_compressed(handmade: Measurement, tmp_path: Path) -> None:
    plain, packed = events_of(handmade, tmp_path), events_of(handmade, tmp_path, "trace.json.gz")
    assert plain == packed


def test_perfetto_reads_the_trace(handmade: Measurement, tmp_path: Path) -> None:
    processors = pytest.importorskip("perfetto.trace_processor", reason="there is no package perfetto to read traces")
    path = handmade.export(tmp_path / "trace.json", "perfetto")
    try:
        processors.TraceProcessor().close()
    except Exception as error:  # it fetches its program as it starts, in a process of its own
        pytest.skip(f"Perfetto's trace processor does not start: {error}")
    with processors.TraceProcessor(trace=str(path)) as processor:
        (found,) = processor.query("select count(*) as number from slice where category = 'chunk'")
        (errors,) = processor.query("select coalesce(sum(value), 0) as number from stats where severity = 'error'")
    events = events_of(handmade, tmp_path, "again.json")
    assert found.number == sum(event.get("cat") == "chunk" for event in events)
    assert errors.number == 0


def test_a_clock_that_is_ahead_is_set_right(tmp_path: Path) -> None:
    lifetimes = pa.Table.from_pylist([{**row, "clock_offset": 5.0} for row in LIFETIMES])
    lifetimes = table_of_rows(perfetto_columns(), lifetimes.to_pylist())
    chunk = {**CHUNKS[-1], "worker": "A", "start": T + 15, "stop": T + 23}
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, [chunk]), lifetimes=lifetimes)
    events = events_of(Measurement(run), tmp_path)
    origin = T - 5  # samples of that clock begin before the run
    (found,) = [event for event in events if event.get("cat") == "chunk"]
    assert found["ts"] / 1e6 + origin == pytest.approx(T + 10)


def perfetto_columns() -> Any:
    from roastcoffea.records.workers import LIFETIME_COLUMNS

    return LIFETIME_COLUMNS


# A real run


def test_a_real_run_has_a_track_for_each_thread(client: Any, sample: Any, tmp_path: Path) -> None:
    with MetricsCollector(client) as collector:
        runner_for(client, 1000)(sample, processor_instance=Jets())
    measurement = collector.measurement
    events = events_of(measurement, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    timed = measurement.tasks.dropna(subset=["start", "stop"])
    assert len([event for event in slices if event["cat"] in KINDS and "key" in event["args"]]) == len(timed)
    chunks = [event for event in slices if event["cat"] == "chunk"]
    assert sum(event["args"]["events"] for event in chunks) == 16000
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = {event["tid"] for event in slices if event["cat"] in KINDS}
    assert len(tracks) == timed.groupby(["worker", "thread"]).ngroups
    assert not any("same time" in name for name in names.values())
    for event in chunks:
        assert event["dur"] / 1e6 <= event["args"].get("wall_seconds", 60)
    processed = measurement.chunks["process_seconds"].sum()
    told = sum(event["dur"] for event in slices if event["cat"] == "phase" and event["name"] == "process") / 1e6
    assert told == pytest.approx(processed, rel=0.01)
    folder = measurement.export(tmp_path / "tables", "parquet")
    assert len(pd.read_parquet(folder / "chunks.parquet")) == 16
