"""Writes `environments.md` of what `python -m benchmarks.environments --write` stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent
FOLDER = PAGES.parent / "benchmarks" / "environments"

USED_BY = {
    "challenge": "IRIS-HEP CMS Integration Challenge",
    "columnflow": "columnflow, with the packages of that autumn",
    "floors": "lowest supported versions",
    "newest": "who installs today",
    "noml": "images of coffea-casa and the LPC",
    "purdue": "Purdue's analysis facility",
}

HEADING = """\
# Tested environments

roastcoffea was installed beside `coffea[dask]` in each of these environments, and one analysis ran there on Dask,
Futures and Iterative, with and without a collector. "All works" means equal outputs, a payload equal to uproot's
baskets, both ledgers closed, no problems, and a summary, a page and a comparison with a measurement of another
environment. "Installing changed" lists the packages that `pip install roastcoffea` moved or added.

This page is written by `docs/write_environments.py` from the last `python -m benchmarks.environments --write`. The
versions are those of the constraints in `benchmarks/environments`.

"""

DIFFERS = """
## How far the classes of time differ

The shares that reading, decompressing, interpreting, opening, computing and task overhead have in the work were
compared with those in `newest`: the class that differs most, in percent of the work, and in brackets how far three
runs of one environment scatter. Python and the libraries are themselves faster or slower from version to version. With
the packages of `newest`, Python 3.12 differs from 3.13 by as much as `noml` does (computing -8 % of the work, opening
+10 to +14 %).

"""

MISSING = """
## What older releases cannot tell

A number that needs a newer release is missing, with the reason.

"""


def page() -> str:
    """Markdown of all environments."""
    tested: dict[str, Any] = json.loads((FOLDER / "tested.json").read_text(encoding="utf-8"))
    packages = list(next(iter(tested.values()))["versions"])
    lines = [f"| environment | used by | {' | '.join(packages)} | installing changed | result |"]
    lines.append("|" + "---|" * (len(packages) + 4))
    lines += [row(name, result) for name, result in tested.items()]
    told = [
        f"- {name}: `{metric}` is {why}" for name, result in tested.items() for metric, why in result["missing"].items()
    ]
    differs = [f"- {name}: {difference(result['differs'])}" for name, result in tested.items() if result["differs"]]
    return "\n".join(
        [HEADING + "\n".join(lines), DIFFERS + "\n".join(differs), *([MISSING + "\n".join(told)] if told else []), ""]
    )


def difference(differs: Mapping[str, tuple[str, float, float]]) -> str:
    """What differs most on each executor."""
    return ", ".join(
        f"{executor} {name} {by:+.1%} ({scatter:.1%})" for executor, (name, by, scatter) in differs.items()
    )


def row(name: str, result: Mapping[str, Any]) -> str:
    """Row of one environment."""
    changed = [f"{package} from {change}" for package, change in result["changed"].items()]
    changed += [f"{package} (new)" for package in result["added"]]
    cells = [f"`{name}`", USED_BY.get(name, ""), *result["versions"].values(), ", ".join(changed) or "nothing"]
    return f"| {' | '.join([*cells, '; '.join(result['failures']) or 'all works'])} |"


if __name__ == "__main__":
    (PAGES / "environments.md").write_text(page(), encoding="utf-8")
