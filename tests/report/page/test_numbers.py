"""Numbers that a page shows in several places, and that the terminal prints, are the same everywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import unescape
from typing import NamedTuple

import limited_runs
import pytest
from pages import Parsed
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import BYTE_CLASSES, FAILED, TIME_CLASSES
from roastcoffea.records.run import Run
from roastcoffea.report.first_look import TILES
from roastcoffea.report.page.contents import page_of

RUNS: dict[str, Callable[[], Run]] = {
    "all kinds of work": lambda: synthetic_run(workers=8, rounds=6),
    "failures": limited_runs.failures,
    "re-read": limited_runs.re_read,
}
SIZES = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "%": 0.01}
SIZES |= {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
FIRST = ("dataset", "worker", "file", "endpoint", "branch")
AMOUNT = re.compile(rf"(\d[\d,]*(?:\.\d+)?) ({'|'.join(SIZES)})(?![\w/])")


class Amount(NamedTuple):
    """An amount as it is written, and the half of its last digit."""

    value: float
    half: float

    def agrees(self, value: float, more: float = 0.0) -> bool:
        return abs(self.value - value) <= 1.001 * (self.half + more) + 1e-12


def amount(text: str) -> Amount:
    """Amount of a text such as "4 min 23 s"; what stands in it goes down to a half of its last digit, or of three."""
    parts = AMOUNT.findall(text)
    assert parts, text
    value = sum(float(number.replace(",", "")) * SIZES[unit] for number, unit in parts)
    number, unit = parts[-1]
    last = SIZES[unit] * 10.0 ** -len(number.partition(".")[2])
    # three digits are shown, and zeros at their end are not
    shown = value * 0.005 if len(parts) == 1 and unit != "%" else 0.0
    return Amount(value, max(last / 2, min(shown, SIZES[unit] / 2)))


class Shown(NamedTuple):
    """Texts of a page by place, and what the terminal prints."""

    tiles: dict[str, tuple[str, str]]
    bars: list[tuple[str, str, list[tuple[str, str, str, str]]]]
    """Title, note, and parts: name, percent, amount and details."""
    cards: list[str]
    verdict: str
    rows: list[list[str]]
    printed: str


def plain(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def shown_of(run: Run) -> Shown:
    measurement, output = Measurement(run), io.StringIO()
    measurement.print_summary(file=output)
    html = page_of(measurement)
    first = html.partition('<section id="first-look"')[2].partition("</section>")[0]
    tiles = {}
    for value, label in re.findall(r"<li><b>(.*?)</b> <span>(.*?)</span></li>", first.partition("of-bar")[0]):
        name, _, note = plain(label).partition(", ")
        tiles[name] = plain(value), note
    bars = []
    for bar in first.split('<div class="of-bar">')[1:]:
        title, note = re.findall(r"<h2>(.*?) <small>(.*?)</small>", bar)[0]
        parts = re.findall(r'<li title="([^"]*)">(.*?) <b>(.*?)</b> (.*?)</li>', bar.partition('class="key"')[2])
        bars.append(
            (title, plain(note), [(plain(name), plain(share), of, details) for details, name, share, of in parts])
        )
    cards = [plain(card) for card in re.findall(r"<li style=\"border-left.*?</li>", first)]
    verdict = plain(first.partition('class="verdict">')[2].partition("</p>")[0])
    return Shown(tiles, bars, cards, verdict, Parsed(html).rows, " ".join(output.getvalue().split()))


@pytest.fixture(scope="module", params=RUNS)
def shown(request: pytest.FixtureRequest) -> Shown:
    return shown_of(RUNS[request.param]())


def ledgers(shown: Shown) -> dict[str, dict[str, tuple[str, str]]]:
    """Amount and share by class, of time and of bytes."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    names = {"time": {one.name for one in TIME_CLASSES}, "bytes": {one.name for one in BYTE_CLASSES}}
    kind = iter(("time", "bytes"))
    here = ""
    for row in shown.rows:
        if row[:3] == ["", "amount", "share"]:
            here = next(kind, "")
        elif here and row[0] in {*names[here], "total", "unaccounted"} and row[1] != "not measured":
            found.setdefault(here, {})[row[0]] = row[1], row[2]
        if row[0] == "total":
            here = ""
    return found


def metrics(shown: Shown) -> dict[str, str]:
    place = next(place for place, row in enumerate(shown.rows) if row[:2] == ["metric", "value"])
    return {row[0]: row[1] for row in shown.rows[place + 1 :] if len(row) == len(shown.rows[place])}


def rounded(text: str, exact: str) -> bool:
    """Whether both texts are the same number, the first one with fewer digits."""
    return text == exact or amount(text).agrees(*amount(exact))


