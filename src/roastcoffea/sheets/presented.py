"""Results that display themselves by providing sheets to renderers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO

from roastcoffea.sheets.sheet import Sheet


class Presented:
    """A result that is printed, shown in notebooks and converted to Markdown through its sheets."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        raise NotImplementedError

    def print(self, file: IO[str] | None = None) -> None:
        """Print the result to the terminal or to a file."""
        from roastcoffea.sheets.terminal import print_sheets

        print_sheets(self.sheets(), file)

    def to_markdown(self) -> str:
        """Return Markdown with tables for GitHub and notebooks."""
        from roastcoffea.sheets.markup import markdown

        return markdown(self.sheets())

    def _repr_html_(self) -> str:
        from roastcoffea.sheets.markup import html

        return html(self.sheets())

    def __str__(self) -> str:
        file = io.StringIO()
        self.print(file)
        return file.getvalue()
