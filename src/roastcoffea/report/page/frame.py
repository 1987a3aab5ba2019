"""The frame of pages: head, style and policy, sections, and tables that sort and filter.

A page is one file that loads nothing. Scripts run by their hash alone; text from data is escaped, here for what
stands in the page, and in its scripts by never being anything but text. Without scripts tables show their first rows.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup

from roastcoffea.report.glossary import linked
from roastcoffea.report.screen import Look, palette, share_image
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Heading, Sheet, Shown

LONGEST_WORD: Final = 40
"""Letters of text beyond which a cell may go over several lines; tables.js has it as well."""

POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
    "style-src 'unsafe-inline'; script-src {scripts}"
)


def page(
    heading: str | Heading,
    sections: Sequence[Sheet],
    *,
    look: Look | None = None,
    details: Sequence[Sheet] = (),
    drawn: Mapping[str, Markup] | None = None,
    blocks: Sequence[Markup] = (),
    scripts: Sequence[str] = (),
    style: str = "",
) -> str:
    """A whole page.

    Parameters
    ----------
    heading
        Title of the page, or that with facts below it.
    sections
        What the page's list of contents leads to; one without a title belongs to the one before.
    look
        The first screen, in place of the heading's facts.
    details
        Sheets that are folded until somebody wants to see them, below all others.
    drawn
        Pictures of the sheets by name.
    blocks
        Data for scripts.
    scripts
        Programs that run after those of the frame, one after the other.
    style
        Rules of CSS beside those of the frame.
    """
    programs = (asset("frame.js"), asset("tables.js"), *scripts)
    heading = heading if isinstance(heading, Heading) else Heading(title=heading)
    tab = f"{heading.title} - roastcoffea" if look is None else look.tab
    return rendered(
        "page.html",
        heading=heading,
        look=look,
        tab=tab,
        image=None if look is None else _as_url(share_image(look)),
        description="" if look is None else look.description,
        sections=[(anchor(sheet.title, place), sheet) for place, sheet in enumerate(_joined(sections))],
        details=[(fold_anchor(sheet.title), sheet) for sheet in details],
        drawn=drawn or {},
        blocks=blocks,
        programs=list(map(Markup, programs)),
        policy=POLICY.format(scripts=" ".join(map(_hash, programs))),
        style=_style(tab) + Markup(style),
        packed=_packed_rows,
        linked=linked,
        longest_word=LONGEST_WORD,
    )


def _joined(sheets: Iterable[Sheet]) -> list[Sheet]:
    """Sheets with those that continue them as parts."""
    joined: list[Sheet] = []
    for sheet in sheets:
        if joined and not sheet.title:
            joined[-1] = replace(joined[-1], parts=[*joined[-1].parts, sheet])
        else:
            joined.append(sheet)
    return joined


def data_block(name: str, value: Any) -> Markup:
    """JSON for scripts, which find it by the name."""
    encoded = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return rendered("block.html", kind="application/json", name=name, content=Markup(encoded))


def packed_block(name: str, content: bytes) -> Markup:
    """Bytes for scripts, compressed; there `unpacked(element)` gives them."""
    return rendered("block.html", kind="text/plain", name=name, content=_packed(content))


def _packed_rows(rows: Iterable[Iterable[Shown]]) -> str:
    """Rows that only scripts show: lists of texts, and of what they are sorted by."""
    return _packed(json.dumps([[(cell.text, cell.value) for cell in row] for row in rows]).encode())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


@cache
def asset(name: str) -> str:
    """Text of a file beside this one."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _style(name: str) -> Markup:
    """Style in light, and in dark where the system or the reader prefers that; paper is light, and has a name."""
    dark = f"{asset('dark.css')} {palette('dark')}"
    preferred = f"@media (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{ {dark} }} }}"
    screen = f"@media screen {{ {preferred} :root[data-scheme=dark] {{ {dark} }} }}"
    paper = f'@page {{ margin: 14mm 12mm; @bottom-left {{ content: "{_css_text(name)}"; font: 8pt sans-serif }} }}'
    return Markup(f":root {{ {palette('light')} }} {asset('frame.css')}{_first_look_style()}{screen}{paper}")


def _css_text(text: str) -> str:
    """Text between quotes in CSS: letters and digits as they are, all else by number."""
    return "".join(sign if sign.isascii() and sign.isalnum() else f"\\{ord(sign):x} " for sign in text)


def _first_look_style() -> str:
    return files("roastcoffea.sheets").joinpath("templates", "first_look.css").read_text(encoding="utf-8")


def _as_url(picture: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode('utf-8', 'replace')).decode()}"


def _hash(program: str) -> str:
    """Source of a policy that lets a program run, and no other."""
    lowered = program.lower()
    if "\r" in program or "</script" in lowered or "<!--" in lowered:
        raise ValueError("a program in a page has no carriage return, no </script and no <!--: each would change it")
    return f"'sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}'"


def fold_anchor(title: str) -> str:
    """Anchor of a folded part of the page."""
    return f"tables-{anchor(title)}"


def anchor(title: str, place: int = 0) -> str:
    """Anchor of a part of the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or f"part-{place}"
