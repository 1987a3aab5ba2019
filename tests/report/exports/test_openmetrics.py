"""OpenMetrics: a parser of others reads each number in base units, with labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import EXPECTED, T, handmade_run, run_of_datasets, run_without_tables
from pages import SPREADSHEET as HOSTILE
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.redaction import neutral
from roastcoffea.report.exports.openmetrics import BASE_UNITS, family_name
from roastcoffea.units import BYTE, COUNT, GIGABIT_PER_SECOND, KILOHERTZ, MEBIBYTE, PERCENT, RATIO, SECOND


@pytest.fixture
def handmade() -> Measurement:
    return Measurement(handmade_run())


@pytest.fixture
def hostile() -> Measurement:
    return Measurement(run_of_datasets(HOSTILE))


def families(measurement: Measurement, folder: Path) -> dict[str, Any]:
    text = measurement.export(folder / "metrics.txt", "openmetrics").read_bytes().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_are_in_base_units(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    for name, factor, family in (
        ("data_rate_gbps", 1.25e8, "roastcoffea_data_rate_bytes_per_second"),
        ("event_rate_elapsed_khz", 1e3, "roastcoffea_event_rate_elapsed_hertz"),
        ("chunk_mem_delta_max_mb", 2**20, "roastcoffea_chunk_mem_delta_max_bytes"),
        ("busy_percent", 0.01, "roastcoffea_busy_ratio"),
        ("core_efficiency", 1, "roastcoffea_core_efficiency_ratio"),
        ("elapsed_time_seconds", 1, "roastcoffea_elapsed_time_seconds"),
        ("num_chunks", 1, "roastcoffea_num_chunks"),
    ):
        (sample,) = found[family].samples
        assert sample.value == pytest.approx(EXPECTED[name] * factor)
        assert sample.labels == {"run": "0123abcd"}
        assert float(sample.timestamp) == T + 100


def test_every_number_of_the_catalogue_is_there_under_a_name_of_its_own(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    numbers = [metric for metric in CATALOGUE.metrics() if metric.unit in BASE_UNITS]
    names = [family_name(metric.name, metric.unit) for metric in numbers]
    assert len(set(names)) == len(names)
    told = {name for metric, name in zip(numbers, names, strict=True) if metric.name in handmade.metrics}
    assert told <= set(found)
    for metric, name in zip(numbers, names, strict=True):
        if name in found and metric.unit is not COUNT:
            assert found[name].unit == BASE_UNITS[metric.unit].word
    units = {SECOND, BYTE, MEBIBYTE, GIGABIT_PER_SECOND, KILOHERTZ, PERCENT, RATIO, COUNT}
    assert units <= set(BASE_UNITS)


def test_ledgers_and_datasets_have_labels(handmade: Measurement, tmp_path: Path) -> None:
    found = families(handmade, tmp_path)
    ledger = {sample.labels["class"]: sample.value for sample in found["roastcoffea_byte_ledger_bytes"].samples}
    assert ledger == dict(handmade.byte_ledger)
    time = {sample.labels["class"]: sample.value for sample in found["roastcoffea_time_ledger_seconds"].samples}
    assert time == pytest.approx(dict(handmade.time_ledger))
    events = {sample.labels["dataset"]: sample.value for sample in found["roastcoffea_dataset_total_events"].samples}
    assert events == {"data": 400, "mc": 50}


def test_text_from_data_is_escaped_in_labels(hostile: Measurement, tmp_path: Path) -> None:
    found = families(hostile, tmp_path)
    datasets = {sample.labels["dataset"] for sample in found["roastcoffea_dataset_num_chunks"].samples}
    assert datasets == set(map(neutral, HOSTILE))


def test_what_is_missing_is_told_with_its_reason(tmp_path: Path) -> None:
    measurement = Measurement(run_without_tables())
    found = families(measurement, tmp_path)
    told = {sample.labels["metric"]: sample.labels["reason"] for sample in found["roastcoffea_missing"].samples}
    assert told == dict(measurement.metrics.missing)
    assert "roastcoffea_num_chunks" not in found
