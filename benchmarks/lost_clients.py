"""Kill, terminate and stop clients at random moments: what they had recorded must be there, and nothing stays behind.

    python benchmarks/lost_clients.py [--kills 10] [--stops 10] [--long] [--json FILE]

A client measures an analysis on a cluster of processes of their own, whose processor notes itself when each chunk was
done. After SIGKILL and SIGTERM the measurement is recovered from the journal; after SIGSTOP and SIGCONT the client goes
on, and saves it. Chunks that were done two seconds before the signal must be in it, with the bytes that a run without a
signal has; scheduler and workers must be as before within five seconds. With `--long` the client is once stopped for
150 seconds, longer than the plugins wait.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from distributed import Client

from roastcoffea.backends import plugin_lifetime
from roastcoffea.cli.sample import write_sample
from roastcoffea.log.journals import Journal, journals_in
from roastcoffea.measurement import Measurement, load
from roastcoffea.recording.importers import recovered
from roastcoffea.records.run import LOST, Run

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from conftest import what_stays
from processes import CommandLineCluster, wait_until

TESTS: Final = Path(__file__).parents[1] / "tests"

SECONDS: Final = 0.12
"""That a chunk sleeps."""

CHUNKSIZE: Final = 100
BEFORE: Final = 2.0
"""Seconds before the signal until which everything must be there."""

CLEAN: Final = 5.0
"""Seconds after which nothing of ours may be on the cluster."""

STOPPED: Final = 8.0
DEADLINE: Final = 5.0
"""Seconds for which a client is stopped, and those after which its plugins give it up."""

LONG: Final = 150.0
SEED: Final = 20261124

CLIENT: Final = """
import json, sys
from pathlib import Path
from analyses import Logging, runner_for
from distributed import Client
from roastcoffea import MetricsCollector

def main():
    given = json.loads(sys.argv[1])
    with Client(scheduler_file=given["scheduler"]) as client:
        runner = runner_for(client, given["chunksize"])
        with MetricsCollector(client, journal=given["journal"]) as collector:
            print("begun", flush=True)
            output, _ = runner(given["fileset"], processor_instance=Logging(given["seconds"], given["notes"]))
        print(collector.save_measurement(given["out"]), flush=True)

if __name__ == "__main__":
    main()
"""

PRELOAD: Final = """
from roastcoffea.backends import plugin_lifetime
def dask_setup(scheduler):
    plugin_lifetime.LONGEST_SILENCE = {}
"""

Chunk = tuple[str, str, int, int]


class Trial(NamedTuple):
    """What one signal led to; empty `wrong` is as it must be."""

    signal: str
    after: float
    done: int
    """Chunks that were done two seconds before."""
    recorded: int
    clean: float | None
    """Seconds until nothing was on the cluster."""
    wrong: list[str]


class Place:
    """Folders of one run of a client."""

    def __init__(self, folder: Path, cluster: CommandLineCluster, fileset: Any) -> None:
        self.journal, self.notes, self.out = (folder / name for name in ("journal", "notes", "out"))
        for path in (self.notes, self.out):
            path.mkdir(parents=True)
        self._given = {
            "scheduler": str(cluster.file),
            "chunksize": CHUNKSIZE,
            "seconds": SECONDS,
            "fileset": fileset,
            "journal": str(self.journal),
            "notes": str(self.notes),
            "out": str(self.out),
        }

    def start(self) -> subprocess.Popen[str]:
        """Start the client, and wait until it measures."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLIENT, json.dumps(self._given)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != "begun":
            raise SystemExit(f"the client did not begin: {process.wait()}")
        return process

    def noted(self) -> dict[Chunk, float]:
        """When which chunk was done, as the processor says."""
        lines = [line.split() for path in self.notes.iterdir() for line in path.read_text().splitlines()]
        return {(dataset, file, int(start), int(stop)): float(at) for at, dataset, file, start, stop in lines}

    def until_done(self, number: int) -> None:
        """Wait until so many chunks are done."""
        if not wait_until(lambda: len(self.noted()) >= number, 120):
            raise SystemExit("the analysis does not go on")

    def the_journal(self) -> Journal:
        """The journal of the client."""
        ((journal,), unreadable) = journals_in(self.journal)
        if unreadable:
            raise SystemExit(f"unreadable: {unreadable}")
        return journal


