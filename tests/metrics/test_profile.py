"""The profile of a run: lines that took the time of process(), in a run by hand and in real ones."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, Runner
from distributed import Client
from handmade import handmade_run
from profiled import Planned, profile_table

import roastcoffea
from roastcoffea import Measurement, MetricsCollector
from roastcoffea.errors import MeasurementError
from roastcoffea.instrument.sampler import PERIOD
from roastcoffea.metrics.profile import STATE_SECONDS, Place, is_own
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PROFILE_COLUMNS


def by_hand() -> Measurement:
    return Measurement(replace(handmade_run(), profile=profile_table()))


def test_lines_have_their_own_time_and_that_below() -> None:
    rows = by_hand().functions
    found = {
        (row.dataset, row.function): (row.self_seconds, row.total_seconds, row.core_seconds, row.samples)
        for row in rows.itertuples()
    }
    assert found["tt", "spin"] == (8.0, 8.0, 7.0, 80)
    assert found["dy", "spin"] == (4.0, 4.0, 4.0, 40)
    assert found["tt", "P.process"] == (1.0, 16.0, 1.0, 10)
    assert found["tt", "ak.sum"] == (0.0, 5.0, 0.0, 0)
    assert rows["self_seconds"].is_monotonic_decreasing


def test_hot_functions_are_lines_of_the_user() -> None:
    rows = by_hand().hot_functions
    found = {
        (row.dataset, row.function, row.leaf): (row.seconds, row.core_seconds, row.blocked_seconds, row.share)
        for row in rows.astype(object).where(rows.notna(), None).itertuples()
    }
    assert found == {
        ("tt", "spin", None): (8.0, 7.0, 0.0, 0.5),
        ("tt", "P.process", "kernel"): (5.0, 5.0, 0.0, 5 / 16),
        ("dy", "spin", None): (4.0, 4.0, 0.0, 1.0),
        ("tt", "helper", None): (2.0, 0.0, 1.0, 2 / 16),
        ("tt", "P.process", None): (1.0, 1.0, 0.0, 1 / 16),
    }


@pytest.mark.parametrize(
    ("file", "first", "own"),
    [
        ("/home/a.py", "/home/p.py", True),
        ("awkward/a.py", "/home/p.py", False),
        ("threading.py", "/home/p.py", False),
        ("<string>", "/home/p.py", False),
        ("<stdin>", "<stdin>", True),
        ("analysis/a.py", "analysis/p.py", True),
        ("awkward/a.py", "analysis/p.py", False),
        ("C:\\home\\a.py", "C:\\home\\p.py", True),
    ],
)
def test_code_of_installed_packages_is_not_the_users(file: str, first: str, own: bool) -> None:
    assert is_own(Place("f", file, 1), Place("process", first, 1)) == own


CALLBACKS = {
    "Dask's, when garbage is collected": ("GCDiagnosis._gc_callback", "distributed/gc.py", 199),
    "Dask's, and what it calls": ("FractionalTimer._gc_callback", "distributed/utils_perf.py", 99),
    "a finalizer": ("ReadOnlyFile.__del__", "uproot/reading.py", 693),
}


@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS)
def test_what_the_interpreter_calls_in_between_is_time_of_the_function(callback: tuple[str, str, int]) -> None:
    load = ("load", "json/__init__.py", 293)
    stack = [("P.process", "/home/p.py", 10), ("scale", "/home/p.py", 5), load]
    rows = [
        profile_row(each, seconds)
        for each, seconds in (
            (stack, 1.0),
            ([*stack, callback], 3.0),
            ([*stack, callback, ("rss", "psutil/a.py", 1)], 2.0),
        )
    ]
    measurement = Measurement(replace(handmade_run(), profile=table_of_rows(PROFILE_COLUMNS, rows)))
    (line,) = measurement.functions[measurement.functions["self_seconds"] > 0].itertuples()
    assert (line.function, line.file, line.self_seconds) == ("load", "json/__init__.py", 6.0)
    (hot,) = measurement.hot_functions.itertuples()
    assert (hot.function, hot.line, hot.leaf, hot.seconds) == ("scale", 5, "load", 6.0)


def profile_row(stack: list[tuple[str, str, int]], seconds: float, contention: float = 0.0) -> dict[str, Any]:
    functions, files, lines = map(list, zip(*stack, strict=True))
    times = {"core_seconds": seconds - contention, "contention_seconds": contention, "blocked_seconds": 0.0}
    return {"call": "c1", "dataset": "tt", "functions": functions, "files": files, "lines": lines} | {
        "samples": round(10 * seconds),
        "seconds": seconds,
        **times,
    }


def test_lines_of_user_code_have_what_they_call_and_contention_hides_none() -> None:
    process, helper = ("P.process", "/home/p.py", 10), ("scale", "/home/lib.py", 5)
    rows = [
        profile_row([process, helper, ("load", "json/__init__.py", 293)], 3.5, contention=3.0),
        profile_row([process, helper], 1.5),
        profile_row([process, ("sum", "awkward/sum.py", 1)], 3.0, contention=3.0),
        profile_row([process, ("Base.process", "base/analysis.py", 7), ("cut", "base/cuts.py", 2)], 2.0),
    ]
    run = replace(handmade_run(), profile=table_of_rows(PROFILE_COLUMNS, rows))
    lines = Measurement(run).metrics.evaluator.value("user_lines")
    assert [(str(line.place), line.calls, line.share) for line in lines] == [
        ("scale (/home/lib.py:5)", "json.load", 0.5),
        ("P.process (/home/p.py:10)", "awkward.sum", pytest.approx(0.3)),
        # the processor of a library does the work of the user's here
        ("cut (base/cuts.py:2)", None, pytest.approx(0.2)),
    ]
    out = io.StringIO()
    Measurement(run).print_summary(out, group="your code")
    (load, *_, cut) = [line.split() for line in out.getvalue().splitlines() if "%" in line]
    assert load[:4] == ["scale", "lib.py:5", "50", "%"]
    assert cut[:2] == ["cut", "cuts.py:2"]


def test_it_shows_itself() -> None:
    profile = by_hand().profile
    text = str(profile)
    assert "spin" in text
    assert "200 samples covering 20 s in process(): 85% on a core" in text.replace(" %", "%")
    assert "/home/p.py:20" in profile.to_markdown()
    assert "<table" in profile._repr_html_()
    assert profile.states == {"core": 17.0, "contention": 1.0, "blocked": 1.0, "unknown": 1.0}
    assert profile.tree("dy").seconds == 4.0


@pytest.mark.slow
def test_stacks_without_time_are_no_profile(tmp_path: Path) -> None:
    nothing = profile_table()[:1].to_pylist()[0] | dict.fromkeys(("samples", "seconds", *STATE_SECONDS), 0)
    measurement = Measurement(replace(handmade_run(), profile=table_of_rows(PROFILE_COLUMNS, [nothing])))
    assert "No chunk was in process() when its thread was sampled." in str(measurement.profile)
    assert measurement.hot_functions.empty
    assert measurement.report(tmp_path / "page.html").exists()


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    profile = by_hand().profile
    path = profile.export(tmp_path / "new" / "a.json", "speedscope")
    assert json.loads(path.read_text()) == profile.speedscope()
    with pytest.raises(MeasurementError, match="exists"):
        profile.export(path, "collapsed")
    assert profile.export(path, "collapsed", overwrite=True).read_text() == profile.collapsed()
    with pytest.raises(MeasurementError, match="choose speedscope, collapsed"):
        profile.export(path, "svg")


def test_an_older_measurement_says_that_it_has_none() -> None:
    older = roastcoffea.load(Path(__file__).parents[1] / "data" / "schema8")
    assert "did not record" in str(older.profile.absent)
    assert "did not record" in older.functions.attrs["absent"]
    assert (older.profile.samples, older.profile.seconds) == (0, 0)


EXECUTORS = {
    "processes": lambda _: FuturesExecutor(workers=2, status=False),
    "dask": lambda client: DaskExecutor(client=client, status=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "dask"])
def test_a_real_run_has_the_time_of_its_functions(
    executor: str, sample: dict[str, Any], shared_client: Client, tmp_path: Path
) -> None:
    client = shared_client if executor == "dask" else None
    runner = Runner(EXECUTORS[executor](client), schema=BaseSchema, chunksize=2000)
    with MetricsCollector(client) as collector:
        taken = runner(sample, treename="Events", processor_instance=Planned(rounds=8))
    measurement = roastcoffea.load(collector.save_measurement(tmp_path))
    profile = measurement.profile
    wall = measurement.chunks["process_seconds"].sum()
    slack = 5 * PERIOD * math.sqrt(wall / PERIOD + 4)
    assert profile.seconds == pytest.approx(wall, abs=slack)
    assert not [problem for problem in measurement.problems if "profile" in problem]
    hot = measurement.hot_functions
    for name in ("spin", "nap"):
        parts = ("heavy", "light") if name == "spin" else ("nap",)
        found = hot.loc[hot["function"] == name, "seconds"].sum()
        assert found == pytest.approx(sum(taken[part] for part in parts), abs=slack)
    assert set(hot["file"]) <= {str(Path(__file__).parents[1] / "profiled.py")}


@pytest.mark.slow
def test_it_can_be_turned_off(sample: dict[str, Any]) -> None:
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=4000)
    with MetricsCollector(profile=False) as collector:
        runner(sample, treename="Events", processor_instance=Planned(rounds=8))
    assert collector.measurement.profile.absent == "profile=False"
    assert collector.measurement.run.profile is None
