"""Stratified random samples of chunks, and totals over all chunks with 90 % intervals."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot, sqrt
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import nct, norm
from scipy.stats import t as students_t

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.replay.changes import ratio

ALIKE: Final = 0.01
"""Minimum relative error of an output's growth, because two halves of a sample may agree by chance."""


@dataclass(frozen=True, slots=True)
class Population:
    """All chunks of a fileset: integer codes for dataset, host and file, and the range of entries."""

    dataset: Integers
    host: Integers
    file: Integers
    start: Integers
    stop: Integers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def events(self) -> Numbers:
        """Number of events in each chunk."""
        return (self.stop - self.start).astype(np.float64)


class DrawnChunks(NamedTuple):
    """Rows of the drawn chunks in random order, and the stratum of each chunk in the population."""

    rows: Integers
    stratum: Integers


def drawn(every: Population, wanted: int, seed: int) -> DrawnChunks:
    """Draw about this many chunks, with at least two from each dataset.

    The chunks of a dataset are sorted by host, file size and file name, and divided into strata of consecutive chunks.
    Two chunks are drawn from each stratum.
    """
    random = np.random.default_rng(seed)
    size = np.bincount(every.file, every.events)[every.file]
    order = np.lexsort((every.start, every.file, size, every.host, every.dataset))
    strata = []
    for own in np.split(order, np.flatnonzero(np.diff(every.dataset[order])) + 1):
        strata += np.array_split(own, ceil(wanted * len(own) / len(every) / 2))
    rows = [random.choice(one, min(2, len(one)), replace=False) for one in strata]
    stratum = np.zeros(len(every), np.int64)
    stratum[np.concatenate(strata)] = np.repeat(np.arange(len(strata)), [len(one) for one in strata])
    return DrawnChunks(random.permutation(np.concatenate(rows)), stratum)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 90 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, error: float) -> Estimate:
        """A number with this relative error."""
        return cls(value, value / (1 + error), value * (1 + error))

    def more(self, known: float, factor: float = 1.0) -> Estimate:
        """The estimate plus a known amount, times a factor."""
        return Estimate((self.value + known) * factor, (self.low + known) * factor, (self.high + known) * factor)


class Sampled:
    """Chunks of a population that have a result; totals are estimated from them.

    Parameters
    ----------
    every, stratum
        The population, and the stratum of each of its chunks.
    rows
        Rows of the sampled chunks in the population; each dataset needs at least one.
    """

    def __init__(self, every: Population, stratum: Integers, rows: Integers) -> None:
        self.every, self.rows = every, rows
        self.dataset, self.events = every.dataset[rows], every.events[rows]
        known, there = _sizes(stratum, rows)
        # a stratum that lacks a pair shows no spread: its whole dataset becomes one stratum
        lacking = every.dataset[(known < np.minimum(there, 2))[stratum]]
        self.stratum = np.where(np.isin(every.dataset, lacking), len(there) + every.dataset, stratum)

    def total(self, amounts: Numbers, error: float = 0.0) -> Estimate:
        """Total over the population, estimated from the amount per event in each dataset.

        Parameters
        ----------
        amounts
            Amount for each sampled chunk.
        error
            Relative error of repeating the measurement.
        """
        dataset, stratum = self.dataset, self.stratum[self.rows]
        known, there = _sizes(self.stratum, self.rows)
        weight = ratio(there, known)[stratum]
        size = np.bincount(self.every.dataset, self.every.events)
        seen, amount = (np.bincount(dataset, weight * each) for each in (self.events, amounts))
        rate = ratio(amount, seen)
        value = float(size @ rate)
        left = (amounts - rate[dataset] * self.events) * ratio(size, seen)[dataset]
        spread = pd.Series(left).groupby(stratum).var()
        strata = spread.index.to_numpy()
        known, there = known[strata], there[strata]
        # a chunk that is alone shows no spread, so its spread is assumed to be as large as the largest amount
        variance = there * (there - known) / known * spread.fillna(np.max(amounts) ** 2).to_numpy()
        relative = 0.0
        if variance.any():
            # degrees of freedom of a sum of variances (Satterthwaite)
            freedom = variance.sum() ** 2 / (variance**2 / np.maximum(known - 1, 1)).sum()
            relative = float(students_t.ppf(0.95, freedom)) * sqrt(variance.sum()) / (value or 1.0)
        return Estimate.within(value, hypot(relative, error))

    def donors(self, usable: Integers, seed: int = 0) -> Integers:
        """For each chunk of the population, a sampled chunk from its dataset that stands in for it.

        Parameters
        ----------
        usable
            Indices of the sampled chunks that may stand in for others.
        """
        random, found = np.random.default_rng(seed), np.zeros(len(self.every), np.int64)
        for dataset in np.unique(self.every.dataset):
            own = self.every.dataset == dataset
            some = np.resize(usable[self.dataset[usable] == dataset], np.count_nonzero(own))
            found[own] = random.permutation(some)
        return found


def _sizes(stratum: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Number of sampled chunks, and of all chunks, in each stratum."""
    there = np.bincount(stratum)
    return np.bincount(stratum[rows], minlength=len(there)), there


def largest(values: Numbers, among: int) -> Estimate:
    """Largest of this many values, estimated from a sample that is assumed to be normally distributed.

    The value is the largest in the sample. The interval starts at the sample's median, and ends at a tolerance bound,
    which exceeds all values for at least 95 % of samples.
    """
    most, root = float(np.max(values)), sqrt(len(values))
    spread = float(values.std(ddof=1)) if len(values) > 1 else most
    width = nct.ppf(0.95, max(len(values) - 1, 1), norm.ppf(1 - 0.1 / max(among, 2)) * root) / root
    return Estimate(most, float(np.median(values)), max(most, float(values.mean() + width * spread)))


def grown(halves: Numbers, both: Numbers, events: Numbers, whole: Numbers | Integers) -> Estimate:
    """Size of an output for all events, from the outputs of two halves of a sample.

    What both halves have in common, such as histogram bins, does not grow; the rest grows with events.

    Parameters
    ----------
    halves, both
        Size of each part of the output: for the two halves (one row each), and for both of them merged.
    events, whole
        Number of events for each part: in the two halves (one row each), and in total.
    """
    common = np.clip(halves.sum(axis=0) - both, 0.0, halves.min(axis=0))
    rates = (halves - common) / np.maximum(events, 1.0)
    seen = events.sum(axis=0)
    more = np.maximum((both - common) / np.maximum(seen, 1.0) * whole - (both - common), 0.0)
    spread = float(students_t.ppf(0.95, 1)) * np.abs(rates[0] - rates[1]) / 2 * (whole - seen)
    error = float(np.linalg.norm(np.hypot(spread, ALIKE * more)))
    value, least = float((both + more).sum()), float(both.sum())
    return Estimate(value, max(value - error, least), value + error)
