"""Measurements of 0.1.2, and the tagged JSON of schemas 1 to 7, which is only read."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
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
"""All files of a measurement's folder."""
WRITER: Final = "roastcoffea 0.1.2"


Row = Mapping[str, Any]

QUARTER_HOUR: Final = 900

KEYS: Final = {"t_start": "start", "t_end": "stop", "duration": "wall_seconds"} | {
    name: name for name in ("dataset", "file", "uuid", "entry_start", "entry_stop")
}
"""Keys of a chunk, and the columns that they become."""


DERIVED: Final = ("chunk_info", "raw_span_metrics")
"""Metrics of 0.1.2 that repeat others under the text of tuples."""

ABSENT: Final = {
    "branch_reads": f"{WRITER} summed the bytes of branches over files; raw_chunk_metrics has the branches",
    "calls": f"{WRITER} kept no record of the Runner's calls",
    "client_steps": f"{WRITER} did not watch the client",
    "client_host": f"{WRITER} did not store it",
    "coffea_report": f"{WRITER} stored only what it computed from coffea's report",
    "hosts": f"{WRITER} did not store them",
    "preprocessing": f"{WRITER} did not watch coffea's preprocessing",
    "sections": f"{WRITER} kept no table of sections; raw_chunk_metrics has them",
    "lifetimes": f"{WRITER} sampled its workers: their arrivals and departures are unknown",
    "pauses": f"{WRITER} did not watch for them",
    **dict.fromkeys(("sampling", "worker_states"), f"{WRITER} kept what it sampled with the samples of workers"),
    "sampling_interval": f"{WRITER} did not store it",
    "scheduler_clock_offset": f"{WRITER} did not measure it",
    "tasks": f"{WRITER} kept no record of tasks",
}
ABSENT_COLUMNS: Final = {
    "chunks.coffea_bytes_read": f"{WRITER} counted bytes in process() only; raw_chunk_metrics has them",
    "chunks.coffea_columns": f"{WRITER} had another list of branches; raw_chunk_metrics has it",
}

CAUTIONS: Final = (
    f"{WRITER} took wall time for CPU time: total_cpu_time, core_efficiency and speedup_factor count waiting",
    f"{WRITER} measured chunks in process() only: opening the file and building events are left out",
)
UNKNOWN_ZONE: Final = f"{WRITER} stored local times, without their zone: they are treated as UTC"


def load_legacy(folder: Path) -> Run:
    """Run from a folder of 0.1.2: its metrics as reported ones, its raw data as records where they fit.

    `reported` also has `t0` and `t1`, the clock readings of `start_end_time.txt`. `start` is known to within
    the time between the collector's borders and what was first and last seen of the run.
    """
    metadata_file, times_file, metrics_file = (folder / name for name in (METADATA_FILE, TIMES_FILE, METRICS_FILE))
    with reading(metadata_file):
        metadata = _json(metadata_file)
        if metadata.get("format") != FORMAT:
            raise UnreadableMeasurementError(f"{metadata_file} is not by {WRITER}; pass the folder of a measurement")
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
    # 0 can only mean unknown there
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
        # no process has 0 bytes of memory
        "memory_before": in_bytes(stored.get("mem_before_mb") or None),
        "memory_after": in_bytes(stored.get("mem_after_mb") or None),
        "outcome": ERROR if error else OK,
        "error": str(error) if error else None,
    }


def _zone(samples: Sequence[Row], chunks: Sequence[Row], saved: float) -> float | None:
    """Seconds by which local time was ahead of UTC; None if unknown.

    A heartbeat in Unix time was seen a moment before its sample's local time. Without any, the last chunk
    ended not long before the last sample, or before saving.
    """
    ahead = [row["time"] - row["last_seen"] for row in samples if row.get("last_seen")]
    stops = _known(chunks, "stop")
    if not ahead and stops:
        ahead = [max(_known(samples, "time"), default=saved) - max(stops)]
    return QUARTER_HOUR * round(median(ahead) / QUARTER_HOUR) if ahead else None


def _start(saved: float, elapsed: float, seen: Sequence[float]) -> float:
    """Start of the run, which ended before it was saved, and covered everything in it."""
    latest = saved - elapsed
    return min(max(latest, max(seen) - elapsed), *seen) if seen else latest


def _known(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if row.get(column) is not None]


def with_python_types(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with their original types: tuple keys, and times of day.

    Others may use the names of 0.1.2 for values of another shape, which are kept unchanged.
    """
    return {**metrics} | {name: _restored(metrics[name]) for name in (*DERIVED, "tracking_data") if name in metrics}


def _restored(stored: Any) -> Any:
    """Dictionaries and points of series with times of day and tuples in place of the texts of them."""
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
    """Time of day written as this text; ValueError for other texts, such as 20260301."""
    moment = datetime.fromisoformat(text)
    if text not in (moment.isoformat(), str(moment)):
        raise ValueError(f"{text!r} is not a time of day")
    return moment


def _absent_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    """Reasons for the fields and columns of tables that this folder does not have."""
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
    """Identity derived from the content, so that a folder is the same run each time it is read."""
    content = b"".join(content_of(folder / name) for name in (METADATA_FILE, TIMES_FILE, METRICS_FILE))
    return hashlib.sha256(content).hexdigest()[:32]


def _tuple(text: str) -> tuple[Any, ...]:
    found = literal(text)
    if not isinstance(found, tuple):
        raise TypeError(f"{text!r} is not a tuple")
    return found


def _as_if_utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _json(path: Path) -> Any:
    # Python wrote NaN and infinities there, which are not measured values
    return json_of(path, parse_constant=lambda _: None)


TAG: Final = "$"


def untagged(found: Any) -> Any:
    """Value of parsed JSON with its original types; raises any error if it is damaged."""
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
    """Raise if the header declares more than there is: numpy allocates all that is declared."""
    file, form = io.BytesIO(npy), np.lib.format
    header = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
    shape, _, kind = header(file)
    declared = math.prod(shape) * max(kind.itemsize, 1)
    if declared > len(npy):
        raise ValueError(f"an array of {declared} bytes has only {len(npy) - file.tell()}")


def _scalar(content: str) -> Any:
    array = _array(content)
    array.setflags(write=False)  # otherwise a structured scalar is not hashable, which it may have to be
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
