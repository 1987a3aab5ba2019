"""Whether the right cause is found first, with its culprit, in real runs with one planted cause each.

Run it on a quiet machine: `python benchmarks/causes.py --save runs`. With `--judge runs` what was saved is judged
again, without a run. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from plants import PLANTS, Ground, Grown, Plant, compared_runs, planted_run

from roastcoffea.measurement import Measurement, load
from roastcoffea.studies.compare import compare

MOST_WRONG: Final = 1
"""Plants that may be concluded wrongly."""

CONTENDED: Final = 0.05
"""Share of run delay in the chunks' time from which contention is no false finding of a healthy run."""

LARGER: Final = re.compile(
    r"\blarger chunks|\bchunks?(?: (?!smaller)\w+){0,2} larger|\blarger chunksize", re.IGNORECASE
)
SMALLER: Final = re.compile(
    r"\bsmaller chunks|\bchunks?(?: (?!larger)\w+){0,2} smaller|\bsmaller chunksize", re.IGNORECASE
)
SIZE: Final = re.compile(r"chunksize\s*=\s*([\d_,]*\d)")


class Judged(NamedTuple):
    """What was found of a plant."""

    name: str
    causes: tuple[str, ...]
    found: str
    culprit: str | None
    """Name of the culprit that was found, or which of a list; None where there is none to be named."""
    contradictions: list[str]
    contention: float
    ok: bool


def findings_of(plant: Plant, measurement: Measurement, busy: bool) -> list[Any]:
    """Findings of the verdict; on a busy host without contention, which is true there, where it was not planted."""
    skipped = {"contention"} if busy and "contention" not in plant.causes else set()
    return [finding for finding in measurement.verdict if finding.cause not in skipped]


def named(finding: Any, names: Sequence[str]) -> str | None:
    """The first of the names among the finding's culprits or in its text; all culprits where any will do."""
    culprits = [str(culprit.name) for culprit in getattr(finding, "culprits", ())]
    if not names:
        return ", ".join(culprits) or "-"
    said = "\n".join([*culprits, finding.text])
    # no part of another word or number: 500 is not in 1,500
    return next((name for name in names if re.search(rf"(?<![\w,]){re.escape(name)}(?![\d,]*\d)", said)), None)


def contradictions(findings: Sequence[Any]) -> list[str]:
    """Advice that goes in opposite directions."""
    text = "\n".join(f"{finding.text} {getattr(finding, 'remedy', None) or ''}" for finding in findings)
    sizes = {int(re.sub("[_,]", "", size)) for size in SIZE.findall(text)}
    found = []
    if LARGER.search(text) and SMALLER.search(text):
        found.append("larger and smaller chunks")
    if len(sizes) > 1:
        found.append(f"chunk sizes {', '.join(map(str, sorted(sizes)))}")
    return found


def contention_of(measurement: Measurement) -> float:
    """Time in which chunks could have computed and had no core, divided by their duration."""
    chunks = measurement.chunks
    wall = chunks["wall_seconds"].sum()
    return float(chunks["core_wait_seconds"].fillna(0).sum() / wall) if wall else 0.0


def judged(plant: Plant, grown: Grown, busy: bool = False) -> Judged:
    """What was found, beside what had to be."""
    findings, contention = findings_of(plant, grown.measurement, busy), contention_of(grown.measurement)
    opposite = contradictions(findings)
    found = findings[0].cause if findings else "nothing"
    if not plant.causes:
        right = not findings or (found == "contention" and contention > CONTENDED)
        return Judged(plant.name, ("nothing",), found, "-", opposite, contention, right and not opposite)
    culprit = named(findings[0], grown.names) if findings else None
    ok = found in plant.causes and culprit is not None and not opposite
    return Judged(plant.name, plant.causes, found, culprit, opposite, contention, ok)


def saved(grown: Grown, folder: Path, name: str) -> None:
    """Keep a run with the names that have to be found."""
    grown.measurement.save(folder, name, overwrite=True)
    (folder / f"{name}.json").write_text(json.dumps(grown.names))


def loaded(folder: Path, name: str) -> Grown:
    """A run that was kept."""
    return Grown(load(folder / name), tuple(json.loads((folder / f"{name}.json").read_text())))


def ledger_of(measurement: Measurement) -> str:
    """The largest classes of the time ledger."""
    ledger = measurement.time_ledger
    largest = sorted(ledger.items(), key=lambda item: -item[1])[:5]
    total = ledger.total or 1.0
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest if seconds > 0.02 * total)


