"""Pages "Limited by X: what now": each cause has one, and prints on it what is found in a made-up run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from handmade import T, evidence_of
from limited_runs import (
    LIMITED,
    assert_left_is_no_more_than_all,
    contradictions,
    edited,
    measured,
    memory,
    verdict_of,
)

from roastcoffea.diagnosis import findings
from roastcoffea.diagnosis.finding import CAUSES, LEAST, Finding, page_of
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.measurement import load
from roastcoffea.report.glossary import page_address

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def writing() -> Any:
    spec = importlib.util.spec_from_file_location("write_limited", DOCS / "write_limited.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_pages_have_what_is_printed(writing: Any) -> None:
    assert CAUSES.keys() == LIMITED.keys(), "tests/limited_runs.py lacks a run for a cause"
    assert {cause: verdict_of(cause)[0].cause for cause in CAUSES} == {cause: cause for cause in CAUSES}
    written = {f"limited/{path.name}": path.read_text(encoding="utf-8") for path in (DOCS / "limited").glob("*.md")}
    assert written == writing.pages(), "run `python docs/write_limited.py`"


@pytest.mark.slow
def test_no_finding_contradicts_another_or_saves_more_than_its_rows_have() -> None:
    stored = sorted(path.parent for path in (Path(__file__).parent / "data").glob("schema*/run.json"))
    for measurement in (*map(measured, LIMITED), *map(load, stored)):
        verdict, ledger = measurement.verdict, measurement.time_ledger
        assert contradictions([*verdict, *measurement.byte_ledger.advice]) == []
        assert_left_is_no_more_than_all(list(verdict), verdict.together)
        for finding in verdict:
            if finding.seconds is not None:
                share = finding.seconds / measurement.metrics["elapsed_time_seconds"]
                assert share <= sum(finding.rows.values()) / ledger.total * (1 + 1e-9), finding
            for row, seconds in finding.rows.items():
                # the ledger lacks the threads of workers that did not arrive
                assert seconds <= ledger.get(row, ledger.total) + 1e-6 or finding.cause == "missing workers", finding


def test_pages_are_few_alike_and_in_the_index(writing: Any) -> None:
    assert (DOCS / "limited" / "index.md").read_text(encoding="utf-8") == writing.index()
    pages = [*(DOCS / "limited").glob("*.md")]
    assert len(pages) <= 19
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in pages) <= 4750
    for cause in CAUSES.values():
        for part in ("**Check.**", "**Fix.**", "**Fine if**"):
            assert part in (cause.rule.__doc__ or ""), (cause.name, part)
        assert len(cause.headline) <= 45
        assert not cause.headline.endswith(".")


def test_a_finding_names_its_page() -> None:
    finding = Finding(cause="interpreter lock", what="It blocks.", advice="Unlock it.", rows={}, elapsed=1.0)
    assert finding.page == "limited/contention#interpreter-lock"
    assert finding.to_dict()["page"] == finding.page
    assert finding.to_dict()["text"] == finding.text


def test_a_cause_has_a_page_of_its_own_unless_it_names_one() -> None:
    assert page_of("start-up") == "limited/start-up"
    assert page_of("memory") == "limited/memory#memory"
    assert page_of("a cause of mine") == "limited/a-cause-of-mine"
    assert page_address(page_of("memory grows")).endswith("/limited/memory.html#memory-grows")


def test_the_explanation_has_what_is_computed() -> None:
    text = (DOCS / "explanation" / "verdict.md").read_text(encoding="utf-8")
    rules = " ".join(text.partition("## What becomes a finding")[2].split())
    for cause in CAUSES.values():
        least = rf"{cause.name}\b[^;.%]*? {100 * cause.least:.0f} %"
        assert cause.least == LEAST or re.search(least, rules, re.IGNORECASE), cause.name
    assert f"at least {100 * LEAST:.0f} % of the wall time" in rules


GROWING = '''"""The finding that memory grows from chunk to chunk."""

import numpy as np

from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.units import BYTE


@finding(
    "growing memory",
    "Memory grows from chunk to chunk",
    part="in chunks",
    shows="nowhere: workers run out of memory late",
)
def growing_memory(evidence):
    """Limited by growing memory.

    Each chunk leaves memory behind.
    """
    chunks = evidence.counted.select(["worker", "start", "memory_before"]).to_pandas().dropna()
    for worker, own in chunks.sort_values("start").groupby("worker"):
        grown = np.polyfit(np.arange(len(own)), own["memory_before"], 1)[0]
        if grown > 10e6:
            yield Finding(
                what=f"Each chunk leaves {BYTE.text(grown)} on {worker}.",
                advice="Do not keep chunk data in the processor.",
                culprits=(Culprit("worker", worker, factor=None),),
                rows={"memory that grows": 0.0},
                always=True,
            )
'''


def test_a_finding_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stranger adds one: each module in the folder is imported."""
    names = {path.stem for path in Path(str(findings.__file__)).parent.glob("*.py")} - {"__init__"}
    assert all(f"{findings.__name__}.{name}" in sys.modules for name in names)
    (tmp_path / "growing.py").write_text(GROWING)
    monkeypatch.setattr(findings, "__path__", [*findings.__path__, str(tmp_path)])
    monkeypatch.setitem(CAUSES, "growing memory", CAUSES["memory"])
    importlib.import_module(f"{findings.__name__}.growing")
    run = edited(memory(), chunks=lambda row: {"memory_before": int(1e9 + 20e6 * (row["start"] - T))})
    found = {one.cause: one for one in conclusions(evidence_of(run))[0]}["growing memory"]
    assert found.headline == "Memory grows from chunk to chunk"
    assert (found.page, found.culprits[0].kind, found.seconds) == ("limited/growing-memory", "worker", None)
    assert found.text.startswith("Each chunk leaves 4")
