"""What notebooks show: tables with the numbers of the metrics, in which no text from data is anything but text."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from handmade import CALLS, EXPECTED, empty_run, handmade_run, hostile_run, run_without_tables
from pages import NAMES, Page

from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.ledger import LABELS_OF
from roastcoffea.metrics.phases import FAMILIES, Family
from roastcoffea.report.first_look import digest_of
from roastcoffea.sheets.markup import html
from roastcoffea.sheets.sheet import Column, Reason, Sheet
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, STRUCTURE

ALLOWED = {"class", "scope", "style", "title", "role", "aria-label", "href", "target", "rel"}


@pytest.fixture(scope="module")
def handmade() -> Measurement:
    return Measurement(handmade_run(problems=("a <b> problem",)))


@pytest.fixture(scope="module")
def hostile() -> Measurement:
    """A measurement in which all text that comes from data is hostile."""
    return Measurement(hostile_run(NAMES))


def shown(measurement: Measurement) -> dict[str, Any]:
    return {
        "measurement": measurement,
        "metrics": measurement.metrics,
        "bytes": measurement.byte_ledger,
        "time": measurement.time_ledger,
        "verdict": measurement.verdict,
    }


@pytest.mark.parametrize("what", ["measurement", "metrics", "bytes", "time", "verdict"])
@pytest.mark.parametrize("of", ["handmade", "hostile", "empty", "nothing"])
def test_no_page_has_anything_but_text_and_tables(of: str, what: str, request: pytest.FixtureRequest) -> None:
    runs = {"empty": empty_run(), "nothing": run_without_tables()}
    measurement = Measurement(runs[of]) if of in runs else request.getfixturevalue(of)
    html = shown(measurement)[what]._repr_html_()
    page = Page(html)
    elements = {"div", "style", "h3", "h4", "p", "ul", "li", "span", "i", "details", "summary", "a"}
    of_look = set() if what == "metrics" else {"h5", "ol", "b", "em", "small", "code", "bdi"}
    assert set(page.tags) <= elements | of_look | {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.attributes <= ALLOWED
    assert "url(" not in html
    assert "@import" not in html


def test_hostile_names_show_as_text(hostile: Measurement) -> None:
    computed = Measurement(dataclasses.replace(hostile.run, reported=None, reported_by=None))
    text = Page(computed._repr_html_()).text
    assert text.startswith(NAMES[0])
    assert all(name in text for name in NAMES)


def test_a_measurement_shows_its_key_numbers_its_bars_and_what_to_change(handmade: Measurement) -> None:
    html = handmade._repr_html_()
    page = Page(html)
    assert "1 min 40 s elapsed" in page.text
    assert "450 events" in page.text
    assert "a <b> problem" in page.text
    widths = [float(width) for width in re.findall(r"flex: ([\d.]+) 1 0; min-width", html)]
    assert sum(widths) == pytest.approx(200, rel=0.02)  # two bars
    assert handmade.verdict[0].what in page.text
    assert handmade.verdict[0].remedy in page.text


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_colours_stand_in_the_elements_as_well_for_hosts_that_drop_styles(
    family: Family, handmade: Measurement
) -> None:
    html = handmade._repr_html_()
    digest = digest_of(handmade.run, handmade.metrics)
    assert digest.time is not None
    assert digest.bytes is not None
    shown = {share.family for bar in (digest.time, digest.bytes) for share in bar.shares}
    assert (f"var(--rc-{family.name}, {family.light})" in html) == (family in shown)


def test_every_metric_is_on_the_page_of_metrics(handmade: Measurement) -> None:
    rows = {row[0]: row[1] for row in Page(handmade.metrics._repr_html_()).rows}
    for metric in CATALOGUE.metrics():
        if metric.name in handmade.metrics and metric.unit is not STRUCTURE:
            assert rows[metric.name] == metric.unit.text(handmade.metrics[metric.name])
    assert all(rows[name] == reason for name, reason in handmade.metrics.missing.items())


def test_ledgers_show_classes_shares_and_certificate(handmade: Measurement) -> None:
    page = Page(handmade.byte_ledger._repr_html_())
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["payload"][:2] == [BYTE.text(EXPECTED["bytes_payload"]), "52.9 %"]
    assert rows["unaccounted"][0] == "50 B"
    assert rows["total"][0] == "6.05 kB"
    assert str(handmade.byte_ledger.certificate) in page.text
    time = {row[0]: row[1] for row in Page(handmade.time_ledger._repr_html_()).rows}
    assert time["idle: client"] == SECOND.text(EXPECTED["time_idle_client_seconds"])
    assert "other tasks" not in time


def test_a_ledger_is_a_bar_of_its_classes_above_a_folded_table(handmade: Measurement) -> None:
    html = handmade.time_ledger._repr_html_()
    total = float(handmade.time_ledger.total or 0)
    bar, _, table = html.partition("<details><summary>As a table</summary>")
    widths = [float(width) for width in re.findall(r"flex: ([\d.]+) 1 0; min-width", bar)]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert len(widths) == sum(amount > 0 for amount in handmade.time_ledger.values())
    named = [name for name, amount in handmade.time_ledger.items() if amount >= 0.005 * total]
    assert all(f"</i>{LABELS_OF.get(name, name)} <b>" in bar for name in named)
    assert "<table>" in table
    assert "<table>" not in bar


def test_what_is_drawn_brings_its_colours_for_both_schemes(handmade: Measurement) -> None:
    html = handmade.verdict._repr_html_()
    families = {card.family for card in handmade.verdict.sheets()[0].cards if card.family is not None}
    assert all(
        f"--rc-{each.name}: {each.dark};" in html and f"--rc-{each.name}: {each.light};" in html for each in families
    )


def test_a_ledger_that_is_not_there_gives_its_reason() -> None:
    measurement = Measurement(run_without_tables())
    assert measurement.time_ledger.absent in Page(measurement.time_ledger._repr_html_()).text


def test_a_run_that_failed_says_so(hostile: Measurement) -> None:
    assert f"This run failed: {NAMES[3]}" in Page(hostile._repr_html_()).text


def test_a_collector_shows_where_it_stands() -> None:
    collector = MetricsCollector()
    assert "not been entered" in Page(collector._repr_html_()).text
    with collector:
        assert "It is measuring" in Page(collector._repr_html_()).text
    assert Page(collector._repr_html_()).text == Page(collector.measurement._repr_html_()).text


def test_words_may_go_over_lines_and_amounts_do_not() -> None:
    columns = (Column(name=""), Column(name="amount", unit=COUNT), Column(name="source"))
    long = "longer than seventeen letters"
    page = html([Sheet(title="one", columns=columns, rows=[("a", long, long), ("b", Reason(long), "short")])])
    assert re.findall(r'<td class="long">|<td>', page.partition("<tbody>")[2]) == [
        *("<td>", "<td>", '<td class="long">'),
        *("<td>", '<td class="long">', "<td>"),
    ]


def test_parts_stand_beside_each_other_or_are_folded() -> None:
    part = Sheet(title="part", items=["an item"])
    beside = html([Sheet(beside=True, parts=[part, part])])
    assert beside.count("<div><h4>Part</h4><ul><li>an item</li></ul></div>") == 2
    folded = html([Sheet(title="all", folded=True, parts=[part])])
    assert "<details><summary>All</summary><h4>Part</h4>" in folded


def test_a_share_has_a_bar_where_it_is_known() -> None:
    columns = (Column(name=""), Column(name="share", unit=FRACTION, bars=True))
    page = html([Sheet(columns=columns, rows=[("a", 0.25), ("b", None), ("c", 1.5), ("d", -0.5)])])
    assert re.findall(r'<td class="bar">(.*?)</td>', page) == [
        *('<i style="width: 25.0%"></i>', "", '<i style="width: 100.0%"></i>', '<i style="width: 0.0%"></i>')
    ]


def test_no_fact_turns_another_one_around() -> None:
    """Hebrew letters run from right to left, and so would digits after them."""
    run = handmade_run(calls=tuple(dataclasses.replace(call, processor="\u05d0\u05d1 \u202edata") for call in CALLS))
    html = Measurement(run)._repr_html_()
    assert "<bdi>\u05d0\u05d1 <span>\\</span>u202edata</bdi>" in html


@pytest.mark.slow
def test_chips_beside_names_have_the_colours_of_the_bars(handmade: Measurement) -> None:
    """What makes a list paler with `opacity` makes the chips in it paler as well."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", handmade._repr_html_())
    paler = [
        selectors for selectors, style in rules if "opacity" in style and not selectors.rstrip().endswith(".bar i")
    ]
    assert paler
    assert not any(".key" in selectors for selectors in paler)
