"""Values of the user's own: those of each chunk, and nothing else, come home."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from analyses import runner_for
from coffea.nanoevents import NanoAODSchema
from coffea.processor import FuturesExecutor, IterativeExecutor, ProcessorABC, Runner
from distributed import Client

from roastcoffea import Measurement, MetricsCollector, load, record
from roastcoffea.instrument.track import MOST_VALUES, OpenChunk, open_chunk, packed_values


@pytest.fixture
def chunk() -> Iterator[OpenChunk]:
    """A chunk that is open on this thread; nothing of it may stay in the process."""
    chunk = OpenChunk()
    with open_chunk(chunk):
        yield chunk
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


def kept(chunk: OpenChunk) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(packed_values(chunk.recorded or {}))
    return values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (-2.5, -2.5),
        (True, True),
        ("signal region", "signal region"),
        (None, None),
        (np.int64(7), 7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.array(4), 4),
        (ak.sum(ak.Array([1, 2, 3])), 6),
        (ak.max(ak.Array([])), None),
        (Fraction(1, 2), 0.5),
        (math.inf, math.inf),
    ],
)
def test_scalars_of_all_kinds_are_plain_values(chunk: OpenChunk, value: Any, expected: Any) -> None:
    record("it", value)
    (found,) = kept(chunk).values()
    assert found == expected
    assert type(found) is type(expected)


def test_what_is_not_a_number_stays_so(chunk: OpenChunk) -> None:
    record("it", np.nan)
    assert math.isnan(kept(chunk)["it"])


@pytest.mark.parametrize("value", [[1], np.array([1, 2]), ak.Array([1]), {"a": 1}, 1j, b"x", object()])
def test_what_is_no_scalar_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"got {type(value).__name__} for 'jets'"):
        record("jets", value)


@pytest.mark.parametrize("name", ["", 3, None, b"jets"])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(TypeError, match="as its first argument; got"):
        record(name, 1)


def test_the_later_value_counts(chunk: OpenChunk) -> None:
    record("jets", 1)
    record("leptons", 3)
    record("jets", 2)
    assert kept(chunk) == {"jets": 2, "leptons": 3}


def test_names_that_are_made_in_a_loop_are_bounded(chunk: OpenChunk) -> None:
    for number in range(MOST_VALUES + 10):
        record(f"event {number}", number)
    record("event 0", "again")
    assert len(kept(chunk)) == MOST_VALUES
    assert kept(chunk)["event 0"] == "again"
    (problem,) = chunk.sections.problems
    assert problem == f"a chunk recorded more than {MOST_VALUES} different values: the rest are not kept"


def test_secrets_and_long_texts_are_cut_out(chunk: OpenChunk) -> None:
    record("token", "root://host//file?authz=Bearer%20abcdefghijklmnop")
    record("long", "x" * 10**6)
    record("password=hunter2", 1)
    found = kept(chunk)
    assert "abcdefghijklmnop" not in str(found)
    assert "hunter2" not in str(found)
    assert len(found["long"]) == 1000


class Recording(ProcessorABC):
    """Records what it computed; fails in one chunk after that."""

    def __init__(self, failing: int = -1) -> None:
        self.failing = failing

    def process(self, events: Any) -> dict[str, int]:
        start = events.metadata["entrystart"]
        record("jets", ak.sum(ak.num(events.Jet.pt)))
        record("first", start == 0)
        record("dataset", events.metadata["dataset"])
        if start == self.failing:
            raise ValueError("planted")
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def jets_of(sample: Any, start: int, stop: int, file: str) -> int:
    """Jets in entries of a file, as uproot tells them."""
    with uproot.open(file) as opened:
        return int(opened["Events"]["nJet"].array(entry_start=start, entry_stop=stop, library="np").sum())


def check_values(measurement: Measurement, sample: Any) -> None:
    """Hold the values of each chunk, and their sums, against the files."""
    truth: dict[str, list[int]] = {}
    for row in measurement.chunks.itertuples():
        jets = jets_of(sample, row.entry_start, row.entry_stop, row.file)
        assert row.custom == {"jets": jets, "first": row.entry_start == 0, "dataset": row.dataset}
        if row.outcome == "ok":
            truth.setdefault(row.dataset, []).append(jets)
    assert truth
    totals = measurement.custom.set_index(["name", "dataset"])
    for dataset, jets_in_chunks in truth.items():
        jets = totals.loc[("jets", dataset)]
        assert jets[["chunks", "sum", "min", "max"]].tolist() == [
            len(jets_in_chunks),
            sum(jets_in_chunks),
            min(jets_in_chunks),
            max(jets_in_chunks),
        ]
        assert list(totals.loc[("dataset", dataset), "texts"]) == [dataset]
    assert measurement.metrics["custom"]["jets"].keys() == truth.keys()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["iterative", "threads"])
def test_values_come_home_without_dask(sample: Any, executor: str, tmp_path: Any) -> None:
    threads = FuturesExecutor(workers=2, pool=ThreadPoolExecutor, status=False)
    made = IterativeExecutor(status=False) if executor == "iterative" else threads
    with MetricsCollector() as collector:
        output = Runner(made, chunksize=2000, schema=NanoAODSchema)(sample, processor_instance=Recording())
    assert output == {"events": 16_000}
    check_values(collector.measurement, sample)
    check_values(load(collector.save_measurement(tmp_path)), sample)


@pytest.mark.slow
def test_values_come_home_from_workers_and_from_attempts_that_failed(client: Client, sample: Any) -> None:
    with MetricsCollector(client) as collector, pytest.raises(Exception, match="planted"):
        runner_for(client, 2000, retries=0)(sample, processor_instance=Recording(failing=2000))
    measurement = collector.measurement
    failed = measurement.chunks[measurement.chunks["outcome"] == "error"]
    assert len(failed) > 0
    assert failed["custom"].str["first"].tolist() == [False] * len(failed)
    with MetricsCollector(client) as collector:
        runner_for(client, 2000)(sample, processor_instance=Recording())
    check_values(collector.measurement, sample)
