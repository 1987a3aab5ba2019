"""A generated NanoAOD-like sample, an analysis of it, and both measured as a demonstration."""

from __future__ import annotations

import itertools
import logging
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import awkward as ak
import click
import dask
import hist
import numpy as np
import numpy.typing as npt
import uproot
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed import Client, LocalCluster

from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.storage.store import PAGE_FILE

Numbers = npt.NDArray[Any]
Fileset = dict[str, dict[str, dict[str, str]]]

TREE: Final = "Events"
GENERATION: Final = 1
"""Version of the generated content: increase it if equal parameters give other files than before."""

COMPRESSIONS: Final = {"zlib": uproot.ZLIB(1), "lz4": uproot.LZ4(1), "zstd": uproot.ZSTD(1), "none": None}


@dataclass(frozen=True, slots=True)
class Collection:
    """Distribution of the objects of one kind; momenta and masses in GeV."""

    mean_count: float
    softest: float
    slope: float
    """Mean of the exponential distribution of momenta above the softest."""
    max_eta: float
    mass: float | None = None
    """Mean for jets; None if NanoAOD stores no mass."""
    charged: bool = False


COLLECTIONS: Final[Mapping[str, Collection]] = {
    "Jet": Collection(4.5, softest=15, slope=35, max_eta=4.7, mass=8),
    "FatJet": Collection(0.4, softest=170, slope=80, max_eta=2.4, mass=60),
    "SubJet": Collection(0.8, softest=20, slope=60, max_eta=2.4, mass=20),
    "Electron": Collection(0.6, softest=5, slope=20, max_eta=2.5, mass=0.000511, charged=True),
    "LowPtElectron": Collection(0.2, softest=1, slope=3, max_eta=2.5, mass=0.000511, charged=True),
    "Muon": Collection(0.6, softest=3, slope=20, max_eta=2.4, mass=0.10566, charged=True),
    "Tau": Collection(0.3, softest=18, slope=20, max_eta=2.3, mass=1.2, charged=True),
    "Photon": Collection(0.7, softest=5, slope=20, max_eta=2.5),
    "FsrPhoton": Collection(0.1, softest=2, slope=5, max_eta=2.4),
}

RESONANT: Final[Mapping[str, bool]] = {"qcd": False, "zprime": True}
"""Datasets that can be generated; the resonant one has a narrow peak in the mass of the two leading jets."""


