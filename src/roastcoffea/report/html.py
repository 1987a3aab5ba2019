"""Pieces of HTML for notebooks: every text is escaped, nothing is a script, and colours follow those around.

`printable` does the same for terminals.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

STYLE: Final = """
.roastcoffea { --line: var(--jp-border-color2, rgba(128, 128, 128, .4)); --quiet: .7; color: inherit; max-width: 70rem }
.roastcoffea h3, .roastcoffea h4 { font-size: 1.05em; margin: .8em 0 .3em }
.roastcoffea h3 { font-size: 1.2em }
.roastcoffea p, .roastcoffea ul { margin: .2em 0 .5em; overflow-wrap: anywhere }
.roastcoffea .quiet { opacity: var(--quiet) }
.roastcoffea .columns { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: flex-start }
.roastcoffea .wide { overflow-x: auto }
.roastcoffea table { border-collapse: collapse; color: inherit; background: none; margin: .2em 0 .6em }
.roastcoffea th, .roastcoffea td { padding: .15em .7em; text-align: right; color: inherit; background: none;
  border: 0 solid var(--line); border-bottom-width: 1px; font-weight: normal; white-space: nowrap;
  font-variant-numeric: tabular-nums }
.roastcoffea th { opacity: var(--quiet) }
.roastcoffea td.long { text-align: left; white-space: normal }
.roastcoffea :is(th, td):first-child { white-space: normal; text-align: left; opacity: 1;
  overflow-wrap: anywhere; min-width: 8rem; max-width: 30rem }
.roastcoffea .bar { min-width: 7rem }
.roastcoffea .bar i { display: block; height: .7em; background: currentColor; opacity: .45 }
.roastcoffea summary { cursor: pointer; margin: .4em 0 }
"""

LONGEST_AMOUNT: Final = 16
"""Letters of a cell beyond which it is text that may go over several lines."""


def printable(content: str) -> str:
    """Text for a terminal: what would steer it, or cannot be seen, as escapes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in content)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: object) -> Html:
    """Content as text; what a notebook would take for a formula stays as it is written."""
    escaped = html.escape(str(content).replace("\0", "\N{REPLACEMENT CHARACTER}"))
    for sign in ("$", "\\"):
        escaped = escaped.replace(sign, f"<span>{sign}</span>")
    return Html(escaped)


def page(*parts: Html) -> Html:
    """Parts with the style that is theirs alone."""
    return Html(f'<div class="roastcoffea tex2jax_ignore mathjax_ignore"><style>{STYLE}</style>{"".join(parts)}</div>')


def heading(content: str, level: int = 4) -> Html:
    """Line above what follows."""
    return Html(f"<h{level}>{text(content)}</h{level}>")


def paragraph(content: str, *, quiet: bool = False) -> Html:
    """Text on its own."""
    kind = ' class="quiet"' if quiet else ""
    return Html(f"<p{kind}>{text(content)}</p>")


def listing(items: Iterable[str]) -> Html:
    """Texts below each other."""
    return Html(f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>")


def columns(*parts: str) -> Html:
    """Parts side by side, where there is room."""
    return Html(f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts)}</div>')


def folded(summary: str, *parts: str) -> Html:
    """Parts that are seen when the summary is clicked."""
    return Html(f"<details><summary>{text(summary)}</summary>{''.join(parts)}</details>")


def bar(share: float) -> Html:
    """Bar as long as a share of 1."""
    return Html(f'<i style="width: {100 * min(max(share, 0.0), 1.0):.1f}%"></i>')


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Table whose first column holds names; the others are flush right. A cell of `Html` is taken as it is."""
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Html(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _cell(content: str) -> str:
    if isinstance(content, Html):
        return f'<td class="bar">{content}</td>'
    kind = ' class="long"' if len(content) > LONGEST_AMOUNT else ""
    return f"<td{kind}>{text(content)}</td>"
