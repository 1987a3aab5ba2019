"""Writes pages whose source is the package: `columns.md`, `glossary.md` and `plots.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from roastcoffea.compat.shapes import run_without_records
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import BYTE_CLASSES, FAMILIES, TIME_CLASSES, WAIT
from roastcoffea.metrics.time_ledger import MEANINGS
from roastcoffea.monitor import shown as joined
from roastcoffea.monitor import shown as tables
from roastcoffea.monitor.task_monitor import TaskMonitor
from roastcoffea.records.columns import Column
from roastcoffea.report.exports.tables import METRIC_COLUMNS
from roastcoffea.report.glossary import GROUPS, glossary
from roastcoffea.report.tables import BREAKDOWNS, TABLES
from roastcoffea.visualization import plots
from roastcoffea.visualization.registry import Plot

PAGES = Path(__file__).parent

HEADING_OF_COLUMNS = """\
# Tables and their columns

This page is written by `docs/write_references.py` from the tables themselves. Each is a pandas DataFrame;
`frame.attrs["columns"]` and `frame.attrs["units"]` say the same. Moments are Unix seconds. What was not measured is
`<NA>`, NaN or None, never 0. A table that was not recorded at all is empty, and `frame.attrs["absent"]` says why.
"""

HEADING_OF_GLOSSARY = """\
# Glossary

The terms that tables, pages and messages use. This page is written by `docs/write_references.py` from the package: the
meanings of classes, phases and metrics are those of the tables that compute them.
"""

HEADING_OF_PLOTS = """\
---
file_format: mystnb
kernelspec:
  name: python3
---

# Plots

% This page is written by `docs/write_references.py` from the registry of plots.

All are called alike. They take a collector, a measurement or a run, draw on your axes (`ax=`) or on a new figure, and
return `(figure, axes)`. `title=`, `figsize=`, `dark=True` and `output_path=` (a file: png, pdf or svg) are optional.
`measurement.plot("time_ledger")` and `roastcoffea plot FOLDER` draw the same. A plot for which something was not
measured raises a `ValueError` with the reason. The data of version 0.1.2 still work:
`tracking_data=`, `span_metrics=`, `metrics=`, `chunk_info=` and `chunk_metrics=`.
Distributions take `bins=`, and plots with a line for each worker `max_legend_entries=`.
New figures are dark where matplotlib's style is, as after `plt.style.use("dark_background")` in a dark JupyterLab.

Each plot has the name of the run and its outcome in its title. Workers are called `host:n`: the first worker that
arrived on `node-7` is `node-7:1`. Values that are all the same are written as a sentence.

## Colours

Seven colours mean the same in all plots, on pages and in terminals. Colour-blind eyes tell them apart too, and each has
a contrast of 3:1 to its background.

COLOURS

Classes of a family share its colour: in a stack a thin line separates them.
Datasets, workers and whatever else has no family are green.

The plots below are those of one small run on two workers.

```{code-cell} ipython3
:tags: [hide-input]
import awkward as ak
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from dask.distributed import Client

import roastcoffea
from roastcoffea import MetricsCollector, track_time
from roastcoffea.demo import clean_jets, write_sample


class Dijets(ProcessorABC):
    def process(self, events):
        with track_time("jets"):
            jets = clean_jets(events)
        with track_time("mass"):
            pairs = jets[ak.num(jets) >= 2]
            mass = (pairs[:, 0] + pairs[:, 1]).mass
        return {"events": len(events), "mean": ak.mean(mass)}


fileset = write_sample("sample", files=3, events=20_000)
with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
    executor = DaskExecutor(client=client, status=False, retries=1)
    runner = Runner(executor, schema=NanoAODSchema, chunksize=4_000, savemetrics=True)
    with MetricsCollector(client, worker_tracking_interval=0.5) as collector:
        runner(fileset, treename="Events", processor_instance=Dijets())
measurement = collector.measurement
```
"""


class Described(NamedTuple):
    """A table: how it is called, what its rows are, and its columns with meaning and unit."""

    name: str
    rows: str
    columns: Iterable[tuple[str, str, str | None]]


def column_page() -> str:
    """Markdown of all tables."""
    tables = [*of_measurement(), *of_ledgers(), *of_monitor(), of_exports()]
    return "\n".join([HEADING_OF_COLUMNS, *map(table_text, tables)])


def table_text(table: Described) -> str:
    """Markdown of one table."""
    rows = [f"| `{name}` | {unit or ''} | {cell(meaning)} |" for name, meaning, unit in table.columns]
    return "\n".join(
        [f"## {table.name}\n", f"{table.rows}\n", "| column | unit | meaning |", "|---|---|---|", *rows, ""]
    )


def cell(text: str) -> str:
    """Text as a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def of_measurement() -> Iterator[Described]:
    """Tables of a measurement."""
    measurement = Measurement(run_without_records())
    for name in TABLES:
        frame = getattr(measurement, name)
        units = frame.attrs["units"]
        columns = [
            (column, meaning.removesuffix(f" [{units.get(column)}]"), units.get(column))
            for column, meaning in frame.attrs["columns"].items()
        ]
        yield Described(f"`measurement.{name}`", summary(getattr(Measurement, name)), columns)


