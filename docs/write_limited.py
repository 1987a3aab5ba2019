"""Writes into the pages of `limited` what is printed for the made-up run of each cause (`tests/limited_runs.py`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from limited_runs import LIMITED, printed

PAGES = Path(__file__).parent / "limited"
BLOCK = re.compile(r"(?<=<!-- tests/test_limited\.py prints this -->\n```text\n).*?(?=```$)", re.DOTALL | re.MULTILINE)


def page_of(cause: str) -> Path:
    """Page of a cause."""
    return PAGES / f"{cause.replace(' ', '-')}.md"


def with_printed(text: str, cause: str) -> str:
    """Text of a page with what is printed now."""
    return BLOCK.sub(lambda _: f"{printed(cause)}\n", text, count=1)


if __name__ == "__main__":
    for name in LIMITED:
        page = page_of(name)
        page.write_text(with_printed(page.read_text(encoding="utf-8"), name), encoding="utf-8")
