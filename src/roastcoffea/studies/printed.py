"""What studies find, as text where it is printed."""

from __future__ import annotations

import io
from typing import IO


class Printed:
    """What is printed as text by its `print`."""

    __slots__ = ()

    def print(self, file: IO[str] | None = None) -> None:
        """Print it to the terminal, or into a file."""
        raise NotImplementedError

    def __str__(self) -> str:
        file = io.StringIO()
        self.print(file)
        return file.getvalue()
