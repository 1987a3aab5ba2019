"""HTML from templates, in which every text is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from roastcoffea.report.links import address_of
from roastcoffea.units import number

OF_FORMULAS: Final = str.maketrans({sign: f"<span>{sign}</span>" for sign in "$\\"})


def text(content: object) -> Markup:
    """Content as text; what a notebook would take for a formula stays as it is written.

    In templates every expression is such a text, but for attributes: these have the filter `e`.
    """
    if isinstance(content, Markup):
        return content
    escaped = str(escape(str(content).replace("\0", "\N{REPLACEMENT CHARACTER}")))
    return Markup(escaped.translate(OF_FORMULAS))


def rendered(template: str, /, **values: Any) -> Markup:
    """Template of `report/templates` with these values."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    """Templates of this process: each is read and compiled once."""
    blocks: dict[str, Any] = {"auto_reload": False, "trim_blocks": True, "lstrip_blocks": True}
    templates = PackageLoader(__package__)
    environment = Environment(loader=templates, autoescape=True, finalize=text, undefined=StrictUndefined, **blocks)
    environment.filters["number"] = number
    environment.filters["address"] = address_of
    return environment
