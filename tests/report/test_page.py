"""The page of a run: its figures are those of the metrics, it holds every task, and is written whole or not at all."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import handmade_run, run_without_tables
from test_frame import Parsed
from test_notebook import NAMES, hostile  # noqa: F401  # a fixture
from visualization.pictures import synthetic_run

import roastcoffea
from roastcoffea.cli import main
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.ledger import TOTAL
from roastcoffea.records.run import Host
from roastcoffea.report import html as markup
from roastcoffea.report.page import charts, contents
from roastcoffea.report.page.former import table
from roastcoffea.report.page.packing import ESCAPE, packed_pixels, packed_tasks
from roastcoffea.units import BYTE, SECOND, STRUCTURE
from roastcoffea.visualization.inputs import inputs_of
from roastcoffea.visualization.stream import SHOWN, Stream, stream_of


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run())


@pytest.fixture(scope="module")
def page(measurement: Measurement) -> str:
    return contents.page_of(measurement)


def block(page: str, name: str) -> str:
    """Content of a block of data."""
    return page.partition(f'id="{name}">')[2].partition("</script>")[0]


def values(page: str) -> dict[str, str]:
    """What the cell after the first holds to sort by, in the table of metrics; its text where that is nothing."""
    part = page.partition('<section id="metrics">')[2].partition("</section>")[0].partition("Missing</h3>")[0]
    rows = part.partition("<tbody>")[2].split("<tr>")[1:]
    found = {}
    for row in rows:
        parsed = Parsed(f"<tr>{row.partition('</tr>')[0]}</tr>")
        cells = [attributes for tag, attributes in parsed.elements if tag == "td"]
        found[parsed.rows[0][0]] = cells[1].get("data-v", parsed.rows[0][1])
    return found


def test_figures_are_those_of_the_metrics(page: str, measurement: Measurement) -> None:
    metrics, shown = measurement.metrics, values(page)
    expected = {name: metrics[name] for name in metrics if metrics.unit[name] is not STRUCTURE}
    assert shown.keys() == expected.keys()
    for name, value in expected.items():
        assert shown[name] == (repr(float(value)) if isinstance(value, Real) else value), name
    rows = {row[0]: row[1] for row in Parsed(page).rows}
    assert all(rows[name] == reason for name, reason in metrics.missing.items())


def test_both_ledgers_stand_on_it_with_totals_and_certificates(page: str, measurement: Measurement) -> None:
    ledgers = page.partition('<section id="ledgers">')[2].partition("</section>")[0]
    rows = Parsed(ledgers).rows
    for ledger, unit in ((measurement.time_ledger, SECOND), (measurement.byte_ledger, BYTE)):
        assert ["total", unit.text(ledger.total)] in [row[:2] for row in rows]
        assert all([name, unit.text(amount)] in [row[:2] for row in rows] for name, amount in ledger.items() if amount)
        assert str(ledger.certificate) in ledgers
    assert markup.text(measurement.verdict[0].text) in page
    assert f"Bound by {measurement.bound}" in page


def test_areas_of_the_classes_sum_to_the_ledger(page: str, measurement: Measurement) -> None:
    told = json.loads(block(page, "charts"))
    (figure,) = [root for root in told["doc"]["roots"] if root["attributes"]["name"] == "classes"]
    data = dict(figure["attributes"]["renderers"][0]["attributes"]["data_source"]["attributes"]["data"]["entries"])
    edges = array(data["x"]) / 1e3
    below = np.zeros(len(edges) - 1)
    for name in told["classes"]["names"]:
        top = array(data[name])[:-1]
        area = float(np.sum((top - below) * np.diff(edges)))
        assert area == pytest.approx(measurement.time_ledger[name], rel=1e-4, abs=1e-4 * measurement.time_ledger.total)
        below = top
    offered = float(np.sum(array(data[TOTAL])[:-1] * np.diff(edges)))
    assert offered == pytest.approx(measurement.time_ledger.total, rel=1e-5)


def test_the_picture_without_scripts_says_what_its_highest_point_is() -> None:
    context = charts._Context(inputs_of(synthetic_run()), 0.0, 1.0, None, False)
    edges, threads = np.arange(601.0), {"compute": np.tile([0.0, 0.0, 0.0, 8.0], 150)}
    assert 'aria-label="2 threads"' in charts._still_of_classes(context, edges, threads)


def array(told: dict[str, Any]) -> Any:
    content = gzip.decompress(base64.b64decode(told["array"]["data"]))
    return np.frombuffer(content, told["dtype"]).astype(np.float64)


def unpacked(told: dict[str, Any], content: bytes, lanes: int) -> list[tuple[int, int, float, float, int]]:
    """Lane, class, begin, end and group of each task, as charts.js reads them."""
    at = 0

    def take(kind: str, length: int) -> Any:
        nonlocal at
        found = np.frombuffer(content, kind, length, at)
        at += found.nbytes
        return found.astype(np.int64)

    count = told["tasks"]
    of_lane = take("<u4", lanes)
    far = [take("<i4", told[name]).tolist() for name in ("gaps", "durations")]
    gaps, durations = [take("u1", count) + 256 * take("u1", count) for _ in range(2)]
    kinds = take("u1", count)
    groups = take("u1", count) + 256 * take("u1", count)
    assert at == len(content)
    found, task = [], 0
    for lane, number in enumerate(of_lane):
        now = 0
        for _ in range(number):
            now += far[0].pop(0) if gaps[task] == ESCAPE else gaps[task]
            begin = now
            now += far[1].pop(0) if durations[task] == ESCAPE else durations[task]
            found.append((lane, kinds[task], begin * told["unit"], now * told["unit"], groups[task]))
            task += 1
    return found


def test_every_task_is_in_the_page(page: str, measurement: Measurement) -> None:
    told = json.loads(block(page, "charts"))["stream"]
    content = gzip.decompress(base64.b64decode(block(page, "packed-stream")))
    lanes = [worker for worker, threads in told["workers"] for _ in range(threads)]
    tasks = unpacked(told, content, len(lanes))
    found = []
    for lane, kind, begin, end, group in tasks:
        failed = told["classes"][kind][0] == "failed"
        found.append((lanes[lane], *(word or "" for word in told["groups"][group]), failed, begin, end))
    joined = measurement.tasks.merge(measurement.chunks[["key", "dataset", "file"]], "left", "key")
    joined[["dataset", "file"]] = joined[["dataset", "file"]].fillna("")
    start = measurement.run.start
    expected = [
        (row.worker, row.prefix, row.dataset, row.file, row.outcome == "error", row.start - start, row.stop - start)
        for row in joined[["worker", "prefix", "dataset", "file", "outcome", "start", "stop"]].itertuples()
    ]
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert one[:5] == other[:5]
        assert one[5:] == pytest.approx(other[5:], abs=told["unit"])


def test_gaps_and_durations_that_are_long_or_negative_are_kept() -> None:
    starts, stops = np.array([0.0, 900.0, 899.0, -3.0]), np.array([1e-4, 900.0, 1000.0, 2.0])
    stream = Stream(
        lane=np.array([0, 0, 0, 1]),
        kind=np.array([0, 1, 2, 3]),
        start=starts,
        stop=stops,
        task=np.arange(4),
        chunk=np.full(4, -1),
        lanes=["a", "b"],
        workers=2,
    )
    packed = packed_tasks(stream, 0.0, 1000.0, np.array([7, 300, 2, 1]))
    found = unpacked(packed.told, packed.content, 2)
    assert [task[:2] for task in found] == [(0, 0), (0, 2), (0, 1), (1, 3)]
    assert [task[4] for task in found] == [7, 2, 300, 1]
    order = [0, 2, 1, 3]
    assert [task[2] for task in found] == pytest.approx(starts[order].tolist(), abs=packed.told["unit"])
    assert [task[3] for task in found] == pytest.approx(stops[order].tolist(), abs=packed.told["unit"])


def test_pixels_have_the_seconds_of_all_tasks(measurement: Measurement) -> None:
    run = measurement.run
    stream = stream_of(run.tasks, run.chunks)
    told, content = packed_pixels(stream, run.start, run.stop)
    size = told["rows"] * told["columns"]
    kind, *planes = np.frombuffer(content, "u1").reshape(5, size).astype(np.int64)
    most, busy = planes[0] + 256 * planes[1], planes[2] + 256 * planes[3]
    room = told["seconds"] * len(stream.lanes) / told["rows"]
    assert float(busy.sum() / 0xFFFF * room) == pytest.approx(float((stream.stop - stream.start).sum()), rel=1e-4)
    assert (most <= busy).all()
    failed = SHOWN.index("failed")
    seconds = float((stream.stop - stream.start)[stream.kind == failed].sum())
    assert float(most[kind == failed].sum() / 0xFFFF * room) == pytest.approx(seconds, rel=1e-3)


def test_of_very_many_tasks_there_are_pixels_unless_every_one_is_asked_for(
    measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MOST_TASKS", 50)
    pixels = contents.page_of(measurement)
    assert "tasks" not in json.loads(block(pixels, "charts"))["stream"]
    assert "Of 72 tasks this page has the sums in pixels" in pixels
    every = json.loads(block(contents.page_of(measurement, every_task=True), "charts"))["stream"]
    assert every["tasks"] == 72
    assert ["Dijet", "ttbar"] in every["groups"]


def test_names_of_any_kind_are_text(hostile: Measurement) -> None:  # noqa: F811
    run = dataclasses.replace(hostile.run, reported=None, reported_by=None)
    page = contents.page_of(Measurement(run))
    parsed = Parsed(page)
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert "alert" not in "".join(script for script in parsed.scripts if script.startswith('"use strict"'))
    assert {row[0] for row in parsed.rows} >= set(NAMES)
    assert f"This run failed: {NAMES[3]}" not in page


@pytest.mark.parametrize("backend", ["dask", "local"])
def test_what_was_not_measured_says_why(backend: str) -> None:
    run = run_without_tables(backend=backend) if backend == "dask" else dataclasses.replace(synthetic_run(), tasks=None)
    measurement = Measurement(run)
    page = contents.page_of(measurement)
    if backend == "dask":
        assert "<script type" not in page  # nothing to draw: no program that draws
        assert len(page) < 50_000
        for part in ("verdict", "files", "workers", "over-time"):
            assert "Not measured: " in page.partition(f'<section id="{part}">')[2].partition("</section>")[0]
    else:
        assert len(json.loads(block(page, "charts"))["roots"]) == 3
        assert "without a scheduler nothing tells of it" in page


def test_a_run_without_dask(sample: Any) -> None:
    with MetricsCollector() as collector:
        runner = Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=1000)
        runner({"qcd": sample["qcd"]}, treename="Events", processor_instance=Jets())
    page = contents.page_of(collector.measurement)
    assert len(json.loads(block(page, "charts"))["roots"]) == 3
    assert "without a scheduler nothing tells of it" in page
    assert values(page)["total_events"] == "8000.0"


def test_a_folder_of_version_0_1_2_has_a_page(real_files: Any, tmp_path: Path) -> None:
    folder = Path(next(iter(real_files["dy"]["files"]))).parent / "measurement-0.1.2"
    page = contents.page_of(roastcoffea.load(folder))
    assert values(page)["total_events"] == "2000000.0"
    assert "Numbers as reported by roastcoffea 0.1.2" in page
    assert list(json.loads(block(page, "charts"))["roots"].values()) == ["plot-rates"]


def test_a_file_is_replaced_only_where_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurement, file = Measurement(run_without_tables()), tmp_path / "new" / "report.html"
    assert measurement.report(file) == file
    first = file.read_bytes()
    with pytest.raises(MeasurementError, match="exists"):
        measurement.report(file)
    monkeypatch.setattr(contents, "_lead", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measurement.report(file, overwrite=True)
    assert file.read_bytes() == first
    assert list(file.parent.iterdir()) == [file]
    monkeypatch.undo()
    assert measurement.report(file, overwrite=True).read_bytes() == first


def test_the_command_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Measurement(handmade_run()).save(tmp_path / "runs", "one")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(saved)]) == 0
    assert capsys.readouterr().out == "one.html\n"
    assert main(["report", str(saved), "-o", "one.html"]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["report", str(saved), "-o", "one.html", "--overwrite", "--every-task"]) == 0
    assert (tmp_path / "one.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("machine", "shown"),
    [
        ({"node_cores": 64, "node_memory": 2**40}, True),
        ({"node_cores": 64, "node_memory": 2**35}, True),
        ({"node_cores": 8, "node_memory": 2**35}, False),
        ({}, False),
    ],
)
def test_a_machine_stands_beside_what_could_be_used_of_it(machine: dict[str, int], shown: bool) -> None:
    run = handmade_run()
    hosts = (Host(name="node", cores=8, memory=2**35, **machine),)
    environment = dataclasses.replace(run.environment, hosts=hosts)
    part = contents.page_of(Measurement(dataclasses.replace(run, environment=environment))).partition(">Hosts<")[2]
    assert ("cores of the machine" in part) == shown
    assert (">64<" in part.partition("</table>")[0]) == shown


def test_identities_have_all_of_their_digits() -> None:
    written = table(pd.DataFrame({"id": [7768090475584863073], "events": [12345]}), "stragglers")
    assert ">7768090475584863073<" in written
    assert ">12,345<" in written
