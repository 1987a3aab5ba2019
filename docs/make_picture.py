"""Makes `page.png`, the README's picture: the first screen of the page of a run, by a headless Chromium.

The run is a saved measurement whose folder is given, or a real one made here. It is the demo's analysis, three times
over, with workers that have imported coffea before and read from a local HTTP server with 100 ms of latency.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from PIL import Image

import roastcoffea
from roastcoffea.cli.sample import local_client, write_sample

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import installed_browser
from planted_work import Dijets
from plants import fileset_of, rehearsed, warm
from stored import served

PICTURE = Path(__file__).parent / "page.png"


def run_with_slow_storage(folder: Path) -> roastcoffea.Measurement:
    """Measurement of the analysis of six files."""
    sample = write_sample(folder, datasets=["qcd"], files=6, events=40_000)
    paths = [Path(path) for path in sample["qcd"]["files"]]
    with local_client(2, 1, str(folder)) as client, served(paths[0].parent, latency=0.1, rate=4e6) as server:
        client.run(warm)
        rehearsed(client)
        fileset = fileset_of([server.url(path.name) for path in paths], "qcd")
        runner = Runner(DaskExecutor(client=client, status=False), schema=NanoAODSchema, chunksize=20_000)
        with roastcoffea.MetricsCollector(client, name="Dijets") as collector:
            runner(fileset, treename="Events", processor_instance=Dijets(3))
        return collector.measurement


if __name__ == "__main__":
    browser = installed_browser()
    if browser is None:
        raise SystemExit("Chromium is needed, and was not found")
    with tempfile.TemporaryDirectory() as scratch:
        run = roastcoffea.load(sys.argv[1]) if len(sys.argv) > 1 else run_with_slow_storage(Path(scratch))
        page = run.report(Path(scratch) / "picture.html")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,860"]
        options += ["--virtual-time-budget=5000", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run([browser, *options], check=True, timeout=120)
    with Image.open(PICTURE) as picture:
        small = picture.convert("RGB").quantize(128)  # fewer colours: a third of the size
    small.save(PICTURE, optimize=True)
