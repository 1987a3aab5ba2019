"""The metrics of a measurement for other programs: `metrics.json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

from roastcoffea.diagnosis import Finding
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.run import Run
from roastcoffea.storage.store import METRICS_FILE

METRICS_FORMAT: Final = "roastcoffea metrics 1"
RAW_METRICS: Final = frozenset(metric.name for metric in CATALOGUE.metrics() if metric.on_request)


def metrics_json(run: Run, metrics: Metrics) -> bytes:
    """Content of `metrics.json`; without metrics, and with the reason, where it cannot be made of them.

    It is standard JSON: {"metrics": {name: {"value", "unit", "source"}}, "missing": {name: reason}} with
    the run's identity, and without the raw structures; a number that JSON cannot hold is the text "NaN", "Infinity" or
    "-Infinity".
    """
    try:
        with metrics.computing(METRICS_FILE):
            return _encoded(run, _values(metrics), metrics.missing, metrics.problems)
    except NotMeasuredError as error:
        reasons = {metric.name: str(error) for metric in CATALOGUE.metrics()}
        return _encoded(run, {}, reasons, metrics.problems)


def _values(metrics: Metrics) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": metrics[name], "unit": str(metrics.unit[name]), "source": metrics.source[name]}
        for name in metrics
        if name not in RAW_METRICS
    }


def _encoded(
    run: Run, values: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str], problems: list[str]
) -> bytes:
    document = {
        "format": METRICS_FORMAT,
        **{name: getattr(run, name) for name in ("id", "name", "start", "stop", "outcome", "error")},
        "metrics": values,
        "missing": {name: reason for name, reason in missing.items() if name not in RAW_METRICS},
        "problems": [*run.problems, *problems],
    }
    return json.dumps(_standard(document), indent=1, allow_nan=False).encode()


def _standard(value: Any) -> Any:
    """Value in the types of standard JSON; what has none becomes text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Finding):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _finite(float(value))
    return str(value)


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
