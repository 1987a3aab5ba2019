"""Causal audit: what a delay of one class really costs, beside what the replay says.

Three analyses (those of `what_if.py`) run on two workers. A known short time is added to reading, to computing, to
merging or to the work of Dask's workers between two tasks: in none, a third, two thirds or all of the chunks (or
merges, or tasks), drawn at random; twelve plants in all. Wall time is regressed on the time that was added: the slope
is what a second of that class costs. The replay of each round's run without delays says what the same delays would
cost, and the same regression gives its slope.

`python benchmarks/causal.py` takes twenty minutes on a quiet machine. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed.diagnostics.plugin import WorkerPlugin
from uproot.source.chunk import Source
from what_if import ANALYSES, filesets_of, metadata_of, wall

from roastcoffea.cli.sample import TREE, local_client, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.diagnosis.savings import Calibrated, Removal, in_order, of_chunks
from roastcoffea.measurement import Measurement
from roastcoffea.replay.changes import Chunks, Scenario, with_computing
from roastcoffea.replay.cluster import tree
from roastcoffea.sheets.sheet import Amount, Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.units import COUNT, SECOND

READ, COMPUTE, MERGE, SCHEDULING = KINDS = "read", "compute", "merge", "scheduling"
SECONDS: Final = 0.15
"""Length of one delay."""

SHARES: Final = (0.0, 1 / 3, 2 / 3, 1.0)
"""Shares of the chunks that are delayed; each round has one run of each, in random order."""

CLOSE: Final = 0.15
LEAST_CLOSE: Final = 10 / 12
"""Goals: how far the replay's slope may be from the measured one, and in which share of the plants."""

OWED = threading.local()
"""Delay that the next read of this thread has to add; `causal` is imported by name, so that workers share it."""


class Planted:
    """Sum of the delays in an output, which delays merging itself if it was told to."""

    def __init__(self, seconds: float, name: str, merging: tuple[float, float, str]) -> None:
        self.seconds, self.name, self.merging = seconds, name, merging

    def __add__(self, other: Planted) -> Planted:
        seconds, share, seed = self.merging
        more = seconds * (drawn(seed, f"{self.name} {other.name}") < share)
        time.sleep(more)
        return Planted(self.seconds + other.seconds + more, max(self.name, other.name), self.merging)


class Delayed(ProcessorABC):  # type: ignore[misc]
    """An analysis with delays of one class."""

    def __init__(self, analysis: Any, kind: str, share: float, seed: str) -> None:
        self.analysis, self.kind, self.share, self.seed = analysis, kind, share, seed

    def process(self, events: Any) -> Any:
        """Delay the first read, or compute for longer, if the chunk is drawn."""
        name = name_of(events.metadata["filename"], events.metadata["entrystart"])
        more = SECONDS * (self.kind in (READ, COMPUTE) and drawn(self.seed, name) < self.share)
        OWED.seconds = more if self.kind == READ else 0.0
        output = self.analysis.process(events)
        if OWED.seconds:
            raise RuntimeError("the chunk read nothing")
        until = time.thread_time() + more * (self.kind == COMPUTE)
        while time.thread_time() < until:
            pass
        merging = SECONDS, self.share * (self.kind == MERGE), self.seed
        return {"output": output, "planted": Planted(more, name, merging)}

    def postprocess(self, accumulator: Any) -> Any:
        """Return the output unchanged."""
        return accumulator


def name_of(file: str, start: int) -> str:
    return f"{Path(file).name} {start}"


def drawn(seed: str, name: str) -> float:
    return random.Random(f"{seed} {name}").random()


def delay_reads() -> None:
    """Have all of uproot's sources pay what their thread owes."""

    def delayed(original: Callable[..., Any]) -> Callable[..., Any]:
        def chunks(*args: Any, **kwargs: Any) -> Any:
            owed, OWED.seconds = getattr(OWED, "seconds", 0.0), 0.0
            time.sleep(owed)
            return original(*args, **kwargs)

        return chunks

    kinds = [Source]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "chunks" in vars(kind):
            kind.chunks = delayed(kind.chunks)


