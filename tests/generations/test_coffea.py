"""What releases of coffea do differently, by what each passes and returns."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from releases import RELEASE, Processor
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.generations import UNMARKED, captured_error, marker_of_opening, output_of


class Reading(Processor):
    """Adds up a branch."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": float(ak.sum(events.f0))}


class SlowSchema(BaseSchema):  # type: ignore[misc]
    """Takes a while to build events."""

    seconds = 0.05

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        super().__init__(*args, **kwargs)


def test_opening_ends_where_coffea_asks_for_its_cache() -> None:
    assert marker_of_opening({"cache_function": dict}) is dict
    assert marker_of_opening({"cache_function": None}) is marker_of_opening({}) is None


def test_output_and_error_may_be_inside_a_result() -> None:
    error = ValueError("planted")
    assert output_of({"out": 1}) == output_of(SimpleNamespace(value={"out": 1})) == {"out": 1}
    assert captured_error({"exception": error}) is captured_error(SimpleNamespace(exception=error)) is error
    assert captured_error({"out": 1}) is None


def test_time_before_process_is_opening_and_the_bytes_of_preprocessing_are_known(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "a.root")
    runner = Runner(IterativeExecutor(status=False), schema=SlowSchema, chunksize=1000, metadata_cache={})
    with MetricsCollector() as collector:
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=Reading())
    measurement = collector.measurement
    metrics, chunks = measurement.metrics, measurement.chunks
    assert (chunks["build_seconds" if RELEASE >= (2025, 11) else "open_seconds"] >= SlowSchema.seconds).all()
    assert chunks["build_seconds"].isna().all() == (RELEASE < (2025, 11))
    assert measurement.time_ledger["open"] >= 3 * SlowSchema.seconds  # what the first takes longer is start-up
    assert measurement.time_ledger.certificate.reasons == []
    assert measurement.byte_ledger["preprocessing"] > 0
    assert measurement.byte_ledger.residual == 0
    assert measurement.byte_ledger.certificate.complete, measurement.byte_ledger.certificate.reasons
    if RELEASE >= (2025, 11):
        assert metrics["chunk_build_seconds"] > 0
    else:
        assert metrics.missing["chunk_build_seconds"] == UNMARKED
        with pytest.raises(KeyError, match="since 2025"):
            metrics["chunk_build_seconds"]
