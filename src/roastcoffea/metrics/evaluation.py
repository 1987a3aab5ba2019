"""Metrics of a run by name: each is computed when it is asked for, or missing with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import pyarrow as pa

from roastcoffea.errors import MissingMetricError
from roastcoffea.metrics.catalogue import CATALOGUE, RUN, NotMeasuredError
from roastcoffea.metrics.evaluator import Evaluator, computing
from roastcoffea.metrics.reported import with_reported
from roastcoffea.records.run import Run
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Amount, Column, Sheet
from roastcoffea.units import COUNT, STRUCTURE, Unit

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