class Scheduling(WorkerPlugin):  # type: ignore[misc]
    """Delays a worker when a drawn task has ended, before the next one starts."""

    name = "causal"

    def __init__(self) -> None:
        self.share, self.seed, self.seconds = 0.0, "", 0.0

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Sleep on the event loop."""
        if (start, finish) == ("executing", "memory") and drawn(self.seed, str(key)) < self.share:
            time.sleep(SECONDS)
            self.seconds += SECONDS


def redrawn(share: float, seed: str, dask_worker: Any) -> float:
    """Draw with another share and seed from now on; the seconds that were added before."""
    plugin = dask_worker.plugins[Scheduling.name]
    added = plugin.seconds
    plugin.share, plugin.seed, plugin.seconds = share, seed, 0.0
    return float(added)


class Ran(NamedTuple):
    """A run with its delays: all of their seconds, and the share of the chunks and the seed they were drawn with."""

    seconds: float
    share: float
    seed: str
    measurement: Measurement


def ran(runner: Runner, fileset: Any, processor: Delayed) -> Ran:
    """Measure a run with delays."""
    share, seed, client = processor.share, processor.seed, runner.executor.client
    client.run(redrawn, share * (processor.kind == SCHEDULING), seed)
    with MetricsCollector(client) as collector:
        output = runner(fileset, treename=TREE, processor_instance=processor)
    added = sum(client.run(redrawn, 0.0, seed).values())
    return Ran(output["planted"].seconds + added, share, seed, collector.measurement)


def delays(base: Measurement, kind: str, like: Ran) -> Removal:
    """Change of the undelayed run that adds the delays of another one."""
    if kind in (READ, COMPUTE):
        rows = base.metrics.evaluator.value("counted_chunks").select(["file", "entry_start"]).to_pylist()
        names = [name_of(row["file"], row["entry_start"]) for row in rows]
        more = np.array([SECONDS * (drawn(like.seed, name) < like.share) for name in names])

        def later(chunks: Chunks) -> Chunks:
            own = in_order(more, chunks, 0.0)
            if kind == COMPUTE:
                return with_computing(chunks, cpu=chunks.parts.cpu + own)
            return chunks.with_parts(read=chunks.parts.read + own)

        return of_chunks(later)
    chunks, (call,) = len(base.chunks), base.run.calls
    merged = tree(chunks, int(call.options["executor.treereduction"]))[1]
    if kind == MERGE:
        each = like.seconds / int(merged.sum())
        return Removal(Scenario(merging=lambda merging: replace(merging, wait=merging.wait + each)))
    each = like.seconds / (chunks + len(merged))
    # the next task starts later, and so does a merge that waits for the report of this one
    return Removal(Scenario(costs=lambda costs: costs._replace(gap=costs.gap + each, latency=costs.latency + each)))


class Plant(NamedTuple):
    """Seconds of wall time for each second of delay, as measured and in replays, with standard errors."""

    analysis: str
    kind: str
    slope: float
    error: float
    replayed: float
    replay_error: float
    wall: float
    most: float

    @property
    def close(self) -> bool:
        return abs(self.replayed - self.slope) <= CLOSE * abs(self.slope)

    @property
    def sign_right(self) -> bool:
        return self.replayed * self.slope > 0


def slope_of(rounds: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Slope of pairs within rounds, each of which has a level of its own, and its standard error."""
    centred = [np.array(pairs) - np.mean(pairs, axis=0) for pairs in rounds]
    x, y = np.concatenate(centred).T
    slope = float(x @ y / (x @ x))
    freedom = len(x) - len(rounds) - 1
    return slope, float(np.sqrt(np.sum((y - slope * x) ** 2) / freedom / (x @ x)))


