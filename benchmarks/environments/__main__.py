"""What works in the environments in which people run roastcoffea.

python -m benchmarks.environments                       # all of this folder, about ten minutes
python -m benchmarks.environments challenge --rounds 1  # one of them, a minute
python -m benchmarks.environments --write               # all, and store the results that the documentation shows

Each NAME.txt of the folder has constraints for pip, and the first line names the Python. It makes an environment of
`coffea[dask]` with them, installs roastcoffea beside it, and runs one analysis there on Dask, Futures and Iterative
(coffea 2024: as a graph of dask-awkward), with and without a collector. Environments are made by uv if it is installed,
else by venv and pip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
TESTED: Final = HERE / "tested.json"
NEWEST: Final = "newest"
MUST_RUN: Final = ("challenge",)
"""Environments that have to run where their Python is installed."""

LARGEST_RESIDUAL: Final = 0.001
"""Share of thread time that may be in no class."""

COMPARED: Final = ("compute", "decompress", "interpret", "read", "open", "task overhead")
"""Classes of which versions are compared: the others depend on what else the host does, and on when workers start."""


DRAWN: Final = "document.documentElement.dataset.charts === 'drawn'"
"""What a page says of itself once all its charts are there."""


def python_of(constraints: Path) -> tuple[Path | None, bool]:
    """The Python that the first line names, if one of those installed runs, and whether any was found."""
    line = constraints.read_text(encoding="utf-8").partition("\n")[0]
    found = re.fullmatch(r"# Python (3\.\d+)", line.strip())
    if found is None:
        raise ValueError(f"the first line of {constraints} has to be '# Python 3.X', not {line!r}")
    version, candidates = found[1], list(candidates_for(found[1]))
    for candidate in candidates:
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"Python {version}."):
            return candidate, True
    return None, bool(candidates)


def candidates_for(version: str) -> Iterator[Path]:
    """What may be a Python of this version: on PATH, and in the folders of pyenv."""
    for name in (f"python{version}", "python3", "python"):
        for folder in os.get_exec_path():
            if (Path(folder) / name).exists() and (name.endswith(version) or f"{sys.version_info[0]}" in name):
                yield Path(folder) / name
    yield from Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")


def run(*command: str | Path, **options: Any) -> str:
    """Output of a command; where it fails, its errors are in the exception."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:6]))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


class Environment:
    """An environment of `coffea[dask]` under constraints, with roastcoffea beside it."""

    def __init__(self, constraints: Path, folder: Path, python: Path) -> None:
        self.name = constraints.stem
        self.folder = folder / self.name
        self._made = self.folder / "environment"
        self._uv = shutil.which("uv")
        self.python = self._made / "bin" / "python"
        self._constraints = constraints
        if self._uv:
            run(self._uv, "venv", "--quiet", "--python", python, self._made)
        else:
            run(python, "-m", "venv", self._made)
        self.install("--constraint", constraints, "coffea[dask]")

    def install(self, *what: str | Path) -> None:
        """Install with uv or pip."""
        command = [self._uv, "pip", "install"] if self._uv else [self.python, "-m", "pip", "install"]
        run(*command, "--quiet", *(["--python", self.python] if self._uv else []), *what)

    def packages(self) -> dict[str, str]:
        """Installed packages with their versions."""
        command = [self._uv, "pip", "list", "--python", self.python] if self._uv else [self.python, "-m", "pip", "list"]
        listed = json.loads(run(*command, "--format", "json"))
        return {package["name"].lower().replace("_", "-"): package["version"] for package in listed}

    def add(self, wheel: Path) -> dict[str, Any]:
        """Install roastcoffea as a user does, and return which packages changed, and which came with it."""
        before = self.packages()
        self.install("--constraint", self._constraints, wheel)
        after = self.packages()
        changed = {name: f"{old} to {after.get(name)}" for name, old in before.items() if after.get(name) != old}
        return {"changed": changed, "added": sorted(after.keys() - before.keys() - {"roastcoffea"})}

    def measure(self, fileset: Path, rounds: int) -> dict[str, Any]:
        """What `analysis.py` finds there."""
        return self._analysis("measure", fileset, self.folder, str(rounds))

    def compare(self, other: Environment) -> dict[str, bool]:
        """Whether comparisons with measurements of another environment work here, by executor."""
        return self._analysis("compare", self.folder, other.folder)

    def _analysis(self, action: str, *arguments: str | Path) -> dict[str, Any]:
        state = {"XDG_STATE_HOME": str(self.folder / "state"), "PYTHONWARNINGS": "ignore"}
        alone = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
        run(self.python, HERE / "analysis.py", action, *arguments, env=alone | state, cwd=self.folder)
        found: dict[str, Any] = json.loads((self.folder / f"{action}.json").read_text(encoding="utf-8"))
        return found


