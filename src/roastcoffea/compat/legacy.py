"""Readers for measurements saved by version 0.1.2, and for the tagged JSON of schemas 1 to 7."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roastcoffea.compat.shapes import in_bytes, sample_rows
from roastcoffea.errors import UnreadableMeasurementError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, OK
from roastcoffea.records.run import Environment, Run, unwatched_run
from roastcoffea.records.workers import SAMPLE_COLUMNS
from roastcoffea.storage.reading import check_times, content_of, json_of, literal, reading

FORMAT: Final = "roastcoffea_measurement_v1"
METADATA_FILE: Final = "metadata.json"
METRICS_FILE: Final = "metrics.json"
TIMES_FILE: Final = "start_end_time.txt"
FILES: Final = frozenset((METADATA_FILE, METRICS_FILE, TIMES_FILE))
WRITER: Final = "roastcoffea 0.1.2"


Row = Mapping[str, Any]

QUARTER_HOUR: Final = 900

KEYS: Final = {"t_start": "start", "t_end": "stop", "duration": "wall_seconds"} | {
    name: name for name in ("dataset", "file", "uuid", "entry_start", "entry_stop")
}
"""Maps keys in chunk dictionaries to columns."""


DERIVED: Final = ("chunk_info", "raw_span_metrics")
"""Metrics from version 0.1.2 that duplicate other metrics; their keys are tuples converted to strings."""

ABSENT: Final = {
    "branch_reads": f"{WRITER} summed the bytes of branches over files; raw_chunk_metrics has the branches",
    "calls": f"{WRITER} kept no record of the Runner's calls",
    **dict.fromkeys(("client_steps", "worker_requests"), f"{WRITER} did not monitor the client"),
    "client_host": f"{WRITER} did not store it",
    "coffea_report": f"{WRITER} stored only what it computed from coffea's report",
    "hosts": f"{WRITER} did not store them",
    "preprocessing": f"{WRITER} did not monitor coffea's preprocessing",
    "sections": f"{WRITER} kept no table of sections; raw_chunk_metrics has them",
    "lifetimes": f"{WRITER} only sampled the workers, so their arrivals and departures are unknown",
    "pauses": f"{WRITER} did not record pauses",
    **dict.fromkeys(("sampling", "worker_states"), f"{WRITER} stored its samples together with the worker samples"),
    "sampling_interval": f"{WRITER} did not store it",
    "scheduler_clock_offset": f"{WRITER} did not measure it",
    "tasks": f"{WRITER} kept no record of tasks",
}
ABSENT_COLUMNS: Final = {
    "chunks.coffea_bytes_read": f"{WRITER} counted bytes only in process(); see raw_chunk_metrics",
    "chunks.coffea_columns": f"{WRITER} stored a different list of branches; see raw_chunk_metrics",
}

CAUTIONS: Final = (
    f"{WRITER} used wall time as CPU time: total_cpu_time, core_efficiency and speedup_factor include waiting",
    f"{WRITER} measured chunks only in process(): opening the file and building events are not included",
)
UNKNOWN_ZONE: Final = f"{WRITER} stored local times without a time zone: they are treated as UTC"


def load_legacy(folder: Path) -> Run:
    """Load a run from a measurement folder that version 0.1.2 saved.

    Metrics are kept as reported, and raw data are converted to records if possible. `reported` also contains `t0` and
    `t1`, the clock readings in `start_end_time.txt`. The uncertainty of `start` is the time for which the collector was
    open before the first record and after the last record.
    """
    metadata_file, times_file, metrics_file = (folder / name for name in (METADATA_FILE, TIMES_FILE, METRICS_FILE))
    with reading(metadata_file):
        metadata = _json(metadata_file)
        if metadata.get("format") != FORMAT:
            raise UnreadableMeasurementError(
                f"{metadata_file} was not written by {WRITER}; pass a measurement's folder"
            )
        saved = _as_if_utc(metadata["timestamp"])
    with reading(times_file):
        t0, t1 = map(float, content_of(times_file, 1000).decode().split(","))
    with reading(metrics_file):
        metrics = _json(metrics_file)
        return _run(folder.resolve(), metrics, saved, t0, t1)


def _run(folder: Path, metrics: dict[str, Any], saved: float, t0: float, t1: float) -> Run:
    chunks = [_chunk(stored) for stored in metrics.get("raw_chunk_metrics") or ()]
    samples = sample_rows(metrics.get("tracking_data") or {}, _as_if_utc)
    zone = _zone(samples, chunks, saved)
    # in these fields, 0 means unknown
    samples = [
        sample
        | {name: sample.get(name) or None for name in ("last_seen", "memory", "memory_limit")}
        | {"time": sample["time"] - (zone or 0)}
        for sample in samples
    ]
    seen = [*_known(samples, "time"), *_known(chunks, "start"), *_known(chunks, "stop")]
    start = _start(saved - (zone or 0), t1 - t0, seen)
    check_times(start, start + (t1 - t0))
    spans = metrics.get("raw_span_metrics")
    others = {name: value for name, value in metrics.items() if name not in DERIVED}
    parts: dict[str, Any] = {
        "chunks": table_of_rows(CHUNK_COLUMNS, chunks) if chunks else None,
        "samples": table_of_rows(SAMPLE_COLUMNS, samples) if samples else None,
        "span_metrics": None if spans is None else {_tuple(key): value for key, value in spans.items()},
    }
    return unwatched_run(
        id=_identity(folder),
        name=folder.name,
        start=start,
        stop=start + (t1 - t0),
        backend="dask",
        environment=Environment(versions={"roastcoffea": "0.1.2"}, client_host=None),
        **parts,
        reported=with_python_types(others) | {"t0": t0, "t1": t1},
        reported_by=WRITER,
        absent=ABSENT | _absent_parts(parts),
        problems=CAUTIONS if zone is not None else (*CAUTIONS, UNKNOWN_ZONE),
    )


def _chunk(stored: Row) -> dict[str, Any]:
    error = stored.get("error")
    return {column: stored.get(key) for key, column in KEYS.items()} | {
        "events": None if error else stored.get("num_events"),
        # no process uses 0 bytes of memory
        "memory_before": in_bytes(stored.get("mem_before_mb") or None),
        "memory_after": in_bytes(stored.get("mem_after_mb") or None),
        "outcome": ERROR if error else OK,
        "error": str(error) if error else None,
    }


def _zone(samples: Sequence[Row], chunks: Sequence[Row], saved: float) -> float | None:
    """UTC offset of the local time in seconds; None if unknown.

    The Unix time of a heartbeat is slightly earlier than the local time of its sample. If there are no heartbeats, the
    last chunk is assumed to have ended shortly before the last sample, or before the measurement was saved.
    """
    ahead = [row["time"] - row["last_seen"] for row in samples if row.get("last_seen")]
    stops = _known(chunks, "stop")
    if not ahead and stops:
        ahead = [max(_known(samples, "time"), default=saved) - max(stops)]
    return QUARTER_HOUR * round(median(ahead) / QUARTER_HOUR) if ahead else None


def _start(saved: float, elapsed: float, seen: Sequence[float]) -> float:
    """Start of the run, assuming that it includes all records and ended before the measurement was saved."""
    latest = saved - elapsed
    return min(max(latest, max(seen) - elapsed), *seen) if seen else latest


def _known(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if row.get(column) is not None]


def with_python_types(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the original types in metrics: tuple keys and datetimes.

    Values with the same name but a different shape are not changed.
    """
    return {**metrics} | {name: _restored(metrics[name]) for name in (*DERIVED, "tracking_data") if name in metrics}


