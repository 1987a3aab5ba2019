"""A run with hosts, users and paths in all its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pyarrow as pa
from saved_runs import a_run

from roastcoffea.records.columns import Column
from roastcoffea.records.run import Host, Run
from roastcoffea.storage.tables import TABLES

HOST = "zqnode17.hushlab.org"
ADDRESSES = ("10.93.71.5", "2001:db8:77::5")
SERVER = "dcache-door-zq.hushgrid.net"
USER = "qwertuser"
FULL_NAME = "Qwert Zuiop"
FOLDER = f"/zhome/{USER}/hush dir"
DISK = "/bigdisk/hushproject"
SITE, JOB, QUEUE = "T2_ZZ_HUSH", "98127364.3", "hushqueue"
ORIGINALS = (
    *(HOST, "zqnode17", "hushlab", *ADDRESSES, SERVER, "dcache-door-zq", "hushgrid", USER, FULL_NAME, "Qwert"),
    *("zhome", "hush dir", "hushdir", "bigdisk", "hushproject", SITE, JOB, QUEUE),
)
"""What must not be found."""

ERROR = (
    f"OSError: [Errno 13] denied: '{FOLDER}/ana.py' for {USER} on {HOST} (zqnode17, {ADDRESSES[0]}, {ADDRESSES[1]}); "
    f"tcp://{ADDRESSES[0]}:4000, tls://[{ADDRESSES[1]}]:4001, root://{USER}@{SERVER}:1094/{DISK}/f.root?a=1, "
    f"{DISK}/x.py:3, "
    f"job {JOB} of {QUEUE} at {SITE}, ../../hushdir/x/y.py, ~{USER}/hushdir/z.py, C:\\Users\\{USER}\\hushdir\\x.py, "
    f"/DC=org/O=hushlab/CN={FULL_NAME}/CN=1234, {USER}@hushlab.org, /store/user/{USER}/hushdir/f.root"
)
"""Free text with all of them."""

NATURAL: Mapping[str, str] = {
    "worker": f"tcp://{HOST}:4000",
    "host": ADDRESSES[0],
    "node": HOST,
    "endpoint": f"{SERVER}:1094",
    "left_endpoint": f"{SERVER}:1095",
    "file": f"root://{SERVER}/{DISK}/hushdir/f.root",
    "files": f"{FOLDER}/ana.py",
    "job": JOB,
    "queue": QUEUE,
    "site": SITE,
    "client_host": HOST,
}
"""What is usual in a field."""


def text_of(column: Column, text: str) -> Any:
    """A text as a value of a column; None where it has none."""
    kinds = {"text": text, "texts": [text, None], "values": f'{{"{USER}": "{USER} on {HOST}"}}'}
    return kinds.get(column.kind)


def planted_rows(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> pa.Table:
    """Rows, and two more with names in each column of text: what is usual there, and free text."""
    from roastcoffea.records.arrow import table_of_rows

    usual = {column.name: text_of(column, NATURAL.get(column.name, ERROR)) for column in columns}
    free = {column.name: text_of(column, ERROR) for column in columns}
    last = rows[-1] if rows else {}
    more = [last | {name: text for name, text in row.items() if text is not None} for row in (usual, free)]
    return table_of_rows(columns, [*rows, *more])


def planted(value: Any, name: str = "") -> Any:
    """A value with names in all its texts, and in those of its parts."""
    if isinstance(value, str):
        return NATURAL.get(name, f"{value} {ERROR}")
    if is_dataclass(value) and not isinstance(value, type):
        of_host = isinstance(value, Host)
        changes = {
            each.name: planted(getattr(value, each.name), "node" if of_host and each.name == "name" else each.name)
            for each in fields(value)
            if each.name not in {"outcome", "id", *TABLES}
        }
        return replace(value, **changes)
    if isinstance(value, Mapping):
        return {planted(key): planted(item) for key, item in value.items()}
    return type(value)(map(planted, value)) if isinstance(value, list | tuple) else value


def planted_run() -> Run:
    """A run with names wherever there is text, in columns that were added yesterday as well."""
    run = planted(a_run())
    tables = {
        name: planted_rows(tuple(columns), getattr(run, name).to_pylist())
        for name, columns in TABLES.items()
        if isinstance(getattr(run, name), pa.Table)
    }
    spans = {("execute", ERROR, ERROR, "seconds"): 1.0, (USER, "count"): 2, ("get-data", USER): 3}
    return replace(run, **tables, span_metrics=spans, span_metrics_per_worker={f"tcp://{HOST}:4000": spans})