def build_wheel(folder: Path) -> Path:
    """A wheel of the tree."""
    uv = shutil.which("uv")
    build = (
        [uv, "build", "--quiet", "--wheel", "--out-dir"]
        if uv
        else [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w"]
    )
    run(*build, folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_fileset(folder: Path, events: int) -> Path:
    """File with the fileset of a sample that all environments read."""
    from roastcoffea.demo import write_sample

    file = folder / "fileset.json"
    file.write_text(json.dumps(write_sample(folder / "sample", files=2, events=events)), encoding="utf-8")
    return file


def shares(rounds: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Shares of the classes that versions may change, of the time in them, by class and round."""
    found: dict[str, list[float]] = {}
    for one in rounds:
        known = {name: one["shares"][name] for name in COMPARED}
        total = sum(known.values())
        for name, share in known.items():
            found.setdefault(name, []).append(share / total)
    return found


def largest_difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[str, float, float]:
    """Class whose mean share differs most from another environment's, the difference, and how far rounds scatter."""
    mine, others = shares(ours), shares(theirs)
    name = max(COMPARED, key=lambda one: abs(mean(mine[one]) - mean(others[one])))
    scatter = max(max(values) - min(values) for values in (mine[name], others[name]))
    return name, mean(mine[name]) - mean(others[name]), scatter


def failures(result: Mapping[str, Any]) -> list[str]:
    """What does not work in an environment, in words."""
    found = [f"{name} went from {change}" for name, change in result["changed"].items()]
    for executor, rounds in result["executors"].items():
        wrong = {check for one in rounds for check in CHECKS if one.get(check) is False}
        wrong |= {"bytes in no class" for one in rounds if one["bytes_residual"]}
        wrong |= {"time in no class" for one in rounds if abs(one["time_residual"]) > LARGEST_RESIDUAL}
        wrong |= {problem for one in rounds for problem in one["problems"]}
        found += [f"{executor}: {what}" for what in sorted(wrong)]
    return found


CHECKS: Final = ("output", "payload", "summary", "loaded", "page", "compared", "opened")
"""What is checked of each run: output as without a collector, payload as uproot's baskets, and so on."""


def show(name: str, result: Mapping[str, Any], newest: Mapping[str, Any] | None) -> None:
    """Print what was found in an environment."""
    print(f"\n{name}: {', '.join(f'{package} {version}' for package, version in result['versions'].items())}")
    print(f"  changed: {', '.join(result['changed']) or 'nothing'}; added: {', '.join(result['added']) or 'nothing'}")
    print("".join(f"{head:>12}" for head in ("", *CHECKS, "bytes left", "time left")) + "  problems")
    differs = differences(result, newest)
    for executor, rounds in result["executors"].items():
        known = [[one[check] for one in rounds if check in one] for check in CHECKS]
        cells = ["-" if not values else "yes" if all(values) else "NO" for values in known]
        cells.append(f"{max(abs(one['bytes_residual']) for one in rounds)}")
        cells.append(f"{max(abs(one['time_residual']) for one in rounds):.1e}")
        problems = dict.fromkeys(problem for one in rounds for problem in one["problems"])
        print("".join(f"{cell:>12}" for cell in (executor, *cells)) + f"  {'; '.join(problems) or 'none'}")
        if executor in differs:
            place, change, scatter = differs[executor]
            print(f"{'':12}{place} differs most from {NEWEST}: {change:+.1%} of the work (scatter {scatter:.1%})")
    for metric, why in missing_for_versions(result).items():
        print(f"  {metric} is missing: {why}")


def missing_for_versions(result: Mapping[str, Any]) -> dict[str, str]:
    """Metrics that are missing for want of a newer version, with the reason."""
    rounds = [one for executor in result["executors"].values() for one in executor]
    missing = {metric: why for one in rounds for metric, why in one["missing"].items()}
    return {metric: why for metric, why in missing.items() if re.search(r"\b(since|before) (20\d\d\.|\d\.)", why)}


def main() -> int:
    """Print what works in each environment; the exit status is 1 where something does not."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--folder", type=Path, default=HERE, help="folder with constraints")
    parser.add_argument("--rounds", type=int, default=3, help="runs of the analysis on each executor")
    parser.add_argument("--events", type=int, default=20_000, help="events in each of four files")
    parser.add_argument("--write", action="store_true", help=f"store the results in {TESTED.name}")
    options = parser.parse_args()
    files = {file.stem: file for file in sorted(options.folder.glob("*.txt"))}
    if unknown := set(options.names) - files.keys():
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(files)}")
    with tempfile.TemporaryDirectory(prefix="roastcoffea-environments-") as scratch:
        chosen = [files[name] for name in options.names or files]
        results, wrong = measured(chosen, Path(scratch), options.rounds, options.events)
    for name, result in results.items():
        show(name, result, results.get(NEWEST))
        wrong += [f"{name}: {what}" for what in failures(result)]
    print("\n" + ("\n".join(wrong) or f"{len(results)} environments, and nothing is wrong"))
    if options.write:
        known = json.loads(TESTED.read_text(encoding="utf-8")) if TESTED.exists() else {}
        known |= {name: stored(result, results.get(NEWEST)) for name, result in results.items()}
        TESTED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def measured(files: list[Path], folder: Path, rounds: int, events: int) -> tuple[dict[str, Any], list[str]]:
    """Results by environment, and why there are none where there should be."""
    results: dict[str, Any] = {}
    made: list[Environment] = []
    wrong: list[str] = []
    wheel, fileset = build_wheel(folder), write_fileset(folder, events)
    for file in files:
        began = time.perf_counter()
        python, was_found = python_of(file)
        if python is None:
            print(f"{file.stem}: not run, as its Python does not run here", flush=True)
            wrong += [f"{file.stem}: not run"] if file.stem in MUST_RUN and was_found else []
            continue
        try:
            environment = Environment(file, folder, python)
            results[file.stem] = environment.add(wheel) | environment.measure(fileset, rounds)
        except RuntimeError as error:
            wrong.append(f"{file.stem}: {error}")
        else:
            made.append(environment)
        print(f"{file.stem}: {time.perf_counter() - began:.0f} s", flush=True)
    made.sort(key=lambda environment: environment.name != NEWEST)
    for environment, other in zip(made, [*made[1:2], *made[:1] * (len(made) - 1)], strict=len(made) > 1):
        compared = environment.compare(other)
        for executor, found in compared.items():
            results[environment.name]["executors"][executor][-1]["compared"] = found
    open_pages(made, folder, results)
    return results, wrong


def open_pages(made: list[Environment], folder: Path, results: dict[str, Any]) -> None:
    """Look at the pages with a browser, if there is one."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Browser, installed_browser

    program = installed_browser()
    if program is None:
        return
    with Browser(folder / "browser", program) as browser:
        for environment in made:
            for executor, rounds in results[environment.name]["executors"].items():
                try:
                    browser.open(environment.folder / f"{executor}.html", DRAWN)
                except AssertionError:
                    rounds[-1]["opened"] = False
                else:
                    # the browser's advice on how Bokeh 3.4 measures text
                    rounds[-1]["opened"] = all(message.startswith("Canvas2D: ") for message in browser.messages)


def differences(result: Mapping[str, Any], newest: Mapping[str, Any] | None) -> dict[str, tuple[str, float, float]]:
    """Class whose share differs most from the newest's, the difference and the scatter, by executor."""
    if newest is None or newest is result:
        return {}
    theirs = newest["executors"]
    return {executor: largest_difference(rounds, theirs[executor]) for executor, rounds in result["executors"].items()}


def stored(result: Mapping[str, Any], newest: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the documentation shows of a result."""
    differs = differences(result, newest)
    return {
        **{part: result[part] for part in ("versions", "added", "changed")},
        "failures": failures(result),
        "missing": missing_for_versions(result),
        "differs": {
            executor: [one, round(by, 3), round(scatter, 3)] for executor, (one, by, scatter) in differs.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
