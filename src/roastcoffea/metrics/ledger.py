"""What the ledgers share: classes with their amounts, a residual, and a certificate of completeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

RESIDUAL: Final = "residual"
TOTAL: Final = "total"

Amount = TypeVar("Amount")


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

    @property
    def residual(self) -> Amount | None:
        """Total less the classes; None where there is no ledger."""
        return self._classes.get(RESIDUAL)
