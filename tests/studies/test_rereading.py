"""Reading a run's baskets again: what a server is asked for, and rates from hand-made streams."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import awkward as ak
import click
import numpy as np
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from distributed import Client
from handmade import T, branch_read, chunk, entries, reading, run_without_tables, with_chunks
from processes import free_port
from servers import HttpServer, http_server

from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_COLUMNS
from roastcoffea.studies import rereading
from roastcoffea.studies.rereading import Endpoint, Rate, Rereading, _located, of_run, rate_of, reread, sampled

FILES, CHUNKS = 2, 8


class ReadsTwo(ProcessorABC):
    """Reads two of three branches."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": float(ak.sum(events.x)) + float(ak.sum(events.y))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, drawn = tmp_path_factory.mktemp("files"), np.random.default_rng(37)
    for number in range(FILES):
        with uproot.recreate(folder / f"{number}.root") as file:
            tree = file.mktree("Events", dict.fromkeys("xyz", "float64"))
            for _ in range(CHUNKS // FILES):
                tree.extend({name: drawn.normal(size=2_000) for name in "xyz"})
    return folder


def measured(url: str, chunksize: int = 2_000) -> Measurement:
    runner = Runner(executor=IterativeExecutor(status=False), schema=BaseSchema, chunksize=chunksize)
    with MetricsCollector() as collector:
        files = {f"{url}/{number}.root": "Events" for number in range(FILES)}
        runner({"dijets": {"files": files}}, processor_instance=ReadsTwo())
    return collector.measurement


def baskets(folder: Path) -> set[tuple[str, int, int]]:
    """File, first byte and size of all baskets of the two branches."""
    found = set()
    for path in folder.glob("*.root"):
        with uproot.open(path) as file:
            for name in "xy":
                seeks, sizes = (file["Events"][name].member(each) for each in ("fBasketSeek", "fBasketBytes"))
                found |= {(f"/{path.name}", int(*pair[:1]), int(pair[1])) for pair in zip(seeks, sizes, strict=True)}
    return {basket for basket in found if basket[2]}


def after_opening(server: HttpServer, folder: Path) -> list[tuple[str, int, int]]:
    """Requests of baskets: the others read a file's metadata, or all of it."""
    starts = {basket[:2] for basket in baskets(folder)}
    return [request for request in server.ranges if request[:2] in starts]


@pytest.mark.cluster
def test_each_basket_that_the_run_read_is_requested_once(folder: Path) -> None:
    with (
        http_server(folder) as server,
        Client(n_workers=1, threads_per_worker=4, processes=False, dashboard_address=":0") as client,
    ):
        measurement = measured(server.url)
        server.ranges.clear()
        found = reread(measurement, client, streams=[4, 1, 2])
    assert sorted(after_opening(server, folder)) == sorted(baskets(folder))
    (one,) = found.endpoints
    assert one.name == server.url.removeprefix("http://")
    assert [rate.streams for rate in one.rates] == [1, 2, 4]
    assert sum(rate.bytes for rate in one.rates) == sum(basket[2] for basket in baskets(folder))
    assert sum(rate.bytes for rate in one.rates) == measurement.chunks["bytes_payload"].sum()
    assert one.errors == []
    assert one.run_rate > 0
    assert one.run_requests is not None


@pytest.mark.cluster
def test_what_cannot_be_read_is_named(folder: Path) -> None:
    with (
        http_server(folder) as server,
        Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as client,
    ):
        measurement = measured(server.url)
        with pytest.raises(RoastcoffeaError, match="8 streams need as many threads, and the cluster has 2"):
            reread(measurement, client)
        (few,) = reread(measurement, client, streams=[2], most_bytes=1).endpoints
        (folder / "0.root").rename(folder / "hidden")
        (one,) = reread(measurement, client, streams=[1]).endpoints
        (folder / "hidden").rename(folder / "0.root")
    assert few.text == f"{few.name}: nothing could be read."
    assert few.errors == ["2 streams: not enough chunks"]
    assert len(one.rates) == 1
    assert one.errors == ["ServerDisconnectedError: Server disconnected"]  # the server has no answer for what it lacks


def test_the_sample_is_random_and_no_larger_than_allowed(folder: Path) -> None:
    measurement = measured(str(folder))
    size = measurement.chunks["bytes_payload"].sum()
    ((name, parts),) = sampled(measurement, size / 2).items()
    assert name == "local files"
    assert size / 4 < sum(part.size for part in parts) <= size / 2
    assert all(sorted(part.branches) == ["x", "y"] for part in parts)
    assert len(sampled(measurement, size)["local files"]) == CHUNKS
    assert len(sampled(measurement, 1)["local files"]) == 1


def test_a_run_without_branches_is_refused() -> None:
    with pytest.raises(RoastcoffeaError, match="branch reads were not recorded"):
        sampled(Measurement(run_without_tables()), 1e9)


def test_rates_are_those_of_all_streams_together() -> None:
    # 10 MB/s and, after a burst of 50 MB, 30 MB/s, until the first stream ends
    steady = [(second, 10e6 * second) for second in range(1, 9)]
    burst = [(second, 50e6 + 30e6 * second) for second in range(1, 20)]
    found = rate_of([steady, burst])  # type: ignore[list-item]
    assert found.rate == pytest.approx(40e6)
    assert (found.streams, found.seconds, found.bytes) == (2, 8, 80e6 + 50e6 + 570e6)


def test_rates_that_a_cache_may_explain_are_told_beside_others() -> None:
    short, long, tiny = Rate(1, 400e6, 40_000_000, 0.1), Rate(2, 100e6, 500_000_000, 5.0), Rate(4, 900e6, 9, 1e-8)
    one = Endpoint("eos", 25e6, 3.14159, [short, long, tiny], [])
    assert one.share == 25 / 400
    assert one.text == (
        "eos: the run read 25 MB/s, with 3.1 requests at a time on average: 6 % of the 400 MB/s that 1 stream reached "
        "for 100 ms, perhaps from a cache, and 25 % of the 100 MB/s that 2 streams reached."
    )
    assert Endpoint("eos", 101e6, None, [long], []).text.endswith("more than the 100 MB/s that 2 streams reached.")
    few = Endpoint("eos", 25e6, None, [tiny], [])
    assert few.share is None
    assert few.text == "eos: the run read 25 MB/s. At most 9 B were read again, too little for a comparison."
    rows = Rereading([one]).sheets()[0].rows
    assert rows[1] == ("eos", 2, 100e6, 50e6, 500_000_000, 5.0)


def test_workers_need_no_package(folder: Path) -> None:
    code = "import pickle, sys; sys.modules['roastcoffea'] = None; located = pickle.load(sys.stdin.buffer); "
    code += "print(located(eval(sys.argv[1])))"
    part = (str(folder / "0.root"), "Events", 0, 2_000, ["x"], 0)
    done = subprocess.run(
        [sys.executable, "-c", code, repr(part)], input=pickle.dumps(_located), capture_output=True, check=True
    )
    first = min(basket[1] for basket in baskets(folder) if basket[0] == "/0.root")
    assert eval(done.stdout)[0][0][0] == first


def test_nothing_is_read_without_consent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured(str(folder)).save(tmp_path)
    asked = list[str]()
    capsys.readouterr()
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text) or (_ for _ in ()).throw(click.Abort))
    assert main(["storage", str(path), "--streams", "1,2"]) == 130
    assert asked == [asked[0]]
    assert asked[0].startswith("Read up to ")
    assert asked[0].endswith("of 8 chunks from local files, for up to 5 s with each of 1, 2 streams")
    assert capsys.readouterr().out == ""
