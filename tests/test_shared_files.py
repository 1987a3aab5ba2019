"""Shared measurements: nothing that was written tells hosts, users or paths, and all numbers are as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analyses import Indiscreet, runner_for
from coffea.nanoevents import BaseSchema
from distributed import Client
from handmade import handmade_run
from made_runs import made_run, plan
from pages import contents, found_in, write_everything
from saved_runs import ORIGINALS, planted_run
from stored import write_tree

import roastcoffea
from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.measurement import Measurement


@pytest.mark.slow
def test_nothing_that_is_shared_has_the_original_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # a run of such texts has no meaning
    measurement = Measurement(planted_run())
    saved = write_everything(measurement, tmp_path / "shared", share=True)
    measurement.share().print_summary(all=True)
    Measurement(roastcoffea.load(saved).run).print_summary()
    print(measurement.share()._repr_html_())
    texts = [*contents(tmp_path / "shared"), ("printed", capsys.readouterr().out.encode())]
    assert len(texts) > 40
    assert found_in(texts, ORIGINALS) == []
    write_everything(measurement, tmp_path / "original")
    assert {name for _, name in found_in(contents(tmp_path / "original"), ORIGINALS)} == set(ORIGINALS)


@pytest.mark.slow
def test_the_commands_share_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = handmade_run(name="mine", problems=("door.hush.org did not answer janedoe", "/home/janedoe/x.py"))
    saved = Measurement(run).save(tmp_path / "runs", "mine")
    for arguments in (
        ["redact", str(saved), "-o", str(tmp_path / "out" / "mine")],
        ["report", str(saved), "--share", "-o", str(tmp_path / "out" / "mine.html")],
        ["export", str(saved), "--share", "--format", "csv", "-o", str(tmp_path / "out" / "csv")],
        ["show", str(saved), "--share", "--all"],
    ):
        assert main(arguments) == 0
    texts = [*contents(tmp_path / "out"), ("printed", capsys.readouterr().out.encode())]
    assert found_in(texts, ["hush", "janedoe"]) == []
    assert found_in(texts, ["host-1.domain-1", "user-1"])


@pytest.mark.slow
def test_a_run_on_dask_tells_no_path_when_it_is_shared(client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "zqhush" / "hush dir"
    folder.mkdir(parents=True)
    write_tree(folder / "f.root", baskets=2)
    files = {str(folder / "f.root"): "Events", str(folder / "gone.root"): "Events"}
    with MetricsCollector(client) as collector:
        runner_for(client, 1000, retries=0, schema=BaseSchema, skipbadfiles=(OSError,))(
            {"qcd": {"files": files}}, processor_instance=Indiscreet("")
        )
    write_everything(collector.measurement, tmp_path / "original")
    names = ["zqhush", "hush dir", str(tmp_path)]
    assert {name for _, name in found_in(contents(tmp_path / "original"), names)} == set(names)
    write_everything(collector.measurement, tmp_path / "shared", share=True)
    assert found_in(contents(tmp_path / "shared"), names) == []
    assert changed_numbers(collector.measurement) == {}


def numbers_of(measurement: Measurement) -> dict[str, Any]:
    """All numbers: metrics, ledgers, and the columns of numbers in tables, in order of size."""
    found: dict[str, Any] = {
        name: value for name, value in measurement.metrics.items() if isinstance(value, float | int)
    }
    for ledger in (measurement.byte_ledger, measurement.time_ledger):
        found |= {f"{type(ledger).__name__} {name}": amount for name, amount in ledger.items()}
    for name, frame in measurement.tables.items():
        for column in frame.select_dtypes("number"):
            found[f"{name}.{column}"] = sorted(frame[column].dropna().astype(float).tolist())
    return found


def changed_numbers(measurement: Measurement) -> dict[str, Any]:
    """Numbers that are others in the shared measurement, with both."""
    before, after = numbers_of(measurement), numbers_of(measurement.share())
    pairs = {name: (before.get(name), after.get(name)) for name in before | after}
    return {
        name: pair for name, pair in pairs.items() if pair[1] != pytest.approx(pair[0], rel=1e-9, abs=1e-9, nan_ok=True)
    }


RUNS = {
    "by hand": handmade_run,
    "two hosts": lambda: made_run(
        [
            plan(1.0, 0.5, file=f"root://door.{site}.org//store/user/me/f{number}.root")
            for number in range(8)
            for site in "ab"
        ],
        3,
    ),
}


@pytest.mark.parametrize("name", ["by hand", pytest.param("two hosts", marks=pytest.mark.slow)])
def test_numbers_are_as_they_were(name: str) -> None:
    measurement = Measurement(RUNS[name]())
    assert len(numbers_of(measurement)) > 100
    assert changed_numbers(measurement) == {}
    assert set(measurement.share().metrics.missing) == set(measurement.metrics.missing)
