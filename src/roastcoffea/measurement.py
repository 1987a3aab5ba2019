"""A measurement: a run and the results computed from its records on demand."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from roastcoffea.compat import older_keywords
from roastcoffea.diagnosis import Verdict
from roastcoffea.log.journals import saved
from roastcoffea.metrics import ByteLedger, Metrics, TimeLedger, WriteLedger, evaluate
from roastcoffea.metrics.facts import elapsed_seconds, known_names
from roastcoffea.metrics.failures import missing_fileset, missing_items
from roastcoffea.metrics.profile import Profile, profile_of
from roastcoffea.records.run import Run
from roastcoffea.report.tables import NAMES, frame_named, metrics_json
from roastcoffea.storage.sharing import shared
from roastcoffea.storage.store import PAGE_FILE, is_measurement, load_run, save_run
from roastcoffea.units import SECOND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roastcoffea.report.first_look import Places

T = TypeVar("T")


class _Table(property):
    """Property that returns one of a measurement's tables."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(lambda measurement: measurement.table(name))
        self.__doc__ = meaning  # if passed to `property`, the meaning would be hidden by the class's docstring

    def __get__(self, instance: Any, owner: type | None = None, /) -> pd.DataFrame:  # type: ignore[override]
        return super().__get__(instance, owner)  # type: ignore[no-any-return]


