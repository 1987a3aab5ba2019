"""What only some releases of coffea do: marks of tests that need it; and syntax trees of the package, each
parsed once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import coffea
import pytest
import uproot
from coffea.processor import ProcessorABC

RELEASE = tuple(map(int, coffea.__version__.split(".")[:2]))

NO_RETRIES: dict[str, Any] = {"retries": 0} if RELEASE >= (2025, 11) else {}
"""Options of executors with which an attempt is not repeated: before 2025.11 only Dask's repeat any."""

READS_ON = tuple(map(int, uproot.__version__.split(".")[:3])) < (5, 7, 6)
"""Whether uproot also reads the basket that begins where a range of entries ends."""

needs_exact_ranges = pytest.mark.skipif(READS_ON, reason="uproot before 5.7.6 reads the basket behind a range as well")
needs_datasets = pytest.mark.skipif(RELEASE < (2025, 9), reason="coffea before 2025.9 opens files of two datasets once")
needs_checkpoints = pytest.mark.skipif(RELEASE < (2025, 10), reason="coffea before 2025.10 has no checkpoints")
needs_kinds_of_skips = pytest.mark.skipif(
    RELEASE < (2025, 11), reason="coffea before 2025.11 skips what it takes for errors of storage"
)
needs_rntuples = pytest.mark.skipif(RELEASE < (2025, 11), reason="coffea before 2025.11 has no events of an RNTuple")
needs_options = pytest.mark.skipif(RELEASE < (2026, 4), reason="coffea before 2026.4 opens files without options first")
needs_preloads = pytest.mark.skipif(RELEASE < (2026, 4), reason="coffea before 2026.4 preloads nothing")
needs_parquet = pytest.mark.skipif(RELEASE < (2026, 5), reason="coffea before 2026.5 has no Runner for Parquet files")
needs_retries = pytest.mark.skipif(RELEASE < (2026, 9), reason="coffea before 2026.9 repeats attempts on Dask alone")
needs_caches = pytest.mark.skipif(RELEASE < (2025, 11), reason="coffea before 2025.11 has no cache of arrays")
needs_own_cluster = pytest.mark.skipif(
    RELEASE < (2026, 9), reason="coffea before 2026.9 makes a cluster for each step of a Runner call"
)
needs_results = pytest.mark.skipif(RELEASE < (2026, 7), reason="coffea before 2026.7 has no results as a type")
needs_whole_columns = pytest.mark.skipif(
    RELEASE < (2026, 9), reason="coffea before 2026.9 requests other ranges of Parquet files than their columns"
)
needs_merge_pools = pytest.mark.skipif(
    RELEASE < (2026, 9), reason="coffea before 2026.9 cannot merge in a pool that a function makes"
)
needs_no_compression = pytest.mark.skipif(
    RELEASE < (2026, 9), reason="coffea before 2026.9 fails where processor_compression is None"
)


class Processor(ProcessorABC):
    """A processor without `postprocess`, which coffea before 2025.10 demands."""

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class OfFunction(Processor):
    """A function as a processor, for a coffea that takes no functions."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def process(self, events: Any) -> Any:
        return self.function(events)


def as_processor(function: Callable[[Any], Any]) -> Any:
    """The function itself where coffea takes one."""
    return function if RELEASE >= (2025, 10) else OfFunction(function)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
