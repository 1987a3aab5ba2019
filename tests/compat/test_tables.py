"""Tables by the names of 0.1.2."""

from __future__ import annotations

import io
from typing import Any

import pytest
from handmade import handmade_run
from rich.console import Console
from rich.table import Table

import roastcoffea
from roastcoffea.export import reporter
from roastcoffea.metrics import evaluate
from roastcoffea.units import BYTE, SECOND

SHOWN = {
    "format_throughput_table": ("bytes read", "total_bytes_read"),
    "format_event_processing_table": ("events", "total_events"),
    "format_resources_table": ("workers (peak)", "peak_workers"),
    "format_timing_table": ("elapsed", "elapsed_time_seconds"),
    "format_fine_metrics_table": ("processor: CPU", "processor_cpu_time_seconds"),
    "format_chunk_metrics_table": ("duration per chunk (mean)", "chunk_duration_mean"),
}


def rows(table: Table) -> dict[str, str]:
    """Labels and values as they are printed in a terminal of 80 columns."""
    file = io.StringIO()
    Console(file=file, width=80).print(table)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    pairs = (line.split("  ", 1) for line in lines if "  " in line.strip())
    return {label.strip(): value.strip() for label, value in pairs}


@pytest.mark.parametrize("name", SHOWN)
def test_a_table_has_its_metrics_of_a_run_and_of_a_dictionary(name: str) -> None:
    metrics = evaluate(handmade_run())
    label, metric = SHOWN[name]
    for given in (metrics, metrics.built()):
        shown = rows(getattr(roastcoffea, name)(given))
        assert shown[label] == metrics.unit[metric].text(metrics[metric])


def test_the_six_are_found_under_their_older_path() -> None:
    assert set(reporter.__all__) == set(SHOWN)
    for name in SHOWN:
        assert getattr(reporter, name) is getattr(roastcoffea, name)


def test_what_is_missing_says_why() -> None:
    given: dict[str, Any] = {"elapsed_time_seconds": 12.5, "total_bytes_read": 3_000_000}
    timing = rows(roastcoffea.format_timing_table(given))
    assert timing["elapsed"] == SECOND.text(12.5)
    assert timing["in Runner calls"] == "not reported by the metrics that were given"
    assert rows(roastcoffea.format_throughput_table(given))["bytes read"] == BYTE.text(3_000_000)
    assert rows(roastcoffea.format_fine_metrics_table(given)) == {
        "not measured": "not reported by the metrics that were given"
    }
