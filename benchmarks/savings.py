"""Whether savings come true: what a finding promises, beside what taking its cause out really saves.

For each of six plants (`tests/plants.py`) interleaved pairs of runs are made, with the cause and without it. The error
is that of the promise in the median of the pairs, divided by the wall time of the planted run. Pairs with another load
of others than the rest are made again. Run it on a quiet machine: `python benchmarks/savings.py`. The exit status is 1
where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from causes import contention_of
from plants import PLANTS, Ground, planted_run

from roastcoffea.measurement import Measurement, load

TAKEN_OUT: Final = (
    "sleeping section",
    "fresh workers",
    "one slow worker",
    "one slow file",
    "slow storage",
    "raising attempts",
)
"""Plants whose causes are taken out; of slow storage half, as its finding promises what twice the rate would save."""

MEDIAN_ERROR: Final = 0.10
WORST_ERROR: Final = 0.20
LEAST_COST: Final = 1 / 3
"""Share of the wall time that a planted cause has to take."""

OTHER_LOAD: Final = 0.05
"""Difference of a pair's run delay from the median one, as a share of the chunks' time, from which it is made again."""

MOST_AGAIN: Final = 3
"""Times that each pair is made again at most."""


class Pair(NamedTuple):
    """A run with its cause and one without it, made one after the other."""

    planted: Measurement
    clean: Measurement

    @property
    def contention(self) -> tuple[float, float]:
        return contention_of(self.planted), contention_of(self.clean)

    @property
    def saved(self) -> float:
        """Wall time that was really saved."""
        return wall(self.planted) - wall(self.clean)


@dataclass(frozen=True, slots=True)
class Case:
    """A promise beside the truth, in the medians of the pairs; `predicted` is 0 where nothing was promised."""

    plant: str
    wall: float
    predicted: float
    low: float | None
    high: float | None
    measured: float
    spread: float
    """Range of the measured savings divided by the wall time: no promise can be better."""
    found: int
    """Planted runs with the finding."""
    again: int
    """Pairs that were made again."""

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.wall

    @property
    def cost(self) -> float:
        """Share of the wall time that the cause really took."""
        return self.measured / self.wall


def wall(measurement: Measurement) -> float:
    """Wall time of a run."""
    return measurement.run.stop - measurement.run.start


def promised(measurement: Measurement, causes: Sequence[str]) -> tuple[float, float | None, float | None] | None:
    """What the finding of the cause promises, and its interval where it has one; None where it was not found."""
    for finding in measurement.verdict:
        if finding.cause in causes:
            low, high = getattr(finding, "interval", None) or (None, None)
            return finding.seconds, low, high
    return None


def others(pairs: Sequence[Pair]) -> list[int]:
    """Places of the pairs with another load than the rest."""
    usual = [median(side) for side in zip(*(pair.contention for pair in pairs), strict=True)]
    return [
        place
        for place, pair in enumerate(pairs)
        if any(abs(own - of_all) > OTHER_LOAD for own, of_all in zip(pair.contention, usual, strict=True))
    ]


def case_of(name: str, make: Callable[[int], Pair], number: int) -> Case:
    """The case of a plant, from so many pairs."""
    pairs, again = [make(place) for place in range(number)], 0
    for _ in range(MOST_AGAIN):
        different = others(pairs)
        for place in different:
            delays = " and ".join(f"{delay:.0%}" for delay in pairs[place].contention)
            print(f"  {name}: pair {place + 1} has run delays of {delays}, unlike the others: made again", flush=True)
            again += 1
            pairs[place] = make(number + again - 1)
    promises = [promised(pair.planted, PLANTS[name].causes) for pair in pairs]
    known = [promise for promise in promises if promise is not None]
    lows, highs = ([promise[place] for promise in known if promise[place] is not None] for place in (1, 2))
    time, saved = median(wall(pair.planted) for pair in pairs), [pair.saved for pair in pairs]
    return Case(
        plant=name,
        wall=time,
        predicted=median(0.0 if promise is None else promise[0] for promise in promises),
        low=median(lows) if lows else None,
        high=median(highs) if highs else None,
        measured=median(saved),
        spread=(max(saved) - min(saved)) / time,
        found=len(known),
        again=again,
    )


def maker(name: str, ground: Ground, keep: Path | None) -> Callable[[int], Pair]:
    """Make pairs of a plant; what was kept is taken again."""

    def run(place: int, cause: bool) -> Measurement:
        saved = f"{name.replace(' ', '-')}-{place}-{'planted' if cause else 'clean'}"
        if keep is not None and (keep / saved).exists():
            return load(keep / saved)
        measurement = planted_run(name, ground, cause=cause).measurement
        if keep is not None:
            measurement.save(keep, saved)
        return measurement

    def make(place: int) -> Pair:
        # what drifts in time is in both: the planted one comes first in every other pair
        first, second = (run(place, place % 2 == 0), run(place, place % 2 == 1))
        return Pair(first, second) if place % 2 == 0 else Pair(second, first)

    return make


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), metavar="NAME", help="plants in place of the six")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each plant (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="what a plant falls on (default 1)")
    parser.add_argument("--factor", type=float, default=1.0, help="of what each cause costs (default 1)")
    parser.add_argument("--sample", type=Path, help="folder that keeps the files that are read")
    parser.add_argument("--keep", type=Path, help="folder of measurements, in which those that are there are taken")
    parser.add_argument("--json", type=Path, help="file for all cases")
    return parser.parse_args()


def main() -> int:
    """Make pairs, and print promises beside savings; 1 where a goal is missed."""
    options, cases = parsed(), []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that clusters end as well
    with tempfile.TemporaryDirectory(prefix="roastcoffea-savings-") as scratch:
        for name in options.only or TAKEN_OUT:
            ground = Ground(options.sample or Path(scratch), options.factor, options.seed)
            cases.append(case_of(name, maker(name, ground, options.keep), options.pairs))
    if options.json:
        options.json.write_text(json.dumps([asdict(case) | {"error": case.error} for case in cases], indent=1) + "\n")
    return report(cases, options.pairs)


def report(cases: Sequence[Case], pairs: int) -> int:
    """Print the cases; 1 where a goal is missed."""
    print(
        f"\n{'plant':<28}{'wall':>8}{'predicted':>11}{'interval':>14}{'measured':>10}{'error':>8}{'pairs differ':>14}"
    )
    for case in cases:
        interval = "-" if case.low is None or case.high is None else f"{case.low:.1f} to {case.high:.1f}"
        remarks = [f"found in {case.found} of {pairs}"] if case.found < pairs else []
        remarks += [f"costs {case.cost:.0%}, a third is needed"] if case.cost < LEAST_COST else []
        remarks += [f"{case.again} pairs made again"] if case.again else []
        print(
            f"{case.plant:<28}{case.wall:>6.1f} s{case.predicted:>9.1f} s{interval:>14}{case.measured:>8.1f} s"
            f"{case.error:>+8.1%}{case.spread:>14.1%}  {'; '.join(remarks)}"
        )
    errors = sorted(abs(case.error) for case in cases)
    middle, worst = median(errors), errors[-1]
    kept = middle <= MEDIAN_ERROR and worst <= WORST_ERROR
    print(
        f"error divided by wall time: median {middle:.1%} (at most {MEDIAN_ERROR:.0%}), worst {worst:.1%} "
        f"(at most {WORST_ERROR:.0%}): {'kept' if kept else 'MISSED'}"
    )
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
