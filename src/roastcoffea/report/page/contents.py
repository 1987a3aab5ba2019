"""Contents of a run's page, section by section."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from roastcoffea.metrics import Metrics
from roastcoffea.metrics.facts import Names, known_names
from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.metrics.profile import profile_of
from roastcoffea.records.run import Host, Run, RunnerCall
from roastcoffea.report.exports.tables import metrics_table
from roastcoffea.report.first_look import digest_of
from roastcoffea.report.page.charts import charts
from roastcoffea.report.page.frame import anchor, fold_anchor, page
from roastcoffea.report.summary import amount_of, datasets, heading, own_sheets
from roastcoffea.report.tables import allocation, central, not_measured, reason_in, sheet_of_table
from roastcoffea.sheets.sheet import NOT_MEASURED, Cell, Column, Sheet, columns
from roastcoffea.storage import folders
from roastcoffea.units import BYTE, COUNT, SECOND
from roastcoffea.visualization.inputs import inputs_of

if TYPE_CHECKING:
    import pandas as pd

LEAST_FIRST: Final = "busy_share"


class Measured(Protocol):
    """The parts of a measurement that the page needs."""

    @property
    def run(self) -> Run: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def problems(self) -> list[str]: ...

    def table(self, name: str) -> pd.DataFrame: ...


def write_page(measured: Measured, path: Path, *, every_task: bool = False, overwrite: bool = False) -> Path:
    """Write a run's page atomically, and return its path.

    Raises
    ------
    MeasurementError
        If the file exists or cannot be written.
    """
    return folders.write_page(path, partial(page_of, measured, every_task=every_task), overwrite=overwrite)


def page_of(measured: Measured, *, every_task: bool = False) -> str:
    drawn = charts(inputs_of(measured), every_task=every_task)
    absent = dict(drawn.absent)
    details = []
    for title, parts in SECTIONS.items():
        sheet = _filled(Sheet(title=title, parts=list(parts(measured))), title, absent)
        details += [sheet] if sheet is not None else []
    if absent:
        details.append(Sheet(title=NOT_MEASURED, items=[f"{title}: {reason}" for title, reason in absent.items()]))
    anchors = {*(anchor(sheet.title) for sheet in drawn.sheets), *(fold_anchor(sheet.title) for sheet in details)}
    return page(
        heading(measured.run),
        drawn.sheets,
        look=digest_of(measured.run, measured.metrics),
        anchors=anchors,
        details=details,
        drawn=drawn.pictures,
        blocks=drawn.blocks,
        scripts=drawn.programs,
    )


def _filled(sheet: Sheet, title: str, absent: dict[str, str]) -> Sheet | None:
    """Remove the empty parts of a sheet; return None if nothing is left.

    The reasons for missing data are added to `absent`.
    """
    name = f"{title}, {sheet.title}" if sheet.title not in ("", title) else title
    reason = reason_in(sheet)
    if reason is not None:
        absent.setdefault(name, reason)
        return None
    parts = [part for part in (_filled(part, title, absent) for part in sheet.parts) if part is not None]
    if not (parts or sheet.rows or sheet.items or sheet.notes or sheet.lead):
        return None
    return replace(sheet, parts=parts)


def _ledgers(measured: Measured) -> Iterator[Sheet]:
    metrics = measured.metrics
    (time,) = own_sheets(metrics, "time_ledger") or [not_measured(metrics.missing["time_ledger"])]
    requested, *advice = own_sheets(metrics, "byte_ledger") or [not_measured(metrics.missing["byte_ledger"])]
    time = replace(time, title="worker threads x time", bars=())  # the first look shows the bars
    requested = replace(requested, title="bytes requested from storage", parts=advice, bars=())
    yield Sheet(beside=True, parts=[time, requested])


def _datasets(measured: Measured) -> Iterator[Sheet]:
    metrics, name = measured.metrics, "per_dataset"
    yield replace(datasets(metrics), title="") if name in metrics else not_measured(metrics.missing[name])
    yield _table(measured, "time_ledger_by_dataset", "datasets", "thread time", TOTAL)
    yield _table(measured, "byte_ledger_by_dataset", "datasets", "bytes", TOTAL)


def _central(measured: Measured) -> Iterator[Sheet]:
    scheduler, client, *merges = central(measured.metrics)
    yield Sheet(beside=True, parts=[scheduler, client])
    yield from merges


def _jobs(measured: Measured) -> Iterator[Sheet]:
    charged = allocation(measured.metrics)
    yield from charged
    if charged:
        yield _table(measured, "jobs", "batch jobs", "", "")


def _custom(measured: Measured) -> Iterator[Sheet]:
    if len(measured.table("custom")):
        yield _table(measured, "custom", "recorded values", "", "")


def _problems(measured: Measured) -> Iterator[Sheet]:
    yield Sheet(items=measured.problems)


def _profile(measured: Measured) -> Iterator[Sheet]:
    yield from (replace(sheet, title="") for sheet in profile_of(measured.metrics).sheets())


def _metrics(measured: Measured) -> Iterator[Sheet]:
    """Every available metric with its exact value for sorting, and the reasons why the rest are missing."""
    metrics, table = measured.metrics, metrics_table(measured.metrics)
    rows = [
        (name, amount_of(metrics, name), *(str(word or "").partition("\n")[0] for word in words))
        for name, *words in table.loc[table["missing"].isna(), ["name", *WORDS]].itertuples(index=False)
    ]
    yield Sheet(columns=METRIC_COLUMNS, rows=rows, things="metrics")
    heads, missing = columns(None, "metric", "reason"), list(metrics.missing.items())
    yield Sheet(title="missing", columns=heads, rows=missing, things="missing metrics")


WORDS: Final = ("unit", "group", "source", "meaning")
METRIC_COLUMNS: Final = (Column("metric"), Column("value", COUNT), *map(Column, WORDS))


def _environment(measured: Measured) -> Iterator[Sheet]:
    environment = measured.run.environment
    heads = columns(None, "package", "version")
    yield Sheet(columns=heads, rows=sorted(environment.versions.items()), things="versions")
    yield _hosts(environment.hosts)
    calls = list(map(_call, measured.run.calls))
    yield Sheet(title="Runner calls", columns=CALL_COLUMNS, rows=calls, things="Runner calls")


def _hosts(hosts: Sequence[Host]) -> Sheet:
    """Resources available on each host, and the machine's totals where they are higher."""
    rows = [(host.name, host.cores, host.memory, host.node_cores, host.node_memory) for host in hosts]
    limited = any(whole not in (None, part) for row in rows for part, whole in zip(row[1:3], row[3:], strict=True))
    shown = len(HOST_COLUMNS) if limited else 3
    return Sheet(title="hosts", columns=HOST_COLUMNS[:shown], rows=[row[:shown] for row in rows], things="hosts")


