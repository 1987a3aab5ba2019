"""The reference of metrics, generated from the catalogue."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import IO

import roastcoffea.diagnosis  # noqa: F401  (it adds to the catalogue)
from roastcoffea.metrics import CATALOGUE, Metric

HEADING = """\
# Metrics

This page is written by `roastcoffea metrics --markdown`; the catalogue in `src/roastcoffea/metrics` is its
source. What could not be measured in a run is absent, with the reason in
`measurement.metrics.missing[name]`. Bytes have decimal prefixes where they are shown: 1 kB is 1000 B. A
formula names other metrics, or columns of the measurement's tables. Attempts "that counted" are those whose
result was used: the last of each chunk.
"""


def metric_reference() -> str:
    """Markdown of the whole catalogue: unit, source, alias, meaning and formula of each metric."""
    lines = [HEADING]
    for group, metrics in groupby(CATALOGUE.metrics(), attrgetter("group")):
        lines.append(f"## {group.capitalize()}\n")
        lines += [_entry(metric) for metric in metrics]
    return "\n".join(lines)


def _entry(metric: Metric) -> str:
    facts = f"unit: {metric.unit}; source: {metric.source}" + (f"; alias: `{metric.alias}`" if metric.alias else "")
    return f"### `{metric.name}`\n\n{metric.meaning}\n\n- {facts}\n- formula: `{metric.formula}`\n"


def print_reference(file: IO[str] | None = None) -> None:
    """Print the catalogue in readable form, to the terminal or into a file."""
    from rich.padding import Padding
    from rich.text import Text

    from roastcoffea.report.terminal import console_for

    console = console_for(file)
    for group, metrics in groupby(CATALOGUE.metrics(), attrgetter("group")):
        console.print(Text(f"\n{group.capitalize()}", style="bold"))
        for metric in metrics:
            alias = f", also {metric.alias}" if metric.alias else ""
            console.print(Text.assemble(f"\n{metric.name}", (f" [{metric.unit}]{alias}", "dim")))
            facts = f"= {metric.formula}\nfrom {metric.source}"
            console.print(Padding(Text.assemble(" ".join(metric.meaning.split()), ("\n" + facts, "dim")), (0, 0, 0, 4)))
