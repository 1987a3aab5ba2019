"""What a notebook shows of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roastcoffea.metrics import ByteLedger, Metrics, TimeLedger
from roastcoffea.records.run import FAILED, Run
from roastcoffea.report.html import Html, columns, folded, heading, listing, page, paragraph, table
from roastcoffea.report.summary import DATASET_COLUMNS, NOT_KNOWN, title_of, verdict_lines
from roastcoffea.units import BYTE, SECOND, moment

SHOWN: Final = {
    "total_events": "events",
    "num_chunks": "chunks",
    "num_failed_chunks": "failed attempts",
    "elapsed_time_seconds": "elapsed",
    "event_rate_elapsed_khz": "event rate",
    "data_rate_gbps": "data rate",
    "avg_workers": "workers (mean)",
    "core_efficiency": "core efficiency",
    "useful_fraction": "useful bytes",
    "peak_memory_bytes": "memory of a worker (peak)",
}
"""Metrics that stand on top, and their labels."""


def measurement_html(run: Run, metrics: Metrics) -> str:
    """Heading, verdict, the main numbers, both ledgers, datasets and problems; all metrics are folded."""
    return page(*_heading(run), *_verdict(run, metrics), _numbers(metrics), *_datasets(metrics), *_rest(run, metrics))


def collector_html(state: str, problems: list[str]) -> str:
    """What there is to tell of a collector without a measurement."""
    return page(heading("MetricsCollector", 3), paragraph(state), *_problems(problems))


def _heading(run: Run) -> Iterator[Html]:
    yield heading(title_of(run), 3)
    yield paragraph(f"{moment(run.start)}, {run.backend}, {run.outcome}, {run.id[:8]}", quiet=True)
    if run.outcome == FAILED:
        yield paragraph(f"This run failed: {run.error or 'no error text was kept'}")
    if run.reported is not None:
        yield paragraph(f"Numbers as reported by {run.reported_by}; they were not computed anew.", quiet=True)


def _verdict(run: Run, metrics: Metrics) -> Iterator[Html]:
    if "verdict" not in metrics:
        return
    yield heading(f"Bound by {metrics['bound']}" if "bound" in metrics else "Incomplete")
    yield listing(verdict_lines(run, metrics["verdict"]))


def _numbers(metrics: Metrics) -> Html:
    """The main numbers beside the ledgers."""
    main = [(label, metrics.unit[name].text(metrics[name])) for name, label in SHOWN.items() if name in metrics]
    parts = [heading("Numbers") + table(("", "value"), main)]
    if "time_ledger" in metrics:
        time: TimeLedger = metrics["time_ledger"]
        parts.append(heading("Time ledger: worker threads x time") + time.html_table(time.total, SECOND))
    if "byte_ledger" in metrics:
        requested: ByteLedger = metrics["byte_ledger"]
        parts.append(heading("Byte ledger") + requested.html_table(requested.total, BYTE))
    return columns(*parts)


def _datasets(metrics: Metrics) -> Iterator[Html]:
    datasets = metrics.get("per_dataset")
    if datasets:
        rows = [
            (name, *(NOT_KNOWN if told.get(key) is None else unit.text(told[key]) for _, key, unit in DATASET_COLUMNS))
            for name, told in datasets.items()
        ]
        yield heading("Datasets")
        yield table(("dataset", *(header for header, _, _ in DATASET_COLUMNS)), rows)


def _rest(run: Run, metrics: Metrics) -> Iterator[Html]:
    yield from _problems([*run.problems, *metrics.problems])
    yield folded(f"All metrics ({len(metrics)} computed, {len(metrics.missing)} missing)", _metric_tables(metrics))


def _metric_tables(metrics: Metrics) -> str:
    """Every metric with its value and source, and the reasons of those that are missing."""
    parts = []
    for sheet in metrics.sheets():
        rows = [[str(cell) for cell in row] for row in sheet.rows]
        parts.append(heading(sheet.title) + table([column.name for column in sheet.columns], rows))
    return "".join(parts)


def _problems(problems: list[str]) -> Iterator[Html]:
    if problems:
        yield heading(f"Problems ({len(problems)})")
        yield listing(problems)
