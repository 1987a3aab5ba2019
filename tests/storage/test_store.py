"""A run on disk is the run that was saved, or an error that says which file is wrong."""

import json
import math
import multiprocessing
import os
import pickle
import random
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hist
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import EXPECTED, handmade_run
from killed_saves import START, Saver, minimal_run, started

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import CLIENT, PAUSED
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.asked import ASKED_COLUMNS
from roastcoffea.records.branches import BRANCH_READ_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.run import FAILED, Environment, Host, Run, RunnerCall
from roastcoffea.records.sections import SECTION_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.storage import document, folders, store, upgrades
from roastcoffea.storage.store import list_runs, load_run, save_run
from roastcoffea.storage.tables import RECORDS, TABLES, Tables, tables_of
from roastcoffea.storage.upgrades import NOT_RECORDED, SCHEMA

assert datetime.fromtimestamp(START, UTC) == datetime(2026, 3, 1, 23, 59, 58, 250_000, tzinfo=UTC)


def a_run(**changes: Any) -> Run:
    """A run that has everything."""
    call = RunnerCall(
        id="call",
        processor="analysis.Dijets",
        executor="DaskExecutor",
        start=START + 1,
        stop=START + 9.5,
        outcome=FAILED,
        error="ValueError: 'μ'",
        chunks=3,
        fileset="ab" * 32,
        options={"chunksize": 2**20, "xrootdtimeout": None, "maxchunks": math.inf, "align": [1, 2]},
        report={"bytesread": 12, "columns": ["Jet_pt-data", "Jet_eta-data"], "processtime": 0.5},
    )
    run = Run(
        id="f" * 32,
        name="ttbar",
        start=START,
        stop=START + 10.25,
        outcome=FAILED,
        error="ValueError: no jets",
        backend="dask",
        environment=Environment(
            versions={"coffea": "2026.9.0"},
            client_host="login",
            hosts=(
                Host(name="node1", cores=8, memory=2**35, node_cores=64, node_memory=2**38),
                Host(name="node2", cores=None, memory=None),
            ),
        ),
        sampling_interval=0.5,
        calls=(call, replace(call, id="other", report=None, error=None)),
        asked=table_of_rows(
            ASKED_COLUMNS,
            [
                {"call": "0", "dataset": "tt", "file": "root://x//a.root", "tree": "Events"},
                {"call": "0", "dataset": "tt", "file": "a.root", "tree": "t", "entry_start": 0, "entry_stop": 2**40},
            ],
        ),
        chunks=table_of_rows(
            CHUNK_COLUMNS,
            [
                {
                    "dataset": "tt",
                    "file": "a b.root",
                    "events": 0,
                    "start": START,
                    "coffea_columns": ["Jet_pt", None],
                },
                {"dataset": "日本", "events": None, "memory_peak": 2**63 - 1, "coffea_columns": []},
                {},
            ],
        ),
        branch_reads=table_of_rows(
            BRANCH_READ_COLUMNS,
            [{"chunk": 2**62, "branch": "Jet_pt", "basket_bytes": [1, 2**40, None]}, {"basket_bytes": []}, {}],
        ),
        sections=table_of_rows(SECTION_COLUMNS, [{"chunk": 1, "name": "jets/µ", "count": 3, "bytes": None}]),
        preprocessing=table_of_rows(PREPROCESSING_COLUMNS, [{"id": 5, "file": "a b.root", "bytes_requested": 0}]),
        tasks=table_of_rows(TASK_COLUMNS, [{"key": f"k-{n}", "run_id": n, "thread": 2**62 + n} for n in range(1000)]),
        samples=table_of_rows(SAMPLE_COLUMNS, []),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, [{"worker": "tcp://1", "threads": 4, "start": START}]),
        pauses=table_of_rows(PAUSE_COLUMNS, [{"worker": "tcp://1", "start": START, "stop": START + 1}]),
        span_metrics={
            ("execute", "Dijets", "thread-cpu", "seconds"): 1.5,
            ("gather-dep", "network", "bytes"): math.inf,
        },
        span_metrics_per_worker={"tcp://1": {("execute", "Dijets", "thread-cpu", "seconds"): 0.5}, "tcp://2": {}},
        coffea_report={"('a', 1)": {"b": [1, [2, [3]]]}, "$": "tuple", "of": [1], "1": 0.1, "": {"\0": True}},
        custom_metrics={"tt": {"entries": 3, "bytes": -math.inf, "size": 10**30, "none": None}},
        attempts={"processor": 3, "merge": 0},
        scheduler_clock_offset=-0.0125,
        dropped={"tasks": 2},
        reported={"core_efficiency": 0.5, "per_dataset": {"tt": [1, 2]}},
        reported_by="another program",
        absent={"worker_cpu_time_seconds": "not on this system"},
        problems=("the scheduler did not answer in 5 s", "ünicode"),
    )
    return replace(run, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def write_legacy(folder: Path) -> None:
    """A measurement of 0.1.2, with a few numbers."""
    metadata = {"format": legacy.FORMAT, "timestamp": "2025-01-01T12:00:00"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (folder / "metrics.json").write_text('{"total_events": 10}')
    (folder / "start_end_time.txt").write_text("1.0,2.0\n")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_run(a_run(), tmp_path, "saved")


# Save, load, equal


def test_the_run_has_a_value_in_every_field() -> None:
    run = a_run()
    empty = minimal_run()
    same = [each.name for each in fields(Run) if getattr(run, each.name) == getattr(empty, each.name)]
    assert same == ["start", "backend"]


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


def test_what_others_made_is_kept_in_standard_types(tmp_path: Path) -> None:
    report = {"bytesread": np.int64(12), "columns": {"b", "a"}, ("a", 1): (np.float32(0.5), np.arange(2)), None: {3}}
    loaded = load_run(save_run(a_run(coffea_report=report), tmp_path))
    assert loaded.coffea_report == {"bytesread": 12, "columns": ["a", "b"], "('a', 1)": [0.5, [0, 1]], "None": [3]}
    assert loaded.problems == a_run().problems
    assert load_run(save_run(loaded, tmp_path)) == loaded


def test_reported_metrics_keep_their_keys_and_times(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 12, 30, 1, 5)
    reported = {
        "raw_span_metrics": {("execute", "p", "thread-cpu", "seconds"): 1.5},
        "tracking_data": {"worker_counts": {moment: 3}, "worker_memory": {"tcp://1": [(moment, 5)]}},
        "compression_ratio": math.inf,
    }
    assert load_run(save_run(minimal_run(reported=reported), tmp_path)).reported == reported


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    samples = table_of_rows(
        SAMPLE_COLUMNS, [{"cpu_percent": math.nan}, {"cpu_percent": None}, {"cpu_percent": -math.inf}]
    )
    loaded = load_run(save_run(a_run(samples=samples, coffea_report={"x": math.nan}), tmp_path))
    assert str(loaded.samples["cpu_percent"].to_pylist()) == "[nan, None, -inf]"  # type: ignore[index]
    assert math.isnan(loaded.coffea_report["x"])


def test_what_cannot_be_kept_is_text_and_a_problem(tmp_path: Path) -> None:
    run = a_run(custom_metrics={"h": [hist.Hist.new.Reg(2, 0, 1).Double()], "n": 1}, coffea_report=[])
    run.coffea_report.append(run.coffea_report)
    call = replace(run.calls[0], options={"schema": dict})
    loaded = load_run(save_run(replace(run, calls=(call,)), tmp_path))
    assert loaded.problems == (
        *run.problems,
        "calls[0]['options']['schema'] held type; it was kept as text",
        "coffea_report[0] held list that contains itself; it was kept as text",
        "custom_metrics['h'][0] held hist.hist.Hist; it was kept as text",
    )
    assert loaded.custom_metrics["n"] == 1
    assert load_run(save_run(loaded, tmp_path)) == loaded


def test_files_are_standard_json_and_parquet(saved: Path) -> None:
    assert sorted(contents(saved)) == sorted(["run.json", *(f"{table}.parquet" for table in TABLES)])
    document = json.loads((saved / "run.json").read_text(), parse_constant=pytest.fail)
    assert (document["format"], document["schema"]) == ("roastcoffea_run", SCHEMA)
    host = {"name": "node1", "cores": 8, "memory": 2**35, "node_cores": 64, "node_memory": 2**38}
    assert document["run"]["environment"]["hosts"][0] == host
    rows = {name: table["rows"] for name, table in document["tables"].items()}
    told = {"asked": 2, "chunks": 3, "branch_reads": 3, "sections": 1, "preprocessing": 1}
    told |= {"tasks": 1000, "samples": 0, "lifetimes": 1, "pauses": 1}
    assert rows == told | {"span_metrics": 2, "span_metrics_per_worker": 2}
    assert document["tables"]["chunks"]["columns"]["coffea_columns"] == "list<item: string>"
    assert pq.read_metadata(saved / "tasks.parquet").row_group(0).column(0).compression == "ZSTD"


def test_tables_that_were_not_measured_have_no_file(tmp_path: Path) -> None:
    saved = save_run(minimal_run(), tmp_path, "m", metrics_json=lambda: b"{}\n")
    assert sorted(contents(saved)) == ["metrics.json", "run.json"]
    assert (saved / "metrics.json").read_bytes() == b"{}\n"


def test_run_json_will_do_as_path(saved: Path) -> None:
    assert load_run(saved / "run.json") == load_run(str(saved)) == a_run()


def test_what_is_saved_is_the_users_own(tmp_path: Path) -> None:
    saved = save_run(a_run(), tmp_path / "runs", "m", metrics_json=lambda: b"{}")
    assert modes(saved.parent) == {"m": 0o700} | {f"m/{file.name}": 0o600 for file in saved.iterdir()}
    before = os.umask(0)
    try:
        save_run(a_run(), tmp_path / "runs", "m", overwrite=True)
    finally:
        os.umask(before)
    assert set(modes(saved.parent).values()) == {0o600, 0o700}


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


# Names


@pytest.mark.parametrize("name", ["a b", "日本", "ttbar.2026", "-", "C:x", "x" * 255, "a\nb", "run=1"])
def test_a_name_may_be_what_a_folder_may_be(name: str, tmp_path: Path) -> None:
    assert save_run(a_run(), tmp_path, name) == tmp_path / name
    assert load_run(tmp_path / name) == a_run()


BAD_NAMES = ["", " ", ".", "..", ".hidden", "../x", "a/b", "/tmp/x", "a\\b", "..\\x", "a\0b", "\ud800"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "x" * 256])
@pytest.mark.parametrize("overwrite", [False, True])
def test_names_that_leave_the_folder_are_refused(name: str, overwrite: bool, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        save_run(a_run(), tmp_path / "runs", name, overwrite=overwrite)
    assert contents(tmp_path) == {}


def test_automatic_names_tell_the_start_and_are_unique(tmp_path: Path) -> None:
    names = [save_run(minimal_run(), tmp_path / "new" / "runs").name for _ in range(12)]
    assert names == [f"2026-03-01T235958Z-{number:03d}" for number in range(1, 13)]


def save_some(folder: str) -> list[str]:
    return [save_run(minimal_run(), folder).name for _ in range(25)]


@pytest.mark.slow
def test_automatic_names_are_unique_between_processes(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        names = [name for names in pool.map(save_some, [str(tmp_path)] * 4) for name in names]
    assert len(set(names)) == len(names) == len(list_runs(tmp_path)) == len(list(tmp_path.iterdir())) == 100
    assert all(load_run(tmp_path / name) == minimal_run() for name in names)


# What is there stays


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", ["file", "folder", "other run.json", "link", "dangling link"])
def test_what_is_no_measurement_is_never_replaced(make: str, overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    elsewhere = save_run(a_run(), tmp_path / "elsewhere", "m")
    if make == "file":
        target.write_text("mine")
    elif "link" in make:
        target.symlink_to(elsewhere if make == "link" else tmp_path / "nowhere")
    else:
        target.mkdir()
        (target / ("run.json" if "json" in make else "thesis.tex")).write_text('{"format": "other"}')
    before = contents(tmp_path)
    with pytest.raises(MeasurementError, match="another name"):
        save_run(minimal_run(), tmp_path, "taken", overwrite=overwrite)
    assert contents(tmp_path) == before
    assert load_run(elsewhere) == a_run()


def test_a_measurement_is_replaced_only_on_demand(saved: Path) -> None:
    before = contents(saved.parent)
    with pytest.raises(MeasurementError, match=r"saved exists.*overwrite=True"):
        save_run(minimal_run(), saved.parent, "saved")
    assert contents(saved.parent) == before
    assert save_run(minimal_run(), saved.parent, "saved", overwrite=True) == saved
    assert sorted(contents(saved.parent)) == ["saved/run.json"]
    assert load_run(saved) == minimal_run()


def test_a_damaged_measurement_can_be_replaced(saved: Path) -> None:
    (saved / "run.json").write_bytes((saved / "run.json").read_bytes()[:100])
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert load_run(saved) == minimal_run()


def test_automatic_names_overwrite_nothing(tmp_path: Path) -> None:
    first, second = (save_run(minimal_run(id=str(n)), tmp_path, overwrite=True) for n in range(2))
    assert (load_run(first).id, load_run(second).id) == ("0", "1")


CALLS_OF_SAVING = [
    *((Path, "mkdir"), (folders.os, "open"), (pq, "write_table"), (folders.os, "fsync"), (Path, "rename")),
    *((folders, "exchange"), (folders.shutil, "rmtree")),
]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("place", "function"), CALLS_OF_SAVING, ids=str)
def test_what_fails_leaves_everything_as_it_was(
    place: Any,
    function: str,
    overwrite: bool,
    exchanges: bool,
    error: BaseException,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not exchanges:
        monkeypatch.setattr(folders, "exchange", lambda *_: False)
    name = "saved" if overwrite else "new"
    run = minimal_run(chunks=a_run().chunks)
    before = contents(saved)
    failures = 0
    for nth in range(40):
        with monkeypatch.context() as patch:
            calls = fail_at_call(nth, error, place, function, patch)
            failed = not saves(run, saved.parent, name, overwrite)
        failures += failed
        if len(calls) <= nth:
            assert not failed
            assert function in ("exchange", "rmtree") or failures
            return
        as_before = contents(saved) == before and (overwrite or not (saved.parent / name).exists())
        assert as_before or load_run(saved.parent / name) == run
        assert as_before or failures > 2 or function not in ("mkdir", "write_table"), "these come before all renames"
        restore(saved, {f"saved/{file}": content for file, content in before.items()})
    pytest.fail("never succeeded")


def saves(run: Run, folder: Path, name: str, overwrite: bool) -> bool:
    try:
        save_run(run, folder, name, overwrite=overwrite)
    except (MeasurementError, KeyboardInterrupt):
        return False
    return True


def fail_at_call(nth: int, error: BaseException, place: Any, name: str, patch: pytest.MonkeyPatch) -> list[Any]:
    """Let the nth call of a function fail, once; the list has an entry per call."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(place, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == nth + 1:
            raise error
        return real(*args, **kwargs)

    patch.setattr(place, name, failing)
    return calls


def restore(saved: Path, files: dict[str, bytes]) -> None:
    for path in saved.parent.iterdir():
        shutil.rmtree(path)
    for name, content in files.items():
        path = saved.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    with started() as saver:
        yield saver


def killed(saver: Saver, folder: Path, exchanges: bool, overwrite: bool, steps: int) -> bool:
    """Whether a process that saves was killed after so many steps."""
    (status,) = saver.save(folder, exchanges=exchanges, overwrite=overwrite, steps=steps)
    assert status in (0, -9)
    return status == -9


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "two renames"])
def test_a_whole_measurement_has_the_name_whenever_the_process_is_killed(
    exchanges: bool, saver: Saver, saved: Path
) -> None:
    found = []
    for steps in range(12):
        save_run(a_run(), saved.parent, "saved", overwrite=True)
        if not killed(saver, saved.parent, exchanges, True, steps):
            break
        found.append(load_run(saved).id)
        assert [run.name for run in list_runs(saved.parent)] == ["saved"]
        assert store.is_measurement(saved)
        assert hidden_in(saved.parent)
        save_run(minimal_run(), saved.parent, "other", overwrite=True)
        assert hidden_in(saved.parent) == []
        assert load_run(saved).id == found[-1]
        shutil.rmtree(saved.parent / "other")
    old = found.index("new")
    assert found == [a_run().id] * old + ["new"] * (len(found) - old)
    assert 2 <= old < len(found)


@pytest.mark.parametrize("kills", ["5", pytest.param("40", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [[], ["--two-renames"]], ids=["exchange", "two renames"])
def test_a_whole_measurement_has_the_name_after_kills_at_random_moments(way: list[str], kills: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    done = subprocess.run([sys.executable, script, kills, *way], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{kills} kills" in done.stdout


def test_a_save_that_was_killed_when_all_was_written_is_found(saver: Saver, tmp_path: Path) -> None:
    found = []
    for steps in range(8):
        folder = tmp_path / str(steps)
        if not killed(saver, folder, True, False, steps):
            break
        found.append([run.name for run in list_runs(folder)])
        assert all(load_run(folder / "saved").id == "new" for _ in found[-1])
        save_run(minimal_run(), folder, "other")
        assert sorted(path.name for path in folder.iterdir()) == sorted(["other", *found[-1]])
        assert all(load_run(folder / "saved").id == "new" for _ in found[-1])
    assert found[0] == []
    assert found[1:] == [["saved"]] * (len(found) - 1)
    assert len(found) > 3


def test_a_name_that_a_killed_save_took_is_taken(saver: Saver, tmp_path: Path) -> None:
    assert killed(saver, tmp_path, True, False, 1)
    with pytest.raises(MeasurementError, match="saved exists"):
        save_run(a_run(), tmp_path, "saved")
    assert load_run(save_run(a_run(), tmp_path, "saved", overwrite=True)) == a_run()
    assert hidden_in(tmp_path) == []


def test_what_a_living_process_writes_is_left_alone(saved: Path) -> None:
    with folders.new_folder(saved.parent, "saved") as new, folders.new_folder(saved.parent, "later") as later:
        later.complete()
        save_run(minimal_run(), saved.parent, "other")
        assert new.path.is_dir()
        assert later.path.is_dir()
        assert [run.name for run in list_runs(saved.parent)] == ["other", "saved"]
    assert hidden_in(saved.parent) == []


@pytest.mark.parametrize(("days", "left"), [(6, True), (8, False)])
@pytest.mark.parametrize("kind", [Path.mkdir, Path.touch])
def test_what_another_machine_writes_is_left_alone_for_a_week(
    kind: Callable[[Path], None], days: int, left: bool, tmp_path: Path
) -> None:
    hidden = tmp_path / ".roastcoffea-00000000-1-1-01234567"
    kind(hidden)
    os.utime(hidden, (0, time.time() - days * 86_400))
    save_run(minimal_run(), tmp_path, "m")
    assert hidden_in(tmp_path) == [hidden.name] * left


def test_what_is_not_known_to_be_ours_is_left_alone(tmp_path: Path) -> None:
    for name in (".roastcoffea-notes", ".roastcoffea-00000000-1-1-0123456z", ".other"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    save_run(minimal_run(), tmp_path, "m")
    assert len(hidden_in(tmp_path)) == 3


def test_what_older_versions_left_is_listed_or_removed(saved: Path) -> None:
    whole, partial, young = (saved.parent / f".roastcoffea-{number:016x}" for number in range(3))
    saved.rename(whole)
    for folder in (partial, young):
        folder.mkdir()
        (folder / "chunks.parquet").write_bytes(b"PAR1")
    for folder in (whole, partial):
        os.utime(folder, (0, 0))
    save_run(minimal_run(), saved.parent, "m")
    assert sorted(hidden_in(saved.parent)) == [whole.name, young.name]
    assert {run.name for run in list_runs(saved.parent)} == {"m", whole.name}
    assert load_run(whole) == a_run()


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, replacements = store.read_table, iter([True])

    def replaced(*args: Any) -> pa.Table:
        if next(replacements, False):
            save_run(a_run(id="new"), saved.parent, "saved", overwrite=True)
        return real(*args)

    monkeypatch.setattr(store, "read_table", replaced)
    assert load_run(saved) == a_run(id="new")


def test_records_are_saved_where_their_metrics_cannot_be_written(tmp_path: Path) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_run(a_run(), tmp_path, "m", metrics_json=interrupted)
    assert load_run(tmp_path / "m") == a_run()
    assert not (tmp_path / "m" / "metrics.json").exists()
    assert hidden_in(tmp_path) == []


# Folders of the user's


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: (folder / "thesis.tex").write_text("mine"),
    "table": lambda folder: (folder / "mine.parquet").write_text("mine"),
    "hidden file": lambda folder: (folder / ".git").write_text("mine"),
    "folder": lambda folder: (folder / "plots").mkdir(),
    "folder of one of our names": lambda folder: (folder / "sections.parquet").mkdir(),
    "link": lambda folder: (folder / "sections.parquet").symlink_to("nowhere"),
    "pipe": lambda folder: os.mkfifo(folder / "sections.parquet"),
    "other run.json": lambda folder: (folder / "run.json").write_text('{"uses": "roastcoffea_run", "format": 1}'),
    "text": lambda folder: (folder / "run.json").write_text('see "format": "roastcoffea_run"'),
}


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_folder_with_anything_else_in_it_is_not_replaced(
    foreign: str, late: bool, exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_run(minimal_run(), tmp_path, "saved", metrics_json=lambda: b"{}")
    if late:  # it comes when the folder has been looked at
        real, looks = store.is_replaceable, iter([True])
        add = lambda path: (FOREIGN[foreign](saved) or True) if next(looks, False) else real(path)  # noqa: E731
        monkeypatch.setattr(store, "is_replaceable", add)
    else:
        FOREIGN[foreign](saved)
    if not exchanges:
        monkeypatch.setattr(folders, "exchange", lambda *_: False)
    inode = saved.stat().st_ino
    with pytest.raises(MeasurementError, match="saved is not overwritten"):
        save_run(a_run(), tmp_path, "saved", overwrite=True)
    assert saved.stat().st_ino == inode
    assert len(list(saved.iterdir())) >= 2
    assert hidden_in(tmp_path) == []


@pytest.mark.parametrize("file", ["run.json", "chunks.parquet", "metadata.json", "metrics.json", "start_end_time.txt"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, a_socket])
def test_what_is_no_regular_file_is_refused_at_once(make: Callable[[Path], Any], file: str, tmp_path: Path) -> None:
    good = save_run(a_run(), tmp_path, "good")
    bad = save_run(a_run(), tmp_path, "bad")
    if file in legacy.FILES:
        (bad / "run.json").unlink()
        write_legacy(bad)
    (bad / file).unlink()
    make(bad / file)
    with pytest.raises(MeasurementError, match=file):
        load_run(bad)
    assert [run.path for run in list_runs(tmp_path)].count(good) == 1


def test_processes_that_replace_at_once_leave_one_measurement(saver: Saver, saved: Path) -> None:
    assert saver.save(saved.parent, children=4, times=30, overwrite=True) == [0] * 4
    assert list(saved.parent.iterdir()) == [saved]
    assert load_run(saved) == minimal_run(id="new")


def test_another_process_may_fill_the_place_meanwhile(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename
    intruders = iter([True, True])

    def rename(path: Path, target: Path) -> Path:
        moved = real(path, target)
        if path == saved and next(intruders, False):
            shutil.copytree(moved, saved)
        return moved

    monkeypatch.setattr(folders, "exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", rename)
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert next(intruders, None) is None
    assert list(saved.parent.iterdir()) == [saved]
    assert load_run(saved) == minimal_run()


def test_another_process_may_leave_the_place_meanwhile(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(path: Path) -> bool:
        shutil.rmtree(path)
        return True

    monkeypatch.setattr(store, "is_replaceable", leave)
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_that_cannot_hold_measurements_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match=r"nothing was saved in .*file"):
        save_run(a_run(), tmp_path / "file")


def test_a_table_without_its_columns_is_not_saved(tmp_path: Path) -> None:
    chunks = pa.table({"dataset": ["a"]})
    with pytest.raises(MeasurementError, match=r"chunks of run .* lacks the columns id, file, tree"):
        save_run(a_run(chunks=chunks), tmp_path)
    assert list(tmp_path.iterdir()) == []


# Damage


def edited(saved: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((saved / "run.json").read_text())
    edit(document)
    (saved / "run.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            lambda d: d.update(schema=SCHEMA + 1),
            rf"run.json has schema {SCHEMA + 1}; this version reads up to {SCHEMA}: update roastcoffea",
        ),
        (lambda d: d.update(schema=0), r"run.json cannot be read .*there is no schema 0"),
        (lambda d: d.update(schema="2"), r"run.json cannot be read"),
        (lambda d: d.pop("schema"), r"run.json cannot be read .*schema"),
        (lambda d: d.update(format="other"), r"run.json is not of roastcoffea"),
        (lambda d: d.pop("run"), r"run.json cannot be read"),
        (lambda d: d.update(run=[]), r"run.json cannot be read"),
        (lambda d: d["run"].pop("id"), r"run.json cannot be read .*id"),
        (lambda d: d["run"].pop("outcome"), r"run.json cannot be read .*outcome"),
        (lambda d: d["run"].update(start="now"), r"run.json cannot be read .*start"),
        (lambda d: d["run"].update(sections=1), r"run.json cannot be read .*tables"),
        (lambda d: d["run"].update(environment=None), r"run.json cannot be read"),
        (lambda d: d["run"]["calls"].append({"id": 1}), r"run.json cannot be read"),
        (
            lambda d: d.update(schema=7, run={**d["run"], "custom_metrics": {"$": "pickle", "of": ""}}),
            r"run.json cannot be read .*pickle",
        ),
        (
            lambda d: d["tables"]["chunks"].update(rows=4),
            r"chunks.parquet cannot be read .*3 rows instead of 4",
        ),
        (lambda d: d["tables"].update({"../x": 4}), r"run.json cannot be read"),
        (lambda d: d.update(tables=None), r"run.json cannot be read"),
    ],
)
def test_a_damaged_run_json_is_named(edit: Callable[[dict[str, Any]], Any], text: str, saved: Path) -> None:
    edited(saved, edit)
    with pytest.raises(MeasurementError, match=text):
        load_run(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe\0", b"[" * 10**6, b'{"schema": NaN}'])
def test_a_run_json_that_is_no_json_is_named(content: bytes, saved: Path) -> None:
    (saved / "run.json").write_bytes(content)
    with pytest.raises(MeasurementError, match=r"saved/run.json"):
        load_run(saved)


@pytest.mark.parametrize("table", list(TABLES))
def test_a_missing_table_is_named(table: str, saved: Path) -> None:
    (saved / f"{table}.parquet").unlink()
    with pytest.raises(MeasurementError, match=rf"{table}.parquet is missing; restore"):
        load_run(saved)


@pytest.mark.parametrize("table", list(TABLES))
def test_missing_columns_are_named(table: str, saved: Path) -> None:
    file = saved / f"{table}.parquet"
    column = TABLES[table][0].name
    pq.write_table(pq.ParquetFile(file).read().drop_columns([column]), file)
    with pytest.raises(MeasurementError, match=rf"{table}.parquet lacks the columns {column}; restore"):
        load_run(saved)


def test_further_columns_are_read(saved: Path) -> None:
    file = saved / "tasks.parquet"
    pq.write_table(a_run().tasks.append_column("extra", pa.array(range(1000))), file)
    assert load_run(saved).tasks["extra"].to_pylist() == list(range(1000))  # type: ignore[index]


@pytest.mark.parametrize("table", ["tasks", "samples", "lifetimes"])
def test_a_table_that_another_program_wrote_again_is_read(table: str, saved: Path) -> None:
    file = saved / f"{table}.parquet"
    pd.read_parquet(file).assign(extra=1).to_parquet(file)
    assert getattr(load_run(saved), table).drop_columns(["extra"]) == getattr(a_run(), table)


OTHER_TABLES = (f"{table}.parquet" for table in TABLES if table != "chunks")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("run.json", 40),
        ("chunks.parquet", 40),
        pytest.param("run.json", 200, marks=pytest.mark.slow),
        pytest.param("chunks.parquet", 200, marks=pytest.mark.slow),
        *(pytest.param(file, 50, marks=pytest.mark.slow) for file in OTHER_TABLES),
    ],
)
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


def rows(run: Run) -> list[Any]:
    return [table.to_pylist() for table in tables_of(run).values()]


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
    with pytest.raises(MeasurementError, match="give the folder of"):
        load_run(tmp_path / path)


class Canary:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("something was unpickled",))


def test_nothing_is_unpickled(saved: Path) -> None:
    poison = pickle.dumps(Canary())
    file = saved / "tasks.parquet"
    tasks = a_run().tasks
    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": poison,
    }
    extra = pa.field("extra", pa.int64(), metadata=metadata)
    table = tasks.append_column(extra, pa.array(range(1000))).replace_schema_metadata({"pandas": poison})
    pq.write_table(table, file)
    loaded = load_run(saved).tasks
    assert loaded is not None
    assert loaded.schema.metadata is None
    assert loaded.drop_columns(["extra"]) == tasks


# Lists


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
        (late, "a", START + 100, "failed", 1.5),
        (broken, "broken", None, None, None),
    ]
    assert [run.error is None for run in runs] == [True, True, False]
    assert "broken/run.json cannot be read" in str(runs[-1].error)


def test_a_list_needs_a_folder(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(MeasurementError, match="nowhere cannot be listed"):
        list_runs(tmp_path / "nowhere")


# Schemas


def test_older_schemas_are_upgraded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(body: upgrades.Body, tables: Tables) -> tuple[upgrades.Body, Tables]:
        return body | {"name": "upgraded"}, tables | {"samples": tables["samples"].slice(0, 0)}

    for module in (document, upgrades):
        monkeypatch.setattr(module, "SCHEMA", SCHEMA + 1)
    monkeypatch.setattr(upgrades, "UPGRADES", {SCHEMA: upgrade})
    assert load_run(saved) == a_run(name="upgraded")


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_a_stored_measurement_of_every_older_schema_loads(schema: int) -> None:
    run = load_run(Path(__file__).parents[1] / "data" / f"schema{schema}")
    for name in TABLES:
        assert (getattr(run, name) is None) == (name in run.absent), name
    for name, table in tables_of(run).items():
        assert table.schema == arrow_schema(TABLES[name])


def test_what_schema_1_did_not_record_is_absent() -> None:
    run = load_run(Path(__file__).parents[1] / "data" / "schema1")
    unknown = {"asked", "branch_reads", "sections", "preprocessing", "span_metrics_per_worker", "pauses"}
    assert set(run.absent) == unknown
    assert run.chunks is not None
    assert run.chunks["cpu_seconds"].to_pylist() == [1.5, 2.5, 0.5, 5.0, 0.25, 6.0]
    assert run.chunks["id"].null_count == run.chunks["bytes_requested"].null_count == 6
    measurement = Measurement(run)
    assert (measurement.metrics["total_cpu_time"], measurement.metrics["total_bytes_read"]) == (15.75, 4500)
    assert "did not record" in str(measurement.byte_ledger.absent)
    assert (dict(measurement.byte_ledger), measurement.byte_ledger.total) == ({}, None)
    assert len(measurement.branches) == len(measurement.sections) == 0


def test_what_schema_3_did_not_record_is_no_part_of_the_ledger() -> None:
    measurement = Measurement(load_run(Path(__file__).parents[1] / "data" / "schema3"))
    ledger = measurement.time_ledger
    assert PAUSED not in ledger
    assert ledger.unknown[PAUSED] == measurement.metrics.missing["time_paused_seconds"] == NOT_RECORDED
    assert PAUSED not in ledger.by("worker")
    assert PAUSED not in ledger.timeline(5)
    assert ledger[CLIENT] == EXPECTED["time_idle_client_seconds"] + EXPECTED["time_paused_seconds"]


def schema_6_with_trees(folder: Path, asked: str | None, recorded: str) -> Path:
    """The stored measurement of schema 6 with one tree in what was asked for, and one in what came."""
    path = folder / "schema6"
    shutil.copytree(Path(__file__).parents[1] / "data" / "schema6", path)
    for name, tree in (("asked", asked), ("chunks", recorded), ("preprocessing", recorded)):
        table = pq.ParquetFile(path / f"{name}.parquet").read()
        place = table.schema.get_field_index("tree")
        trees = pa.array([tree] * len(table), pa.string())
        pq.write_table(table.set_column(place, "tree", trees), path / f"{name}.parquet")
    return path


@pytest.mark.parametrize(("asked", "recorded"), [(None, "None"), ("None", "None"), ("Events", "Events")])
def test_files_without_trees_have_none_in_older_records(tmp_path: Path, asked: str | None, recorded: str) -> None:
    measurement = Measurement(load_run(schema_6_with_trees(tmp_path, asked, recorded)))
    for name in ("chunks", "preprocessing"):
        assert set(getattr(measurement.run, name)["tree"].to_pylist()) == {asked}
    assert measurement.metrics["num_missing_chunks"] == 1


def test_what_schema_6_did_not_record_is_not_known() -> None:
    run = load_run(Path(__file__).parents[1] / "data" / "schema6")
    assert run.environment.hosts == (Host(name="node1", cores=8, memory=2**35, node_cores=None, node_memory=None),)
    assert run.lifetimes is not None
    for name in ("throttled_seconds", "throttled_periods"):
        assert run.lifetimes[name].null_count == len(run.lifetimes) > 0


def test_temporary_folders_are_hidden(tmp_path: Path) -> None:
    with folders.new_folder(tmp_path, "name") as new:
        (hidden,) = tmp_path.iterdir()
        assert hidden.name.startswith(".")
        assert hidden in new.path.parents
        assert set(modes(tmp_path).values()) == {0o700}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("dropped", 5), ("reported", [1]), ("start", 1e300), ("outcome", None), ("calls", {}), ("id", 3)],
)
def test_fields_of_the_wrong_kind_are_told(tmp_path: Path, field: str, value: object) -> None:
    path = save_run(handmade_run(), tmp_path, "one")
    save_run(handmade_run(), tmp_path, "two")
    file = path / "run.json"
    document = json.loads(file.read_text())
    document["run"][field] = value
    file.write_text(json.dumps(document))
    with pytest.raises(MeasurementError, match=r"run\.json"):
        load_run(path)
    assert [entry.error is None for entry in list_runs(tmp_path)] == [True, False]
