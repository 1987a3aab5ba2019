"""Inputs of plots: from what they are made, and in what order sources win."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from handmade import LIFETIMES, T, handmade_run, run_without_tables
from matplotlib.figure import Figure
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import evaluate
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.visualization import plots
from roastcoffea.visualization.inputs import PLOT_INPUTS, inputs_of
from roastcoffea.visualization.registry import PLOTS, plot

REASONS = {
    "chunk_attempts": "no chunk attempt was recorded",
    "worker_samples": "no worker was sampled",
    "worker_lifetimes": "no worker was recorded",
}


@pytest.mark.parametrize("name", [name for entry in PLOTS.values() for name in entry.needs.inputs])
def test_a_plot_needs_nothing_but_inputs_that_there_are(name: str) -> None:
    assert name in PLOT_INPUTS


def test_a_plot_whose_input_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="plot_of_nothing needs nothing: no such plot input"):

        @plot("Nothing")
        def plot_of_nothing(ax: object, nothing: int) -> None:
            """Draw nothing."""

    with pytest.raises(ValueError, match="a plot 'sections' already exists"):
        plot("Twice")(PLOTS["sections"].draw)
    assert "of_nothing" not in PLOTS


def test_a_plot_computes_what_it_needs_and_nothing_else() -> None:
    measurement = Measurement(synthetic_run())
    evaluator = measurement.metrics.evaluator
    called: list[str] = []
    value = evaluator.value
    evaluator.value = lambda name: called.append(name) or value(name)  # type: ignore[method-assign, func-returns-value]
    measurement.plot("runtime_distribution", Figure().add_subplot())
    assert not {"time_ledger", "byte_ledger", "verdict"} & set(called)  # the title asks what is missing
    measurement.plot("time_ledger", Figure().add_subplot())
    assert "byte_ledger" not in called


@pytest.mark.parametrize("name", REASONS)
def test_an_empty_table_is_a_reason(name: str) -> None:
    empty = {field: getattr(handmade_run(), field).schema.empty_table() for field in ("chunks", "samples", "lifetimes")}
    with pytest.raises(NotMeasuredError, match=REASONS[name]):
        inputs_of(handmade_run(**empty)).value(name)


def test_moments_are_on_the_clients_clock() -> None:
    lives = [life | {"clock_offset": 2.0} for life in LIFETIMES]
    run = handmade_run(lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))
    before = inputs_of(handmade_run(lifetimes=None)).value("worker_samples")["time"].to_numpy()
    assert (before - inputs_of(run).value("worker_samples")["time"].to_numpy()).tolist() == [2.0] * len(before)


def test_the_time_axis_begins_with_the_run_else_with_what_was_seen_first() -> None:
    assert inputs_of(handmade_run()).value("start") == T
    still = handmade_run(stop=T)
    first = min(still.samples["time"].to_pylist() + still.chunks["start"].drop_null().to_pylist())
    assert inputs_of(still).value("start") == first
    assert inputs_of(run_without_tables(stop=T)).value("start") == T


def test_worker_counts_end_with_the_run() -> None:
    times, counts = inputs_of(handmade_run()).value("worker_counts")
    assert (times[-1], times[0]) == (T + 100, T)
    assert counts.max() == evaluate(handmade_run())["peak_workers"]


def test_data_that_are_given_win_over_the_source() -> None:
    run = handmade_run()
    given = [{"duration": 1.0, "num_events": 3}]
    for source in (run, Measurement(run), SimpleNamespace(measurement=Measurement(run))):
        inputs = inputs_of(source, chunk_metrics=given)
        assert len(inputs.value("computed_chunks")) == 1
        assert inputs.value("metric")("num_chunks") == 1
    assert inputs_of(run, metrics={"num_chunks": 7}).value("metric")("num_chunks") == 7


def test_metrics_that_were_computed_are_taken_as_they_are() -> None:
    metrics = evaluate(handmade_run())
    assert inputs_of(None, metrics=metrics).value("byte_ledger") is metrics["byte_ledger"]
    assert inputs_of(metrics).value("time_ledger") is metrics["time_ledger"]


def test_a_metric_that_was_not_given_says_so() -> None:
    ask = inputs_of({"num_chunks": 7}).value("metric")
    with pytest.raises(NotMeasuredError, match="not reported by the metrics that were given"):
        ask("core_efficiency")


def test_either_attempts_of_tasks_or_those_of_chunks_will_do() -> None:
    tasks, chunks = inputs_of(handmade_run()).value("attempts")
    assert isinstance(tasks, pa.Table)
    assert isinstance(chunks, pa.Table)
    assert inputs_of(handmade_run(tasks=None)).value("attempts")[0] is None
    assert inputs_of(handmade_run(chunks=None)).value("attempts")[1] is None
    with pytest.raises(NotMeasuredError):
        inputs_of(run_without_tables()).value("attempts")


def test_branches_are_those_of_the_ledger_or_counted_without_it() -> None:
    run = handmade_run()
    of_ledger = inputs_of(run).value("branches")
    alone = inputs_of(handmade_run(absent={"branch_reads": "no ledger"})).value("branches")
    assert alone.to_pylist() == of_ledger.to_pylist()


def test_compression_factors_are_of_chunks_or_of_files_that_were_reported() -> None:
    things, factors = inputs_of(synthetic_run()).value("compression_factors")
    assert things == "chunks"
    assert np.all(factors > 0)
    reported = handmade_run(reported={"compression_ratios": [0.5]}, reported_by="it")
    assert inputs_of(reported).value("compression_factors")[1].tolist() == [2.0]
    assert plots.plot_compression_ratio_distribution(reported)[1].get_ylabel() == "files"
