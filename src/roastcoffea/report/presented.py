"""Results that show themselves: each gives its sheets, and the renderers do the rest."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO

from roastcoffea.report.sheets import Sheet


class Presented:
    """A result that is printed, shown in a notebook and written as Markdown from its sheets."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """What there is to show, in order."""
        raise NotImplementedError

    def print(self, file: IO[str] | None = None) -> None:
        """Print it to the terminal, or into a file."""
        from roastcoffea.report.terminal import print_sheets

        print_sheets(self.sheets(), file)

    def to_markdown(self) -> str:
        """Text that GitHub and notebooks show as tables."""
        from roastcoffea.report.markdown import markdown

        return markdown(self.sheets())

    def _repr_html_(self) -> str:
        from roastcoffea.report.notebook import html

        return html(self.sheets())

    def __str__(self) -> str:
        file = io.StringIO()
        self.print(file)
        return file.getvalue()