def bytes_of(run: Run) -> dict[Chunk, int]:
    """Requested bytes of each recorded chunk that gave a result."""
    rows = run.chunks.select(["dataset", "file", "entry_start", "entry_stop", "bytes_requested", "outcome"]).to_pylist()
    return {tuple(list(row.values())[:4]): row["bytes_requested"] for row in rows if row["outcome"] == "ok"}


def compared(run: Run, reference: dict[Chunk, int], must: set[Chunk]) -> list[str]:
    """What is wrong with the chunks of a run."""
    found = bytes_of(run)
    wrong = [f"{chunk} is missing" for chunk in must - found.keys()]
    wrong += [f"{chunk} was never asked for" for chunk in found.keys() - reference.keys()]
    return wrong + [
        f"{chunk} has {found[chunk]} bytes, not {reference[chunk]}"
        for chunk in found.keys() & reference.keys()
        if found[chunk] != reference[chunk]
    ]


def seconds_until_clean(observer: Client) -> float | None:
    """How long something of ours was on the cluster; None where it stays."""
    began = time.monotonic()
    return time.monotonic() - began if wait_until(lambda: what_stays(observer) == [], CLEAN) else None


def plugins_on(observer: Client) -> list[str]:
    """Names of our plugins and topics on the cluster; chunks that run have something of the probe's beside."""
    return [name for name in what_stays(observer) if not name.startswith("_")]


def killed(place: Place, observer: Client, reference: dict[Chunk, int], number: signal.Signals, wait: float) -> Trial:
    """Kill a client after so many seconds of its work, and recover what it had."""
    process = place.start()
    place.until_done(1)
    time.sleep(wait)
    at = time.time()
    process.send_signal(number)
    status = process.wait()
    clean = seconds_until_clean(observer)
    must = {chunk for chunk, done in place.noted().items() if done < at - BEFORE}
    journal = place.the_journal()
    measurement = recovered(journal)
    wrong = compared(measurement.run, reference, must)
    wrong += [] if clean is not None else [f"on the cluster is still: {what_stays(observer)}"]
    wrong += [] if measurement.outcome == LOST else [f"its outcome is {measurement.outcome}"]
    wrong += [] if status == -number else [f"its exit status is {status}"]
    wrong += ["the journal counts as being written"] if journal.is_written else []
    if not any("the client was lost" in problem for problem in measurement.problems):
        wrong.append("no problem says that the client was lost")
    measurement.save(place.out)
    return Trial(number.name, wait, len(must), len(bytes_of(measurement.run)), clean, wrong)


def stopped(
    place: Place, observer: Client, reference: dict[Chunk, int], wait: float, lengths: tuple[float, float]
) -> Trial:
    """Stop a client for longer than its plugins wait, and look at what it has when it has ended."""
    seconds, deadline = lengths
    process = place.start()
    place.until_done(1)
    time.sleep(wait)
    at = time.time()
    process.send_signal(signal.SIGSTOP)
    wrong = []
    try:
        time.sleep(max(deadline - 2, 0))
        wrong += [] if plugins_on(observer) else ["the plugins left before their deadline"]
        # events that workers had sent before are forgotten two seconds after the plugins
        last = min(at + deadline + CLEAN, at + seconds - 0.5)
        if not wait_until(lambda: plugins_on(observer) == [], last - time.time()):
            wrong.append(f"{time.time() - at - deadline:.1f} s after the deadline there is {plugins_on(observer)}")
        must = {chunk for chunk, done in place.noted().items() if done < at - BEFORE}
        wrong += compared(recovered(place.the_journal()).run, reference, must)
        time.sleep(max(at + seconds - time.time(), 0))
    finally:
        process.send_signal(signal.SIGCONT)
    again = time.time()
    output, _ = process.communicate(timeout=1800)
    clean = seconds_until_clean(observer)
    run = load(output.splitlines()[-1]).run
    # what ended when the client was back
    later = {chunk for chunk, done in place.noted().items() if done - 2 * SECONDS > again + BEFORE}
    wrong += compared(run, reference, must | later)
    wrong += gap_problems(run, at, again)
    wrong += [] if clean is not None else [f"on the cluster is still: {what_stays(observer)}"]
    wrong += ["the journal is still there"] if journals_in(place.journal)[0] else []
    return Trial(f"SIGSTOP {seconds:g} s", wait, len(must) + len(later), len(bytes_of(run)), clean, wrong)


