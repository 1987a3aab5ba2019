"""A run with hosts, users and paths in all its texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from saved_runs import a_run

from roastcoffea.records.arrow import table_of_rows
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


class Plants(NamedTuple):
    """What is planted: any text, and what is usual in a field."""

    text: str = ERROR
    usual: Mapping[str, str] = NATURAL

    def cell(self, column: Column, text: str) -> Any:
        """A text as a value of a column; None where it has none."""
        values = json.dumps({self.text[-40:]: self.text})
        return {"text": text, "texts": [text, None], "values": values}.get(column.kind)

    def table(self, columns: Sequence[Column], rows: list[dict[str, Any]]) -> pa.Table:
        """Rows, and two more with a text in each column of text: what is usual there, and any."""
        more = [
            {column.name: cell for column in columns if (cell := self.cell(column, of(column))) is not None}
            for of in (lambda column: self.usual.get(column.name, self.text), lambda _: self.text)
        ]
        return table_of_rows(columns, [*rows, *((rows[-1] if rows else {}) | row for row in more)])

    def value(self, value: Any, name: str = "") -> Any:
        """A value with these in all its texts, and in those of its parts."""
        if isinstance(value, str):
            return self.usual.get(name, f"{value} {self.text}")
        if is_dataclass(value) and not isinstance(value, type):
            names = {each.name for each in fields(value)} - {"outcome", "id", *TABLES}
            of_host = {"name": "node"} if isinstance(value, Host) else {}
            return replace(value, **{each: self.value(getattr(value, each), of_host.get(each, each)) for each in names})
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return type(value)(map(self.value, value)) if isinstance(value, list | tuple) else value

    def run(self) -> Run:
        """A run with these wherever there is text, in columns that were added yesterday as well."""
        run = self.value(a_run())
        tables = {
            name: self.table(columns, getattr(run, name).to_pylist())
            for name, columns in TABLES.items()
            if isinstance(getattr(run, name), pa.Table)
        }
        text = self.text[-40:]
        spans = {("execute", self.text, self.text, "seconds"): 1.0, (text, "count"): 2, ("get-data", text): 3}
        worker = self.usual.get("worker", self.text)
        return replace(run, **tables, span_metrics=spans, span_metrics_per_worker={worker: spans})


def planted_run() -> Run:
    """A run with names wherever there is text."""
    return Plants().run()
