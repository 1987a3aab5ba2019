"""One run of a program in the shape of the Integration Challenge: what it cost each process, as JSON.

`overhead.py --challenge` runs it, each time with a new scheduler, new workers and a new client, so that what a process
pays once is in the figures. It needs `coffea[dask]` of this Python, and a collector only where one is wanted:
`python benchmarks/challenge.py FOLDER [--measured]`, and first `--write` for the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import awkward as ak
import hist
import numpy as np
import psutil
import uproot
from coffea import processor
from coffea.nanoevents import NanoAODSchema
from distributed import Client
from distributed.deploy.subprocess import SubprocessCluster

FILES: Final = 5
CHUNKS: Final = 10
EVENTS: Final = 20_000
"""In a chunk, which is a basket of each branch."""
WORKERS: Final = 2
COLLECTIONS: Final = {
    "Jet": ("pt", "eta", "phi", "mass", "btag", "quality"),
    "Muon": ("pt", "eta", "phi", "mass", "iso", "charge"),
    "Electron": ("pt", "eta", "phi", "mass", "iso", "charge"),
}
SCALARS: Final = ("MET_pt", "MET_phi", "genWeight")
"""With these and three counts there are 24 branches that the analysis reads; coffea asks for three more."""
SHIFTS: Final = tuple(np.linspace(0.94, 1.06, 33))


class Plain:
    """What the program uses of a collector, where there is none."""

    @staticmethod
    def track_metrics(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    @staticmethod
    @contextlib.contextmanager
    def track_time(_processor: Any, _section: str) -> Iterator[None]:
        yield


def selection(tracked: Any) -> processor.ProcessorABC:
    """The analysis, with these decorators around its parts."""
    track_metrics, track_time = tracked.track_metrics, tracked.track_time

    class Selection(processor.ProcessorABC):
        """Pairs of jets with a lepton, in histograms by shift of the jets' energy."""

        @track_metrics
        def process(self, events: Any) -> dict[str, Any]:
            with track_time(self, "selection"):
                muons = events.Muon[(events.Muon.pt > 20) & (events.Muon.iso < 0.2) & (abs(events.Muon.eta) < 2.4)]
                electrons = events.Electron[(events.Electron.pt > 20) & (events.Electron.iso < 0.2)]
                leptons = ak.with_name(ak.concatenate([muons, electrons], axis=1), "PtEtaPhiMLorentzVector")
                passed = abs(ak.sum(leptons.charge, axis=1)) == 1
                leading = ak.firsts(leptons[passed])
            filled = {
                name: hist.Hist.new.Variable(SHIFTS, name="shift").Reg(60, 0, 600, name="value").Weight()
                for name in ("pairs", "st", "mt", "nearest")
            }
            with track_time(self, "histograms"):
                for shift in SHIFTS[:-1]:
                    self.fill(filled, events[passed], leading, shift)
            return {**filled, "events": {events.metadata["dataset"]: len(events)}}

        def fill(self, filled: dict[str, Any], events: Any, lepton: Any, shift: float) -> None:
            jets = ak.with_field(events.Jet, events.Jet.pt * shift, "pt")
            jets = jets[(jets.pt > 30) & (abs(jets.eta) < 2.4) & (jets.quality > 0) & (jets.btag > 0.2)]
            pairs = ak.combinations(jets, 2, fields=["one", "two"])
            angle = abs(lepton.phi - events.MET.phi)
            masses = (pairs.one + pairs.two).mass
            values = {
                "pairs": ak.flatten(masses),
                "st": ak.sum(jets.pt, axis=1) + lepton.pt + events.MET.pt,
                "mt": np.sqrt(2 * lepton.pt * events.MET.pt * (1 - np.cos(angle))),
                "nearest": ak.fill_none(lepton.delta_r(ak.firsts(jets)), 0) * lepton.mass,
            }
            weights = events.genWeight
            for name, value in values.items():
                weight = ak.flatten(ak.broadcast_arrays(weights, masses)[0]) if name == "pairs" else weights
                filled[name].fill(shift=shift, value=value, weight=weight)

        def postprocess(self, accumulator: Any) -> Any:
            return accumulator

    return Selection()


