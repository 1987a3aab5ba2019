"""Random schedules of kills, pauses, partitions and clock steps: what is measured must be true, and nothing left.

`python benchmarks/schedules.py [--seeds 1000-1019] [--verbose]` draws one to three events from each seed. They hit a
scheduler, two workers and a client, all processes of their own, while the client measures 40 chunks of 0.15 s with a
journal, and saves. The same seed gives the same schedule; the processes themselves do not repeat to the millisecond.

The output must be right, unless the client is killed; then its journal is recovered. Chunks that were done two seconds
before an event must be in the measurement, with the bytes of a run without events, and others may be missing only where
it says so. Ledgers must add up or say why not, no traceback may show our code, and cluster and journals must be clean
in the end. The exit status is 1 unless all hold.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import stepped
from disturbed import CLIENT, TESTS, DisturbedCluster, Event, schedule
from lost_clients import bytes_of, compared
from processes import CommandLineCluster

import roastcoffea
from roastcoffea.cli import main
from roastcoffea.cli.sample import write_sample
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import BLOCKED, RESIDUAL
from roastcoffea.records.run import LOST
from roastcoffea.storage.folders import tidy

SECONDS: Final = 0.15
CHUNKSIZE: Final = 200
BEFORE: Final = 2.0
"""Seconds before an event until which everything must be recorded."""

LONGEST: Final = 60.0
UNTOLD: Final = 0.01
"""Share of a ledger that may be in no class without a word in its certificate."""

OURS: Final = str(Path(roastcoffea.__file__).parent)


def analyse(given: dict[str, Any]) -> None:
    """What the client does."""
    from analyses import Logging, runner_for
    from distributed import Client

    from roastcoffea import MetricsCollector

    printed = os.open(given["printed"], os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    stepped.follow(Path(given["clock"]))
    with Client(given["scheduler"]) as client:
        runner = runner_for(client, CHUNKSIZE)
        Path(given["begun"]).touch()
        with MetricsCollector(client, journal=given["journals"]) as collector:
            output, _ = runner(given["fileset"], processor_instance=Logging(SECONDS, given["notes"]))
        path = collector.save_measurement(given["runs"], "measured")
    Path(given["result"]).write_text(json.dumps({"output": output, "path": str(path)}))


class Trial:
    """One run of the analysis under a schedule."""

    def __init__(self, folder: Path, cluster: DisturbedCluster, fileset: Any) -> None:
        names = ("printed", "begun", "journals", "runs", "result", "notes")
        self.paths = {name: folder / name for name in names}
        self.paths["notes"].mkdir(parents=True)
        self.given = {name: str(path) for name, path in self.paths.items()}
        self.given |= {"fileset": fileset, "scheduler": cluster.proxies[CLIENT].address}
        self.given |= {"clock": str(cluster.clock(CLIENT))}
        self.cluster = cluster
        self.began = 0.0

    def run(self, events: list[Event], *, verbose: bool) -> int | None:
        """Exit status of the client; None where it hangs."""
        context = multiprocessing.get_context("forkserver")
        client = self.cluster.client = context.Process(target=analyse, args=(self.given,))
        client.start()
        while not self.paths["begun"].exists() and client.is_alive():
            time.sleep(0.01)
        self.began = time.time()
        actions = [action for event in events for action in self.cluster.actions(event)]
        for at, ends, act in sorted(actions, key=lambda action: action[0]):
            while client.is_alive() and time.time() < self.began + at:
                client.join(min(0.02, max(self.began + at - time.time(), 0)))
                self.cluster.revive()
            if client.is_alive() or ends:
                if verbose:
                    print(f"  {time.time() - self.began:.2f} s: {act.__qualname__}", flush=True)
                act()
        while client.is_alive() and time.time() < self.began + LONGEST:
            client.join(0.1)
            self.cluster.revive()
        hangs = client.is_alive()
        client.kill()
        client.join()
        return None if hangs else int(client.exitcode)

    def noted(self) -> dict[Any, float]:
        """When which chunk was done, in seconds since the client began."""
        lines = [line.split() for path in self.paths["notes"].iterdir() for line in path.read_text().splitlines()]
        return {(name, file, int(start), int(stop)): float(at) - self.began for at, name, file, start, stop in lines}

    def must(self, events: list[Event]) -> set[Any]:
        """Chunks that were done long enough before each event, or after it."""
        outages = [(each.at, each.at + (each.amount if each.kind in ("pause", "partition") else 0)) for each in events]
        ends = [each.at for each in events if (each.kind, each.target) == ("kill", CLIENT)]
        return {
            chunk
            for chunk, at in self.noted().items()
            if not any(begin - BEFORE < at < end for begin, end in outages) and all(at < end for end in ends)
        }

    def recovered(self) -> tuple[Measurement | None, list[str]]:
        """What a killed client had, if it had begun to keep a journal."""
        journals, runs = self.paths["journals"], self.paths["runs"]
        tidy(runs)  # as the next one who saves there does
        if not journals.exists() or not any(journals.iterdir()):
            return (roastcoffea.load(runs / "measured") if (runs / "measured").exists() else None), []
        runs.mkdir(exist_ok=True)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            status = main(["recover", str(journals), "--output", str(runs)])
        text = out.getvalue() + err.getvalue()
        # a client that was killed while it saved may have a measurement as well
        saved = [path for path in runs.iterdir() if path.name != "measured" and not path.name.startswith(".")]
        wrong = [f"recover: {status}, {text}"] if status or "Traceback" in text or len(saved) != 1 else []
        return (roastcoffea.load(saved[0]) if len(saved) == 1 else None), wrong


def contradictions(measurement: Measurement, workers: int | None) -> list[str]:
    """What does not add up in the ledgers, and is not told. `workers` had one thread each for all of the run."""
    wrong = [problem for problem in measurement.problems if "roastcoffea failed" in problem]
    run = measurement.run
    for ledger in (measurement.time_ledger, measurement.byte_ledger):
        total: float = ledger.total or 0.0
        left: float = ledger.residual or 0.0
        negative = {name: amount for name, amount in ledger.items() if name != RESIDUAL and (amount or 0) < 0}
        wrong += [f"{ledger.name}: {negative} of {total:.3f}"] if negative else []
        if ledger.certificate.complete and abs(left) > UNTOLD * total:
            wrong.append(f"{ledger.name}: {left:.3f} of {total:.3f} in no class")
    seconds = {name: value for name, value in measurement.metrics.items() if name.endswith("_seconds")}
    negative = {name: value for name, value in seconds.items() if "residual" not in name and (value or 0) < 0}
    wrong += [f"metrics: {negative}"] if negative else []
    slept, least = measurement.time_ledger.get(BLOCKED, 0.0), SECONDS * len(bytes_of(run))
    if measurement.time_ledger.certificate.complete and slept < 0.8 * least:
        wrong.append(f"{slept:.2f} s are {BLOCKED}, but the chunks slept {least:.2f} s")
    elapsed = run.stop - run.start
    total = measurement.time_ledger.total or 0.0
    if workers is not None and not measurement.problems and abs(total - workers * elapsed) > 1e-3 * total:
        wrong.append(f"{total} s of thread time in {workers} x {elapsed:.3f} s")
    return wrong


def judged(trial: Trial, events: list[Event], status: int | None, truth: Any, reference: Any) -> list[str]:
    """What is wrong with a trial; and the number of recorded chunks, first."""
    is_killed = any((each.kind, each.target) == ("kill", CLIENT) for each in events) and status == -9
    steady = not any(each.kind in ("kill", "reset") for each in events)
    printed = trial.paths["printed"].read_text() if trial.paths["printed"].exists() else ""
    if is_killed:
        measurement, wrong = trial.recovered()
    else:
        wrong = [] if status == 0 else [f"the client ended with {status}: {printed[-1500:]}"]
        result = json.loads(trial.paths["result"].read_text()) if trial.paths["result"].exists() else {}
        wrong += [] if result.get("output") == truth else [f"the output is {result.get('output')}"]
        measurement = roastcoffea.load(result["path"]) if "path" in result else None
    if f'File "{OURS}' in printed:
        wrong.append(f"printed: {printed[-1500:]}")
    must = trial.must(events)
    if measurement is None:
        return ["no measurement", *wrong, *(["there is no journal"] if must else [])]
    found = bytes_of(measurement.run)
    wrong += compared(measurement.run, reference, must)
    if len(found) < len(reference):
        told = measurement.outcome == LOST or measurement.problems
        wrong += [] if told else [f"{len(reference) - len(found)} chunks are missing, and no problem says so"]
    wrong += contradictions(measurement, 2 if steady and not is_killed else None)
    left = [path.name for path in trial.paths["journals"].glob("*")] + [
        path.name for path in trial.paths["runs"].glob(".*")
    ]
    wrong += [f"{left} is left"] if left else []
    told = [*measurement.problems, *measurement.time_ledger.certificate.reasons]
    ended = "killed" if is_killed else "ended"
    return [f"{ended}, {len(found)} of {len(reference)} chunks, {len(must)} at least; told: {told}", *wrong]


@contextmanager
def processes() -> Iterator[None]:
    """Let the process that clients are forked from find what it imports, in this order; end all clusters."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), here, os.environ.get("PYTHONPATH", "")])
    modules = ["stepped", "distributed", "coffea.processor", "coffea.nanoevents", "roastcoffea.collector", "analyses"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    try:
        yield
    finally:
        for cluster in list(CommandLineCluster.running):
            cluster.close()


def traces(text: str) -> set[str]:
    """Tracebacks in Dask's logs that show our code."""
    blocks = re.split(r"^(?=Traceback )", text, flags=re.MULTILINE)[1:]
    return {block[:2000] for block in blocks if f'File "{OURS}' in block[:4000]}


def campaign() -> int:
    """Try, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", default=["1000-1019"], help="seeds, or the first and the last of many")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    bounds = [each.partition("-") for each in given.seeds]
    seeds = [seed for first, _, last in bounds for seed in range(int(first), int(last or first) + 1)]
    bad: list[int] = []
    with tempfile.TemporaryDirectory() as place, processes():
        folder = Path(place)
        fileset = write_sample(folder, files=2, events=2000, baskets=4)
        cluster = DisturbedCluster(folder / "cluster")
        truth = reference = None
        for seed in (None, *seeds):  # first without events
            events, began = [] if seed is None else schedule(seed), time.monotonic()
            known = traces(cluster.cluster.text())
            trial = Trial(folder / f"run{seed}", cluster, fileset)
            status = trial.run(events, verbose=given.verbose)
            stays = cluster.settle()
            if seed is None:
                result = json.loads(trial.paths["result"].read_text())
                truth, reference = result["output"], bytes_of(roastcoffea.load(result["path"]).run)
            seen, *wrong = judged(trial, events, status, truth, reference)
            wrong += [stays] if stays else []
            wrong += traces(cluster.cluster.text()) - known
            shown = seen if given.verbose or wrong else seen.partition("; told")[0]
            print(f"{seed}: {'; '.join(map(str, events))} ({time.monotonic() - began:.1f} s): {shown}", flush=True)
            for each in wrong:
                print(f"  WRONG: {each}", flush=True)
            shutil.rmtree(folder / f"run{seed}")
            if wrong:
                bad.append(seed or 0)
                cluster.close()
                cluster = DisturbedCluster(folder / f"cluster{seed}")
        cluster.close()
    print(f"{len(bad)} schedules failed{f': {bad}' if bad else ''}; goal 0")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(campaign())