def runs(options: argparse.Namespace) -> Iterator[tuple[Plant, Grown]]:
    """Runs of all plants, or those that were kept."""
    chosen = options.only or [name for name, plant in PLANTS.items() if plant.counted]
    if options.judge:
        for path in sorted(options.judge.glob("*.json")):
            name = path.stem.rpartition("-")[0].replace("-", " ")
            if name in chosen:
                yield PLANTS[name], loaded(options.judge, path.stem)
        return
    with tempfile.TemporaryDirectory(prefix="roastcoffea-causes-") as scratch:
        for repeat in range(options.repeat):
            ground = Ground(options.sample or Path(scratch), options.factor, options.seed + repeat)
            for name in chosen:
                grown = planted_run(name, ground)
                if options.save:
                    saved(grown, options.save, f"{name.replace(' ', '-')}-{ground.seed}")
                yield PLANTS[name], grown


def comparisons(options: argparse.Namespace) -> int:
    """Print the largest part of the explanation of each comparison; 1 where one is wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="roastcoffea-causes-") as scratch:
        for one in compared_runs(Ground(options.sample or Path(scratch), options.factor, options.seed)):
            explanation = compare(one.before, one.after).explanation
            parts = ", ".join(f"{part.cause} {part.wall_seconds:+.2f} s" for part in explanation.parts[:4])
            right = bool(explanation.parts) and explanation.parts[0].cause in one.causes
            wrong += not right
            told = f"{'ok' if right else 'WRONG'}: {explanation.absent or parts}"
            delays = " and ".join(f"{contention_of(side):.0%}" for side in (one.before, one.after))
            print(
                f"{one.name:<40}{one.causes[0]:<22}{explanation.wall_seconds:>+7.2f} s  {told}; run delay {delays}",
                flush=True,
            )
            for side, run in (("before", one.before), ("after", one.after)):
                if options.save:
                    run.save(options.save, f"compared-{one.name.replace(' ', '-')}-{side}", overwrite=True)
    print(f"largest part wrong in {wrong}: {'MISSED' if wrong else 'kept'}")
    return int(wrong > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), metavar="NAME", help=f"of {', '.join(PLANTS)}")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, with other seeds (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="what a plant falls on (default 1)")
    parser.add_argument("--factor", type=float, default=1.0, help="of what each cause costs (default 1)")
    parser.add_argument("--sample", type=Path, help="folder that keeps the files that are read")
    parser.add_argument("--save", type=Path, help="folder for the measurements")
    parser.add_argument(
        "--judge", type=Path, help="folder of saved measurements, which are judged in place of new ones"
    )
    parser.add_argument("--comparisons", action="store_true", help="compare runs that differ in one thing, instead")
    parser.add_argument("--busy", action="store_true", help="others use the host: skip contention that was not planted")
    parser.add_argument("--texts", action="store_true", help="print all findings and ledgers")
    return parser.parse_args()


def main() -> int:
    """Plant, judge and print."""
    options, wrong, total = parsed(), 0, 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that clusters end as well
    if options.comparisons:
        return comparisons(options)
    print(f"{'plant':<28}{'expected':<24}{'found first':<18}{'culprit':<30}{'run delay':>9}{'wall':>9}  ok")
    for plant, grown in runs(options):
        began = time.perf_counter()
        one, measurement = judged(plant, grown, options.busy), grown.measurement
        wall = measurement.run.stop - measurement.run.start
        told = "ok" if one.ok else "WRONG"
        print(
            f"{one.name:<28}{' or '.join(one.causes):<24}{one.found:<18}{str(one.culprit)[:28]:<30}"
            f"{one.contention:>9.0%}{wall:>7.1f} s  {told}{''.join(f'; {text}' for text in one.contradictions)}",
            flush=True,
        )
        if options.texts:
            print(f"    {measurement.bound}; {measurement.outcome}; {ledger_of(measurement)}")
            for finding in measurement.verdict:
                print(f"    {finding.cause}: {finding.text}")
            print(f"    concluded in {time.perf_counter() - began:.1f} s", flush=True)
        wrong, total = wrong + (plant.counted and not one.ok), total + plant.counted
    print(f"{total - wrong} of {total} right: {'kept' if wrong <= MOST_WRONG else 'MISSED'}")
    return int(wrong > MOST_WRONG)


if __name__ == "__main__":
    sys.exit(main())
