"""The page of a history: links, comparisons, and names that are hostile to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser
from made_runs import HIGH, LOW, entry, made_run, plan, with_cpu
from pages import NAMES, Parsed

from roastcoffea.errors import MeasurementError
from roastcoffea.storage.store import save_run
from roastcoffea.studies import history_page
from roastcoffea.studies.history import history
from roastcoffea.studies.history_analysis import analysis_of

TIMES = [*LOW, *HIGH]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 16 runs that became slower at the ninth; two have pages of their own."""
    folder = tmp_path_factory.mktemp("history") / "runs"
    for number, seconds in enumerate(TIMES):
        run = made_run([plan(1000 * seconds)] * 4, 2, id=f"{number:032x}")
        save_run(run, folder, f"run {number:02d}")
    (folder / "run 03" / "report.html").write_text("<title>three</title>")
    (folder / "run 05.html").write_text("<title>five</title>")
    found = history(folder)
    assert [mark.entry.name for mark in found.analyses[0].marks] == ["run 08"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history_page, "MOST_PAIRS", 3)
        return found.page(folder.parent / "pages" / "history.html")


def targets(page: Path) -> dict[str, str]:
    """Where the names in the table of runs lead."""
    part = page.read_text().partition('id="made-on-data"')[2].partition("</section>")[0]
    pieces = part.partition("<tbody>")[2].split('<tr><td><a href="')[1:]
    return {piece.partition('">')[2][:6]: piece.partition('">')[0] for piece in pieces}


@pytest.mark.slow
def test_runs_lead_to_their_pages_or_to_comparisons(page: Path) -> None:
    found = targets(page)
    assert found["run 03"] == "../runs/run%2003/report.html"
    assert found["run 05"] == "../runs/run%2005.html"
    anchors = {attributes["id"] for _, attributes in Parsed(page.read_text()).elements if "id" in attributes}
    leading = {name: target for name, target in found.items() if target.startswith("#")}
    assert {target[1:] for target in leading.values()} <= anchors
    assert leading["run 15"] != leading["run 14"]
    assert "run-00-to-run-07" in leading["run 08"]
    assert set(found) == {f"run {number:02d}" for number in (3, 5, 8, 13, 14, 15)}


@pytest.mark.slow
def test_dots_lead_where_the_names_do(page: Path) -> None:
    svgs = page.read_text().partition("<svg")[2]
    found = Parsed(page.read_text()).elements
    in_drawing = [attributes["href"] for tag, attributes in found if tag == "a" and "tabindex" in attributes]
    of_table = targets(page)
    assert in_drawing == 2 * [of_table[f"run {number:02d}"] for number in range(16) if f"run {number:02d}" in of_table]
    assert svgs.count('class="change"') == 2


@pytest.mark.slow
def test_a_comparison_tells_what_changed(page: Path) -> None:
    fold = page.read_text().partition("Comparison 1: run 08 to run 15 against run 00 to run 07")[2]
    assert "CPU per event +44 %" in fold.partition("</details>")[0]


@pytest.mark.slow
def test_a_page_is_not_overwritten_unasked(page: Path) -> None:
    found = history(page.parent.parent / "runs")
    with pytest.raises(MeasurementError, match="exists"):
        found.page(page)


def test_names_are_text() -> None:
    runs = [
        replace(run, name=f"{name} {number}", facts={"coffea": name})
        for number, (run, name) in enumerate(zip(with_cpu(TIMES), [*NAMES * 4], strict=False))
    ]
    runs.append(entry(16, name=NAMES[3], reason=NAMES[0], failures=2, datasets=tuple(NAMES), processors=(NAMES[0],)))
    text = history_page.page_of(Path("runs"), [analysis_of(runs)], NAMES, Path("pages"))
    parsed = Parsed(text)
    assert not {"img"} & {tag for tag, _ in parsed.elements}
    assert len(parsed.scripts) == 2
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    hrefs = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert all(href.startswith("#") for href in hrefs)


@pytest.fixture
def shown(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.scripts(True)
    browser.size(1400, 900)
    browser.open(page)
    yield browser
    assert browser.messages == []


@pytest.mark.slow
def test_a_click_on_a_run_opens_what_it_leads_to(shown: Browser, page: Path) -> None:
    place = shown.evaluate(
        "(() => { const at = document.querySelectorAll('.history svg')[1].querySelectorAll('.run')[8]"
        ".getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        shown.mouse(kind, *place, button="left", clickCount=1)
    shown.wait("location.hash.startsWith('#tables-comparison-1')")
    shown.wait("document.querySelector(location.hash).open")
    # sorting keeps the links
    shown.evaluate("document.querySelector('th button').click()")
    hrefs = shown.evaluate(
        "Array.from(document.querySelectorAll('#made-on-data tbody a'), (a) => a.getAttribute('href'))"
    )
    assert sorted(hrefs) == sorted(targets(page).values())
    assert [url for url in shown.requests if not url.startswith(("data:", "blob:"))] == [page.as_uri()]
    width = shown.evaluate("document.documentElement.scrollWidth")
    assert width <= 1400
