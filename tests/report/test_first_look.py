"""The first look: bars, cards and what leads from them to the evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from handmade import empty_run, handmade_run

from roastcoffea.diagnosis.finding import Culprit, Finding
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import COMPUTING, FAMILIES, READING, TROUBLE
from roastcoffea.report.first_look import Digest, cards_of, digest_of, notebook_look
from roastcoffea.sheets.sheet import Card, Heading, palette
from roastcoffea.visualization.draw import luminance


@pytest.fixture(scope="module")
def digest() -> Digest:
    measurement = Measurement(handmade_run())
    return digest_of(measurement.run, measurement.metrics)


def finding(**values: Any) -> Finding:
    said: dict[str, Any] = {"cause": "storage", "what": "Reading waits for se.org.", "advice": "Use nthreads=2."}
    return Finding(**said | {"rows": {"read": 3.0, "compute": 1.0}, "elapsed": 10.0, "seconds": 2.0} | values)


def card(digest: Digest, found: Finding, *anchors: str) -> Card:
    (made,) = cards_of(dataclasses.replace(digest, findings=[found]), anchors)
    return made


def test_a_run_of_nothing_says_so_in_a_sentence() -> None:
    measurement = Measurement(empty_run())
    look = digest_of(measurement.run, measurement.metrics)
    assert (look.chip, look.bars, cards_of(look)) == ("nothing was run", [], [])
    assert "No Runner was called" in look.verdict
    assert len(look.tiles) == 1


def test_a_card_has_saving_remedy_and_the_colour_of_its_time(digest: Digest) -> None:
    found = card(digest, finding(remedy="nthreads=2"))
    assert (found.title, found.saving, found.remedy) == (
        "Reading waits for storage",
        "fixing it saves about 2 s",
        "nthreads=2",
    )
    assert found.family is READING
    assert card(digest, finding(rows={"compute": 1.0})).family is COMPUTING
    assert card(digest, finding(rows={})).family is TROUBLE
    assert card(digest, finding(at_most=True)).saving == "fixing it saves at most 2 s"
    assert card(digest, finding(incomplete=True)).saving == ""  # its title says so


def test_the_first_culprit_stands_out_by_the_name_that_the_sentence_has(digest: Digest) -> None:
    endpoint = finding(culprits=(Culprit("endpoint", "se.org"),))
    assert card(digest, endpoint).culprit == "se.org"
    worker = finding(what="Worker node:1 is slow.", culprits=(Culprit("worker", "tcp://a:1", label="node:1"),))
    assert card(digest, worker).culprit == "node:1"
    assert card(digest, finding(culprits=(Culprit("file", "not-in-the-text"),))).culprit == ""


def test_evidence_is_a_part_that_the_page_has(digest: Digest) -> None:
    slow = finding(culprits=(Culprit("worker", "tcp://a:1"), Culprit("file", "f")))
    assert card(digest, slow, "chunks", "workers", "over-time").evidence == "workers"
    assert card(digest, slow, "chunks", "over-time").evidence == "chunks"
    assert card(digest, slow, "over-time").evidence == "over-time"
    assert card(digest, slow).evidence == ""


@pytest.mark.parametrize("cause", ["missing data", "failures"])
def test_lost_work_leads_to_its_table_and_not_to_files_that_worked(digest: Digest, cause: str) -> None:
    lost = finding(cause=cause, culprits=(Culprit("file", "f"), Culprit("dataset", "d")))
    assert card(digest, lost, "chunks", "tables-failed-work").evidence == "tables-failed-work"


def test_memory_leads_to_the_memory_of_workers(digest: Digest) -> None:
    full = finding(cause="memory", culprits=(Culprit("worker", "tcp://a:1"),))
    found = card(digest, full, "workers")
    assert (found.evidence, found.measure) == ("workers", "memory")
    assert card(digest, finding(), "workers").measure == ""


def test_a_card_leads_to_the_page_on_its_cause(digest: Digest) -> None:
    slow = finding(cause="slow worker")
    assert card(digest, slow).page.endswith("/limited/slow-worker.html#slow-worker")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_stands_in_a_bar_is_legible(scheme: str) -> None:
    found = dict(line.strip().split(": ") for line in palette(FAMILIES, scheme).split(";") if line.strip())
    for family in FAMILIES:
        light, dark = sorted((luminance(found[f"--rc-{family.name}"]), luminance(found[f"--rc-on-{family.name}"])))
        assert (dark + 0.05) / (light + 0.05) >= 4.5


def test_no_backtick_is_left_in_cards_and_verdicts(digest: Digest) -> None:
    found = finding(what="Enter the `with` late.", advice="`measurement.failed` lists them.")
    html = notebook_look(
        dataclasses.replace(digest, findings=[found], verdict="See `roastcoffea show`."), Heading(title="")
    )
    assert "`" not in html
    assert all(f"<code>{code}</code>" in html for code in ("with", "measurement.failed", "roastcoffea show"))
