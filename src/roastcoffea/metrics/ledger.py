"""What both ledgers share: classes with amounts, a residual, and a certificate of completeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.errors import unknown
from roastcoffea.metrics.catalogue import Sourced
from roastcoffea.metrics.facts import lost_calls, with_outcome
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, RESIDUAL, TOTAL
from roastcoffea.records.chunks import SKIPPED
from roastcoffea.records.run import FINISHED, OF_TASKS, Run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import (
    LABELS,
    NAMED,
    NOT_MEASURED,
    UNACCOUNTED,
    Cell,
    Column,
    Drawn,
    Reason,
    Segment,
    Sheet,
    absence,
    drawn,
    segment,
)
from roastcoffea.sheets.sheet import Amount as AmountCell
from roastcoffea.units import FRACTION, SMALLEST_SHARE, Unit, number, share_text

Amount = TypeVar("Amount", bound="float | None")


LABELS_OF: Final = {RESIDUAL: UNACCOUNTED}
"""Names of classes in tables and bars, where they differ from those in the ledger."""


class Attempts(NamedTuple):
    """Attempts with a record, and the number that there should be; None if unknown."""

    seen: int
    assigned: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Whether a ledger is complete."""

    attempts: Attempts
    reasons: list[str]
    """What is missing; empty if it is complete."""
    estimated: int = 0
    """Reads of branches whose re-read bytes are estimated from the mean basket size."""

    outside: str | None = None
    """What is no part of the run by intention."""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.reasons

    def __str__(self) -> str:
        seen, assigned = self.attempts
        recorded = (
            f"{' of '.join(number(counted) for counted in self.attempts if counted is not None)} attempts left a record"
        )
        if self.complete and assigned is not None and seen < assigned:
            # lost or cancelled before a thread was free for them: there is nothing to record
            recorded = f"{number(seen)} attempts are accounted for, {number(assigned - seen)} others never started"
        complete = "Complete" if self.complete else f"Incomplete: {'; '.join(self.reasons)}"
        estimated = f" Re-read bytes are estimated for {number(self.estimated)} reads of branches."
        outside = f" {self.outside[0].upper()}{self.outside[1:]}." if self.outside else ""
        return f"{complete}; {recorded}.{estimated if self.estimated else ''}{outside}"


def attempts_of_calls(run: Run, chunks: Table, counted: Table) -> tuple[Attempts, list[str]]:
    """Chunks that ended, of those that Runner calls submitted, and what is wrong if the numbers differ.

    A chunk that coffea skips ends without a result. Functions without a Runner submit nothing: each of them leaves its
    record as it returns.
    """
    calls = [call for call in run.calls if not call.id.startswith(OF_TASKS) and call not in lost_calls(run)]
    ended = pa.concat_tables([counted.select(["call"]), with_outcome(chunks, (SKIPPED,)).select(["call"])])
    if run.calls and not calls:
        return Attempts(len(chunks), None), []
    numbers = [call.chunks if call.outcome == FINISHED else None for call in calls]
    if not calls or None in numbers:
        return Attempts(len(chunks), None), ["the number of attempts of chunks that started is unknown"]
    of_functions = pc.sum(pc.starts_with(pc.fill_null(ended["call"], ""), OF_TASKS), min_count=0).as_py()
    return compared(sum(number or 0 for number in numbers), len(ended) - of_functions, "chunks")


def compared(assigned: int, ended: int, what: str, seen: int | None = None) -> tuple[Attempts, list[str]]:
    """What is wrong if fewer things left a record (`seen`, by default those that ended) than were submitted, or more
    ended."""
    seen = ended if seen is None else seen
    reasons = [f"{assigned - seen} of {assigned} {what} left no record"] if seen < assigned else []
    if not reasons and ended > assigned:
        reasons.append(f"{ended} {what} finished, of {assigned} submitted")
    return Attempts(ended, assigned), reasons


