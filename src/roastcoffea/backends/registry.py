"""Backend lookup by name, and the recorder for custom backends."""

from __future__ import annotations

import math
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.local import ProcessRecorder, host_and_process
from roastcoffea.backends.recorder import Recorder, RecordingBackend
from roastcoffea.compat.shapes import COUNTS, SERIES, samples_of, seconds
from roastcoffea.errors import reported
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS, SAMPLING_COLUMNS

CORES: Final = "worker_cores"
WHOLE_NUMBERS: Final = {
    column.name for column in (*SAMPLE_COLUMNS, *LIFETIME_COLUMNS, *SAMPLING_COLUMNS) if column.kind == "integer"
}

OF_WORKERS: Final = ("samples", "lifetimes")


Series = dict[str, list[tuple[float, Any]]]


class AdaptedRecorder(Recorder):
    """Recorder for a custom backend, which has only the documented methods.

    Errors in the backend must not make the analysis fail; they are recorded as reasons for missing data.
    """

    def __init__(self, backend: AbstractMetricsBackend) -> None:
        self._backend = backend
        self._called = type(backend).__name__
        self.elsewhere = f"{self._called} does not record a Dask cluster; measure it with MetricsCollector(client)"
        self.kind = str(getattr(backend, "kind", self._called))
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self.absent["span_metrics"] = f"{self._called} has no fine metrics"
        self.absent["worker_states"] = f"{self._called} does not sample a scheduler; its series are worker samples"
        self.absent["sampling"] = f"{self._called} returned no {COUNTS}"
        self._counts: list[tuple[float, int]] = []
        self._series: dict[str, Series] = {}
        self._interval: float | None = None
        self._tracks = False
        self._span: dict[str, Any] | None = None

    def open(self, interval: float | None, span: str | None = None) -> None:  # noqa: ARG002  (for Dask)
        self._begin()
        self._period.is_open = self._period.was_open = True
        self._began, self._interval = time.time(), interval
        if interval is None:
            self.absent |= dict.fromkeys(OF_WORKERS, "track_workers=False")
        else:
            with reported(self._without(*OF_WORKERS), f"{self._called}.start_tracking() failed", Exception):
                self._backend.start_tracking(interval)
                self._tracks = True
        with reported(self._without("span_metrics"), f"{self._called} opened no span", Exception):
            if self._backend.supports_fine_metrics():
                opened = dict(self._backend.create_span("roastcoffea"))
                opened["id"] = opened["context"].__enter__()
                self._span = opened

    def leave_span(self) -> None:
        if self._span is not None:
            with reported(self.note, f"{self._called} did not close its span", Exception):
                self._span["context"].__exit__(None, None, None)

    def close(self) -> None:
        if not self.is_open:
            return
        self._period.is_open = False
        if self._tracks:
            with reported(self._without(*OF_WORKERS), f"{self._called}.stop_tracking() failed", Exception):
                self._take(self._backend.stop_tracking())
        if self._span is not None:
            with reported(self._without("span_metrics"), f"{self._called}.get_span_metrics() failed", Exception):
                self.span_metrics = checked_metrics(self._backend.get_span_metrics(self._span))
                self.absent.pop("span_metrics")

    def table(self, name: str, chunks: pa.Table | None, start: float, stop: float) -> pa.Table | None:
        return None if name in self.absent else super().table(name, chunks, start, stop)

    def samples(self) -> pa.Table:
        return samples_of(self._series).sort_by("time")

    def sampling(self) -> pa.Table:
        rows = ({"time": moment, "workers": workers} for moment, workers in self._counts)
        return table_of_rows(SAMPLING_COLUMNS, rows)

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers, each present from its first to its last sample, with its last thread count.

        If a worker's first sample was taken soon after the start of the run, the worker counts as present from the
        start. If its last sample was taken shortly before the end, it counts as present until the end.
        """
        moments: dict[str, list[float]] = {}
        for series in self._series.values():
            for worker, points in series.items():
                moments.setdefault(worker, []).extend(moment for moment, _ in points)
        cores, near = self._series.get(CORES, {}), 2 * (self._interval or 0.0)
        rows = []
        for worker, times in moments.items():
            first, last = (min(max(moment, start), stop) for moment in (min(times), max(times)))
            host, process = host_and_process(worker)
            row: dict[str, Any] = {"worker": worker, "host": host, "process": process}
            row["threads"] = cores[worker][-1][1] if worker in cores else None
            row["start"] = start if first - start <= near else first
            row["stop"] = stop if stop - last <= near else last
            rows.append(row)
        return table_of_rows(LIFETIME_COLUMNS, rows)

    # reading what the backend returned

    def _take(self, tracked: Any) -> None:
        if not isinstance(tracked, Mapping):
            raise TypeError(f"it returned {type(tracked).__name__}, not a mapping of series")
        columns = dict(SERIES)
        for name, series in tracked.items():
            if name in columns:
                with reported(self.note, f"{name} from {self._called} could not be read", Exception):
                    read = {str(worker): _points(points, columns[name]) for worker, points in series.items()}
                    self._series[name] = {worker: points for worker, points in read.items() if points}
            elif name == COUNTS:
                with reported(self._without("sampling"), f"{COUNTS} from {self._called} could not be read", Exception):
                    self._counts = _points(series.items(), "workers")
                    self.absent.pop("sampling", None)
            else:
                self.note(f"{self._called} returned {name!r}; known series: {', '.join((COUNTS, *columns))}")
        if not any(self._series.values()):
            none = f"{self._called}.stop_tracking() returned no worker samples"
            self.absent |= dict.fromkeys(OF_WORKERS, none)
        elif not any(series for name, series in self._series.items() if name != CORES):
            self.absent["samples"] = f"{self._called} returned no series except {CORES}"

    def _without(self, *tables: str) -> Callable[[str], None]:
        """Callback that records a problem as the reason why these tables are missing."""

        def take(problem: str) -> None:
            self.note(problem)
            self.absent |= dict.fromkeys(tables, problem)

        return take


def _points(points: Iterable[tuple[Any, Any]], column: str) -> list[tuple[float, Any]]:
    """Sorted times and values of a series, excluding values that were not measured."""
    found = sorted((seconds(moment), value) for moment, value in points if value is not None)
    if column == "last_seen":
        return [(moment, seconds(value)) for moment, value in found]
    for _, value in found:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"a value is {type(value).__name__}, not a number")
    whole = round if column in WHOLE_NUMBERS else float
    return [(moment, whole(value)) for moment, value in found if math.isfinite(value)]


def checked_metrics(metrics: Any) -> dict[tuple[Any, ...], float]:
    """Fine metrics as floats; raises a TypeError unless they are numbers keyed by tuples."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"it returned {type(metrics).__name__}, not a mapping")
    for key, amount in metrics.items():
        if not (isinstance(key, tuple) and key) or isinstance(amount, bool) or not isinstance(amount, Real):
            raise TypeError(f"it returned {key!r}: {amount!r}, not a number keyed by a tuple such as (..., 'seconds')")
    return {key: float(amount) for key, amount in metrics.items()}