def summary(thing: object) -> str:
    """First sentence of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def of_ledgers() -> Iterator[Described]:
    """Breakdowns of the ledgers, and the time ledger over time."""
    for name, (ledger, breakdowns, meanings) in BREAKDOWNS.items():
        unit = ledger.unit
        choices = ", ".join(f'"{what}"' for what in breakdowns)
        extra = (
            [("uncompressed", "size after decompression; by branch only", str(unit))] if "branch" in breakdowns else []
        )
        rows = f"`what` is one of {choices}: it names the index, and there is a row for each."
        columns = [(column, meaning, str(unit)) for column, meaning in meanings.items()]
        yield Described(f"`measurement.{name}.by(what)`", rows, [*columns, *extra])
    yield Described(
        "`measurement.time_ledger.timeline()`", "A row for each interval of time, whose index is `start`.", over_time()
    )


def over_time() -> Iterator[tuple[str, str, str | None]]:
    """Columns of the time ledger over time."""
    yield "start", "beginning of the interval (Unix time, the client's clock)", "s"
    yield "seconds", "length of the interval", "s"
    for name, meaning in MEANINGS.items():
        if name != "residual":
            yield name, f"mean over the interval: {meaning}", "threads"


def of_monitor() -> Iterator[Described]:
    """Tables of a task monitor."""
    own = "TaskMonitor"
    yield of_columns("`monitor.to_dataframe()`", f"Of a `{own}`: a row for each task.", tables.MONITOR_COLUMNS)
    yield of_columns("`monitor.per_worker()`", summary(TaskMonitor.per_worker), tables.WORKER_COLUMNS)
    yield of_columns("`monitor.joined(measurement)`", summary(TaskMonitor.joined), joined.JOINED_COLUMNS)
    compared = "`monitor.compare_with_report(report, measurement)`"
    yield of_columns(f"{compared}`.chunks`", "A row for each chunk that gave a result.", joined.COMPARED_COLUMNS)
    yield of_columns(f"{compared}`.totals`", "A row for each quantity.", joined.TOTAL_COLUMNS)


def of_columns(name: str, rows: str, columns: Iterable[Column]) -> Described:
    """Table that is described by columns of records."""
    return Described(name, rows, [(column.name, column.meaning, column.unit) for column in columns])


def glossary_page() -> str:
    """Markdown of all terms."""
    lines = [HEADING_OF_GLOSSARY]
    for group in GROUPS:
        lines += [f"## {group}\n", "```{glossary}"]
        for term in glossary().values():
            lines += [term.name, f"  {term.meaning}", ""] if term.group == group else []
        lines[-1] = "```\n"
    return "\n".join(lines)


def of_exports() -> Described:
    """Table of metrics that exports have beside the others."""
    described: Mapping[str, str] = METRIC_COLUMNS
    rows = "A row for each metric that is a number or a word, or missing; only `measurement.export` writes it."
    return Described("`metrics` in exports", rows, [(name, meaning, None) for name, meaning in described.items()])


CELL = """\
```{{code-cell}} ipython3
:tags: [{tags}]
{code}
```
"""
LIGHT, DARK = "light", "dark, remove-input"
"""Tags of cells: site.css shows the pictures that fit the colours of the page."""

MADE = """\
made = {
    ("execute", "Dijets", "serialize", "seconds"): 0.4,
    ("execute", "Dijets", "disk-write", "seconds"): 0.9,
    ("execute", "reduce", "deserialize", "seconds"): 0.3,
    ("execute", "reduce", "disk-read", "seconds"): 0.6,
}
"""


class Call(NamedTuple):
    """How a plot is called: what is said of that, lines before the call, and its arguments."""

    remark: str = ""
    before: str = ""
    arguments: str = "measurement"


CALLS = {
    "per_task_overhead": Call("Dask counted none in this run: the numbers are made up.", MADE, "span_metrics=made")
}
"""Plots for which the run of the page has nothing."""


def plot_page() -> str:
    """Markdown of all plots by the module that they are in, a notebook."""
    parts = [HEADING_OF_PLOTS.replace("COLOURS", colour_table())]
    for module, entries in groupby(plots.PLOTS.values(), lambda entry: entry.draw.__module__):
        subject, _, content = (sys.modules[module].__doc__ or "").partition("\n")[0].partition(": ")
        parts += [f"## {subject}\n\n{content[:1].upper()}{content[1:]}\n", *map(plot_text, entries)]
    return "\n".join(parts)


def colour_table() -> str:
    """Markdown of the families of classes, with their colours."""
    swatch = '<span style="background: {0}; padding: 0 1.2em"></span> `{0}`'
    rows = ["| family | on light | on dark | thread time | bytes |", "|---|---|---|---|---|"]
    for family in FAMILIES:
        light, dark = (swatch.format(colour) for colour in (family.light, family.dark))
        time, requested = (
            ", ".join(one.name for one in table if one.family == family and one.name != WAIT)
            for table in (TIME_CLASSES, BYTE_CLASSES)
        )
        rows.append(f"| {family.label} | {light} | {dark} | {time} | {requested} |")
    return "\n".join(rows)


def plot_text(entry: Plot) -> str:
    """Markdown of one plot, drawn for light and for dark pages."""
    meaning, call = (inspect.getdoc(entry.draw) or "").strip(), CALLS.get(entry.name, Call())
    light = f"{call.before}roastcoffea.{entry.function_name}({call.arguments});"
    dark = f"roastcoffea.{entry.function_name}({call.arguments}, dark=True);"
    cells = [CELL.format(tags=LIGHT, code=light), CELL.format(tags=DARK, code=dark)]
    return "\n\n".join([f"### `{entry.function_name}`", meaning, *filter(None, [call.remark]), *cells])


WRITTEN = {"columns.md": column_page, "glossary.md": glossary_page, "plots.md": plot_page}

if __name__ == "__main__":
    for file, page in WRITTEN.items():
        (PAGES / file).write_text(page(), encoding="utf-8")
