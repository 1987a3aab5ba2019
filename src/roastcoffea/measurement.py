"""A measurement: a run, and what is computed from it when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from roastcoffea.diagnosis import Verdict
from roastcoffea.metrics import ByteLedger, Metrics, TimeLedger, evaluate
from roastcoffea.metrics.failures import missing_fileset, missing_items
from roastcoffea.metrics.profile import Profile, profile_of
from roastcoffea.records.run import Run
from roastcoffea.report.exports.metrics_json import metrics_json
from roastcoffea.report.frames import NAMES, frame_named
from roastcoffea.storage.store import load_run, save_run
from roastcoffea.units import SECOND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")


class _Table(property):
    """A table as an attribute of a measurement."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(lambda measurement: measurement.table(name))
        self.__doc__ = meaning  # given to property it would be behind that of the class

    def __get__(self, instance: Any, owner: type | None = None, /) -> pd.DataFrame:  # type: ignore[override]
        return super().__get__(instance, owner)  # type: ignore[no-any-return]


class Measurement:
    """A run with its metrics and tables.

    Tables are pandas DataFrames with one row per thing. Whole numbers are "Int64": what was not measured is
    <NA>, and NaN in a column of floats. `frame.attrs["columns"]` tells each column's meaning and unit, and
    `frame.attrs["units"]` the unit alone; where a table was not recorded at all it is empty, and
    `frame.attrs["absent"]` has the reason. Frames are built once: copy before changing.
    """

    chunks = _Table("chunks", "Attempts of chunks.")
    preprocessing = _Table("preprocessing", "Openings of files by coffea's metadata tasks.")
    branches = _Table("branches", "Branches of files by dataset, over the attempts that counted.")
    sections = _Table("sections", "Sections by name and dataset, over all attempts.")
    functions = _Table("functions", "Lines of functions by dataset, with the thread time that the profile found there.")
    hot_functions = _Table(
        "hot_functions", "Lines of the user's own code by dataset and what they call, the most thread time first."
    )
    custom = _Table("custom", "Values that the processor recorded, by name and dataset, over attempts that counted.")
    failed = _Table("failed", "Failed attempts, with their reason.")
    failed_files = _Table("failed_files", "Files in which an attempt failed.")
    missing = _Table("missing", "Chunks that coffea asked for without a result, and files without chunks.")
    stragglers = _Table(
        "stragglers", "Chunks that took much longer than their events, bytes and worker predict, the worst first."
    )
    worker_balance = _Table(
        "worker_balance", "Workers side by side: chunks, CPU and waiting, speed, spilling and transfers."
    )
    worker_memory = _Table(
        "worker_memory", "Workers: peak of memory against the limit; who was paused, spilled, killed."
    )
    dataset_memory = _Table("dataset_memory", "Datasets: memory that an event takes.")
    tasks = _Table("tasks", "Finished attempts of tasks.")
    workers = _Table(
        "workers", "Samples of what workers reported with their heartbeats; without Dask, at the interval."
    )
    lifetimes = _Table("lifetimes", "Workers, with their arrival and departure.")
    pauses = _Table("pauses", "Times in which Dask had paused workers for memory.")
    sampling = _Table("sampling", "Samples that Dask's scheduler took of itself at the interval, and those it missed.")
    worker_states = _Table(
        "worker_states", "What the scheduler knew of each worker in these samples: tasks, results held, occupancy."
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self._frames: dict[str, pd.DataFrame] = {}

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

    @property
    def byte_ledger(self) -> ByteLedger:
        """Bytes requested from storage, by class; empty, with the reason in `.absent`, where there is none."""
        return self._metric("byte_ledger", ByteLedger.not_measured)

    @property
    def time_ledger(self) -> TimeLedger:
        """Seconds of worker threads, by class; empty, with the reason in `.absent`, where there is none."""
        return self._metric("time_ledger", TimeLedger.not_measured)

    @property
    def profile(self) -> Profile:
        """Functions and lines that took the time of process(); empty, with the reason in `.absent`, without samples."""
        return profile_of(self.metrics)

    @property
    def bound(self) -> str | None:
        """What most of the thread time went into, in the words of findings; None where no time ledger tells."""
        word: str | None = self.metrics.get("bound")
        return word

    @property
    def verdict(self) -> Verdict:
        """Potential savings, largest first; empty where the run is healthy, or with the reason in `.absent`."""
        return self._metric("verdict", lambda reason: Verdict(absent=reason))

    def _metric(self, name: str, absent: Callable[[str], T]) -> T:
        """A metric, or what stands in its place for a reason."""
        found: T = self.metrics[name] if name in self.metrics else absent(self.metrics.missing[name])
        return found

    def missing_fileset(self, fileset: Mapping[str, Any] | None = None, *, unopened: bool = False) -> dict[str, Any]:
        """Fileset of the files of which nothing came, ready to be run again.

        A Runner call that raised gave no output, so that all its files are in it. Files that came in parts are not,
        as they would count twice: see `missing_items`. Passwords and tokens in URLs were not recorded: only with the
        fileset of the run, whose own names come back, can files that need them be opened.

        Parameters
        ----------
        fileset : mapping, optional
            The fileset of the run: each dataset keeps its own metadata and settings. Without it they are not known.
        unopened : bool
            Only files that could not be opened, which is all that `missing_items` lacks.

        Raises
        ------
        NotMeasuredError
            If it is not known what was asked for, or what came.
        """
        lacking = self.metrics.evaluator.value("unopened_files" if unopened else "files_to_repeat")
        return missing_fileset(lacking, fileset)

    def missing_items(self, fileset: Mapping[str, Any] | None = None) -> list[Any]:
        """Chunks without a result, as work items that a Runner takes in place of a fileset.

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
        return missing_items(self.metrics.evaluator.value("missing_work"), fileset)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name, the ledgers' breakdowns among them."""
        return {name: self.table(name) for name in NAMES}

    def table(self, name: str) -> pd.DataFrame:
        """One of the tables, by its name; the others are not made for it."""
        if name not in self._frames:
            self._frames[name] = frame_named(name, self.run, self.metrics)
        return self._frames[name]

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
        content = partial(metrics_json, self.run, self.metrics)
        return save_run(self.run, folder, name, overwrite=overwrite, metrics_json=content)

    def export(self, path: str | PathLike[str], file_format: str, overwrite: bool = False) -> Path:
        """Write the measurement for other programs; give the path.

        Parameters
        ----------
        path
            Folder that gets a file for each table ("csv", "parquet", "json"), else the file: a Perfetto trace
            whose name ends with ".gz" is compressed.
        file_format : {"csv", "parquet", "json", "openmetrics", "perfetto", "speedscope", "collapsed"}
            "perfetto" is the trace format of Chrome, which https://ui.perfetto.dev shows; "speedscope" (for
            https://www.speedscope.app) and "collapsed" are the profile.
        overwrite
            Replace an export, or a file, that is there; no folder is replaced that is none of an export.

        Raises
        ------
        MeasurementError
            If the format is not known, something is there already, or it cannot be written.
        """
        from roastcoffea.report.exports.writing import export

        return export(self.run, self.metrics, lambda: self.tables, Path(path), file_format, overwrite)

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
        """The first look at it, for notebooks."""
        from roastcoffea.report.digest import digest_of
        from roastcoffea.report.first_look import notebook_look
        from roastcoffea.report.summary import heading

        return notebook_look(digest_of(self.run, self.metrics), heading(self.run))

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
        dark: bool = False,
        output_path: str | PathLike[str] | None = None,
    ) -> tuple[Figure, Axes]:
        """Draw the plot of this name, with or without `plot_`: on these axes, else on a new figure, light or dark.

        Raises
        ------
        ValueError
            If there is no such plot, or what it draws was not measured.
        """
        from roastcoffea.visualization.plots import registered

        return registered(name).function(self, ax=ax, title=title, figsize=figsize, dark=dark, output_path=output_path)


def load(path: str | PathLike[str]) -> Measurement:
    """Measurement that was saved to a folder, by this version or by 0.1.2.

    Raises
    ------
    MeasurementError
        If there is none, or it cannot be read.
    """
    return Measurement(load_run(path))
