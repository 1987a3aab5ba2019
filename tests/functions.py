"""Functions that tasks run without a Runner; workers import this module."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import awkward as ak
import uproot

from roastcoffea import measured, track_time


@measured
def total(path: str) -> float:
    """Sum of a branch, in a function that its own module has decorated."""
    with uproot.open(path) as file:
        return float(ak.sum(file["Events"]["f0"].array()))


@measured
def first_event(path: str) -> int:
    """Number of the first event of a sample file."""
    with uproot.open(path) as file:
        return int(file["Events/event"].array()[0])


def materialize(path: str, branches: list[str]) -> dict[str, Any]:
    """Read chosen branches of a file and tell how much that was, in the shape of scripts that test 200 Gbit/s."""
    with uproot.open(path, filter_name=branches) as file:
        tree = file["Events"]
        entries = tree.num_entries
        sums = [float(ak.sum(tree[name].array())) for name in branches]
        read = file.file.source.num_requested_bytes
    return {"file": path, "entries": entries, "read": read, "sums": sums}


def mean_of(path: str, branch: str) -> float:
    """A mean over NanoEvents, as `dask.delayed` runs it."""
    from coffea.nanoevents import BaseSchema, NanoEventsFactory

    events = NanoEventsFactory.from_root({path: "Events"}, schemaclass=BaseSchema, metadata={"dataset": "dy"}).events()
    return float(ak.mean(events[branch]))


def slow(path: str, seconds: float) -> dict[str, Any]:
    """Read a branch and sleep."""
    result = materialize(path, ["f0"])
    time.sleep(seconds)
    return result


def patient(path: str, sign: str) -> dict[str, Any]:
    """Read a branch and wait until a file exists."""
    result = materialize(path, ["f0"])
    while not Path(sign).exists():
        time.sleep(0.01)
    return result


def increment(number: int) -> int:
    """Read nothing."""
    return number + 1


def quiet(number: int) -> int:
    """Read nothing, and name a section."""
    with track_time("quiet"):
        return number


def reads_and_fails(path: str) -> None:
    """Read a branch and fail."""
    materialize(path, ["f0"])
    raise LookupError("planted")


def tolerant(paths: list[str]) -> dict[str, Any]:
    """Read a branch of each file, and go on where one cannot be opened."""
    sums, errors = [], []
    for path in paths:
        try:
            with uproot.open(path) as file:
                sums.append(float(ak.sum(file["Events"]["f0"].array())))
        except OSError as error:
            errors.append(error)
    return {"sums": sums, "errors": errors}