def test_key_numbers_are_those_of_the_table_and_of_the_terminal(shown: Shown) -> None:
    known = metrics(shown)
    assert shown.tiles
    for name, label in TILES.items():
        if label in shown.tiles:
            value, note = shown.tiles[label]
            assert rounded(value, known[name]), label
            assert value in shown.printed, label
            assert note in shown.printed, label
    if "event rate" in shown.tiles:
        assert amount(shown.tiles["event rate"][1]).value == pytest.approx(amount(known["event_rate_core_khz"]).value)
    of = shown.tiles["core efficiency"][1].removeprefix("of ")
    assert of.partition(" ")[0] == known["total_cores"].partition(" ")[0]


def test_bars_are_sums_of_the_ledgers(shown: Shown) -> None:
    assert shown.bars
    for title, note, parts in shown.bars:
        classes = ledgers(shown)["bytes" if "bytes" in title else "time"]
        assert note.startswith(f"{classes['total'][0]} ")
        assert classes["total"][0] in shown.printed
        for name, share, of, details in parts:
            sums = [amount(classes[one][0]) for one in names_in(details, classes)]
            assert amount(of).agrees(sum(one.value for one in sums), sum(one.half for one in sums)), (title, name)
            shares = [amount(classes[one][1]) for one in names_in(details, classes)]
            fraction, half = sum(one.value for one in shares), sum(one.half for one in shares)
            if share == "< 1 %":
                assert fraction < 0.005 + half
            else:
                assert amount(share).agrees(fraction, half), (title, name)
                assert f"{name} {share}" in shown.printed


def names_in(details: str, classes: dict[str, tuple[str, str]]) -> list[str]:
    """Classes that are named, each with the amount that the table has."""
    found = [name for name, (of, _) in classes.items() if f", {name} {of}," in f", {details},"]
    assert len(found) == details.count(",") + 1, (details, classes)
    return found


def test_ledgers_are_sums_over_datasets_files_and_workers(shown: Shown) -> None:
    seen = 0
    for kind, classes in ledgers(shown).items():
        for first in FIRST:
            for head, rows in grouped(shown, first):
                names = [name for name in head[1:] if name in classes and name != "total"]
                if "total" not in head or not names or (kind == "time") != ("compute" in head):
                    continue
                for name in names:
                    cells = [amount(row[head.index(name)]) for row in rows]
                    slack = sum(one.half for one in cells)
                    assert amount(classes[name][0]).agrees(sum(one.value for one in cells), slack), (first, name)
                    seen += 1
    assert seen


def grouped(shown: Shown, first: str) -> list[tuple[list[str], list[list[str]]]]:
    """Tables with a total whose first column is this one: heads and rows."""
    found: list[tuple[list[str], list[list[str]]]] = []
    open_table = False
    for row in shown.rows:
        if "total" in row[1:] or not row[0] or row[0] in FIRST:
            open_table = row[0] == first and "total" in row
            found += [(row, [])] if open_table else []
        elif open_table:
            open_table = len(row) == len(found[-1][0]) and any(map(AMOUNT.search, row))
            found[-1][1].extend([row] if open_table else [])
    return found


def test_classes_are_metrics_as_well(shown: Shown) -> None:
    known, found = metrics(shown), ledgers(shown)
    for kind, classes in (("time", TIME_CLASSES), ("bytes", BYTE_CLASSES)):
        for one in classes:
            if one.name in found.get(kind, {}) and one.metric_name in known:
                assert known[one.metric_name] == found[kind][one.name][0], one.name


def test_cards_agree_with_ledgers_and_key_numbers(shown: Shown) -> None:
    times, elapsed = ledgers(shown)["time"], shown.tiles["elapsed"][0]
    shares = [amount(share) for name, (_, share) in times.items() if name != "total"]
    for card in shown.cards:
        for percent in re.findall(r"([\d.]+ %) of thread time", card):
            found = amount(percent)
            assert any(found.agrees(one.value, one.half + 0.003) for one in shares), card
        for part, of in re.findall(r"([\d.]+ [kMGT]?B) of ([\d.]+ [kMGT]?B) \(", card):
            amounts = [text for text, _ in ledgers(shown)["bytes"].values()]
            assert part in amounts, card
            assert of == ledgers(shown)["bytes"]["total"][0]
        if (failed := re.search(r"took ([\d.]+ s) of thread time", card)) is not None:
            assert failed[1] == times[FAILED][0]
        saving = re.search(r"fixing it saves \w+ \w+ [\d.]+ \w+", card)
        if saving is not None and card == shown.cards[0]:
            assert saving[0] in shown.printed
            assert saving[0].removeprefix("f") in shown.verdict
    for of in re.findall(r"saves .*? of ([\d.]+ s)", " ".join([shown.verdict, *shown.cards])):
        assert rounded(of, elapsed)
