"""Every n-th fault: each write, sync, rename and new file of the smallest run fails once, for every n.

`python benchmarks/every_fault.py [--parts run recover] [--only N]` first counts the calls of a run without faults, and
then makes it anew for each of them and for each way in which it can fail: with an error, or, for writes, after half of
the bytes. In "run", a collector is opened, a Runner processes two chunks, and the measurement is saved twice. In
"recover", the process is killed before it leaves the collector, and another one recovers the journal, twice.

`--parts dask --trials 300 --seed 1` is "run" on a Dask cluster, where a chunk fails once, and where messages of ours
are counted as well (`message_faults.py`). The order of calls there differs from run to run, so a trial draws a name, a
number among the calls of this name, and the way in which it fails. `--call "ask drain" --only 3 --late` repeats one.

The output must be that of a run without a collector. Errors must be ours and name the file. Once saving or recovering
has succeeded, the measurement must have all chunks (on Dask, it may also tell which are missing), and nothing else may
be left in its folder or on the cluster. The exit status is 1 unless all hold.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final

from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from file_faults import Fault, Faults
from message_faults import check_left, cluster_of_threads, failing_messages, raw_errors

import roastcoffea
from roastcoffea import MetricsCollector, RoastcoffeaError
from roastcoffea.cli import main
from roastcoffea.cli.sample import TREE, DijetProcessor, write_sample
from roastcoffea.storage.folders import tidy

EVENTS: Final = 200


class Stumbling(DijetProcessor):
    """Fails in the first attempt of one chunk."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def process(self, events: Any) -> Any:
        if events.metadata["entrystart"] and not self.marker.exists():
            self.marker.touch()
            raise OSError("planted, once")
        return super().process(events)


def analysed(fileset: Any, executor: Any = None, processor: Any = None) -> Any:
    executor = executor or IterativeExecutor(status=False)
    runner = Runner(executor, schema=NanoAODSchema, chunksize=EVENTS // 2, metadata_cache={})
    output = runner(fileset, treename=TREE, processor_instance=processor or DijetProcessor())
    return {name: each["events"] for name, each in output.items()}


def tried(action: Callable[[], Any]) -> Any:
    """Result of an action that is repeated once if it fails with an error of ours."""
    try:
        return action()
    except RoastcoffeaError as error:
        if "\n" in str(error) or not str(error):
            raise AssertionError(f"not a line: {error!r}") from error
        return action()


def checked(measurement: Any, truth: Any, *, failed: int = 0, may_tell: bool = False) -> None:
    """Raise unless all attempts are in a measurement, or it may tell which are missing, and does."""
    chunks = measurement.chunks
    events = chunks.groupby("dataset")["events"].sum().to_dict()
    told = may_tell and measurement.problems and not measurement.byte_ledger.certificate.complete
    whole = events == truth and len(chunks) == 2 * len(truth) + failed
    assert told or whole, f"the measurement has {events} in {len(chunks)} attempts; {measurement.problems}"


def measured(faults: Faults, fileset: Any, truth: Any, client: Any = None) -> Path:
    """Measure, and save twice."""
    folder = Path(faults.folder)
    executor = None if client is None else DaskExecutor(client=client, status=False)
    processor = None if client is None else Stumbling(Path(f"{folder}-failed"))
    with MetricsCollector(client, name="smallest", profile=False, journal=folder / "journals") as collector:
        output = analysed(fileset, executor, processor)
    assert output == truth, f"the output is {output}"
    measurement = collector.measurement
    for _ in range(2):
        path: Path = tried(partial(measurement.save, folder / "runs", "smallest", overwrite=True))
        assert path == folder / "runs" / "smallest", path
    return path


def run(faults: Faults, fileset: Any, truth: Any) -> None:
    with faults.planted():
        path = measured(faults, fileset, truth)
    checked(roastcoffea.load(path), truth)


def on_dask(faults: Faults, fileset: Any, truth: Any) -> None:
    with raw_errors() as raised, cluster_of_threads() as client:
        with faults.planted(), failing_messages(faults):
            path = measured(faults, fileset, truth, client)
            check_left(client)
        assert not raised, "\n".join(raised)
    measurement = roastcoffea.load(path)
    checked(measurement, truth, failed=1, may_tell=True)
    internal = [problem for problem in measurement.problems if "roastcoffea failed" in problem]
    assert not internal, internal


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


PARTS: Final = {"run": run, "recover": recover, "dask": on_dask}


def trial(part: str, faults: Faults, given: tuple[Any, Any], answers: Any) -> None:
    """A run with a fault, in a process of its own."""
    problem = ""
    try:
        PARTS[part](faults, *given)
    except BaseException:  # noqa: BLE001
        problem = traceback.format_exc(limit=-3)
    answers.send((problem, faults.calls))


def in_a_process(part: str, fault: Fault, given: tuple[Any, Any]) -> tuple[str, list[str]]:
    """What was wrong in a trial, and the calls that were counted."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as outside:
        folder = Path(outside, "faults")
        folder.mkdir()
        process = context.Process(target=trial, args=(part, Faults(folder, fault), given, theirs))
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


def chosen(part: str, calls: list[str], given: argparse.Namespace) -> Iterator[Fault]:
    """The faults to try."""
    if given.only:
        yield from (Fault(number, given.late, given.call) for number in given.only)
    elif given.trials:
        chance = random.Random(given.seed)
        names = sorted(set(calls))
        for _ in range(given.trials):
            name = chance.choice(names)
            yield Fault(chance.randrange(calls.count(name)), chance.random() < 0.5, name)
    else:
        for number, name in enumerate(calls):
            yield Fault(number)
            if part == "dask" or name == "write":
                yield Fault(number, late=True)


def campaign() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["run", "recover"])
    parser.add_argument("--only", type=int, nargs="+", help="numbers of calls")
    parser.add_argument("--call", help="with --only: count calls of this name")
    parser.add_argument("--late", action="store_true", help="with --only: after half of the bytes, or on the way back")
    parser.add_argument("--trials", type=int, help="number of trials, for calls that are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bad: list[dict[str, Any]] = []
    trials: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        fileset = write_sample(folder, files=1, events=EVENTS)
        truth = analysed(fileset)
        for part in given.parts:
            problem, calls = in_a_process(part, Fault(-1), (fileset, truth))
            if problem:
                print(problem)
                return 1
            print(f"{part}: {len(calls)} calls: {dict(Counter(calls))}", flush=True)
            for fault in chosen(part, calls, given):
                problem, made = in_a_process(part, fault, (fileset, truth))
                # clusters do not make the same calls each time
                same = made if fault.call is None else [name for name in made if name == fault.call]
                reached = same[fault.number] if fault.number < len(same) else "not reached" if made else "unknown"
                trials[f"{part}: {reached}{', late' * fault.late}"] += 1
                if problem:
                    bad.append({"part": part, "reached": reached, **fault._asdict(), "problem": problem})
                    print(f"{part} {fault} ({reached}): {problem}", flush=True)
    print(f"{trials.total()} trials: {dict(trials)}")
    print(f"{len(bad)} trials failed; goal 0")
    if given.json:
        given.json.write_text(json.dumps(bad, indent=1))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(campaign())
