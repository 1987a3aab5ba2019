"""The run of docs/plots.md, and its plots for light and dark pages."""

import base64
import io
from functools import cache
from typing import Any

import awkward as ak
import matplotlib.pyplot as plt
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from dask.distributed import Client
from IPython.display import HTML, display

import roastcoffea
from roastcoffea import Measurement, MetricsCollector, track_time
from roastcoffea.demo import clean_jets, write_sample

OVERHEAD = {
    ("execute", "Dijets", "serialize", "seconds"): 0.4,
    ("execute", "Dijets", "disk-write", "seconds"): 0.9,
    ("execute", "reduce", "deserialize", "seconds"): 0.3,
    ("execute", "reduce", "disk-read", "seconds"): 0.6,
}
"""Made up, because Dask counts none in so small a run."""


class Dijets(ProcessorABC):
    """Mass of two jets, in two sections."""

    def process(self, events: Any) -> dict[str, Any]:
        """Number of events and mean mass."""
        with track_time("jets"):
            jets = clean_jets(events)
        with track_time("mass"):
            pairs = jets[ak.num(jets) >= 2]
            mass = (pairs[:, 0] + pairs[:, 1]).mass
        return {"events": len(events), "mean": ak.mean(mass)}


@cache
def measured() -> Measurement:
    """A small run on two workers."""
    fileset = write_sample("sample", files=3, events=20_000)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        executor = DaskExecutor(client=client, status=False, retries=1)
        runner = Runner(executor, schema=NanoAODSchema, chunksize=4_000, savemetrics=True)
        with MetricsCollector(client, worker_tracking_interval=0.5) as collector:
            runner(fileset, treename="Events", processor_instance=Dijets())
    return collector.measurement


def draw(function: str) -> None:
    """Display a plot in light and dark colours: the page shows those that fit."""
    plot = getattr(roastcoffea, function)
    for dark, shown in ((False, "only-light"), (True, "only-dark")):
        if function == "plot_per_task_overhead":
            figure, _ = plot(span_metrics=OVERHEAD, dark=dark)
        else:
            figure, _ = plot(measured(), dark=dark)
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        plt.close(figure)
        picture = base64.b64encode(file.getvalue()).decode()
        display(HTML(f'<img class="{shown}" alt="{function}" src="data:image/png;base64,{picture}">'))
