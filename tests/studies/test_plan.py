"""Forecasts from a sample of chunks, against what is known of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from analyses import Jets, runner_for, spin
from coffea.processor import IterativeExecutor
from coffea.processor.executor import WorkItem
from made_runs import made_run
from made_runs import plan as chunk_plan
from releases import Processor

import roastcoffea
from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.studies.plan import Forecast, WholeRun, halves_of, pickled_size, population_of
from roastcoffea.studies.stratified import drawn

PER_EVENT = {"data": 0.01, "mc": 0.03}
"""CPU seconds of an event."""

FIXED, WAIT, COLD = 0.5, 0.1, 20.0
"""CPU seconds of opening, waiting per chunk of 100 events, and CPU seconds of a process's first chunk beyond that."""

MB = 1_000_000


@dataclass
class Made:
    """A fileset whose chunks follow a law, and what a sample of them tells."""

    items: list[WorkItem]
    whole: WholeRun
    halves: list[Any]

    @cached_property
    def forecast(self) -> Forecast:
        """For 2 and 40 workers; each half has the same histograms."""
        outputs: list[Mapping[str, Any]] = [{"out": {"data": np.zeros(100), "mc": np.zeros(100)}}] * 2
        return self.whole.forecast(self.halves, outputs, [2, 40], 2, 0)

    @property
    def cpu(self) -> float:
        """CPU seconds of all chunks, without starts of processes."""
        return sum(FIXED + PER_EVENT[item.dataset] * len(item) for item in self.items)


def made(share: float = 0.1, workers: int = 2, noise: float = 0.0, seed: int = 0, **changes: Any) -> Made:
    """400 chunks, and a simulated run of the drawn ones, without Dask's own costs."""
    random = np.random.default_rng(seed)
    items = [
        WorkItem(dataset, f"root://{dataset}.org//{file}.root", "Events", 100 * place, 100 * (place + 1), bytes([file]))
        for dataset in PER_EVENT
        for file in range(20)
        for place in range(10)
    ]
    every = population_of(items)
    chosen = drawn(every, int(share * len(items)), seed)
    halves = halves_of(every, chosen)
    order = np.concatenate(halves)
    plans = [
        chunk_plan(
            PER_EVENT[items[row].dataset] * 100 * float(np.exp(random.normal(0, noise))) + (turn < workers) * COLD,
            WAIT,
            open_cpu=FIXED,
            dataset=items[row].dataset,
            file=items[row].filename,
        )
        for turn, row in enumerate(order.tolist())
    ]
    run = made_run(plans, workers)
    rows = [
        {**row, "uuid": item.fileuuid.hex(), "entry_start": item.entrystart, "entry_stop": item.entrystop}
        | {"bytes_requested": 5_000, "bytes_metadata": 1_000, "bytes_payload": 4_000}
        | {"memory_before": 200 * MB, "memory_after": 210 * MB, "memory_peak": 300 * MB}
        for row, item in zip(run.chunks.to_pylist(), (items[row] for row in order), strict=True)
    ]
    run = replace(run, chunks=table_of_rows(CHUNK_COLUMNS, [row | changes for row in rows]))
    whole = WholeRun(Measurement(run), items, every, chosen)
    return Made(items, whole, halves)


def test_the_start_of_processes_is_no_work() -> None:
    found = made()
    assert found.forecast.cpu.value == pytest.approx(found.cpu)
    assert found.forecast.startup == pytest.approx(COLD)
    assert found.forecast.cpu.high / found.forecast.cpu.value == pytest.approx(1.05)  # what measuring again changes


def test_intervals_of_simulated_runs_hold() -> None:
    held = []
    for seed in range(10):
        found = made(noise=0.3, seed=seed)
        cpu, _, startup = found.whole.cpu
        assert startup == pytest.approx(COLD, rel=0.2)
        held.append(cpu.low <= found.cpu <= cpu.high)
    assert sum(held) >= 8


def test_wall_time_of_workers() -> None:
    found = made()
    few, many = found.forecast.clusters
    each = (found.cpu + WAIT * len(found.items)) / 2
    assert few.seconds.low < each + COLD < few.seconds.high
    assert few.seconds.value == pytest.approx(each + COLD, rel=0.03)
    assert (few.workers, many.workers, many.threads) == (2, 40, 1)
    assert many.seconds.value == pytest.approx(each / 20 + COLD, rel=0.2)
    assert few.core_seconds.value == pytest.approx(2 * few.seconds.value)
    assert few.walltime % 600 == 0
    assert few.walltime > few.seconds.high
    assert few.busy > 0.9 > 0.7 > many.busy
    assert found.forecast.workers == 2


def test_bytes_by_endpoint_and_memory() -> None:
    forecast = made().forecast
    assert {name: each.value for name, each in forecast.endpoints.items()} == pytest.approx(
        {"data.org": 200 * 5_000, "mc.org": 200 * 5_000}
    )
    assert forecast.memory is not None
    assert forecast.memory.value == pytest.approx(300 * MB)
    assert forecast.request == 500 * MB  # Dask spills above 60 % of a limit
    assert forecast.chunksize is not None
    assert f"chunksize={forecast.chunksize} is recommended; repeat the forecast with it." in str(forecast)


