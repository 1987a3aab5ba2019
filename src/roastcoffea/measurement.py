"""A measurement: a run, and what is computed from it when it is asked for."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from roastcoffea.diagnosis import Finding, Verdict
from roastcoffea.diagnosis.balance import BALANCE_COLUMNS
from roastcoffea.diagnosis.stragglers import STRAGGLER_COLUMNS
from roastcoffea.errors import MeasurementError
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metrics, TimeLedger, evaluate
from roastcoffea.metrics import byte_ledger as byte_metrics
from roastcoffea.metrics import time_ledger as time_metrics
from roastcoffea.metrics.branches import BRANCH_COLUMNS, branches_of
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import reason_of_absence
from roastcoffea.metrics.failures import (
    FAILED_COLUMNS,
    FAILED_FILE_COLUMNS,
    failed_files,
    failed_work,
    files_to_repeat,
    missing,
)
from roastcoffea.metrics.sections import SECTION_TOTALS, sections_of
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.asked import ASKED_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS
from roastcoffea.redaction import redacted
from roastcoffea.storage.store import METRICS_FILE, load_run, save_run
from roastcoffea.units import BYTE, SECOND, Unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS_FORMAT: Final = "roastcoffea metrics 1"
RAW_METRICS: Final = frozenset(metric.name for metric in CATALOGUE.metrics() if metric.on_request)
JOINED: Final = ("branch_reads", "sections")
"""Records that belong to the chunks' own."""

DERIVED_FROM: Final[Mapping[str, str]] = {"branches": "branch_reads", "sections": "sections"}
"""Records that tables are made of, which may not have been taken."""

TABLES: Final = (
    "chunks",
    "tasks",
    "workers",
    "lifetimes",
    "pauses",
    "branches",
    "sections",
    "preprocessing",
    "failed",
    "failed_files",
    "missing",
    "stragglers",
    "worker_balance",
)
"""Attributes of a measurement that are DataFrames."""

BREAKDOWNS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str], Unit]]] = {
    "byte_ledger": (
        ("dataset", "file", "branch", "endpoint"),
        byte_metrics.MEANINGS,
        BYTE,
    ),
    "time_ledger": (("worker", "dataset"), time_metrics.MEANINGS, SECOND),
}
"""Breakdowns of the ledgers, with what their columns mean and the unit of all."""


