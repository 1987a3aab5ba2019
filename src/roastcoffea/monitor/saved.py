"""Records of a monitor on disk: a folder with `monitor.json`, and tables as Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import MeasurementError
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, NO_STRING, STATE_FIELDS, STATES
from roastcoffea.log.layout import Layout, Texts
from roastcoffea.monitor.history import LINKS, History, Named, Rows, hashable
from roastcoffea.monitor.watch import Watched
from roastcoffea.storage.folders import OR_OVERWRITE, file_name, holds_only, new_folder, synced_file
from roastcoffea.storage.parquet import Room, read_parquet
from roastcoffea.storage.reading import has_format, json_of, reading
from roastcoffea.storage.store import MONITOR_FILE, MONITOR_FORMAT
from roastcoffea.storage.tables import table_file, write_table

SCHEMA: Final = 1
PERIOD: Final = "period"
DTYPE: Final = Layout(STATE_FIELDS, Texts()).dtype


def save_watched(
    watched: Sequence[Watched],
    interval: float,
    problems: Sequence[str],
    folder: Path,
    name: str | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Save periods and return the path of the new folder, which appears when it is complete.

    Raises
    ------
    MeasurementError
        If nothing was recorded, the folder exists, or it cannot be written.
    """
    if not watched:
        raise MeasurementError("this TaskMonitor has recorded nothing: there is nothing to save")
    began = f"tasks-{datetime.fromtimestamp(watched[0].start, UTC):%Y-%m-%dT%H%M%SZ}"
    target = folder / file_name(began if name is None else name)
    periods = [{"start": one.start, "stop": one.stop, "problems": one.problems, "views": one.views} for one in watched]
    document = {
        "format": MONITOR_FORMAT,
        "schema": SCHEMA,
        "interval": interval,
        "problems": list(problems),
        "periods": periods,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder(folder, target.name) as new:
            for table, parts in TABLES.items():
                write_table(new.path, table, pa.concat_tables(_numbered(map(parts, watched))))
            with synced_file(new.path / MONITOR_FILE) as file:
                file.write(json.dumps(document).encode())
            new.complete()
            if not new.put_in_place(target, is_replaceable if overwrite else None):
                raise MeasurementError(f"{target} exists; {OR_OVERWRITE}")
    except OSError as error:
        raise MeasurementError(f"nothing was saved in {folder}: {error}") from error
    return target


def load_watched(path: Path) -> tuple[list[Watched], float, list[str]]:
    """Periods of a saved monitor, the interval of its snapshots, and its problems.

    Raises
    ------
    MeasurementError
        If there is none, or it cannot be read.
    """
    file = path / MONITOR_FILE
    if not file.exists():
        raise MeasurementError(f"{path} is not a saved TaskMonitor: it has no {MONITOR_FILE}; pass the folder of one")
    with reading(file):
        document = json_of(file)
        if document["format"] != MONITOR_FORMAT or document["schema"] > SCHEMA:
            raise ValueError(
                f"it is {document['format']} {document['schema']}; this version reads {MONITOR_FORMAT} {SCHEMA}"
            )
        periods = document["periods"]
    room, tables = Room(), {}
    for name in TABLES:
        tables[name] = read_parquet(table_file(path, name), pa.schema([]), room)
    with reading(path):
        watched = [_watched(period, _of_period(tables, number)) for number, period in enumerate(periods)]
        return watched, float(document["interval"]), list(map(str, document["problems"]))


def is_replaceable(path: Path) -> bool:
    """Whether a folder holds only a saved monitor, even a damaged one."""
    ours = {MONITOR_FILE, *(table_file(path, name).name for name in TABLES)}
    return holds_only(path, ours) and has_format(path / MONITOR_FILE, MONITOR_FORMAT)


# tables of a period


def _tasks(watched: Watched) -> pa.Table:
    rows = [
        {
            "key": json.dumps(task.key),
            "kind": task.kind,
            "chunk": None if task.chunk is None else json.dumps(task.chunk),
        }
        for task in watched.history.tasks
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in ("key", "kind", "chunk")]))


def _states(watched: Watched) -> pa.Table:
    rows, texts = watched.history.rows, pa.array(list(watched.history.texts), pa.string())
    columns: dict[str, Any] = {name: rows[name] for name in DTYPE.names or ()}
    for name, absent, words in (
        *((name, NO_STATE, pa.array(STATES)) for name in ("before", "state")),
        *((name, NO_STRING, texts) for name in ("worker", "type")),
    ):
        columns[name] = words.take(pa.array(rows[name].astype(np.int64), mask=rows[name] == absent))
    columns["nbytes"] = pa.array(rows["nbytes"], mask=rows["nbytes"] == NO_SIZE)
    columns["expected"] = pa.array(rows["expected"], mask=rows["expected"] < 0)
    return pa.table(columns)


TABLES: Final[Mapping[str, Callable[[Watched], pa.Table]]] = {
    "tasks": _tasks,
    "states": _states,
    "attempts": lambda watched: watched.attempts,
    "lifetimes": lambda watched: watched.lifetimes,
}
"""Tables of a saved monitor, with a column for the period in addition to those of each period."""


def _numbered(tables: Any) -> list[pa.Table]:
    return [
        table.append_column(PERIOD, pa.array(np.full(len(table), number, np.int64)))
        for number, table in enumerate(tables)
    ]


def _of_period(tables: Mapping[str, pa.Table], number: int) -> dict[str, pa.Table]:
    """Tables of one period."""
    return {name: table.filter(pc.equal(table[PERIOD], number)).drop_columns(PERIOD) for name, table in tables.items()}


def _watched(period: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Watched:
    views = [
        view
        | {"key": hashable(view["key"]), "transitions": [(state, time) for state, time in view["transitions"]]}
        | {name: list(map(hashable, view[name])) for name in LINKS if name in view}
        for view in period["views"]
    ]
    tasks = [
        Named(hashable(json.loads(row["key"])), row["kind"], None if row["chunk"] is None else json.loads(row["chunk"]))
        for row in tables["tasks"].to_pylist()
    ]
    history = _history(tables["states"], tasks)
    parts = {name: tables[name] for name in ("attempts", "lifetimes")}
    times = {name: float(period[name]) for name in ("start", "stop")}
    return Watched(history=history, views=views, problems=list(map(str, period["problems"])), **parts, **times)


def _history(states: pa.Table, tasks: Sequence[Named]) -> History:
    rows: Rows = np.zeros(len(states), DTYPE)
    texts: list[str] = []
    for name in DTYPE.names or ():
        column = states[name]
        if name in {"before", "state"}:
            rows[name] = _codes(column, STATES, NO_STATE)
        elif name in {"worker", "type"}:
            words = [word for word in column.unique().to_pylist() if word is not None]
            codes = _codes(column, words, NO_STRING)
            rows[name] = np.where(codes == NO_STRING, NO_STRING, codes + len(texts))
            texts += words
        else:
            rows[name] = pc.fill_null(column, -1 if column.null_count else 0).to_numpy()
    if len(rows) and rows["task"].max() >= len(tasks):
        raise ValueError(f"unknown task {rows['task'].max()}")
    return History(rows, tasks, texts)


def _codes(column: pa.ChunkedArray, words: Sequence[str], absent: int) -> Any:
    """Indices of texts among these words."""
    found = pc.index_in(column, value_set=pa.array(words, pa.string()))
    if found.null_count != column.null_count:
        raise ValueError(f"a text is none of {', '.join(words)}")
    return pc.fill_null(found.cast(pa.int64()), absent).to_numpy()
