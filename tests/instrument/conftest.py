"""A chunk that is open, and its clock."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from stored import Clock

from roastcoffea.instrument import track
from roastcoffea.instrument.track import OpenChunk, open_chunk


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(track, "time", clock)
    return clock


@pytest.fixture
def chunk() -> Iterator[OpenChunk]:
    """A chunk that is open on this thread; nothing of it may stay in the process."""
    before = states()  # a thread of a cluster that has closed may still run a chunk
    chunk = OpenChunk()
    with open_chunk(chunk):
        yield chunk
    assert states() <= before


def states() -> set[str]:
    """Names under which the package keeps what is open in this process."""
    return {name for name in sys.modules if name.startswith("_roastcoffea")}
