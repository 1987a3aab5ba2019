from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import two_workers
from distributed import Client


@pytest.fixture(scope="module")
def shared_client() -> Iterator[Client]:
    """A cluster of its own: a monitor tells of all tasks, and other tests leave some."""
    with two_workers() as client:
        yield client
