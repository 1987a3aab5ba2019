"""A run on disk is the run that was saved."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_saves import START, minimal_run
from saved_runs import a_run, a_socket, contents, hidden_in, rows, write_legacy

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError
from roastcoffea.records import arrow
from roastcoffea.records.run import Environment, Run, RunnerCall
from roastcoffea.storage.document import RECORDS, SCHEMA, TABLES
from roastcoffea.storage.store import list_runs, load_run, save_run


def test_the_run_has_a_value_in_every_field() -> None:
    run = a_run()
    empty = minimal_run()
    same = [each.name for each in fields(Run) if getattr(run, each.name) == getattr(empty, each.name)]
    assert same == ["start", "backend", "shared"]


@pytest.mark.parametrize("run", [a_run(), minimal_run()], ids=["full", "minimal"])
def test_a_loaded_run_equals_the_saved_one(run: Run, tmp_path: Path) -> None:
    loaded = load_run(save_run(run, tmp_path))
    assert loaded == run
    for each in fields(Run):
        assert type(getattr(loaded, each.name)) is type(getattr(run, each.name)), each.name
    for name in RECORDS:
        one, other = getattr(run, name), getattr(loaded, name)
        assert one is other is None or one.schema.equals(other.schema, check_metadata=True)
    assert [type(call) for call in loaded.calls] == [RunnerCall] * len(run.calls)
    assert type(loaded.environment) is Environment


def test_texts_of_large_tables_are_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MANY", 1)
    first = load_run(save_run(a_run(), tmp_path))
    again = load_run(save_run(first, tmp_path))
    for run in (first, again):
        types = {name: run.chunks[name].type for name in ("file", "key", "start")}
        assert types == {"file": pa.dictionary(pa.int32(), pa.string()), "key": pa.string(), "start": pa.float64()}
        for name in RECORDS:
            assert arrow.plain(getattr(run, name)) == getattr(a_run(), name)


def test_integers_of_large_tables_are_short_if_sums_of_two_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MANY", 1)
    columns = {"tiny": [1 - 2**14, 2**14 - 1], "small": [2**14, None], "large": [0, 2**30], "low": [-(2**30), 0]}
    table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    short = arrow.smaller(table)
    assert short.schema.types == [pa.int16(), pa.int32(), pa.int64(), pa.int64()]
    assert short.to_pydict() == columns
    assert arrow.plain(short).equals(table)


def test_files_are_standard_json_and_parquet(saved: Path) -> None:
    assert sorted(contents(saved)) == sorted(["run.json", *(f"{table}.parquet" for table in TABLES)])
    document = json.loads((saved / "run.json").read_text(), parse_constant=pytest.fail)
    assert (document["format"], document["schema"]) == ("roastcoffea_run", SCHEMA)
    host = {
        "name": "node1",
        "cores": 8,
        "memory": 2**35,
        "node_cores": 64,
        "node_memory": 2**38,
        "others": None,
        "others_absent": None,
    }
    assert document["run"]["environment"]["hosts"][0] == host
    rows = {name: table["rows"] for name, table in document["tables"].items()}
    told = {"asked": 2, "chunks": 3, "branch_reads": 3, "sections": 1, "preprocessing": 1}
    told |= {"profile": 2, "tasks": 1000, "samples": 0, "lifetimes": 1, "pauses": 1, "sampling": 1, "worker_states": 2}
    told |= {"client_steps": 2, "worker_requests": 2}
    assert rows == told | {"span_metrics": 2, "span_metrics_per_worker": 2}
    assert document["tables"]["chunks"]["columns"]["coffea_columns"] == "list<item: string>"
    assert pq.read_metadata(saved / "tasks.parquet").row_group(0).column(0).compression == "ZSTD"


def test_tables_that_were_not_measured_have_no_file(tmp_path: Path) -> None:
    saved = save_run(minimal_run(), tmp_path, "m", metrics_json=lambda: b"{}\n")
    assert sorted(contents(saved)) == ["metrics.json", "run.json"]
    assert (saved / "metrics.json").read_bytes() == b"{}\n"


def test_run_json_will_do_as_path(saved: Path) -> None:
    assert load_run(saved / "run.json") == load_run(str(saved)) == a_run()


def test_automatic_names_tell_the_start_and_are_unique(tmp_path: Path) -> None:
    names = [save_run(minimal_run(), tmp_path / "new" / "runs").name for _ in range(12)]
    assert names == [f"2026-03-01T235958Z-{number:03d}" for number in range(1, 13)]


def test_a_run_s_name_names_its_folder(tmp_path: Path) -> None:
    def saved(name: str) -> str:
        return save_run(replace(minimal_run(), name=name), tmp_path).name

    assert [saved("zmumu 2018"), saved("zmumu/2018")] == ["zmumu-2018-001", "zmumu-2018-002"]
    assert [load_run(tmp_path / f"zmumu-2018-00{number}").name for number in (1, 2)] == ["zmumu 2018", "zmumu/2018"]
    assert saved("../") == "2026-03-01T235958Z-001"
    assert save_run(replace(minimal_run(), name="zmumu"), tmp_path, "mine").name == "mine"


def save_some(folder: str) -> list[str]:
    return [save_run(minimal_run(), folder).name for _ in range(25)]


@pytest.mark.slow
def test_automatic_names_are_unique_between_processes(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        names = [name for names in pool.map(save_some, [str(tmp_path)] * 4) for name in names]
    assert len(set(names)) == len(names) == len(list_runs(tmp_path)) == len(list(tmp_path.iterdir())) == 100
    assert all(load_run(tmp_path / name) == minimal_run() for name in names)


def test_records_are_saved_where_their_metrics_cannot_be_written(tmp_path: Path) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_run(a_run(), tmp_path, "m", metrics_json=interrupted)
    assert load_run(tmp_path / "m") == a_run()
    assert not (tmp_path / "m" / "metrics.json").exists()
    assert hidden_in(tmp_path) == []


@pytest.mark.parametrize("file", ["run.json", "chunks.parquet", "metadata.json", "metrics.json", "start_end_time.txt"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, a_socket])
def test_what_is_no_regular_file_is_refused_at_once(make: Callable[[Path], Any], file: str, tmp_path: Path) -> None:
    good = save_run(a_run(), tmp_path, "good")
    bad = Path(shutil.copytree(good, tmp_path / "bad"))
    if file in legacy.FILES:
        (bad / "run.json").unlink()
        write_legacy(bad)
    (bad / file).unlink()
    make(bad / file)
    with pytest.raises(MeasurementError, match=file):
        load_run(bad)
    assert [run.path for run in list_runs(tmp_path)].count(good) == 1


@pytest.mark.parametrize(("name", "number"), [("run.json", 10), ("chunks.parquet", 5)])
def test_a_damaged_file_is_an_error_or_harmless(name: str, number: int, saved: Path) -> None:
    file = saved / name
    whole = file.read_bytes()
    results = []
    for damaged in damages(whole, number, random.Random(name)):
        file.write_bytes(damaged)
        results.append(load_or_refuse(saved))
    refusals = [result for result in results if isinstance(result, str)]
    assert len(refusals) > number
    if name != "run.json":  # there a changed digit is another number
        assert all(file.name in refusal for refusal in refusals)
        assert all(rows(result) == rows(a_run()) for result in results if isinstance(result, Run))


def load_or_refuse(path: Path) -> Run | str:
    try:
        return load_run(path)
    except MeasurementError as error:
        return str(error)


def damages(whole: bytes, number: int, random_: random.Random) -> Iterator[bytes]:
    for _ in range(number):
        yield whole[: random_.randrange(len(whole))]
    for _ in range(2 * number):
        place = random_.randrange(len(whole))
        yield whole[:place] + bytes([whole[place] ^ (1 << random_.randrange(8))]) + whole[place + 1 :]


@pytest.mark.parametrize("path", ["nowhere", "empty", "file.txt", "nul\0"])
def test_what_is_no_measurement_is_said(path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(MeasurementError, match="pass a measurement folder"):
        load_run(tmp_path / path)


def test_a_list_has_what_can_and_what_cannot_be_read(tmp_path: Path) -> None:
    late = save_run(a_run(start=START + 100, stop=START + 101.5), tmp_path, "a")
    early = save_run(minimal_run(stop=START + 3), tmp_path, "z")
    broken = save_run(a_run(), tmp_path, "broken")
    (broken / "run.json").write_text("{")
    for name in (".roastcoffea-0123", "plots"):
        (tmp_path / name).mkdir()
    shutil.copytree(late, tmp_path / ".hidden")
    (tmp_path / "notes.txt").write_text("")
    (late / "chunks.parquet").unlink()
    runs = list_runs(str(tmp_path))
    assert [(run.path, run.name, run.start, run.outcome, run.elapsed) for run in runs] == [
        (early, "z", START, "finished", 3.0),
        (late, "a", START + 100, None, 1.5),  # it lacks a table
        (broken, "broken", None, None, None),
    ]
    assert [run.error is None for run in runs] == [True, False, False]
    assert "broken/run.json cannot be read" in str(runs[-1].error)


def test_a_list_needs_a_folder(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(MeasurementError, match="nowhere cannot be listed"):
        list_runs(tmp_path / "nowhere")


def test_a_file_is_not_called_missing(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.touch()
    for of_runs in (list_runs, load_run):
        with pytest.raises(MeasurementError, match=r"page\.html is a file; pass "):
            of_runs(file)
