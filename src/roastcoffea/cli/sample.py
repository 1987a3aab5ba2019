"""Demonstration: generate a NanoAOD-like sample and measure its analysis."""

from __future__ import annotations

import itertools
import logging
import shlex
import sys
import tempfile
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
from coffea.processor import ProcessorABC
from distributed import Client, LocalCluster

from roastcoffea.backends.processes import interrupts_ignored
from roastcoffea.collector import MetricsCollector
from roastcoffea.compat import older_keywords
from roastcoffea.measurement import Measurement
from roastcoffea.storage.store import PAGE_FILE

Numbers = npt.NDArray[Any]
Fileset = dict[str, dict[str, dict[str, str]]]

TREE: Final = "Events"
GENERATION: Final = 1
"""Increase this number if the same parameters no longer produce the same files."""

COMPRESSIONS: Final = {"zlib": uproot.ZLIB(1), "lz4": uproot.LZ4(1), "zstd": uproot.ZSTD(1), "none": None}


@dataclass(frozen=True, slots=True)
class Collection:
    """Distributions for one kind of object, with momenta and masses in GeV."""

    mean_count: float
    softest: float
    slope: float
    """Mean of the exponentially distributed excess over the lowest momentum."""
    max_eta: float
    mass: float | None = None
    """Mean mass; None for objects without a mass in NanoAOD."""
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
"""Available datasets; in the resonant dataset, the mass of the two leading jets has a narrow peak."""


@older_keywords(folder="path")
def write_sample(
    path: str | Path,
    *,
    datasets: Sequence[str] = tuple(RESONANT),
    files: int = 3,
    events: int = 40_000,
    baskets: int = 4,
    compression: str = "zlib",
    seed: int = 1,
) -> Fileset:
    """Return the fileset for a sample; generate the sample if it is missing.

    Parameters
    ----------
    path
        Folder for samples, with one subfolder for each set of parameters; created if missing.
    datasets
        One or both of "qcd" (falling spectrum) and "zprime" (dijet resonance at 500 GeV).
    files
        Number of files in each dataset.
    events
        Number of events in each file; with "zlib", each event takes about 150 bytes of disk space.
    baskets
        Number of baskets per branch in each file.
    compression
        "zlib", "lz4", "zstd" or "none".
    seed
        The same parameters and seed produce the same events, regardless of which other datasets are requested.
    """
    check_sample(datasets, files, events, baskets, compression)
    name = f"{'+'.join(datasets)}-{files}x{events}-{baskets}baskets-{compression}-{seed}-v{GENERATION}"
    sample = Path(path).absolute() / name
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
                if not sample.is_dir():  # another process generated the sample first
                    raise
    return {name: {"files": {str(sample / file_name(name, number)): TREE for number in numbers}} for name in datasets}


def check_sample(datasets: Sequence[str], files: int, events: int, baskets: int, compression: str) -> None:
    for kind, names, known in (("dataset", datasets, RESONANT), ("compression", [compression], COMPRESSIONS)):
        for name in names:
            if name not in known:
                raise ValueError(f"no {kind} {name!r}; choose from {', '.join(known)}")
    if files < 1:
        raise ValueError(f"{files} files per dataset; each needs at least one file")
    if not 1 <= baskets <= events:
        raise ValueError(f"{baskets} baskets for {events} events; each needs at least one event")


def file_name(dataset: str, number: int) -> str:
    return f"{dataset}_{number}.root"


def write_file(path: Path, baskets: Iterator[dict[str, ak.Array]], compression: str) -> None:
    """Write a file in which each item of `baskets` becomes one basket of every branch."""
    with uproot.recreate(path, compression=COMPRESSIONS[compression]) as file:
        first = next(baskets)
        types = {name: array.type.content for name, array in first.items()}
        tree = file.mktree(TREE, types, counter_name=lambda counted: f"n{counted}")
        for basket in itertools.chain([first], baskets):
            tree.extend(basket)


def draw_events(random: np.random.Generator, number: Numbers, resonant: bool) -> dict[str, ak.Array]:
    """Generate events with the given event numbers, by branch or collection."""
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
    """Draw indices into other collections (-1 for none), because NanoAODSchema warns if they are missing."""
    return {
        branch.removeprefix(f"{name}_"): random.integers(-1, np.repeat(counts[target], counts[name]))
        for branch, target in NanoAODSchema.all_cross_references.items()
        if branch.startswith(f"{name}_") and target in COLLECTIONS
    }


