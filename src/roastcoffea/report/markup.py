"""HTML from templates, with all text escaped."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from roastcoffea.redaction import neutral
from roastcoffea.units import number

OF_FORMULAS: Final = str.maketrans({sign: f"<span>{sign}</span>" for sign in "$\\"})


def text(content: object) -> Markup:
    """Content as text; notebooks do not render formulas in it.

    Every expression in a template is such a text, except in attributes, which use the filter `e`.
    """
    if isinstance(content, Markup):
        return content
    return Markup(str(attribute(content)).translate(OF_FORMULAS))


def attribute(content: object) -> Markup:
    """Content in an attribute or a title."""
    return content if isinstance(content, Markup) else escape(neutral(str(content)))


def prose(content: object) -> Markup:
    """A sentence in which what stands between backticks is code; without a pair of them it is a text like any other."""
    parts = str(content).split("`")
    if isinstance(content, Markup) or len(parts) % 2 == 0:
        return text(content)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(text(part)) if place % 2 else text(part) for place, part in enumerate(parts))


def rendered(template: str, /, **values: Any) -> Markup:
    """A template of `report/templates` filled with these values."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    """Templates of this process, each read and compiled once."""
    blocks: dict[str, Any] = {"auto_reload": False, "trim_blocks": True, "lstrip_blocks": True}
    templates = PackageLoader(__package__)
    environment = Environment(loader=templates, autoescape=True, finalize=text, undefined=StrictUndefined, **blocks)
    environment.filters |= {"e": attribute, "number": number, "prose": prose}
    return environment
