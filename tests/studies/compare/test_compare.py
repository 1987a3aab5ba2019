"""Comparison of real runs: the gate's exit statuses, planted differences, and what is written of them."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from analyses import Planted, runner_for
from browser import Browser
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from distributed import Client, LocalCluster
from handmade import EXPECTED, empty_run, handmade_run
from processes import Wait, contended
from rich.cells import cell_len
from stored import served

import roastcoffea
from roastcoffea import compare_scenarios
from roastcoffea.cli import main
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import ComparisonError
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import phases
from roastcoffea.storage.store import save_run
from roastcoffea.studies import observations as sides
from roastcoffea.studies.compare import compare
from roastcoffea.studies.observations import observed

EVENTS = 4000
FLAT = 12


@pytest.fixture(autouse=True, scope="module")
def _each_folder_is_loaded_once() -> Iterator[None]:
    """Runs that are compared again and again need not be loaded and evaluated each time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sides, "load", functools.cache(load))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two files with one basket in each flat branch for each 500 events."""
    folder = tmp_path_factory.mktemp("compared")
    drawn = np.random.default_rng(1)
    for name in ("a", "b"):
        with uproot.recreate(folder / f"{name}.root") as file:
            file.mktree("Events", {f"branch{number}": np.float64 for number in range(FLAT)})
            for _ in range(EVENTS // 500):
                file["Events"].extend({f"branch{number}": drawn.random(500) for number in range(FLAT)})
    return folder


def fileset(*paths: str | Path) -> dict[str, Any]:
    return {"data": {"files": {str(path): "Events" for path in paths}}}


def run_here(files: Path, chunksize: int = 1000, **plan: Any) -> Measurement:
    """Measurement of a run on one file in this process."""
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector() as collector:
        runner(fileset(files / "a.root"), processor_instance=Planted(**plan))
    return collector.measurement


def repeat(run: Any, number: int) -> Measurement:
    """The run once more, a little longer: real repeats differ by what else goes on here."""
    return Measurement(replace(run, id=f"{run.id[:-1]}{number}", stop=run.stop + 0.002 * number))


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of saved runs: some that are alike, some that are slower, and one that reads a branch more."""
    folder = tmp_path_factory.mktemp("runs")
    run_here(files, branches=2)
    base = run_here(files, branches=2, sleep=0.01).run
    # four chunks take twice as long as that, also where others kept it waiting
    slow = run_here(files, branches=2, sleep=max(0.15, (base.stop - base.start) / 2)).run
    for number in (1, 2, 3, 4):
        repeat(base, number).save(folder, f"base-{number}")
        repeat(slow, number).save(folder / "slow", f"{number}")
    run_here(files, branches=3, sleep=0.01).save(folder, "branch")
    (folder / "empty").mkdir()
    save_run(empty_run(), folder, "nothing")
    save_run(handmade_run(outcome="failed", error="OSError: gone"), folder, "failed")
    document = json.loads((folder / "base-1" / "run.json").read_text()) | {"schema": 99}
    (folder / "newer").mkdir()
    (folder / "newer" / "run.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["base", "slow"], 0),
        (["base", "slow", "--fail-if", "elapsed_time_seconds > 20%"], 1),
        (["base", "slow", "--fail-if", "elapsed_time_seconds > 9900%"], 0),
        (["base-1", "slow/1", "--fail-if", "elapsed_time_seconds > 20%"], 2),
        (["base-*", "slow", "--fail-if", "elapsed_time_seconds > 9900%", "--fail-if", "total_events < -1%"], 0),
        (["base", "slow", "--fail-if", "elapsed_time_seconds > 20%", "--fail-if", "total_events < -1%"], 1),
        (["base-1", "branch", "--fail-if", "bytes_payload > 5%"], 1),
        (["base-1", "base-2", "--fail-if", "bytes_payload > 5%"], 0),
        (["base-1", "branch", "slow", "--fail-if", "bytes_payload > 1 kB"], 1),
    ],
)
def test_the_gates_exit_status(
    arguments: list[str], status: int, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert main(["compare", *arguments]) == status, capsys.readouterr().out
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["base", "nowhere"], "no measurement found at nowhere, and none matching it"),
        (["base", "empty"], "empty contains no measurement"),
        (["base", "newer"], "has schema 99; this version reads up to"),
        (["base", "nothing"], "nothing cannot be compared: it contains no Runner call"),
        (["base", "failed"], "failed contains no comparable run: failed failed: OSError: gone"),
        (["base"], "there are 0 measurements in roastcoffea-runs; name a RUN, or measure one"),
        (["base", "slow", "--fail-if", "elapsed_time_seconds > 5 GB"], "is in s, not in 'GB'"),
        (["base", "slow", "--fail-if", "elapsed > 5%"], "there is no metric 'elapsed'"),
        (["base", "slow", "--fail-if", "5% < elapsed_time_seconds"], "is not a condition"),
        (["base", "slow", "--fail-if", "processor_cpu_time_seconds > 5%"], "has no processor_cpu_time_seconds"),
        (["base", "slow", "--confidence", "2"], "--confidence"),
        (["base", "slow", "--format", "pdf"], "'pdf' is not one of"),
        (["base", "slow", "-o", "base-1"], "'base-1' is a directory"),
        (["base", "slow", "-o", "nowhere/x.md"], "there is no folder nowhere for x.md; create it, or choose another"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(
    arguments: list[str],
    words: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("roastcoffea: ")
    assert err.count("\n") == 1


def test_repeats_are_told_apart_and_single_runs_are_not(runs: Path) -> None:
    found = compare(runs / "base", runs / "slow")
    assert found.verdict == "slower", found.speeds
    assert (
        compare(runs / "slow", [runs / "base-1", runs / "base-2", runs / "base-3", load(runs / "base-4")]).verdict
        == "faster"
    )
    single = compare(runs / "base-1", runs / "slow" / "1").speeds[0]
    assert single.word == "cannot tell"
    assert "over chunks within the runs" in single.text
    assert "at least 3 runs per side" in single.text


def test_the_explanation_of_a_sleep_is_waiting(runs: Path) -> None:
    explanation = compare(runs / "base", runs / "slow").explanation
    parts = {part.cause: part for part in explanation.parts}
    waited = [load(runs / name).time_ledger["blocked"] for name in ("base-1", "slow/1")]
    assert waited[1] - waited[0] > 0.3
    assert parts["blocked"].wall_seconds == pytest.approx(waited[1] - waited[0], rel=0.1)
    # where the host was busy in one of the runs, the sleep need not be the largest
    by_size = sorted((abs(part.wall_seconds) for part in parts.values()), reverse=True)
    assert [abs(part.wall_seconds) for part in explanation.parts] == by_size
    assert sum(part.thread_seconds for part in explanation.parts) == pytest.approx(explanation.thread_seconds)
    assert abs(explanation.rest) < 0.1 * sum(by_size)


def test_one_more_branch_is_found_by_its_name_and_bytes(runs: Path) -> None:
    found = compare(runs / "base-1", runs / "branch")
    (part,) = [part for part in found.explanation.parts if part.cause == "newly read branches"]
    size = load(runs / "branch").byte_ledger["payload"] - load(runs / "base-1").byte_ledger["payload"]
    assert part.text.startswith("branch2, ")
    (row,) = [row for row in found.rows if row.metric.name == "bytes_payload"]
    assert row.change(1) == size
    assert row.relative_change(1) == pytest.approx(0.5, rel=0.01)


def test_only_what_differs_is_shown_by_default(runs: Path) -> None:
    found = compare(runs / "base-1", runs / "base-1")
    few, all_of_it = io.StringIO(), io.StringIO()
    found.print(few)
    found.print(all_of_it, everything=True)
    assert "B shares runs with A: base-1" in few.getvalue()
    for name in ("coffea", "chunksize", "elapsed", "payload"):
        assert name not in few.getvalue()
        assert name in all_of_it.getvalue()
    assert max(cell_len(line) for text in (few, all_of_it) for line in text.getvalue().splitlines()) <= 80


def test_three_sides_are_each_compared_with_the_first(runs: Path) -> None:
    found = compare(runs / "base-1", runs / "branch", runs / "slow" / "1")
    file = io.StringIO()
    found.print(file)
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "\u2026" not in text
    for heading in ("Why B differs from A", "Why C differs from A", "Metrics, B against A", "Metrics, C against A"):
        assert f"\n{heading}\n" in text
    payload = {row.metric.name: row.differs_at for row in found.rows}["bytes_payload"]
    assert payload == (False, True, False)


def test_what_they_ran_on_is_compared(runs: Path, files: Path) -> None:
    other = run_here(files, chunksize=500, branches=2)
    found = compare(runs / "base-1", other).facts
    facts = {name: values for name, values in found.items() if len(set(values)) > 1}
    assert facts["chunksize"] == ("1000", "500")
    assert facts.keys() <= {"chunksize", "bottleneck"}


def test_other_forms_hold_the_same(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", str(runs / "base"), str(runs / "slow"), "--fail-if", "wall_time > 20%"]
    assert main([*arguments, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == 1
    assert document["comparisons"][0]["verdict"] == "slower"
    parts = document["comparisons"][0]["explanation"]["parts"]
    assert sum(part["thread_seconds"] for part in parts) == pytest.approx(
        document["comparisons"][0]["explanation"]["thread_seconds"]
    )
    change = document["metrics"]["elapsed_time_seconds"]["changes"][0]
    assert main([*arguments, "--format", "markdown", "-o", str(tmp_path / "report.md")]) == 1
    text = (tmp_path / "report.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| elapsed |")]
    assert f" {100 * change['relative']:+.3g} % " in row
    assert main([*arguments, "--format", "markdown", "-o", str(tmp_path / "report.md")]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [["one"], ["one", "two", "three"]])
def test_each_run_has_a_label(labels: list[str]) -> None:
    run = Measurement(handmade_run())
    with pytest.raises(ComparisonError, match=f"{len(labels)} labels for 2 runs: pass one label per run"):
        compare(run, run, labels=labels)


@pytest.mark.slow
def test_runs_that_are_no_repeats_are_remarked() -> None:
    runs = [handmade_run(id=str(number)) for number in range(3)]
    larger = tuple(replace(call, options=call.options | {"chunksize": 7}) for call in runs[0].calls)
    of_two_sizes = [Measurement(replace(runs[0], calls=larger)), Measurement(runs[1])]
    told = "runs of A are not repeats of each other: they differ in chunksize"
    assert told in " ".join(str(compare(of_two_sizes, Measurement(runs[2]))).split())
    assert "no repeats" not in str(compare([Measurement(runs[0]), Measurement(runs[1])], Measurement(runs[2])))


def test_names_are_text_wherever_they_stand() -> None:
    bad = "<script>alert(1)</script> | `x` $y$"
    found = compare(Measurement(handmade_run()), Measurement(handmade_run(name=bad)), labels=["a | b", bad])
    assert "<script>alert" not in found.text("html")
    text = found.markdown()
    assert "\\<script\\>" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables == [] or all(line.replace("\\|", "").count("|") >= 3 for line in tables)


@pytest.mark.slow
def test_a_page_is_shown_without_complaint(runs: Path, tmp_path: Path, browser: Browser) -> None:
    found = compare(runs / "base", runs / "slow", labels=["<script>alert(1)</script>", "$$x$$ a&b"])
    found.write(tmp_path / "page.html", "html", everything=True)
    browser.open(tmp_path / "page.html")
    title = browser.evaluate("document.querySelector('h1').textContent")
    assert title == "$$x$$ a&b against <script>alert(1)</script>"
    (row,) = [row for row in found.rows if row.metric.name == "elapsed_time_seconds"]
    cells = browser.evaluate(
        "[...document.querySelectorAll('tr')].filter(row => row.cells[0].textContent === 'elapsed')"
        ".map(row => row.cells[3].dataset.v)"
    )
    assert [float(value) for value in cells] == [row.change(1)]
    assert browser.messages == []


def test_what_hosts_and_branches_cost_is_in_the_ledger(runs: Path) -> None:
    run = observed(load(runs / "branch"))
    host = run.hosts.iloc[0]
    for name in phases.COLUMNS_OF:
        assert host[name] == pytest.approx(run.time.get(name, 0.0), rel=0.01)
    assert host["events"] == run.metrics["total_events"]
    assert host["bytes"] == run.branches["bytes"].sum() == run.bytes["payload"] + run.bytes["re-read"]
    for name in ("read", "decompress", "interpret"):
        assert run.branches[name].sum() == pytest.approx(run.time[name], rel=0.01)


def test_collectors_and_measurements_are_taken_as_they_are(runs: Path) -> None:
    one, other = load(runs / "base-1"), load(runs / "branch")
    assert compare(one.run, other).sides[0].runs[0].id == one.run.id
    assert roastcoffea.compare(one, other).sides[1].runs[0].metrics["total_branches_read"] == 3
    with pytest.raises(TypeError, match="not int"):
        compare(one, 1)
    with pytest.raises(ComparisonError, match="compare takes 2 to 26 runs, not 1"):
        compare(one)


# Planted differences


@contextmanager
def cluster_of(workers: int) -> Iterator[Client]:
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield client


def run_on(client: Client, given: Any, chunksize: int = 1000, **plan: Any) -> Measurement:
    with MetricsCollector(client) as collector:
        runner_for(client, chunksize, schema=BaseSchema)(given, processor_instance=Planted(**plan))
    return collector.measurement


def largest(before: Measurement, after: Measurement, host: Wait) -> str:
    """The cause that explains most; wall time is explained but for a tenth, and what other programs took."""
    explanation = compare(before, after).explanation
    assert abs(explanation.rest) <= 0.1 * abs(explanation.wall_seconds) + host.seconds
    return explanation.parts[0].cause


@pytest.mark.slow
def test_planted_differences_are_the_largest_parts(client: Client, files: Path) -> None:
    paths = [files / f"{name}.root" for name in "ab"]
    with contended() as host, served(files) as server:
        there = fileset(*(server.url(path.name) for path in paths))
        run_on(client, there, branches=FLAT)  # the first chunk of a process imports what the others find
        server.latency = 0.05
        remote = run_on(client, there, branches=FLAT // 2)
        more = run_on(client, there, branches=FLAT)
        server.latency = 0.1
        slower = run_on(client, there, branches=FLAT)
    with contended() as host_of_others:
        here = run_on(client, fileset(*paths), branches=1, sleep=0.2)
        tenth = run_on(client, fileset(*paths), chunksize=100, branches=1, sleep=0.02)
        with cluster_of(1) as half:
            run_on(half, fileset(*paths), branches=1)
            halved = run_on(half, fileset(*paths), branches=1, sleep=0.2)
    assert largest(remote, more, host) == "newly read branches"
    assert largest(more, slower, host) == "read"
    assert largest(here, tenth, host_of_others) == "chunk size"
    assert largest(here, halved, host_of_others) == "threads"


def test_scenarios_stand_side_by_side(tmp_path: Path) -> None:
    measurement = Measurement(handmade_run())
    file = io.StringIO()
    older = {"wall_time": 2.5, "processor_io_wait_percent": 40.0}
    scenarios = {"now": measurement, "saved": measurement.save(tmp_path), "values": measurement.metrics, "0.1.2": older}
    frame = compare_scenarios(scenarios, file)
    for label in ("now", "saved", "values"):
        assert dict(frame.loc[label]) == pytest.approx({name: EXPECTED[name] for name in frame.columns})
    assert frame.loc["0.1.2", "elapsed_time_seconds"] == 2.5
    assert frame.loc["0.1.2", "processor_noncpu_percentage"] == 40.0
    assert frame.loc["0.1.2"].isna().sum() == 5
    assert frame.attrs["units"]["processor_cpu_percentage"] == "%"
    text = file.getvalue()
    (wall,) = [line for line in text.splitlines() if "wall time" in line]
    assert wall.count("1 min 40 s") == 3
    assert wall.endswith("2.5 s")
    assert "0.1.2: overhead_cpu_time_seconds is missing" in text


def test_there_have_to_be_scenarios() -> None:
    with pytest.raises(ComparisonError, match="there are no scenarios"):
        compare_scenarios({})
    with pytest.raises(ComparisonError, match="not as list"):
        compare_scenarios([1])
    with pytest.raises(TypeError, match="not int"):
        compare_scenarios({"one": 1})
