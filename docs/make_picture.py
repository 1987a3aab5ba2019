"""Makes `page.png`, the README's picture: the first screen of the page of a run, by a headless Chromium.

The run is a saved measurement whose folder is given, or a demonstration. Runs with planted causes, such as slow
storage, are made by `python benchmarks/causes.py --save runs`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import roastcoffea
from roastcoffea.cli.sample import run_demo

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import installed_browser

PICTURE = Path(__file__).parent / "page.png"

if __name__ == "__main__":
    browser = installed_browser()
    if browser is None:
        raise SystemExit("Chromium is needed, and was not found")
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) > 1:
            run = Path(sys.argv[1])
        else:
            run = run_demo(files=4, events=50_000, chunksize=10_000, workers=2, threads=1, folder=None, out=scratch)
        page = roastcoffea.load(run).report(Path(scratch) / "picture.html")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,900"]
        options += ["--virtual-time-budget=5000", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run([browser, *options], check=True, timeout=120)
    with Image.open(PICTURE) as picture:
        small = picture.convert("RGB").quantize(128)  # fewer colours: a third of the size
    small.save(PICTURE, optimize=True)
