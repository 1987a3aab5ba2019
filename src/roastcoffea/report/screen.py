"""The first look at a run: one screen of lines in a terminal, HTML on the page and in notebooks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import floor
from typing import Final, NamedTuple

from markupsafe import Markup
from rich.color import Color
from rich.console import Console
from rich.text import Text

from roastcoffea.diagnosis.completeness import COMPLETE, NO_RUNNER, NOTHING
from roastcoffea.diagnosis.finding import NOTHING_READ, Finding
from roastcoffea.metrics.facts import ADDRESS
from roastcoffea.metrics.phases import FAMILIES, RESIDUAL, Family
from roastcoffea.records.run import NO_FILE
from roastcoffea.report.digest import ELAPSED, Bar, Digest, Hot, Share, Tile
from roastcoffea.report.glossary import linked, page_address
from roastcoffea.sheets import sheet as cards
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Card, Drawn, Heading, Segment, percent_of
from roastcoffea.sheets.terminal import verbatim
from roastcoffea.units import counted, number

NARROWEST: Final = 40
"""Columns of the narrowest terminal for which lines are broken."""

ALARM: Final = "bold red"
QUIET: Final = "dim"
MOST_ON_SCREEN: Final = 22
"""Lines that fit a terminal of 24 with a command and its prompt: findings are shortened to fit, as far as they can."""
MOST_LINES: Final = 2
"""Lines of an advice or a problem."""
MOST_OF_LACKING: Final = 4
"""Lines on what is missing."""
INDENT: Final = 2
OF_FINDING: Final = 5
GAP: Final = "   "
LABEL: Final = 13
"""Letters of what stands left of a bar."""
LEAST_NAMED: Final = 0.005
"""Share of a bar from which it is named below."""

LONG_PATH: Final = re.compile(r"[^\s()',;\"]{24,}/[^\s()',;\"]+")
"""Paths that would take much of a line."""

BLOCKS: Final = dict(zip((family.name for family in FAMILIES), "█▓▒░▄╳·", strict=True))  # noqa: RUF001
LETTERS: Final = dict(zip((family.name for family in FAMILIES), "#=o:%!.", strict=True))
"""What fills a bar without colours, by family; letters where the output knows no block characters."""


OF_SIXTEEN: Final = dict(
    zip(
        (family.name for family in FAMILIES),
        ("blue", "cyan", "yellow", "bright_yellow", "magenta", "red", "bright_black"),
        strict=True,
    )
)
"""Colours of families where a terminal has 16: the nearest of them would be the same for two families."""


class Room(NamedTuple):
    """How much of the findings is shown; the tables have all."""

    findings: int
    what: int
    """Lines on what is slow."""
    others: int = 2
    """Lines on all other findings."""


ROOMS: Final = (
    *(Room(findings, what) for findings in (3, 2, 1) for what in (3, 2)),
    *(Room(1, what, 1) for what in (3, 2, 1)),
)
"""From the largest to the smallest: the first that fits is used."""


class Places(NamedTuple):
    """Where the rest of a run is to be seen."""

    tables: str = "print_summary(all=True)"
    page: str = 'measurement.report("report.html")'
    measurement: str = ""
    """Line that loads it."""


class Writer:
    """Lines of a console's width, in which names are printed as they are."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width = console.width

    def text(self, content: object) -> Text:
        """Text without anything that would steer the terminal, in one line."""
        return verbatim(self._console, " ".join(str(content).split()))

    def lines(self, content: str, width: int, most: int | None = None) -> list[Text]:
        """Text in lines; what is left out at the end of so many shows as dots."""
        kept = content
        while len(lines := self.wrapped(self.text(kept), width)) > (most or len(lines)):
            sentences = re.split(r"(?<=\.) (?=[A-Z0-9])", kept)
            if len(sentences) == 1:
                lines = lines[:most]
                lines[-1].truncate(width - 4)
                lines[-1].append(" ...")
                return lines
            kept = " ".join(sentences[:-1])
        return lines

    def wrapped(self, content: Text, width: int) -> list[Text]:
        """All of a text in lines."""
        lines = list(content.wrap(self._console, width, overflow="fold"))
        for line in lines:
            line.rstrip()
        return lines

    def can(self, letters: str) -> bool:
        """Whether the output knows these letters."""
        try:
            letters.encode(self._console.encoding)
        except UnicodeEncodeError:
            return False
        return True

    @property
    def colours(self) -> bool:
        """Whether it has colours."""
        return self._console.color_system is not None and not self._console.no_color

    @property
    def tells_families_apart(self) -> bool:
        """Whether its colours do: of 16, they are those of a theme, and of 256, red is almost an orange."""
        return self.colours and self._console.color_system == "truecolor"

    def style_of(self, family: Family) -> str:
        """Colour of a family, if there are any."""
        if not self.colours:
            return ""
        few = self._console.color_system in {"standard", "windows"}
        return OF_SIXTEEN[family.name] if few else colour_of(family)

    def print(self, *lines: Text) -> None:
        """Print lines; one that is too long runs on, so that it can be copied."""
        for line in lines:
            self._console.print(line, soft_wrap=True)


