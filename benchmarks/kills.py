"""Kill processes that overwrite a measurement, at random moments: under its name there must always be a whole one.

    python benchmarks/kills.py [KILLS]

Each process saves one measurement after the other under the same name, and is killed with SIGKILL at a random moment.
What is loaded then must be the last one that it reported, or the one after it; a list must have that one and nothing
else; and when all is over, the next save must find all that the killed ones left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from itertools import count
from pathlib import Path

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import FINISHED, Environment, Run
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.storage.store import list_runs, load_run

NAME = "measurement"
LONGEST_WAIT = 0.1
"""Seconds between a process's first word and its end, at the most: some ten saves."""

SEED = 20260301
WORD = 8
"""Bytes of the number of a save."""


def measurement(number: int) -> Measurement:
    """A small measurement that tells its number in `run.json` and in its tables."""
    return Measurement(
        Run(
            id=str(number),
            name=None,
            start=1e9,
            stop=1e9 + 1,
            outcome=FINISHED,
            error=None,
            backend="local",
            environment=Environment(versions={}, client_host=None),
            chunks=table_of_rows(CHUNK_COLUMNS, [{"id": number, "dataset": str(number)}] * 100),
            tasks=table_of_rows(TASK_COLUMNS, [{"key": str(number)}] * 100),
        )
    )


def save_on_and_on(folder: Path, first: int, pipe: int) -> None:
    """Save until killed, and tell of each measurement that is saved."""
    for number in count(first):
        measurement(number).save(folder, NAME, overwrite=True)
        os.write(pipe, number.to_bytes(WORD, "little"))


def killed_save(folder: Path, first: int, wait: float) -> int:
    """Number of the last save that a process told of before it was killed."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Arrow has threads by now; the child needs none of them, and is killed anyway
        warnings.filterwarnings("ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning)
        process = os.fork()
    if process == 0:
        try:
            os.close(reads)
            save_on_and_on(folder, first, writes)
        finally:
            os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        begun = pipe.read(WORD)
        time.sleep(wait)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        told = begun + pipe.read()
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise SystemExit(f"a process that saves ended by itself, with {status}")
    return int.from_bytes(told[-WORD:], "little")


def number_of(folder: Path) -> int:
    """Number of the measurement that is found, all of whose parts must tell it."""
    run = load_run(folder / NAME)
    parts = {run.id, *run.chunks["dataset"].unique().to_pylist(), *run.tasks["key"].unique().to_pylist()}
    if len(parts) != 1:
        raise SystemExit(f"parts of several measurements: {parts}")
    return int(run.id)


def hidden_in(folder: Path) -> list[str]:
    """Names of what killed processes left."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def main() -> None:
    """Kill, look, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    given = parser.parse_args()
    moments = random.Random(SEED)
    seen: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        last = 0
        for _ in range(given.kills):
            wait = moments.uniform(0, LONGEST_WAIT)
            told = killed_save(folder, last + 1, wait)
            seen["left-overs"] += bool(hidden_in(folder))
            seen["found under a hidden name"] += not (folder / NAME).exists()
            last = number_of(folder)
            if last not in (told, told + 1):
                raise SystemExit(f"{last} was found after {told} had been saved")
            seen["old" if last == told else "new"] += 1
            if [run.name for run in list_runs(folder)] != [NAME]:
                raise SystemExit(f"listed: {list_runs(folder)}")
        measurement(last + 1).save(folder, NAME, overwrite=True)
        if hidden_in(folder):
            raise SystemExit(f"left: {hidden_in(folder)}")
    print(f"{given.kills} kills in {time.monotonic() - began:.0f} s: always a whole measurement, and nothing is left")
    print(", ".join(f"{what} {number}" for what, number in sorted(seen.items())))


if __name__ == "__main__":
    main()
