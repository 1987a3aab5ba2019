"""Notebooks in the shape of those that users of 0.1.2 have: their calls, one cell after the other.

What TaskMonitor's own notebook does is in tests/monitor. Numbers are those of the cells; the first of each notebook
(imports, processors, monitor, cluster) are the module's own and fixtures. docs/migration.md has what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import awkward as ak
import matplotlib as mpl
import pandas as pd
import pytest
from analyses import spin
from coffea import processor
from coffea.nanoevents import NanoAODSchema
from distributed import Client

from roastcoffea import (
    MetricsCollector,
    TaskMonitor,
    plot_per_task_bytes_read,
    plot_per_task_cpu_io,
    plot_per_task_overhead,
)
from roastcoffea.visualization.plots.per_task import extract_per_task_metrics

pytestmark = pytest.mark.slow

COLUMNS = [
    *(("Jet", name) for name in ("pt", "eta", "phi", "mass")),
    *(("Electron", name) for name in ("pt", "eta")),
    *(("Muon", name) for name in ("pt", "eta")),
    *(("Electron", "phi"), ("Muon", "phi")),
]


class Averages(processor.ProcessorABC):
    """Means of so many columns."""

    def __init__(self, num_branches: int) -> None:
        self.num_branches = num_branches

    def process(self, events: Any) -> dict[str, Any]:
        found = {"nevents": len(events)}
        for collection, name in COLUMNS[: self.num_branches]:
            values = events[collection][name]
            found[f"mean_{collection}_{name}"] = ak.mean(values[values > -10])
        return found

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Dijets(processor.ProcessorABC):
    """Mass of the two leading jets."""

    def process(self, events: Any) -> dict[str, Any]:
        jets = events.Jet[events.Jet.pt > 30]
        pairs = jets[ak.num(jets) >= 2]
        mass = (pairs[:, 0] + pairs[:, 1]).mass
        return {"nevents": len(events), "njets": int(ak.sum(ak.num(jets))), "mass": float(ak.sum(mass))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Heavy(Dijets):
    """The same, and half a second of CPU time a chunk: more than the first chunks of a thread need beyond others."""

    def process(self, events: Any) -> dict[str, Any]:
        spin(0.5)
        return super().process(events)


def dask_runner(client: Client) -> processor.Runner:
    return processor.Runner(
        executor=processor.DaskExecutor(client=client, status=False),
        savemetrics=True,
        schema=NanoAODSchema,
        chunksize=4000,
    )


@pytest.fixture(scope="module")
def fileset(sample: dict[str, Any]) -> dict[str, Any]:
    """One dataset."""
    name, dataset = next(iter(sample.items()))
    return {name: dataset}


@pytest.fixture
def pyplot() -> Any:
    mpl.use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_branches_and_task_output(
    client: Client, fileset: dict[str, Any], pyplot: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # 5: run with several numbers of branches
    results = []
    monitor = TaskMonitor(client.cluster.scheduler, interval=0.1)
    for num_branches in [1, 2, 3, 5, 10]:
        monitor.reset()
        monitor.start()
        _, report = dask_runner(client)(fileset, treename="Events", processor_instance=Averages(num_branches))
        monitor.stop()
        tasks = [
            task
            for task in monitor.get_all_tasks()
            if "Averages" in str(task["key"]) or "process" in str(task["key"]).lower()
        ]
        sizes = [task["nbytes"] for task in tasks if task["nbytes"]]
        results.append(
            {
                "num_branches": num_branches,
                "coffea_bytesread_mb": report["bytesread"] / 1e6,
                "num_processor_tasks": len(tasks),
                "total_task_bytes_kb": sum(sizes) / 1e3,
                "mean_task_bytes_kb": sum(sizes) / len(sizes) / 1e3 if sizes else 0,
                "chunks": report["chunks"],
                "events": report["entries"],
                "columns": len(report["columns"]),
            }
        )

    # 6: the summary table, and ratios to the first row
    df = pd.DataFrame(results)
    print(df.to_string(index=False))
    df["bytesread_ratio"] = df["coffea_bytesread_mb"] / df.iloc[0]["coffea_bytesread_mb"]
    df["task_bytes_ratio"] = df["total_task_bytes_kb"] / df.iloc[0]["total_task_bytes_kb"]
    print(df[["num_branches", "bytesread_ratio", "task_bytes_ratio"]].to_string(index=False))

    # 7: four plots
    fig, axes = pyplot.subplots(2, 2, figsize=(14, 10))
    amounts = ("coffea_bytesread_mb", "total_task_bytes_kb", "mean_task_bytes_kb", "bytesread_ratio")
    for ax, name in zip(axes.flat, amounts, strict=True):
        ax.plot(df["num_branches"], df[name], "o-")
    fig.tight_layout()

    # 8: what follows from it
    correlation = df[["coffea_bytesread_mb", "total_task_bytes_kb"]].corr().iloc[0, 1]
    difference = abs(df["bytesread_ratio"] - df["task_bytes_ratio"]).mean()
    print(f"correlation {correlation:.3f}, mean difference {difference:.3f}")

    assert df["num_processor_tasks"].tolist() == df["chunks"].tolist() == [2] * 5
    assert df["events"].tolist() == [8000] * 5
    assert df["coffea_bytesread_mb"].is_monotonic_increasing
    assert df["total_task_bytes_kb"].is_monotonic_increasing  # a mean more for each column
    assert -1 <= correlation <= 1
    assert "correlation" in capsys.readouterr().out


def run_analysis(processor_class: Any, label: str, client: Client, fileset: dict[str, Any]) -> dict[str, Any]:
    instance = processor_class()
    with MetricsCollector(client, track_workers=False, processor_instance=instance) as collector:
        _, report = dask_runner(client)(fileset, treename="Events", processor_instance=instance)
        collector.set_coffea_report(report)
    metrics = collector.get_metrics()
    return {
        "label": label,
        "cpu_time": metrics.get("processor_cpu_time_seconds", 0),
        "noncpu_time": metrics.get("processor_noncpu_time_seconds", 0),
        "cpu_pct": metrics.get("processor_cpu_percentage", 0),
        "noncpu_pct": metrics.get("processor_noncpu_percentage", 0),
        "wall_time": metrics.get("wall_time", 0),
        "overhead_cpu": metrics.get("overhead_cpu_time_seconds", 0),
        "overhead_noncpu": metrics.get("overhead_noncpu_time_seconds", 0),
    }


def counted(spans: Mapping[tuple[str, ...], float], prefix: str, activity: str, unit: str = "seconds") -> float:
    return sum(amount for key, amount in spans.items() if key[1:] == (prefix, activity, unit))


def test_fine_metrics(client: Client, fileset: dict[str, Any], pyplot: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # 4: run with a collector
    instance = Dijets()
    with MetricsCollector(client, track_workers=True, processor_instance=instance) as collector:
        output, report = dask_runner(client)(fileset, treename="Events", processor_instance=instance)
        collector.set_coffea_report(report)
    assert output["nevents"] == report["entries"] == 8000

    # 5: the summary
    collector.print_summary(all=True)
    assert "processor: CPU" in capsys.readouterr().out

    # 6: single metrics, each with a default
    metrics = collector.get_metrics()
    cpu, other = metrics["processor_cpu_time_seconds"], metrics["processor_noncpu_time_seconds"]
    assert metrics["processor_cpu_percentage"] == pytest.approx(100 * cpu / (cpu + other))
    assert metrics["processor_noncpu_percentage"] == pytest.approx(100 * other / (cpu + other))
    for name in (
        *("overhead_cpu_time_seconds", "overhead_noncpu_time_seconds", "disk_read_bytes", "disk_write_bytes"),
        *("total_compression_overhead_seconds", "decompression_time_seconds", "compression_time_seconds"),
        *("total_serialization_overhead_seconds", "deserialization_time_seconds", "serialization_time_seconds"),
    ):
        assert metrics.get(name, 0) >= 0
        assert name in metrics or metrics.missing[name] == "Dask recorded no such activity in this run's tasks"
    assert metrics["compression_ratio"] > 1
    assert metrics.get("total_bytes_uncompressed", 0) / 1e9 > 0

    # 7: the raw form
    span_metrics = collector.span_metrics
    assert all(isinstance(key, tuple) for key in span_metrics)
    (prefix,) = {key[1] for key in span_metrics if "Dijets" in str(key[1])}
    assert counted(span_metrics, prefix, "thread-cpu") == pytest.approx(cpu)

    # 8: by task
    per_task = extract_per_task_metrics(span_metrics)
    assert {prefix} < per_task.keys()
    assert per_task[prefix].get("thread-cpu", 0) == counted(span_metrics, prefix, "thread-cpu")
    assert per_task[prefix]["memory-read"] / 1e6 == counted(span_metrics, prefix, "memory-read", "bytes") / 1e6

    # 9 to 11: three plots, of which one may have nothing to draw
    plots = (plot_per_task_cpu_io, plot_per_task_bytes_read, plot_per_task_overhead)
    activities = ({"thread-cpu", "thread-noncpu"}, {"memory-read"}, {"deserialize", "serialize", "decompress"})
    for plot, names in zip(plots, activities, strict=True):
        there = any(amount for key, amount in span_metrics.items() if key[2] in names)
        try:
            figure, ax = plot(span_metrics=span_metrics, title="A title of one's own", figsize=(14, 6))
        except ValueError as error:
            assert not there, error  # noqa: PT017
            assert "Dask recorded no" in str(error)  # noqa: PT017
        else:
            assert (tuple(figure.get_size_inches()), ax.get_title()) == ((14, 6), "A title of one's own")

    # 12: scenarios side by side; 13 closes the cluster
    results = [run_analysis(Dijets, "standard", client, fileset), run_analysis(Heavy, "heavy", client, fileset)]
    for r in results:
        print(f"{r['label']:<25} {r['wall_time']:<12.2f} {r['cpu_time']:<12.2f} {r['noncpu_pct']:<10.1f}")
        print(f"{r['label']:<25} {r['overhead_cpu']:<15.3f} {r['overhead_noncpu']:<18.3f}")
        assert r["cpu_pct"] + r["noncpu_pct"] == pytest.approx(100)
    standard, heavy = results
    assert heavy["cpu_time"] > standard["cpu_time"] > 0
    assert standard["wall_time"] > 0