def draw_objects(random: np.random.Generator, kind: Collection, total: int) -> dict[str, Numbers]:
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
    """Replace each event's first two jets with the decay products of a heavy particle at zero transverse momentum."""
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
    """Group objects by event, hardest first."""
    columns = {
        name: cut_mantissa(values) if values.dtype == np.float64 else values.astype(np.int32)
        for name, values in objects.items()
    }
    event = np.repeat(np.arange(len(count)), count)
    order = np.lexsort((-columns["pt"], event))
    return ak.zip({name: ak.unflatten(values[order], count) for name, values in columns.items()})


def cut_mantissa(values: Numbers) -> Numbers:
    """Truncate to 10 mantissa bits in single precision, as in NanoAOD, because full mantissas do not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


class DijetProcessor(ProcessorABC):  # type: ignore[misc]
    """Dijet mass of the two hardest central jets without overlapping muons."""

    def process(self, events: ak.Array) -> dict[str, dict[str, Any]]:
        """Return event and dijet counts and a mass histogram for each dataset."""
        jets = clean_jets(events)
        pairs = jets[ak.num(jets) >= 2]
        mass = (pairs[:, 0] + pairs[:, 1]).mass
        spectrum = hist.Hist.new.Regular(100, 0, 1000, name="mass", label="Dijet mass [GeV]").Double()
        spectrum.fill(mass)
        return {events.metadata["dataset"]: {"events": len(events), "dijet_events": len(mass), "mass": spectrum}}

    def postprocess(self, accumulator: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return accumulator


def clean_jets(events: ak.Array) -> ak.Array:
    """Select jets that are in the tracker acceptance and do not overlap with muons."""
    muons = events.Muon[events.Muon.pt > 10]
    distances = events.Jet.metric_table(muons)
    apart = ak.all(distances > 0.4, axis=2)
    return events.Jet[(events.Jet.pt > 30) & (abs(events.Jet.eta) < 2.5) & apart]


def run_demo(
    *, files: int, events: int, chunksize: int, workers: int, threads: int, folder: str | Path | None, out: str | Path
) -> Path:
    """Measure an analysis on a local cluster, and return the path to the measurement.

    Parameters
    ----------
    files, events
        Number of files in each of the two datasets, and number of events in each file.
    chunksize
        Approximate number of events per task; coffea splits each file into equal chunks.
    workers, threads
        Number of worker processes, and number of threads per worker.
    folder
        Folder in which to keep the sample for reuse; if None, a temporary folder is used.
    out
        Folder for measurements; the new measurement gets an unused name.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="roastcoffea-demo-") as scratch:
        click.echo("Generating the sample, then measuring its analysis on a local cluster ...")
        fileset = write_sample(folder or scratch, files=files, events=events)
        with local_client(workers, threads, scratch) as client:
            measurement = measure(client, fileset, chunksize)
    path = measurement.save(out)
    measurement.report(path / PAGE_FILE)
    measurement.print_summary()
    click.echo(f"All runs: roastcoffea list {shlex.quote(str(out))}; what the numbers mean: roastcoffea metrics")
    return path


@contextmanager
def local_client(workers: int, threads: int, scratch: str) -> Iterator[Client]:
    with dask.config.set({"temporary-directory": scratch}), ExitStack() as stack:
        settings = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
        with interrupts_ignored():  # workers report an error if the scheduler closes between heartbeats
            cluster = stack.enter_context(LocalCluster(**settings, silence_logs=logging.CRITICAL))
        yield stack.enter_context(Client(cluster))


def measure(client: Client, fileset: Fileset, chunksize: int) -> Measurement:
    """Measure the analysis as a user would."""
    from coffea.processor import DaskExecutor, Runner

    processor = DijetProcessor()
    executor = DaskExecutor(client=client, status=sys.stdout.isatty())
    runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector(client, processor_instance=processor) as collector:
        runner(fileset, treename=TREE, processor_instance=processor)
    return collector.measurement
