"""Runs that read through XRootD, against what real servers on this machine count, and who of them is slow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from planted_work import Analysis
from plants import Ground, fileset_of, measured
from plants import cluster as workers
from servers import (
    Server,
    cache_of,
    close_handles,
    cluster,
    data_server,
    file_stream,
    needs_xrootd,
    set_client,
    wait_for_file,
)
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.measurement import Measurement

pytestmark = [pytest.mark.slow, needs_xrootd]

SOURCES: dict[str, Any] = {
    "fsspec": {},
    "vector reads": {"handler": uproot.XRootDSource},
    "threads": {"handler": uproot.MultithreadedXRootDSource},
    "more threads": {"handler": uproot.MultithreadedXRootDSource, "num_workers": 3},
}
COUNTS = ("opens", "requests", "vector_reads", "bytes_requested", "bytes_transferred")


class Reading(ProcessorABC):
    """Reads all branches; `before` may do something before each chunk."""

    before: Any = None

    def process(self, events: Any) -> dict[str, float]:
        if self.before is not None:
            self.before(events.metadata)
        return {"sum": sum(float(ak.sum(events[name], axis=None)) for name in events.fields)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def run(urls: list[str], options: Any, chunksize: int = 3000, **settings: Any) -> Any:
    """What a run without a cluster gives."""
    runner = Runner(
        executor=IterativeExecutor(status=False),
        schema=BaseSchema,
        chunksize=chunksize,
        metadata_cache={},
        **settings,
    )
    fileset = {"a": {"files": dict.fromkeys(urls, "Events")}}
    given = {"uproot_options": options} if options else {}
    return runner(fileset, processor_instance=Reading(), **given)


def filled(server: Server, names: list[str], **what: Any) -> list[str]:
    """URLs of files that are written for a server."""
    for number, name in enumerate(names):
        write_tree(server.files / name, **({"baskets": 3, "events": 2000, "flat": 5 + number} | what))
    return [server.url(name) for name in names]


def total(measurement: Measurement, column: str) -> int:
    """Sum over all openings of files."""
    return int(measurement.chunks[column].sum() + measurement.preprocessing[column].sum())


@pytest.mark.parametrize("source", ["fsspec", "more threads"])
def test_all_counts_are_those_of_the_server(source: str) -> None:
    names = ["a.root", "b.root"]
    with data_server() as server:
        plain = run(filled(server, names), SOURCES[source])
        close_handles()
    with file_stream() as stream, data_server(stream.port) as server:
        urls = filled(server, names)
        with MetricsCollector() as collector:
            assert run(urls, SOURCES[source]) == plain
        close_handles()
        measurement = collector.measurement
        ours = {name: total(measurement, name) for name in COUNTS}
        counted = stream.counted(ours["opens"])
    truth = {
        "opens": counted.opens,
        "requests": counted.requests,
        "vector_reads": counted.vectors,
        "bytes_requested": counted.bytes - (measurement.byte_ledger.gaps or 0),
        "bytes_transferred": counted.bytes,
    }
    assert ours == truth
    assert min(truth["opens"], truth["requests"], truth["bytes_requested"]) > 0
    assert measurement.byte_ledger.transferred == truth["bytes_transferred"]
    assert measurement.byte_ledger.gaps == 0 or source == "fsspec"
    assert (truth["vector_reads"] == 0) == ("threads" in source)
    assert measurement.problems == []
    (row,) = measurement.endpoints.to_dict("records")
    assert row["endpoint"] == server.endpoint == measurement.byte_ledger.by("endpoint").index.item()
    assert {name: row[name] for name in COUNTS} == truth
    assert 0 < row["shortest_latency"] <= row["latency"]
    assert (row["files"], row["errors"], row["retries"], row["losses"]) == (2, 0, 0, 0)
    assert measurement.endpoints["redirector"].isna().all()


class Storage:
    """A redirector and two data servers of different files, of which the second is throttled."""

    def __init__(self, folder: Path, rates: tuple[str | None, str | None], stack: ExitStack) -> None:
        self.redirector, self.servers = stack.enter_context(cluster(rates))
        for number in range(6):
            shutil.copy(folder / f"file{number}.root", self.servers[number % 2].files)
        self.urls = [self.redirector.url(f"file{number}.root") for number in range(6)]
        for url in self.urls:
            wait_for_file(url)

    def measured(self, client: Any, **plan: Any) -> Measurement:
        """A run that reads ten branches of all files."""
        plan = Analysis(branches=10, **({"cpu": 0.002} | plan))
        return measured(client, fileset_of(self.urls), plan, chunksize=25_000, schema=BaseSchema)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Ground(tmp_path_factory.mktemp("files")).flat(6, 50_000, 20)


def slow_servers(measurement: Measurement) -> list[Finding]:
    return [finding for finding in measurement.verdict if finding.cause == "slow endpoint"]


def test_a_throttled_server_behind_a_redirector_is_named(client: Any, folder: Path) -> None:
    with ExitStack() as stack:
        # so slow that a busy host does not hide it: other processes cost a run seconds, this server costs it more
        storage = Storage(folder, (None, "400k"), stack)
        fast, slow = (server.endpoint.partition(":")[2] for server in storage.servers)
        measurement = storage.measured(client)
    endpoints = measurement.endpoints.set_index("endpoint")
    assert {name.rpartition(":")[2] for name in endpoints.index} == {fast, slow}
    assert set(endpoints["redirector"]) == {storage.redirector.endpoint}
    assert endpoints["files"].tolist() == [3, 3]
    (found,) = slow_servers(measurement)
    assert [culprit.name.rpartition(":")[2] for culprit in found.culprits] == [slow], measurement.verdict


@pytest.mark.parametrize("source", ["fsspec"])
def test_a_missing_file_is_an_error_of_the_server_that_was_asked(source: str) -> None:
    with data_server() as server:
        url = server.url("none.root")
        errors = []
        for measuring in (False, True):
            with pytest.raises(Exception) as error, ExitStack() as stack:  # noqa: PT011  (that of uproot, as it is)
                collector = stack.enter_context(MetricsCollector()) if measuring else None
                run([url], SOURCES[source])
            errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]
    assert collector is not None
    (row,) = collector.measurement.endpoints.to_dict("records")
    attempts = 1 + getattr(IterativeExecutor(status=False), "retries", 0)  # of coffea 2026.9 and later
    assert (row["endpoint"], row["attempts"], row["errors"]) == (server.endpoint, attempts, attempts)


@pytest.fixture
def impatient() -> None:
    set_client(ConnectionWindow=2, ConnectionRetry=1, StreamErrorWindow=2, RequestTimeout=20)


@pytest.mark.parametrize("source", ["vector reads"])
@pytest.mark.usefixtures("impatient")
@pytest.mark.filterwarnings("ignore:Performed attempt")
def test_a_server_that_is_killed_in_the_middle_is_named(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with data_server() as server:
        (url,) = filled(server, ["a.root"], baskets=6)

        def kill(metadata: Any) -> None:
            if metadata["entrystart"] == 6000:
                server.kill()

        monkeypatch.setattr(Reading, "before", staticmethod(kill))
        with pytest.raises(Exception, match=r"a\.root"), MetricsCollector() as collector:
            run([url], SOURCES[source])
    measurement = collector.measurement
    outcomes = measurement.chunks["outcome"].tolist()
    assert outcomes[:3] == ["ok", "ok", "error"]
    assert set(outcomes[2:]) == {"error"}
    (row,) = measurement.endpoints.to_dict("records")
    assert (row["endpoint"], row["errors"], row["attempts"]) == (server.endpoint, len(outcomes) - 2, len(outcomes) + 1)
    assert row["retries"] == row["errors"] - 1
    assert row["requests"] > 0
    assert measurement.problems == []


def test_a_cold_cache_is_told_from_a_slow_server(client: Any, tmp_path: Path) -> None:
    wide = Ground(tmp_path).flat(2, 40_000, 400)  # as in NanoAOD, the tree of each file takes a request of 100 kB
    with data_server(rate="1m") as origin, cache_of(origin) as cache:
        for number in range(2):
            shutil.copy(wide / f"file{number}.root", origin.files)
        urls = fileset_of([cache.url(f"file{number}.root") for number in range(2)])
        plan = Analysis(branches=40, cpu=0.002)
        cold, warm = (measured(client, urls, plan, chunksize=20_000, schema=BaseSchema) for _ in range(2))
    print(cold.verdict, cold.endpoints.T, warm.verdict, warm.endpoints.T)
    (found,) = [finding for finding in cold.verdict if finding.cause == "storage"]
    assert [culprit.name for culprit in found.culprits] == [cache.endpoint]
    assert "its cache was cold" in found.what
    assert "cold" not in str(warm.verdict)
