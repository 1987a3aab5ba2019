"""Records on their way: what is packed on a worker is in the tables of the client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from coffea.processor.executor import WorkItem

from roastcoffea.instrument.channels import taken_from
from roastcoffea.instrument.probe import Probe
from roastcoffea.log import batches, packing, received
from roastcoffea.log.batches import records_in
from roastcoffea.log.packing import BASKET, BASKET_BYTES, BASKETS_LISTED, BRANCHES_HAVE, packed_records
from roastcoffea.log.received import ReceivedRecords

CALL = {"call": "ours"}


def taken(*records: dict[str, Any]) -> ReceivedRecords:
    """What a client has of records, each of which comes on its own."""
    home = ReceivedRecords()
    for record in records:
        home.take(packed_records([CALL | record]))
    return home


def branch(name: str, sizes: list[int], read: float | None) -> dict[str, Any]:
    first = 3 if sizes else None
    return {
        "branch": name,
        "bytes_payload": sum(sizes),
        "bytes_again": 0,
        "bytes_uncompressed": 2 * sum(sizes),
        "baskets": len(sizes),
        "basket_first": first,
        "basket_last": None if first is None else first + len(sizes) - 1,
        "basket_bytes": sizes,
        "read_seconds": read,
        "decompress_seconds": 0.5,
        "interpret_seconds": 0.0,
    }


def as_columns(branches: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Branches as the meter gives them."""
    sizes = [row[BASKET_BYTES] for row in branches]
    told = {
        BASKETS_LISTED: list(map(len, sizes)),
        BASKET: [3 + place for one in sizes for place in range(len(one))],
        BASKET_BYTES: [size for one in sizes for size in one],
    }
    return {name: [row[name] for row in branches] for name in BRANCHES_HAVE if name not in told} | told


def test_records_that_are_not_whole_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packed_records([{"id": 1, "dataset": "ttbar", "branch_reads": as_columns([branch("Jet_pt", [5], 0.5)])}])
    flipped = [packed[:place] + bytes([byte ^ 16]) + packed[place + 1 :] for place, byte in enumerate(packed)]
    for damaged in (b"", b"damaged", packed[:-1], packed + b"0", *flipped):
        with pytest.raises(ValueError, match="damaged"):
            list(records_in(damaged))
    monkeypatch.setattr(packing, "SEED", 1)
    with pytest.raises(ValueError, match="another version"):
        list(records_in(packed))


@pytest.mark.parametrize("text", ["", "ünïcode", "two\nlines", "\n", "\0", "\0\n\0", '["]'])
def test_any_text_survives_packing(text: str) -> None:
    reads = {"branch_reads": as_columns([branch("Jet_pt", [5], 0.5)]), "coffea_columns": {f"{text}-offsets"}}
    home = taken({"id": 1, "error": text, "tree": None} | reads, {"id": 2, "dataset": "a"})
    first, second = home.chunks({"ours"}).to_pylist()
    known = [{name: value for name, value in row.items() if value is not None} for row in (first, second)]
    assert known[0] == CALL | {"id": 1, "attempt": 1, "error": text, "coffea_columns": [f"{text}-offsets"]}
    assert known[1] == CALL | {"id": 2, "attempt": 1, "dataset": "a"}


@pytest.mark.parametrize(("name", "shown"), [("ünï", "ünï"), ("two\nlines", "two lines"), ("\0", " ")])
def test_names_of_branches_are_one_line(name: str, shown: str) -> None:
    home = taken({"id": 1, "branch_reads": as_columns([branch(name, [5], 0.5)]), "coffea_columns": {f"{name}-data"}})
    chunks = home.chunks({"ours"})
    assert home.branch_reads(chunks)["branch"].to_pylist() == [shown]
    assert chunks["coffea_columns"].to_pylist() == [[f"{name}-data"]]


@pytest.mark.parametrize("size", [2**32 - 1, 2**32])
def test_sizes_of_any_width_survive_packing(size: int) -> None:
    home = taken({"id": 1, "branch_reads": as_columns([branch("Jet_pt", [size], 0.5)])})
    (read,) = home.branch_reads(home.chunks({"ours"})).to_pylist()
    assert (read["bytes_payload"], read["bytes_uncompressed"], read["basket_bytes"]) == (size, 2 * size, [size])


