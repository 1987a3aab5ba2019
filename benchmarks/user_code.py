"""Whether a file that each chunk loads is named on a busy host, and costs what is promised.

`python benchmarks/user_code.py` runs the demo's analysis beside eight processes that spin, with a `json.load` in each
chunk and, interleaved, without it. Summary and first card have to name file, line and function in each run; the CPU
seconds that the finding gives have to be what the worker processes take less without it, within 15 % in the median of
the pairs. CPU seconds are those of the operating system. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import planted_work
import psutil
from plants import Ground, cluster, measured, spinning

from roastcoffea.measurement import Measurement
from roastcoffea.report.first_look import digest_of

CLOSE: Final = 0.15
"""Relative error of the promised CPU seconds in the median of the pairs."""


class Made(NamedTuple):
    """A run, and CPU seconds of the worker processes in it."""

    measurement: Measurement
    cpu: float


def cpu_seconds() -> float:
    """CPU seconds of this process."""
    user, system, *_ = psutil.Process().cpu_times()
    return float(user + system)


def made(client: Any, fileset: Any, path: Path | None) -> Made:
    """A run of the demo's analysis, which loads a file in each chunk or does not."""
    before = sum(client.run(cpu_seconds).values())
    measurement = measured(
        client, fileset, planted_work.Calibrated(None if path is None else str(path)), chunksize=4000
    )
    return Made(measurement, sum(client.run(cpu_seconds).values()) - before)


def printed(measurement: Measurement) -> str:
    """The summary as it is printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        measurement.print_summary()
    return out.getvalue()


def missing(measurement: Measurement, place: str) -> list[str]:
    """Where function, file and line are not named."""
    look = digest_of(measurement.run, measurement.metrics)
    shown = {
        "summary": printed(measurement),
        "hottest line": look.hot[0].where if look.hot else "",
        "first card": look.findings[0].what if look.findings else "",
    }
    # a terminal shortens paths to their last part
    function, _, where = place.partition(" (")
    last = where.rpartition("/")[2]
    return [name for name, text in shown.items() if function not in text or last not in " ".join(text.split())]


def pairs(client: Any, fileset: Any, path: Path, runs: int, pairs: int) -> Iterator[tuple[Made, Made | None]]:
    """Runs with the file, the first of them each with one without it."""
    for number in range(runs):
        without = made(client, fileset, None) if number < pairs and number % 2 else None
        loading = made(client, fileset, path)
        yield loading, made(client, fileset, None) if number < pairs and not number % 2 else without


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spinners", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="folder for the measurements")
    options = parser.parse_args()
    source, line = inspect.getsourcelines(planted_work.corrections)
    line += next(number for number, text in enumerate(source) if "json.load" in text)
    place = f"corrections ({planted_work.__file__}:{line})"
    named, ratios = 0, []
    with tempfile.TemporaryDirectory() as folder, cluster() as client:
        path = Path(folder, "corrections.json")
        path.write_text(json.dumps([{"edges": [each, each + 1], "content": [each / 3] * 4} for each in range(240_000)]))
        fileset = Ground(Path(folder)).sample(files=3)
        with spinning(options.spinners):
            for number, (loading, without) in enumerate(pairs(client, fileset, path, options.runs, options.pairs)):
                if options.keep:
                    loading.measurement.save(options.keep, f"run-{number}", overwrite=True)
                lacking = missing(loading.measurement, place)
                named += not lacking
                (promised,) = [
                    one.seconds
                    for finding in loading.measurement.verdict
                    for one in finding.culprits
                    if finding.cause == "repeated work"
                ] or [float("nan")]
                where = f"but for {lacking}" if lacking else "everywhere"
                text = f"run {number}: named {where}, promised {promised:.2f} s"
                if without is not None:
                    saved = loading.cpu - without.cpu
                    ratios.append(promised / saved)
                    text += f", saved {saved:.2f} of {loading.cpu:.2f} s ({promised / saved:.2f})"
                print(text, flush=True)
    middle = statistics.median(ratios) if ratios else 1.0
    print(
        f"named in {named} of {options.runs} runs; promised / saved {middle:.3f} in the median of {len(ratios)} pairs"
    )
    return int(named < options.runs or not abs(middle - 1) <= CLOSE)


if __name__ == "__main__":
    sys.exit(main())
