"""Power and false alarms of `roastcoffea duet` on a busy host.

`python benchmarks/duet.py --json duet.json` runs three ten-minute duets of equal versions, three in which B repeats 2 %
of its work, and 40 one-minute duets of equal versions, on two Dask workers next to four spinning processes: about 110
minutes. Each duet is stored when it ends, and a second call continues with those that are missing; it runs none with
`--only-evaluate`. `--minutes 2 --duets 2 --short 0` is a quick try.

Power and false alarms of ten minutes are estimated by drawing pairs again, with replacement, as many as each duet has:
with A and B exchanged at random in each pair (then the versions are equal), the same with B's CPU time 2 % higher, and
as they are for the duets of unequal versions. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed import Client, LocalCluster

from roastcoffea import duet
from roastcoffea.cli.sample import TREE, write_sample
from roastcoffea.sheets.sheet import Amount, Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.duet import Change, change_of_pairs
from roastcoffea.units import COUNT, FRACTION, SECOND

POWER: Final = 0.90
ALARMS: Final = 0.05
"""Goals: least share of changes of 2 % that ten minutes find, and largest share of equal versions with an alarm."""

SLOWER: Final = 0.02
UNITS: Final = 50
"""Units of work of version A in each chunk, about a third of a second together; a slower B has one more."""

EQUAL, UNEQUAL, SHORT = "equal", "2 % slower", "equal, short"
DRAWS: Final = 2_000


class Repeating(ProcessorABC):  # type: ignore[misc]
    """Reads the jets, and repeats a unit of work on them."""

    def __init__(self, units: int) -> None:
        self.units = units

    def process(self, events: ak.Array) -> Any:
        """Fill a histogram of invariant masses in every unit."""
        pt, eta, phi = (ak.to_numpy(ak.flatten(events.Jet[name])).astype(np.float64) for name in ("pt", "eta", "phi"))
        total = np.zeros(100, np.int64)
        for _ in range(self.units):
            angles = np.cosh(eta[1:] - eta[:-1]) - np.cos(phi[1:] - phi[:-1])
            mass = np.sqrt(np.abs(2 * pt[1:] * pt[:-1] * angles))
            total = np.histogram(mass, 100, (0, 1000))[0]
            sum(number % 7 for number in range(90_000))
        return {events.metadata["dataset"]: total}

    def postprocess(self, accumulator: Any) -> Any:
        """Return the histograms unchanged."""
        return accumulator


@contextmanager
def spinning(many: int) -> Iterator[None]:
    """Context manager in which so many processes use a core each."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(many)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_duet(kind: str, minutes: float, workers: int, fileset: Any) -> dict[str, Any]:
    """Pairs and verdict of a real duet, on a cluster of its own."""
    versions = Repeating(UNITS), Repeating(UNITS + round(UNITS * SLOWER) * (kind == UNEQUAL))
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        runner = Runner(DaskExecutor(client=client, status=False), schema=NanoAODSchema, chunksize=1_000)
        found = duet(*versions, runner, fileset, minutes=minutes, treename=TREE)
    if found.differences:
        raise SystemExit(f"the outputs differ: {found.differences[0]}")
    return {"kind": kind, "minutes": minutes, **found.as_dict()}


class Drawn:
    """Warm pairs of a duet, to draw from."""

    def __init__(self, one: dict[str, Any]) -> None:
        pairs = [row for row in one["pairs"] if row["warm"]]
        self.a, self.b = (np.array([row[side]["cpu"] for row in pairs]) for side in "ab")
        self.b_first = np.array([row["first"] == "b" for row in pairs])
        self.dataset = np.unique([row["dataset"] for row in pairs], return_inverse=True)[1]

    def changes(self, random: np.random.Generator, draws: int, *, exchanged: bool, factor: float) -> Iterator[Change]:
        """Changes in pairs drawn again; `exchanged` exchanges the versions at random, and `factor` slows B down."""
        first, second = np.where(self.b_first, [self.b, self.a], [self.a, self.b])
        for _ in range(draws):
            rows = random.integers(0, len(self.a), len(self.a))
            b_first = random.random(len(rows)) < 0.5 if exchanged else self.b_first[rows]
            a, b = np.where(b_first, [second[rows], first[rows]], [first[rows], second[rows]])
            yield change_of_pairs(a, b * factor, b_first, self.dataset[rows])


