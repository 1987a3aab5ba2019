"""A run made of what plots of version 0.1.2 took: samples, chunks, span metrics and metrics, each a dictionary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from roastcoffea.compat.chunk_dicts import chunks_of
from roastcoffea.compat.tracking import COUNTS, SERIES, counts_of, samples_of
from roastcoffea.records.run import Run, unwatched_run

ARGUMENTS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "tracking_data": ("samples", samples_of),
    "chunk_metrics": ("chunks", chunks_of),
    "span_metrics": ("span_metrics", dict),
    "metrics": ("reported", dict),
}
"""Arguments of 0.1.2; the field of a run that stands for each, and what makes it."""

NOT_GIVEN: Final = ("branch_reads", "sections", "preprocessing", "tasks", "lifetimes")
"""Records that none of these arguments has."""


class Older(NamedTuple):
    """A run with the data that were given, and inputs of plots that stand in no record."""

    run: Run
    inputs: dict[str, Any]


def argument_of(data: object) -> str | None:
    """Name of the argument that data of this shape was given as; None for what is none of them."""
    if isinstance(data, Mapping):
        if any(isinstance(key, tuple) for key in data):
            return "span_metrics"
        return "tracking_data" if {COUNTS, *(name for name, _ in SERIES)} & set(data) else "metrics"
    return "chunk_metrics" if isinstance(data, Sequence) and not isinstance(data, str) else None


def with_older(run: Run | None, given: Mapping[str, Any]) -> Older:
    """Run in which data that were given stand in place of its own, and what it reported in the shapes of 0.1.2."""
    fields: dict[str, Any] = {ARGUMENTS[name][0]: ARGUMENTS[name][1](data) for name, data in given.items()}
    if "reported" in fields:
        fields["reported_by"] = "the metrics that were given"
    reported = fields.get("reported") or (run.reported if run is not None else None) or {}
    if "chunks" not in fields and reported.get("raw_chunk_metrics"):
        fields["chunks"] = chunks_of(reported["raw_chunk_metrics"])
    counts = counts_of(given.get("tracking_data") or reported.get("tracking_data") or {})
    inputs: dict[str, Any] = {"worker_counts": counts} if len(counts[0]) else {}
    if ratios := [ratio for ratio in reported.get("compression_ratios") or () if ratio]:
        inputs["compression_factors"] = "files", 1 / np.array(ratios, dtype=np.float64)
    known = run or run_without_records(*_moments(fields, *counts[:1]))
    absent = {name: reason for name, reason in known.absent.items() if name not in fields}
    return Older(dataclasses.replace(known, **fields, absent=absent), inputs)


def run_without_records(*moments: float) -> Run:
    """A run of which nothing is known, but moments in it."""
    absent = dict.fromkeys(NOT_GIVEN, "they were not given")
    absent |= {field: f"give {argument}=, or a measurement" for argument, (field, _) in ARGUMENTS.items()}
    start, stop = min(moments, default=0.0), max(moments, default=0.0)
    return unwatched_run(id="", start=start, stop=stop, backend="", absent=absent)


def _moments(fields: Mapping[str, Any], counted: Any) -> Iterator[float]:
    """Moments that the data tell."""
    yield from counted.tolist()
    for field, columns in (("samples", ["time"]), ("chunks", ["start", "stop"])):
        for column in columns if field in fields else ():
            yield from fields[field][column].drop_null().to_pylist()
