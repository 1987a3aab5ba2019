"""Metrics of a run by name: computed on request, missing with a reason, or reported by another program."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from numbers import Real
from threading import RLock
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from roastcoffea.errors import MissingMetricError, error_text, unknown
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.metrics.catalogue import (
    CATALOGUE,
    RAW,
    RUN,
    Catalogue,
    Fact,
    Metric,
    Needs,
    NotMeasuredError,
    Sourced,
    refuse_if,
)
from roastcoffea.records.run import Run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Column, Sheet
from roastcoffea.units import COUNT, STRUCTURE, WORD, Unit

UNKNOWN: Final = Metric(name="", function=float, inputs=(), unit=STRUCTURE, group=RAW, source="", meaning="", label="")
"""Placeholder for metrics that the catalogue does not know; they come last and may hold anything."""


def with_reported(catalogue: Catalogue, run: Run) -> Catalogue:
    """Catalogue of reported metrics; only the raw structures are ours, because they are records.

    It sits on top of our own, which computes tables and other facts from the records as usual. Values reported under
    other names follow the metrics.
    """
    reported, reporter = by_present_name(run.reported or {}, catalogue), f"reported by {run.reported_by}"
    metrics = {metric.name: metric for metric in catalogue.metrics() if metric.name in reported or metric.group != RAW}
    metrics |= {name: UNKNOWN for name in reported if name not in catalogue.entries}
    entries: dict[str, Fact] = {}
    for name, metric in metrics.items():
        function = partial(_reported, metric, reported.get(name))
        changes: dict[str, Any] = {"name": name, "inputs": (RUN,), "optional": frozenset(), "source": reporter}
        entries[name] = dataclasses.replace(metric, function=function, **changes)
    return Catalogue(entries=entries, aliases=catalogue.aliases, below=catalogue)


def by_present_name(reported: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Reported values by the present names of metrics; present names take precedence over older ones."""
    aliases = catalogue.aliases
    # clock readings and settings of older measurements are no metrics
    known = {
        name: value for name, value in reported.items() if value is not None and name not in {"t0", "t1", "config"}
    }
    return {aliases.get(name, name): known[name] for name in sorted(known, key=lambda name: name not in aliases)}


def _reported(metric: Metric, value: Any, run: Run) -> Any:
    refuse_if(value is None, f"not reported by {run.reported_by}")
    refuse_if(not _is_usable(metric, value), f"the value that {run.reported_by} reported has the wrong type")
    return value


def _is_usable(metric: Metric, value: Any) -> bool:
    """Whether a value reported by another program fits the metric."""
    if metric.group == RAW:
        return True
    if metric.unit is STRUCTURE:
        # ledgers and the verdict are objects of ours, the others mappings of mappings
        nested = metric.function.__annotations__["return"].startswith("dict[") and isinstance(value, Mapping)
        return nested and all(isinstance(row, Mapping) for row in value.values())
    return isinstance(value, str) if metric.unit is WORD else _is_number(value)


