"""Metrics of a run, either computed on request or reported by another program, and reasons for missing metrics."""

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
"""Entry for reported metrics that are not in the catalogue. Such metrics are listed last, and their values may be of
any type.
"""


def _with_reported(run: Run) -> Catalogue:
    """Create a catalogue of the metrics that another program reported.

    Of these metrics, only raw structures are computed, because they consist of records. The new catalogue extends the
    regular catalogue, which still computes tables and other facts from the records.
    """
    reported: Row = {}
    # current names take precedence over former names; clock readings and settings in older measurements are not metrics
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
        # other programs cannot report ledgers or verdicts (our own objects); other structures are nested mappings
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
"""Environment variable set by pytest. If it is present, internal errors are raised so that tests detect them."""


class Evaluator:
    """Evaluator that computes each catalogue entry at most once."""

    def __init__(self, catalogue: Catalogue, given: Mapping[str, Any], below: Evaluator | None = None) -> None:
        self.catalogue = catalogue
        self.problems: list[str] = [] if below is None else below.problems
        self._below = below
        self._values = dict(given)
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def value(self, name: str) -> Any:
        """Value of a catalogue entry or of a given input.

        Raises
        ------
        NotMeasuredError
            If the value is not available. The message gives the reason.
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
        """Discard tables that users cannot view. They are recomputed when needed."""
        for name, entry in self.catalogue.entries.items():
            if not entry.kept and isinstance(self._values.get(name), Table):
                del self._values[name]
        if self._below is not None:
            self._below.release()

    def reason(self, name: str) -> str | None:
        """Reason why an entry is not available, or None if it is available. Checking does not build raw structures."""
        entry = self.catalogue.entries.get(name)
        if entry is None and self._below is not None:
            return self._below.reason(name)
        if entry is not None and entry.on_request and name not in self._reasons:
            needed = (need for need in entry.inputs if need not in entry.optional)
            return next(filter(None, map(self.reason, needed)), None)
        self._optional(name)
        return self._reasons.get(name)

    def source(self, name: str) -> str | None:
        """Source of a metric's value in this run, or None if it is the source given in the catalogue."""
        if self._below is not None and name not in self.catalogue.entries:
            return self._below.source(name)
        return self._sources.get(name)

    def arguments(self, needs: Needs | Fact) -> list[Any]:
        """Values of a function's inputs. An optional input is None if it is not available."""
        return [self._optional(name) if name in needs.optional else self.value(name) for name in needs.inputs]

    def _optional(self, name: str) -> Any:
        with suppress(NotMeasuredError):
            return self.value(name)
        return None

    def _called(self, entry: Fact) -> Any:
        """Call an entry's function. If it divides by zero or overflows, the value is treated as missing."""
        arguments = self.arguments(entry)
        with computing(entry.name, self.problems):
            try:
                return entry.function(*arguments)
            except OverflowError:
                raise NotMeasuredError("the result is too large") from None
            except ZeroDivisionError:
                zero = [name for name, value in zip(entry.inputs, arguments, strict=True) if value == 0]
                what = f"{' and '.join(zero)} {'is' if len(zero) == 1 else 'are'} 0" if zero else "it divides by 0"
                raise NotMeasuredError(what) from None


@contextmanager
def computing(what: str, problems: list[str]) -> Iterator[None]:
    """Record an internal error in the block as a problem, and treat the value as missing.

    Raises
    ------
    NotMeasuredError
        If the block raises an unexpected error. Under pytest, the error itself is raised.
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
    """Mapping that computes values on lookup and also accepts former metric names."""

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
    """Metrics of a run, by name.

    Iteration yields the names of all available metrics, but not their aliases.

    `missing` maps each unavailable metric to the reason, `source` maps each available metric to its source, and `unit`
    maps every metric to its unit. A metric and its inputs are computed when they are first used. Structures in the
    group "raw" are computed only if their value is requested.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        metrics = {metric.name: metric for metric in evaluator.catalogue.metrics()}
        self.evaluator = evaluator
        """Evaluator that computes the metrics and the facts on which they are based."""
        self.unit: Mapping[str, Unit] = ByName(lambda name: metrics[name].unit, metrics)
        self.missing: Mapping[str, str] = ByName(evaluator.reason, metrics)
        self.source: Mapping[str, str] = ByName(
            lambda name: None if evaluator.reason(name) else evaluator.source(name) or metrics[name].source, metrics
        )
        self.tables: Mapping[str, Table | str] = ByName(
            lambda name: evaluator.reason(name) or evaluator.value(name), evaluator.catalogue.tables(), "table"
        )
        """Tables derived from the records, by name. An unavailable table is replaced with the reason."""

    def __reduce__(self) -> tuple[Callable[[Run], Metrics], tuple[Run]]:
        return evaluate, (self.evaluator.value(RUN),)

    @property
    def problems(self) -> list[str]:
        """Internal errors raised while computing the metrics.

        All metrics and tables are computed first.
        """
        for mapping in (self, self.tables):
            len(mapping)
        self.evaluator.release()
        return self.evaluator.problems

    def computing(self, what: str) -> AbstractContextManager[None]:
        """Context manager for other computations on the run. Internal errors are recorded as problems."""
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
        """All available metrics, including structures in the group "raw"."""
        values = {name: self.get(name) for name in list(self)}
        return {name: values[name] for name in self}

    def __contains__(self, name: object) -> bool:
        return name in self.unit and name not in self.missing

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.unit if name not in self.missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def sheets(self) -> list[Sheet]:
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
    """Metrics of a run, either computed from its records or reported by another program."""
    computed = Evaluator(CATALOGUE, {RUN: run})
    return Metrics(computed if run.reported is None else Evaluator(_with_reported(run), {RUN: run}, computed))
