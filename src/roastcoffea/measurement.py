"""A measurement: a run, and results computed from it on request."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from roastcoffea.diagnosis import Verdict
from roastcoffea.log.journal import saved
from roastcoffea.metrics import ByteLedger, Metrics, TimeLedger, evaluate
from roastcoffea.metrics.facts import elapsed_seconds, known_names
from roastcoffea.metrics.failures import missing_fileset, missing_items
from roastcoffea.metrics.profile import Profile, profile_of
from roastcoffea.records.run import Run
from roastcoffea.report.tables import NAMES, frame_named, metrics_json
from roastcoffea.storage.sharing import shared
from roastcoffea.storage.store import PAGE_FILE, load_run, save_run
from roastcoffea.units import SECOND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roastcoffea.report.first_look import Places

T = TypeVar("T")


class _Table(property):
    """A table as an attribute of a measurement."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(lambda measurement: measurement.table(name))
        self.__doc__ = meaning  # passed to property, it would be behind that of the class

    def __get__(self, instance: Any, owner: type | None = None, /) -> pd.DataFrame:  # type: ignore[override]
        return super().__get__(instance, owner)  # type: ignore[no-any-return]


class Measurement:
    """A run with its metrics and tables.

    Tables are pandas DataFrames with one row per thing. Integers are "Int64", with <NA> if not measured; floats have
    NaN. `frame.attrs["columns"]` has the meaning and unit of each column, `frame.attrs["units"]` the unit alone; a
    table that was not recorded is empty, and `frame.attrs["absent"]` has the reason. Frames are built once: copy before
    changing.
    """

    chunks = _Table("chunks", "Attempts of chunks.")
    preprocessing = _Table("preprocessing", "File openings by coffea's preprocessing tasks.")
    branches = _Table("branches", "Branches of files by dataset, over the attempts that counted.")
    sections = _Table("sections", "Sections by name and dataset, over all attempts.")
    functions = _Table("functions", "Lines of functions by dataset, with their thread time in the profile.")
    hot_functions = _Table("hot_functions", "Lines of user code by dataset and what they call, most thread time first.")
    custom = _Table("custom", "Values recorded by the processor, by name and dataset, over attempts that counted.")
    failed = _Table("failed", "Failed attempts, with their reason.")
    failed_files = _Table("failed_files", "Files with a failed attempt.")
    missing = _Table("missing", "Requested chunks without a result, and files without chunks.")
    stragglers = _Table(
        "stragglers", "Chunks that took much longer than their events, bytes and worker predict, worst first."
    )
    endpoints = _Table(
        "endpoints", "Servers that files were read from: opens, requests, latency, rates, errors and retries."
    )
    worker_balance = _Table(
        "worker_balance", "Workers side by side: chunks, CPU and waiting, speed, spilling and transfers."
    )
    worker_memory = _Table("worker_memory", "Workers: peak memory against the limit; pauses, spilling, kills.")
    dataset_memory = _Table("dataset_memory", "Datasets: memory per event.")
    jobs = _Table("jobs", "Batch jobs: cores and memory requested, start-up, and core time charged.")
    tasks = _Table("tasks", "Finished attempts of tasks.")
    workers = _Table("workers", "Samples that workers reported with their heartbeats; without Dask, at the interval.")
    lifetimes = _Table("lifetimes", "Workers, with their arrival and departure.")
    pauses = _Table("pauses", "Pauses of workers by Dask for memory.")
    sampling = _Table("sampling", "Samples that Dask's scheduler took at the interval, and those it missed.")
    worker_states = _Table(
        "worker_states", "Scheduler's state of each worker in these samples: tasks, results held, occupancy."
    )
    client_steps = _Table(
        "client_steps", "What the client's thread did for executors on Dask, and samples of its event loop."
    )
    merges = _Table("merges", "Merges of results on the workers, by level: inputs, sizes, thread time.")

    def __init__(self, run: Run, noted: Sequence[str] = ()) -> None:
        self._run = run
        self._noted = noted
        """Problems of the measuring, to which more may come."""
        self.path: Path | None = None
        """Folder in which it was saved, or from which it was loaded."""
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def run(self) -> Run:
        """The records, with the problems so far."""
        if later := [problem for problem in self._noted if problem not in self._run.problems]:
            self._run = replace(self._run, problems=(*self._run.problems, *later))
        return self._run

    def __repr__(self) -> str:
        elapsed = SECOND.text(elapsed_seconds(self.run))
        return f"<Measurement {self.run.name or self.run.id!r}: {self.outcome}, {elapsed}>"

    @property
    def outcome(self) -> str:
        """ "finished" or "failed"."""
        return self.run.outcome

    @property
    def error(self) -> str | None:
        """Text of the error that ended the run; None if it finished."""
        return self.run.error

    @property
    def problems(self) -> list[str]:
        """Problems of the measurement, and results that could not be computed; workers are called by name."""
        from roastcoffea.report.summary import named_problems

        return named_problems(self.run, self.metrics)

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics by name, with `.missing`, `.source` and `.unit`."""
        return evaluate(self.run)

    @property
    def byte_ledger(self) -> ByteLedger:
        """Bytes requested from storage, by class; without a ledger it is empty, with the reason in `.absent`."""
        return self._metric("byte_ledger", ByteLedger.not_measured)

    @property
    def time_ledger(self) -> TimeLedger:
        """Seconds of worker threads, by class; without a ledger it is empty, with the reason in `.absent`."""
        return self._metric("time_ledger", TimeLedger.not_measured)

    @property
    def profile(self) -> Profile:
        """Functions and lines that took the time of process(); empty, with the reason in `.absent`, without samples."""
        return profile_of(self.metrics)

    @property
    def bound(self) -> str | None:
        """The bottleneck: the cause with most thread time, in the words of findings; None without a time ledger."""
        word: str | None = self.metrics.get("bound")
        return word

    @property
    def verdict(self) -> Verdict:
        """Potential savings, largest first; empty if the run is healthy, or with the reason in `.absent`."""
        return self._metric("verdict", lambda reason: Verdict(absent=reason))

    def _metric(self, name: str, absent: Callable[[str], T]) -> T:
        """A metric, or a replacement made from the reason for its absence."""
        found: T = self.metrics[name] if name in self.metrics else absent(self.metrics.missing[name])
        return found

    def missing_fileset(self, fileset: Mapping[str, Any] | None = None, *, unopened: bool = False) -> dict[str, Any]:
        """Fileset of the files without any result, ready to run again.

        A Runner call that raised returned no output, so that all its files are included. Partly processed files are
        not, because they would count twice: see `missing_items`. Passwords and tokens in URLs were not recorded: to
        open files that need them, pass the fileset of the run, whose names are then used.

        Parameters
        ----------
        fileset : mapping, optional
            The fileset of the run, for each dataset's own metadata and settings.
        unopened : bool
            Only files that could not be opened, which are the ones that `missing_items` lacks.

        Raises
        ------
        NotMeasuredError
            If the requests or the results are unknown.
        """
        lacking = self.metrics.evaluator.value("unopened_files" if unopened else "files_to_repeat")
        return missing_fileset(lacking, fileset)

    def missing_items(self, fileset: Mapping[str, Any] | None = None) -> list[Any]:
        """Chunks without a result, as work items that a Runner accepts in place of a fileset.

        Files that could not be opened have no chunks: see `missing_fileset`.

        Parameters
        ----------
        fileset : mapping, optional
            The fileset of the run, for the items' metadata and file names, including passwords and tokens in URLs.
            Without it the items have no metadata, and their names are the recorded ones, without secrets.

        Raises
        ------
        NotMeasuredError
            If the requests or the results are unknown.
        """
        return missing_items(self.metrics.evaluator.value("missing_work"), fileset)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name, including the ledgers' breakdowns."""
        return {name: self.table(name) for name in NAMES}

    def table(self, name: str) -> pd.DataFrame:
        """One of the tables by name, without building the others."""
        if name not in self._frames:
            self._frames[name] = frame_named(name, self.run, self.metrics)
        return self._frames[name]

    @property
    def fine_metrics(self) -> dict[tuple[Any, ...], float]:
        """Dask's own metrics of the run's span, by tuple; empty if there are none."""
        return dict(self.run.span_metrics or {})

    @property
    def fine_metrics_per_worker(self) -> dict[str, dict[tuple[Any, ...], float]]:
        """Dask's own metrics of each worker, by its address and tuple; empty if there are none."""
        return {worker: dict(counted) for worker, counted in (self.run.span_metrics_per_worker or {}).items()}

    @cached_property
    def _shared(self) -> Measurement:
        return self if self.run.shared else Measurement(shared(self.run))

    def share(self) -> Measurement:
        """The measurement with made-up names of hosts, users and paths, to show to anybody.

        Equal names stay equal and numbers are the same. Names of datasets, sections, processors, functions, branches
        and of the run are kept, apart from hosts and users in them.
        """
        return self._shared

    def save(
        self, folder: str | PathLike[str], name: str | None = None, overwrite: bool = False, *, share: bool = False
    ) -> Path:
        """Write the measurement to `folder/name`, and return that path.

        The default name is made from that of the run, or the time. An existing measurement is overwritten only with
        `overwrite`. Its `metrics.json` is for other programs; `load` reads the records next to it. With `share`, hosts,
        users and paths have made-up names.

        Raises
        ------
        MeasurementError
            If the name leaves the folder, is taken, or the measurement cannot be written.
        """
        if share and not self.run.shared:
            return self.share().save(folder, name, overwrite)
        content = partial(metrics_json, self.run, self.metrics)
        self.path = save_run(self.run, folder, name, overwrite=overwrite, metrics_json=content)
        saved(self)
        return self.path

    def export(
        self, path: str | PathLike[str], file_format: str, overwrite: bool = False, *, share: bool = False
    ) -> Path:
        """Write the measurement for other programs, and return the path.

        Parameters
        ----------
        path
            Folder for a file per table ("csv", "parquet", "json"), otherwise the file: a Perfetto trace whose name ends
            with ".gz" is compressed.
        file_format : {"csv", "parquet", "json", "openmetrics", "perfetto", "speedscope", "collapsed"}
            "perfetto" is Chrome's trace format for https://ui.perfetto.dev; "speedscope" (for
            https://www.speedscope.app) and "collapsed" are the profile.
        overwrite
            Overwrite an existing export or file; folders that are not exports are never overwritten.
        share
            Give hosts, users and paths made-up names.

        Raises
        ------
        MeasurementError
            If the format is unknown, the path exists, or it cannot be written.
        """
        from roastcoffea.report.exports import export

        one = self.share() if share else self
        return export(one, Path(path), file_format, overwrite)

    def report(
        self, path: str | PathLike[str], *, every_task: bool = False, overwrite: bool = False, share: bool = False
    ) -> Path:
        """Write a page about the run to one HTML file for any browser, and return its path.

        Parameters
        ----------
        path
            The file, which appears when it is complete.
        every_task
            Include every task, even if there are more than 100,000.
        overwrite
            Overwrite an existing file.
        share
            Give hosts, users and paths made-up names, so that the page can be published.

        Raises
        ------
        MeasurementError
            If the file exists or cannot be written.
        """
        from roastcoffea.report.page.contents import write_page

        return write_page(self.share() if share else self, Path(path), every_task=every_task, overwrite=overwrite)

    def _repr_html_(self) -> str:
        """The first look at it, for notebooks."""
        from roastcoffea.report.first_look import digest_of, notebook_look
        from roastcoffea.report.summary import heading

        return notebook_look(digest_of(self.run, self.metrics), heading(self.run))

    def print_summary(
        self,
        file: IO[str] | None = None,
        *,
        all: bool = False,  # noqa: A002  (a word that people type)
        group: str | None = None,
    ) -> None:
        """Print what ran, where time and bytes went and what to change, to the terminal or into a file.

        Parameters
        ----------
        file
            Where to print; None for the terminal.
        all
            Whether to print all tables instead.
        group
            Group of tables to print alone, such as "bytes"; see `roastcoffea show --help`.

        Raises
        ------
        ValueError
            If there is no such group.
        """
        from roastcoffea.report.summary import summary
        from roastcoffea.sheets.terminal import console_for, print_sheets

        if all or group is not None:
            print_sheets(summary(self.run, self.metrics, group), file)
            return
        from roastcoffea.report.first_look import NARROWEST, digest_of, print_first_look

        names = known_names(self.metrics.evaluator)
        print_first_look(console_for(file, NARROWEST), digest_of(self.run, self.metrics), self._places, names)

    @property
    def _places(self) -> Places:
        """Where all of it is to be seen."""
        from roastcoffea.report.first_look import Places

        if self.path is None:
            return Places()
        page, path = self.path / PAGE_FILE, shlex.quote(str(self.path))
        return Places(
            tables=f"roastcoffea show {path} --all",
            page=str(page) if page.exists() else f"roastcoffea report {path}",
            measurement=f"measurement = roastcoffea.load({str(self.path)!r})",
        )

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
        """Draw the plot of this name, with or without `plot_`, on these axes or on a new figure, light or dark.

        Raises
        ------
        ValueError
            If there is no such plot, or its data were not measured.
        """
        from roastcoffea.visualization.plots import registered

        return registered(name).function(self, ax=ax, title=title, figsize=figsize, dark=dark, output_path=output_path)


def load(path: str | PathLike[str]) -> Measurement:
    """Load a measurement saved by this version or by 0.1.2.

    Raises
    ------
    MeasurementError
        If there is none, or it cannot be read.
    """
    measurement = Measurement(load_run(path))
    measurement.path = Path(path)
    return measurement
