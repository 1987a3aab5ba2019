"""The base classes of all ledgers, and the certificate of their completeness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.errors import unknown
from roastcoffea.metrics.catalogue import NotMeasuredError, Sourced
from roastcoffea.metrics.facts import known_sum, lost_calls, with_outcome
from roastcoffea.metrics.phases import FAILED, FAMILIES, FAMILY_OF, RESIDUAL, TOTAL, ByteClass, TimeClass
from roastcoffea.metrics.statistics import Flags, Integers
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
from roastcoffea.units import BYTE, FRACTION, SMALLEST_SHARE, Unit, number, share_text

if TYPE_CHECKING:
    import pandas as pd

Amount = TypeVar("Amount", bound="float | None")


LABELS_OF: Final = {RESIDUAL: UNACCOUNTED}
"""Labels that tables and bars show instead of class names."""


class Attempts(NamedTuple):
    """Number of attempts that have a record, and number of attempts expected (None if unknown)."""

    seen: int
    assigned: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Completeness of a ledger, and reasons for any gaps."""

    attempts: Attempts
    reasons: list[str]
    """Descriptions of missing records. The list is empty if the ledger is complete."""
    estimated: int = 0
    """Number of branch reads for which re-read bytes were estimated from the mean basket size."""

    outside: str | None = None
    """Note about data or work not covered by the ledger. It does not make the ledger incomplete."""

    @property
    def complete(self) -> bool:
        """Whether the ledger is free of known gaps."""
        return not self.reasons

    def __str__(self) -> str:
        seen, assigned = self.attempts
        recorded = (
            f"{' of '.join(number(counted) for counted in self.attempts if counted is not None)} attempts left a record"
        )
        if self.complete and assigned is not None and seen < assigned:
            # attempts that were lost or cancelled before a thread was free have no record
            recorded = f"{number(seen)} attempts are accounted for, {number(assigned - seen)} others never started"
        complete = "Complete" if self.complete else f"Incomplete: {'; '.join(self.reasons)}"
        estimated = f" Re-read bytes are estimated for {number(self.estimated)} branch reads."
        outside = f" {self.outside[0].upper()}{self.outside[1:]}." if self.outside else ""
        return f"{complete}; {recorded}.{estimated if self.estimated else ''}{outside}"


def attempts_of_calls(run: Run, chunks: Table, counted: Table) -> tuple[Attempts, list[str]]:
    """Compare the number of chunks that finished with the number submitted by Runner calls.

    Returns both numbers, and a message if they differ. A chunk that coffea skips finishes without a result. Functions
    run without a Runner submit no chunks, but each function call leaves a record when it returns.
    """
    calls = [call for call in run.calls if not call.id.startswith(OF_TASKS) and call not in lost_calls(run)]
    ended = pa.concat_tables([counted.select(["call"]), with_outcome(chunks, (SKIPPED,)).select(["call"])])
    if run.calls and not calls:
        return Attempts(len(chunks), None), []
    numbers = [call.chunks if call.outcome == FINISHED else None for call in calls]
    if not calls or None in numbers:
        return Attempts(len(chunks), None), ["the number of chunk attempts that started is unknown"]
    of_functions = known_sum(pc.starts_with(ended["call"].cast(pa.string()), OF_TASKS))
    return compared(sum(number or 0 for number in numbers), len(ended) - of_functions, "chunks")


def compared(assigned: int, ended: int, what: str, seen: int | None = None) -> tuple[Attempts, list[str]]:
    """Return attempt counts, and a message if the numbers differ.

    They differ if items left no record, or if more items finished than were submitted.
    """
    seen = ended if seen is None else seen
    reasons = [f"{assigned - seen} of {assigned} {what} left no record"] if seen < assigned else []
    if not reasons and ended > assigned:
        reasons.append(f"{ended} {what} finished, but only {assigned} were submitted")
    return Attempts(ended, assigned), reasons


