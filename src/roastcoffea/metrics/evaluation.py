"""Metrics of a run by name: computed on request, missing with a reason, or reported by another program."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from numbers import Real
from typing import Any, Final, Generic, TypeVar

from pyarrow import Table

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
from roastcoffea.records.columns import Row
from roastcoffea.records.run import Run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Column, Sheet
from roastcoffea.units import COUNT, STRUCTURE, WORD, Unit

UNKNOWN: Final = Metric(name="", function=float, inputs=(), unit=STRUCTURE, group=RAW, source="", meaning="", label="")
"""Placeholder for metrics that the catalogue does not know; they come last and may hold anything."""


def _with_reported(run: Run) -> Catalogue:
    """Catalogue of reported metrics; only the raw structures are ours, because they are records.

    It sits on top of our own, which computes tables and other facts from the records as usual. Values reported under
    other names follow the metrics.
    """
    reported: Row = {}
    # present names take precedence over older ones; clock readings and settings of older measurements are no metrics
    for name, value in (run.reported or {}).items():
        if value is not None and name not in {"t0", "t1", "config"}:
            present = CATALOGUE.aliases.get(name, name)
            reported[present] = value if name == present else reported.get(present, value)
    metrics = {metric.name: metric for metric in CATALOGUE.metrics() if metric.name in reported or metric.group != RAW}
    metrics |= {name: UNKNOWN for name in reported if name not in CATALOGUE.entries}
    changes: Row = {
        "inputs": (RUN,),
        "optional": frozenset(),
        "source": f"reported by {run.reported_by}",
    }
    entries: dict[str, Fact] = {
        name: dataclasses.replace(metric, name=name, function=partial(_reported, metric, reported.get(name)), **changes)
        for name, metric in metrics.items()
    }
    return Catalogue(entries=entries, aliases=CATALOGUE.aliases, below=CATALOGUE)


def _reported(metric: Metric, value: Any, run: Run) -> Any:
    refuse_if(value is None, f"not reported by {run.reported_by}")
    if metric.group == RAW:
        return value
    if metric.unit is STRUCTURE:
        # ledgers and the verdict are objects of ours, the others mappings of mappings
        nested = metric.function.__annotations__["return"].startswith("dict[") and isinstance(value, Mapping)
        usable = nested and all(isinstance(row, Mapping) for row in value.values())
    elif metric.unit is WORD:
        usable = isinstance(value, str)
    else:
        # an integer may be too large for a float
        number = isinstance(value, Real) and not isinstance(value, bool)
        usable = number and not sys.float_info.max < abs(value) < math.inf
    refuse_if(not usable, f"the value that {run.reported_by} reported has the wrong type")
    return value


UNDER_PYTEST: Final = "PYTEST_CURRENT_TEST"
"""Set by pytest in the environment: our own errors are raised there, for tests to find."""


class Evaluator:
    """Values of a catalogue's entries, each computed once."""

    def __init__(self, catalogue: Catalogue, given: Mapping[str, Any], below: Evaluator | None = None) -> None:
        self.catalogue = catalogue
        self.problems: list[str] = [] if below is None else below.problems
        """Internal errors that prevented something from being computed."""
        self._below = below
        self._values = dict(given)
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def value(self, name: str) -> Any:
        """Value of an entry or of a given input.

        Raises
        ------
        NotMeasuredError
            If it is not available; the text is the reason.
        """
        if name in self._reasons:
            raise NotMeasuredError(self._reasons[name])
        if name in self._values:
            return self._values[name]
        if self._below is not None and name not in self.catalogue.entries:
            return self._below.value(name)
        try:
            found = self._called(self.catalogue.entries[name])
        except NotMeasuredError as error:
            self._reasons[name] = str(error)
            raise
        if isinstance(found, Sourced):
            found, self._sources[name] = found
        self._values[name] = found
        return found

    def release(self) -> None:
        """Forget tables that users do not see: they are computed again on request."""
        for name, entry in self.catalogue.entries.items():
            if not entry.kept and isinstance(self._values.get(name), Table):
                del self._values[name]
        if self._below is not None:
            self._below.release()

    def reason(self, name: str) -> str | None:
        """Why an entry is not available, or None; an entry built on request is not built for this."""
        entry = self.catalogue.entries.get(name)
        if entry is None and self._below is not None:
            return self._below.reason(name)
        if entry is not None and entry.on_request and name not in self._reasons:
            needed = (need for need in entry.inputs if need not in entry.optional)
            return next(filter(None, map(self.reason, needed)), None)
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
        with suppress(NotMeasuredError):
            return self.value(name)
        return None

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
        self.tables: Mapping[str, Table | str] = ByName(
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
        self.evaluator.release()
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

    def built(self) -> Row:
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
                groups.setdefault(metric.group, []).append((metric.name, amount, self.source[metric.name]))
        columns = (Column(""), Column("value", COUNT), Column("source"))
        sheets = [Sheet(title=group, columns=columns, rows=rows, things="metrics") for group, rows in groups.items()]
        if rows := [*self.missing.items()]:
            reasons = (Column(""), Column("reason"))
            title = f"{len(rows)} missing"
            sheets.append(Sheet(title=title, columns=reasons, rows=rows, things="metrics", folded=True))
        return sheets

    def __repr__(self) -> str:
        return f"<Metrics: {len(self)} computed, {len(self.missing)} missing>"


def evaluate(run: Run) -> Metrics:
    """Metrics of a run: computed from its records, or reported with it by another program."""
    computed = Evaluator(CATALOGUE, {RUN: run})
    return Metrics(computed if run.reported is None else Evaluator(_with_reported(run), {RUN: run}, computed))
