"""Stratified samples: what is drawn, and whether intervals hold what is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from roastcoffea.studies.stratified import Estimate, Population, Sampled, drawn, grown, largest


def population(seed: int, datasets: int | None = None) -> Population:
    """Chunks of files of different size, in datasets on two hosts."""
    random, rows = np.random.default_rng(seed), []
    for dataset in range(datasets or random.integers(1, 6)):
        for _ in range(random.integers(5, 40)):
            events = int(random.integers(3_000, 60_000))
            file, number = len({row[2] for row in rows}), max(round(events / 5_000), 1)
            step = -(-events // number)
            edges = [min(each * step, events) for each in range(number + 1)]
            rows += [(dataset, file % 2, file, *edge) for edge in pairwise(edges)]
    names = ("dataset", "host", "file", "start", "stop")
    return Population(**dict(zip(names, np.array(rows, np.int64).T, strict=True)))


def test_each_dataset_has_a_pair_in_each_of_its_strata() -> None:
    every = population(1, datasets=4)
    found = drawn(every, len(every) // 20, seed=3)
    assert len(np.unique(found.rows)) == len(found.rows)
    for stratum in np.unique(found.stratum):
        assert len(np.unique(every.dataset[found.stratum == stratum])) == 1
        assert (found.stratum[found.rows] == stratum).sum() == 2
    share = np.bincount(every.dataset[found.rows]) / np.bincount(every.dataset)
    assert share == pytest.approx(1 / 20, abs=0.03)
    again, other = drawn(every, len(every) // 20, seed=3), drawn(every, len(every) // 20, seed=4)
    assert again.rows.tolist() == found.rows.tolist() != other.rows.tolist()


def test_strata_keep_hosts_and_sizes_of_files_together() -> None:
    every = population(2, datasets=1)
    found = drawn(every, len(every) // 10, seed=0)
    size = np.bincount(every.file, every.events)[every.file]
    mixed, spread = 0, []
    for stratum in np.unique(found.stratum):
        own = found.stratum == stratum
        mixed += len(np.unique(every.host[own])) > 1
        spread.append(float(np.ptp(size[own])))
    assert mixed <= 1
    assert np.median(spread) < 0.2 * np.ptp(size)


def test_the_whole_as_its_own_sample_has_no_interval() -> None:
    every = population(5)
    found = drawn(every, len(every), seed=0)
    amounts = np.random.default_rng(0).lognormal(size=len(every))
    total = Sampled(every, found.stratum, found.rows).total(amounts[found.rows])
    assert total.value == pytest.approx(amounts.sum())
    assert total.low == total.value == total.high


def test_costs_per_event_are_known_exactly() -> None:
    every = population(7, datasets=3)
    found = drawn(every, 12, seed=1)
    amounts = np.array([1e-3, 5e-3, 2e-2])[every.dataset] * every.events
    total = Sampled(every, found.stratum, found.rows).total(amounts[found.rows])
    assert total.value == pytest.approx(float(amounts.sum()))
    assert total.high / total.value - 1 < 1e-6


def test_intervals_hold_in_nine_of_ten_cases() -> None:
    """Of 200 simulated filesets with different datasets, files, scatter of chunks and of files, and shares drawn."""
    held, errors = [], []
    for seed in range(200):
        random, every = np.random.default_rng([seed, 1]), population(seed)
        number, files = len(every), int(every.file.max()) + 1
        rate = random.lognormal(-8, 0.7, int(every.dataset.max()) + 1)[every.dataset]
        fixed = random.uniform(0, 0.3) * np.exp(random.normal(0, 0.2, number))
        growing = rate * every.events * np.exp(random.normal(0, random.uniform(0.05, 0.5), number))
        growing *= np.exp(random.normal(0, 0.1, files))[every.file]
        found = drawn(every, max(int(random.choice([0.02, 0.05, 0.1]) * number), 8), seed)
        total = Sampled(every, found.stratum, found.rows).total((fixed + growing)[found.rows])
        truth = float((fixed + growing).sum())
        held.append(total.low <= truth <= total.high)
        errors.append(total.value / truth - 1)
    assert 0.85 <= np.mean(held) <= 0.97
    assert abs(np.mean(errors)) < 3 * np.std(errors) / 200**0.5


def test_a_stratum_that_lost_its_pair_joins_its_dataset() -> None:
    every = population(3, datasets=1)
    found = drawn(every, 8, seed=0)
    amounts = np.random.default_rng(1).lognormal(0, 0.1, len(every)) * every.events
    total = Sampled(every, found.stratum, found.rows[1:]).total(amounts[found.rows[1:]])
    assert total.low < amounts.sum() < total.high
    lonely = Sampled(every, found.stratum, found.rows[:1]).total(amounts[found.rows[:1]])
    assert lonely.high > 2 * lonely.value


def test_chunks_stand_in_for_others_of_their_dataset() -> None:
    every = population(4, datasets=2)
    found = drawn(every, 12, seed=0)
    some = np.flatnonzero(found.stratum[found.rows] != found.stratum[found.rows[0]])
    donors = Sampled(every, found.stratum, found.rows).donors(some)
    assert (every.dataset[found.rows[donors]] == every.dataset).all()
    assert set(donors.tolist()) == set(some.tolist())


def test_the_largest_of_many_values_stays_below_the_end_of_its_interval() -> None:
    below, held = [], []
    for seed in range(200):
        values = np.random.default_rng(seed).normal(1_000, 40, 500)
        found = largest(values[:12], len(values))
        below.append(values.max() <= found.high)
        held.append(found.low <= values.max() <= found.high)
    assert np.mean(below) >= 0.95
    assert np.mean(held) >= 0.9
    assert largest(np.full(12, 7.0), 500) == Estimate(7.0, 7.0, 7.0)


def test_histograms_do_not_grow_and_columns_do() -> None:
    bins, each = 1_000.0, 8.0

    def size(first: float, second: float, both: float, events: float = 100.0) -> Estimate:
        every = np.array([[100.0], [events]])
        return grown(np.array([[first], [second]]), np.array([both]), every, np.array([10_000.0]))

    assert size(bins, bins, bins) == Estimate(bins, bins, bins)
    assert size(800, 800, 1_600).value == pytest.approx(each * 10_000)
    both = size(bins + 800, bins + 840, bins + 1_640, 105)
    assert both.value == pytest.approx(bins + each * 10_000)
    assert both.low == pytest.approx(both.value, rel=0.01)
    uneven = size(bins + 700, bins + 900, bins + 1_600)
    assert uneven.low < bins + each * 10_000 < uneven.high


def test_outputs_of_datasets_grow_independently() -> None:
    """The second dataset is sampled ten times as densely, and adds twice as much for each event."""
    halves, events = np.array([[800.0, 1_600.0]] * 2), np.array([[100.0, 100.0]] * 2)
    found = grown(halves, halves.sum(axis=0), events, np.array([10_000.0, 1_000.0]))
    assert found.value == pytest.approx(8 * 10_000 + 16 * 1_000)


def test_estimates_are_shifted_and_scaled() -> None:
    assert Estimate(10, 7, 13).more(1, 2) == Estimate(22, 16, 28)
