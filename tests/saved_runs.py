"""Runs to be saved, and what is found in folders."""

import json
import math
import socket
import stat
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from killed_saves import START

from roastcoffea.compat import legacy
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS, PROFILE_COLUMNS, SECTION_COLUMNS
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    FAILED,
    PREPROCESSING_COLUMNS,
    Environment,
    Host,
    MergedRun,
    Run,
    RunnerCall,
)
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import (
    CLIENT_STEP_COLUMNS,
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    WORKER_STATE_COLUMNS,
)
from roastcoffea.storage.tables import tables_of

assert datetime.fromtimestamp(START, UTC) == datetime(2026, 3, 1, 23, 59, 58, 250_000, tzinfo=UTC)


def a_run(**changes: Any) -> Run:
    """A run that has everything."""
    call = RunnerCall(
        id="call",
        processor="analysis.Dijets",
        executor="DaskExecutor",
        start=START + 1,
        stop=START + 9.5,
        outcome=FAILED,
        error="ValueError: 'μ'",
        chunks=3,
        fileset="ab" * 32,
        options={"chunksize": 2**20, "xrootdtimeout": None, "maxchunks": math.inf, "align": [1, 2]},
        report={"bytesread": 12, "columns": ["Jet_pt-data", "Jet_eta-data"], "processtime": 0.5},
    )
    run = Run(
        id="f" * 32,
        name="ttbar",
        start=START,
        stop=START + 10.25,
        outcome=FAILED,
        error="ValueError: no jets",
        backend="dask",
        environment=Environment(
            versions={"coffea": "2026.9.0"},
            client_host="login",
            hosts=(
                Host(name="node1", cores=8, memory=2**35, node_cores=64, node_memory=2**38),
                Host(name="node2", cores=None, memory=None),
            ),
        ),
        sampling_interval=0.5,
        calls=(call, replace(call, id="other", report=None, error=None)),
        merged=(
            MergedRun(
                id="a" * 32,
                name="job",
                start=START,
                stop=START + 9.5,
                outcome=FAILED,
                error="ValueError: no jets",
                backend="dask",
                client_host="login",
            ),
        ),
        asked=table_of_rows(
            ASKED_COLUMNS,
            [
                {"call": "0", "dataset": "tt", "file": "root://x//a.root", "tree": "Events"},
                {"call": "0", "dataset": "tt", "file": "a.root", "tree": "t", "entry_start": 0, "entry_stop": 2**40},
            ],
        ),
        chunks=table_of_rows(
            CHUNK_COLUMNS,
            [
                {
                    "dataset": "tt",
                    "file": "a b.root",
                    "events": 0,
                    "start": START,
                    "coffea_columns": ["Jet_pt", None],
                },
                {"dataset": "日本", "events": None, "memory_peak": 2**63 - 1, "coffea_columns": []},
                {},
            ],
        ),
        branch_reads=table_of_rows(
            BRANCH_READ_COLUMNS,
            [{"chunk": 2**62, "branch": "Jet_pt", "basket_bytes": [1, 2**40, None]}, {"basket_bytes": []}, {}],
        ),
        sections=table_of_rows(SECTION_COLUMNS, [{"chunk": 1, "name": "jets/µ", "count": 3, "bytes": None}]),
        profile=table_of_rows(
            PROFILE_COLUMNS,
            [
                {
                    "call": "0",
                    "functions": ["µ.process"],
                    "files": ["/a b.py"],
                    "lines": [7],
                    "samples": 2,
                    "seconds": 0.2,
                },
                {"functions": [], "files": [], "lines": []},
            ],
        ),
        preprocessing=table_of_rows(PREPROCESSING_COLUMNS, [{"id": 5, "file": "a b.root", "bytes_requested": 0}]),
        tasks=table_of_rows(TASK_COLUMNS, [{"key": f"k-{n}", "run_id": n, "thread": 2**62 + n} for n in range(1000)]),
        samples=table_of_rows(SAMPLE_COLUMNS, []),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, [{"worker": "tcp://1", "threads": 4, "start": START}]),
        pauses=table_of_rows(PAUSE_COLUMNS, [{"worker": "tcp://1", "start": START, "stop": START + 1}]),
        sampling=table_of_rows(SAMPLING_COLUMNS, [{"time": START, "workers": 1, "late_seconds": 0.0, "missed": 0}]),
        worker_states=table_of_rows(
            WORKER_STATE_COLUMNS,
            [{"worker": "tcp://1", "time": START, "processing": 2, "nbytes": 2**40, "occupancy": 0.5}, {}],
        ),
        client_steps=table_of_rows(
            CLIENT_STEP_COLUMNS,
            [
                {"call": "0", "work": "processing", "step": "submit", "start": START, "graph_bytes": 2**40, "tasks": 3},
                {"step": "event loop", "start": START, "stop": START + 1, "cpu_seconds": 0.5, "late_seconds": 0.0},
            ],
        ),
        span_metrics={
            ("execute", "Dijets", "thread-cpu", "seconds"): 1.5,
            ("gather-dep", "network", "bytes"): math.inf,
        },
        span_metrics_per_worker={"tcp://1": {("execute", "Dijets", "thread-cpu", "seconds"): 0.5}, "tcp://2": {}},
        coffea_report={"('a', 1)": {"b": [1, [2, [3]]]}, "$": "tuple", "of": [1], "1": 0.1, "": {"\0": True}},
        custom_metrics={"tt": {"entries": 3, "bytes": -math.inf, "size": 10**30, "none": None}},
        attempts={"processor": 3, "merge": 0},
        scheduler_clock_offset=-0.0125,
        dropped={"tasks": 2},
        gaps=((1e9 + 1.5, 1e9 + 2.25),),
        reported={"core_efficiency": 0.5, "per_dataset": {"tt": [1, 2]}},
        reported_by="another program",
        absent={"worker_cpu_time_seconds": "not on this system"},
        problems=("the scheduler did not answer in 5 s", "ünicode"),
    )
    return replace(run, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # the whole path may be longer than the system takes


def write_legacy(folder: Path) -> None:
    """A measurement of 0.1.2, with a few numbers."""
    metadata = {"format": legacy.FORMAT, "timestamp": "2025-01-01T12:00:00"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (folder / "metrics.json").write_text('{"total_events": 10}')
    (folder / "start_end_time.txt").write_text("1.0,2.0\n")


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def edited(saved: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((saved / "run.json").read_text())
    edit(document)
    (saved / "run.json").write_text(json.dumps(document))


def rows(run: Run) -> list[Any]:
    return [table.to_pylist() for table in tables_of(run).values()]
