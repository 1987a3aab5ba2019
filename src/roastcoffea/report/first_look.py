"""The first look at a run as HTML, for the page and for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from markupsafe import Markup

from roastcoffea.diagnosis.completeness import COMPLETE, NOTHING
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.metrics.phases import FAMILIES, RESIDUAL
from roastcoffea.report import cards
from roastcoffea.report.cards import Card, Drawn, Segment
from roastcoffea.report.digest import Bar, Digest, Hot, Share, Tile
from roastcoffea.report.glossary import linked, page_address
from roastcoffea.report.markup import rendered
from roastcoffea.report.sheets import Heading

CALL_IT: Final = "No Runner was called while the collector was open: call it inside the `with` block."

TITLES: Final = {"time": "Where the time went", "bytes": "Where the bytes went"}
TOTALS: Final = {"time": "of thread time", "bytes": "requested"}
"""What the totals of bars are of."""

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
    "time limit": "tables-batch-jobs",
    "slow dataset": "chunks",
    "decompression": "tables-branches",
    "metadata": "tables-files",
}
OF_LOST_WORK: Final = ("failures", "missing data")
"""Causes whose culprits have no evidence of their own: charts show the files that could be read."""

MEASURES: Final = {"memory": "memory"}
"""What a chart of several measures shows of a cause."""

ANYWHERE: Final = ("over-time", "tables-ledgers")
"""Parts of a page that show any cause."""


class Look(NamedTuple):
    """All that the first look shows."""

    name: str
    chip: str
    alarming: bool
    facts: Sequence[str]
    tiles: Sequence[Tile]
    bars: Sequence[Drawn]
    cards: Sequence[Card]
    hot: Sequence[Hot]
    """Lines of user code with the most CPU time."""
    sentence: str
    """What matters most."""
    verdict: str
    """What concludes the cards; what stands in their place is the sentence."""
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


def look_of(digest: Digest, anchors: Collection[str] = ()) -> Look:
    """What the first look shows.

    Parameters
    ----------
    anchors
        Parts of the page that findings may lead to.
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
        cards=[_card(finding, anchors) for finding in digest.findings],
        hot=digest.hot,
        sentence=digest.sentence,
        verdict=digest.verdict,
        problems=digest.problems,
    )


def notebook_look(digest: Digest, heading: Heading) -> Markup:
    """The first look in a notebook: without scripts, in the colours around it."""
    palettes = Markup(palette("light")), Markup(palette("dark"))
    return rendered(
        "first_look_of_notebook.html", look=look_of(digest), heading=heading, palettes=palettes, linked=linked
    )


def _bar(name: str, bar: Bar) -> Drawn:
    note = "; ".join(filter(None, [f"{bar.total} {TOTALS[name]}", bar.remark]))
    return cards.drawn(TITLES[name], note, list(map(_segment, bar.shares)))


def _segment(share: Share) -> Segment:
    """A part of a bar."""
    details = ", ".join(f"{name} {amount}" for name, amount in share.classes.items())
    return cards.segment(share.family, share.fraction, _named(share.label), share.amount, details=details)


def _named(classes: str) -> str:
    return classes.replace(RESIDUAL, "unaccounted")


def _card(finding: Finding, anchors: Collection[str]) -> Card:
    evidence = next((one for one in _evidence(finding) if one in anchors), "")
    measure = MEASURES.get(finding.cause, "")
    return finding.card._replace(evidence=evidence, measure=measure, page=page_address(finding.page))


def _evidence(finding: Finding) -> Iterator[str]:
    if finding.cause not in OF_LOST_WORK:
        yield from (OF_KIND[culprit.kind] for culprit in finding.culprits if culprit.kind in OF_KIND)
    if finding.cause in OF_CAUSE:
        yield OF_CAUSE[finding.cause]
    yield from ANYWHERE


# Colours


def palette(scheme: str) -> str:
    """Colours of the families as variables of CSS, with the ink that is legible on each."""
    return cards.palette(FAMILIES, scheme)


def share_image(look: Look) -> str:
    """A small picture of the run as SVG, for previews of the page."""
    return str(rendered("share.svg", look=look))
