"""Files that a function reads, told apart by file and tree, against what the files themselves say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from releases import needs_caches, needs_parquet, needs_rntuples
from stored import baskets_of, clusters_of, write_tree

from roastcoffea import MetricsCollector, measured
from roastcoffea.instrument.meter.files import OPEN, FilesMeter, TreeRead
from roastcoffea.measurement import Measurement


def measurement_of(function: Any, *args: Any) -> Measurement:
    """A measurement of a function, which must give the same without one."""
    with MetricsCollector() as collector:
        result = measured(function)(*args)
    assert result == function(*args)
    return collector.measurement


def reads_of(measurement: Measurement) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Bytes of payload, of payload again and uncompressed, by file and branch."""
    files = dict(measurement.chunks[["id", "file"]].to_numpy())
    names = ("bytes_payload", "bytes_again", "bytes_uncompressed")
    rows = measurement.run.branch_reads.to_pylist()
    return {(Path(files[row["chunk"]]).name, row["branch"]): tuple(row[name] for name in names) for row in rows}


def sizes(path: Path, branch: str, start: int = 0, stop: int = 10**9, tree: str = "Events") -> tuple[int, int, int]:
    """The same of the baskets that hold these entries, as the file tells."""
    found = baskets_of(path, branch, start, stop, tree).values()
    return sum(size for size, _ in found), 0, sum(size for _, size in found)


def column_size(path: str, column: str) -> int:
    """Bytes of a column of a Parquet file, in all its row groups."""
    metadata = pq.ParquetFile(path).metadata
    place = metadata.schema.to_arrow_schema().names.index(column)
    return sum(metadata.row_group(n).column(place).total_compressed_size for n in range(metadata.num_row_groups))


@pytest.mark.parametrize(
    ("spans", "merged"),
    [
        ([], []),
        ([(0, 10), (10, 20)], [(0, 20)]),
        ([(5, 8), (0, 6)], [(0, 8)]),
        ([(0, 2), (4, 6)], [(0, 2), (4, 6)]),
        ([(3, 3)], []),
        ([(0, 9), (2, 4)], [(0, 9)]),
    ],
)
def test_entries_count_once(spans: list[tuple[int, int]], merged: list[tuple[int, int]]) -> None:
    tree = TreeRead("Events")
    tree.read.update(spans)
    assert tree.spans == merged
    assert tree.entries == sum(stop - start for start, stop in merged)


def test_branches_that_are_read_alone(folder: Path) -> None:
    path = folder / "tree.root"

    def read() -> float:
        with uproot.open(path) as file:
            return sum(
                float(ak.sum(file["Events"][name].array(entry_start=500, entry_stop=1500))) for name in ("f0", "f1")
            )

    found = measurement_of(read)
    assert reads_of(found) == {("tree.root", name): sizes(path, name, 500, 1500) for name in ("f0", "f1")}
    (chunk,) = found.chunks.to_dict("records")
    assert (chunk["tree"], chunk["entry_start"], chunk["entry_stop"], chunk["events"]) == ("Events", 500, 1500, 1000)
    assert chunk["uuid"] == uproot.open(path).file.fUUID.hex()
    assert found.byte_ledger.residual == 0


def test_several_files_and_trees(tmp_path: Path) -> None:
    """A record of each file; branches of another tree than that of the events have its name."""
    paths = [write_tree(tmp_path / f"{name}.root", baskets=number) for name, number in (("a", 3), ("b", 2))]
    with uproot.update(paths[1]) as file:
        file.mktree("Runs", {"weights": "float64"}).extend({"weights": np.arange(3.0)})

    def read() -> list[float]:
        events = uproot.concatenate([f"{path}:Events" for path in paths], ["f0"])
        with uproot.open(paths[1]) as file:
            return [float(ak.sum(events["f0"])), float(ak.sum(file["Runs/weights"].array()))]

    found = measurement_of(read)
    reads = reads_of(found)
    assert reads["a.root", "f0"] == sizes(paths[0], "f0")
    assert reads["b.root", "f0"] == sizes(paths[1], "f0")
    assert reads["b.root", "Runs/weights"] == sizes(paths[1], "weights", tree="Runs")
    assert sorted(found.chunks["events"]) == [2000, 3000]
    assert found.byte_ledger.residual == 0
    assert found.byte_ledger["re-read"] == 0
    assert any("more than one file" in problem for problem in found.problems)
    by_file = found.byte_ledger.by("file")
    assert by_file.loc[str(paths[0]), "payload"] == sizes(paths[0], "f0")[0]
    assert found.time_ledger.residual == pytest.approx(0.0, abs=1e-5)  # Unix times have steps of 2e-7
    found.print_summary()
    assert found.verdict is not None


