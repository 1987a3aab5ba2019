"""The page of a run: its figures are those of the metrics, it holds every task, and is written whole or not at all."""

from __future__ import annotations

import dataclasses
from numbers import Real
from pathlib import Path
from typing import Any

import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import hostile_run, run_without_tables
from pages import NAMES, Parsed, drawn
from pictures import synthetic_run

import roastcoffea
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.ledger import LABELS_OF
from roastcoffea.records.run import Host
from roastcoffea.report.glossary import glossary, page_address
from roastcoffea.report.page import contents
from roastcoffea.sheets.markup import text
from roastcoffea.units import BYTE, SECOND, SMALLEST_SHARE, STRUCTURE, rough


def fold(page: str, name: str) -> str:
    """One of the folded sections."""
    return page.partition(f'<details class="fold" id="tables-{name}">')[2].partition("</details>\n")[0]


def values(page: str) -> dict[str, str]:
    """What the cell after the first holds to sort by, in the table of metrics; its text where that is nothing."""
    part = fold(page, "metrics").partition("Missing</h4>")[0]
    rows = part.partition("<tbody>")[2].split("<tr>")[1:]
    found = {}
    for row in rows:
        parsed = Parsed(f"<tr>{row.partition('</tr>')[0]}</tr>")
        cells = [attributes for tag, attributes in parsed.elements if tag == "td"]
        found[parsed.rows[0][0]] = cells[1].get("data-v", parsed.rows[0][1])
    return found


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run())


@pytest.fixture(scope="module")
def page(measurement: Measurement) -> str:
    return contents.page_of(measurement)


@pytest.mark.slow
def test_figures_are_those_of_the_metrics(page: str, measurement: Measurement) -> None:
    metrics, shown = measurement.metrics, values(page)
    expected = {name: metrics[name] for name in metrics if metrics.unit[name] is not STRUCTURE}
    assert shown.keys() == expected.keys()
    for name, value in expected.items():
        assert shown[name] == (repr(float(value)) if isinstance(value, Real) else value), name
    rows = {row[0]: row[1] for row in Parsed(page).rows}
    assert all(rows[name] == reason for name, reason in metrics.missing.items())


def test_both_ledgers_stand_on_it_with_totals_and_certificates(page: str, measurement: Measurement) -> None:
    ledgers = fold(page, "ledgers")
    rows = Parsed(ledgers).rows
    for ledger, unit in ((measurement.time_ledger, SECOND), (measurement.byte_ledger, BYTE)):
        assert ["total", unit.text(ledger.total)] in [row[:2] for row in rows]
        shown = [row[:2] for row in rows]
        assert all([LABELS_OF.get(name, name), unit.text(ledger[name])] in shown for name in large(ledger))
        assert str(ledger.certificate) in ledgers


def large(ledger: Any) -> list[str]:
    """Classes that have a row."""
    return [name for name, amount in ledger.items() if amount and abs(amount) >= SMALLEST_SHARE * ledger.total]


def anchors(page: str) -> set[str]:
    """Parts of a page that links can lead to."""
    return {attributes["id"] for _, attributes in Parsed(page).elements if "id" in attributes}


def test_findings_are_on_the_first_screen_with_links_to_what_shows_them(page: str, measurement: Measurement) -> None:
    first = page.partition('<section id="first-look"')[2].partition("</section>")[0]
    assert measurement.verdict
    for finding in measurement.verdict:
        assert rough(finding.seconds) in first
        assert finding.remedy is None or f"<code>{text(finding.remedy)}</code>" in first
    links = [attributes["href"] for tag, attributes in Parsed(first).elements if tag == "a"]
    evidence = [link.removeprefix("#") for link in links if link.startswith("#")]
    assert len(evidence) == len(measurement.verdict)
    assert set(evidence) <= anchors(page)
    assert {link for link in links if "/limited/" in link} == {page_address(one.page) for one in measurement.verdict}
    assert glossary()["core efficiency"].address in links


def test_classes_in_the_ledgers_lead_to_the_glossary(page: str, measurement: Measurement) -> None:
    ledgers = fold(page, "ledgers")
    for name in [*large(measurement.time_ledger), *large(measurement.byte_ledger)]:
        term = glossary()[name]
        assert f'<a class="term" href="{term.address}"' in ledgers
        assert f">{LABELS_OF.get(name, name)}</a>" in ledgers


