"""Trees, RNTuples and Parquet: steps that read them, seen without a change to what they give."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from coffea.processor.executor import WorkItem
from fsspec.implementations.local import LocalFileSystem
from releases import needs_parquet, needs_rntuples, needs_whole_columns
from stored import clusters_of, outcome, total_of_f0

from roastcoffea.instrument.meter.formats import CountedCache
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.measurement import Measurement


@needs_rntuples
def test_pages_that_are_asked_for_by_keyword_are_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ntuple = uproot.models.RNTuple.Model_ROOT_3a3a_RNTuple
    original = ntuple.read_cluster_pages

    def by_keyword(self: Any, cluster_idx: int, col_idx: int, *args: Any, **kwargs: Any) -> Any:
        return original(self, cluster_idx, col_idx, *args, **kwargs)

    monkeypatch.setattr(ntuple, "read_cluster_pages", by_keyword)
    _, measurement = outcome(folder / "ntuple.root", total_of_f0)
    assert measurement.byte_ledger["payload"] == sum(clusters_of(str(folder / "ntuple.root"), "f0", 0, 10**9).values())
    assert measurement.byte_ledger.residual == 0


def mapping_of(events: Any) -> Any:
    return events.attrs["@events_factory"]._mapping


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy of events": lambda events: total_of_f0(copy.deepcopy(events)),
    "pickle of events": lambda events: total_of_f0(pickle.loads(pickle.dumps(events))),
    "deepcopy of a tree": lambda events: [len(copy.deepcopy(tree)) for tree in mapping_of(events)._cache.values()],
    "pickle of a tree": lambda events: [
        len(pickle.loads(pickle.dumps(tree))) for tree in mapping_of(events)._cache.values()
    ],
}


@pytest.mark.parametrize("copies", COPIES)
def test_copies_are_made_as_without_a_meter(folder: Path, copies: str) -> None:
    _, measurement = outcome(folder / "tree.root", COPIES[copies])
    assert [text for text in measurement.problems if "metered" in text] == []


class CountingFile(io.RawIOBase):
    """A file that counts what is read of it."""

    read_bytes = 0

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, *place: int) -> int:
        return self._file.seek(*place)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        CountingFile.read_bytes += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._file.close()


class CountingFileSystem(LocalFileSystem):
    """A file system that counts what is read of its files."""

    protocol = "counting"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("counting://")))

    def open(self, path: str, mode: str = "rb", **_: Any) -> CountingFile:
        return CountingFile(self._strip_protocol(path))


@needs_whole_columns
def test_columns_of_parquet_are_what_a_file_system_counts(folder: Path) -> None:
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)

    def counted(columns: list[str]) -> tuple[int, Measurement]:
        item = WorkItem("a", f"counting://{folder / 'columns.parquet'}", "Events", 0, 1000, b"1" * 16, {})
        CountingFile.read_bytes = 0
        _, measurement = outcome(
            item, lambda events: sum(float(ak.sum(events[name])) for name in columns), kind="parquet"
        )
        # once without a collector, once with it
        return CountingFile.read_bytes // 2, measurement

    nothing, _ = counted([])
    for columns in (["f0"], ["f0", "Jet_pt"]):
        number, measurement = counted(columns)
        assert measurement.byte_ledger["payload"] == number - nothing
        assert measurement.byte_ledger.residual == 0


@needs_parquet
def test_a_column_of_parquet_may_have_dots(tmp_path: Path) -> None:
    path = tmp_path / "dots.parquet"
    pq.write_table(pa.table({"a.b": pa.array(range(1000)), "a": pa.array([1.5] * 1000)}), path)
    item = WorkItem("a", str(path), "Events", 0, 1000, b"1" * 16, {})
    _, measurement = outcome(item, lambda events: float(ak.sum(events["a.b"])), kind="parquet")
    sizes = {
        column.path_in_schema: column.total_compressed_size
        for column in map(pq.ParquetFile(path).metadata.row_group(0).column, range(2))
    }
    assert measurement.byte_ledger["payload"] == sizes["a.b"]


@pytest.mark.slow
def test_baskets_that_came_with_the_tree_have_the_size_of_what_is_in_them(real_files: dict[str, Any]) -> None:
    (path,) = real_files["ttbar"]["files"]
    with uproot.open(path) as file:
        basket = file["Events/nMuon"].basket(0)
        assert basket.is_embedded
        events = len(basket.array())
    _, measurement = outcome(path, lambda events: int(ak.sum(events["nMuon"])))
    (read,) = measurement.run.branch_reads.to_pylist()
    assert (read["bytes_payload"], read["bytes_uncompressed"]) == (0, 4 * events)


class OnlyGets:
    """A buffer cache of a user's own, as coffea's: `in` would look up, and what it had may be gone then."""

    def __init__(self) -> None:
        self.arrays, self.asked = {"a": np.zeros(3)}, 0

    def __getitem__(self, key: str) -> Any:
        self.asked += 1
        return self.arrays.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return self.arrays.pop(key, default)


def test_a_cache_of_arrays_is_asked_once_for_each() -> None:
    cache, tally = OnlyGets(), Tally()
    counted = CountedCache(cache, tally)
    assert counted.get("a").tolist() == [0.0] * 3
    assert counted.get("a", "none") == "none"
    assert (cache.asked, tally.cached) == (2, 24)
