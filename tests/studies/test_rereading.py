"""Reading a run's baskets again: what a server is asked for, and rates from hand-made streams."""

from __future__ import annotations

import pickle
import re
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
from distributed import Client, LocalCluster
from handmade import T, branch_read, chunk, entries, reading, run_without_tables, with_chunks
from servers import HttpServer, http_server

from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS
from roastcoffea.studies import rereading
from roastcoffea.studies.rereading import (
    Endpoint,
    Rate,
    Rereading,
    _answers,
    _located,
    _streamed,
    of_run,
    rate_of,
    reread,
    sampled,
)

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


def in_threads(number: int) -> Client:
    return Client(n_workers=1, threads_per_worker=number, processes=False, dashboard_address=":0")


@pytest.mark.cluster
def test_each_basket_that_the_run_read_is_requested_once(folder: Path) -> None:
    with http_server(folder, delay=0.05) as server, in_threads(4) as client:
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
def test_baskets_that_chunks_share_are_requested_once(folder: Path) -> None:
    with http_server(folder) as server, in_threads(1) as client:
        measurement = measured(server.url, chunksize=1_500)
        server.ranges.clear()
        (one,) = reread(measurement, client, streams=[1]).endpoints
    starts = [request[:2] for request in after_opening(server, folder)]
    assert len(starts) == len({*starts})
    assert one.rates[0].bytes == sum(basket[2] for basket in baskets(folder))
    assert measurement.chunks["bytes_payload"].sum() > one.rates[0].bytes


@pytest.mark.cluster
def test_what_cannot_be_read_is_named(folder: Path) -> None:
    with http_server(folder) as server, in_threads(2) as client:
        measurement = measured(server.url)
        with pytest.raises(RoastcoffeaError, match="8 streams need as many threads, and 2 are available"):
            reread(measurement, client)
        (few,) = reread(measurement, client, streams=[2], most_bytes=1).endpoints
        (folder / "0.root").rename(folder / "hidden")
        (one,) = reread(measurement, client, streams=[1]).endpoints
        (folder / "hidden").rename(folder / "0.root")
    assert few.text == f"{few.name}: nothing could be read."
    assert few.errors == ["2 streams: not enough chunks"]
    assert len(one.rates) == 1
    # the server has no answer for what it lacks
    assert one.errors == [f"ServerDisconnectedError: Server disconnected ({server.url}/0.root)"]


@pytest.mark.cluster
def test_a_silent_server_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "PATIENCE", 1.0)
    with http_server(folder) as server, in_threads(2) as client:
        measurement = measured(server.url)
        server.silent |= {basket[:2] for basket in baskets(folder)}
        (one,) = reread(measurement, client, streams=[1, 2], seconds=0.1).endpoints
    assert one.rates == []
    assert one.errors[0].startswith(f"no answer within 1 s ({server.url}/")
    assert one.errors[-1] == "2 streams: not all of them read at the same time"


@pytest.mark.cluster
def test_tasks_without_a_worker_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "PATIENCE", 0.15)
    run, client = Measurement(with_branches("root://eos:1094//a.root")), in_threads(1)
    with client:
        lost = client.submit(int, workers=["tcp://127.0.0.1:9"], pure=False)
        answers = _answers([lost, client.submit(int, pure=False), client.submit(int, "x")])
        assert answers[:2] == ["no worker answered within 300 ms", 0]
        assert answers[2].startswith("ValueError: invalid literal")
        with pytest.raises(RoastcoffeaError, match="the cluster stopped before the data were read"):
            reread(run, client, streams=[1], agree=lambda _: client.cluster.close())
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(RoastcoffeaError, match="the cluster has no worker that is free within 300 ms"),
    ):
        reread(run, client)


def test_a_stream_skips_what_it_cannot_read(folder: Path) -> None:
    (ranges,) = _located(str(folder / "1.root"), "Events", [(0, 2_000, ["x"])])
    files = [(str(folder / "none.root"), ranges), (str(folder / "1.root"), ranges)]
    amounts, errors = _streamed(files, 5.0, 1.0)
    assert amounts[-1][1] == ranges[0][0][1] - ranges[0][0][0]
    assert len(errors) == 1
    assert errors[0].startswith("FileNotFoundError: ")


def test_the_sample_is_random_and_no_larger_than_allowed(folder: Path) -> None:
    run = measured(str(folder)).run
    size = sum(run.chunks["bytes_payload"].to_pylist())
    half = sampled(run, size / 2)
    assert {*half["server"]} == {"local files"}
    assert size / 4 < half["bytes_payload"].sum() <= size / 2
    assert all(sorted(branches) == ["x", "y"] for branches in half["branches"])
    assert len(sampled(run, 1)) == 1
    drawn = {tuple(sampled(run, size)["id"]) for _ in range(10)}
    assert len(drawn) > 1
    assert {len({*ids}) for ids in drawn} == {CHUNKS}


def with_branches(url: str, **of_last: Any) -> Any:
    rows = [
        chunk("data", "k", None, "ok", file=url, id=1, start=T, stop=T + 4, request_seconds=3.0),
        chunk("data", "k", None, "ok", file=url, id=2, start=T + 2, stop=T + 5, request_seconds=2.0),
        chunk("data", "k", None, "ok", file=url, id=3, start=T + 100, stop=T + 105, request_seconds=1.0),
    ]
    rows = [row | reading(900, 100 * row["id"], 200, 2000) | entries(0, row["id"]) for row in rows]
    rows[-1] |= of_last
    reads = table_of_rows(BRANCH_READ_COLUMNS, [branch_read(number, "x", 0, [100]) for number in (1, 2, 3)])
    return with_chunks(*rows, branch_reads=reads)


