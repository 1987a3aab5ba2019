"""The frame of pages: head, style and policy, sections, and tables that sort and filter.

A page is one file that loads nothing. Scripts run by their hash alone; text from data is escaped, here for what
stands in the page, and in its scripts by never being anything but text. Without scripts tables show their first rows.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from roastcoffea.report.html import Html, heading, paragraph, text
from roastcoffea.units import (
    BYTE,
    FRACTION,
    GIGABIT_PER_SECOND,
    KILOHERTZ,
    MEBIBYTE,
    PERCENT,
    RATIO,
    SECOND,
    Unit,
    moment,
    number,
)

if TYPE_CHECKING:
    import pandas as pd

NOT_KNOWN: Final = "-"
FIRST_ROWS: Final = 30
"""Rows of a table that stand in the page itself; scripts show more."""

MOST_ROWS: Final = 2000
"""Rows of a table that are in the page at all."""

LONGEST_WORD: Final = 40
"""Letters of text beyond which a cell may go over several lines; tables.js has it as well."""

MOMENT: Final = "Unix time"
"""What the meaning of a column says where its seconds are a moment and no duration."""

UNITS: Final[Mapping[str, Unit]] = {
    unit.symbol: unit for unit in (SECOND, BYTE, MEBIBYTE, GIGABIT_PER_SECOND, KILOHERTZ, PERCENT, FRACTION, RATIO)
}
"""Units of columns whose amounts are written in another way than plain numbers."""

POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
    "style-src 'unsafe-inline'; script-src {scripts}"
)


class Section(NamedTuple):
    """A part of a page with a heading, to which the page's list of contents leads."""

    title: str
    body: Html


# Pages


def page(title: str, sections: Sequence[Section], *, lead: str = "", scripts: Sequence[str] = ()) -> str:
    """A whole page.

    Parameters
    ----------
    title
        Of the page, as text.
    lead
        What stands between title and contents.
    scripts
        Programs that run after those of the frame, one after the other.
    """
    programs = (asset("frame.js"), asset("tables.js"), *scripts)
    anchors = [_anchor(section.title, place) for place, section in enumerate(sections)]
    contents = [_link(section.title, anchor) for section, anchor in zip(sections, anchors, strict=True)]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head>{_head(title, programs)}</head><body>',
        f'<header><div class="bar-of-page"><h1>{text(title)}</h1>{_SWITCH}</div>{lead}</header>',
        f'<nav aria-label="Contents"><ul>{"".join(contents)}</ul></nav><main>',
        *(_section(section, anchor) for section, anchor in zip(sections, anchors, strict=True)),
        "</main>",
        *(f"<script>{program}</script>" for program in programs),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def section(title: str, *parts: str) -> Section:
    """Section of these parts, one below the other."""
    return Section(title, Html("".join(parts)))


def data_block(name: str, value: Any) -> Html:
    """JSON for scripts, which find it by the name."""
    encoded = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{html.escape(name)}">{encoded}</script>')


def packed_block(name: str, content: bytes) -> Html:
    """Bytes for scripts, compressed; there `unpacked(element)` gives them."""
    return Html(f'<script type="text/plain" id="{html.escape(name)}">{_packed(content)}</script>')


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


