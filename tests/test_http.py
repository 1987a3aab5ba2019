"""Requests to HTTP and S3 servers, against what the servers were asked for themselves, and what is said of them."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from servers import http_server
from uproot.source.fsspec import FSSpecSource

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

BRANCHES = [f"x{number}" for number in range(12)]
DELAY = 0.03


class Reading(ProcessorABC):
    """Reads all branches, one after the other."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": sum(float(ak.sum(events[name], axis=None)) for name in BRANCHES)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class S3Source(FSSpecSource):  # type: ignore[misc]
    """Source without coffea's timeout, which s3fs refuses."""

    def __init__(self, path: str, timeout: Any = None, **options: Any) -> None:
        super().__init__(path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(1)
    with uproot.recreate(tmp_path / "a.root") as file:
        tree = file.mktree("Events", dict.fromkeys(BRANCHES, "float64"))
        for _ in range(4):
            tree.extend({name: drawn.normal(size=5_000) for name in BRANCHES})
    return tmp_path


def measured(url: str, **options: Any) -> Measurement:
    runner = Runner(executor=IterativeExecutor(status=False), schema=BaseSchema, chunksize=5_000, metadata_cache={})
    fileset = {"dijets": {"files": {url: "Events"}, **options.pop("of_fileset", {})}}
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=Reading(), **options)
    return collector.measurement


def test_requests_are_those_of_the_servers_log(folder: Path) -> None:
    with http_server(folder, delay=DELAY) as server:
        measurement = measured(f"{server.url}/a.root")
    (row,) = measurement.endpoints.to_dict("records")
    assert f"http://{row['endpoint']}" == server.url
    assert row["requests"] == len(server.ranges)
    assert row["bytes_transferred"] == sum(size for *_, size in server.ranges)
    # however busy this host is, nothing comes before the server answers
    assert row["latency"] >= row["shortest_latency"] >= DELAY
    assert pd.isna(row["opens"])
    assert pd.isna(row["vector_reads"])


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("s3fs", "moto", "flask")), reason="needs s3fs and moto"
)
@pytest.mark.slow
def test_requests_to_s3_are_those_of_the_servers_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=True)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        system = s3fs.S3FileSystem(**keys)
        system.mkdir("bucket")
        system.put_file(str(folder / "a.root"), "bucket/a.root")
        with caplog.at_level(logging.INFO, "werkzeug"):
            caplog.clear()
            measurement = measured("s3://bucket/a.root", uproot_options=keys | {"handler": S3Source})
        asked = [record for record in caplog.messages if "GET /bucket/a.root" in record]
    finally:
        server.stop()
    (row,) = measurement.endpoints.to_dict("records")
    assert (row["endpoint"], row["requests"]) == ("bucket", len(asked))