def print_first_look(console: Console, digest: Digest, places: Places, names: Mapping[str, str]) -> None:
    """Print the first look at a run.

    Parameters
    ----------
    places
        Where the rest is.
    names
        Names of workers by address.
    """
    with console:  # a notebook shows what is printed at once as one text
        _print_blocks(Writer(console), digest, places, names)


def _print_blocks(out: Writer, digest: Digest, places: Places, names: Mapping[str, str]) -> None:
    if digest.state in {NOTHING, NO_RUNNER, NO_FILE}:
        out.print(*_without_runner(out, digest))
        return
    for room in ROOMS:
        lines = _screen(out, digest, places, names, room)
        if len(lines) <= MOST_ON_SCREEN:
            break
    out.print(*lines)


def _screen(out: Writer, digest: Digest, places: Places, names: Mapping[str, str], room: Room) -> list[Text]:
    """Lines of the first look."""
    lines = list(_heading(out, digest))
    for block in (
        _lacking(out, digest, places),
        [
            *_side_by_side(out, map(_number, [one for one in digest.tiles if one.label != ELAPSED]), GAP, INDENT),
            *(line for bar in (digest.time, digest.bytes) if bar is not None for line in _bar(out, bar)),
            *_hot(out, digest),
        ],
        list(_findings(out, digest, names, room)),
        list(_rest(out, digest, places)),
    ):
        lines += [Text(), *block] if block else []
    return lines


def _without_runner(out: Writer, digest: Digest) -> Iterator[Text]:
    """Three lines: that nothing ran, where and when or what could not be measured, and what to do."""
    second = _problems(digest.problems) if digest.problems else f"{'; '.join(digest.facts)}."
    yield from _first_line(out, replace(digest, state=NO_RUNNER))[:1]
    third = "Call the Runner inside the `with` block of the MetricsCollector."
    if digest.state == NO_RUNNER:
        third = "No Runner? Use MetricsCollector(client, everything=True) or measured(function)."
    elif digest.state == NO_FILE:
        third = NOTHING_READ
    for line in (second, third):
        yield from out.lines(line, out.width, 1)


# What ran


def _heading(out: Writer, digest: Digest) -> Iterator[Text]:
    yield from _first_line(out, digest)
    # where something is missing, the text about it has the error
    for line in out.lines(digest.error, out.width, MOST_LINES) if digest.error and digest.lacking is None else ():
        line.stylize(ALARM)
        yield line
    for line in _side_by_side(out, [out.text(fact) for fact in digest.facts], "; "):
        line.stylize(QUIET)
        yield line


def _first_line(out: Writer, digest: Digest) -> list[Text]:
    """Name, state and coverage, with the wall time at the right edge."""
    elapsed = next((tile.value for tile in digest.tiles if tile.label == ELAPSED), "")
    name = out.text(digest.name)
    line = Text.assemble((name.plain, "bold"), GAP, (digest.state, "bold green"))
    line.append(f": {digest.coverage}" if digest.coverage else "")
    if digest.state != COMPLETE:
        line.stylize(ALARM)
    return _at_the_edge(out, line, Text(elapsed, style="bold"))


def _at_the_edge(out: Writer, line: Text, end: Text) -> list[Text]:
    """Lines with something at the right edge of the first, if there is anything."""
    if not end:
        return out.wrapped(line, out.width)
    first, *others = out.wrapped(line, out.width - len(GAP) - end.cell_len)
    return [Text.assemble(first, " " * (out.width - first.cell_len - end.cell_len), end), *others]