class Measurement:
    """A run with its metrics and tables.

    Tables are pandas DataFrames with one row per thing. Whole numbers are "Int64": what was not measured is
    <NA>, and NaN in a column of floats. `frame.attrs["columns"]` tells each column's meaning and unit, and
    `frame.attrs["units"]` the unit alone; where a table was not recorded at all it is empty, and
    `frame.attrs["absent"]` has the reason. Frames are built once: copy before changing.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        elapsed = SECOND.text(self.run.stop - self.run.start)
        return f"<Measurement {self.run.name or self.run.id!r}: {self.outcome}, {elapsed}>"

    @property
    def outcome(self) -> str:
        """ "finished" or "failed"."""
        return self.run.outcome

    @property
    def error(self) -> str | None:
        """Text of the error that ended the run; None where it finished."""
        return self.run.error

    @property
    def problems(self) -> list[str]:
        """What could not be measured as it should, and what could not be computed of it."""
        return [*self.run.problems, *self.metrics.problems]

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics by name, with `.missing`, `.source` and `.unit`."""
        return evaluate(self.run)

    @cached_property
    def chunks(self) -> pd.DataFrame:
        """Attempts of chunks."""
        return self._recorded("chunks", CHUNK_COLUMNS)

    @cached_property
    def preprocessing(self) -> pd.DataFrame:
        """Openings of files by coffea's metadata tasks."""
        return self._recorded("preprocessing", PREPROCESSING_COLUMNS)

    @cached_property
    def branches(self) -> pd.DataFrame:
        """Branches of files by dataset, over the attempts that counted."""
        if self.byte_ledger.absent is None:  # it has counted them already
            return self._frame(self.byte_ledger.branches, "branch_reads", BRANCH_COLUMNS)
        return self._derived("branches", branches_of, BRANCH_COLUMNS)

    @cached_property
    def sections(self) -> pd.DataFrame:
        """Sections by name and dataset, over all attempts."""
        return self._derived("sections", sections_of, SECTION_TOTALS)

    @cached_property
    def byte_ledger(self) -> ByteLedger:
        """Bytes requested from storage, by class; empty, with the reason in `.absent`, where there is none."""
        if "byte_ledger" in self.metrics:
            ledger: ByteLedger = self.metrics["byte_ledger"]
            return ledger
        return ByteLedger.not_measured(self.metrics.missing["byte_ledger"])

    @cached_property
    def time_ledger(self) -> TimeLedger:
        """Seconds of worker threads, by class; empty, with the reason in `.absent`, where there is none."""
        if "time_ledger" in self.metrics:
            ledger: TimeLedger = self.metrics["time_ledger"]
            return ledger
        return TimeLedger.not_measured(self.metrics.missing["time_ledger"])

    @property
    def bound(self) -> str | None:
        """What the run spent most of its thread time on, in one word; None where no time ledger tells."""
        word: str | None = self.metrics.get("bound")
        return word

    @cached_property
    def verdict(self) -> Verdict:
        """What could be won, the most first; empty where the run is healthy, or with the reason in `.absent`."""
        if "verdict" in self.metrics:
            found: Verdict = self.metrics["verdict"]
            return found
        return Verdict(absent=self.metrics.missing["verdict"])

    @cached_property
    def failed(self) -> pd.DataFrame:
        """Attempts that gave nothing, with their reason."""
        return self._derived("failed", failed_work, FAILED_COLUMNS)

    @cached_property
    def failed_files(self) -> pd.DataFrame:
        """Files in which an attempt failed."""
        return self._derived("failed_files", failed_files, FAILED_FILE_COLUMNS)

    @cached_property
    def missing(self) -> pd.DataFrame:
        """Chunks, and files without any, that coffea asked for and that gave nothing at all."""
        return self._derived("missing", missing, ASKED_COLUMNS)

    def missing_fileset(self, fileset: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Fileset of the files of which nothing came, ready to be run again.

        A Runner call that raised gave no output, so that all its files are in it. Files that came in parts are not,
        as they would count twice: see `missing_items`. Passwords and tokens in URLs were not recorded: only with the
        fileset of the run, whose own names come back, can files that need them be opened.

        Parameters
        ----------
        fileset : mapping, optional
            The fileset of the run: each dataset keeps its own metadata and settings. Without it they are not known.

        Raises
        ------
        NotMeasuredError
            If it is not known what was asked for, or what came.
        """
        lacking = files_to_repeat(self.run)
        if fileset is None:
            return {dataset: {"files": files} for dataset, files in lacking.items()}
        clean = {dataset: redacted(dataset) for dataset in fileset}
        return {name: _only(fileset[name], lacking[known]) for name, known in clean.items() if known in lacking}

    def missing_items(self, fileset: Mapping[str, Any] | None = None) -> list[Any]:
        """Chunks that gave nothing, as work items that a Runner takes in place of a fileset.

        Files that could not be opened have no chunks: see `missing_fileset`.

        Parameters
        ----------
        fileset : mapping, optional
            The fileset of the run, whose metadata the items carry, and whose names of files, with passwords and tokens
            in URLs. Without it they carry no metadata, and the names are as they were recorded: without secrets.

        Raises
        ------
        NotMeasuredError
            If it is not known what was asked for, or what came.
        """
        from coffea.processor.executor import WorkItem

        given = _given(fileset or {})
        chunks = [row for row in missing(self.run).to_pylist() if row["entry_start"] is not None]
        items = []
        for row in chunks:
            dataset, metadata, files = given.get(row["dataset"], (row["dataset"], None, {}))
            file, uuid = files.get(row["file"], row["file"]), bytes.fromhex(row["uuid"])
            entries = row["entry_start"], row["entry_stop"]
            items.append(WorkItem(dataset, file, row["tree"], *entries, uuid, metadata))
        return items

    @cached_property
    def stragglers(self) -> pd.DataFrame:
        """Chunks that took much longer than their events, bytes and worker predict, the worst first."""
        return self._fact("stragglers", STRAGGLER_COLUMNS)

    @cached_property
    def worker_balance(self) -> pd.DataFrame:
        """Workers side by side: chunks, CPU and waiting, speed, spilling and transfers."""
        return self._fact("worker_balance", BALANCE_COLUMNS)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """Finished attempts of tasks."""
        return self._recorded("tasks", TASK_COLUMNS)

    @cached_property
    def workers(self) -> pd.DataFrame:
        """Samples of workers."""
        return self._recorded("samples", SAMPLE_COLUMNS)

    @cached_property
    def lifetimes(self) -> pd.DataFrame:
        """Workers, with their arrival and departure."""
        return self._recorded("lifetimes", LIFETIME_COLUMNS)

    @cached_property
    def pauses(self) -> pd.DataFrame:
        """Times in which Dask had paused workers for memory."""
        return self._recorded("pauses", PAUSE_COLUMNS)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name, the ledgers' breakdowns among them."""
        breakdowns = [f"{ledger}_by_{what}" for ledger, (words, _, _) in BREAKDOWNS.items() for what in words]
        return {name: self.table(name) for name in (*TABLES, *breakdowns)}

    def table(self, name: str) -> pd.DataFrame:
        """One of the tables, by its name; the others are not made for it."""
        ledger, _, what = name.partition("_by_")
        if ledger in BREAKDOWNS and what in BREAKDOWNS[ledger][0]:
            return self._breakdown(ledger, what)
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}; see `tables`")
        frame: pd.DataFrame = getattr(self, name)
        return frame

    @property
    def fine_metrics(self) -> dict[tuple[Any, ...], float]:
        """Dask's own metrics of the run's span, by tuple; empty where there are none."""
        return dict(self.run.span_metrics or {})

    @property
    def fine_metrics_per_worker(self) -> dict[str, dict[tuple[Any, ...], float]]:
        """Dask's own metrics of each worker, by its address and tuple; empty where there are none."""
        return {worker: dict(counted) for worker, counted in (self.run.span_metrics_per_worker or {}).items()}

    def save(self, folder: str | PathLike[str], name: str | None = None, overwrite: bool = False) -> Path:
        """Write the measurement to `folder/name`, and return that path.

        Without a name one is made from the time. A measurement that is there already is replaced only with
        `overwrite`. `metrics.json` in it is for other programs, the records beside it are what `load`
        reads.

        Raises
        ------
        MeasurementError
            If the name leaves the folder, is taken, or the measurement cannot be written.
        """
        return save_run(self.run, folder, name, overwrite=overwrite, metrics_json=self._metrics_json)

    def _metrics_json(self) -> bytes:
        """Content of `metrics.json`; without metrics, and with the reason, where it cannot be made of them."""
        problems = [*self.run.problems, *self.metrics.problems]
        try:
            with self.metrics.computing(METRICS_FILE):
                return metrics_json(self.run, _values(self.metrics), self.metrics.missing, problems)
        except NotMeasuredError as error:
            reasons = {metric.name: str(error) for metric in CATALOGUE.metrics()}
            return metrics_json(self.run, {}, reasons, self.problems)

    def export(self, path: str | PathLike[str], file_format: str, overwrite: bool = False) -> Path:
        """Write the measurement for other programs; give the path.

        Parameters
        ----------
        path
            Folder that gets a file for each table ("csv", "parquet", "json"), else the file: a Perfetto trace
            whose name ends with ".gz" is compressed.
        file_format : {"csv", "parquet", "json", "openmetrics", "perfetto"}
            "perfetto" is the trace format of Chrome, which https://ui.perfetto.dev shows.
        overwrite
            Replace an export, or a file, that is there; no folder is replaced that is none of an export.

        Raises
        ------
        MeasurementError
            If the format is not known, something is there already, or it cannot be written.
        """
        from roastcoffea.report.exports.formats import export

        return export(self.run, lambda: self.metrics, lambda: self.tables, Path(path), file_format, overwrite=overwrite)

    def report(self, path: str | PathLike[str], *, every_task: bool = False, overwrite: bool = False) -> Path:
        """Write all that there is to see of the run to one HTML file, which needs nothing but a browser; give its path.

        Parameters
        ----------
        path
            The file. It appears when it is whole.
        every_task
            Keep every task in it also where there are more than 100,000, so that each can be looked at.
        overwrite
            Replace a file that is there.

        Raises
        ------
        MeasurementError
            If the file is there already, or it cannot be written.
        """
        from roastcoffea.report.page.contents import write_page

        return write_page(self, Path(path), every_task=every_task, overwrite=overwrite)

    def _repr_html_(self) -> str:
        """Page of it for notebooks."""
        from roastcoffea.report.notebook import html
        from roastcoffea.report.summary import overview

        return html(overview(self.run, self.metrics))

    def print_summary(self, file: IO[str] | None = None) -> None:
        """Print the metrics as tables, to the terminal or into a file."""
        from roastcoffea.report.summary import summary
        from roastcoffea.report.terminal import print_sheets

        print_sheets(summary(self.run, self.metrics), file)

    def plot(
        self,
        name: str,
        ax: Axes | None = None,
        *,
        title: str | None = None,
        figsize: tuple[float, float] | None = None,
        output_path: str | PathLike[str] | None = None,
    ) -> tuple[Figure, Axes]:
        """Draw the plot of this name, with or without `plot_`: on these axes, else on a new figure.

        Raises
        ------
        ValueError
            If there is no such plot, or what it draws was not measured.
        """
        from roastcoffea.visualization.plots import registered

        return registered(name).function(self, ax=ax, title=title, figsize=figsize, output_path=output_path)

    def _derived(self, what: str, derive: Callable[[Run], pa.Table | None], columns: Sequence[Column]) -> pd.DataFrame:
        """Frame of what is made of the run; empty, with the reason, where it cannot be made."""
        try:
            with self.metrics.computing(what):
                return self._frame(derive(self.run), DERIVED_FROM.get(what, ""), columns)
        except NotMeasuredError as reason:
            return self._frame(None, "", columns, str(reason))

    def _breakdown(self, name: str, what: str) -> pd.DataFrame:
        """Breakdown of a ledger; empty, with the reason, where it cannot be made."""
        ledger = getattr(self, name)
        try:
            with self.metrics.computing(f"{name}.by({what!r})"):
                return _breakdown(ledger, what, *BREAKDOWNS[name][1:])
        except NotMeasuredError as reason:
            nothing = type(ledger).not_measured(str(reason))
            return _breakdown(nothing, what, *BREAKDOWNS[name][1:])

    def _fact(self, name: str, columns: Sequence[Column]) -> pd.DataFrame:
        """Frame of a table of the metrics; empty, with the reason, where there is none."""
        found = self.metrics.tables[name]
        return self._frame(None, "", columns, found) if isinstance(found, str) else self._frame(found, "", columns)

    def _recorded(self, field: str, columns: Sequence[Column]) -> pd.DataFrame:
        return self._frame(getattr(self.run, field), field, columns)

    def _frame(
        self, table: pa.Table | None, field: str, columns: Sequence[Column], absent: str | None = None
    ) -> pd.DataFrame:
        frame = frame_of(table if table is not None else table_of_rows(columns, []), columns)
        if table is None:
            frame.attrs["absent"] = absent or self._absence(field)
        return frame

    def _absence(self, field: str) -> str:
        """Why a table is not there: what it is joined to may be missing, too."""
        missing = "chunks" if field in JOINED and self.run.chunks is None else field
        return reason_of_absence(self.run, missing)


