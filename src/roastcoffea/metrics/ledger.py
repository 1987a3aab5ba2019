"""What the ledgers share: classes with their amounts, a residual, and a certificate of completeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from roastcoffea.errors import unknown
from roastcoffea.metrics.catalogue import Sourced
from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.report.phrases import NOT_MEASURED, absence
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import LABELS, Cell, Column, Reason, Sheet
from roastcoffea.report.sheets import Amount as AmountCell
from roastcoffea.units import FRACTION, Unit, number, share_text

Amount = TypeVar("Amount", bound="float | None")


class Attempts(NamedTuple):
    """Attempts that left a record, and those that there were; None where nobody counted them."""

    seen: int
    assigned: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Whether a ledger holds all that it should."""

    attempts: Attempts
    reasons: list[str]
    """What is not in it; empty where it is complete."""
    estimated: int = 0
    """Reads of branches in which first reads were told from repeated ones by the mean size of baskets."""

    outside: str | None = None
    """What is no part of the run by intention."""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.reasons

    def __str__(self) -> str:
        attempts = " of ".join(number(counted) for counted in self.attempts if counted is not None)
        complete = "Complete" if self.complete else f"Incomplete: {'; '.join(self.reasons)}"
        estimated = f" In {number(self.estimated)} reads of branches re-read bytes are estimated."
        outside = f" {self.outside[0].upper()}{self.outside[1:]}." if self.outside else ""
        return f"{complete}; {attempts} attempts left a record.{estimated if self.estimated else ''}{outside}"


class Ledger(Mapping[str, Amount], Presented, Generic[Amount]):
    """Amounts by class; where there is no ledger it is empty, and `absent` has the reason."""

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[Unit]
    shows_zeros: ClassVar[bool] = False
    """Whether a class that did not occur has a row where the ledger is shown."""

    total: Amount | None
    """What the classes sum to; None where there is no ledger."""

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
        """Total less the classes; None where there is no ledger."""
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
        """An amount as one of this ledger, with what that lacks."""
        reasons = self.certificate.reasons
        return Sourced(amount, f"{self.name}, incomplete: {'; '.join(reasons)}" if reasons else self.name)

    def sheets(self) -> list[Sheet]:
        """Classes with their amounts and shares of the total, and below them what is missing."""
        if self.absent is not None:
            return [Sheet(title=self.title, lead=[absence(self.absent)])]
        columns = LABELS, Column(name="amount", unit=self.unit), Column(name="share", unit=FRACTION, bars=True)
        return [Sheet(title=self.title, columns=columns, rows=self._rows(), notes=self._notes(), form="plain")]

    def _rows(self) -> list[tuple[Cell, ...]]:
        shown = {name: amount for name, amount in self.items() if self.shows_zeros or amount != 0 or name == RESIDUAL}
        rows = [
            (name, Reason(NOT_MEASURED) if amount is None else amount, self._share(amount))
            for name, amount in shown.items()
        ]
        return [*rows, (TOTAL, self.total, FRACTION.text(1) if self.total else "")]

    def _share(self, amount: float | None) -> Cell:
        """Share of the total."""
        total: float | None = self.total
        if amount is None or not total:
            return ""
        return AmountCell(amount / total, FRACTION, share_text(amount / total))

    def _notes(self) -> list[str]:
        """What has to be known to read the classes."""
        return [str(self.certificate)]
