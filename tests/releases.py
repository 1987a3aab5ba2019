"""What only later releases of coffea do: marks of tests that need it."""

from __future__ import annotations

import coffea
import pytest

RELEASE = tuple(map(int, coffea.__version__.split(".")[:2]))

needs_retries = pytest.mark.skipif(RELEASE < (2026, 9), reason="coffea before 2026.9 repeats attempts on Dask alone")
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