def write(folder: Path) -> None:
    """Write the files, each with as many baskets as it has chunks."""
    random = np.random.default_rng(1)
    for number in range(FILES):
        with uproot.recreate(folder / f"{number}.root") as root:
            tree = None
            for _ in range(CHUNKS // FILES):
                columns = {name: random.exponential(40, EVENTS).astype(np.float32) for name in SCALARS}
                columns |= {name: np.arange(EVENTS) for name in ("run", "luminosityBlock", "event")}
                for collection, names in COLLECTIONS.items():
                    counts = random.poisson(5 if collection == "Jet" else 1, EVENTS)
                    parts = {name: column(random, name, int(counts.sum())) for name in names}
                    columns[collection] = ak.unflatten(ak.zip(parts), counts)
                if tree is None:
                    tree = root.mktree("Events", {name: kind(values) for name, values in columns.items()})
                tree.extend(columns)


def kind(values: Any) -> Any:
    return values.dtype if isinstance(values, np.ndarray) else values.type.content


def column(random: np.random.Generator, name: str, size: int) -> Any:
    """Values of a branch of objects."""
    if name in {"quality", "charge"}:
        return random.integers(2, size=size) * 2 - 1
    scale = {"pt": 40.0, "mass": 8.0, "iso": 0.2, "btag": 0.5}.get(name)
    values = random.normal(0, 1.5, size) if scale is None else random.exponential(scale, size)
    return values.astype(np.float32)


def analyse(client: Client, fileset: dict[str, Any], instance: Any) -> tuple[Any, Any]:
    """The program's own Runner calls, with work items in place of files."""
    executor = processor.DaskExecutor(client=client, treereduction=8, status=False)
    runner = processor.Runner(
        executor=executor, schema=NanoAODSchema, savemetrics=True, chunksize=EVENTS, skipbadfiles=True
    )
    items = list(runner.preprocess(fileset, treename="Events"))
    return runner(items, processor_instance=instance)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time of these processes so far, user and system."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def run(folder: Path, *, measured: bool) -> dict[str, Any]:
    """Seconds of CPU and of wall time that one run took, and sums by which outputs are compared.

    The client's include importing the collector, entering and leaving it; "import" is the first of them alone, and
    "tables" are what is asked of the measurement afterwards.
    """
    fileset = {"sample": {"files": {str(path): "Events" for path in sorted(folder.glob("*.root"))}}}
    cluster = SubprocessCluster(
        n_workers=WORKERS, threads_per_worker=1, worker_class="distributed.Worker", dashboard_address=None
    )
    with cluster, Client(cluster) as client:
        client.wait_for_workers(WORKERS)
        processes = {
            "client": [psutil.Process()],
            "scheduler": [psutil.Process(client.run_on_scheduler(os.getpid))],
            "workers": [psutil.Process(pid) for pid in client.run(os.getpid).values()],
        }
        before, began = {name: cpu_seconds(some) for name, some in processes.items()}, time.perf_counter()
        collector, instance, imported = None, selection(Plain), 0.0
        if measured:
            import roastcoffea

            kind, imported = roastcoffea.MetricsCollector, cpu_seconds(processes["client"]) - before["client"]
            instance = selection(roastcoffea)
            collector = kind(client, processor_instance=instance)
        with collector or contextlib.nullcontext():
            output, report = analyse(client, fileset, instance)
        found = {name: cpu_seconds(some) - before[name] for name, some in processes.items()}
        found |= {"wall": time.perf_counter() - began, "import": imported}
        before_tables = time.process_time()
        if collector is not None:
            collector.extract_metrics_from_output(output)
            collector.set_coffea_report(report)
            collector.get_metrics()
        found["tables"] = time.process_time() - before_tables
    if (report["chunks"], output["events"]["sample"]) != (CHUNKS, CHUNKS * EVENTS):
        raise RuntimeError(f"expected {CHUNKS} chunks of {EVENTS} events; coffea reports {report}")
    views = [filled.values(flow=True).ravel() for filled in output.values() if isinstance(filled, hist.Hist)]
    return found | {"sums": [float(view @ np.arange(len(view))) for view in views]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measured", action="store_true")
    options = parser.parse_args()
    if options.write:
        write(options.folder)
    else:
        print(json.dumps(run(options.folder, measured=options.measured)))
