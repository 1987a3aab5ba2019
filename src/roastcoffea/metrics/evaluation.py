"""Metrics of a run by name: each is computed when it is asked for, or missing with its reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from threading import RLock
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from roastcoffea.errors import MissingMetricError, error_text
from roastcoffea.metrics.catalogue import CATALOGUE, RUN, Catalogue, Fact, Needs, NotMeasuredError, Sourced
from roastcoffea.metrics.reported import with_reported
from roastcoffea.records.run import Run
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Amount, Column, Sheet
from roastcoffea.units import COUNT, STRUCTURE, Unit

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

    def __init__(self, find: Callable[[str], T | None], names: Iterable[str]) -> None:
        self._find = find
        self._names = names

    def __getitem__(self, name: str) -> T:
        present = CATALOGUE.aliases.get(name, name)
        found = self._find(present) if present in self._names else None
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if self._find(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

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
        self.tables: Mapping[str, pa.Table | str] = ByName(self._table, evaluator.catalogue.tables())
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
            near = get_close_matches(name, [*CATALOGUE.aliases, *self.unit])
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise KeyError(f"there is no metric {name!r}{hint}")
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
