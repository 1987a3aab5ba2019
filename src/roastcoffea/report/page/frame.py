"""Page template: head, style, content security policy, sections and sortable tables.

A page is a single file that loads no other resources. The policy allows scripts only by hash. Text from the data is
escaped in the page, and scripts insert it only as text. If scripts are disabled, tables show only their first rows.
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

from roastcoffea.metrics.phases import FAMILIES, SERIES
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
    """Render a whole page.

    Parameters
    ----------
    heading
        Page title, optionally with details below it.
    sections
        Sections listed in the contents. A section without a title belongs to the previous one.
    look
        First look, which replaces the heading's details.
    anchors
        Anchors that the first look may link to.
    details
        Sheets at the end of the page, initially collapsed.
    drawn
        Pictures in the sheets, by name.
    blocks
        Data blocks that scripts read.
    scripts
        Scripts to run, in order, after the template's own scripts.
    style
        Additional CSS rules.
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
        longest_word=40,  # longer cells may wrap; tables.js uses the same value
    )


def packed_block(name: str, content: bytes) -> Markup:
    """Compressed data that scripts read with `unpacked(element)`."""
    return rendered("block.html", name=name, content=_packed(content))


def _packed_rows(rows: Iterable[Iterable[Shown]]) -> str:
    """Compressed table rows, shown only by scripts. Each cell is a string and a sort key."""
    return _packed(json.dumps([[(cell.text, cell.value) for cell in row] for row in rows]).encode())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


@cache
def asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _style(name: str) -> Markup:
    """Page style. It is dark if the system or the user prefers dark, and light otherwise and in print."""
    paints = (*FAMILIES, *SERIES)
    dark = f"{asset('dark.css')} {palette(paints, 'dark')}"
    preferred = f"@media (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{ {dark} }} }}"
    screen = f"@media screen {{ {preferred} :root[data-scheme=dark] {{ {dark} }} }}"
    # escape everything but letters and digits
    text = "".join(sign if sign.isascii() and sign.isalnum() else f"\\{ord(sign):x} " for sign in name)
    paper = f'@page {{ margin: 14mm 12mm; @bottom-left {{ content: "{text}"; font: 8pt sans-serif }} }}'
    light = f":root {{ {palette(paints, 'light')} }}"
    return Markup(f"{light} {asset('frame.css')}{rendered('first_look.css')}\n{screen}{paper}")


def _hash(program: str) -> str:
    """Policy source expression that allows only this script."""
    if re.search(r"\r|</script|<!--", program, re.IGNORECASE):
        raise ValueError("a script in a page cannot contain a carriage return, </script or <!--: each would change it")
    return f"'sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}'"


def fold_anchor(title: str) -> str:
    return f"tables-{anchor(title)}"


def anchor(title: str, place: int = 0) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or f"part-{place}"
