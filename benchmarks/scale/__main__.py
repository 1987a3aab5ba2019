"""The size of a data challenge: what measuring costs there, and whether `scaling` finds what limits a campaign.

python -m benchmarks.scale                                # both, twenty minutes on two quiet cores at most
python -m benchmarks.scale --parts campaigns              # simulated, two minutes
python -m benchmarks.scale --live --save runs             # campaigns on a real scheduler, twenty minutes
python -m benchmarks.scale --parts costs --chunks 40000 --workers 100 --seconds 600   # a minute
"""

from __future__ import annotations

import argparse
import sys
import time

from . import cost, limits

PARTS = {"campaigns": limits.limits, "costs": cost.costs}


def main() -> int:
    """Print all figures with their goals; the exit status is 1 where one was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these (default: both; with --live: campaigns)")
    limits.add_options(parser.add_argument_group("campaigns"))
    cost.add_options(parser.add_argument_group("costs"))
    options = parser.parse_args()
    parts = options.parts or (["campaigns"] if options.live else [*PARTS])
    began, missed = time.perf_counter(), 0
    for name, part in PARTS.items():
        if name in parts:
            print(f"== {name}", flush=True)
            missed += part(options)
    print(f"{time.perf_counter() - began:.0f} s in all; {missed} goals missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
