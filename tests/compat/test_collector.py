"""What a collector of 0.1.2 had, made of the measurement."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import handmade_run

from roastcoffea import MetricsCollector
from roastcoffea.compat.shapes import sections_of
from roastcoffea.measurement import Measurement


def test_sections_are_by_name_alone_and_all_else_is_that_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measurement(handmade_run())
    monkeypatch.setattr(MetricsCollector, "measurement", measured)
    metrics, ours = MetricsCollector().get_metrics(), measured.metrics
    assert metrics["sections"] == sections_of(ours["raw_chunk_metrics"])
    assert metrics["sections"] != ours["sections"]
    assert metrics.get("sections") == metrics["sections"]
    assert {name: metrics[name] for name in metrics if name != "sections"} == {
        name: ours[name] for name in ours if name != "sections"
    }
    assert metrics.missing == ours.missing
    assert pickle.loads(pickle.dumps(metrics))["sections"] == metrics["sections"]
    assert copy.copy(metrics)["sections"] == metrics["sections"]


def test_attributes(sample: dict[str, Any]) -> None:
    collector = MetricsCollector(track_workers=False, worker_tracking_interval=0.5)
    assert (collector.client, collector.t_start, collector.t_end, collector.processor_name) == (None,) * 4
    assert (collector.backend, collector.track_workers, collector.worker_tracking_interval) == ("local", False, 0.5)
    before = time.time()
    with collector:
        Runner(IterativeExecutor(status=False), chunksize=4000, schema=NanoAODSchema)(
            sample, treename="Events", processor_instance=Jets()
        )
    assert before <= collector.t_start <= collector.t_end <= time.time() + 0.1
    assert collector.t_end - collector.t_start == pytest.approx(collector.metrics["elapsed_time_seconds"])
    assert collector.processor_name == "Jets"
    assert (collector.processor_instance, collector.custom_metrics) == (None, None)
    assert MetricsCollector(processor_instance=Jets()).processor_name == "Jets"
