"""A run that can be shown to anybody: hosts, users and paths have made-up names, and all numbers are as they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from roastcoffea.records.run import Host, Run, RunnerCall
from roastcoffea.storage.plain import LEAVES, plain
from roastcoffea.storage.pseudonyms import Pseudonyms
from roastcoffea.storage.tables import TABLES

TEXT: Final = "text"
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("worker", "host", "node", "client_host", "endpoint", "left_endpoint"), "host"),
    **dict.fromkeys(("job", "queue", "site", "uuid", "file"), ""),
    "files": "place",
    "other_files": "file",
    "span_metrics_per_worker": "host",
}
"""What texts of this name are; others are any text. An empty word is the name itself."""
VALUES: Final = frozenset(column.name for columns in TABLES.values() for column in columns if column.kind == "values")
"""Columns with JSON of values by name."""

COLLECTIONS: Final = (Mapping, list, tuple, set, frozenset)

Convert = Callable[[str, str], str]
"""What replaces a text of a kind."""


def shared(run: Run) -> Run:
    """The run with made-up names of hosts, users and paths; one that has them already is returned as it is.

    Equal names stay equal, different ones stay different, and addresses keep their ports. Names of datasets, sections,
    processors, branches, functions and of the run are kept, apart from hosts and users in them.
    """
    if run.shared:
        return run
    names = Pseudonyms()
    for part in (run.environment, run):  # so that the client is on host-1
        _converted(part, "", names.learn)
    found: Run = _converted(run, "", names.replaced)
    calls = tuple(replace(call, fileset=_fingerprint(found.asked, call)) for call in found.calls)
    return replace(found, calls=calls, shared=True)


def _kind(name: str) -> str:
    return KINDS.get(name, TEXT) or name


def _converted(value: Any, name: str, convert: Convert) -> Any:
    """A value of this name, or in a field of it, with its texts converted."""
    if isinstance(value, str):
        return convert(_kind(name), str(value))
    if isinstance(value, pa.Table):
        return _table(value, convert)
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value, convert)
    return _collection(value, name, convert) if isinstance(value, COLLECTIONS) else _leaf(value, name, convert)


def _collection(value: Any, name: str, convert: Convert) -> Any:
    """A collection with its texts converted, keys as well; what lies under a key has its name."""
    if isinstance(value, Mapping):
        return {
            _converted(key, name, convert): _converted(item, key if isinstance(key, str) else "", convert)
            for key, item in value.items()
        }
    kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
    return kind(_converted(item, name, convert) for item in value)


def _leaf(value: Any, name: str, convert: Convert) -> Any:
    """A number or a time as it is; anything else as the text that would be saved of it."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind not in "OSUV" else _converted(value.tolist(), name, convert)
    if isinstance(value, tuple(LEAVES)):
        return value
    return convert(TEXT, str(plain(value, name, [])))


def _record(record: Any, convert: Convert) -> Any:
    """A record with its texts converted, field by field."""
    of_host = isinstance(record, Host)
    changed = {
        each.name: _converted(value, "host" if of_host and each.name == "name" else each.name, convert)
        for each in fields(record)
        if (value := getattr(record, each.name)) is not None
    }
    return replace(record, **changed)


def _table(table: pa.Table, convert: Convert) -> pa.Table:
    """A table with its texts converted, each different one once."""
    for place, field in enumerate(table.schema):
        kind = field.name if field.name in VALUES else _kind(field.name)
        column = table.column(place).combine_chunks()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        table = table.set_column(place, field, _column(column, kind, convert))
    return table


def _column(column: pa.Array, kind: str, convert: Convert) -> pa.Array:
    if types.is_list(column.type):
        # flatten() leaves out what lies below rows without a value
        values = _column(column.flatten(), kind, convert)
        lengths = column.value_lengths().fill_null(0)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy())]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, column.type, mask=column.is_null())
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return column
    known = column.dictionary_encode()
    texts = [_values(text, convert) if kind in VALUES else convert(kind, text) for text in known.dictionary.to_pylist()]
    return pa.array(texts, column.type).take(known.indices)


def _values(text: str, convert: Convert) -> str:
    """JSON of values by name."""
    return json.dumps(_converted(json.loads(text), "", convert))


def _fingerprint(asked: pa.Table | None, call: RunnerCall) -> str | None:
    """Fingerprint of a call's input with these names: the recorded one could be compared with guesses."""
    if asked is None or call.fileset is None:
        return None
    columns = ("call", "dataset", "file", "tree", "uuid")
    rows = asked.select(list(columns)).to_pylist()
    files = {
        tuple(map(str, (row[name] for name in columns[1:]))) for row in rows if row["call"] == call.id and row["uuid"]
    }
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