def test_a_difference_of_clocks_below_0_costs_no_record() -> None:
    home = taken({"id": 1, "branch_reads": as_columns([branch("Jet_pt", [5], -3e-6)])})
    (read,) = home.branch_reads(home.chunks({"ours"})).to_pylist()
    assert read["read_seconds"] == 0.0
    assert home.problems == []


@pytest.mark.parametrize("seconds", [1e-9, 3e-6, 0.1, 7.7e5])
def test_times_of_branches_come_to_five_digits(seconds: float) -> None:
    home = taken({"id": 1, "branch_reads": as_columns([branch("Jet_pt", [5], seconds)])})
    (read,) = home.branch_reads(home.chunks({"ours"})).to_pylist()
    assert read["read_seconds"] == pytest.approx(seconds, rel=2**-15)


@pytest.mark.parametrize(
    "columns",
    [
        set(),
        {"Jet_pt-data", "run-data"},
        {"Jet_pt-data"},
        {"Jet_pt-offsets", "Jet_pt-data", "run-data"},
        {"MET", "run"},
    ],
)
@pytest.mark.parametrize("names", [[], ["Jet_pt", "run"]])
def test_columns_that_coffea_told_survive_packing(columns: set[str], names: list[str]) -> None:
    reads = {"branch_reads": as_columns([branch(name, [5], 0.5) for name in names])} if names else {}
    home = taken({"id": 1, "coffea_columns": columns} | reads, {"id": 2} | reads)
    assert home.chunks({"ours"})["coffea_columns"].to_pylist() == [sorted(columns), None]


@pytest.mark.parametrize(
    ("requested", "sizes"),
    [
        ({5: 50}, [50]),
        ({7: 70, 5: 50, 6: 60}, [50, 60, 70]),
        ({5: 50, 9: 90}, [50, 0, 0, 0, 90]),
        ({9: 90, 5: 50}, [50, 0, 0, 0, 90]),
        ({5: 50, 6: 60, 10**9: 10}, [50, 10]),
    ],
)
def test_baskets_come_in_order_with_those_between(requested: dict[int, int], sizes: list[int]) -> None:
    reads = as_columns([branch("before", [1, 2], 0.5), branch("none", [], None), branch("Jet_pt", [], 0.5)])
    reads["baskets"][2] = reads[BASKETS_LISTED][2] = len(requested)
    reads[BASKET] += requested
    reads[BASKET_BYTES] += requested.values()
    home = taken({"id": 1, "branch_reads": reads})
    before, none, read = home.branch_reads(home.chunks({"ours"})).to_pylist()
    assert (before["basket_first"], before["basket_last"], before["basket_bytes"]) == (3, 4, [1, 2])
    assert (none["basket_first"], none["basket_last"], none["basket_bytes"]) == (None, None, [])
    assert (read["basket_first"], read["basket_last"]) == (min(requested), max(requested))
    assert read["basket_bytes"] == sizes


@pytest.mark.parametrize("batch", [1, 2, 128])
def test_branches_survive_packing(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "BATCH_OF_BRANCHES", batch)
    branches = [branch("Jet_eta", [], None), branch("Jet_pt", [5, 7, 2**40], 0.25), branch("ünï", [3], 0.0)]
    more = [branch(f"HLT_{number}", [number] * 3, number / 1024) for number in range(300)]
    packed = packed_records(
        [
            CALL | {"id": 1, "branch_reads": as_columns(branches)},
            CALL | {"id": 2},
            CALL | {"id": 3, "branch_reads": as_columns(more)},
            CALL | {"id": 4, "branch_reads": as_columns(branches[:1])},
        ]
    )
    home = ReceivedRecords()
    home.take(packed)
    home.take(packed)
    rows = home.branch_reads(home.chunks({"ours"})).to_pylist()
    expected = [(1, branches), (3, more), (4, branches[:1])]
    assert rows == [row | {"chunk": chunk} for chunk, of_chunk in expected for row in of_chunk]
    assert home.problems == []


