"""Computing every metric of a run, or the reason why it cannot be had."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from numbers import Real
from typing import Any, Final, Generic, TypeVar, get_type_hints

import pyarrow as pa

from roastcoffea.errors import MissingMetricError, error_text
from roastcoffea.metrics.catalogue import CATALOGUE, RAW, RUN, Fact, Metric, NotMeasuredError, Sourced
from roastcoffea.records.run import Run
from roastcoffea.report.html import Html, folded, heading, page, table
from roastcoffea.units import STRUCTURE, WORD, Unit

T = TypeVar("T")

BOOKKEEPING: Final = frozenset({"t0", "t1"})
"""Names among reported metrics that are none: the clock readings of an older measurement."""

NESTED: Final[Mapping[str, int]] = {
    "per_dataset": 2,
    "file_read_metrics": 2,
    "fine_metrics_per_worker": 2,
    "sections": 3,
}
"""Metrics that are numbers by name, and how deep these lie."""

RUNS_TESTS: Final = "PYTEST_CURRENT_TEST"
"""What pytest sets in the environment: there our own errors come out, so that tests find them."""


@contextmanager
def computing(what: str, problems: list[str]) -> Iterator[None]:
    """Turn an error of ours into the reason why something is missing, and note it: it takes nothing else away.

    Raises
    ------
    NotMeasuredError
        For any unexpected error of the block; under pytest that comes out as it is.
    """
    try:
        yield
    except NotMeasuredError:
        raise
    except Exception as error:
        if RUNS_TESTS in os.environ:
            raise
        reason = error_text(error)
        problems.append(f"{what} could not be computed: {reason}")
        raise NotMeasuredError(reason) from error


class ByMetric(Mapping[str, T], Generic[T]):
    """Mapping from metrics to something; a metric is found by its older names as well."""

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        return self._entries[CATALOGUE.aliases.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._entries)!r})"


class Metrics(Mapping[str, Any]):
    """Metrics of one run by name; iteration gives those that could be computed, without their aliases.

    `missing` has the reason for each that could not, `source` where each number came from, `unit` its unit.
    Structures of group "raw" are built when they are first asked for.
    """

    def __init__(
        self,
        *,
        values: Mapping[str, Any],
        source: Mapping[str, str],
        unit: Mapping[str, Unit],
        missing: Mapping[str, str],
        tables: Mapping[str, pa.Table | str],
        problems: list[str],
    ) -> None:
        self._values = ByMetric(values)
        self._reasons = dict(missing)
        self.source: Mapping[str, str] = ByMetric(source)
        self.unit: Mapping[str, Unit] = ByMetric(unit)
        self.missing: Mapping[str, str] = ByMetric(self._reasons)
        self.tables = tables
        """Tables that were derived from the records, by name; the reason in place of one that could not be had."""
        self.problems = problems
        """Errors of ours that kept something from being computed."""

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            value = self._values[name]
            if not isinstance(value, Deferred):
                return value
            name = CATALOGUE.aliases.get(name, name)
            try:
                with computing(name, self.problems):
                    return value.get()
            except NotMeasuredError as error:
                self._take_away(name, str(error))
        if name in self.missing:
            raise MissingMetricError(f"{name} is missing: {self.missing[name]}")
        near = get_close_matches(name, [*CATALOGUE.aliases, *self.unit])
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise KeyError(f"there is no metric {name!r}{hint}")

    def _take_away(self, name: str, reason: str) -> None:
        """Let a metric be missing that could not be built when it was asked for."""
        self._values = ByMetric({other: self._values[other] for other in self._values if other != name})
        self._reasons[name] = reason

    def built(self) -> dict[str, Any]:
        """All that can be computed, structures of group "raw" as well."""
        values = {name: self.get(name) for name in list(self)}
        return {name: values[name] for name in self}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _repr_html_(self) -> str:
        return page(self.html_tables())

    def html_tables(self) -> Html:
        """Numbers and words by group, and the reasons of those that are missing."""
        groups: dict[str, list[tuple[str, str, str]]] = {}
        for metric in CATALOGUE.metrics():
            if metric.name in self and self.unit[metric.name] is not STRUCTURE:
                row = (metric.name, metric.unit.text(self[metric.name]), self.source[metric.name])
                groups.setdefault(metric.group, []).append(row)
        parts = [f"{heading(group)}{table(('', 'value', 'source'), rows)}" for group, rows in groups.items()]
        if self.missing:
            parts.append(folded(f"{len(self.missing)} missing", table(("", "reason"), list(self.missing.items()))))
        return Html("".join(parts))

    def __repr__(self) -> str:
        return f"<Metrics: {len(self)} computed, {len(self.missing)} missing>"


@dataclass(slots=True)
class Deferred:
    """A bulky value that is built when it is first asked for, and kept."""

    build: Callable[[], Any]
    built: list[Any] = field(default_factory=list)

    def get(self) -> Any:
        """Value that `build` gives."""
        if not self.built:
            self.built.append(self.build())
        return self.built[0]


def evaluate(run: Run) -> Metrics:
    """Metrics of a run: computed from its records, or those that another program reported with it."""
    problems: list[str] = []
    values, reasons, tables = _computed(run, problems)
    source = {metric.name: metric.source for metric in CATALOGUE.metrics()}
    unit = {metric.name: metric.unit for metric in CATALOGUE.metrics()}
    if run.reported is not None:
        values, reasons = _reported(run, values, reasons)
        told = [name for name, value in values.items() if not isinstance(value, Deferred)]
        source |= dict.fromkeys(told, f"reported by {run.reported_by}")
    for name, value in values.items():
        if isinstance(value, Sourced):
            values[name], source[name] = value
    return Metrics(
        values=values,
        source={name: source[name] for name in values},
        unit=dict.fromkeys(values, STRUCTURE) | unit,
        missing=reasons,
        tables=tables,
        problems=problems,
    )


def _computed(run: Run, problems: list[str]) -> tuple[dict[str, Any], dict[str, str], dict[str, pa.Table | str]]:
    """Values and reasons of all metrics in the catalogue's order, and tables or their reasons."""
    values: dict[str, Any] = {RUN: run}
    reasons: dict[str, str] = {}
    last_use = {need: name for name, entry in CATALOGUE.entries.items() for need in entry.inputs}
    for name, entry in CATALOGUE.entries.items():
        try:
            with computing(name, problems):
                values[name] = _value(entry, values, reasons)
        except NotMeasuredError as error:
            reasons[name] = str(error)
        for need in entry.inputs:
            if last_use[need] == name and _only_between(need):
                # it may be as large as the records
                values.pop(need, None)
    names = [metric.name for metric in CATALOGUE.metrics()]
    return (
        {name: values[name] for name in names if name in values},
        {name: reasons[name] for name in names if name in reasons},
        {name: values.get(name, reasons.get(name)) for name, entry in CATALOGUE.entries.items() if entry.table},
    )


