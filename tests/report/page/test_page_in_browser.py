"""The page in a real browser: nothing is asked of the network or complained of, and all that moves does."""

from __future__ import annotations

import dataclasses
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, installed_browser
from conftest import wait_until
from limited_runs import LIMITED
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from pages import NAMES
from pictures import synthetic_run
from processes import PATIENCE
from profiled import profile_table

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import COMPUTING, IDLING, TROUBLE
from roastcoffea.report.page.frame import asset

pytestmark = pytest.mark.slow

DRAWN = "document.documentElement.dataset.charts === 'drawn'"
HOSTILE = NAMES[:3]


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 16 workers, whose datasets, files and workers have names of all kinds."""
    run = synthetic_run(workers=16, rounds=6, profile=profile_table())
    changed = {name: getattr(run, name) for name in ("chunks", "tasks", "preprocessing", "lifetimes", "samples")}
    renamed = {"wjets": HOSTILE[0], "data_2018": HOSTILE[1], "ttbar": HOSTILE[2], "tcp://10.0.0.3:40003": HOSTILE[1]}
    for name, table in changed.items():
        for column in {"dataset", "worker"} & set(table.column_names):
            values = [renamed.get(value, value) for value in table[column].to_pylist()]
            table = table.set_column(table.schema.get_field_index(column), column, [values])  # noqa: PLW2901
        changed[name] = table
    measurement = Measurement(dataclasses.replace(run, name=HOSTILE[0], problems=tuple(HOSTILE), **changed))
    return measurement.report(tmp_path_factory.mktemp("page") / "report.html")


def opened(browser: Browser, page: Path) -> None:
    browser.scripts(True)
    browser.prefer("light")
    browser.size(1280, 1000)
    browser.open(page, DRAWN)


@pytest.fixture
def shown(browser: Browser, page: Path) -> Iterator[Browser]:
    """The browser, in which the page was opened; at the end nobody has complained."""
    opened(browser, page)
    yield from uncomplaining(browser, page)


@pytest.fixture
def open_page(browser: Browser, page: Path) -> Iterator[Browser]:
    """The same, for tests that leave the page as it was: those that follow each other get one that is open."""
    if not browser.evaluate("window.left_as_it_was === true"):
        opened(browser, page)
    browser.evaluate("window.left_as_it_was = false")
    yield from uncomplaining(browser, page)
    browser.evaluate("window.left_as_it_was = true")


def uncomplaining(browser: Browser, page: Path) -> Iterator[Browser]:
    yield browser
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith(("data:", "blob:"))] == [page.as_uri()]


def share_of(picture: bytes, colour: str) -> float:
    """Share of the points of a picture that have a colour."""
    points = np.asarray(imread(io.BytesIO(picture)))[..., :3]
    return float(np.mean(np.abs(points - to_rgb(colour)).max(axis=-1) < 0.02))


def seen(browser: Browser, name: str) -> bytes:
    return browser.picture(clip=browser.box(f"#plot-{name}"))


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(
        f"Array.from(document.querySelectorAll({selector!r}), (element) => element.textContent)"
    )
    return found


def test_charts_are_drawn_and_names_are_text(open_page: Browser) -> None:
    assert share_of(seen(open_page, "classes"), COMPUTING.light) > 0.1
    assert share_of(seen(open_page, "classes"), IDLING.light) > 0.01
    assert share_of(seen(open_page, "stream"), TROUBLE.light) > 0.005
    assert share_of(seen(open_page, "rates"), "#FFFFFF") < 0.9
    assert texts(open_page, "h1") == [HOSTILE[0]]
    assert texts(open_page, "#tables-measurement-problems li") == HOSTILE
    assert set(HOSTILE) <= set(texts(open_page, "#tables-datasets td:first-child"))
    assert open_page.evaluate("document.querySelectorAll('img, #tables-datasets script:not(.more)').length") == 0


def test_what_is_under_the_pointer_is_told(open_page: Browser) -> None:
    def told(name: str, x: float, y: float) -> list[str]:
        box = open_page.box(f"#plot-{name}")
        open_page.mouse("mouseMoved", box["x"] + x * box["width"], box["y"] + y * box["height"])
        lines: list[str] = open_page.evaluate(
            "Array.from(document.querySelectorAll('.tip:not([hidden]) div'), (e) => e.innerText)"
        )
        return lines

    assert wait_until(lambda: any("threads" in line for line in told("classes", 0.4, 0.6)))
    assert any(line.startswith("compute ") for line in told("classes", 0.4, 0.6))
    assert "16 workers" in told("rates", 0.6, 0.5)
    task = told("stream", 0.4, 0.5)
    assert task[2] == "Dijet"
    assert task[3] in HOSTILE
    assert task[4].startswith("root://")
    assert told("stream", 0.01, 0.5) == []


def words(browser: Browser, *calls: str) -> list[str]:
    """What functions of charts.js say."""
    program = asset("charts.js")
    functions = [
        program.partition("// Words")[2].partition("// Bokeh interprets")[0],
        'const told = { rates: { unit: "x" } };',
    ]
    functions.append(program.partition("// Last index whose")[2].partition("\n")[2].partition("// The task stream")[0])
    said: list[str] = browser.evaluate(f"(() => {{ {''.join(functions)} return [{', '.join(calls)}]; }})()")
    return said


def test_times_are_rounded_before_they_are_written(browser: Browser) -> None:
    durations = {
        59.96: "1 min 0 s",
        119.7: "2 min 0 s",
        3599.7: "1 h 0 min",
        7199.0: "2 h 0 min",
        250_000: "69 h 27 min",
    }
    durations |= {0.0: "0 s", 59.94: "59.9 s", 0.9996: "1 s", 0.25: "250 ms", 2e-5: "20 us"}
    assert words(browser, *(f"duration({seconds})" for seconds in durations)) == list(durations.values())
    spans = {(0, 59_999): "0 min 0 s to 1 min 0 s", (0, 3_599_900): "0 h 0 min 0 s to 1 h 0 min 0 s"}
    spans |= {(219_600_000, 219_660_000): "61 h 0 min 0 s to 61 h 1 min 0 s", (1000, 2000): "1.0 s to 2.0 s"}
    assert words(browser, *(f"span({start}, {stop})" for start, stop in spans)) == list(spans.values())


def test_workers_are_told_up_to_the_last_moment(browser: Browser) -> None:
    rates, workers = "{ x: [0, 1], rate: [5, 5] }", "{ x: [0, 10, 20], workers: [2, 0, 0] }"
    told = words(browser, *(f"tellRates({rates}, {workers}, {x})" for x in (5, 15, 25)))
    assert told == [[["2 workers"]], [["0 workers"]], None]


def test_time_moves_by_mouse_button_and_key(open_page: Browser) -> None:
    start = "Bokeh.documents[0].roots()[0].x_range.start"
    whole = open_page.evaluate(start)
    bars = "Bokeh.documents[0].get_model_by_name('bars').data.left.length"
    assert open_page.evaluate(bars) == 16 * 2 * 7
    open_page.evaluate("document.querySelector('[data-move=in]').click()")
    closer = open_page.evaluate(start)
    assert closer > whole
    box = open_page.box("#plot-stream")
    y = box["y"] + box["height"] / 2
    open_page.drag((box["x"] + 400, y), (box["x"] + 600, y), steps=5)
    assert open_page.evaluate(start) < closer
    assert wait_until(lambda: open_page.evaluate(bars) < 16 * 2 * 7)
    open_page.evaluate("document.getElementById('plot-classes').focus()")
    open_page.key("Home", 36)
    assert open_page.evaluate(start) == whole


def test_boxes_zoom_by_mouse_and_key(open_page: Browser) -> None:
    window = "(() => { const r = Bokeh.documents[0].get_model_by_name('flame').x_range; return r.end - r.start })()"
    whole = open_page.evaluate(window)
    box = open_page.box("#plot-flame")
    x, y = box["x"] + 30, box["y"] + 21 * 2.5
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        open_page.mouse(kind, x, y, **({} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}))
    assert wait_until(lambda: open_page.evaluate(window) < whole)
    open_page.evaluate("document.getElementById('plot-flame').focus()")
    open_page.key("ArrowUp", 38)
    assert "of the total" in texts(open_page, "#plot-flame + [role=status]")[0]
    open_page.key("Home", 36)
    assert open_page.evaluate(window) == whole


def test_a_link_chooses_what_a_chart_shows(open_page: Browser) -> None:
    chosen = "document.querySelector('#workers select').selectedOptions[0].text"
    assert open_page.evaluate(chosen) == "threads with a task"
    link = '<a href="#workers" data-measure="memory">evidence</a>'
    open_page.evaluate(f"document.body.insertAdjacentHTML('beforeend', {link!r})")
    open_page.evaluate("document.querySelector('a[data-measure]').click()")
    assert open_page.evaluate(chosen) == "memory"


def test_a_remedy_is_copied(browser: Browser, tmp_path: Path) -> None:
    opened(browser, Measurement(LIMITED["contention"]()).report(tmp_path / "report.html"))
    buttons = browser.evaluate("document.querySelectorAll('[data-copy]').length")
    assert buttons == len(texts(browser, ".remedy code"))
    browser.evaluate(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: (text) => { window.copied.push(text); return Promise.resolve(); }}});"
        "document.querySelector('[data-copy]').click()"
    )
    assert wait_until(lambda: texts(browser, "[data-copy]")[0] == "Copied")
    assert browser.evaluate("window.copied") == texts(browser, ".remedy code")[:1]


def test_tables_sort_and_filter(shown: Browser) -> None:
    names, busy = (
        "#tables-workers .table:first-of-type td:first-child",
        "#tables-workers .table:first-of-type td:nth-child(9)",
    )
    shown.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
    percents = [float(text.partition(" ")[0]) for text in texts(shown, busy)]
    assert percents == sorted(percents)
    shown.evaluate("document.querySelector('#tables-workers th button').focus()")
    shown.key("Enter", 13, "\r")
    assert texts(shown, names)[:3] == [HOSTILE[1], "10.0.0.0:1", "10.0.0.1:1"]
    assert shown.evaluate("document.querySelector('#tables-workers th').getAttribute('aria-sort')") == "ascending"
    shown.evaluate("document.querySelectorAll('#tables-workers th button')[8].click()")
    percents = [float(text.partition(" ")[0]) for text in texts(shown, busy)]
    assert percents == sorted(percents, reverse=True)
    shown.evaluate("document.querySelector('#tables-workers input').focus()")
    for letter in "0.1:":
        shown.key(letter, text=letter)
    assert texts(shown, names) == ["10.0.0.1:1"]
    assert texts(shown, "#tables-workers [role=status]")[0] == "1 of 16 rows"
    shown.evaluate("document.querySelectorAll('#tables-metrics th button')[1].click()")
    assert float(shown.evaluate("document.querySelector('#tables-metrics td[data-v]').dataset.v")) > 1e9


def test_all_tables_are_searched_at_once_and_links_unfold(shown: Browser) -> None:
    shown.evaluate("document.getElementById('search').focus()")
    for letter in "wall":
        shown.key(letter, text=letter)
    unfolded = "details.fold[open]:not([hidden]) > summary"
    assert wait_until(lambda: "Metrics" in texts(shown, unfolded))
    assert "Environment" not in texts(shown, unfolded)
    assert "rows found" in texts(shown, "#found")[0]
    shown.evaluate("location.hash = '#tables-files'")
    assert wait_until(lambda: shown.evaluate("document.getElementById('tables-files').open"))


def test_dark_narrow_and_printed(shown: Browser) -> None:
    light = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == "rgb(255, 255, 255)"
    shown.prefer("dark")
    assert wait_until(lambda: shown.evaluate("getComputedStyle(document.body).backgroundColor") != light)
    assert wait_until(lambda: share_of(seen(shown, "classes"), COMPUTING.dark) > 0.1)
    assert share_of(seen(shown, "stream"), COMPUTING.dark) > 0.1
    assert share_of(seen(shown, "classes"), "#17181a") > 0.1
    assert share_of(seen(shown, "classes"), COMPUTING.light) == 0
    shown.evaluate(
        "{ const s = document.getElementById('scheme'); s.value = 'light'; s.dispatchEvent(new Event('change')) }"
    )
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == light
    assert wait_until(lambda: share_of(seen(shown, "classes"), "#17181a") < 0.01)  # but for a line in ink
    shown.size(400, 900)
    assert wait_until(lambda: shown.evaluate("document.querySelector('.plot').getBoundingClientRect().width") < 400)
    assert wait_until(lambda: shown.evaluate("document.documentElement.scrollWidth") <= 400)
    assert shown.pdf().startswith(b"%PDF")


def test_paper_has_the_charts(shown: Browser) -> None:
    printed = len(shown.pdf())
    # what was drawn before, without what the page does as printing begins
    shown.evaluate("addEventListener('beforeprint', (event) => event.stopImmediatePropagation(), true)")
    hidden = "@media print { .plot { visibility: hidden } }"
    as_drawn = len(shown.pdf())
    shown.evaluate(f"document.head.append(Object.assign(document.createElement('style'), {{textContent: {hidden!r}}}))")
    blank = len(shown.pdf())
    assert printed - blank > 0.9 * (as_drawn - blank) > 1000


def test_the_load_event_waits_for_the_charts(shown: Browser, page: Path) -> None:
    watch = "addEventListener('load', () => { window.at_load = document.documentElement.dataset.charts; })"
    script = shown.call("Page.addScriptToEvaluateOnNewDocument", source=watch)["identifier"]
    shown.open(page, "window.at_load")
    shown.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert shown.evaluate("window.at_load") == "drawn"
    assert shown.evaluate("document.querySelectorAll('iframe').length") == 0


def test_a_screenshot_from_the_command_line_has_the_charts(page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    command = [
        installed_browser() or "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,2600",
    ]
    command += [f"--user-data-dir={tmp_path}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    assert share_of(picture.read_bytes(), COMPUTING.light) > 0.05


def test_no_other_script_runs(browser: Browser, page: Path) -> None:
    browser.open(page, DRAWN)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.bad = 1'}))"
    )
    assert browser.evaluate("window.bad === undefined")
    assert any("Content Security Policy" in message for message in browser.messages)


def test_without_scripts_there_are_still_tables(browser: Browser, page: Path) -> None:
    browser.scripts(False)
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait("document.readyState === 'complete'")
    assert "Trust HTML" in browser.evaluate("document.querySelector('noscript').textContent")
    assert HOSTILE[0] in texts(browser, "#tables-datasets td:first-child")
    browser.scripts(True)