def test_numbers_of_numpy_stay_numbers() -> None:
    """An analysis makes work items of its own, with entries out of an array."""
    start, stop = np.array([0, 100])
    item = WorkItem("ttbar", "file.root", "Events", start, stop, b"\x01" * 16)
    probe = Probe(lambda item: None, "Jets", "ours", ((), None, True))
    _, records = taken_from(probe(item))
    home = ReceivedRecords()
    for packed in records:
        home.take(packed)
    (chunk,) = home.chunks({"ours"}).to_pylist()
    assert (chunk["entry_start"], chunk["entry_stop"], chunk["events"]) == (0, 100, 100)
    assert home.problems == []


def test_numbers_of_numpy_in_records() -> None:
    numbers = {"id": np.uint64(7), "cpu_seconds": np.float32(0.25), "wall_seconds": np.float64(0.5)}
    row = branch("Jet_pt", [np.int64(5), np.int32(7)], np.float32(0.5))  # type: ignore[list-item,arg-type]
    home = taken(numbers | {"branch_reads": as_columns([row])})
    chunks = home.chunks({"ours"})
    assert chunks.select(["id", "cpu_seconds", "wall_seconds"]).to_pylist() == [
        {"id": 7, "cpu_seconds": 0.25, "wall_seconds": 0.5}
    ]
    (read,) = home.branch_reads(chunks).to_pylist()
    assert (read["basket_bytes"], read["bytes_payload"], read["read_seconds"]) == ([5, 7], 12, 0.5)


def test_a_figure_that_is_many_costs_no_other_record() -> None:
    home = ReceivedRecords()
    home.take(packed_records([CALL | {"id": 1}, CALL | {"id": 2, "start": np.array([1.0, 2.0])}]))
    assert home.chunks({"ours"})["id"].to_pylist() == [1]
    assert len(home.problems) == 1


@pytest.mark.parametrize("bad", [{"events": "many"}, {"entry_start": 2**70}, {"start": [1.0]}, {"dataset": 5}])
def test_a_record_that_does_not_fit_is_left_out_and_told(bad: dict[str, Any]) -> None:
    records: list[dict[str, Any]] = [{"id": identity, "start": 1.0 * identity} for identity in range(1, 10)]
    records[3] |= bad
    records[6] |= bad
    home = taken(*records)
    for _ in range(2):
        assert home.chunks({"ours"})["id"].to_pylist() == [1, 2, 3, 5, 6, 8, 9]
        (problem,) = home.problems
        assert "2 chunk records could not be read and are left out" in problem


def test_branches_and_sections_that_do_not_fit_are_left_out_and_told() -> None:
    reads = as_columns([branch("Jet_pt", [5], 0.5)])
    home = taken(
        {"id": 1, "branch_reads": reads, "sections": [{"name": "jets", "count": 1}, {"name": 5}]},
        {"id": 2, "branch_reads": as_columns([branch("\ud800", [5], 0.5)])},
        {"id": 3, "branch_reads": reads},
    )
    chunks = home.chunks({"ours"})
    assert sorted(chunks["id"].to_pylist()) == [1, 2, 3]
    assert home.branch_reads(chunks)["chunk"].to_pylist() == [1, 3]
    assert home.sections(chunks)["name"].to_pylist() == ["jets"]
    branches, sections = home.problems
    assert "1 branch records" in branches
    assert "1 section records" in sections


def test_records_that_cannot_be_unpacked_are_told() -> None:
    home = ReceivedRecords()
    for blob in (b"damaged", packed_records([{"problems": ["odd"]}]), packed_records([CALL | {"id": 1}])):
        home.take(blob)
    assert home.chunks({"ours"})["id"].to_pylist() == [1]
    assert ["could not be unpacked" in problem for problem in home.problems] == [True, False]


def test_single_columns_are_those_of_the_whole_record() -> None:
    names = ("id", "file", "outcome", "wall_seconds", "bytes_requested", "endpoint", "events")
    plain = {"id": 5, "file": "a.root", "outcome": "ok", "wall_seconds": 1.5, "bytes_requested": 0}
    profiled = plain | {"id": 6, packing.PROFILE: [1, 2, 3], packing.BRANCHES: as_columns([branch("x", [7], 0.5)])}
    odd = plain | {"id": 7, "file": "two\nlines"}
    packed = packed_records([plain, profiled, odd, plain | {"id": 8}])
    del odd["file"]
    assert batches.unpacked_values(packed, names) == [plain, plain | {"id": 6}, odd, plain | {"id": 8}]
