"""What the ledgers share: classes with their amounts, a residual, and a certificate of completeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from roastcoffea.report.html import Html, bar, paragraph, table
from roastcoffea.units import Unit, number, share_text

RESIDUAL: Final = "residual"
TOTAL: Final = "total"

Amount = TypeVar("Amount", bound="float | None")
NOT_KNOWN: Final = "-"
NOT_MEASURED: Final = "not measured"


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

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.reasons

    def __str__(self) -> str:
        seen, assigned = self.attempts
        attempts = number(seen) if assigned is None else f"{number(seen)} of {number(assigned)}"
        complete = "Complete" if self.complete else f"Incomplete: {'; '.join(self.reasons)}"
        line = f"{complete}; {attempts} attempts left a record."
        if self.estimated:
            line += f" In {number(self.estimated)} reads of branches re-read bytes are estimated."
        return line


class Ledger(Mapping[str, Amount], Generic[Amount]):
    """Amounts by class; where there is no ledger it is empty, and `absent` has the reason."""

    def __init__(self, classes: Mapping[str, Amount], certificate: Certificate, absent: str | None) -> None:
        self.certificate = certificate
        self.absent = absent
        self._classes = classes

    def __getitem__(self, name: str) -> Amount:
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.absent or dict(self._classes)}>"

    def html_table(self, total: Amount | None, unit: Unit) -> Html:
        """Classes but those of nothing, with their shares of the total; the reason where there is no ledger."""
        if self.absent is not None:
            return paragraph(f"not measured: {self.absent}", quiet=True)
        rows = [_row(name, amount, total, unit) for name, amount in self.items() if amount != 0 or name == RESIDUAL]
        rows.append((TOTAL, NOT_KNOWN if total is None else unit.text(float(total)), "", Html("")))
        return Html(table(("", "amount", "share", ""), rows) + paragraph(str(self.certificate), quiet=True))

    @property
    def residual(self) -> Amount | None:
        """Total less the classes; None where there is no ledger."""
        return self._classes.get(RESIDUAL)


def _row(name: str, amount: float | None, total: float | None, unit: Unit) -> tuple[str, str, str, Html]:
    """Cells of a class: name, amount, share of the total, and a bar."""
    if amount is None or not total:
        return name, NOT_MEASURED if amount is None else unit.text(amount), "", Html("")
    return name, unit.text(amount), share_text(amount / total), bar(amount / total)
