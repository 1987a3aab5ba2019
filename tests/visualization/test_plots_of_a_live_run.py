"""Pictures of runs on a real cluster: as they end, and of one that failed, with its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analyses
import pytest
from analyses import runner_for

from roastcoffea.collector import MetricsCollector
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import figure_alone

LACKING = {"sections", "gpu_memory_timeline", "gpu_utilization_timeline"}
OF_WORKERS = [
    name
    for name, entry in PLOTS.items()
    if {"worker_samples", "states_of_workers", "worker_counts"} & set(entry.needs.inputs) - set(entry.needs.optional)
]
OVERHEAD = "per_task_overhead"


def drawn(source: Any) -> dict[str, str]:
    """Reason for each plot that could not be drawn; "" for the others."""
    reasons = {}
    for name, entry in PLOTS.items():
        try:
            figure_alone(entry, source)
            reasons[name] = ""
        except ValueError as reason:
            reasons[name] = str(reason)
    return reasons


@pytest.mark.slow
def test_a_run_that_finished(client: Any, sample: Any) -> None:
    with MetricsCollector(client, worker_tracking_interval=0.5) as collector:
        runner_for(client, 2000)(sample, processor_instance=analyses.Jets())
    reasons = drawn(collector)
    assert {name for name, reason in reasons.items() if reason} - {OVERHEAD} == LACKING
    counted = {key[2:] for key, amount in collector.span_metrics.items() if key[0] == "execute" and amount}
    overhead = {(activity, "seconds") for activity in ("serialize", "deserialize", "compress", "decompress")}
    assert bool(reasons[OVERHEAD]) == counted.isdisjoint(overhead)  # such a run spills nothing
    assert reasons["sections"] == "plot_sections has nothing to draw: the processor defines no sections"
    # version 0.1.2 took them alone
    older = {
        PLOTS[name].function(tracking_data=collector.tracking_data)[1].get_title()
        for name in OF_WORKERS
        if name not in LACKING
    }
    assert older == {PLOTS[name].title for name in OF_WORKERS if name not in LACKING}


@pytest.mark.slow
def test_a_run_that_failed(client: Any, sample: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="planted"), MetricsCollector(client) as collector:
        runner_for(client, 1000, retries=0)(sample, processor_instance=analyses.Raising(3000))
    reasons = drawn(collector.measurement)
    for name in ("byte_ledger", "time_ledger", "task_stream", "throughput_timeline", "worker_count_timeline"):
        assert reasons[name] == ""
    _, ax = collector.measurement.plot("task_stream")
    assert ax.get_title() == "Task stream\nRaising, failed"
    assert any("failed" in text.get_text() for text in ax.get_legend().get_texts())
    page = collector.measurement.report(tmp_path / "failed.html").read_text()
    assert "This run failed: " in page
    assert [name for name in ("rates", "classes", "stream") if f'id="plot-{name}"' not in page] == []
    assert "planted" in page.partition('id="tables-failed-work"')[2].partition("</details>")[0]