def share(duets: Sequence[dict[str, Any]], *, exchanged: bool, factor: float = 1.0) -> tuple[float, list[float]]:
    """Share of draws with a clear change (to the slower side if there is one), over all duets and in each."""
    random, found = np.random.default_rng(20261130), []
    for one in duets:
        changes = Drawn(one).changes(random, DRAWS, exchanged=exchanged, factor=factor)
        found.append(float(np.mean([each.is_clear and (each.low > 0 or factor == 1.0) for each in changes])))
    return float(np.mean(found)), found


def table_of(duets: Sequence[dict[str, Any]]) -> Sheet:
    """Each duet with its pairs and change."""
    rows = []
    for one in duets:
        cpu, warm = one["changes"]["cpu"], Amount(sum(row["warm"] for row in one["pairs"]))
        percents = [Amount(cpu[name], text=f"{100 * cpu[name]:+.2f} %") for name in ("change", "low", "high")]
        clear = "yes" if cpu["low"] > 0 or cpu["high"] < 0 else "no"
        rows.append((one["kind"], Amount(one["minutes"]), warm, Amount(cpu["a"], SECOND), *percents, clear))
    heads = columns(COUNT, "minutes", "pairs", "CPU of A", "change", "low", "high")
    return Sheet(title="Duets", columns=columns(None, "B is") + heads + columns(None, "clear"), rows=rows)


def goals_of(duets: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Text for each goal, and whether it is reached."""
    equal, unequal, short = ([one for one in duets if one["kind"] == kind] for kind in (EQUAL, UNEQUAL, SHORT))
    goals: dict[str, bool] = {}

    def goal(what: str, found: tuple[float, list[float]], most: float | None, least: float | None) -> None:
        reached = (most is None or found[0] <= most) and (least is None or found[0] >= least)
        limit = f"at most {FRACTION.text(most)}" if most is not None else f"at least {FRACTION.text(least or 0.0)}"
        each = ", ".join(FRACTION.text(one) for one in found[1][:10])
        goals[f"{what}: {FRACTION.text(found[0])} (by duet: {each}), goal {limit}"] = reached

    if equal:
        goal("alarms for equal versions, drawn again", share(equal, exchanged=True), ALARMS, None)
        planted = share(equal, exchanged=True, factor=1 + SLOWER)
        goal("2 % planted in draws from equal versions is found", planted, None, POWER)
    if unequal:
        goal("2 % slower versions are found, drawn again", share(unequal, exchanged=False), None, POWER)
    for name, some in (("one-minute", short), ("long", equal)):
        alarms = sum(one["changes"]["cpu"]["low"] > 0 or one["changes"]["cpu"]["high"] < 0 for one in some)
        if some:
            goals[f"alarms in real {name} duets of equal versions: {alarms} of {len(some)}, goal at most 5 %"] = (
                alarms <= ALARMS * len(some)
            )
    if unequal:
        found = sum(one["changes"]["cpu"]["low"] > 0 for one in unequal)
        goals[f"real duets of slower versions that find it: {found} of {len(unequal)}, goal at least 90 %"] = (
            found >= POWER * len(unequal)
        )
    return goals


def main() -> int:
    """Run the duets that are missing, print them and the goals; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("duet.json"), help="file in which the duets are stored")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the long duets")
    parser.add_argument("--duets", type=int, default=6, help="number of long duets, half of them of equal versions")
    parser.add_argument("--short", type=int, default=40, help="number of one-minute duets of equal versions")
    parser.add_argument("--short-minutes", type=float, default=1.0)
    parser.add_argument("--spinning", type=int, default=4, help="number of spinning processes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-evaluate", action="store_true")
    given = parser.parse_args()
    duets = json.loads(given.json.read_text()) if given.json.exists() else []
    wanted = [(EQUAL, UNEQUAL)[number % 2] for number in range(given.duets)] + [SHORT] * given.short
    for one in duets:
        if one["kind"] in wanted:
            wanted.remove(one["kind"])
    with tempfile.TemporaryDirectory() as folder, spinning(0 if given.only_evaluate else given.spinning):
        fileset = write_sample(folder, files=4, events=50_000, baskets=50, seed=1) if wanted else {}
        for kind in () if given.only_evaluate else wanted:
            minutes = given.short_minutes if kind == SHORT else given.minutes
            duets.append(run_duet(kind, minutes, given.workers, fileset))
            with whole_file(given.json, overwrite=True) as file:
                file.write(json.dumps(duets).encode())
            print_sheets([table_of(duets[-1:])])
    goals = goals_of(duets)
    rows = [f"{'reached' if reached else 'MISSED'}: {goal}" for goal, reached in goals.items()]
    print_sheets([table_of(duets), Sheet(title="Goals", items=rows)])
    return int(not all(goals.values()))


if __name__ == "__main__":
    sys.exit(main())
