"""One analysis on Dask, Futures and Iterative, in the environment of this Python: its results as JSON.

coffea 2024 has no Runner, so there the analysis is a graph of dask-awkward, on Dask alone. `__main__.py` calls this
file. It needs `coffea[dask]` and roastcoffea, and nothing of this folder.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

GENERATION: Final = tuple(map(int, version("coffea").split(".")[:2]))
HAS_RUNNER: Final = not (2024, 0) <= GENERATION < (2025, 4)
EXECUTORS: Final = ("dask", "futures", "iterative") if HAS_RUNNER else ("dask",)
CHUNKSIZE: Final = 5000
"""As many events as a basket has, so that none is read twice."""


def run(executor: Any, fileset: dict[str, Any]) -> Any:
    """Output of the analysis without a cache of files: each run opens all of them."""
    from coffea.nanoevents import NanoAODSchema
    from coffea.processor import Runner

    from roastcoffea.demo import DijetProcessor

    NanoAODSchema.warn_missing_crossrefs = False
    if GENERATION < (2023, 0):  # lists of files
        fileset = {dataset: list(files["files"]) for dataset, files in fileset.items()}
    runner = Runner(executor, schema=NanoAODSchema, chunksize=CHUNKSIZE, metadata_cache={})
    return runner(fileset, treename="Events", processor_instance=DijetProcessor())


def run_graph(fileset: dict[str, Any]) -> Any:
    """Output of a graph of dask-awkward."""
    import awkward as ak
    import dask
    import hist.dask
    from coffea.dataset_tools import apply_to_fileset, preprocess
    from coffea.nanoevents import NanoAODSchema

    from roastcoffea.demo import clean_jets

    def dijets(events: Any) -> Any:
        jets = clean_jets(events)
        pairs = jets[ak.num(jets) >= 2]
        spectrum = hist.dask.Hist.new.Regular(100, 0, 1000, name="mass").Double()
        return {"events": ak.num(events, axis=0), "mass": spectrum.fill((pairs[:, 0] + pairs[:, 1]).mass)}

    NanoAODSchema.warn_missing_crossrefs = False
    ready, _ = preprocess(fileset, step_size=CHUNKSIZE)
    (output,) = dask.compute(apply_to_fileset(dijets, ready, schemaclass=NanoAODSchema))
    return output


def baskets_of(fileset: dict[str, Any], branches: list[str]) -> dict[str, int]:
    """Bytes of all baskets of branches as uproot has them."""
    import uproot

    sizes = dict.fromkeys(branches, 0)
    for files in fileset.values():
        for path, tree in files["files"].items():
            with uproot.open(f"{path}:{tree}") as opened:
                for name in branches:
                    branch = opened[name]
                    sizes[name] += sum(branch.basket_compressed_bytes(basket) for basket in range(branch.num_baskets))
    return sizes


def one_round(
    run: Callable[[dict[str, Any]], Any], collect: Callable[[], Any], fileset: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """A run without a collector and one with it, and whether everything that people do with the second works."""
    from roastcoffea import load

    plain = run(fileset)
    with collect() as collector:
        output = run(fileset)
    measurement = collector.measurement
    ledger, time = measurement.byte_ledger, measurement.time_ledger
    payload = ledger.by("branch")["payload"]
    branches = [name for name in payload.index if payload[name] and not name.startswith("(")]
    with redirect_stdout(io.StringIO()) as printed:
        collector.print_summary()
    loaded = load(measurement.save(folder.parent, folder.name, overwrite=True))
    page = loaded.report(folder.with_suffix(".html"), overwrite=True).read_text(encoding="utf-8")
    return {
        "output": output == plain,
        "payload": payload[branches].astype(int).to_dict() == baskets_of(fileset, branches) and len(branches) > 5,
        "payload_bytes": int(ledger["payload"]),
        "bytes_residual": int(ledger.residual),
        "time_residual": float(time.residual / time.total),
        "shares": {name: seconds / time.total for name, seconds in time.items()},
        "missing": dict(measurement.metrics.missing),
        "problems": measurement.problems,
        "summary": len(printed.getvalue().splitlines()) > 5,
        "loaded": loaded.byte_ledger.total == ledger.total and loaded.time_ledger.total == time.total,
        "page": page.startswith("<!doctype html>") and page.rstrip().endswith("</html>"),
    }


def runs(client: Any) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The analysis by what executes it."""
    if not HAS_RUNNER:
        return {"dask": run_graph}
    from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor

    makers: dict[str, Callable[[], Any]] = {
        "dask": lambda: DaskExecutor(client=client, status=False),
        "futures": lambda: FuturesExecutor(workers=2, status=False),
        "iterative": lambda: IterativeExecutor(status=False),
    }
    return {name: partial(lambda make, fileset: run(make(), fileset), make) for name, make in makers.items()}


def measure(fileset: dict[str, Any], folder: Path, rounds: int) -> dict[str, Any]:
    """Results of each round on each executor; of the last one there is a measurement and a page in the folder."""
    from distributed import Client, LocalCluster

    from roastcoffea import MetricsCollector

    found: dict[str, Any] = {}
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        for name, made in runs(client).items():
            clients = [client] if name == "dask" else []
            collect = partial(MetricsCollector, *clients, everything=not HAS_RUNNER)
            found[name] = [one_round(made, collect, fileset, folder / name) for _ in range(rounds)]
    return found


def versions() -> dict[str, str]:
    """Versions of the packages that a table names."""
    import platform

    names = ("coffea", "dask", "uproot", "awkward", "numpy", "pyarrow", "bokeh")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def main() -> None:
    """Measure, or compare with measurements of another environment, as the arguments say."""
    action, *given = sys.argv[1:]
    warnings.filterwarnings("ignore", "Performed attempt", UserWarning)
    if action == "measure":
        fileset, folder, rounds = json.loads(Path(given[0]).read_text(encoding="utf-8")), Path(given[1]), int(given[2])
        result = {"versions": versions(), "executors": measure(fileset, folder, rounds)}
    else:
        from roastcoffea import compare, load

        ours, theirs = map(Path, given)
        both = [name for name in EXECUTORS if (theirs / name).exists()]
        compared = {name: compare(load(theirs / name), load(ours / name)) for name in both}
        result = {name: len(str(comparison).splitlines()) > 5 for name, comparison in compared.items()}
    Path(given[0] if action == "compare" else given[1], f"{action}.json").write_text(
        json.dumps(result), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