def gap_problems(run: Run, since: float, until: float) -> list[str]:
    """Whether a run says that nothing was recorded while its client was stopped, and how long that was."""
    if len(run.gaps) != 1:
        return [f"its gaps are {run.gaps}"]
    (begin, end), seconds = run.gaps[0], Measurement(run).time_ledger["not recorded"]
    wrong = []
    if not (since - BEFORE < begin <= since + 0.5 and until - 0.5 <= end < until + BEFORE):
        wrong.append(f"the gap is {begin - since:+.2f} s to {end - until:+.2f} s around that")
    if not 0 < seconds <= 2 * (end - begin) + 0.01:
        wrong.append(f"{seconds} thread seconds of {2 * (end - begin)} are not recorded")
    if not any("nothing was recorded for" in problem for problem in run.problems):
        wrong.append("no problem tells of the gap")
    return wrong


@contextmanager
def cluster_with(folder: Path, deadline: float) -> Iterator[tuple[CommandLineCluster, Client]]:
    """A cluster whose plugins wait so long for their client, and a client that only looks at it."""
    folder.mkdir()
    preload = folder / "preload.py"
    preload.write_text(PRELOAD.format(deadline))
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    preloaded = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": json.dumps([str(preload)])}
    cluster = CommandLineCluster(folder, workers=2, path=path, environment=preloaded)
    try:
        with Client(scheduler_file=str(cluster.file)) as observer:
            observer.wait_for_workers(2)
            yield cluster, observer
    finally:
        cluster.close()


def reference_of(folder: Path, cluster: CommandLineCluster, fileset: Any) -> dict[Chunk, int]:
    """Bytes of each chunk of a run without a signal."""
    place = Place(folder, cluster, fileset)
    output, _ = place.start().communicate()
    return bytes_of(load(output.splitlines()[-1]).run)


def trials(folder: Path, given: argparse.Namespace) -> Iterator[Trial]:
    """All of them."""
    moments = random.Random(SEED)
    (folder / "data").mkdir()
    fileset = write_sample(folder / "data", files=2, events=4000, baskets=4)
    with cluster_with(folder / "cluster", DEADLINE) as (cluster, observer):
        reference = reference_of(folder / "reference", cluster, fileset)
        print(f"{len(reference)} chunks, {sum(reference.values())} bytes", flush=True)
        for number in (signal.SIGKILL, signal.SIGTERM):
            for turn in range(given.kills):
                place = Place(folder / f"{number.name}{turn}", cluster, fileset)
                yield killed(place, observer, reference, number, moments.uniform(2, 8))
        for turn in range(given.stops):
            place = Place(folder / f"stop{turn}", cluster, fileset)
            yield stopped(place, observer, reference, moments.uniform(2, 5), (STOPPED, DEADLINE))
    if given.long:
        many = {
            name: {"files": files["files"]}
            for name, files in write_sample(folder / "data", files=40, events=4000, baskets=4).items()
        }
        with cluster_with(folder / "patient", plugin_lifetime.LONGEST_SILENCE) as (cluster, observer):
            reference = reference_of(folder / "long reference", cluster, many)
            place = Place(folder / "long", cluster, many)
            yield stopped(place, observer, reference, 3.0, (LONG, plugin_lifetime.LONGEST_SILENCE))


def main() -> None:
    """Try, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--long", action="store_true", help="stop a client for 150 seconds, too")
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as place:
        for trial in trials(Path(place), given):
            found.append(trial)
            clean = "stays" if trial.clean is None else f"clean after {trial.clean:.1f} s"
            state = "ok" if not trial.wrong else f"{len(trial.wrong)} WRONG: {'; '.join(trial.wrong[:3])}"
            after = f"after {trial.after:4.1f} s: {trial.done:3} chunks had to be there, {trial.recorded:3} are"
            print(f"{trial.signal:12} {after}; {clean}; {state}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([trial._asdict() for trial in found], indent=1))
    bad = sum(bool(trial.wrong) for trial in found)
    print(f"{len(found) - bad} of {len(found)} as they must be")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
