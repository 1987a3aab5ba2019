"""Print sheets in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Final

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from roastcoffea.sheets.sheet import Heading, Sheet, flat
from roastcoffea.units import number

INDENT: Final = (0, 0, 0, 2)
GAP: Final = 2
NARROWEST_NAME: Final = 12
REASON: Final = "italic dim"


def print_sheets(sheets: Iterable[Sheet], file: IO[str] | None = None, width: int | None = None) -> None:
    """Print sheets to the terminal or to a file.

    Colours are used only if the output is a terminal and NO_COLOR is not set. By default, lines are as wide as the
    terminal (at most 100 columns), or 80 columns if the output is not a terminal.
    """
    console = console_for(file)
    console.width = width or console.width
    show(console, sheets)


def for_terminal(sheets: Iterable[Sheet]) -> str:
    """Format sheets as text for standard output.

    If Rich printed the text itself, a closed pipe would terminate the process.
    """
    console = console_for(sys.stdout)
    with console.capture() as captured:
        show(console, sheets)
    return captured.get()


def console_for(file: IO[str] | None, narrowest: int = 80) -> Console:
    """Create a console that does not interpret markup in its output.

    Parameters
    ----------
    narrowest
        Minimum line width. In narrower lines, a truncated number would look like a different number.
    """
    # in a notebook, Rich would display output meant for a file
    in_notebook = None if file is None else False
    console = Console(file=file, highlight=False, markup=False, emoji=False, force_jupyter=in_notebook)
    console.width = min(max(console.width, narrowest), 100)
    return console


def printable(content: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in content)


def verbatim(console: Console, text: object) -> Text:
    lines = [printable(line) for line in str(text).splitlines()]
    return Text("\n".join(lines).encode(console.encoding, "backslashreplace").decode(console.encoding))


def show(console: Console, sheets: Iterable[Sheet]) -> None:
    """Print all sheets on a console at once, so that a notebook displays them as a single output."""
    after_notes = False
    with console:
        for sheet in flat(sheets):
            if sheet.title or after_notes:
                console.print()
            _print_sheet(console, sheet)
            after_notes = bool(sheet.notes)


def _print_sheet(console: Console, sheet: Sheet) -> None:
    if sheet.title:
        label = f"{sheet.label}  " if isinstance(sheet, Heading) and sheet.label else ""
        _print_line(console, f"{label}{sheet.title if label else sheet.heading}", "bold")
    for line in sheet.lead:
        _print_line(console, line, "dim")
    if isinstance(sheet, Heading):
        for lines, style in (([sheet.alarm] if sheet.alarm else [], "bold red"), (sheet.notes, REASON)):
            if lines:
                console.print()
            for line in lines:
                _print_line(console, line, style)
        return
    if sheet.items:
        items = Table.grid("", TableColumn(overflow="fold"), padding=(0, 1))
        for item in sheet.items:
            items.add_row("-", verbatim(console, item))
        console.print(Padding(items, INDENT, expand=False))
    if sheet.rows:
        console.print(Padding(table_of(console, sheet), INDENT, expand=False))
    if sheet.left_out:
        console.print(Padding(Text(f"and {number(sheet.left_out)} more", style="dim"), INDENT, expand=False))
    for note in sheet.notes:
        console.print(Padding(verbatim(console, note), INDENT, expand=False), overflow="fold")


def _print_line(console: Console, text: str, style: str) -> None:
    console.print(verbatim(console, text), style=style, overflow="fold")


def table_of(console: Console, sheet: Sheet) -> Table:
    """Build a table without rules, and remove dispensable columns if the table is too wide."""
    room = console.width - INDENT[3]
    while _least_width(sheet) > room and any(column.dispensable for column in sheet.columns):
        ranked = [(column.dispensable, -place) for place, column in enumerate(sheet.columns) if column.dispensable]
        sheet = sheet.without(-min(ranked)[1])
    table = Table(box=None, show_header=sheet.headed, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    whole = _least_width(sheet) <= room
    for column in sheet.columns:
        head = verbatim(console, column.name)
        if column.unit is None:
            least = NARROWEST_NAME if sheet.headed and not column.width else None
            table.add_column(head, overflow="fold", min_width=least, width=column.width)
        else:
            table.add_column(head, justify="right", overflow="fold", no_wrap=whole)
    for row in sheet.cells():
        texts = [verbatim(console, cell.text) for cell in row]
        for text, cell in zip(texts, row, strict=True):
            text.stylize(REASON if cell.missing else "")
        table.add_row(*texts)
    return table


def _least_width(sheet: Sheet) -> int:
    """Return the minimum table width at which all numbers are shown in full. Names may wrap."""
    least = 0
    for column, cells in zip(sheet.columns, zip(*sheet.cells(), strict=True), strict=True):
        amounts = map(cell_len, (column.name, *(cell.text for cell in cells)))
        least += GAP + (max(amounts) if column.unit else column.width or NARROWEST_NAME)
    return least
