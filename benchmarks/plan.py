"""Held-out check of forecasts: five analyses, each forecast from a sample of its chunks and then run in full.

`python benchmarks/plan.py 101 102 103 --json plan.json` checks three seeds. Each seed generates other files and draws
other chunks. The forecast and the full run use separate processes. CPU time, bytes, memory and output size are
compared, because they depend little on how busy the machine is. The exit status is 1 if a goal is missed.

The result is independent evidence only for seeds that were never used while changing the forecast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

import awkward as ak
import hist
import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner, column_accumulator

from roastcoffea import MetricsCollector, plan
from roastcoffea.cli.sample import TREE, DijetProcessor, clean_jets, write_sample
from roastcoffea.sheets.sheet import Amount, Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.studies.plan import pickled_size
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, counted

CPU_ERROR: Final = 0.10
COVERAGE: Final = 0.85
"""Goals: maximum relative error of CPU time, and minimum share of measured numbers inside their 90 % intervals."""

CHUNKSIZE: Final = 1_000


class Several(DijetProcessor):  # type: ignore[misc]
    """The dijet analysis, repeated several times: limited by computing."""

    times = 4

    def process(self, events: ak.Array) -> Any:
        for _ in range(self.times):
            output = super().process(events)
        return output


class Reading(ProcessorABC):  # type: ignore[misc]
    """Sums of many branches: limited by reading."""

    def process(self, events: ak.Array) -> Any:
        sums = {
            f"{name}_{field}": float(ak.sum(events[name][field]))
            for name in ("Jet", "FatJet", "Electron", "Muon", "Tau", "Photon")
            for field in ("pt", "eta", "phi")
        }
        return {events.metadata["dataset"]: sums}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Uneven(Several):
    """One dataset takes several times as long per event as the other."""

    def process(self, events: ak.Array) -> Any:
        self.times = 6 if events.metadata["dataset"] == "zprime" else 1
        return super().process(events)


class Skimming(ProcessorABC):  # type: ignore[misc]
    """Histograms for many systematic variations, and columns of selected events: large output."""

    def process(self, events: ak.Array) -> Any:
        jets = clean_jets(events)
        leading = jets[ak.num(jets) >= 1][:, 0]
        shifts = hist.Hist.new.IntCategory(range(40)).Regular(200, 0, 1000).Weight()
        for shift in range(40):
            shifts.fill(shift, leading.pt * (1 + 0.01 * (shift - 20)))
        columns = {name: column_accumulator(ak.to_numpy(leading[name])) for name in ("pt", "eta", "phi", "mass")}
        return {events.metadata["dataset"]: {"shifts": shifts, **columns}}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Heavy(DijetProcessor):  # type: ignore[misc]
    """Allocates far more memory than it reads."""

    def process(self, events: ak.Array) -> Any:
        many = int(ak.sum(ak.num(events.Jet.pt))) * 4_000
        held = np.full(many // 8, len(events), np.float64)
        output = super().process(events)
        output[events.metadata["dataset"]]["held"] = float(held[::100_000].sum())
        return output


ANALYSES: Final[Mapping[str, type]] = {
    "compute": Several,
    "read": Reading,
    "uneven": Uneven,
    "skim": Skimming,
    "memory": Heavy,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A forecast number and the measured one."""

    seed: int
    analysis: str
    what: str
    forecast: float
    low: float
    high: float
    truth: float
    most: float
    """For memory, the amount that the forecast requests; otherwise infinite."""

    @property
    def error(self) -> float:
        """Relative error of the forecast."""
        return self.forecast / self.truth - 1

    @property
    def held(self) -> bool:
        """Whether the measured number is inside the interval."""
        return self.low <= self.truth <= self.high


def runner() -> Runner:
    """Runner in this process without a metadata cache."""
    return Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=CHUNKSIZE, metadata_cache={})


def forecast_of(name: str, fileset: Any, sample: float, seed: int) -> dict[str, Any]:
    """Forecast of an analysis."""
    return plan(runner(), fileset, ANALYSES[name](), sample=sample, seed=seed, treename=TREE).as_dict()


