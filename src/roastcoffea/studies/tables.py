"""What the terminal tables of studies share."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from roastcoffea.report.terminal import INDENT, verbatim


def title(console: Console, text: str) -> None:
    """Print a title."""
    console.print(Text(f"\n{text}", style="bold"))


def line(console: Console, text: str) -> None:
    """Print a line of text as it is."""
    console.print(Padding(verbatim(console, text), INDENT), overflow="fold")
