"""The metrics of a measurement for other programs: `metrics.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Final

import roastcoffea
from roastcoffea.diagnosis import Finding
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.run import Run
from roastcoffea.storage.store import METRICS_FILE

METRICS_FORMAT: Final = "roastcoffea metrics 1"
RAW_METRICS: Final = frozenset(metric.name for metric in CATALOGUE.metrics() if metric.on_request)


def metrics_json(run: Run, metrics: Metrics) -> bytes:
    """Content of `metrics.json`; if that fails, only the reason.

    It is standard JSON: {"metrics": {name: {"value", "unit", "source"}}, "missing": {name: reason}} with the run's
    identity and the version that computed them, without the raw structures. Numbers that JSON cannot hold are the
    texts "NaN", "Infinity" and "-Infinity".
    """
    try:
        with metrics.computing(METRICS_FILE):
            return _encoded(run, metrics, metrics, metrics.missing)
    except NotMeasuredError as error:
        return _encoded(run, metrics, (), {metric.name: str(error) for metric in CATALOGUE.metrics()})


def _encoded(run: Run, metrics: Metrics, names: Iterable[str], missing: Mapping[str, str]) -> bytes:
    document = {
        "format": METRICS_FORMAT,
        "version": roastcoffea.__version__,
        **{name: getattr(run, name) for name in ("id", "name", "start", "stop", "outcome", "error")},
        "metrics": {
            name: {"value": metrics[name], "unit": str(metrics.unit[name]), "source": metrics.source[name]}
            for name in names
            if name not in RAW_METRICS
        },
        "missing": {name: reason for name, reason in missing.items() if name not in RAW_METRICS},
        "problems": [*run.problems, *metrics.problems],
    }
    return json.dumps(_standard(document), indent=1, allow_nan=False).encode()


def _standard(value: Any) -> Any:
    """Value in the types of standard JSON; anything else becomes text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Finding):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else json.dumps(number)
    return str(value)