def test_what_was_not_measured_is_missing() -> None:
    forecast = made(bytes_requested=None, memory_peak=None).forecast
    assert (forecast.endpoints, forecast.memory, forecast.request) == ({}, None, None)
    assert set(forecast.missing) == {"bytes", "memory"}
    text = str(forecast)
    assert "No bytes" in text
    assert "of memory each" not in text


def test_a_sheet_of_24_lines_tells_it() -> None:
    text = str(made().forecast)
    assert len(text.strip().splitlines()) <= 24
    for words in (
        "CPU time",
        "1,000 core-s",
        "start of a worker",
        "read from mc.org",
        "memory",
        "with 500 MB of memory each",
        "Assumes a core",
    ):
        assert words in text
    plain = made().forecast.as_dict()
    assert plain["clusters"][0]["seconds"]["low"] < plain["clusters"][0]["seconds"]["value"]
    assert "measurement" not in plain


def test_a_dataset_without_results_has_no_forecast() -> None:
    found = made()
    every = population_of(found.items)
    run = found.whole.measurement.run
    rows = [row for row in run.chunks.to_pylist() if row["dataset"] == "data"]
    lacking = Measurement(replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)))
    with pytest.raises(NotMeasuredError, match="no sampled chunk of mc has a result"):
        WholeRun(lacking, found.items, every, drawn(every, 40, 0))


@pytest.mark.parametrize("sample", [0, -0.1, 1.5, "2%"])
def test_a_wrong_sample_is_refused(sample: Any) -> None:
    with pytest.raises(ValueError, match="fraction of the chunks"):
        roastcoffea.plan(None, {}, None, sample=sample)
    with pytest.raises(ValueError, match="workers"):
        roastcoffea.plan(None, {}, None, workers=[0])


class StartsSlowly(Processor):
    """Computes for 10 us an event; in the first chunk for half a second more."""

    started = False

    def process(self, events: Any) -> dict[str, Any]:
        if not StartsSlowly.started:
            StartsSlowly.started = True
            spin(0.5)
        spin(1e-5 * len(events))
        return {events.metadata["dataset"]: {"events": len(events)}}


def test_a_sample_forecasts_a_real_run(sample: Any) -> None:
    """The start of a process is not taken for work, and bytes are those of the whole within their interval."""
    StartsSlowly.started = False
    runner = runner_for(None, 200, executor=lambda **_: IterativeExecutor(status=False))
    forecast = roastcoffea.plan(runner, sample, StartsSlowly(), sample=0.2)
    assert (forecast.chunks, forecast.events) == (80, 16_000)
    assert forecast.sampled == 16
    assert forecast.startup is not None
    assert 0.3 < forecast.startup < 2.0
    assert forecast.cpu.value < 0.16 + 80 * 0.5 / 2  # half a second in each chunk would be 40 s
    with MetricsCollector(profile=False) as collector:
        output, _ = runner(sample, processor_instance=StartsSlowly())
    (found,) = forecast.endpoints.values()
    assert found.low <= collector.measurement.chunks["bytes_requested"].sum() <= found.high
    assert forecast.output is not None
    assert output == {"qcd": {"events": 8_000}, "zprime": {"events": 8_000}}
    assert forecast.output.low <= pickled_size(output) <= forecast.output.high < 1.2 * forecast.output.low


def test_all_chunks_as_the_sample_are_the_truth(sample: Any) -> None:
    runner = runner_for(None, 1000, executor=lambda **_: IterativeExecutor(status=False))
    forecast = roastcoffea.plan(runner, sample, Jets(), sample=1.0)
    measured = forecast.measurement
    (found,) = forecast.endpoints.values()
    assert found.low == found.value == found.high == measured.chunks["bytes_requested"].sum()
    assert forecast.sampled == forecast.chunks == 16
    assert runner.checkpointer is None


class Fails(Processor):
    def process(self, events: Any) -> Any:
        raise KeyError("of the user")


def test_an_error_of_the_user_comes_out_unchanged(sample: Any) -> None:
    runner = runner_for(None, 1000, executor=lambda **_: IterativeExecutor(status=False))
    with pytest.raises(Exception, match="of the user"):
        roastcoffea.plan(runner, sample, Fails())


def test_memory_that_grows_is_extrapolated_to_the_chunks_of_a_worker() -> None:
    found = made()
    healthy, table = found.forecast, found.whole.table
    assert "limit to memory" not in healthy.missing
    rows = [
        row | {"memory_before": 200 * MB + 4 * MB * place, "worker": "w0"}
        for place, row in enumerate(table.to_pylist())
    ]
    found.whole.table = table_of_rows(CHUNK_COLUMNS, rows)
    grown = replace(found).forecast
    assert healthy.memory is not None
    assert grown.memory is not None
    each = -(-400 // grown.workers)
    assert grown.memory.value - healthy.memory.value == pytest.approx(each * 4 * MB)
    text = " ".join(str(grown).split())
    assert f"it grew by 4 MB per chunk in the sample, so the forecast is for {each} chunks per worker" in text
