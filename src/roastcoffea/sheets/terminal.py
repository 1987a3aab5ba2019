"""Sheets in a terminal."""

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
"""Spaces between columns."""
NARROWEST_NAME: Final = 12
REASON: Final = "italic dim"


def print_sheets(sheets: Iterable[Sheet], file: IO[str] | None = None, width: int | None = None) -> None:
    """Print sheets below each other, to the terminal or into a file.

    Colours appear only where the output is a terminal and NO_COLOR is not set. Tables take this width; without one,
    the terminal's width up to 100 columns, and 80 where the output is no terminal.
    """
    console = console_for(file)
    console.width = width or console.width
    show(console, sheets)


def for_terminal(sheets: Iterable[Sheet]) -> str:
    """Sheets as the standard output shows them.

    Rich itself would end the process where nobody reads that any more.
    """
    console = console_for(sys.stdout)
    with console.capture() as captured:
        show(console, sheets)
    return captured.get()


def console_for(file: IO[str] | None, narrowest: int = 80) -> Console:
    """Console that takes no markup from what it prints.

    Parameters
    ----------
    narrowest
        Columns below which lines run on: a number of a table that is cut would be another number.
    """
    # in a notebook rich would show what is meant for a file
    in_notebook = None if file is None else False
    console = Console(file=file, highlight=False, markup=False, emoji=False, force_jupyter=in_notebook)
    console.width = min(max(console.width, narrowest), 100)
    return console


def printable(content: str) -> str:
    """Text for a terminal: what would steer it, or cannot be seen, as escapes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in content)


def verbatim(console: Console, text: object) -> Text:
    """Text as it is, line by line; control characters, and what the output cannot encode, as escapes."""
    lines = [printable(line) for line in str(text).splitlines()]
    return Text("\n".join(lines).encode(console.encoding, "backslashreplace").decode(console.encoding))


def show(console: Console, sheets: Iterable[Sheet]) -> None:
    """Print sheets on a console, all at once: a notebook shows what is printed at once as one text."""
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
    """Table without lines, as many of its columns as there is room for."""
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
    """Letters that a table takes at least: amounts whole, and names over several lines."""
    least = 0
    for column, cells in zip(sheet.columns, zip(*sheet.cells(), strict=True), strict=True):
        amounts = map(cell_len, (column.name, *(cell.text for cell in cells)))
        least += GAP + (max(amounts) if column.unit else column.width or NARROWEST_NAME)
    return least