def _lacking(out: Writer, digest: Digest, places: Places) -> list[Text]:
    """What is missing, and the line to copy."""
    if digest.lacking is None:
        return []
    what = with_short_paths(f"{digest.lacking.what} {digest.lacking.how_much}")
    lines = out.lines(what, out.width, MOST_OF_LACKING)
    if digest.lacking.to_fix is not None:
        lines += out.wrapped(Text(digest.lacking.to_fix, style="bold"), out.width)
    if digest.lacking.remedy is not None:
        lines.append(Text("To run the rest:"))
        statements = [line for line in (places.measurement, *digest.lacking.remedy.split("; ")) if line]
        lines += [Text(line, style="bold") for code in statements for line in _copied(out.text(code).plain, out.width)]
    return lines


def _copied(code: str, width: int) -> list[str]:
    """A statement in lines of a width that can be copied: they break between arguments."""
    lines, part, depth = [""], "", 0
    for token in re.findall(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^'\"(),]+|.", code):
        part += token
        depth += (token == "(") - (token == ")")
        if token in ",(" and depth:
            lines, part = _added(lines, part, width), ""
    return _added(lines, part, width)


def _added(lines: list[str], part: str, width: int) -> list[str]:
    """Lines with a further part of a statement, in a new line where it has no room."""
    if lines[-1].strip() and len(lines[-1] + part) > width:
        return [*lines, f"    {part.lstrip()}"]
    return [*lines[:-1], lines[-1] + part]


def _side_by_side(out: Writer, parts: Iterable[Text], between: str, indent: int = 0) -> list[Text]:
    """Short texts next to each other, as many in a line as there is room for."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(between) + part.cell_len <= out.width:
            lines[-1] = Text.assemble(lines[-1], between, part)
        else:
            lines += [Text.assemble(" " * indent, line) for line in out.wrapped(part, out.width - indent)]
    return lines


def _number(tile: Tile) -> Text:
    note = f" {tile.note}" if tile.note.startswith("of ") else f" ({tile.note})" if tile.note else ""
    label = "" if tile.label.endswith("rate") else f"{tile.label.removesuffix(' of a worker')} "
    return Text.assemble(label, (tile.value, "bold"), note)


# Where time and bytes went


@cache
def colour_of(family: Family) -> str:
    """Colour of a family that stands out from light and dark backgrounds: nobody knows that of a terminal."""
    light, dark = (Color.parse(colour).get_truecolor() for colour in (family.light, family.dark))
    middle = [round((one + other) / 2) for one, other in zip(light, dark, strict=True)]
    return max(("#{:02x}{:02x}{:02x}".format(*each) for each in (light, dark, middle)), key=_contrast)


def _contrast(colour: str) -> float:
    """The smaller of a colour's contrasts with black and with white (WCAG 2)."""
    values = (value / 255 for value in Color.parse(colour).get_truecolor())
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return min((luminance + 0.05) / 0.05, 1.05 / (luminance + 0.05))


def _bar(out: Writer, bar: Bar) -> Iterator[Text]:
    """A bar with its total, and below it what its parts are."""
    total = f"  {bar.total}"
    width = out.width - INDENT - LABEL - max(len(total), 10)
    parts = [(share, cells) for share, cells in zip(bar.shares, cells_of(bar.shares, width), strict=True) if cells]
    line = Text(f"{'':{INDENT}}{bar.title:{LABEL}}")
    for share, cells in parts:
        line.append_text(_filled(out, share.family, cells))
    yield line.append(total)
    named = sorted((share for share in bar.shares if share.fraction >= LEAST_NAMED), key=lambda one: -one.fraction)
    yield from _side_by_side(out, [_part(out, share) for share in named], "  ", INDENT + LABEL)


def _hot(out: Writer, digest: Digest) -> Iterator[Text]:
    """Lines of user code with the most CPU time."""
    width, label = out.width - INDENT - LABEL, "your code"
    for one in digest.hot:
        where, each = with_short_paths(one.where), f", {one.each}" if one.each else ""
        texts = [f"{one.share} of CPU{each}: {where}", f"{one.share}{each}: {where}"]
        texts[:0] = [f"{texts[0]} in {one.calls}"] if one.calls else []
        text = next((each for each in texts if len(each) <= width), texts[-1])
        for line in out.wrapped(out.text(text), width):
            yield Text.assemble(f"{'':{INDENT}}{label:{LABEL}}", line)
            label = ""


def _part(out: Writer, share: Share) -> Text:
    """What a part of a bar is, and its share."""
    label = share.label.replace(RESIDUAL, "unaccounted")
    return Text.assemble(_filled(out, share.family, 1), f" {label} {percent_of(share.fraction)}")


def _filled(out: Writer, family: Family, cells: int) -> Text:
    blocks = out.can("".join(BLOCKS.values()))
    like = FAMILIES[0] if blocks and out.tells_families_apart else family
    return Text((BLOCKS if blocks else LETTERS)[like.name] * cells, style=out.style_of(family))


def cells_of(shares: Sequence[Share], width: int) -> list[int]:
    """Cells of a bar for each share, which fill it: those with the largest rest get what is left."""
    whole = sum(share.fraction for share in shares) or 1.0
    exact = [share.fraction / whole * width for share in shares]
    cells = [floor(each) for each in exact]
    by_rest = sorted(range(len(shares)), key=lambda place: cells[place] - exact[place])
    for place in islice(by_rest, width - sum(cells)):
        cells[place] += 1
    return cells


# What to change


def _findings(out: Writer, digest: Digest, names: Mapping[str, str], room: Room) -> Iterator[Text]:
    """Findings with their saving and remedy; what the result lacks has a paragraph of its own."""
    told = digest.lacking
    found = [one for one in digest.findings if told is None or not one.incomplete or told.what not in one.what]
    if not found:
        yield from out.lines(digest.verdict, out.width) if digest.verdict else ()
        return
    yield Text("What to change", style="bold")
    for place, finding in enumerate(found[: room.findings], 1):
        yield from _finding(out, place, finding, names, room.what)
    also = f"Also: {'; '.join(one.headline for one in found[room.findings :])}. " if len(found) > room.findings else ""
    if also or (digest.verdict and len(found) > 1):
        yield from out.lines(f"{also}{digest.verdict}", out.width, room.others)


def _finding(out: Writer, place: int, finding: Finding, names: Mapping[str, str], lines_of_what: int) -> Iterator[Text]:
    title = Text.assemble(f"  {place}  ", (finding.headline, "bold"))
    yield from _at_the_edge(out, title, Text(finding.saves, style="bold"))
    width, edge = out.width - OF_FINDING, " " * OF_FINDING
    for line in out.lines(with_short_paths(with_names(finding.what, names)), width, lines_of_what):
        yield Text.assemble(edge, line)
    advice = with_names(finding.advice, names)
    # what is to be copied keeps its addresses
    remedy = finding.remedy
    advice = f"{with_short_paths(advice).removesuffix('.')}{f': {remedy}' if remedy else '.'}"
    lines = out.lines(advice, width - 3, MOST_LINES)
    if remedy and remedy not in " ".join(line.plain for line in lines):
        lines = out.lines(advice, width - 3)
    for number_of_line, line in enumerate(lines):
        if remedy:
            line.highlight_words([remedy], "bold")
        yield Text.assemble(edge, "   " if number_of_line else "-> ", line)


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Text in which workers and their hosts have names in place of addresses."""
    hosts = {}
    for address in sorted(names, key=len, reverse=True):
        found = ADDRESS.fullmatch(address)
        if found is not None and names[address] != address:
            hosts[found["host"]] = names[address].rpartition(":")[0]
            on_host = rf"( on {re.escape(found['host'])}(?![\w:-]|\.\w))?"
            text = re.sub(rf"{re.escape(address)}(?!\d){on_host}", names[address], text)
    for host, name in hosts.items():
        text = re.sub(rf"(?<![\w/.-]){re.escape(host)}(?![\w:-]|\.\w)", name, text)
    return text


def with_short_paths(text: str) -> str:
    """Text in which of long paths and URLs the last part is left."""
    return LONG_PATH.sub(lambda path: f".../{path[0].rpartition('/')[2]}", text)


# Where the rest is


def _rest(out: Writer, digest: Digest, places: Places) -> Iterator[Text]:
    if digest.problems:
        yield from out.lines(_problems(digest.problems), out.width, MOST_LINES)
    line = Text.assemble(("All tables: ", QUIET), out.text(places.tables))
    page = Text.assemble(("Page: ", QUIET), out.text(places.page))
    if line.cell_len + len(GAP) + page.cell_len <= out.width:
        yield Text.assemble(line, GAP, page)
    else:
        yield from (line, page)


def _problems(found: Sequence[str]) -> str:
    more = f" (and {number(len(found) - 1)} more)" if len(found) > 1 else ""
    return with_short_paths(f"{counted(len(found), 'measurement problem')}: {found[0]}{more}.")


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
    bars = [_html_bar(name, bar) for name, bar in (("time", digest.time), ("bytes", digest.bytes)) if bar]
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


def _html_bar(name: str, bar: Bar) -> Drawn:
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