class Ledger(Mapping[str, Amount], Presented, Generic[Amount]):
    """Amounts by class; without a ledger it is empty, and `absent` has the reason."""

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[Unit]
    total: Amount | None
    """Sum of all classes; None without a ledger."""

    certificate: Certificate
    absent: str | None
    _classes: Mapping[str, Amount]

    def __getitem__(self, name: str) -> Amount:
        if name not in self._classes:
            raise KeyError(self.absent or unknown(f"class of the {self.name}", name, self._classes))
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.absent or dict(self._classes)}>"

    @property
    def residual(self) -> Amount | None:
        """Total minus the classes; None without a ledger."""
        return self._classes.get(RESIDUAL)

    def measured(self, name: str) -> Amount:
        """Amount of a class.

        Raises
        ------
        NotMeasuredError
            If it was not measured.
        """
        return self[name]

    def sourced(self, amount: Amount | None) -> Sourced:
        """An amount with this ledger as its source, including what the ledger lacks."""
        reasons = self.certificate.reasons
        return Sourced(amount, f"{self.name}, incomplete: {'; '.join(reasons)}" if reasons else self.name)

    def sheets(self) -> list[Sheet]:
        """Classes with amounts and shares of the total, and a note on completeness."""
        if self.absent is not None:
            return [Sheet(title=self.title, lead=[absence(self.absent)])]
        columns = LABELS, Column("amount", self.unit), Column("share", FRACTION, bars=True)
        total: float | None = self.total
        bars = [bar_of(self, self.unit, f"{self.unit.text(total)} in all", total)] if total else []
        return [
            Sheet(title=self.title, columns=columns, rows=self._rows(), notes=self._notes(), form="plain", bars=bars)
        ]

    def _rows(self) -> list[tuple[Cell, ...]]:
        small = self._small()
        total: float | None = self.total
        rows: list[tuple[Cell, ...]] = [
            (
                LABELS_OF.get(name, name),
                Reason(NOT_MEASURED) if amount is None else amount,
                AmountCell(amount / total, FRACTION, share_text(amount / total))
                if total and amount is not None
                else "",
            )
            for name, amount in self.items()
            if name not in small
        ]
        return [*rows, (TOTAL, self.total, FRACTION.text(1) if self.total else "")]

    def _small(self) -> list[str]:
        """Classes that have next to nothing, or nothing."""
        total: float | None = self.total
        least = SMALLEST_SHARE * (total or 0.0)
        return [name for name, amount in self.items() if amount is not None and (not amount or abs(amount) < least)]

    def _notes(self) -> list[str]:
        """Notes on completeness, and on classes without a row."""
        small = ", ".join(LABELS_OF.get(name, name) for name in self._small())
        beginning = f"Less than {FRACTION.text(SMALLEST_SHARE)}" if self.total else "Zero"
        return [str(self.certificate), *([f"{beginning}: {small}."] if small else [])]


def amount_of(name: str, ledger: Ledger[Any]) -> Sourced:
    """Amount of a class as a metric."""
    return ledger.sourced(ledger.measured(name))


def bar_of(classes: Mapping[str, Any], unit: Unit, title: str, total: float, longest: float | None = None) -> Drawn:
    """Classes of a ledger as parts of a bar, those of a family next to each other.

    Parameters
    ----------
    title
        What stands above it.
    total
        What the classes sum to.
    longest
        Amount of a bar of full length; `total` by default.
    """
    ordered = sorted((name for name in classes if name in FAMILY_OF), key=lambda name: FAMILIES.index(FAMILY_OF[name]))
    parts = [_part(name, classes[name], unit, total) for name in ordered if (classes[name] or 0) > 0]
    return drawn(title, "", parts, total / (longest or total))


def _part(name: str, amount: float, unit: Unit, total: float) -> Segment:
    """A class, which has a name below the bar where it is large enough to be looked for."""
    label, text = LABELS_OF.get(name, name), unit.text(amount)
    shown = label if amount >= NAMED * total else ""
    return segment(FAMILY_OF[name], amount / total, shown, text, details=f"{label} {text}")