def _is_number(value: Any) -> bool:
    """Whether it is a number of usable size."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


UNDER_PYTEST: Final = "PYTEST_CURRENT_TEST"
"""Set by pytest in the environment: our own errors are raised there, for tests to find."""

SMALL: Final = 1_000_000
"""Bytes below which a table is kept."""


class Evaluator:
    """Values of a catalogue's entries, each computed once; safe to share between threads.

    Metrics and tables are kept, and small tables of other facts. Others may be as large as the records: they are
    released once everything computed from them is known, and computed again on later requests.
    """

    def __init__(self, catalogue: Catalogue, given: Mapping[str, Any], below: Evaluator | None = None) -> None:
        self.catalogue = catalogue
        self.problems: list[str] = [] if below is None else below.problems
        """Internal errors that prevented something from being computed."""
        self._below = below
        self._values = dict(given)
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._done: set[str] = set()
        self._users = catalogue.users()
        self._lock = RLock()

    def value(self, name: str) -> Any:
        """Value of an entry or of a given input.

        Raises
        ------
        NotMeasuredError
            If it is not available; the text is the reason.
        """
        with self._lock:
            if name in self._reasons:
                raise NotMeasuredError(self._reasons[name])
            if name in self._values:
                return self._values[name]
            if self._below is not None and name not in self.catalogue.entries:
                return self._below.value(name)
            return self._compute(self.catalogue.entries[name])

    def reason(self, name: str) -> str | None:
        """Why an entry is not available, or None; an entry built on request is not built for this."""
        with self._lock:
            entry = self.catalogue.entries.get(name)
            if entry is None and self._below is not None:
                return self._below.reason(name)
            if entry is not None and entry.on_request and name not in self._done:
                needed = (need for need in entry.inputs if need not in entry.optional)
                return next(filter(None, map(self.reason, needed)), None)
            if name not in self._done:
                self._optional(name)
            return self._reasons.get(name)

    def source(self, name: str) -> str | None:
        """Source of a metric's value in this run, if it differs from the catalogue's."""
        if self._below is not None and name not in self.catalogue.entries:
            return self._below.source(name)
        return self._sources.get(name)

    def arguments(self, needs: Needs | Fact) -> list[Any]:
        """Inputs of a function; None for an optional one that is not available.

        Raises
        ------
        NotMeasuredError
            If a required one is not available.
        """
        return [self._optional(name) if name in needs.optional else self.value(name) for name in needs.inputs]

    def _optional(self, name: str) -> Any:
        try:
            return self.value(name)
        except NotMeasuredError:
            return None

    def _compute(self, entry: Fact) -> Any:
        try:
            found = self._called(entry)
        except NotMeasuredError as error:
            self._reasons[entry.name] = str(error)
            self._settle(entry)
            raise
        if isinstance(found, Sourced):
            found, self._sources[entry.name] = found
        if entry.kept or _is_small(found) or self._is_needed(entry.name):
            self._values[entry.name] = found
        self._settle(entry)
        return found

    def _called(self, entry: Fact) -> Any:
        """Result of its function; a division by zero or an overflow becomes a reason like any other."""
        arguments = self.arguments(entry)
        with computing(entry.name, self.problems):
            try:
                return entry.function(*arguments)
            except OverflowError:
                raise NotMeasuredError("the result is too large") from None
            except ZeroDivisionError:
                zero = [name for name, value in zip(entry.inputs, arguments, strict=True) if value == 0]
                what = f"{' and '.join(zero)} {'is' if len(zero) == 1 else 'are'} 0" if zero else "an amount in it is 0"
                raise NotMeasuredError(what) from None

    def _settle(self, entry: Fact) -> None:
        """Release inputs that only this entry still needed."""
        self._done.add(entry.name)
        for name in entry.inputs:
            need = self.catalogue.entries.get(name)
            released = need is not None and not need.kept and not self._is_needed(name)
            if released and not _is_small(self._values.get(name)):
                self._values.pop(name, None)

    def _is_needed(self, name: str) -> bool:
        """Whether something computed from it is still unknown."""
        return not self._users.get(name, set()) <= self._done


def _is_small(found: Any) -> bool:
    """Whether it is a table that takes no memory worth releasing."""
    return isinstance(found, pa.Table) and found.nbytes < SMALL


@contextmanager
def computing(what: str, problems: list[str]) -> Iterator[None]:
    """Turn an internal error into the reason why something is missing, and note it: everything else still works.

    Raises
    ------
    NotMeasuredError
        For any unexpected error in the block; under pytest the error itself is raised.
    """
    try:
        yield
    except NotMeasuredError:
        raise
    except Exception as error:
        raise_if_interrupted(error)
        if UNDER_PYTEST in os.environ:
            raise
        reason = error_text(error)
        problems.append(f"{what} could not be computed: {reason}")
        raise NotMeasuredError(reason) from error


T = TypeVar("T")


class ByName(Mapping[str, T], Generic[T]):
    """Mapping that finds its values on request; metrics are found by older names as well."""

    def __init__(self, find: Callable[[str], T | None], names: Collection[str], what: str = "metric") -> None:
        self._find = find
        self._names = names
        self._what = what

    def __getitem__(self, name: str) -> T:
        present = CATALOGUE.aliases.get(name, name)
        if present not in self._names:
            raise KeyError(unknown(self._what, name, self._names))
        found = self._find(present)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if self._find(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Callable[..., ByName[T]], tuple[Callable[[str], T | None], dict[str, T], str]]:
        found = dict(self)
        return ByName, (found.get, found, self._what)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class Metrics(Presented, Mapping[str, Any]):
    """Metrics of one run by name; iterating yields those that can be computed, without aliases.

    `missing` has the reason for each of the others, `source` the origin of each number, `unit` its unit. Each metric is
    computed on first use, along with its inputs and nothing else; structures of group "raw" only if their value is
    requested.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        metrics = {metric.name: metric for metric in evaluator.catalogue.metrics()}
        self.evaluator = evaluator
        """The evaluator, with the facts behind the metrics."""
        self.unit: Mapping[str, Unit] = ByName(lambda name: metrics[name].unit, metrics)
        self.missing: Mapping[str, str] = ByName(evaluator.reason, metrics)
        self.source: Mapping[str, str] = ByName(
            lambda name: None if evaluator.reason(name) else evaluator.source(name) or metrics[name].source, metrics
        )
        self.tables: Mapping[str, pa.Table | str] = ByName(
            lambda name: evaluator.reason(name) or evaluator.value(name), evaluator.catalogue.tables(), "table"
        )
        """Tables derived from the records, by name; raises the reason for one that is not available."""

    def __reduce__(self) -> tuple[Callable[[Run], Metrics], tuple[Run]]:
        return evaluate, (self.evaluator.value(RUN),)

    @property
    def problems(self) -> list[str]:
        """Internal errors that prevented something from being computed; computes everything to find out."""
        for mapping in (self, self.tables):
            len(mapping)
        return self.evaluator.problems

    def computing(self, what: str) -> AbstractContextManager[None]:
        """Context for computing something else from the run: an internal error becomes a reason and a problem
        there, too."""
        return computing(what, self.evaluator.problems)

    def __getitem__(self, name: str) -> Any:
        present = CATALOGUE.aliases.get(name, name)
        if present not in self.unit:
            raise KeyError(unknown("metric", name, [*CATALOGUE.aliases, *self.unit]))
        try:
            return self.evaluator.value(present)
        except NotMeasuredError as reason:
            raise MissingMetricError(f"{name} is missing: {reason}") from None

    def built(self) -> dict[str, Any]:
        """Everything that can be computed, including structures of group "raw"."""
        values = {name: self.get(name) for name in list(self)}
        return {name: values[name] for name in self}

    def __contains__(self, name: object) -> bool:
        return name in self.unit and name not in self.missing

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.unit if name not in self.missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def sheets(self) -> list[Sheet]:
        """Numbers and words by group, and the reasons for missing ones."""
        groups: dict[str, list[tuple[str, Amount, str]]] = {}
        for metric in self.evaluator.catalogue.metrics():
            if metric.unit is not STRUCTURE and metric.name in self:
                value = self[metric.name]
                amount = Amount(None, metric.unit, value) if isinstance(value, str) else Amount(value, metric.unit)
                row = (metric.name, amount, self.source[metric.name])
                groups.setdefault(metric.group, []).append(row)
        columns = (Column(name=""), Column(name="value", unit=COUNT), Column(name="source"))
        sheets = [Sheet(title=group, columns=columns, rows=rows, things="metrics") for group, rows in groups.items()]
        if self.missing:
            reasons = (Column(name=""), Column(name="reason"))
            rows = [*self.missing.items()]
            sheets.append(
                Sheet(title=f"{len(rows)} missing", columns=reasons, rows=rows, things="metrics", folded=True)
            )
        return sheets

    def __repr__(self) -> str:
        return f"<Metrics: {len(self)} computed, {len(self.missing)} missing>"


def evaluate(run: Run) -> Metrics:
    """Metrics of a run: computed from its records, or reported with it by another program."""
    computed = Evaluator(CATALOGUE, {RUN: run})
    if run.reported is None:
        return Metrics(computed)
    return Metrics(Evaluator(with_reported(CATALOGUE, run), {RUN: run}, computed))
