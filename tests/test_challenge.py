"""A program in the shape of the Integration Challenge's: its processor, its Runner calls, its tables and its plots."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import awkward as ak
import cloudpickle
import hist
import numpy as np
import pytest
from coffea import processor
from coffea.nanoevents import NanoAODSchema
from distributed import Client
from rich.console import Console

import roastcoffea
from roastcoffea import MetricsCollector, track_metrics, track_time
from roastcoffea.export.reporter import (
    format_event_processing_table,
    format_fine_metrics_table,
    format_resources_table,
    format_throughput_table,
    format_timing_table,
)
from roastcoffea.visualization import plots

pytestmark = pytest.mark.slow

TABLES = (
    *(format_throughput_table, format_event_processing_table, format_resources_table),
    *(format_timing_table, format_fine_metrics_table),
)


class Selection(processor.ProcessorABC):
    """Histograms, filled in sections."""

    @track_metrics
    def process(self, events: Any) -> dict[str, Any]:
        with track_time(self, "selection"):
            jets = events.Jet[events.Jet.pt > 30]
            muons = events.Muon[events.Muon.pt > 10]
        with track_time(self, "histograms"):
            filled = hist.Hist.new.Reg(50, 0, 300, name="pt").Weight()
            filled.fill(pt=ak.flatten(jets.pt))
            masses = hist.Hist.new.Reg(50, 0, 50, name="mass").Weight()
            masses.fill(mass=ak.flatten(jets.mass))
        dataset = events.metadata["dataset"]
        return {"pt": filled, "mass": masses, "events": {dataset: len(events)}, "muons": int(ak.sum(ak.num(muons)))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def run(client: Client, fileset: dict[str, Any], instance: Any) -> tuple[Any, Any]:
    """Runner calls of the program's own, with work items in place of files."""
    executor = processor.DaskExecutor(client=client, treereduction=8, status=False)
    runner = processor.Runner(
        executor=executor, schema=NanoAODSchema, savemetrics=True, chunksize=2000, skipbadfiles=True
    )
    items = list(runner.preprocess(fileset, treename="Events"))
    return runner(items, processor_instance=instance)


@pytest.fixture(params=[False, True], ids=["by reference", "by value"])
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        cloudpickle.register_pickle_by_value(roastcoffea)
    yield
    if request.param:
        cloudpickle.unregister_pickle_by_value(roastcoffea)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, hist.Hist):
        return np.array_equal(one.view(flow=True), other.view(flow=True))
    return bool(one == other)


def test_as_its_notebooks_call_it(client: Client, sample: dict[str, Any], by_value: None) -> None:
    plain, _ = run(client, sample, Selection())
    instance = Selection()
    with MetricsCollector(
        client=client, processor_instance=instance, track_workers=True, worker_tracking_interval=0.1
    ) as collector:
        output, report = run(client, sample, instance)
    before = copy.deepcopy(output)
    collector.extract_metrics_from_output(output)
    assert equal(output, before)
    assert equal(output, plain)
    collector.set_coffea_report(report)
    metrics = collector.get_metrics()
    assert len(metrics["chunk_info"]) == len(metrics["raw_chunk_metrics"]) == len(collector.chunk_metrics)
    assert metrics["total_events"] == report["entries"] == sum(output["events"].values())
    assert metrics["total_bytes_read"] == report["bytesread"]
    assert 0 < metrics["avg_branches_read_percent"] < 100
    assert 0 < metrics["avg_bytes_read_percent"] < 100
    assert metrics["total_branches_read"] > 0
    assert all(chunk["timing"].keys() == {"selection", "histograms"} for chunk in metrics["raw_chunk_metrics"])

    text = io.StringIO()
    console = Console(file=text, width=120)
    for table in TABLES:
        console.print(table(metrics))
    assert "bytes read" in text.getvalue()

    tracking, spans = collector.tracking_data, collector.span_metrics
    for name in ("worker_count", "memory_utilization_mean", "memory_utilization_per_worker", "cpu_utilization_mean"):
        assert getattr(plots, f"plot_{name}_timeline")(tracking)[1].has_data()
    assert plots.plot_cpu_utilization_per_worker_timeline(tracking)[1].has_data()
    assert plots.plot_throughput_timeline(metrics["chunk_info"], tracking)[1].has_data()
    assert plots.plot_per_task_cpu_io(spans)[1].has_data()
    assert plots.plot_compression_ratio_distribution(metrics)[1].get_ylabel() == "chunks"
    assert plots.plot_data_access_percentage(metrics)[1].has_data()
    for plot in (plots.plot_runtime_distribution, plots.plot_runtime_vs_events):
        assert plot(metrics["raw_chunk_metrics"])[1].has_data()
        assert plot(collector.chunk_metrics)[1].has_data()


def test_saved_and_loaded(client: Client, sample: dict[str, Any], tmp_path: Any) -> None:
    with MetricsCollector(client=client, processor_instance=Selection()) as collector:
        _, report = run(client, sample, Selection())
    collector.set_coffea_report(report)
    folder = collector.save_measurement(tmp_path)
    metrics, began, ended = roastcoffea.load_measurement(folder)
    assert ended - began == pytest.approx(metrics["elapsed_time_seconds"])
    assert metrics["total_bytes_read"] == report["bytesread"]
    with pytest.raises(KeyError, match=r"disk_read_bytes.*Dask recorded no such activity in this run's tasks"):
        _ = collector.get_metrics()["disk_read_bytes"]