BACKENDS: Final[dict[str, type[Recorder | AbstractMetricsBackend] | str]] = {
    "dask": "roastcoffea.backends.dask:DaskRecorder",
    "local": ProcessRecorder,
}
"""Maps each backend's name to its class or, for Dask, to an import path, so that other runs do not import
`distributed`."""


def backend_for(backend: str | AbstractMetricsBackend | None, client: Any, carried: Any) -> Recorder:
    """Create a collector's recorder from a backend's name, or from a user's backend.

    Parameters
    ----------
    backend
        The default is "dask" if there is a client, and "local" otherwise.
    carried
        Our task code, which is sent to workers that cannot import it.
    """
    if isinstance(backend, RecordingBackend):
        return backend._recorder.renewed(client, carried)
    if isinstance(backend, AbstractMetricsBackend):
        return AdaptedRecorder(backend)
    known = " and ".join(f'"{one}"' for one in BACKENDS)
    if backend is None:
        backend = "local" if client is None else "dask"
    if not isinstance(backend, str):
        found = f"the class {backend.__name__}" if isinstance(backend, type) else type(backend).__name__
        takes = f"backend must be one of {known}, or an instance of a subclass of AbstractMetricsBackend"
        raise TypeError(f"{takes}, not {found}")
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; choose from {known}")
    named: Any = BACKENDS[backend]
    if isinstance(named, str):
        named = pkgutil.resolve_name(named)
    made: Recorder = named.for_collector(client, carried) if issubclass(named, Recorder) else AdaptedRecorder(named())
    return made
