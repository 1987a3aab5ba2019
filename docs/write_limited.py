"""Write the `limited` pages: each cause's docstring, with the output for its run in `limited_runs.py`.

`python docs/write_limited.py` writes all of them, and their index.
"""

from __future__ import annotations

import inspect
import sys
from itertools import groupby
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from limited_runs import printed

import roastcoffea.diagnosis  # noqa: F401  (it registers the causes)
from roastcoffea.diagnosis.finding import CAUSES, Cause, page_of

DOCS: Final = Path(__file__).parent
PARTS: Final = ("in the result", "in chunks", "around chunks", "who is slow")
"""Parts of the index, in order; others follow."""

INDEX: Final = """# Limited by X: what now

A finding's `page` names the section on its cause. Sections show the output for a simulated run (without the saving),
how to check for and fix the cause, and when no fix is needed. [How the verdict is made](../explanation/verdict.md)
explains the method. `measurement` is `collector.measurement`, or the result of `roastcoffea.load`.

bottleneck | in the time ledger
---|---
"""


def section(cause: Cause, heading: str) -> str:
    """Section on a cause, with the output for its run."""
    _, intro, *rest = inspect.cleandoc(cause.rule.__doc__ or "").split("\n\n")
    return "\n\n".join([heading, intro, f"```text\n{printed(cause.name)}\n```", *rest])


def page(path: str) -> str:
    """Page on one cause, or on several with a section for each."""
    first, *_ = causes = [cause for cause in CAUSES.values() if page_of(cause.name).partition("#")[0] == path]
    if first.page is None:
        title, *_ = str(first.rule.__doc__).split(".\n")
        return section(first, f"# {title}") + "\n"
    sections = (section(cause, f"## {cause.name.capitalize()}") for cause in causes)
    return "\n\n".join(filter(None, [f"# {first.page.title}", first.page.text, *sections])) + "\n"


def index() -> str:
    """Index of all pages."""
    parts = [*dict.fromkeys((*PARTS, *(cause.part for cause in CAUSES.values())))]
    ordered = sorted(CAUSES.values(), key=lambda cause: parts.index(cause.part))
    lines = []
    for part, causes in groupby(ordered, key=lambda cause: cause.part):
        lines.append(f"**{part}** |")
        for cause in causes:
            name, sign, section_ = page_of(cause.name).removeprefix("limited/").partition("#")
            lines.append(f"[{cause.name}]({name}.md{sign}{section_}) | {cause.shows}")
    names = dict.fromkeys(page_of(cause.name).removeprefix("limited/").partition("#")[0] for cause in ordered)
    return "\n".join([INDEX + "\n".join(lines), "", "```{toctree}", ":hidden:", "", *names, "```", ""])


def pages() -> dict[str, str]:
    """All pages, by path in the documentation."""
    paths = dict.fromkeys(page_of(name).partition("#")[0] for name in CAUSES)
    return {f"{path}.md": page(path) for path in paths} | {"limited/index.md": index()}


if __name__ == "__main__":
    for old in (DOCS / "limited").glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
