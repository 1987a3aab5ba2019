"""docs/migration.md: each name that is said to work is there, and what is said to be gone is gone."""

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
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<kind>\w+) \| (?P<status>\w+) \| (?P<remark>.*) \|$", re.MULTILINE)
WORKS = ("same", "differs")


class Row(NamedTuple):
    """A name of 0.1.2, what it is, how it works now, and what there is to say."""

    name: str
    kind: str
    status: str
    remark: str

    @property
    def new_name(self) -> str:
        """What the remark names first."""
        found = re.search(r"`([^`]+)`", self.remark)
        assert found, f"{self.name} is renamed to nothing"
        return found[1]


ROWS = [Row(*found) for found in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def of_kind(*kinds: str) -> Any:
    rows = [row for row in ROWS if row.kind in kinds]
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


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


def test_every_row_is_read() -> None:
    lines = PAGE.read_text(encoding="utf-8").partition("## All names")[2].partition("\n## ")[0].splitlines()
    assert len(ROWS) == sum(line.startswith("| `") for line in lines) > 200
    assert len({(row.name, row.kind) for row in ROWS}) == len(ROWS)
    assert {row.kind for row in ROWS} == {"import", "argument", "attribute", "key", "metric", "column", "file"}
    for row in ROWS:
        assert row.status in {*WORKS, "renamed", "gone"}, row
        assert row.remark or row.status == "same", row


@of_kind("import")
def test_imports(row: Row) -> None:
    if row.status in WORKS:
        assert callable(imported(row.name))
    else:
        with pytest.raises((AttributeError, ImportError)):
            imported(row.name)


@of_kind("argument")
def test_arguments(row: Row) -> None:
    path, argument = re.fullmatch(r"([\w.]+)\((\w+)=\)", row.name).groups()  # type: ignore[union-attr]
    assert row.status in WORKS
    assert argument in inspect.signature(imported(path)).parameters


@of_kind("attribute")
def test_attributes(row: Row, owners: dict[str, Any]) -> None:
    owner, name = row.name.split(".")
    assert hasattr(owners[owner], name) is (row.status in WORKS)


@of_kind("key")
def test_keys(row: Row, owners: dict[str, Any]) -> None:
    owner, key = re.fullmatch(r'(\w+)\["(\w+)"\]', row.name).groups()  # type: ignore[union-attr]
    name = key if row.status in WORKS else row.new_name
    owners[owner][name]  # it is there, whatever its value


@of_kind("metric")
def test_metrics(row: Row, owners: dict[str, Any]) -> None:
    assert row.status in {*WORKS, "renamed"}
    if row.status == "renamed":
        assert CATALOGUE.aliases[row.name] == row.new_name
    metrics = owners["collector"].get_metrics()
    if row.remark.startswith("missing"):
        assert row.name in metrics or metrics.missing[row.name] == "Dask counted none in the tasks of this run"
    else:
        assert metrics[row.name] is not None


@of_kind("column")
def test_columns_of_the_branch_study(row: Row) -> None:
    assert (row.name if row.status in WORKS else row.new_name) in COLUMNS


@of_kind("file")
def test_files(row: Row, owners: dict[str, Any], tmp_path: Path) -> None:
    assert row.name in legacy.FILES
    folder = owners["collector"].save_measurement(tmp_path)
    assert (folder / (row.name if row.status in WORKS else row.new_name)).exists()


def test_every_plot_and_every_number_of_0_1_2_is_in_the_table() -> None:
    names = {row.name for row in ROWS}
    ours = {"byte_ledger", "time_ledger", "time_ledger_timeline", "task_stream", "chunk_phases", "branch_bytes"}
    ours |= {"sections", "worker_balance", "stragglers", "worker_memory", "dataset_memory"}
    older = {name for name in dir(roastcoffea) if name.startswith("plot_")} - {f"plot_{name}" for name in ours}
    assert {f"roastcoffea.{name}" for name in older} <= names
    if data := os.environ.get("ROASTCOFFEA_TEST_DATA"):
        stored = json.loads(Path(data, "measurement-0.1.2", "metrics.json").read_text(encoding="utf-8"))
        assert stored.keys() <= names
        assert {f'chunk["{key}"]' for key in stored["raw_chunk_metrics"][0]} <= names