class Ledger(Mapping[str, Amount], Presented, Generic[Amount]):
    """Amounts by class. If nothing was measured, the mapping is empty and `absent` holds the reason."""

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[Unit]
    total: Amount | None
    """Sum of all classes, or None if nothing was measured."""

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
        """Total minus all other classes, or None if nothing was measured."""
        return self._classes.get(RESIDUAL)

    def measured(self, name: str) -> Amount:
        """Amount in a class.

        Raises
        ------
        NotMeasuredError
            If the class was not measured.
        """
        return self[name]

    def sourced(self, amount: Amount | None) -> Sourced:
        """Return an amount with this ledger as its source, and list any gaps in the ledger."""
        reasons = self.certificate.reasons
        return Sourced(amount, f"{self.name}, incomplete: {'; '.join(reasons)}" if reasons else self.name)

    def sheets(self) -> list[Sheet]:
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
        total: float | None = self.total
        least = SMALLEST_SHARE * (total or 0.0)
        return [name for name, amount in self.items() if amount is not None and (not amount or abs(amount) < least)]

    def _notes(self) -> list[str]:
        small = ", ".join(LABELS_OF.get(name, name) for name in self._small())
        beginning = f"Less than {FRACTION.text(SMALLEST_SHARE)}" if self.total else "Zero"
        return [str(self.certificate), *([f"{beginning}: {small}."] if small else [])]


class LedgerOfBytes(Ledger["int | None"]):
    """Bytes by class, added up from rows with a column for each class.

    The value of a class is None if the class was not measured.
    """

    unit: ClassVar[Unit] = BYTE
    why_unmeasured: ClassVar[str]
    """Why a class was not measured, unless the certificate gives a reason."""
    unmeasured: tuple[str, ...]

    def _add_up(self, rows: Table, names: Sequence[str]) -> None:
        self.total = None if self.absent else int(known_sum(rows[TOTAL]))
        sums = {name: None if name in self.unmeasured else int(known_sum(rows[name])) for name in names}
        self._classes = {} if self.absent else sums

    def measured(self, name: str) -> int:
        """Number of bytes in a class.

        Raises
        ------
        NotMeasuredError
            If the class was not measured.
        """
        if (amount := self[name]) is None:
            reasons = [*self.certificate.reasons, self.why_unmeasured]
            raise NotMeasuredError(f"{name} was not measured: {reasons[0]}")
        return amount

    def _frame(self, what: str, table: Table) -> pd.DataFrame:
        frame: pd.DataFrame = table.to_pandas().set_index(what)
        frame[[*self.unmeasured]] = None
        if self.absent:
            frame.attrs["absent"] = self.absent
        return frame


def metrics_of_classes(
    ledger: str, unit: Unit, classes: Iterable[TimeClass | ByteClass], of_ledger: Callable[..., Any]
) -> None:
    """Define a metric for each class of a ledger. `of_ledger` is `metric` with the ledger's group and source."""
    for one in classes:
        formula = f'{ledger}["{one.name}"]'
        label, alias = LABELS_OF.get(one.name, one.name), getattr(one, "alias", None)
        register = of_ledger(
            unit, label, formula, name=one.metric_name, meaning=one.meaning, alias=alias, inputs=(ledger,)
        )
        register(partial(amount_of, one.name))


def classified(
    names: Sequence[str], places: Table, total: Integers, counted: Flags, classes: Mapping[str, Integers | None]
) -> Table:
    """Rows with the bytes of each class, the residual and the total, after the columns of `places`.

    The bytes of attempts that counted are split into `classes`; a class given as None receives all of them. The bytes
    of all other attempts belong to the class "failed".
    """
    found = {name: np.where(counted, total if amounts is None else amounts, 0) for name, amounts in classes.items()}
    found[FAILED] = np.where(counted, 0, total)
    found[RESIDUAL] = total - np.sum(list(found.values()), axis=0, dtype=np.int64)
    own = {name: places[name] for name in places.column_names}
    return pa.table(own | dict.fromkeys(names, np.zeros(len(total), np.int64)) | found | {TOTAL: total})


def amount_of(name: str, ledger: Ledger[Any]) -> Sourced:
    return ledger.sourced(ledger.measured(name))


def bar_of(classes: Mapping[str, Any], unit: Unit, title: str, total: float, longest: float | None = None) -> Drawn:
    """Bar with one segment for each ledger class, grouped by family.

    A full-length bar represents the amount `longest`, or `total` by default.
    """
    ordered = sorted((name for name in classes if name in FAMILY_OF), key=lambda name: FAMILIES.index(FAMILY_OF[name]))
    parts = [_part(name, classes[name], unit, total) for name in ordered if (classes[name] or 0) > 0]
    return drawn(title, "", parts, total / (longest or total))


def _part(name: str, amount: float, unit: Unit, total: float) -> Segment:
    label, text = LABELS_OF.get(name, name), unit.text(amount)
    shown = label if amount >= NAMED * total else ""
    return segment(FAMILY_OF[name], amount / total, shown, text, details=f"{label} {text}")