def _restored(stored: Any) -> Any:
    if isinstance(stored, dict):
        typed = {_key(key): _restored(value) for key, value in stored.items()}
        return typed if len(typed) == len(stored) else stored
    if isinstance(stored, list) and all(isinstance(point, list) and len(point) == 2 for point in stored):
        points = [(_key(time), value) for time, value in stored]
        return points if all(isinstance(time, datetime) for time, _ in points) else stored
    return stored


def _key(text: Any) -> Any:
    for read in (_moment, _tuple):
        with suppress(TypeError, ValueError):
            found = read(text)
            hash(found)
            return found
    return text


def _moment(text: str) -> datetime:
    """Parse str(datetime); raise a ValueError for other formats, e.g. 20260301."""
    moment = datetime.fromisoformat(text)
    if text not in (moment.isoformat(), str(moment)):
        raise ValueError(f"{text!r} is not a datetime")
    return moment


def _absent_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    reasons = {}
    for name, part in parts.items():
        if part is None:
            reasons[name] = f"{WRITER} stored none in this measurement"
        elif isinstance(part, pa.Table):
            empty = [f"{name}.{column}" for column in part.column_names if part[column].null_count == len(part)]
            reasons |= {column: ABSENT_COLUMNS.get(column, f"{WRITER} did not store it") for column in empty}
    reasons.pop("chunks.error", None)
    return reasons


def _identity(folder: Path) -> str:
    """Run ID derived from the folder's content, so that it is the same each time the folder is read."""
    content = b"".join(content_of(folder / name) for name in (METADATA_FILE, TIMES_FILE, METRICS_FILE))
    return hashlib.sha256(content).hexdigest()[:32]


def _tuple(text: str) -> tuple[Any, ...]:
    found = literal(text)
    if not isinstance(found, tuple):
        raise TypeError(f"{text!r} is not a tuple")
    return found


def _as_if_utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def _json(path: Path) -> Any:
    # Python wrote NaN and infinities, but these are not measured values
    return json_of(path, parse_constant=lambda _: None)


TAG: Final = "$"


def untagged(found: Any) -> Any:
    """Restore the original Python types in parsed JSON; damaged content may raise any error."""
    if isinstance(found, list):
        return [untagged(item) for item in found]
    if not isinstance(found, dict):
        return found
    items = {key: untagged(item) for key, item in found.items()}
    return _READERS[items[TAG]](items["of"]) if TAG in items else items


def _text(content: str) -> str:
    return base64.b64decode(content).decode("utf-8", "surrogatepass")


def _array(content: str) -> Any:
    npy = base64.b64decode(content)
    try:
        _check_size(npy)
        return np.lib.format.read_array(io.BytesIO(npy), allow_pickle=False)
    except tokenize.TokenError as error:
        raise ValueError(f"an array cannot be read: {error}") from None


def _check_size(npy: bytes) -> None:
    """Raise a ValueError if the header declares more data than are present, before numpy allocates memory for them."""
    file, form = io.BytesIO(npy), np.lib.format
    header = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
    shape, _, kind = header(file)
    declared = math.prod(shape) * max(kind.itemsize, 1)
    if declared > len(npy):
        raise ValueError(f"an array of {declared} bytes has only {len(npy) - file.tell()}")


def _scalar(content: str) -> Any:
    array = _array(content)
    array.setflags(write=False)  # makes structured scalars, which may be keys, hashable
    return array[()]


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    **{kind.__name__: kind for kind in (float, tuple, set, frozenset, dict)},
    "int": lambda text: int(text, 16),
    "str": _text,
    "bytes": base64.b64decode,
    "complex": lambda parts: complex(*map(float, parts)),
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "numpy.str": lambda content: np.str_(_text(content)),
    "numpy.bytes": lambda content: np.bytes_(base64.b64decode(content)),
    "numpy.array": _array,
    "numpy.scalar": _scalar,
}