def write_sample(
    folder: str | Path,
    *,
    datasets: Sequence[str] = tuple(RESONANT),
    files: int = 3,
    events: int = 40_000,
    baskets: int = 4,
    compression: str = "zlib",
    seed: int = 1,
) -> Fileset:
    """Fileset of a sample in `folder`, generated unless it exists with the same parameters.

    Parameters
    ----------
    folder
        Folder of samples, with one subfolder per set of parameters; created if missing.
    datasets
        Some of "qcd" (falling spectrum) and "zprime" (dijet resonance at 500 GeV).
    files
        Files in each dataset.
    events
        Events in each file; about 150 bytes each on disk with "zlib".
    baskets
        Baskets of each branch in a file.
    compression
        "zlib", "lz4", "zstd" or "none".
    seed
        Equal parameters and seed give equal events, independent of other requested datasets.
    """
    check_sample(datasets, files, events, baskets, compression)
    name = f"{'+'.join(datasets)}-{files}x{events}-{baskets}baskets-{compression}-{seed}-v{GENERATION}"
    sample = Path(folder).absolute() / name
    numbers = range(1, files + 1)
    if not sample.is_dir():
        sample.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=sample.parent) as scratch:
            unfinished = Path(scratch, name)
            unfinished.mkdir()
            for dataset, number in itertools.product(datasets, numbers):
                random = np.random.default_rng([seed, number, *dataset.encode()])
                first = (number - 1) * events + 1
                edges = [first + events * basket // baskets for basket in range(baskets + 1)]
                drawn = (draw_events(random, np.arange(*edge), RESONANT[dataset]) for edge in itertools.pairwise(edges))
                write_file(unfinished / file_name(dataset, number), drawn, compression)
            try:
                unfinished.rename(sample)
            except OSError:
                if not sample.is_dir():  # another process was quicker
                    raise
    return {name: {"files": {str(sample / file_name(name, number)): TREE for number in numbers}} for name in datasets}


def check_sample(datasets: Sequence[str], files: int, events: int, baskets: int, compression: str) -> None:
    """Raise a ValueError if such a sample cannot be made."""
    for kind, names, known in (("dataset", datasets, RESONANT), ("compression", [compression], COMPRESSIONS)):
        for name in names:
            if name not in known:
                raise ValueError(f"no {kind} {name!r}; choose from {', '.join(known)}")
    if files < 1:
        raise ValueError(f"{files} files in a dataset; it needs at least one")
    if not 1 <= baskets <= events:
        raise ValueError(f"{baskets} baskets for {events} events; each needs at least one event")


def file_name(dataset: str, number: int) -> str:
    """File name of a dataset; files count from 1."""
    return f"{dataset}_{number}.root"


def write_file(path: Path, baskets: Iterator[dict[str, ak.Array]], compression: str) -> None:
    """Write one file; each extension of a tree becomes one basket of every branch."""
    with uproot.recreate(path, compression=COMPRESSIONS[compression]) as file:
        first = next(baskets)
        types = {name: array.type.content for name, array in first.items()}
        tree = file.mktree(TREE, types, counter_name=lambda counted: f"n{counted}")
        for basket in itertools.chain([first], baskets):
            tree.extend(basket)


def draw_events(random: np.random.Generator, number: Numbers, resonant: bool) -> dict[str, ak.Array]:
    """Events with these numbers, by branch or collection."""
    events = len(number)
    counts: dict[str, Numbers] = {name: random.poisson(kind.mean_count, events) for name, kind in COLLECTIONS.items()}
    if resonant:
        counts["Jet"] += 2
    met = random.gamma(2.0, 15.0, events)
    branches: dict[str, Numbers] = {
        "run": np.ones(events, np.uint32),
        "luminosityBlock": (number // 1000 + 1).astype(np.uint32),
        "event": number.astype(np.uint64),
        "MET_pt": cut_mantissa(met),
        "MET_phi": cut_mantissa(random.uniform(-np.pi, np.pi, events)),
        "MET_sumEt": cut_mantissa(met + random.exponential(400.0, events)),
    }
    arrays = {name: ak.Array(values) for name, values in branches.items()}
    for name, kind in COLLECTIONS.items():
        objects = draw_objects(random, kind, int(counts[name].sum()))
        if name == "Jet" and resonant:
            put_resonance(random, objects, counts["Jet"])
        arrays[name] = jagged(objects | draw_references(random, name, counts), counts[name])
    return arrays


def draw_references(random: np.random.Generator, name: str, counts: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Indices of objects in other collections, -1 for none: all those that NanoAODSchema would warn about."""
    return {
        branch.removeprefix(f"{name}_"): random.integers(-1, np.repeat(counts[target], counts[name]))
        for branch, target in NanoAODSchema.all_cross_references.items()
        if branch.startswith(f"{name}_") and target in COLLECTIONS
    }


def draw_objects(random: np.random.Generator, kind: Collection, total: int) -> dict[str, Numbers]:
    """Objects of all events in sequence, with exponentially falling momenta."""
    objects: dict[str, Numbers] = {
        "pt": kind.softest + random.exponential(kind.slope, total),
        "eta": np.clip(random.normal(0, kind.max_eta / 2, total), -kind.max_eta, kind.max_eta),
        "phi": random.uniform(-np.pi, np.pi, total),
    }
    if kind.charged:
        objects["mass"] = np.full(total, kind.mass)
        objects["charge"] = random.choice([-1, 1], total)
    elif kind.mass is not None:
        objects["mass"] = random.gamma(4.0, kind.mass / 4, total)
    return objects


def put_resonance(random: np.random.Generator, jets: dict[str, Numbers], count: Numbers) -> None:
    """Replace the first two jets of every event by the decay of one heavy particle at rest in the plane."""
    first = np.cumsum(count) - count
    cosine = random.uniform(-0.6, 0.6, len(count))
    half_mass = random.normal(500.0, 40.0, len(count)) / 2  # GeV
    rapidity = random.normal(0, 0.3, len(count))
    phi = random.uniform(-np.pi, np.pi, len(count))
    for jet, side in ((first, 1), (first + 1, -1)):
        jets["pt"][jet] = half_mass * np.sqrt(1 - cosine**2)
        jets["eta"][jet] = rapidity + side * np.arctanh(cosine)
        jets["phi"][jet] = phi if side > 0 else np.where(phi > 0, phi - np.pi, phi + np.pi)


def jagged(objects: Mapping[str, Numbers], count: Numbers) -> ak.Array:
    """Objects grouped by event, hardest first."""
    columns = {
        name: cut_mantissa(values) if values.dtype == np.float64 else values.astype(np.int32)
        for name, values in objects.items()
    }
    event = np.repeat(np.arange(len(count)), count)
    order = np.lexsort((-columns["pt"], event))
    return ak.zip({name: ak.unflatten(values[order], count) for name, values in columns.items()})


def cut_mantissa(values: Numbers) -> Numbers:
    """Values in single precision with 10 bits of mantissa, as in NanoAOD: full ones do not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


class DijetProcessor(ProcessorABC):  # type: ignore[misc]
    """Mass of the two hardest central jets of an event that do not overlap with muons."""

    def process(self, events: ak.Array) -> dict[str, dict[str, Any]]:
        """Events, events with two such jets, and a histogram of the mass, by dataset."""
        jets = clean_jets(events)
        pairs = jets[ak.num(jets) >= 2]
        mass = (pairs[:, 0] + pairs[:, 1]).mass
        spectrum = hist.Hist.new.Regular(100, 0, 1000, name="mass", label="Dijet mass [GeV]").Double()
        spectrum.fill(mass)
        return {events.metadata["dataset"]: {"events": len(events), "dijet_events": len(mass), "mass": spectrum}}

    def postprocess(self, accumulator: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The accumulated output, unchanged."""
        return accumulator


def clean_jets(events: ak.Array) -> ak.Array:
    """Jets within the tracker acceptance that are not muons."""
    muons = events.Muon[events.Muon.pt > 10]
    distances = events.Jet.metric_table(muons)
    apart = ak.all(distances > 0.4, axis=2)
    return events.Jet[(events.Jet.pt > 30) & (abs(events.Jet.eta) < 2.5) & apart]


def run_demo(
    *, files: int, events: int, chunksize: int, workers: int, threads: int, folder: str | Path | None, out: str | Path
) -> Path:
    """Measure an analysis of a sample on a cluster on this machine, and return the path of the saved measurement.

    Parameters
    ----------
    files, events
        Size of each of the two datasets: files, and events in each file.
    chunksize
        Approximate number of events per task; coffea splits each file into equal chunks.
    workers, threads
        Worker processes, and threads per worker.
    folder
        Folder to keep the sample for reuse; None for a temporary one.
    out
        Folder of saved measurements, in which this one gets a new name.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="roastcoffea-demo-") as scratch:
        click.echo("Making the sample, then measuring its analysis on a cluster of this machine ...")
        fileset = write_sample(folder or scratch, files=files, events=events)
        with local_client(workers, threads, scratch) as client:
            measurement = measure(client, fileset, chunksize)
    path = measurement.save(out)
    measurement.report(path / PAGE_FILE)
    measurement.print_summary()
    click.echo(f"All runs: roastcoffea list {shlex.quote(str(out))}; their numbers: roastcoffea metrics")
    return path


@contextmanager
def local_client(workers: int, threads: int, scratch: str) -> Iterator[Client]:
    """Client of a cluster on this machine that cleans up after itself."""
    with dask.config.set({"temporary-directory": scratch}), ExitStack() as stack:
        settings = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
        with interrupts_ignored():  # to a worker, a scheduler that closes between two heartbeats is an error
            cluster = stack.enter_context(LocalCluster(**settings, silence_logs=logging.CRITICAL))
        yield stack.enter_context(Client(cluster))


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block; processes started in it always ignore it.

    A terminal interrupts all its processes at once, and each worker would print a traceback of its own.
    Blocking the signal would lose none of them, but multiprocessing unblocks it as it starts a process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def measure(client: Client, fileset: Fileset, chunksize: int) -> Measurement:
    """Measurement of the analysis, with everything that a user adds to it."""
    processor = DijetProcessor()
    executor = DaskExecutor(client=client, status=sys.stdout.isatty())
    runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector(client, processor_instance=processor) as collector:
        runner(fileset, treename=TREE, processor_instance=processor)
    return collector.measurement
