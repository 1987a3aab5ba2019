"""Export a measurement's metrics as OpenMetrics text for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from roastcoffea import units
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.records.run import Run
from roastcoffea.redaction import neutral
from roastcoffea.report.exports import Format
from roastcoffea.storage.folders import whole_file
from roastcoffea.units import BYTE, COUNT, SECOND, Unit


class BaseUnit(NamedTuple):
    """An OpenMetrics unit: its name, its conversion factor, and the metric name suffixes that it replaces."""

    word: str
    factor: float
    endings: tuple[str, ...] = ()


BASE_UNITS: Final[Mapping[Unit, BaseUnit]] = {
    SECOND: BaseUnit("seconds", 1),
    BYTE: BaseUnit("bytes", 1),
    units.MEBIBYTE: BaseUnit("bytes", 2.0**20, ("_mb",)),
    units.GIGABIT_PER_SECOND: BaseUnit("bytes_per_second", 1.25e8, ("_gbps",)),
    units.KILOHERTZ: BaseUnit("hertz", 1e3, ("_khz",)),
    units.PERCENT: BaseUnit("ratio", 0.01, ("_percent", "_percentage")),
    units.FRACTION: BaseUnit("ratio", 1),
    units.RATIO: BaseUnit("ratio", 1),
    COUNT: BaseUnit("", 1),
}

OF_DATASETS: Final = {"bytes": BYTE, "num": COUNT, "total": COUNT, "cpu": SECOND}
"""Units for dataset quantities, keyed by the first word of the quantity's name."""

Labels = Mapping[str, str]


class Family(NamedTuple):
    """An OpenMetrics metric family. If the metric has no unit, its samples store text in labels."""

    name: str
    unit: Unit | None
    meaning: str
    samples: Sequence[tuple[Labels, float]]


def write_openmetrics(run: Run, metrics: Metrics, file: BinaryIO) -> None:
    """Write a run's metrics, ledgers and dataset amounts, and the reasons for missing metrics."""
    for family in _families(run, metrics):
        file.write("".join(f"{line}\n" for line in _lines(run, family)).encode())
    file.write(b"# EOF\n")


def _families(run: Run, metrics: Metrics) -> Iterator[Family]:
    yield Family("run", None, "The measured run.", [(_identity(run, metrics), 1)])
    for metric in CATALOGUE.metrics():
        value = metrics.get(metric.name) if metric.unit in BASE_UNITS else None
        if isinstance(value, Real):
            yield Family(metric.name, metric.unit, metric.meaning, [({}, float(value))])
    for name, unit in (("byte_ledger", BYTE), ("write_ledger", BYTE), ("time_ledger", SECOND)):
        if name in metrics:
            known = [({"class": each}, float(amount)) for each, amount in metrics[name].items() if amount is not None]
            yield Family(name, unit, "Classes of the ledger, which add up to its total.", known)
    datasets: Mapping[str, Mapping[str, Any]] = metrics.get("per_dataset") or {}
    for name in dict.fromkeys(name for amounts in datasets.values() for name in amounts):
        of_dataset = SECOND if name == "total_duration" else OF_DATASETS.get(name.partition("_")[0])
        amounts = [({"dataset": each}, found[name]) for each, found in datasets.items() if found.get(name) is not None]
        if of_dataset is not None and amounts:
            yield Family(f"dataset_{name}", of_dataset, f"{name} per dataset.", amounts)
    custom: Mapping[str, Mapping[str, Mapping[str, Any]]] = metrics.get("custom") or {}
    sums = [
        ({"name": name, "dataset": dataset}, float(row["sum"]))
        for name, of_value in custom.items()
        for dataset, row in of_value.items()
        if row["sum"] is not None
    ]
    if sums:
        yield Family("custom", COUNT, "Values recorded by the processor, summed over counted chunks.", sums)
    problems = float(len(run.problems) + len(metrics.problems))
    yield Family("problems", COUNT, "Number of measurement problems.", [({}, problems)])
    missing = [({"metric": name, "reason": reason}, 1) for name, reason in metrics.missing.items()]
    yield Family("missing", None, "Metrics that could not be computed.", missing)


def _identity(run: Run, metrics: Metrics) -> dict[str, str]:
    versions = {f"{package}_version": version for package, version in run.environment.versions.items()}
    facts = {"name": run.name, "outcome": run.outcome, "backend": run.backend, "bound": metrics.get("bound")}
    facts |= {"processor": ", ".join(dict.fromkeys(call.processor for call in run.calls)), **versions}
    return {name: text for name, text in facts.items() if text}


def _lines(run: Run, family: Family) -> Iterator[str]:
    word, factor, _ = BASE_UNITS[family.unit or COUNT]
    kind, ending = ("info", "_info") if family.unit is None else ("gauge", "")
    name = family_name(family.name, family.unit or COUNT)
    yield f"# TYPE {name} {kind}"
    if word:
        yield f"# UNIT {name} {word}"
    yield f"# HELP {name} {_escaped(' '.join(family.meaning.split()))}"
    for labels, value in family.samples:
        amount = "1" if family.unit is None else repr(float(value * factor))
        amount = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(amount, amount)
        yield f"{name}{ending}{_labels(run, labels)} {amount} {run.stop!r}"


def family_name(name: str, unit: Unit) -> str:
    """OpenMetrics name for a metric: our prefix, the metric's name and the base unit."""
    word, _, endings = BASE_UNITS[unit]
    for ending in endings:
        name = name.removesuffix(ending)
    return "roastcoffea_" + _name(name if not word or f"_{name}".endswith(f"_{word}") else f"{name}_{word}")


def _labels(run: Run, labels: Labels) -> str:
    known = {_name(name): _escaped(text) for name, text in {"run": run.id, **labels}.items()}
    return "{" + ",".join(f'{name}="{text}"' for name, text in known.items()) + "}"


def _name(text: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def _escaped(text: str) -> str:
    return neutral(text).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _export(measured: Any, path: Path, overwrite: bool) -> None:
    with whole_file(path, overwrite=overwrite) as file:
        write_openmetrics(measured.run, measured.metrics, file)


FORMATS: Final = {"openmetrics": Format(".openmetrics.txt", _export)}
