"""A cluster of a real Dask Gateway, through its proxy: all chunks are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analyses import Jets
from batch_servers import PATIENCE, gateway
from batch_servers import gateway_lacks as lacking
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner

from roastcoffea import MetricsCollector

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

CHUNKSIZE = 334
CHUNKS = 48


def test_all_chunks_of_a_gateways_cluster(sample: dict[str, Any]) -> None:
    with (
        gateway(str(Path(__file__).parent)) as server,
        server.cluster() as cluster,
        cluster.get_client() as client,
    ):
        cluster.scale(2)
        client.wait_for_workers(2, timeout=PATIENCE)
        runner = Runner(
            DaskExecutor(client=client, status=False),
            schema=NanoAODSchema,
            chunksize=CHUNKSIZE,
            savemetrics=True,
            metadata_cache={},
        )
        expected, _ = runner(sample, processor_instance=Jets())
        runner.metadata_cache.clear()
        with MetricsCollector(client) as collector:
            output, report = runner(sample, processor_instance=Jets())
    assert output == expected
    measurement = collector.measurement
    chunks = measurement.chunks
    assert (len(chunks), report["chunks"], set(chunks["outcome"])) == (CHUNKS, CHUNKS, {"ok"})
    assert chunks["events"].sum() == report["entries"]
    assert chunks["bytes_requested"].sum() == report["bytesread"]
    assert measurement.tasks["kind"].value_counts()["processor"] == CHUNKS
    assert len(measurement.lifetimes) == 2
    # two workers were requested from the gateway, and both arrived
    assert measurement.worker_requests["name"].tolist() == ["0", "1"]
    assert set(measurement.arrivals["worker"]) == set(measurement.lifetimes["worker"])
    assert measurement.arrivals["state"].tolist() == ["arrived", "arrived"]
    assert set(chunks["worker"]) <= set(measurement.lifetimes["worker"])
    for ledger in (measurement.byte_ledger, measurement.time_ledger):
        assert ledger.certificate.complete, ledger.certificate.reasons
    assert measurement.byte_ledger.residual == 0
    assert measurement.problems == []