def truth_of(name: str, fileset: Any) -> dict[str, float]:
    """Measured amounts of the full run."""
    with MetricsCollector(profile=False, journal=None) as collector:
        output = runner()(fileset, treename=TREE, processor_instance=ANALYSES[name]())
    metrics, chunks = collector.measurement.metrics, collector.measurement.chunks
    return {
        "CPU": float(metrics["total_cpu_time"]),
        "bytes": float(chunks["bytes_requested"].sum()),
        "memory": float(chunks["memory_peak"].max()),
        "output": float(pickled_size(output)),
    }


def apart(function: Callable[..., Any], *given: Any) -> Any:
    """Result of a function that runs in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def cases_of(name: str, fileset: Any, sample: float, seed: int) -> list[Case]:
    """Forecast and measured numbers of an analysis."""
    found, truth = apart(forecast_of, name, fileset, sample, seed), apart(truth_of, name, fileset)
    numbers = {
        # the measured CPU time includes the start of one process
        "CPU": {side: value + (found["startup"] or 0.0) for side, value in found["cpu"].items()},
        "bytes": found["endpoints"]["local files"],
        "memory": found["memory"],
        "output": found["output"],
    }
    return [
        Case(
            *(seed, name, what, each["value"], each["low"], each["high"], truth[what]),
            most=found["request"] if what == "memory" else inf,
        )
        for what, each in numbers.items()
    ]


def table_of(seed: int, cases: Sequence[Case]) -> Sheet:
    """Forecast and measured numbers for one seed."""
    rows = []
    for one in cases:
        text = SECOND.text if one.what == "CPU" else BYTE.text
        amounts = (Amount(each, text=text(each)) for each in (one.forecast, one.truth))
        rows.append((f"{one.analysis}: {one.what}", *amounts, one.error, "yes" if one.held else "no"))
    heads = columns(None, "") + columns(COUNT, "forecast", "measured") + columns(FRACTION, "error")
    return Sheet(title=f"Seed {seed}", columns=heads + columns(None, "in interval"), rows=rows)


def main() -> int:
    """Print a table for each seed and the goals for all of them; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", help="seeds for files and samples; use ones never tried before")
    parser.add_argument("--events", type=int, default=20_000, help="events in each of eight files")
    parser.add_argument("--sample", type=float, default=0.1)
    parser.add_argument("--only", choices=ANALYSES, action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases: list[Case] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            baskets = max(given.events // CHUNKSIZE, 1)
            fileset = write_sample(folder, files=4, events=given.events, baskets=baskets, seed=seed)
            for name in given.only or ANALYSES:
                cases += cases_of(name, fileset, given.sample, seed)
        print_sheets([table_of(seed, [one for one in cases if one.seed == seed])])
    cpu = [abs(one.error) for one in cases if one.what == "CPU"]
    memory = [one.truth <= one.most for one in cases if one.what == "memory"]
    held = [one.held for one in cases]
    goals = {
        f"CPU time within {FRACTION.text(CPU_ERROR)}: {sum(error <= CPU_ERROR for error in cpu)} of {len(cpu)} "
        f"(largest error {FRACTION.text(max(cpu))}), goal all": max(cpu) <= CPU_ERROR,
        f"memory below the request: {sum(memory)} of {len(memory)}, goal all": all(memory),
        f"numbers inside their 90 % intervals: {sum(held)} of {len(held)} ({FRACTION.text(sum(held) / len(held))}), "
        f"goal {FRACTION.text(COVERAGE)}": sum(held) >= COVERAGE * len(held),
    }
    rows = [f"{'reached' if reached else 'MISSED'}: {goal}" for goal, reached in goals.items()]
    print_sheets([Sheet(title=f"Goals, for {counted(len(given.seeds), 'seed')}", items=rows)])
    if given.json:
        plain = [asdict(one) | {"most": one.most if isfinite(one.most) else None} for one in cases]
        given.json.write_text(json.dumps(plain, indent=1), encoding="utf-8")
    return int(not all(goals.values()))


if __name__ == "__main__":
    sys.exit(main())
