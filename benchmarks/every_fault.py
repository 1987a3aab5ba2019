"""Every n-th fault: each write, sync, rename and new file of the smallest run fails once, for every n.

`python benchmarks/every_fault.py [--parts run recover] [--only N]` first counts the calls of a run without faults, and
then makes it anew for each of them and for each way in which it can fail: with an error, or, for writes, after half of
the bytes. In "run", a collector is opened, a Runner processes two chunks, and the measurement is saved twice. In
"recover", the process is killed before it leaves the collector, and another one recovers the journal, twice.

The output must be that of a run without a collector. Errors must be ours and name the file. Once saving or recovering
has succeeded, the measurement must have all chunks, and nothing else may be left in its folder. The exit status is 1
unless all hold.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner

import roastcoffea
from roastcoffea import MetricsCollector, RoastcoffeaError
from roastcoffea.cli import main
from roastcoffea.cli.sample import TREE, DijetProcessor, write_sample
from roastcoffea.storage.folders import tidy

EVENTS: Final = 200
ERRORS: Final = {
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EACCES,
    "replace": errno.EACCES,
    "mkdir": errno.ENOSPC,
    "open": errno.EMFILE,
    "utime": errno.EPERM,
    "ftruncate": errno.EIO,
}
"""What functions of `os` fail with."""


class Faults:
    """Counts calls that concern files in a folder, and lets one of them fail."""

    def __init__(self, folder: Path, number: int, short: bool) -> None:
        self.folder, self.number, self.short = str(folder), number, short
        self.calls: list[str] = []
        self.original = {name: getattr(os, name) for name in (*ERRORS, "fdopen")}

    def concerns(self, place: Any) -> bool:
        if isinstance(place, int):
            with suppress(OSError):
                place = Path(f"/proc/self/fd/{place}").readlink()
        return isinstance(place, str | os.PathLike) and os.path.abspath(place).startswith(self.folder)  # noqa: PTH100

    def due(self, name: str) -> bool:
        """Whether this call is to fail."""
        self.calls.append(name)
        return len(self.calls) - 1 == self.number

    def failing(self, name: str) -> Callable[..., Any]:
        original = self.original[name]

        def call(place: Any, *args: Any, **kwargs: Any) -> Any:
            # opening a file to read it is not a fault that a disk has when it is full
            counts = name != "open" or bool(args and args[0] & os.O_CREAT)
            if not (counts and self.concerns(place) and self.due(name)):
                return original(place, *args, **kwargs)
            if name == "write" and self.short:
                return original(place, bytes(args[0])[: max(len(args[0]) // 2, 1)])
            raise OSError(ERRORS[name], f"planted in {name}", os.fspath(place) if not isinstance(place, int) else None)

        return call

    def fdopen(self, descriptor: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode or not self.concerns(descriptor):
            return self.original["fdopen"](descriptor, mode, *args, **kwargs)
        return io.BufferedWriter(Raw(descriptor, self))

    @contextmanager
    def planted(self) -> Iterator[None]:
        changed = {name: self.failing(name) for name in ERRORS} | {"fdopen": self.fdopen}
        for name, each in changed.items():
            setattr(os, name, each)
        try:
            yield
        finally:
            for name, each in self.original.items():
                setattr(os, name, each)


class Raw(io.FileIO):
    """A file of which one write fails."""

    def __init__(self, descriptor: int, faults: Faults) -> None:
        super().__init__(descriptor, "wb")
        self.faults = faults

    def write(self, data: Any) -> int:
        if not self.faults.due("write"):
            return super().write(data)
        if self.faults.short:
            return super().write(bytes(data)[: max(len(data) // 2, 1)])
        raise OSError(errno.ENOSPC, "planted in write")


def analysed(fileset: Any) -> Any:
    runner = Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=EVENTS // 2, metadata_cache={})
    output = runner(fileset, treename=TREE, processor_instance=DijetProcessor())
    return {name: each["events"] for name, each in output.items()}


def tried(action: Callable[[], Any]) -> Any:
    """Result of an action that is repeated once if it fails with an error of ours."""
    try:
        return action()
    except RoastcoffeaError as error:
        if "\n" in str(error) or not str(error):
            raise AssertionError(f"not a line: {error!r}") from error
        return action()


def checked(measurement: Any, truth: Any) -> None:
    chunks = measurement.chunks
    events = chunks.groupby("dataset")["events"].sum().to_dict()
    assert events == truth, f"the measurement has {events}"


def run(faults: Faults, fileset: Any, truth: Any) -> None:
    folder = Path(faults.folder)
    with faults.planted():
        with MetricsCollector(name="smallest", profile=False, journal=folder / "journals") as collector:
            output = analysed(fileset)
        assert output == truth, f"the output is {output}"
        measurement = collector.measurement
        for _ in range(2):
            path = tried(partial(measurement.save, folder / "runs", "smallest", overwrite=True))
            assert path == folder / "runs" / "smallest", path
    checked(roastcoffea.load(path), truth)


def recover(faults: Faults, fileset: Any, truth: Any) -> None:
    folder = Path(faults.folder)
    killed = multiprocessing.get_context("fork").Process(target=die, args=(folder, fileset))
    killed.start()
    killed.join()
    command = ["recover", str(folder / "journals"), "--output", str(folder / "runs")]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err, faults.planted():
        status = [main(command) for _ in range(2)]
    texts = f"{status}, {out.getvalue()!r}, {err.getvalue()!r}"
    assert "Traceback" not in texts, texts
    (found,) = (folder / "runs").iterdir()
    checked(roastcoffea.load(found), truth)


def die(folder: Path, fileset: Any) -> None:
    with MetricsCollector(name="smallest", profile=False, journal=folder / "journals"):
        analysed(fileset)
        time.sleep(1.5)  # the journal is written each second
        os._exit(0)


PARTS: Final = {"run": run, "recover": recover}


def trial(part: str, faults: Faults, given: tuple[Any, Any], answers: Any) -> None:
    """A run with a fault, in a process of its own."""
    problem = ""
    try:
        PARTS[part](faults, *given)
    except BaseException:  # noqa: BLE001
        problem = traceback.format_exc(limit=-3)
    answers.send((problem, faults.calls))


def in_a_process(part: str, number: int, short: bool, given: tuple[Any, Any]) -> tuple[str, list[str]]:
    """What was wrong in a trial, and the calls that were counted."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=trial, args=(part, Faults(Path(folder), number, short), given, theirs))
        process.start()
        theirs.close()
        try:
            problem, calls = ours.recv() if ours.poll(60) else ("it hangs", [])
        except EOFError:
            problem, calls = "it died", []
        process.join(10)
        process.kill()
        runs, journals = Path(folder, "runs"), Path(folder, "journals")
        tidy(runs)  # as the next one who saves there does
        left = [*runs.glob(".*"), *(journals.iterdir() if journals.exists() else ())]
        return problem or ", ".join(f"{path.name} is left" for path in left), calls


def campaign() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--only", type=int, nargs="+")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bad: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        fileset = write_sample(folder, files=1, events=EVENTS)
        truth = analysed(fileset)
        for part in given.parts:
            problem, calls = in_a_process(part, -1, False, (fileset, truth))
            if problem:
                print(problem)
                return 1
            print(f"{part}: {len(calls)} calls: {dict(Counter(calls))}", flush=True)
            for number in given.only or range(len(calls)):
                for short in (False, True):
                    if short and calls[number] != "write":
                        continue
                    problem, _ = in_a_process(part, number, short, (fileset, truth))
                    if problem:
                        bad.append(
                            {"part": part, "number": number, "call": calls[number], "short": short, "problem": problem}
                        )
                        print(f"{part} {number} ({calls[number]}{', short' * short}): {problem}", flush=True)
    print(f"{len(bad)} trials failed; goal 0")
    if given.json:
        given.json.write_text(json.dumps(bad, indent=1))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(campaign())
