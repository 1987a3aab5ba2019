"""Pages "Limited by X: what now": each cause has one, and prints on it what is found in a made-up run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from limited_runs import LIMITED, verdict_of

from roastcoffea.diagnosis.causes import CAUSES
from roastcoffea.diagnosis.evidence import LEAST, LEAST_OF
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.diagnosis.savings import PARTS

DOCS = Path(__file__).parents[1] / "docs"
SIZE = re.compile(r"chunksize=([\d_]+)")


@pytest.fixture(scope="module")
def writing() -> Any:
    spec = importlib.util.spec_from_file_location("write_limited", DOCS / "write_limited.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_a_page_with_what_is_printed(cause: str, writing: Any) -> None:
    page = writing.page_of(cause)
    assert page.exists(), f"docs/limited lacks a page on {cause}: what now?"
    text = page.read_text(encoding="utf-8")
    first, *_ = verdict_of(cause)
    assert first.cause == cause
    assert DOCS / f"{first.page}.md" == page
    (quoted,) = writing.BLOCK.findall(text)
    assert writing.with_printed(text, cause) == text, f"docs/{first.page}.md: run `python docs/write_limited.py`"
    # a value that is to be copied is that of the finding
    sizes = {size.replace("_", "") for size in SIZE.findall(text)}
    assert all(f"chunksize={size}" in quoted for size in sizes)


def test_pages_are_alike_and_in_the_index(writing: Any) -> None:
    index = (DOCS / "limited" / "index.md").read_text(encoding="utf-8")
    pages = {page.stem for page in (DOCS / "limited").glob("*.md")} - {"index"}
    assert pages == {writing.page_of(cause).stem for cause in CAUSES} == set(re.findall(r"\]\(([\w-]+)\.md\)", index))
    assert CAUSES.keys() == LIMITED.keys()
    for page in sorted(pages):
        assert f"\n{page}\n" in index.partition("{toctree}")[2]
        text = (DOCS / "limited" / f"{page}.md").read_text(encoding="utf-8")
        own = writing.BLOCK.sub("", text)
        assert [
            part in own for part in ("**How to make sure.**", "**What to do.**", "**When it is not a problem.**")
        ] == [True] * 3
        assert 15 <= len(own.splitlines()) <= 40


def test_a_finding_names_its_page() -> None:
    finding = Finding(cause="interpreter lock", what="It blocks.", advice="Unlock it.", rows={}, elapsed=1.0)
    assert finding.page == "limited/interpreter-lock"
    assert finding.to_dict()["page"] == finding.page
    assert finding.to_dict()["text"] == finding.text


def test_the_explanation_has_what_is_computed() -> None:
    text = (DOCS / "explanation" / "verdict.md").read_text(encoding="utf-8")
    replayed, shared = (
        {
            name
            for row in re.findall(rf"^\| (.*) \| {start}.*\*at most\* \|$", text, re.MULTILINE)
            for name in row.split(", ")
        }
        for start in ("all of it", "the share")
    )
    assert replayed == {name for name, part in PARTS.items() if part.at_most}
    assert shared == CAUSES.keys() - PARTS.keys() - {"missing data", "chunk size"}
    rules = " ".join(text.partition("## What becomes a finding")[2].split())
    for name, least in LEAST_OF.items():
        assert re.search(rf"{name}\b[^;.%]*? {100 * least:.0f} %", rules, re.IGNORECASE), name
    assert f"at least {100 * LEAST:.0f} % of the wall time" in rules
