"""Messages that docs/troubleshooting.md explains are those of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from releases import tree_of

import roastcoffea

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
PACKAGE = Path(roastcoffea.__file__).parent
MESSAGES = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
INSERTED, NEXT = "\0", "\1"


@cache
def texts() -> str:
    """All texts in the package, with a mark between them, and one where a value is inserted."""
    return NEXT.join({text for path in PACKAGE.rglob("*.py") for text in texts_of(path)})


def texts_of(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{[^{}]*\}", INSERTED, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else INSERTED for part in node.values)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_package(message: str) -> None:
    assert len(message.replace("...", "").strip()) > 10
    parts = [re.escape(part) for part in re.split(r" ?\.\.\. ?", message)]
    assert re.search(f"[^{NEXT}]*".join(parts), texts()), f"no text of the package reads {message!r}"


def test_many_messages_are_explained() -> None:
    assert len(MESSAGES) > 30
    assert len(set(MESSAGES)) == len(MESSAGES)
