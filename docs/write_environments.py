"""Writes `environments.md` from the results stored by `python -m benchmarks.environments --write`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent
FOLDER = PAGES.parent / "benchmarks" / "environments"

USED_BY = {
    "2024": "analyses with dask-awkward graphs, without a Runner",
    "2025": "first coffea release since 0.7 with a Runner",
    "agc": "Analysis Grand Challenge (ttbar), but Python 3.10 and Dask 2024.8",
    "challenge": "IRIS-HEP CMS Integration Challenge",
    "coffea07": "coffea-casa and LPC images (0.7)",
    "columnflow": "columnflow, with packages from autumn 2025",
    "floors": "lowest supported versions",
    "newest": "new installations",
    "noml": "coffea-casa and LPC images",
    "pocketcoffea": "PocketCoffea 0.9.13",
    "purdue": "Purdue's analysis facility",
}

HEADING = """\
# Tested environments

roastcoffea was installed alongside `coffea[dask]` in each of these environments. The same analysis was run with the
Dask, Futures and Iterative executors (`2024`: as a graph, on Dask), with and without a collector. "All works" means
identical outputs, a payload equal to the size of uproot's baskets, ledgers that close, no problems, a summary and a
page. The environments listed below the table were also compared with `newest`. "Installing changed" lists packages that
installing roastcoffea changed or added.

`docs/write_environments.py` generates this page from the last `python -m benchmarks.environments --write`. The
constraints in `benchmarks/environments` pin the versions.

"""

DIFFERS = """
## How much the classes of time differ

The work consists of reading, decompressing, interpreting, opening, computing and task overhead. For each executor, the
class whose share differs most from that in `newest` is listed, in percent of the work, with the scatter of three runs
in one environment in parentheses. Python and the libraries also change speed from one release to the next. With the
package versions from `newest`, Python 3.12 differs from 3.13 by as much as `noml` does (computing -8 % of the work,
opening +10 to +14 %).

"""

FRAMEWORKS = """
## Analyses and frameworks

In these environments, analyses were also run with `roastcoffea run script.py`, on copies of small NanoAOD files. The
outputs were the same with and without roastcoffea, both ledgers closed, and the slowest function was named:

- A ttbar analysis in the style of the Analysis Grand Challenge (systematic variations, permutations of four jets,
  `hist` histograms and coffea's accumulators): `agc` and `coffea07` with the Iterative executor, `coffea07` also with
  Parsl's `HighThroughputExecutor`. On a Dask cluster in `coffea07`, the [facility's preload](facility/recording.md)
  recorded the same chunks, events and bytes.
- PocketCoffea 0.9.13 (`pocketcoffea`): `pocket-coffea run` with its Iterative and Futures executors, and a workflow
  derived from its `BaseProcessorABC`. Its CMS corrections were left out, because they require CVMFS.

## Python 3.9 and older Dask

The Analysis Grand Challenge itself pins Python 3.9, Dask 2023.3.2, pandas 2.0 and pyarrow 14. Run its processor with
coffea 0.7.21 in the `agc` or `floors` environment instead.

- Python 3.9 reached its end of life in October 2025. It lacks `slots` and `kw_only` in dataclasses, `strict` in `zip`,
  `match` and unions in `isinstance`. They are used 30 times in the recorder, and 300 times in the package.
- Dask 2023.3.2 has no spans, fine performance metrics or `dask.get_annotations`. Time by activity comes from the first
  two, and calls are marked with the third.
- pyarrow before 16 cannot read all string types in measurements.
"""

MISSING = """
## What older releases cannot record

"""


def page() -> str:
    """Markdown for all environments."""
    tested: dict[str, Any] = json.loads((FOLDER / "tested.json").read_text(encoding="utf-8"))
    packages = list(next(iter(tested.values()))["versions"])
    lines = [f"| environment | used by | {' | '.join(packages)} | installing changed | result |"]
    lines.append("|" + "---|" * (len(packages) + 4))
    lines += [row(name, result) for name, result in tested.items()]
    absent = [
        f"- {name}: `{metric}` is {why}" for name, result in tested.items() for metric, why in result["missing"].items()
    ]
    differs = [f"- {name}: {difference(result['differs'])}" for name, result in tested.items() if result["differs"]]
    return "\n".join(
        [
            HEADING + "\n".join(lines),
            DIFFERS + "\n".join(differs),
            *([MISSING + "\n".join(absent)] if absent else []),
            FRAMEWORKS,
        ]
    )


def difference(differs: Mapping[str, tuple[str, float, float]]) -> str:
    """Largest difference for each executor."""
    return ", ".join(
        f"{executor} {name} {by:+.1%} ({scatter:.1%})" for executor, (name, by, scatter) in differs.items()
    )


def row(name: str, result: Mapping[str, Any]) -> str:
    """Table row for one environment."""
    changed = [f"{package} from {change}" for package, change in result["changed"].items()]
    changed += [f"{package} (new)" for package in result["added"]]
    cells = [f"`{name}`", USED_BY.get(name, ""), *result["versions"].values(), ", ".join(changed) or "nothing"]
    return f"| {' | '.join([*cells, '; '.join(result['failures']) or 'all works'])} |"


if __name__ == "__main__":
    (PAGES / "environments.md").write_text(page(), encoding="utf-8")
