"""`roastcoffea show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from limited_runs import LIMITED
from made_runs import independent_job, made_run, plan, with_call
from rich.cells import cell_len

from roastcoffea.cli import main
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.report.summary import GROUPS
from roastcoffea.storage.store import save_run


def healthy() -> Run:
    """Chunks that compute all the time."""
    return made_run([plan(1.0)] * 40, 2)


def failed() -> Run:
    """A processor that raised in the end."""
    error = "ValueError: planted"
    return with_call(made_run([plan(1.0)] * 4, 2, outcome="failed", error=error), outcome="failed", error=error)


def lost() -> Run:
    """A client that was killed."""
    return with_call(made_run([plan(1.0)] * 8, 2, outcome="lost", error="the client was killed"), outcome="lost")


def of_many_chunks() -> Run:
    """Those of a small run, one after the other, with keys of their own."""
    run, times = healthy(), 2_500
    assert run.chunks is not None
    columns = {}
    for name, column in zip(run.chunks.column_names, run.chunks.columns, strict=True):
        many = pa.concat_arrays([column.combine_chunks()] * times)
        if name in {"start", "stop"}:
            many = pa.array(many.to_numpy() + np.repeat(20.0 * np.arange(times), len(run.chunks)))
        elif name == "key":
            many = pa.array([f"{key}-{number}" for number, key in enumerate(many.to_pylist())])
        columns[name] = many.cast(column.type)
    many_tasks = {"chunks": pa.table(columns, run.chunks.schema), "tasks": None, "stop": run.start + 20.0 * times}
    return dataclasses.replace(run, **many_tasks)


KINDS = {"healthy": healthy, "contended": LIMITED["contention"], "failed": failed, "lost": lost}


@pytest.fixture
def fits_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Run], None]:
    """Checks that `show` fits a screen of 24 lines, with its own line, what it took for RUN, and the next prompt."""

    def check(run: Run) -> None:
        save_run(run, tmp_path / "roastcoffea-runs", "made")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["show"]) == 0
        out, err = capsys.readouterr()
        lines = [*err.splitlines(), *out.splitlines()]
        assert all(cell_len(line) <= 80 for line in lines)
        assert len(lines) + 2 <= 24
        assert "roastcoffea show roastcoffea-runs/made --all" in out

    return check


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_any_kind_fits_a_screen(kind: str, fits_a_screen: Callable[[Run], None]) -> None:
    fits_a_screen(KINDS[kind]())


@pytest.mark.slow
def test_a_run_of_a_hundred_thousand_chunks_fits_a_screen(
    fits_a_screen: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read from disk, where so many equal rows are taken for damage."""

    def load(path: Path) -> Measurement:
        found = Measurement(of_many_chunks())
        found.path = path
        return found

    monkeypatch.setattr("roastcoffea.studies.merging.load", load)
    fits_a_screen(healthy())


def test_a_folder_of_jobs_and_a_shared_run_lead_on_with_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        run = with_call(independent_job(number, [1.0, 2.0]), fileset=str(number) * 64)
        save_run(run, tmp_path / "jobs", f"job-{number}")
    monkeypatch.chdir(tmp_path)
    for words, place in ((["jobs"], "jobs"), (["jobs/job-*"], "'jobs/job-*'"), (["jobs", "--share"], "jobs --share")):
        assert main(["show", *words]) == 0
        out = capsys.readouterr().out
        assert f"All tables: roastcoffea show {place} --all" in out
        assert f"Page: roastcoffea report {place}" in out
        assert "print_summary" not in out


def test_show_prints_one_screen_or_all_tables(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs / "good [red]run")
    assert main(["show", path]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    for words in ("good [red]run", "4,000 events", "12.5 s", f"roastcoffea show '{path}' --all"):
        assert words in out
    assert main(["show", path, "--all"]) == 0
    tables = capsys.readouterr().out
    assert len(tables.splitlines()) > 24
    assert "\nThroughput\n" in tables


def test_show_prints_the_tables_of_a_group(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs / "good [red]run")
    assert main(["show", path, "--group", "problems"]) == 0
    assert capsys.readouterr().out.strip().startswith("Measurement problems")
    assert main(["show", path, "--group", "bites"]) == 2
    assert "did you mean bytes?" in capsys.readouterr().err
    assert main(["show", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(group in told for group in GROUPS)
