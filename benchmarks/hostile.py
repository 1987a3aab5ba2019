"""Load thousands of damaged and crafted measurements: each is a measurement or one error that names the file.

    python benchmarks/hostile.py [MUTATIONS] [--seed SEED]

Measurements of this version, of each older schema and of 0.1.2 are changed in their bytes, their JSON and their tables,
and loaded. Each load has a second of CPU time and 200 MB. A process of its own loads them, so that what ends it is
found as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from compat.test_legacy import written
from saved_runs import Mutation, a_run, bombs, mutations

from roastcoffea import load
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.storage.store import list_runs, save_run

DATA = Path(__file__).parents[1] / "tests" / "data"
MOST_SECONDS = 1.0
MOST_BYTES = 200_000_000
LONGEST_LOAD = 60.0
"""Seconds after which a load is taken for one without end."""


def resident(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, or VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def load_on_request(pipe: Connection) -> None:
    """Load each folder that is named, and answer what came of it."""
    while (folder := pipe.recv()) is not None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, began = resident("VmRSS"), time.process_time()
        try:
            load(folder)
            outcome = "loaded"
        except RoastcoffeaError as error:
            outcome = "refused" if str(folder) in str(error) else f"an error that does not name the folder: {error}"
        except BaseException as error:  # noqa: BLE001  (this is what is looked for)
            outcome = f"{type(error).__module__}.{type(error).__qualname__}: {error}"[:300]
        seconds, memory = time.process_time() - began, resident("VmHWM") - before
        names = [run.name for run in list_runs(folder.parent)]
        if folder.name not in names:
            outcome = f"{outcome}; not listed"
        pipe.send((outcome, seconds, memory))


class Loader:
    """A process that loads, replaced when it ends."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=load_on_request, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def load(self, folder: Path) -> tuple[str, float, int]:
        """Outcome of a load, its seconds and its bytes."""
        self._pipe.send(folder)
        try:
            if self._pipe.poll(LONGEST_LOAD):
                found: tuple[str, float, int] = self._pipe.recv()
                return found
            outcome = "it does not end"
        except EOFError:
            outcome = "the process ended"
        self.close()
        self._start()
        return outcome, LONGEST_LOAD, 0

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def folders(place: Path) -> list[Path]:
    """Measurements of all versions, this one first."""
    ours = save_run(a_run(), place / "now", "run")
    older = [shutil.copytree(folder, place / folder.name / "run") for folder in sorted(DATA.glob("schema*"))]
    (place / "0.1.2").mkdir()
    return [ours, *older, written(place / "0.1.2" / "run")]


def cases(folders: list[Path], number: int, seed: int) -> Iterator[tuple[Path, Mutation]]:
    """Mutations with their folders: half of them of this version, and those that claim most."""
    ours, *older = folders
    yield from ((ours, each) for each in bombs({path.name: path.read_bytes() for path in ours.iterdir()}))
    yield from ((ours, each) for each in islice(mutations(ours, seed), number // 2))
    share = (number - number // 2) // max(len(older), 1)
    for folder in older:
        yield from ((folder, each) for each in islice(mutations(folder, seed), share))


def tried(folder: Path, mutation: Mutation, loader: Loader) -> tuple[str, float, int]:
    """What came of loading a folder with the mutation; it is as before then."""
    whole = {name: (folder / name).read_bytes() for name in mutation.files}
    try:
        for name, content in mutation.files.items():
            (folder / name).write_bytes(content)
        return loader.load(folder)
    finally:
        for name, content in whole.items():
            (folder / name).write_bytes(content)


def main() -> int:
    """Try them, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutations", type=int, nargs="?", default=5000)
    parser.add_argument("--seed", type=int, default=20260301)
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    number, failed, longest, largest, loader = 0, 0, 0.0, 0, Loader()
    with tempfile.TemporaryDirectory() as place:
        for folder, mutation in cases(folders(Path(place)), options.mutations, options.seed):
            number += 1
            outcome, seconds, memory = tried(folder, mutation, loader)
            good = outcome in {"loaded", "refused"} and seconds <= MOST_SECONDS and memory <= MOST_BYTES
            outcomes[outcome if outcome in {"loaded", "refused"} else "failed"] += 1
            longest, largest = max(longest, seconds), max(largest, memory)
            if not good:
                failed += 1
                print(
                    f"{folder.parent.name} {mutation.what}: {outcome}, {seconds:.2f} s, {memory / 1e6:.0f} MB",
                    flush=True,
                )
    loader.close()
    print(json.dumps(outcomes), f"longest {longest:.2f} s, most memory {largest / 1e6:.0f} MB")
    print(f"{number - failed} of {number} as they should be")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
