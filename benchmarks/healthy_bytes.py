"""Byte ledgers of healthy runs in fresh processes: they must be complete, imports of the first chunks included.

`python benchmarks/healthy_bytes.py` makes RUNS runs in turns on Dask (with processes that have imported nothing), on
processes of a pool, and on a thread, and prints what each one's certificate says and what was read by other means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import uproot

RUNS: Final = 40
WAYS: Final = ("dask", "futures", "iterative")
EVENTS: Final = 20_000
CHUNKS: Final = 6


def write_files(folder: Path) -> None:
    random = np.random.default_rng(1)
    for number in range(2):
        with uproot.recreate(folder / f"{number}.root") as file:
            counts = random.integers(0, 5, EVENTS)
            parts = {
                name: np.array_split(random.exponential(30, counts.sum()), np.cumsum(counts)[:-1]) for name in "pq"
            }
            file["Events"] = {"met": random.exponential(20, EVENTS), "weight": random.normal(size=EVENTS)} | {
                f"Jet_{name}": _jagged(values) for name, values in parts.items()
            }


def _jagged(values: Any) -> Any:
    import awkward as ak

    return ak.Array(list(values))


def analyse(way: str, folder: str) -> None:
    """One run, in a process of its own; the analysis imports what it needs in process()."""
    from coffea.nanoevents import BaseSchema
    from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, ProcessorABC, Runner

    from roastcoffea import MetricsCollector

    class Analysis(ProcessorABC):  # type: ignore[misc]
        def process(self, events: Any) -> dict[str, Any]:
            import awkward as ak
            import hist
            import scipy.stats
            import vector

            vector.register_awkward()
            jets = events.Jet_p[events.Jet_p > 20]
            filled = hist.Hist.new.Reg(50, 0, 200).Weight().fill(ak.flatten(jets))
            return {"met": filled, "p": float(scipy.stats.norm.cdf(ak.mean(events.met) / 20))}

        def postprocess(self, accumulator: Any) -> Any:
            return accumulator

    client = None
    if way == "dask":
        from distributed import Client

        client = Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
        executor = DaskExecutor(client=client, status=False)
    else:
        executor = FuturesExecutor(workers=2, status=False) if way == "futures" else IterativeExecutor(status=False)
    files = {"d": {"files": {str(path): "Events" for path in Path(folder).glob("*.root")}}}
    with MetricsCollector(*([client] if client else [])) as collector:
        Runner(executor, schema=BaseSchema, chunksize=2 * EVENTS // CHUNKS)(files, processor_instance=Analysis())
    ledger = collector.measurement.byte_ledger
    chunks = collector.measurement.chunks
    print("result", ledger.certificate.complete, ledger.unmetered, ledger.total, chunks["bytes_unmetered"].max())
    print(ledger.certificate)
    if client is not None:
        client.close()


def main(runs: int) -> None:
    complete = 0
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for number in range(runs):
            way = WAYS[number % len(WAYS)]
            command = [sys.executable, __file__, "--run", way, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("result")]
            _, whole, unmetered, total, most = line.split()
            complete += whole == "True"
            print(f"{way:10}{whole:6} {unmetered:>9} B unmetered, most in a chunk {most}, of {total} B", flush=True)
    print(f"{complete} of {runs} healthy runs are complete")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        analyse(*given.run)
    else:
        main(given.runs)