class Measurement:
    """A run with its metrics and tables.

    The tables are pandas DataFrames. Values that were not measured are <NA> in integer columns ("Int64") and NaN in
    float columns. `frame.attrs["columns"]` contains the meaning and unit of each column, and `frame.attrs["units"]`
    contains only the units. If a table was not recorded, it is empty, and `frame.attrs["absent"]` contains the reason.
    Each DataFrame is built only once, so make a copy before modifying it.
    """

    chunks = _Table("chunks", "Chunk attempts.")
    preprocessing = _Table("preprocessing", "Files opened by coffea's preprocessing tasks.")
    branches = _Table("branches", "Branches by dataset and file; excludes failed and repeated attempts.")
    sections = _Table("sections", "Sections by name and dataset, including all attempts.")
    functions = _Table("functions", "Profiled thread time by dataset, function and line.")
    hot_functions = _Table("hot_functions", "Slowest lines of user code for each dataset, including time in callees.")
    custom = _Table("custom", "Values recorded by the processor, by name and dataset.")
    failed = _Table("failed", "Failed attempts, with the reason for each failure.")
    failed_files = _Table("failed_files", "Files with failed attempts.")
    missing = _Table("missing", "Requested chunks without a result, and files without chunks.")
    stragglers = _Table("stragglers", "Chunks much slower than predicted for their size and worker.")
    endpoints = _Table("endpoints", "Storage servers, with opens, requests, latency, rates, errors and retries.")
    outputs = _Table("outputs", "Files written by process(), by server and format: bytes, time and rate.")
    worker_balance = _Table(
        "worker_balance", "Each worker's chunks, CPU time, waiting time, speed, spilling and transfers."
    )
    memory_growth = _Table("memory_growth", "Memory growth per chunk of each worker, and when it reaches the limit.")
    worker_memory = _Table(
        "worker_memory", "Peak memory of each worker relative to its limit; pauses, spilling and kills."
    )
    dataset_memory = _Table("dataset_memory", "Memory per event for each dataset.")
    jobs = _Table("jobs", "Batch jobs, with their requested resources, start-up time and core time.")
    tasks = _Table("tasks", "Task attempts, finished or still running at the end of the run.")
    workers = _Table("workers", "Worker samples, taken at Dask's heartbeats or at the sampling interval.")
    lifetimes = _Table("lifetimes", "Arrival and departure times of each worker.")
    pauses = _Table("pauses", "Periods when Dask paused a worker because of its memory use.")
    sampling = _Table("sampling", "Samples of the Dask scheduler's state, and the number of missed samples.")
    worker_states = _Table(
        "worker_states", "State of each worker in the scheduler samples: tasks, results held, occupancy."
    )
    client_steps = _Table(
        "client_steps", "Steps performed by Dask executors on the client thread, and event loop samples."
    )
    worker_requests = _Table("worker_requests", "Requested workers and the states of their jobs, one row per change.")
    arrivals = _Table("arrivals", "When each requested worker arrived and left, or why it did not arrive.")
    merges = _Table("merges", "Merges of results on the workers, by level, with inputs and thread time.")

    def __init__(self, run: Run, noted: Sequence[str] = ()) -> None:
        self._run = run
        self._noted = noted
        """Measurement problems; the caller may append more."""
        self.path: Path | None = None
        """Folder to which the measurement was saved or from which it was loaded."""
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def run(self) -> Run:
        """The run's records, including all problems noted so far."""
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
        """Message of the run's final error, or None if the run finished."""
        return self.run.error

    @property
    def problems(self) -> list[str]:
        """Measurement problems, and the reasons for missing results."""
        from roastcoffea.report.summary import named_problems

        return named_problems(self.run, self.metrics)

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics by name, with the attributes `.missing`, `.source` and `.unit`."""
        return evaluate(self.run)

    @property
    def byte_ledger(self) -> ByteLedger:
        """Bytes requested from storage, by class.

        If the ledger is empty, `.absent` contains the reason.
        """
        return self._metric("byte_ledger", ByteLedger.not_measured)

    @property
    def write_ledger(self) -> WriteLedger:
        """Bytes written by process(), by class.

        If it is empty, `.absent` has the reason.
        """
        return self._metric("write_ledger", WriteLedger.not_measured)

    @property
    def time_ledger(self) -> TimeLedger:
        """Worker thread time by class, in seconds.

        If the ledger is empty, `.absent` contains the reason.
        """
        return self._metric("time_ledger", TimeLedger.not_measured)

    @property
    def profile(self) -> Profile:
        """Time spent in process(), by function and line.

        If the profile is empty, `.absent` contains the reason.
        """
        return profile_of(self.metrics)

    @property
    def bottleneck(self) -> str | None:
        """The cause that takes up the most thread time, named as in the findings.

        None if there is no time ledger.
        """
        word: str | None = self.metrics.get("bound")
        return word

    bound = bottleneck

    @property
    def verdict(self) -> Verdict:
        """Findings, largest saving first; empty if the run is healthy.

        The verdict is also empty if the run could not be judged; in that case, `.absent` contains the reason.
        """
        return self._metric("verdict", lambda reason: Verdict(absent=reason))

    def _metric(self, name: str, absent: Callable[[str], T]) -> T:
        found: T = self.metrics[name] if name in self.metrics else absent(self.metrics.missing[name])
        return found

    def missing_fileset(self, fileset: Mapping[str, Any] | None = None, *, unopened: bool = False) -> dict[str, Any]:
        """Fileset of files without any results, ready to run again.

        If a Runner call raised an exception, it returned no output, so all of its files are included. Partially
        processed files are excluded, because some of their events would be counted twice; use `missing_items` for these
        files. Passwords and tokens in URLs are not recorded. If the files need them, pass the run's fileset, and its
        URLs will be used.

        Parameters
        ----------
        fileset : mapping, optional
            The run's fileset, which provides each dataset's metadata and settings.
        unopened : bool
            Whether to include only the files that could not be opened, which `missing_items` omits.

        Raises
        ------
        NotMeasuredError
            If the requested chunks or the results are unknown.
        """
        lacking = self.metrics.evaluator.value("unopened_files" if unopened else "files_to_repeat")
        return missing_fileset(lacking, fileset)

    def missing_items(self, fileset: Mapping[str, Any] | None = None) -> list[Any]:
        """Chunks without a result, as work items for a Runner.

        Pass these items to a Runner in place of a fileset. Files that could not be opened have no chunks; use
        `missing_fileset` for these files.

        Parameters
        ----------
        fileset : mapping, optional
            The run's fileset, which provides the items' metadata and file names, including any passwords and tokens in
            URLs. Without a fileset, the items have no metadata, and their file names are as recorded, with secrets
            masked.

        Raises
        ------
        NotMeasuredError
            If the requested chunks or the results are unknown.
        """
        return missing_items(self.metrics.evaluator.value("missing_work"), fileset)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name, including the ledgers' breakdowns."""
        return {name: self.table(name) for name in NAMES}

    def table(self, name: str) -> pd.DataFrame:
        """A single table by name; no other tables are built."""
        if name not in self._frames:
            self._frames[name] = frame_named(name, self.run, self.metrics)
        return self._frames[name]

    @property
    def fine_metrics(self) -> dict[tuple[Any, ...], float]:
        """Dask's fine metrics for the run's span, keyed by tuple; may be empty."""
        return dict(self.run.span_metrics or {})

    @property
    def fine_metrics_per_worker(self) -> dict[str, dict[tuple[Any, ...], float]]:
        """Dask's fine metrics, keyed by worker address and tuple; may be empty."""
        return {worker: dict(counted) for worker, counted in (self.run.span_metrics_per_worker or {}).items()}

    @cached_property
    def _shared(self) -> Measurement:
        return self if self.run.shared else Measurement(shared(self.run))

    def share(self) -> Measurement:
        """Copy for publication, with made-up names for hosts, users and paths.

        Each name is always replaced with the same made-up name, and numbers do not change. The names of datasets,
        sections, processors, functions, branches and the run are kept, but any hosts and users in them are replaced.
        """
        return self._shared

    @older_keywords(folder="path")
    def save(
        self, path: str | PathLike[str], name: str | None = None, overwrite: bool = False, *, share: bool = False
    ) -> Path:
        """Save the measurement as `path/name` and return that path.

        The new folder contains `metrics.json`, for use by other programs, and the records that `load` reads.

        Parameters
        ----------
        path
            Parent folder for the measurement.
        name
            Name of the new folder. The default is based on the run's name or the time.
        overwrite
            Whether to overwrite an existing measurement with that name.
        share
            Whether to replace hosts, users and paths with made-up names.

        Raises
        ------
        MeasurementError
            If the name is taken or points outside `path`, or if the measurement cannot be written.
        """
        if share and not self.run.shared:
            return self.share().save(path, name, overwrite)
        content = partial(metrics_json, self.run, self.metrics)
        self.path = save_run(self.run, path, name, overwrite=overwrite, metrics_json=content)
        saved(self)
        return self.path

    def export(
        self, path: str | PathLike[str], file_format: str, overwrite: bool = False, *, share: bool = False
    ) -> Path:
        """Export the measurement for use in other programs, and return the path.

        Parameters
        ----------
        path
            Output folder for "csv", "parquet" and "json", which write one file per table, or output file for the other
            formats. A Perfetto trace is compressed if the file name ends in ".gz".
        file_format : {"csv", "parquet", "json", "openmetrics", "perfetto", "speedscope", "collapsed"}
            "perfetto" writes a trace in Chrome's format for https://ui.perfetto.dev. "speedscope" (for
            https://www.speedscope.app) and "collapsed" write the profile.
        overwrite
            Whether to overwrite an existing export or file. Folders that are not exports are never overwritten.
        share
            Whether to replace hosts, users and paths with made-up names.

        Raises
        ------
        MeasurementError
            If the format is unknown, or the path exists or cannot be written.
        """
        from roastcoffea.report.exports import export

        one = self.share() if share else self
        return export(one, Path(path), file_format, overwrite)

    @older_keywords(file="path")
    def report(
        self, path: str | PathLike[str], *, every_task: bool = False, overwrite: bool = False, share: bool = False
    ) -> Path:
        """Write the run's page as a single HTML file, and return its path.

        Parameters
        ----------
        path
            Output file. It appears only once it is complete.
        every_task
            Whether to include every task even if there are more than 100,000.
        overwrite
            Whether to overwrite an existing file.
        share
            Whether to replace hosts, users and paths with made-up names, so that the page can be published.

        Raises
        ------
        MeasurementError
            If the file exists or cannot be written.
        """
        from roastcoffea.report.page.contents import write_page

        return write_page(self.share() if share else self, Path(path), every_task=every_task, overwrite=overwrite)

    def _repr_html_(self) -> str:
        from roastcoffea.report.first_look import digest_of, notebook_look
        from roastcoffea.report.summary import heading

        return notebook_look(digest_of(self.run, self.metrics), heading(self.run))

    def summary(self, *, all: bool = False, group: str | None = None) -> str:  # noqa: A002  (as `print_summary`)
        """The output of `print_summary` as a string, without colours.

        Parameters
        ----------
        all, group
            See `print_summary`.
        """
        text = io.StringIO()
        self.print_summary(text, all=all, group=group)
        return text.getvalue()

    def print_summary(
        self,
        file: IO[str] | None = None,
        *,
        all: bool = False,  # noqa: A002  (the obvious word)
        group: str | None = None,
    ) -> None:
        """Print a summary of time spent and bytes read, with recommended changes.

        Parameters
        ----------
        file
            Text file object to print to; by default, the terminal.
        all
            Whether to print all tables instead of the summary.
        group
            Group of tables to print instead of the summary, e.g. "bytes". `roastcoffea show --help` lists the groups.

        Raises
        ------
        ValueError
            If the group is unknown.
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
        """How to find the results that the summary does not print."""
        from roastcoffea.report.first_look import Places

        if self.path is None:
            return Places()
        page, path = self.path / PAGE_FILE, f"{shlex.quote(str(self.path))}{' --share' * self.run.shared}"
        load = "load" if is_measurement(self.path) else "merge"
        return Places(
            tables=f"roastcoffea show {path} --all",
            page=str(page) if page.exists() else f"roastcoffea report {path}",
            measurement=f"measurement = roastcoffea.{load}({str(self.path)!r})",
        )

    @older_keywords(output_path="path")
    def plot(
        self,
        name: str,
        ax: Axes | None = None,
        *,
        title: str | None = None,
        figsize: tuple[float, float] | None = None,
        dark: bool = False,
        path: str | PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> tuple[Figure, Axes]:
        """Draw the named plot, e.g. "time_ledger".

        Parameters
        ----------
        name
            Name of the plot function, with or without the prefix `plot_`.
        ax, title, figsize, dark
            Passed to the plot function.
        path
            File to which the figure is saved. The extension (png, pdf or svg) sets the format.
        overwrite
            Whether to overwrite an existing file.

        Raises
        ------
        ValueError
            If the plot is unknown, or if its data were not measured.
        MeasurementError
            If the file exists or cannot be written.
        """
        from roastcoffea.visualization.plots import registered

        drawn = registered(name).function
        return drawn(self, path, ax=ax, title=title, figsize=figsize, dark=dark, overwrite=overwrite)


def load(path: str | PathLike[str]) -> Measurement:
    """Load a saved measurement.

    Measurements saved by version 0.1.2 can also be loaded.

    Raises
    ------
    MeasurementError
        If the measurement does not exist or cannot be read.
    """
    measurement = Measurement(load_run(path))
    measurement.path = Path(path)
    return measurement
