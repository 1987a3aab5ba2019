"""What releases of uproot from 5.6 on do differently. It runs on workers as well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

READS_ON: Final = "uproot before 5.7.6 also reads the basket behind each chunk; later releases do not"


def reads_on(version: str | None) -> bool:
    """Whether a release also reads the basket that begins where a range of entries ends."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return found is not None and tuple(map(int, found.groups())) < (5, 7, 6)


class ColumnReaders(NamedTuple):
    """Names of the methods with which an RNTuple reads a column, in a range of clusters and in one of them."""

    of_clusters: str
    """In a range of clusters."""
    of_cluster: str
    """In one cluster."""
    cluster: int
    """Place of the cluster among the arguments of the second."""

    def place(self, arguments: Sequence[Any]) -> tuple[int, int]:
        """Cluster and column that the second is called with."""
        return int(arguments[self.cluster]), int(arguments[1 - self.cluster])


def column_readers(ntuple: type) -> ColumnReaders:
    """How RNTuples of this class read columns, which changed with 5.7."""
    if hasattr(ntuple, "read_cluster_range"):
        return ColumnReaders("read_cluster_range", "read_cluster_pages", 0)
    return ColumnReaders("read_col_pages", "read_col_page", 1)
