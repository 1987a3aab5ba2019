"""False alarms and power of rules in simulated runs of known truth, which the tests try with a few seeds only.

`python benchmarks/simulated.py [FIRST]` draws runs with the seeds from FIRST on, 1000 by default. Of healthy runs at
most one in a hundred may have a finding; of planted ones nine in ten must have the right one, and slow places as often
as their test says. The exit status is 1 where a goal is missed. It takes five minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "diagnosis"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "diagnosis" / "findings"))

import test_absent_workers
import test_causes
import test_memory_growth
import test_slowing
import test_slowness
import test_writing
from made_runs import blamed

MANY: Final = 100


def accepts(test: Callable[[int], Any], seed: int) -> bool:
    """Whether a test of one seed passes."""
    try:
        test(seed)
    except AssertionError:
        return False
    return True


def grows(seed: int) -> bool:
    one = test_memory_growth.judged(seed)
    return bool(one["right"]) and abs(one["slope"]) < 0.1


def slows(seed: int) -> bool:
    one = test_slowing.judged(seed)
    return bool(one["named"]) and abs(one["factor"]) < 0.1 and abs(one["onset"]) < 0.1


def innocent(name: str, seed: int) -> bool:
    return not blamed(np.random.default_rng(seed), **test_slowness.HEALTHY[name])


def named(name: str, seed: int) -> bool:
    slow, described, _ = test_slowness.PLANTED[name]
    found = blamed(np.random.default_rng(seed), slow=[slow], **described)
    return (slow.kind, f"{slow.kind} {slow.number}") in {(one.kind, one.name) for one in found}


def rules() -> Iterable[tuple[str, Callable[[int], bool], float]]:
    """What is tried with each seed, and the share of seeds with which it must hold."""
    yield "healthy: writing", lambda seed: accepts(test_writing.test_a_little_writing_is_healthy, seed), 0.99
    yield "healthy: absent workers", lambda seed: accepts(test_absent_workers.test_healthy_runs, seed), 0.99
    yield (
        "healthy: growth",
        lambda seed: not test_memory_growth.found(test_memory_growth.grown(seed, healthy=True).run),
        0.99,
    )
    healthy = test_slowing.healthy
    yield (
        "healthy: slowing",
        lambda seed: not test_slowing.slowdown_of(test_slowing.simulated(healthy(seed), seed)[0]),
        0.99,
    )
    for name in test_slowness.HEALTHY:
        yield f"healthy: {name}", lambda seed, name=name: innocent(name, seed), 0.99
    yield (
        "verdicts without contradiction",
        lambda seed: accepts(test_causes.test_no_verdict_contradicts_itself, seed),
        1.0,
    )
    yield (
        "planted: writing",
        lambda seed: accepts(test_writing.test_writing_that_was_planted_is_named_with_its_place, seed % 10),
        0.9,
    )
    yield "planted: growth", grows, 0.9
    yield "planted: slowing", slows, 0.9
    for name, (_, _, share) in test_slowness.PLANTED.items():
        yield f"planted: {name}", lambda seed, name=name: named(name, seed), share


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("first", type=int, nargs="?", default=1000)
    first, missed = options.parse_args().first, 0
    for name, holds, share in rules():
        wrong = [seed for seed in range(first, first + MANY) if not holds(seed)]
        late = len(wrong) > round((1 - share) * MANY)
        missed += late
        print(
            f"{name:36} {MANY - len(wrong):4} of {MANY}  goal {share:4.0%}  {'MISSED' if late else ''} {wrong[:8]}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
