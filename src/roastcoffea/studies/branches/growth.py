"""Amounts by the number of branches that an analysis reads: how they grow, and which go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import BYTE, COUNT, SECOND, Unit

if TYPE_CHECKING:
    import pandas as pd


class Amount(NamedTuple):
    """A column of the table: what it is called, its unit and meaning."""

    label: str
    unit: Unit
    meaning: str


COLUMNS: Final[Mapping[str, Amount]] = {
    "branches_asked": Amount("asked", COUNT, "what the processor was made with"),
    "branches_read": Amount("branches", COUNT, "different branches that were read, offsets of jagged ones among them"),
    "bytes_read": Amount("bytes read", BYTE, "requested by chunks (coffea's bytesread)"),
    "bytes_payload": Amount("payload", BYTE, "of these, of baskets, each counted once"),
    "bytes_reread": Amount("re-read", BYTE, "of these, of baskets that had been read before"),
    "bytes_metadata": Amount("metadata", BYTE, "of these, of headers, keys, trees"),
    "bytes_uncompressed": Amount("uncompressed", BYTE, "what was read, after decompression"),
    "bytes_results": Amount("results", BYTE, "Dask's nbytes of all chunks' results, as coffea sends them"),
    "bytes_output": Amount("output", BYTE, "size of the merged output in memory"),
    "elapsed_time_seconds": Amount("wall", SECOND, "wall time"),
}

SCALING: Final = ("branches_read", "bytes_read", "bytes_payload", "bytes_uncompressed", "bytes_results", "bytes_output")
"""Columns whose growth is compared."""

FEWEST_COUNTS: Final = 3
"""Different counts from which on a correlation says anything: two points always lie on a line."""


@dataclass(frozen=True)
class Growth:
    """Amounts of an analysis: `table` has a row for each number of branches."""

    table: pd.DataFrame

    @cached_property
    def ratios(self) -> pd.DataFrame:
        """How many times each amount is that of the first count; missing where that is 0 or was not measured."""
        amounts = self.table[list(SCALING)].astype(float)
        return amounts / amounts.iloc[0].where(amounts.iloc[0] > 0)

    @cached_property
    def correlations(self) -> dict[str, float | None]:
        """Correlation of each amount with the number of branches that were read; None where one does not vary."""
        return {name: self.correlation("branches_read", name) for name in SCALING[1:]}

    def correlation(self, one: str, other: str) -> float | None:
        """Pearson's correlation of two columns; None of two counts, or where one is unknown or constant."""
        first, second = self.amounts(one), self.amounts(other)
        if self.few or np.isnan(first).any() or np.isnan(second).any() or not (np.ptp(first) and np.ptp(second)):
            return None
        return float(np.corrcoef(first, second)[0, 1])

    @property
    def few(self) -> bool:
        """Whether there are too few different counts to say what goes together."""
        return bool(self.table["branches_asked"].nunique() < FEWEST_COUNTS)

    def amounts(self, name: str) -> Numbers:
        """Column as floats; NaN for what was not measured."""
        return np.asarray(self.table[name].to_numpy(dtype=np.float64, na_value=np.nan))

    def known(self, names: Sequence[str]) -> dict[str, Numbers]:
        """Those of the columns that were measured for every count."""
        columns = {name: self.amounts(name) for name in names}
        return {name: values for name, values in columns.items() if not np.isnan(values).any()}

    def growth(self, name: str) -> float | None:
        """How many times the last amount is the first; None where that is not known."""
        last = float(self.ratios[name].iloc[-1])
        return None if np.isnan(last) else last
