"""Metrics of a run by name: each is computed when it is asked for, missing with its reason, or reported by another."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from numbers import Real
from threading import RLock
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from roastcoffea.errors import MissingMetricError, error_text, unknown
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
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Amount, Column, Sheet
from roastcoffea.units import COUNT, STRUCTURE, WORD, Unit

BOOKKEEPING: Final = frozenset({"t0", "t1", "config"})
"""Names among reported metrics that are none: the clock readings of an older measurement, and its settings."""


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


RUNS_TESTS: Final = "PYTEST_CURRENT_TEST"
"""What pytest sets in the environment: there our own errors come out, so that tests find them."""


class Evaluator:
    """Values of a catalogue's entries, each computed once; threads may share it.

    Metrics and tables are kept. Other facts may be as large as the records: one is forgotten when all that is computed
    from it is known, and computed again where it is asked for later.
    """

    def __init__(self, catalogue: Catalogue, given: Mapping[str, Any], below: Evaluator | None = None) -> None:
        self.catalogue = catalogue
        self.problems: list[str] = [] if below is None else below.problems
        """Errors of ours that kept something from being computed."""
        self._below = below
        self._values = dict(given)
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._done: set[str] = set()
        self._users = catalogue.users()
        self._lock = RLock()

    def value(self, name: str) -> Any:
        """Value of an entry, or of an input that was given.

        Raises
        ------
        NotMeasuredError
            If it cannot be had; the text is the reason.
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
        """Why an entry cannot be had, None where it can; one that is built on request is not built for that."""
        with self._lock:
            if name in self._reasons or name in self._values or name in self._done:
                return self._reasons.get(name)
            if self._below is not None and name not in self.catalogue.entries:
                return self._below.reason(name)
            entry = self.catalogue.entries[name]
            if entry.on_request:
                needed = (need for need in entry.inputs if need not in entry.optional)
                return next(filter(None, map(self.reason, needed)), None)
            try:
                self.value(name)
            except NotMeasuredError as error:
                return str(error)
            return None

    def source(self, name: str) -> str | None:
        """Where the value of a metric came from in this run, where that is not what the catalogue says."""
        if self._below is not None and name not in self.catalogue.entries:
            return self._below.source(name)
        return self._sources.get(name)

    def arguments(self, needs: Needs | Fact) -> list[Any]:
        """Inputs of a function, None for an optional one that cannot be had.

        Raises
        ------
        NotMeasuredError
            If another one cannot be had.
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
        if entry.kept or self._is_needed(entry.name):
            self._values[entry.name] = found
        self._settle(entry)
        return found

    def _called(self, entry: Fact) -> Any:
        """What its function gives, where a division by zero or a number too large is a reason like others."""
        arguments = self.arguments(entry)
        with computing(entry.name, self.problems):
            try:
                return entry.function(*arguments)
            except OverflowError:
                raise NotMeasuredError("a number is too large") from None
            except ZeroDivisionError:
                zero = [name for name, value in zip(entry.inputs, arguments, strict=True) if value == 0]
                raise NotMeasuredError(f"{' and '.join(zero)} {'is' if len(zero) == 1 else 'are'} 0") from None

    def _settle(self, entry: Fact) -> None:
        """Forget inputs that this entry was the last to need."""
        self._done.add(entry.name)
        for name in entry.inputs:
            need = self.catalogue.entries.get(name)
            if need is not None and not need.kept and not self._is_needed(name):
                self._values.pop(name, None)

    def _is_needed(self, name: str) -> bool:
        """Whether something that is computed from it is not known yet."""
        return not self._users.get(name, set()) <= self._done


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


T = TypeVar("T")


class ByName(Mapping[str, T], Generic[T]):
    """Mapping that finds what it holds when it is asked for; a metric is found by its older names as well."""

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
    """Metrics of one run by name; iteration gives those that can be computed, without their aliases.

    `missing` has the reason for each that cannot, `source` where each number came from, `unit` its unit. What is asked
    for is computed then, with what it needs and nothing else; structures of group "raw" only where their value is.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        metrics = {metric.name: metric for metric in evaluator.catalogue.metrics()}
        self.evaluator = evaluator
        """What computes them, and the facts that they are computed from."""
        self.unit: Mapping[str, Unit] = ByName(lambda name: metrics[name].unit, metrics)
        self.missing: Mapping[str, str] = ByName(evaluator.reason, metrics)
        self.source: Mapping[str, str] = ByName(
            lambda name: None if evaluator.reason(name) else evaluator.source(name) or metrics[name].source, metrics
        )
        self.tables: Mapping[str, pa.Table | str] = ByName(self._table, evaluator.catalogue.tables(), "table")
        """Tables that are derived from the records, by name; the reason in place of one that could not be had."""

    def __reduce__(self) -> tuple[Callable[[Run], Metrics], tuple[Run]]:
        return evaluate, (self.evaluator.value(RUN),)

    @property
    def problems(self) -> list[str]:
        """Errors of ours that kept something from being computed; all is computed for that."""
        for mapping in (self, self.tables):
            len(mapping)
        return self.evaluator.problems

    def computing(self, what: str) -> AbstractContextManager[None]:
        """Context in which something else is made of the run: an error of ours is a reason and a problem there, too."""
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
        """All that can be computed, structures of group "raw" as well."""
        values = {name: self.get(name) for name in list(self)}
        return {name: values[name] for name in self}

    def __contains__(self, name: object) -> bool:
        return name in self.unit and name not in self.missing

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.unit if name not in self.missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def sheets(self) -> list[Sheet]:
        """Numbers and words by group, and the reasons of those that are missing."""
        groups: dict[str, list[tuple[str, Amount, str]]] = {}
        for metric in self.evaluator.catalogue.metrics():
            if metric.unit is not STRUCTURE and metric.name in self:
                row = (metric.name, _amount(self[metric.name], metric.unit), self.source[metric.name])
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

    def _table(self, name: str) -> pa.Table | str:
        try:
            return self.evaluator.value(name)
        except NotMeasuredError as reason:
            return str(reason)


def _amount(value: float | str, unit: Unit) -> Amount:
    return Amount(None, unit, value) if isinstance(value, str) else Amount(value, unit)


def evaluate(run: Run) -> Metrics:
    """Metrics of a run: computed from its records, or those that another program reported with it."""
    computed = Evaluator(CATALOGUE, {RUN: run})
    if run.reported is None:
        return Metrics(computed)
    return Metrics(Evaluator(with_reported(CATALOGUE, run), {RUN: run}, computed))
