"""coffea's own tests with and without `import roastcoffea.auto`: each has to end alike.

`python benchmarks/coffea_tests.py` gets the source distribution of the installed coffea by pip and runs its tests of
executors, preloading, checkpoints and tracing both ways: about five minutes each. It lists tests that end otherwise,
and recordings that are incomplete without a reason; either makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from roastcoffea import load

WHOLE: Final = (
    "checkpointing",
    "parsl",
    "preloading",
    "processor",
    "dask_client_fixture",
    "tracing",
    "buffer_cache",
    "preloaded",
    "workitem",
    "taskvine_executor",
)
"""Files of tests that are run whole."""

IN_PART: Final = "local_executors"
EACH: Final = 9
"""Of this file, one test in so many: the whole takes an hour."""


def sources(folder: Path) -> Path:
    """The unpacked source distribution of the installed coffea."""
    wanted = f"coffea=={version('coffea')}"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "coffea", "-d", folder, wanted],
        check=True,
    )
    (archive,) = folder.glob("coffea-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def tests_in(source: Path) -> list[str]:
    """Files, and single tests of the file that is run in part; those that this coffea does not have are left out."""
    files = [f"tests/test_{name}.py" for name in WHOLE]
    listing = pytest(source, "--collect-only", "-qq", f"tests/test_{IN_PART}.py", check=True)
    single = [line for line in listing.stdout.splitlines() if "::" in line]
    return [*(file for file in files if (source / file).exists()), *single[::EACH]]


def pytest(
    source: Path, *arguments: str, check: bool, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest in the source distribution, away from our own settings."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", *arguments],
        cwd=source,
        env={**os.environ, "PYTEST_ADDOPTS": "", **(environment or {})},
        check=check,
        capture_output=True,
        text=True,
    )


def outcomes(source: Path, tests: Sequence[str], results: Path, recordings: Path | None = None) -> dict[str, str]:
    """How each test ends; recorded where there is a folder for recordings."""
    recorded = ("-p", "roastcoffea.auto") if recordings is not None else ()
    environment = {"ROASTCOFFEA": str(recordings)} if recordings is not None else None
    done = pytest(source, *recorded, "-q", f"--junitxml={results}", *tests, check=False, environment=environment)
    print(done.stdout.strip().splitlines()[-1], flush=True)
    if not results.exists():
        sys.exit(done.stdout + done.stderr)
    cases = ET.parse(results).getroot().iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ET.Element) -> str:
    return next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")


def judge(recordings: Path) -> list[str]:
    """Recordings that are incomplete without a reason, or cannot be loaded; prints what there is."""
    complete, reasons, wrong = 0, Counter[str](), []
    folders = sorted(recordings.iterdir()) if recordings.exists() else []
    for folder in folders:
        certificate = load(folder).byte_ledger.certificate
        complete += certificate.complete
        reasons.update(certificate.reasons if not certificate.complete else ())
        if not certificate.complete and not certificate.reasons:
            wrong.append(f"{folder.name} is incomplete without a reason")
    print(f"{len(folders)} recordings, {complete} of them complete")
    for reason, number in reasons.most_common():
        print(f"  {number} x {reason}")
    return wrong if folders else ["nothing was recorded"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the sources, results and recordings")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        source = sources(folder)
        tests = tests_in(source)
        plain = outcomes(source, tests, folder / "plain.xml")
        recorded = outcomes(source, tests, folder / "recorded.xml", folder / "recordings")
        wrong = [
            f"{test}: {plain.get(test, 'not run')} without, {recorded.get(test, 'not run')} with recording"
            for test in sorted(plain.keys() | recorded.keys())
            if plain.get(test) != recorded.get(test)
        ]
        print(f"{len(plain)} tests: {dict(Counter(plain.values()))}")
        wrong += judge(folder / "recordings")
    print("\n".join(wrong) or "All tests end alike.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
