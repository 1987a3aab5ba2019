"""The first look at a run as HTML, for the page and for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from markupsafe import Markup

from roastcoffea.diagnosis.finding import Finding
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, RESIDUAL, TROUBLE, Family
from roastcoffea.report.digest import COMPLETE, NOTHING, Bar, Digest, Share, Tile, percent_of
from roastcoffea.report.glossary import page_address
from roastcoffea.report.markup import rendered, text
from roastcoffea.report.sheets import Heading
from roastcoffea.visualization.colours import ink_on

CALL_IT: Final = "No Runner was called while the collector was open: call it inside the `with` block."
NARROW: Final = 0.03
"""Share below which a part of a bar has no label in it."""

TITLES: Final = {"time": "Where the time went", "bytes": "Where the bytes went"}

OF_KIND: Final = {
    "function": "flame-graph",
    "section": "flame-graph",
    "worker": "workers",
    "host": "workers",
    "file": "chunks",
    "dataset": "chunks",
    "chunk size": "chunks",
    "endpoint": "tables-files",
    "branch": "tables-branches",
}
OF_CAUSE: Final = {
    "failures": "tables-failed-work",
    "missing data": "tables-failed-work",
    "memory": "workers",
    "slow dataset": "chunks",
    "decompression": "tables-branches",
    "metadata": "tables-files",
}
ANYWHERE: Final = ("over-time", "tables-ledgers")
"""Parts of a page that show any cause."""


class Segment(NamedTuple):
    """A part of a bar: what stands in it, and below it."""

    family: Family
    width: str
    label: str
    """In it; empty where there is no room."""
    name: str
    """Below it."""
    percent: str
    amount: str
    details: str
    """Its classes, in words."""
    ink: str
    """Colour of what stands in it, on a light background."""


class Drawn(NamedTuple):
    """A bar with its title."""

    title: str
    note: str
    spoken: str
    """What a screen reader says in its place."""
    segments: Sequence[Segment]


class Card(NamedTuple):
    """A finding."""

    title: str
    saving: str
    what: Markup
    advice: str
    remedy: str | None
    family: Family
    evidence: str
    """Anchor of what shows it; empty where nothing does."""
    page: str
    """Address of the documentation's page on its cause."""


class Look(NamedTuple):
    """All that the first look shows."""

    name: str
    chip: str
    alarming: bool
    facts: Sequence[str]
    tiles: Sequence[Tile]
    bars: Sequence[Drawn]
    cards: Sequence[Card]
    verdict: str
    problems: Sequence[str]

    @property
    def tab(self) -> str:
        """Title of a browser's tab: name, wall time and state."""
        return " · ".join([self.name, *(tile.value for tile in self.tiles[:1]), self.chip.partition(" · ")[0]])

    @property
    def description(self) -> str:
        """A sentence or two on the run, for previews of its page."""
        findings = "; ".join(f"{card.title} {card.saving}".rstrip() for card in self.cards)
        return ". ".join(
            filter(None, [self.chip, ", ".join(f"{one.label} {one.value}" for one in self.tiles), findings])
        )


def look_of(digest: Digest, anchors: Collection[str] = (), names: Mapping[str, str] = MappingProxyType({})) -> Look:
    """What the first look shows.

    Parameters
    ----------
    anchors
        Parts of the page that findings may lead to.
    names
        Names of workers by address, as they stand in the page's pictures.
    """
    bars = [_bar(name, bar) for name, bar in (("time", digest.time), ("bytes", digest.bytes)) if bar]
    if digest.state == NOTHING:
        digest = replace(digest, coverage="", tiles=digest.tiles[:1], time=None, bytes=None, verdict=CALL_IT)
    return Look(
        name=digest.name,
        chip=" · ".join(filter(None, [digest.state, digest.coverage])),
        alarming=digest.state != COMPLETE,
        facts=digest.facts,
        tiles=digest.tiles,
        bars=bars,
        cards=[_card(finding, anchors, names) for finding in digest.findings],
        verdict=digest.verdict,
        problems=digest.problems,
    )


def notebook_look(digest: Digest, heading: Heading, names: Mapping[str, str]) -> Markup:
    """The first look in a notebook: without scripts, in the colours around it; `names` are those of workers."""
    palettes = Markup(palette("light")), Markup(palette("dark"))
    return rendered("first_look_of_notebook.html", look=look_of(digest, (), names), heading=heading, palettes=palettes)


def _bar(name: str, bar: Bar) -> Drawn:
    segments = [_segment(share, of_bytes=name == "bytes") for share in bar.shares]
    spoken = ", ".join(f"{segment.name} {segment.percent}" for segment in segments)
    note = "; ".join(filter(None, [f"{bar.total} in all", bar.remark]))
    return Drawn(TITLES[name], note, f"{TITLES[name]}: {spoken}", segments)


def _segment(share: Share, *, of_bytes: bool) -> Segment:
    """A part of a bar. Families are named after time: below bytes stand their classes."""
    details = ", ".join(f"{name} {amount}" for name, amount in share.classes.items())
    name = _named(", ".join(share.classes)) if of_bytes else share.family.label
    width = f"{100 * share.fraction:.2f}"
    label, ink = _named(share.label) if share.fraction >= NARROW else "", ink_on(share.family.light)
    return Segment(share.family, width, label, name, percent_of(share.fraction), share.amount, details, ink)


def _named(classes: str) -> str:
    return classes.replace(RESIDUAL, "unaccounted")


def _card(finding: Finding, anchors: Collection[str], names: Mapping[str, str]) -> Card:
    return Card(
        title=finding.headline,
        saving="result incomplete" if finding.incomplete else finding.saves,
        what=_with_culprits(finding, names),
        advice=_advice(finding),
        remedy=finding.remedy,
        family=_family(finding),
        evidence=next((anchor for anchor in _evidence(finding) if anchor in anchors), ""),
        page=page_address(finding.page),
    )


def _advice(finding: Finding) -> str:
    """What to do, without the line to copy: that stands below it."""
    if not finding.remedy or finding.remedy not in finding.advice:
        return finding.advice
    advice = finding.advice.replace(f": {finding.remedy}", "")
    return "" if advice == f"Use {finding.remedy}." else advice


def _with_culprits(finding: Finding, names: Mapping[str, str]) -> Markup:
    """What is slow and where, with the first culprit in bold; workers by name."""
    before, name, after = (
        finding.what.partition(finding.culprits[0].name) if finding.culprits else (finding.what, "", "")
    )
    if not name:
        return text(before)
    return Markup("{}<b>{}</b>{}").format(text(before), text(names.get(name, name)), text(after))


def _family(finding: Finding) -> Family:
    """Family of the class that has the most of its time."""
    known = {name: seconds for name, seconds in finding.rows.items() if name in FAMILY_OF}
    return FAMILY_OF[max(known, key=lambda name: known[name])] if known else TROUBLE


def _evidence(finding: Finding) -> Iterator[str]:
    yield from (OF_KIND[culprit.kind] for culprit in finding.culprits if culprit.kind in OF_KIND)
    if finding.cause in OF_CAUSE:
        yield OF_CAUSE[finding.cause]
    yield from ANYWHERE


# Colours


def palette(scheme: str) -> str:
    """Colours of the families as variables of CSS, with the ink that is legible on each."""
    colours = {family.name: getattr(family, scheme) for family in FAMILIES}
    return " ".join(f"--rc-{name}: {colour}; --rc-on-{name}: {ink_on(colour)};" for name, colour in colours.items())


def share_image(look: Look) -> str:
    """A small picture of the run as SVG, for previews of the page."""
    return str(rendered("share.svg", look=look))