def test_the_rate_of_the_run_is_that_while_chunks_were_processed() -> None:
    # 100 + 200 + 300 bytes and 3 + 2 + 1 s of requests in 5 + 5 s
    assert of_run(with_branches("root://eos:1094//a.root")) == {"eos": (60.0, 0.6)}
    # what is not known is no zero: 100 + 200 bytes and 3 + 2 s in 5 s
    assert of_run(with_branches("root://eos:1094//a.root", bytes_payload=None)) == {"eos": (60.0, 1.0)}


def test_secrets_in_urls_are_not_known_any_more() -> None:
    with pytest.raises(RoastcoffeaError, match=re.escape("secrets in URLs are not stored, but replaced by ***")):
        sampled(with_branches("https://eos/a.root?authz=***"), 1e9)


def test_a_run_without_branches_is_refused() -> None:
    with pytest.raises(RoastcoffeaError, match="branch reads were not recorded"):
        sampled(run_without_tables(), 1e9)


def test_rates_are_those_of_all_streams_together() -> None:
    # 10 MB/s and, after a burst of 50 MB, 30 MB/s, until the first stream ends
    steady = [(T + second, 10e6 * second) for second in range(9)]
    burst = [(T, 0.0), *((T + second, 50e6 + 30e6 * second) for second in range(1, 20))]
    found: Any = rate_of([steady, burst])  # type: ignore[list-item]
    assert found.rate == pytest.approx(40e6)
    assert (found.streams, found.seconds, found.bytes) == (2, 8, 80e6 + 50e6 + 570e6)


def test_streams_that_did_not_run_together_have_no_rate() -> None:
    def stream(start: float) -> Any:
        return [(T + start + second, 4e6 * second) for second in range(6)]

    assert rate_of([stream(0), stream(5)]) is None
    assert rate_of([stream(0), stream(2.5)]) is None
    late: Any = rate_of([stream(0), stream(2)])
    assert (late.rate, late.seconds) == (pytest.approx(8e6), 3)
    assert rate_of([stream(0), [(T, 0), (T + 5, 0)]]) is None


def test_rates_that_a_cache_may_explain_are_told_beside_others() -> None:
    short, long, tiny = Rate(1, 400e6, 40_000_000, 0.1), Rate(2, 100e6, 500_000_000, 5.0), Rate(4, 900e6, 9, 1e-8)
    one = Endpoint("eos", 25e6, 3.14159, [short, long, tiny], [])
    assert one.share == 25 / 400
    assert one.text == (
        "eos: the run read 25 MB/s (3.1 requests at a time on average), 6 % of the 400 MB/s reached by 1 stream "
        "for 100 ms, perhaps from a cache, and 25 % of the 100 MB/s reached by 2 streams."
    )
    few = Endpoint("eos", 25e6, None, [tiny], [])
    assert few.share is None
    assert few.text == "eos: the run read 25 MB/s. At most 9 B were read again, too little for a comparison."
    rows = Rereading([one]).sheets()[0].rows
    assert rows[1] == ("eos", 2, 100e6, 50e6, 500_000_000, 5.0)


def test_more_streams_are_recommended_where_they_may_help() -> None:
    def text(run: float, *rates: float) -> str:
        return Endpoint("eos", run, None, [Rate(2**n, rate, 5_000_000, 5.0) for n, rate in enumerate(rates)], []).text

    more = " Try more streams, as the rate may still grow."
    assert text(10e6, 10e6, 20e6) == f"eos: the run read 10 MB/s, 50 % of the 20 MB/s reached by 2 streams.{more}"
    assert text(10e6, 19e6, 20e6) == "eos: the run read 10 MB/s, 50 % of the 20 MB/s reached by 2 streams."
    assert text(21e6, 19e6, 20e6) == f"eos: the run read 21 MB/s, more than the 20 MB/s reached by 2 streams.{more}"


def test_workers_need_no_package(folder: Path) -> None:
    code = "import pickle, sys; sys.modules['roastcoffea'] = None; located = pickle.load(sys.stdin.buffer); "
    code += "print(located(*eval(sys.argv[1])))"
    part = (str(folder / "0.root"), "Events", [(0, 2_000, ["x"])])
    done = subprocess.run(
        [sys.executable, "-c", code, repr(part)], input=pickle.dumps(_located), capture_output=True, check=True
    )
    first = min(basket[1] for basket in baskets(folder) if basket[0] == "/0.root")
    assert eval(done.stdout)[0][0][0][0] == first


def test_nothing_is_read_without_consent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured(str(folder)).save(tmp_path)
    asked = list[str]()
    capsys.readouterr()
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert main(["storage", str(path), "--streams", "1,2"]) == 1
    assert asked == [asked[0]]
    assert asked[0].startswith("Read up to ")
    assert asked[0].endswith(
        "of 8 chunks and the metadata of 2 files from local files, for up to 5 s each with 1, 2 streams (10 s in all)"
    )
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "roastcoffea: not read\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert main(["storage", str(path), "--streams", "1"]) == 2
    assert "There is no terminal to ask; add --yes" in capsys.readouterr().err
    assert main(["storage", str(path), "--streams", "65"]) == 1
    assert "65 streams need as many threads, and 64 are available" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_limits_are_finite_numbers(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "storage run --seconds",
        "storage run --gigabytes",
        "watch a --seconds",
        "facility a --watts-per-core",
    ):
        assert main([*command.split(), value]) == 2
        assert f"{value} is not a finite number" in capsys.readouterr().err