def _only_between(name: str) -> bool:
    """Whether it is neither a metric nor a table that is asked for, but what these are made of."""
    entry = CATALOGUE.entries.get(name)
    return entry is not None and not entry.table and not isinstance(entry, Metric)


def _value(entry: Fact, values: Mapping[str, Any], reasons: Mapping[str, str]) -> Any:
    for name in entry.inputs:
        if name in reasons and name not in entry.optional:
            raise NotMeasuredError(reasons[name])
    arguments = [_plain(values.get(name)) for name in entry.inputs]
    if isinstance(entry, Metric) and entry.group == RAW:
        return Deferred(partial(entry.function, *arguments))
    try:
        return entry.function(*arguments)
    except OverflowError:
        raise NotMeasuredError("a number is too large") from None
    except ZeroDivisionError:
        zero = [name for name, value in zip(entry.inputs, arguments, strict=True) if value == 0]
        raise NotMeasuredError(f"{' and '.join(zero)} {'is' if len(zero) == 1 else 'are'} 0") from None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Sourced) else value


def _reported(
    run: Run, computed: Mapping[str, Any], reasons: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values as reported; of our own only the raw structures, which are records in another shape."""
    merged = {name: value for name, value in computed.items() if isinstance(value, Deferred)}
    merged |= _by_present_name(run.reported or {})
    metrics = list(CATALOGUE.metrics())
    unusable = {metric.name for metric in metrics if not _is_usable(metric, merged.get(metric.name))}
    lacking = dict.fromkeys(unusable & merged.keys(), f"what {run.reported_by} reported is no such value")
    for name in lacking:
        del merged[name]
    values = {metric.name: merged.pop(metric.name) for metric in metrics if metric.name in merged} | merged
    unreported = f"not reported by {run.reported_by}"
    return values, {
        metric.name: reasons[metric.name] if metric.group == RAW else lacking.get(metric.name, unreported)
        for metric in metrics
        if metric.name not in values
    }


def _is_usable(metric: Metric, value: Any) -> bool:
    """Whether a value that another program reported is what the metric is."""
    if metric.group == RAW:
        return True
    if metric.name in NESTED:
        return _holds_numbers(value, NESTED[metric.name])
    if metric.unit is STRUCTURE:
        return isinstance(value, get_type_hints(metric.function)["return"])
    return isinstance(value, str) if metric.unit is WORD else _is_number(value)


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


def _by_present_name(reported: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in reported.items() if value is not None and name not in BOOKKEEPING}
    older = {CATALOGUE.aliases[name]: value for name, value in known.items() if name in CATALOGUE.aliases}
    return older | {name: value for name, value in known.items() if name not in CATALOGUE.aliases}
