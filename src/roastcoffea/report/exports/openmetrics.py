"""Metrics in the OpenMetrics text format, for Prometheus and its kin.

Units are base units and stand at the end of a name, as the format wants: a rate in Gbit/s becomes
`..._bytes_per_second`. Each sample has the run's identity as a label and the run's end as its time, so that
the metrics of past runs can be taken in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, BinaryIO, Final, NamedTuple

from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.records.run import Run
from roastcoffea.units import (
    BYTE,
    COUNT,
    FRACTION,
    GIGABIT_PER_SECOND,
    KILOHERTZ,
    MEBIBYTE,
    PERCENT,
    RATIO,
    SECOND,
    Unit,
)

PREFIX: Final = "roastcoffea_"


class BaseUnit(NamedTuple):
    """What a unit is in this format: its word, how much of it there is in one, and the end of a name it stands for."""

    word: str
    factor: float
    endings: tuple[str, ...] = ()


BASE_UNITS: Final[Mapping[Unit, BaseUnit]] = {
    SECOND: BaseUnit("seconds", 1),
    BYTE: BaseUnit("bytes", 1),
    MEBIBYTE: BaseUnit("bytes", 2.0**20, ("_mb",)),
    GIGABIT_PER_SECOND: BaseUnit("bytes_per_second", 1.25e8, ("_gbps",)),
    KILOHERTZ: BaseUnit("hertz", 1e3, ("_khz",)),
    PERCENT: BaseUnit("ratio", 0.01, ("_percent", "_percentage")),
    FRACTION: BaseUnit("ratio", 1),
    RATIO: BaseUnit("ratio", 1),
    COUNT: BaseUnit("", 1),
}

DATASET_UNITS: Final[Mapping[str, Unit]] = {
    "num_chunks": COUNT,
    "num_failed": COUNT,
    "total_events": COUNT,
    "total_duration": SECOND,
    "cpu_seconds": SECOND,
}
"""Amounts of a dataset that are no bytes."""

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def write_openmetrics(run: Run, metrics: Metrics, file: BinaryIO) -> None:
    """Write the metrics of a run, its ledgers by class, amounts by dataset, and why metrics are missing."""
    for family in _families(run, metrics):
        file.write("".join(f"{line}\n" for line in family).encode())
    file.write(b"# EOF\n")


def _families(run: Run, metrics: Metrics) -> Iterator[Iterable[str]]:
    yield _info(run, "run", "What was measured.", [_identity(run, metrics)])
    for metric in CATALOGUE.metrics():
        value = metrics.get(metric.name) if metric.unit in BASE_UNITS else None
        if isinstance(value, Real):
            yield _gauge(run, metric.name, metric.unit, metric.meaning, [({}, float(value))])
    yield from _ledgers(run, metrics)
    yield from _datasets(run, metrics)
    problems: list[Sample] = [({}, float(len(run.problems) + len(metrics.problems)))]
    yield _gauge(run, "problems", COUNT, "What could not be measured as it should.", problems)
    missing = [{"metric": name, "reason": reason} for name, reason in metrics.missing.items()]
    yield _info(run, "missing", "Metrics that could not be computed.", missing)


def _identity(run: Run, metrics: Metrics) -> dict[str, str]:
    versions = {f"{package}_version": version for package, version in run.environment.versions.items()}
    facts = {"name": run.name, "outcome": run.outcome, "backend": run.backend, "bound": metrics.get("bound")}
    processors = ", ".join(dict.fromkeys(call.processor for call in run.calls))
    return {name: text for name, text in {**facts, "processor": processors, **versions}.items() if text}


def _ledgers(run: Run, metrics: Metrics) -> Iterator[Iterable[str]]:
    for name, unit in (("byte_ledger", BYTE), ("time_ledger", SECOND)):
        if name in metrics:
            ledger = metrics[name]
            known = [({"class": each}, float(amount)) for each, amount in ledger.items() if amount is not None]
            yield _gauge(run, name, unit, "Classes of the ledger, which add up to its total.", known)


def _datasets(run: Run, metrics: Metrics) -> Iterator[Iterable[str]]:
    """Families of what is known by dataset."""
    datasets: Mapping[str, Mapping[str, Any]] = metrics.get("per_dataset") or {}
    names = dict.fromkeys(name for amounts in datasets.values() for name in amounts)
    for name in names:
        unit = BYTE if name.startswith("bytes_") else DATASET_UNITS.get(name)
        amounts = [({"dataset": each}, found[name]) for each, found in datasets.items() if found.get(name) is not None]
        if unit is not None and amounts:
            yield _gauge(run, f"dataset_{name}", unit, f"{name} of a dataset.", amounts)


def _gauge(run: Run, name: str, unit: Unit, meaning: str, samples: Iterable[Sample]) -> Iterator[str]:
    word, factor, _ = BASE_UNITS[unit]
    family = family_name(name, unit)
    yield f"# TYPE {family} gauge"
    if word:
        yield f"# UNIT {family} {word}"
    yield f"# HELP {family} {_escaped(' '.join(meaning.split()))}"
    for labels, value in samples:
        yield f"{family}{_labels(run, labels)} {_number(value * factor)} {run.stop!r}"


def _info(run: Run, name: str, meaning: str, samples: Iterable[Labels]) -> Iterator[str]:
    """Lines of facts that are text."""
    family = PREFIX + name
    yield f"# TYPE {family} info"
    yield f"# HELP {family} {_escaped(meaning)}"
    for labels in samples:
        yield f"{family}_info{_labels(run, labels)} 1 {run.stop!r}"


def family_name(name: str, unit: Unit) -> str:
    """Name of a metric as the format wants it: with our prefix before and its base unit at the end."""
    word, _, endings = BASE_UNITS[unit]
    for ending in endings:
        name = name.removesuffix(ending)
    return PREFIX + _name(name if not word or f"_{name}".endswith(f"_{word}") else f"{name}_{word}")


def _labels(run: Run, labels: Labels) -> str:
    """Labels of a sample, each once."""
    known = {_name(name): _escaped(text) for name, text in {"run": run.id, **labels}.items()}
    return "{" + ",".join(f'{name}="{text}"' for name, text in known.items()) + "}"


def _name(text: str) -> str:
    """Text as a name that the format allows."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
