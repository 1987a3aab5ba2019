"""Writes the pages of `limited`: the docstring of each cause, and what is printed for its run in `limited_runs.py`.

`python docs/write_limited.py` writes them all, and the index of them.
"""

from __future__ import annotations

import inspect
import sys
from itertools import groupby
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from limited_runs import printed

import roastcoffea.diagnosis  # noqa: F401  (it finds the causes)
from roastcoffea.diagnosis.finding import CAUSES, Cause, page_of

DOCS: Final = Path(__file__).parent
PARTS: Final = ("in the result", "in chunks", "around chunks", "who is slow")
"""Parts of the index, in order; others follow."""

INDEX: Final = """# Limited by X: what now

```python
measurement = collector.measurement

print(measurement.verdict)
for finding in measurement.verdict:
    print(finding.page, finding.severity, finding.seconds, finding.remedy)
```

Each finding has a page here, which `finding.page` names: what it looks like, how to make sure, what to do, and when
it is not a problem. The text in the boxes is what is printed for a made-up run with that cause; yours has other names.
[How the verdict is made](../explanation/verdict.md) has the method. On these pages `measurement` is
`collector.measurement`, or what `roastcoffea.load` gives.

| bottleneck | how it shows in the time ledger | try first |
|---|---|---|
"""


def page(cause: Cause) -> str:
    """Page of a cause."""
    title, intro, *rest = inspect.cleandoc(cause.rule.__doc__ or "").split("\n\n")
    box = f"<!-- tests/test_limited.py prints this -->\n```text\n{printed(cause.name)}\n```"
    return "\n\n".join([f"# {title.removesuffix('.')}", intro, box, *rest]) + "\n"


def index() -> str:
    """Index of the pages."""
    parts = [*dict.fromkeys((*PARTS, *(cause.part for cause in CAUSES.values())))]
    ordered = sorted(CAUSES.values(), key=lambda cause: parts.index(cause.part))
    lines, names = [], [page_of(cause.name).removeprefix("limited/") for cause in ordered]
    for part, causes in groupby(ordered, key=lambda cause: cause.part):
        lines.append(f"| **{part}** | | |")
        lines += [
            f"| [{cause.name}]({page_of(cause.name).removeprefix('limited/')}.md) | {cause.shows} | {cause.first} |"
            for cause in causes
        ]
    return "\n".join([INDEX + "\n".join(lines), "", "```{toctree}", ":hidden:", "", *names, "```", ""])


def pages() -> dict[str, str]:
    """All pages by their path in the documentation."""
    return {f"{page_of(name)}.md": page(cause) for name, cause in CAUSES.items()} | {"limited/index.md": index()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