OF_HOST: Final = columns(None, "host") + columns(COUNT, "cores") + columns(BYTE, "memory")
HOST_COLUMNS: Final = OF_HOST + columns(COUNT, "machine cores") + columns(BYTE, "machine memory")
OF_CALL: Final = columns(None, "processor", "executor", "outcome") + columns(SECOND, "time") + columns(COUNT, "chunks")
CALL_COLUMNS: Final = (*OF_CALL, Column("options"), Column("fileset", meaning="identical for identical input"))


def _call(call: RunnerCall) -> Sequence[Cell]:
    outcome = call.outcome if call.error is None else f"{call.outcome}: {call.error}"
    options = ", ".join(f"{name}={value}" for name, value in call.options.items())
    fileset = None if call.fileset is None else call.fileset[:12]
    return call.processor, call.executor, outcome, call.stop - call.start, call.chunks, options, fileset


Parts = Callable[[Measured], Iterable[Sheet]]


def _tables(*tables: tuple[str, str, str, str]) -> Parts:
    """Section of tables. Each table is specified by its name, the noun for its rows, its title and its sort column."""
    return lambda measured: (_table(measured, *table) for table in tables)


def _table(measured: Measured, name: str, things: str, title: str, by: str) -> Sheet:
    """Sorted table from the measurement. In ledgers, rows and columns that contain only zeros are dropped."""
    whole = measured.table(name)
    frame = whole.copy(deep=False)
    frame.attrs = {}  # pandas would copy attrs with each column
    if "_by_" in name:
        frame = frame[[each for each in frame if each in {RESIDUAL, TOTAL} or not frame[each].eq(0).all()]]
        frame = frame[~frame[TOTAL].eq(0)]
    if name == "endpoints":
        frame = frame.dropna(axis="columns", how="all")  # drop columns not reported for any protocol
    if name == "worker_balance":
        frame = frame.assign(**{"worker address": frame["worker"]})
    if {"worker", "address", "host"} & {*frame}:
        frame = _with_names(frame, known_names(measured.metrics.evaluator))
    if by in frame.columns:
        frame = frame.sort_values(by, ascending=by == LEAST_FIRST, kind="stable", na_position="last")
    frame.attrs = whole.attrs
    return sheet_of_table(frame, things, title=title)


def _with_names(frame: pd.DataFrame, names: Names) -> pd.DataFrame:
    for column, known in (("worker", names.workers), ("address", names.workers), ("host", names.hosts)):
        if column in frame:
            frame = frame.assign(**{column: frame[column].map(lambda one, known=known: known.get(one, one))})
    return frame.rename(columns={"address": "worker"})


SECTIONS: Final[Mapping[str, Parts]] = {
    "ledgers": _ledgers,
    "datasets": _datasets,
    "files": _tables(
        ("byte_ledger_by_file", "files", "", TOTAL),
        ("byte_ledger_by_endpoint", "endpoints", "by endpoint", TOTAL),
        ("endpoints", "servers", "servers", "bytes_requested"),
    ),
    "files written": _tables(
        ("outputs", "servers and kinds", "", "bytes_written"), ("write_ledger_by_file", "files", "by file", TOTAL)
    ),
    "branches": _tables(
        ("byte_ledger_by_branch", "branches", "", TOTAL), ("branches", "branches of files", "by file", "bytes_payload")
    ),
    "profile of process()": _profile,
    "sections": _tables(("sections", "sections", "", "wall_seconds")),
    "recorded values": _custom,
    "workers": _tables(
        ("worker_balance", "workers", "", LEAST_FIRST),
        ("time_ledger_by_worker", "workers", "thread time", TOTAL),
        ("stragglers", "stragglers", "stragglers", ""),
    ),
    "requested workers": _tables(("arrivals", "requested workers", "", "requested")),
    "scheduler and client": _central,
    "batch jobs": _jobs,
    "failed work": _tables(
        ("failed", "failed attempts", "", ""),
        ("failed_files", "files with failed attempts", "by file", ""),
        ("missing", "chunks or files without a result", "missing", ""),
    ),
    "measurement problems": _problems,
    "environment": _environment,
    "metrics": _metrics,
}
