"""Numbers that another program computed and stored, in place of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from numbers import Real
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from roastcoffea.metrics.catalogue import RAW, RUN, Catalogue, Fact, Metric, refuse_if
from roastcoffea.records.run import Run
from roastcoffea.units import STRUCTURE, WORD

BOOKKEEPING: Final = frozenset({"t0", "t1"})
"""Names among reported metrics that are none: the clock readings of an older measurement."""


UNKNOWN: Final = Metric(name="", function=float, inputs=(), unit=STRUCTURE, group=RAW, source="", meaning="", label="")
"""Stands for what the catalogue does not know: it comes last, and may be anything."""


def with_reported(catalogue: Catalogue, run: Run) -> Catalogue:
    """Catalogue whose metrics are what was reported; ours are the raw structures alone, as they are records.

    It lies above the one of ours, in which tables and other facts are computed from the records as ever. What was
    reported under other names comes after the metrics.
    """
    reported, reporter = by_present_name(run.reported or {}, catalogue), f"reported by {run.reported_by}"
    theirs = {metric.name: metric for metric in catalogue.metrics() if metric.name in reported or metric.group != RAW}
    theirs |= {name: UNKNOWN for name in reported if name not in catalogue.entries}
    entries: dict[str, Fact] = {}
    for name, metric in theirs.items():
        function = partial(_reported, metric, reported.get(name))
        changes: dict[str, Any] = {"name": name, "inputs": (RUN,), "optional": frozenset(), "source": reporter}
        entries[name] = dataclasses.replace(metric, function=function, **changes)
    return Catalogue(entries=entries, aliases=catalogue.aliases, below=catalogue)


def by_present_name(reported: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """What is known of it, by the present names of metrics; these win over older ones."""
    known = {name: value for name, value in reported.items() if value is not None and name not in BOOKKEEPING}
    older = {catalogue.aliases[name]: value for name, value in known.items() if name in catalogue.aliases}
    return older | {name: value for name, value in known.items() if name not in catalogue.aliases}


def _reported(metric: Metric, value: Any, run: Run) -> Any:
    refuse_if(value is None, f"not reported by {run.reported_by}")
    refuse_if(not _is_usable(metric, value), f"what {run.reported_by} reported is no such value")
    return value


def _is_usable(metric: Metric, value: Any) -> bool:
    """Whether a value that another program reported is what the metric is."""
    if metric.group == RAW:
        return True
    if metric.unit is STRUCTURE:
        kind = get_type_hints(metric.function)["return"]
        return _holds_numbers(value, levels) if (levels := _levels(kind)) else isinstance(value, kind)
    return isinstance(value, str) if metric.unit is WORD else _is_number(value)


def _levels(kind: Any) -> int:
    """How deep numbers lie in dictionaries of this kind; 0 for what is none."""
    if is_typeddict(kind):
        return 1
    return 1 + _levels(get_args(kind)[1]) if get_origin(kind) is dict else 0


def _holds_numbers(value: Any, levels: int) -> bool:
    """Whether it is nested mappings of names, with numbers in the last ones."""
    if levels == 0:
        return value is None or _is_number(value)
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _holds_numbers(item, levels - 1) for name, item in value.items()
    )


def _is_number(value: Any) -> bool:
    """Whether it is a number of a size that can be worked with."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