@cache
def asset(name: str) -> str:
    """Text of a file beside this one."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _head(title: str, programs: Sequence[str]) -> str:
    hashes = " ".join(map(_hash, programs))
    return (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(scripts=hashes)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)} - roastcoffea</title><style>{_style()}</style>"
    )


def _style() -> str:
    """Style in light, and in dark where the system or the reader prefers that; paper is light."""
    dark = asset("dark.css")
    preferred = f"@media (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{ {dark} }} }}"
    return f"{asset('frame.css')}@media screen {{ {preferred} :root[data-scheme=dark] {{ {dark} }} }}"


def _hash(program: str) -> str:
    """Source of a policy that lets a program run, and no other."""
    lowered = program.lower()
    if "\r" in program or "</script" in lowered or "<!--" in lowered:
        raise ValueError("a program in a page has no carriage return, no </script and no <!--: each would change it")
    return f"'sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}'"


_SWITCH: Final = (
    '<label class="scripted" hidden>Colours <select id="scheme"><option value="">as the system</option>'
    '<option value="light">light</option><option value="dark">dark</option></select></label>'
)


def _anchor(title: str, place: int) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or f"part-{place}"


def _link(title: str, anchor: str) -> str:
    return f'<li><a href="#{anchor}">{text(title)}</a></li>'


def _section(section: Section, anchor: str) -> str:
    return f'<section id="{anchor}">{heading(section.title, 2)}{section.body}</section>'


# Tables


class Head(NamedTuple):
    """Head of a column; numeric ones are flush right, and sort by value."""

    name: str
    meaning: str = ""
    numeric: bool = False


class Cell(NamedTuple):
    """What is shown, and what is sorted by: None for text, and for what is not known."""

    shown: str
    value: float | None = None


def table(frame: pd.DataFrame, name: str, *, units: Mapping[str, Unit] | None = None, most: int = MOST_ROWS) -> Html:
    """Table of a DataFrame, with the meaning of its columns; the reason where it is absent.

    Units and meanings are those of `frame.attrs`, as measurements have them.

    Parameters
    ----------
    name
        What its rows are, in the plural.
    units
        By column, for those whose unit the frame does not tell.
    most
        Rows that are taken, from the first on; it is told where there are more.
    """
    if "absent" in frame.attrs:
        return paragraph(f"Not measured: {frame.attrs['absent']}.", quiet=True)
    columns = [_column(frame, label, units or {}) for label in frame.columns]
    taken = frame.head(most)
    cells = [[_cell(column, value) for value in taken[label]] for column, label in zip(columns, taken, strict=True)]
    return table_of_cells([column.head for column in columns], list(zip(*cells, strict=True)), name, len(frame))


def table_of_cells(
    heads: Sequence[Head],
    rows: Sequence[Sequence[Cell]],
    name: str,
    total: int | None = None,
    *,
    first: int = FIRST_ROWS,
) -> Html:
    """Table of cells; `total` is how many rows there are in all, `first` how many are shown without scripts."""
    if not rows:
        return paragraph(f"There are no {name}.", quiet=True)
    parts = [
        f'<div class="table"><div class="wide" tabindex="0" role="region" aria-label="{html.escape(name)}">',
        f"<table><thead><tr>{''.join(map(_header, heads))}</tr></thead>",
        f"<tbody>{''.join(_row(heads, row) for row in rows[:first])}</tbody></table></div>",
        _more(rows[first:]),
        _told(name, len(rows), total or len(rows), first),
        _meanings(heads),
        "</div>",
    ]
    return Html("".join(parts))


IDENTITIES: Final = frozenset({"id", "run_id", "thread"})
"""Columns of numbers that nobody adds: they are shown with all of their digits."""


class _Column(NamedTuple):
    head: Head
    write: Callable[[Any], str]


def _column(frame: pd.DataFrame, label: Any, units: Mapping[str, Unit]) -> _Column:
    meaning = str(frame.attrs.get("columns", {}).get(label, ""))
    symbol = str(frame.attrs.get("units", {}).get(label))
    known = frame[label].dropna().iloc[:100]
    numeric = bool(len(known)) and all(map(_is_number, known))
    head = Head(str(label).replace("_", " "), meaning, numeric)
    if label in IDENTITIES:
        head = head._replace(numeric=False)
    if not head.numeric:
        return _Column(head, _words)
    if symbol == SECOND.symbol and MOMENT in meaning:
        return _Column(head, partial(moment, milliseconds=True))
    unit = units.get(label) or UNITS.get(symbol)
    return _Column(head, number if unit is None else unit.text)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cell(column: _Column, value: Any) -> Cell:
    if not isinstance(value, list | tuple) and _is_missing(value):
        return Cell(NOT_KNOWN)
    return Cell(column.write(value), float(value) if column.head.numeric and math.isfinite(value) else None)


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def _header(head: Head) -> str:
    kind = ' class="number"' if head.numeric else ""
    return f'<th scope="col"{kind} title="{html.escape(head.meaning)}">{text(head.name)}</th>'


def _row(heads: Sequence[Head], cells: Sequence[Cell]) -> str:
    return f"<tr>{''.join(map(_data, heads, cells))}</tr>"


def _data(head: Head, cell: Cell) -> str:
    if cell.value is not None:
        return f'<td data-v="{cell.value!r}">{text(cell.shown)}</td>'
    kind = "unknown" if head.numeric else "long" if len(cell.shown) > LONGEST_WORD else ""
    return f'<td class="{kind}">{text(cell.shown)}</td>' if kind else f"<td>{text(cell.shown)}</td>"


def _more(rows: Sequence[Sequence[Cell]]) -> str:
    """Rows that only scripts show, compressed."""
    if not rows:
        return ""
    return f'<script type="text/plain" class="more">{_packed(json.dumps(rows).encode())}</script>'


def _told(name: str, taken: int, total: int, first: int) -> str:
    """How many rows there are, and which of them can be seen."""
    notes = ""
    if taken < total:
        notes += paragraph(f"The first {number(taken)} of {number(total)} {name} are in this page.", quiet=True)
    if taken > first:
        off = paragraph(f"Scripts are off: the first {number(first)} of {number(taken)} {name} are shown.", quiet=True)
        notes += f"<noscript>{off}</noscript>"
    return notes


def _meanings(heads: Sequence[Head]) -> str:
    told = [f"<dt>{text(head.name)}</dt><dd>{text(head.meaning)}</dd>" for head in heads if _says_more(head)]
    return f"<details><summary>What the columns mean</summary><dl>{''.join(told)}</dl></details>" if told else ""


def _says_more(head: Head) -> bool:
    return head.meaning not in {"", head.name}