def test_what_is_read_twice_is_read_again(folder: Path) -> None:
    path = folder / "tree.root"

    def read() -> float:
        total = 0.0
        for _ in range(2):
            with uproot.open(path) as file:
                total += float(ak.sum(file["Events/f0"].array()))
        return total

    found = measurement_of(read)
    payload, _, uncompressed = sizes(path, "f0")
    assert reads_of(found) == {("tree.root", "f0"): (payload, payload, 2 * uncompressed)}
    assert found.byte_ledger["re-read"] == payload


def test_fields_of_an_rntuple(folder: Path) -> None:
    path = folder / "ntuple.root"

    def read() -> float:
        with uproot.open(path) as file:
            arrays = file["Events"].arrays(["f0", "Jet_pt"], entry_start=500, entry_stop=1500)
            return float(ak.sum(arrays["f0"]) + ak.sum(arrays["Jet_pt"]))

    found = measurement_of(read)
    payload = {branch: read[0] for (_, branch), read in reads_of(found).items()}
    assert payload == {name: sum(clusters_of(path, name, 500, 1500).values()) for name in ("f0", "Jet_pt")}
    assert found.byte_ledger.residual == 0
    assert found.chunks["events"].tolist() == [1000]


@pytest.mark.parametrize(
    "name",
    [
        "tree.root",
        pytest.param("ntuple.root", marks=needs_rntuples),
        pytest.param("columns.parquet", marks=needs_parquet),
    ],
)
def test_nanoevents_read_what_a_chunk_of_them_reads(folder: Path, name: str) -> None:
    path = str(folder / name)

    def read() -> float:
        of_parquet = name.endswith("parquet")
        make = NanoEventsFactory.from_parquet if of_parquet else NanoEventsFactory.from_root
        source: Any = path if of_parquet else {path: "Events"}
        options = {"entry_start": 500, "entry_stop": 1500, "metadata": {"dataset": "dy"}}
        return float(ak.sum(make(source, schemaclass=BaseSchema, **options).events()["f0"]))

    found = measurement_of(read)
    (chunk,) = found.chunks.to_dict("records")
    assert (chunk["dataset"], chunk["entry_start"], chunk["entry_stop"], chunk["events"]) == ("dy", 500, 1500, 1000)
    assert (chunk["build_seconds"] > 0, chunk["file"]) == (True, path)
    truth = {
        "tree.root": lambda: sizes(Path(path), "f0", 500, 1500)[0],
        "ntuple.root": lambda: sum(clusters_of(path, "f0", 500, 1500).values()),
        "columns.parquet": lambda: column_size(path, "f0"),
    }
    assert found.byte_ledger["payload"] == truth[name]()
    assert found.byte_ledger.residual == 0


@needs_caches
def test_arrays_from_a_cache_of_the_function_are_not_read(folder: Path) -> None:
    cache: dict[str, Any] = {}

    def read() -> float:
        source = {str(folder / "tree.root"): "Events"}
        events = NanoEventsFactory.from_root(source, schemaclass=BaseSchema, buffer_cache=cache).events()
        return float(ak.sum(events["f0"]))

    cold, warm = measurement_of(read), measurement_of(read)
    size = sum(array.nbytes for array in cache.values())
    assert [run.chunks["bytes_cached"].tolist() for run in (cold, warm)] == [[0], [size]]
    assert (cold.byte_ledger["payload"] > 0, warm.byte_ledger["payload"]) == (True, 0)
    assert warm.byte_ledger.residual == 0


def test_waiting_for_a_core_while_files_are_opened_is_a_part_of_that() -> None:
    meter, queued = FilesMeter(), [0.0]
    meter.in_process = True
    waiting: Any = SimpleNamespace(seconds=lambda: queued[0])
    meter.core_wait = waiting
    for _ in range(5):
        meter.begin(OPEN)
        queued[0] += 0.001
        meter.end(OPEN)
        queued[0] += 0.5
    assert meter.aside[0] == pytest.approx(0.005)
