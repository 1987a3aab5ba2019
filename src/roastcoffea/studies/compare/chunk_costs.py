"""What a chunk costs whatever its size, told from the cost of an event by the chunks of two runs with other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers, moments
from roastcoffea.records.phases import PHASES

IN_PROCESS: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES if phase.in_process))
"""Classes of the time ledger that are spent in process()."""

OF_LOAD: Final = ("contention", "interpreter lock")
"""Classes that come from others on the same cores or in the same process: no chunk size brings them."""

SPLIT: Final = tuple(name for name in IN_PROCESS if name not in OF_LOAD)

TRAITS: Final = ("chunks", "events", "bytes")
LEAST_SPREAD: Final = 0.1
"""Standard deviation of the sizes divided by their mean above which they differ."""

SURE: Final = 2.0
"""Standard errors that a fixed cost has to be above 0."""

Products = Mapping[str, Numbers]
"""For each dataset the products, summed over its chunks, of any two of TRAITS and the seconds of SPLIT: all that least
squares need."""


class Fixed(NamedTuple):
    """Seconds that the chunks of two runs took whatever their size, before and after, and those of one chunk."""

    before: float
    after: float
    each: float


def products(chunks: pa.Table | None) -> dict[str, Numbers]:
    """Products of the chunks that counted; NaN where an amount is not known of all."""
    if chunks is None or chunks["dataset"].null_count:
        return {}
    seconds = [sum(moments(chunks, column) for column in phases.COLUMNS_OF[name]) for name in SPLIT]
    read = moments(chunks, "bytes_payload") + np.nan_to_num(moments(chunks, "bytes_other"))
    amounts = moments(chunks, "events"), read, *seconds
    rows = np.column_stack([np.ones(len(chunks)), *amounts])
    dataset = np.asarray(chunks["dataset"].to_numpy(zero_copy_only=False))
    return {str(name): rows[dataset == name].T @ rows[dataset == name] for name in np.unique(dataset)}


def fixed_costs(name: str, trait: str, before: Sequence[Products], after: Sequence[Products]) -> Fixed | None:
    """What chunks cost in a class whatever their size, in the mean of the runs of each side.

    One law is drawn through the chunks of all runs of a dataset: fixed seconds per chunk, and seconds per event (or
    a byte). None where no dataset has chunks of other sizes, or the fixed cost cannot be told apart from noise.
    """
    fixed, chunks = np.zeros(2), 0.0
    for dataset in dict.fromkeys(dataset for run in (*before, *after) for dataset in run):
        of_runs = [run[dataset] for run in (*before, *after) if dataset in run]
        each = _of_a_chunk(np.sum(of_runs, axis=0), TRAITS.index(trait), len(TRAITS) + SPLIT.index(name))
        numbers = [fmean(run[dataset][0, 0] if dataset in run else 0.0 for run in side) for side in (before, after)]
        fixed += each * np.array(numbers)
        chunks += sum(numbers) if each else 0.0
    return Fixed(float(fixed[0]), float(fixed[1]), float(fixed.sum() / chunks)) if chunks else None


def _of_a_chunk(both: Numbers, trait: int, seconds: int) -> float:
    """Seconds that a chunk takes whatever its size, by least squares; 0 where they do not stand out or are unknown."""
    number, total, squares = both[0, 0], both[0, trait], both[trait, trait]
    spread = squares - total**2 / number
    if number <= len(TRAITS) or not total > 0 or spread <= (LEAST_SPREAD * total) ** 2 / number:
        return 0.0
    slope = max((both[trait, seconds] - total * both[0, seconds] / number) / spread, 0.0)
    each = (both[0, seconds] - slope * total) / number
    unexplained = both[seconds, seconds] - each * both[0, seconds] - slope * both[trait, seconds]
    error = np.sqrt(max(unexplained, 0.0) / (number - 2) * squares / (number * spread))
    return float(each) if each > SURE * error else 0.0
