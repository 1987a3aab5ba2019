"""Results that display themselves: each provides sheets, and renderers do the rest."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO

from roastcoffea.sheets.sheet import Sheet


class Presented:
    """A result that prints, displays in a notebook and writes Markdown from its sheets."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """Contents, in order."""
        raise NotImplementedError

    def print(self, file: IO[str] | None = None) -> None:
        """Print it to the terminal or into a file."""
        from roastcoffea.sheets.terminal import print_sheets

        print_sheets(self.sheets(), file)

    def to_markdown(self) -> str:
        """Markdown with tables, for GitHub and notebooks."""
        from roastcoffea.sheets.markup import markdown

        return markdown(self.sheets())

    def _repr_html_(self) -> str:
        from roastcoffea.sheets.markup import html

        return html(self.sheets())

    def __str__(self) -> str:
        file = io.StringIO()
        self.print(file)
        return file.getvalue()
