"""What the page of a run says, section by section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metrics, TimeLedger
from roastcoffea.metrics.ledger import RESIDUAL, TOTAL
from roastcoffea.records.run import FAILED, Host, Run
from roastcoffea.report.exports.tables import metrics_table
from roastcoffea.report.former import SHOWN
from roastcoffea.report.html import Html, columns, heading, listing, paragraph, text
from roastcoffea.report.page.former import NOT_KNOWN, Cell, Head, page, section, table, table_of_cells
from roastcoffea.report.summary import DATASET_COLUMNS, bound_line, gaps_text, time_notes, title_of, verdict_lines
from roastcoffea.storage.folders import whole_file
from roastcoffea.units import BYTE, COUNT, FRACTION, RATIO, SECOND, Unit, moment

if TYPE_CHECKING:
    import pandas as pd

SHARES: Final = {"busy_share": FRACTION, "cpu_share": FRACTION, "slowness": RATIO}
"""Units of columns that have none of their own, being quotients."""


class Measured(Protocol):
    """What the page is made of: a measurement."""

    run: Run

    @property
    def metrics(self) -> Metrics:
        """All metrics."""

    def table(self, name: str) -> pd.DataFrame:
        """A table by its name."""


def write_page(measured: Measured, path: Path, *, every_task: bool = False, overwrite: bool = False) -> Path:
    """Write the page of a run to a file, whole or not at all; give its path.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(page_of(measured, every_task=every_task).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def page_of(measured: Measured, *, every_task: bool = False) -> str:
    """The page of a run."""
    from roastcoffea.report.page.charts import charts
    from roastcoffea.visualization.inputs import inputs_of

    run, metrics = measured.run, measured.metrics
    drawn = charts(inputs_of(measured), every_task=every_task)
    sections = [
        section("Verdict", *_verdict(run, metrics)),
        section("Ledgers", *_ledgers(metrics)),
        section("Over time", *drawn.parts),
        section("Datasets", *_datasets(measured)),
        section("Files", *_files(measured)),
        section("Branches", *_branches(measured)),
        section("Sections", _table(measured, "sections", "sections", by="wall_seconds")),
        section("Workers", *_workers(measured)),
        section("Failed work", *_failed(measured)),
        section("Problems", _problems([*run.problems, *metrics.problems])),
        section("Metrics", *_metrics(metrics)),
        section("Environment", *_environment(run)),
    ]
    return page(title_of(run), sections, lead="".join(_lead(run)), scripts=drawn.programs)


# Sections


def _lead(run: Run) -> Iterator[Html]:
    length = f", {SECOND.text(run.stop - run.start)}" if run.stop > run.start else ""
    yield paragraph(f"{moment(run.start)}{length}, {run.backend}, {run.outcome}, {run.id[:8]}", quiet=True)
    if run.outcome == FAILED:
        yield paragraph(f"This run failed: {run.error or 'no error text was kept'}")
    if run.reported is not None:
        yield paragraph(f"Numbers as reported by {run.reported_by}; they were not computed anew.", quiet=True)


def _verdict(run: Run, metrics: Metrics) -> Iterator[Html]:
    if "verdict" in metrics:
        yield heading(bound_line(metrics).capitalize(), 3)
        yield listing(verdict_lines(run, metrics["verdict"]))
    else:
        yield _not_measured(metrics.missing["verdict"])
    main = [(label, metrics.unit[name].text(metrics[name])) for name, label in SHOWN.items() if name in metrics]
    numbers = "".join(f"<li><b>{text(amount)}</b> {text(label)}</li>" for label, amount in main)
    yield Html(f'<ul class="numbers">{numbers}</ul>')


def _ledgers(metrics: Metrics) -> Iterator[Html]:
    yield columns("".join(_time_ledger(metrics)), "".join(_byte_ledger(metrics)))


def _time_ledger(metrics: Metrics) -> Iterator[Html]:
    yield heading("Worker threads x time", 3)
    if "time_ledger" not in metrics:
        yield _not_measured(metrics.missing["time_ledger"])
        return
    ledger: TimeLedger = metrics["time_ledger"]
    yield ledger.html_table(ledger.total, SECOND)
    yield from (paragraph(note, quiet=True) for note in time_notes(ledger))


def _byte_ledger(metrics: Metrics) -> Iterator[Html]:
    yield heading("Bytes requested from storage", 3)
    if "byte_ledger" not in metrics:
        yield _not_measured(metrics.missing["byte_ledger"])
        return
    ledger: ByteLedger = metrics["byte_ledger"]
    yield ledger.html_table(ledger.total, BYTE)
    if ledger.transferred is None:
        yield paragraph(f"Transferred: not known, {ledger.transferred_absent}.", quiet=True)
    else:
        yield paragraph(f"Transferred: {BYTE.text(ledger.transferred)}, {gaps_text(ledger.gaps or 0)}.", quiet=True)
    if ledger.advice:
        yield heading("To read fewer bytes", 4)
        yield listing(saving.text for saving in ledger.advice)


def _datasets(measured: Measured) -> Iterator[Html]:
    datasets = measured.metrics.get("per_dataset")
    if datasets is None:
        yield _not_measured(measured.metrics.missing.get("per_dataset", "nobody told"))
    else:
        heads = [Head("dataset"), *(Head(header, numeric=True) for header, _, _ in DATASET_COLUMNS)]
        rows = [
            [Cell(name), *(_amount(told.get(key), unit) for _, key, unit in DATASET_COLUMNS)]
            for name, told in datasets.items()
        ]
        yield table_of_cells(heads, rows, "datasets")
    yield from _titled("Thread time", _table(measured, "time_ledger_by_dataset", "datasets", by=TOTAL))
    yield from _titled("Bytes", _table(measured, "byte_ledger_by_dataset", "datasets", by=TOTAL))


def _files(measured: Measured) -> Iterator[Html]:
    yield _table(measured, "byte_ledger_by_file", "files", by=TOTAL)
    yield from _titled("By endpoint", _table(measured, "byte_ledger_by_endpoint", "endpoints", by=TOTAL))


def _branches(measured: Measured) -> Iterator[Html]:
    yield _table(measured, "byte_ledger_by_branch", "branches", by=TOTAL)
    yield from _titled("By file", _table(measured, "branches", "branches of files", by="bytes_payload"))


def _workers(measured: Measured) -> Iterator[Html]:
    yield _table(measured, "worker_balance", "workers", by="busy_share", ascending=True)
    yield from _titled("Thread time", _table(measured, "time_ledger_by_worker", "workers", by=TOTAL))
    yield from _titled("Stragglers", _table(measured, "stragglers", "stragglers"))


def _failed(measured: Measured) -> Iterator[Html]:
    yield _table(measured, "failed", "failed attempts")
    yield from _titled("By file", _table(measured, "failed_files", "files with failed attempts"))
    yield from _titled("Missing", _table(measured, "missing", "chunks or files of which nothing came"))


def _problems(problems: list[str]) -> Html:
    return listing(problems) if problems else paragraph("There were no problems with the measuring.")


def _metrics(metrics: Metrics) -> Iterator[Html]:
    """Every metric with its value, as exact as it is to sort by; and why others are missing."""
    told = metrics_table(metrics)
    names = [metric.name for metric in CATALOGUE.metrics()]
    known, missing = told[told["missing"].isna()], told[told["missing"].notna()]
    heads = [Head("metric"), Head("value", numeric=True), Head("unit"), Head("group"), Head("source"), Head("meaning")]
    rows = [_metric(metrics, row) for row in known.to_dict("records")]
    yield table_of_cells(heads, rows, "metrics", first=len(names))
    reasons = [[Cell(row["name"]), Cell(row["missing"])] for row in missing.to_dict("records")]
    yield heading("Missing", 3)
    yield table_of_cells([Head("metric"), Head("reason")], reasons, "missing metrics", first=len(names))


def _metric(metrics: Metrics, row: dict[Any, Any]) -> list[Cell]:
    name = row["name"]
    words = [str(row[key] or "").partition("\n")[0] for key in ("unit", "group", "source", "meaning")]
    return [Cell(name), _amount(metrics[name], metrics.unit[name]), *map(Cell, words)]


def _environment(run: Run) -> Iterator[Html]:
    versions = [[Cell(name), Cell(version)] for name, version in sorted(run.environment.versions.items())]
    yield table_of_cells([Head("package"), Head("version")], versions, "versions")
    yield from _titled("Hosts", _hosts(run.environment.hosts))
    yield from _titled("Runner calls", _calls(run))


def _hosts(hosts: Sequence[Host]) -> Html:
    """What could be used of each host, and what the whole machine has where that is more."""
    limited = any(
        host.node_cores not in (None, host.cores) or host.node_memory not in (None, host.memory) for host in hosts
    )
    heads = [Head("host"), Head("cores", numeric=True), Head("memory", numeric=True)]
    rows = [[Cell(host.name), _amount(host.cores), _amount(host.memory, BYTE)] for host in hosts]
    if limited:
        heads += [Head("cores of the machine", numeric=True), Head("memory of the machine", numeric=True)]
        for row, host in zip(rows, hosts, strict=True):
            row += [_amount(host.node_cores), _amount(host.node_memory, BYTE)]
    return table_of_cells(heads, rows, "hosts")


def _calls(run: Run) -> Html:
    heads = [Head("processor"), Head("executor"), Head("outcome"), Head("time", numeric=True)]
    heads += [Head("chunks", numeric=True), Head("options"), Head("fileset", "equal for equal input")]
    rows = [
        [
            Cell(call.processor),
            Cell(call.executor),
            Cell(call.outcome if call.error is None else f"{call.outcome}: {call.error}"),
            _amount(call.stop - call.start, SECOND),
            _amount(call.chunks),
            Cell(", ".join(f"{name}={value}" for name, value in call.options.items())),
            Cell((call.fileset or NOT_KNOWN)[:12]),
        ]
        for call in run.calls
    ]
    return table_of_cells(heads, rows, "Runner calls")


# Pieces


def _table(measured: Measured, name: str, rows: str, *, by: str | None = None, ascending: bool = False) -> Html:
    """A table of the measurement, in the order of a column, without classes of a ledger that did not occur."""
    frame = _that_occurred(measured.table(name)) if "_by_" in name else measured.table(name)
    if by is not None and by in frame.columns:
        told = frame.attrs
        frame = frame.sort_values(by, ascending=ascending, kind="stable", na_position="last")
        frame.attrs = told
    return table(frame, rows, units=SHARES)


def _that_occurred(frame: pd.DataFrame) -> pd.DataFrame:
    """Breakdown of a ledger without classes of nothing but zeros."""
    kept = [name for name in frame.columns if name in {RESIDUAL, TOTAL} or not frame[name].eq(0).all()]
    told, frame = frame.attrs, frame[kept]
    frame.attrs = told
    return frame


def _titled(title: str, part: Html) -> tuple[Html, Html]:
    return heading(title, 3), part


def _not_measured(reason: str) -> Html:
    return paragraph(f"Not measured: {reason}.", quiet=True)


def _amount(value: Any, unit: Unit = COUNT) -> Cell:
    if value is None:
        return Cell(NOT_KNOWN)
    return Cell(unit.text(value), float(value) if isinstance(value, Real) and math.isfinite(value) else None)