def test_tables_call_workers_by_name_and_give_their_addresses_once(page: str, measurement: Measurement) -> None:
    names = measurement.metrics.evaluator.value("worker_names")
    cells = [cell for row in Parsed(fold(page, "workers")).rows for cell in row]
    for address, name in names.items():
        assert cells.count(name) >= 2  # side by side, and with their thread time
        assert address in cells


def test_the_tab_and_previews_have_the_name_of_the_run(page: str, measurement: Measurement) -> None:
    elements = Parsed(page).elements
    meta = {attributes.get("property"): attributes.get("content") for tag, attributes in elements if tag == "meta"}
    elapsed = SECOND.text(measurement.metrics["elapsed_time_seconds"])
    assert f"<title>{measurement.run.name} · {elapsed} · " in page
    assert str(meta["og:title"]).startswith(str(measurement.run.name))
    assert elapsed in str(meta["og:description"])


@pytest.mark.slow
def test_names_of_any_kind_are_text() -> None:
    run = dataclasses.replace(hostile_run(NAMES), reported=None, reported_by=None)
    page = contents.page_of(Measurement(run))
    parsed = Parsed(page)
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert "alert" not in "".join(script for script in parsed.scripts if script.startswith('"use strict"'))
    assert {row[0] for row in parsed.rows} >= set(NAMES)
    assert f"This run failed: {NAMES[3]}" not in page


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "local"])
def test_what_was_not_measured_says_why(backend: str) -> None:
    run = run_without_tables(backend=backend) if backend == "dask" else dataclasses.replace(synthetic_run(), tasks=None)
    measurement = Measurement(run)
    page = contents.page_of(measurement)
    if backend == "dask":
        assert "<script type" not in page  # nothing to draw: no program that draws
        assert len(page) < 60_000
        assert {"tables-ledgers", "tables-files", "tables-workers", "workers", "over-time"}.isdisjoint(anchors(page))
        absent = fold(page, "not-measured")
        assert all(f"<li>{name}: " in absent for name in ("files", "workers", "task stream", "flame graph"))
    else:
        assert drawn(page)["roots"].keys()
        assert "not recorded without a scheduler" in page


@pytest.mark.slow
def test_a_run_without_dask(sample: Any) -> None:
    with MetricsCollector() as collector:
        runner = Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=1000)
        runner({"qcd": sample["qcd"]}, treename="Events", processor_instance=Jets())
    page = contents.page_of(collector.measurement)
    there = {"plot-rates", "plot-classes", "plot-stream", "plot-icicle", "plot-points", "plot-heat"}
    assert there <= set(drawn(page)["roots"].values())
    assert "not recorded without a scheduler" in page
    assert values(page)["total_events"] == "8000.0"


def test_a_folder_of_version_0_1_2_has_a_page(real_files: Any, tmp_path: Path) -> None:
    folder = Path(next(iter(real_files["dy"]["files"]))).parent / "measurement-0.1.2"
    page = contents.page_of(roastcoffea.load(folder))
    assert values(page)["total_events"] == "2000000.0"
    assert "Numbers as reported by roastcoffea 0.1.2" in page
    assert list(drawn(page)["roots"].values()) == ["plot-datasets", "plot-rates", "plot-points"]


def test_a_file_is_replaced_only_where_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurement, file = Measurement(run_without_tables()), tmp_path / "new" / "report.html"
    assert measurement.report(file) == file
    first = file.read_bytes()
    with pytest.raises(MeasurementError, match="exists"):
        measurement.report(file)
    monkeypatch.setattr(contents, "heading", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measurement.report(file, overwrite=True)
    assert file.read_bytes() == first
    assert list(file.parent.iterdir()) == [file]
    monkeypatch.undo()
    assert measurement.report(file, overwrite=True).read_bytes() == first


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
    run = run_without_tables()
    hosts = (Host(name="node", cores=8, memory=2**35, **machine),)
    environment = dataclasses.replace(run.environment, hosts=hosts)
    part = contents.page_of(Measurement(dataclasses.replace(run, environment=environment))).partition(">Hosts<")[2]
    assert ("machine cores" in part) == shown
    assert (">64<" in part.partition("</table>")[0]) == shown
