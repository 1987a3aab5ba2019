"""What the terminal tables of studies share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from roastcoffea.report.terminal import INDENT, QUIET, verbatim

NARROWEST_NAME: Final = 8


def title(console: Console, text: str) -> None:
    """Print a title."""
    console.print(Text(f"\n{text}", style="bold"))


def line(console: Console, text: str) -> None:
    """Print a line of text as it is."""
    console.print(Padding(verbatim(console, text), INDENT), overflow="fold")


def named_table(first: str, headers: Sequence[str]) -> Table:
    """Table whose first column holds names, and the others amounts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column(first, min_width=max(len(first), NARROWEST_NAME), overflow="fold")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table