def frame_of(table: pa.Table, columns: Sequence[Column]) -> pd.DataFrame:
    """DataFrame of records, with the meaning and unit of its columns in `attrs["columns"]`."""
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    frame.attrs["columns"] = {column.name: _documentation(column) for column in columns}
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit is not None}
    return frame


def load(path: str | PathLike[str]) -> Measurement:
    """Measurement that was saved to a folder, by this version or by 0.1.2.

    Raises
    ------
    MeasurementError
        If there is none, or it cannot be read.
    """
    return Measurement(load_run(path))


def load_measurement(path: str | PathLike[str]) -> tuple[dict[str, Any], float, float]:
    """Metrics, start and stop of a saved measurement, as version 0.1.2 gave them.

    The dictionary has every metric that could be computed, also under its older name. Start and stop are
    Unix seconds; of a folder of 0.1.2 they are what it stored, readings of a clock of unknown origin.
    """
    measurement = load(path)
    metrics = measurement.metrics.built()
    metrics |= {alias: metrics[name] for alias, name in CATALOGUE.aliases.items() if name in metrics}
    reported = measurement.run.reported or {}
    return metrics, reported.get("t0", measurement.run.start), reported.get("t1", measurement.run.stop)


def _values(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Metrics for `metrics.json`, without the raw structures."""
    return {
        name: {"value": metrics[name], "unit": str(metrics.unit[name]), "source": metrics.source[name]}
        for name in metrics
        if name not in RAW_METRICS
    }


def metrics_json(
    run: Run, values: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str], problems: list[str]
) -> bytes:
    """Content of `metrics.json`: the metrics, without the raw structures, for other programs.

    It is standard JSON: {"metrics": {name: {"value", "unit", "source"}}, "missing": {name: reason}} with
    the run's identity; a number that JSON cannot hold is the text "NaN", "Infinity" or "-Infinity".
    """
    document = {
        "format": METRICS_FORMAT,
        "id": run.id,
        "name": run.name,
        "start": run.start,
        "stop": run.stop,
        "outcome": run.outcome,
        "error": run.error,
        "metrics": values,
        "missing": {name: reason for name, reason in missing.items() if name not in RAW_METRICS},
        "problems": problems,
    }
    return json.dumps(_standard(document), indent=1, allow_nan=False).encode()


def _only(dataset: Any, files: Mapping[str, str | None]) -> Any:
    """A dataset of a fileset with none but these files, which are recorded without secrets, in its own form."""
    if not isinstance(dataset, Mapping):
        return [file for recorded, file in _by_recorded_name(dataset).items() if recorded in files]
    listed = dataset["files"]
    own = [file for recorded, file in _by_recorded_name(listed).items() if recorded in files]
    return {**dataset, "files": {file: listed[file] for file in own} if isinstance(listed, Mapping) else own}


def _given(fileset: Mapping[str, Any]) -> dict[str, tuple[str, Any, dict[str, str]]]:
    """Datasets of a fileset by their recorded names: own name, metadata, and own names of files by recorded ones."""
    found = {}
    for name, dataset in fileset.items():
        described = isinstance(dataset, Mapping)
        files = dataset["files"] if described else dataset
        own = {recorded: str(file) for recorded, file in _by_recorded_name(files).items()}
        found[redacted(name)] = name, dataset.get("metadata") if described else None, own
    return found


def _by_recorded_name(files: Iterable[Any]) -> dict[str, Any]:
    """Files of a dataset by the names under which they were recorded.

    Raises
    ------
    MeasurementError
        If that is one name for several: which of them is missing is not known then.
    """
    found: dict[str, Any] = {}
    for file in files:
        recorded = redacted(str(file))
        if recorded in found and str(found[recorded]) != str(file):
            raise MeasurementError(
                f"several files were recorded as {recorded}, as they differ only in what was masked in their names: "
                "which of them is missing is not known; use missing_fileset() without a fileset"
            )
        found[recorded] = file
    return found


def _breakdown(ledger: ByteLedger | TimeLedger, what: Any, meanings: Mapping[str, str], unit: Unit) -> pd.DataFrame:
    """Breakdown of a ledger as a table with documented columns."""
    frame = ledger.by(what)
    absent: dict[Any, Any] = {} if ledger.absent is None else {"absent": ledger.absent}
    key = "address" if what == "worker" else what  # "worker" is a class of the time ledger
    frame = frame.rename_axis(index=key).reset_index()
    amounts = [name for name in frame.columns if name != key]
    frame.attrs = {
        "columns": {key: f"{key} of the {what}" if key != what else what}
        | {name: f"{meanings.get(name, name)} [{unit}]" for name in amounts},
        "units": dict.fromkeys(amounts, str(unit)),
        **absent,
    }
    return frame


def _documentation(column: Column) -> str:
    return column.meaning if column.unit is None else f"{column.meaning} [{column.unit}]"


def _standard(value: Any) -> Any:
    """Value in the types of standard JSON; what has none becomes text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Finding):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _finite(float(value))
    return str(value)


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