def plant_of(analysis: str, kind: str, rounds: Sequence[Sequence[Ran]]) -> Plant:
    """Both slopes of a plant."""
    truth, replays = [], []
    for runs in rounds:
        base = next(run.measurement for run in runs if not run.share)
        replay = base.metrics.evaluator.value("savings").replay
        if not isinstance(replay, Calibrated):
            raise SystemExit(f"{analysis}, {kind}: {replay}")
        truth.append([(run.seconds, wall(run.measurement)) for run in runs])
        costs = [-replay.saved(delays(base, kind, run))[0] if run.share else 0.0 for run in runs]
        replays.append([(run.seconds, cost) for run, cost in zip(runs, costs, strict=True)])
    middle = float(np.median([seconds for pairs in truth for added, seconds in pairs if not added]))
    most = max(added for pairs in truth for added, _ in pairs)
    return Plant(analysis, kind, *slope_of(truth), *slope_of(replays), middle, most)


def print_plants(plants: Sequence[Plant]) -> bool:
    """Print slopes and goals; whether they are reached."""
    rows: list[tuple[str | Amount, ...]] = []
    for one in plants:
        slopes = [Amount(value, text=f"{value:.2f}") for value in one[2:6]]
        apart = Amount(one.replayed - one.slope, text=f"{one.replayed / one.slope - 1:+.0%}" if one.slope else "")
        rows.append((one.analysis, one.kind, Amount(one.wall, SECOND), *slopes, apart))
    heads = columns(COUNT, "wall time", "measured", "±", "replay", "±", "apart")
    signs, close = sum(one.sign_right for one in plants), sum(one.close for one in plants)
    goals = {
        f"signs right: {signs} of {len(plants)}": signs == len(plants),
        f"within {CLOSE:.0%}: {close} of {len(plants)}, goal {LEAST_CLOSE:.0%}": close >= LEAST_CLOSE * len(plants),
    }
    texts = [f"{'reached' if reached else 'MISSED'}: {text}" for text, reached in goals.items()]
    title = "Wall time for each second of delay"
    print_sheets([Sheet(title=title, columns=columns(None, "analysis", "class") + heads, rows=rows, items=texts)])
    return all(goals.values())


def main() -> int:
    """Plant, measure, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of four runs each (default 4)")
    parser.add_argument("--files", type=int, default=4, help="files of 80,000 events (default 4)")
    parser.add_argument("--chunksize", type=int, default=10_000)
    parser.add_argument("--analyses", nargs="+", default=list(ANALYSES), choices=list(ANALYSES))
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for all slopes")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("a plant takes at least one round")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that clusters and the server end as well
    plants: list[Plant] = []
    with tempfile.TemporaryDirectory(prefix="roastcoffea-causal-") as folder:
        local = write_sample(folder, datasets=("zprime",), files=given.files, events=80_000, baskets=32)
        with filesets_of(local) as filesets:
            cache = metadata_of(filesets)
            for analysis in given.analyses:
                with local_client(2, 1, folder) as client:
                    client.run(delay_reads)
                    client.register_plugin(Scheduling())
                    executor = DaskExecutor(client=client, status=False)
                    runner = Runner(executor, schema=NanoAODSchema, chunksize=given.chunksize, metadata_cache=cache)
                    measured = partial(ran, runner, filesets[analysis])
                    measured(Delayed(ANALYSES[analysis], READ, 0.0, "warm"))
                    for kind in given.kinds:
                        rounds = []
                        for number in range(given.rounds):
                            seed = f"{given.seed} {analysis} {kind} {number}"
                            shares = random.Random(seed).sample(SHARES, len(SHARES))
                            rounds.append([measured(Delayed(ANALYSES[analysis], kind, each, seed)) for each in shares])
                        plants.append(plant_of(analysis, kind, rounds))
                        print(plants[-1], flush=True)
    reached = print_plants(plants)
    if given.json:
        given.json.write_text(json.dumps([one._asdict() for one in plants], indent=1) + "\n")
    return int(not reached)


if __name__ == "__main__":
    from causal import main as main_by_name  # workers import this module by its name, and share its state

    sys.exit(main_by_name())
