"""Time of `roastcoffea inspect`: 1,000 files over HTTP, and three broken ones, on the cores of this machine.

`python benchmarks/inputs.py [--files 1000] [--from NANOAOD.root]` writes files of 60 branches, else copies of a given
file with a UUID each, serves them from a process of its own, and prints seconds and CPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import uproot
from shared_storage import Rates, shared_storage

from roastcoffea.studies.inspection import inspect


def written(folder: Path, number: int, source: Path | None) -> list[str]:
    """Names of this many different files, and of three broken ones."""
    names = [f"{place}.root" for place in range(number)]
    if source is None:
        source = folder / "first.root"
        branches = [f"branch_{place}" for place in range(60)]
        with uproot.recreate(source) as file:
            tree = file.mktree("Events", dict.fromkeys(branches, "float32"))
            for _ in range(3):
                tree.extend(dict.fromkeys(branches, np.zeros(1_000, np.float32)))
    content = bytearray(source.read_bytes())
    with uproot.open(source) as file:
        uuid = content.index(file.file.uuid.bytes)
    for place, name in enumerate(names):
        content[uuid : uuid + 4] = place.to_bytes(4)
        (folder / name).write_bytes(content)
    (folder / "cut.root").write_bytes(content[:-500])
    (folder / "zero.root").touch()
    (folder / "page.root").write_text("<html>" + "Log in. " * 1_000)
    return [*names, "cut.root", "zero.root", "page.root"]


def main() -> None:
    """Write, serve, inspect, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of each answer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        names = written(Path(name), given.files, given.source)
        with shared_storage(Path(name), Rates(1e9, 1e8, given.latency)) as url:
            began, cpu = time.monotonic(), time.process_time()
            found = inspect({"data": [f"{url}/{each}" for each in names]}, "Events")
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    (row,) = found.rows
    (branches,) = {len(one.header.branches) for one in found.files if one.header is not None}
    each = f"{1e3 * cpu / len(names):.1f} ms each"
    print(f"{len(names)} files of {branches} branches: {seconds:.1f} s, {cpu:.1f} s of CPU, {each}")
    print(f"{row['readable']} readable, {len(found.dropped)} to drop")


if __name__ == "__main__":
    main()
