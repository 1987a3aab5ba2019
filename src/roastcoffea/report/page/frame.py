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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from roastcoffea.metrics.phases import FAMILIES
from roastcoffea.report.first_look import Digest, cards_of
from roastcoffea.report.glossary import linked
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Heading, Sheet, Shown, palette


def page(
    heading: str | Heading,
    sections: Sequence[Sheet],
    *,
    look: Digest | None = None,
    anchors: Collection[str] = (),
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
    anchors
        Parts of the page that it may lead to.
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
    joined: list[Sheet] = []
    for sheet in sections:
        if joined and not sheet.title:
            joined[-1] = replace(joined[-1], parts=[*joined[-1].parts, sheet])
        else:
            joined.append(sheet)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_hash, programs))}"
    )
    return rendered(
        "page.html",
        heading=heading,
        look=look,
        cards=[] if look is None else cards_of(look, anchors),
        tab=tab,
        sections=[(anchor(sheet.title, place), sheet) for place, sheet in enumerate(joined)],
        details=[(fold_anchor(sheet.title), sheet) for sheet in details],
        drawn=drawn or {},
        blocks=blocks,
        programs=list(map(Markup, programs)),
        policy=policy,
        style=_style(tab) + Markup(style),
        packed=_packed_rows,
        linked=linked,
        longest_word=40,  # beyond it a cell may go over several lines; tables.js has it as well
    )


def packed_block(name: str, content: bytes) -> Markup:
    """Bytes for scripts, compressed; there `unpacked(element)` gives them."""
    return rendered("block.html", name=name, content=_packed(content))


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
    dark = f"{asset('dark.css')} {palette(FAMILIES, 'dark')}"
    preferred = f"@media (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{ {dark} }} }}"
    screen = f"@media screen {{ {preferred} :root[data-scheme=dark] {{ {dark} }} }}"
    # letters and digits as they are, all else by number
    text = "".join(sign if sign.isascii() and sign.isalnum() else f"\\{ord(sign):x} " for sign in name)
    paper = f'@page {{ margin: 14mm 12mm; @bottom-left {{ content: "{text}"; font: 8pt sans-serif }} }}'
    light = f":root {{ {palette(FAMILIES, 'light')} }}"
    return Markup(f"{light} {asset('frame.css')}{rendered('first_look.css')}\n{screen}{paper}")


def _hash(program: str) -> str:
    """Source of a policy that lets a program run, and no other."""
    if re.search(r"\r|</script|<!--", program, re.IGNORECASE):
        raise ValueError("a program in a page has no carriage return, no </script and no <!--: each would change it")
    return f"'sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}'"


def fold_anchor(title: str) -> str:
    """Anchor of a folded part of the page."""
    return f"tables-{anchor(title)}"


def anchor(title: str, place: int = 0) -> str:
    """Anchor of a part of the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or f"part-{place}"
