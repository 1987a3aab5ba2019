"""Every name of 0.1.2 works as `data/names-0.1.2.json` says, and docs/migration.md has those that differ."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from analyses import Jets, runner_for
from distributed import Client

import roastcoffea
from roastcoffea import MetricsCollector, TaskMonitor
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.compat import legacy
from roastcoffea.metrics import CATALOGUE
from roastcoffea.studies.branches import COLUMNS

PAGE = Path(__file__).parent.parent / "docs" / "migration.md"
NAMES = json.loads((Path(__file__).parent / "data" / "names-0.1.2.json").read_text(encoding="utf-8"))
RENAMED = "renamed to "


class Row(NamedTuple):
    """A name of 0.1.2, what it is, and how it works now."""

    name: str
    kind: str
    status: str

    @property
    def works(self) -> bool:
        return self.status in {"same", "differs", "counted"}

    @property
    def new_name(self) -> str:
        assert self.status.startswith(RENAMED), self
        return self.status.removeprefix(RENAMED)


ROWS = [Row(name, kind, status) for kind, names in NAMES.items() for name, status in names.items()]


def of_kind(kind: str) -> list[Row]:
    return [row for row in ROWS if row.kind == kind]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def owners(shared_client: Client, sample: dict[str, Any]) -> dict[str, Any]:
    """What attributes and keys are looked up in, after a run."""
    monitor = TaskMonitor(shared_client, worker_view=True)
    with MetricsCollector(shared_client) as collector, monitor:
        runner_for(shared_client, 4000)(sample, treename="Events", processor_instance=Jets())
    backend = DaskMetricsBackend(shared_client)
    return {
        "collector": collector,
        "monitor": monitor,
        "backend": backend,
        "snapshot": monitor.snapshots[-1],
        "task": monitor.get_all_tasks()[0],
        "worker_task": monitor.worker_tasks[0],
        "tracking_data": collector.tracking_data,
        "span_info": backend.create_span("named"),
        "chunk": collector.chunk_metrics[0],
    }


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_page_has_what_differs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(ROWS) > 200
    assert NAMES.keys() == {"import", "argument", "attribute", "key", "metric", "column", "file"}
    for row in ROWS:
        if row.status != "same":
            *_, name = re.findall(r"[\w.]*\w", row.name)
            assert re.search(rf"`[^`]*\b{re.escape(name.rpartition('.')[2])}\b[^`]*`", page), row
        assert row.works or row.status == "gone" or row.new_name in page, row


def test_imports() -> None:
    for row in of_kind("import"):
        if row.works:
            assert callable(imported(row.name)), row
        else:
            with pytest.raises((AttributeError, ImportError)):
                imported(row.name)


def test_arguments() -> None:
    for row in of_kind("argument"):
        path, argument = re.fullmatch(r"([\w.]+)\((\w+)=\)", row.name).groups()  # type: ignore[union-attr]
        assert row.works, row
        function = imported(path)
        assert argument in {*inspect.signature(function).parameters, *getattr(function, "older_keywords", ())}, row


def test_attributes(owners: dict[str, Any]) -> None:
    for row in of_kind("attribute"):
        owner, name = row.name.split(".")
        assert hasattr(owners[owner], name) is row.works, row


def test_keys(owners: dict[str, Any]) -> None:
    for row in of_kind("key"):
        owner, key = re.fullmatch(r'(\w+)\["(\w+)"\]', row.name).groups()  # type: ignore[union-attr]
        assert (key if row.works else row.new_name) in owners[owner], row


def test_metrics(owners: dict[str, Any]) -> None:
    metrics = owners["collector"].get_metrics()
    for row in of_kind("metric"):
        assert row.works or CATALOGUE.aliases[row.name] == row.new_name, row
        if row.status == "counted":
            reason = "Dask recorded no such activity in this run's tasks"
            assert row.name in metrics or metrics.missing[row.name] == reason, row
        else:
            assert metrics[row.name] is not None, row


def test_columns_of_the_branch_study() -> None:
    for row in of_kind("column"):
        assert (row.name if row.works else row.new_name) in COLUMNS, row


def test_files(owners: dict[str, Any], tmp_path: Path) -> None:
    folder = owners["collector"].save_measurement(tmp_path)
    for row in of_kind("file"):
        assert row.name in legacy.FILES, row
        assert (folder / (row.name if row.works else row.new_name)).exists(), row


def test_every_plot_and_every_number_of_0_1_2_is_in_the_table() -> None:
    names = {row.name for row in ROWS}
    ours = {"byte_ledger", "time_ledger", "time_ledger_timeline", "task_stream", "chunk_phases", "branch_bytes"}
    ours |= {
        "dataset_timeline",
        "sections",
        "worker_balance",
        "stragglers",
        "worker_memory",
        "dataset_memory",
        "workforce",
        "gpu_utilization_timeline",
        "gpu_memory_timeline",
    }
    older = {name for name in dir(roastcoffea) if name.startswith("plot_")} - {f"plot_{name}" for name in ours}
    assert {f"roastcoffea.{name}" for name in older} <= names
    if data := os.environ.get("ROASTCOFFEA_TEST_DATA"):
        stored = json.loads(Path(data, "measurement-0.1.2", "metrics.json").read_text(encoding="utf-8"))
        assert stored.keys() <= names
        assert {f'chunk["{key}"]' for key in stored["raw_chunk_metrics"][0]} <= names
