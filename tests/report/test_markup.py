"""Templates escape every text, and a notebook takes none for a formula."""

from __future__ import annotations

import pytest
from markupsafe import Markup
from pages import NAMES, Page

from roastcoffea.sheets.markup import prose, rendered, text


def test_nothing_is_taken_for_a_formula() -> None:
    assert "$$" not in text("$$x$$")
    assert "\\(" not in text(r"\(x\)")
    assert Page(f"<p>{text(NAMES[1])}</p>").text == NAMES[1]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_text_and_markup_stays(name: str) -> None:
    assert Page(f"<p>{text(name)}</p>").text == name
    assert text(Markup(name)) == name
    block = rendered("block.html", kind="text/plain", name=name, content=name)
    assert block.count("<script ") == block.count("</script>") == 1


def test_what_cannot_be_in_html_is_replaced() -> None:
    assert Page(f"<p>{text('a' + chr(0) + 'b' + chr(27))}</p>").text == "a\\x00b\\x1b"


@pytest.mark.parametrize("sign", ["\u202e", "\u202b", "\u2067"])
def test_no_text_turns_what_follows_it_around(sign: str) -> None:
    shown = Page(f"<p>{text(f'data{sign}set')}</p>").text
    assert shown == f"data\\u{ord(sign):04x}set"
    assert sign not in rendered("block.html", kind="text/plain", name="x", content=f"a{sign}b")


def test_what_stands_between_backticks_is_code() -> None:
    assert prose("Enter the `with` of `a<b>`.") == "Enter the <code>with</code> of <code>a&lt;b&gt;</code>."
    assert prose("one ` alone") == "one ` alone"
    assert prose(Markup("<b>`x`</b>")) == "<b>`x`</b>"
