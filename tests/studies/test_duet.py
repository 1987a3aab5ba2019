"""Duets: pairs against known clocks and baskets, planted changes, outputs that differ, nothing left behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import awkward as ak
import hist
import numpy as np
import pytest
from analyses import Jets, Spinning
from coffea.nanoevents import NanoAODSchema
from coffea.processor import (
    DaskExecutor,
    FuturesExecutor,
    IterativeExecutor,
    Runner,
    column_accumulator,
    defaultdict_accumulator,
)
from conftest import what_stays
from distributed import Client, LocalCluster
from releases import Processor
from scripts_run import run_in

from roastcoffea import MetricsCollector
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.studies import duet as study
from roastcoffea.studies.duet import Change, change_of_pairs, differences, duet, result_of, trimmed_mean


class Mean(Processor):
    """Counts in postprocess, once for each version."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def process(self, events: Any) -> dict[str, Any]:
        return {"sum": self.factor * len(events), "n": 1}

    def postprocess(self, accumulator: Any) -> Any:
        return {"mean": accumulator["sum"] / accumulator["n"]}


def runner(executor: Any = None, chunksize: int = 1000) -> Runner:
    return Runner(executor or IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=chunksize)


def duet_of(a: Any, b: Any, sample: Any, executor: Any = None, minutes: float = 1.0) -> study.Duet:
    return duet(a, b, runner(executor), sample, minutes=minutes, treename="Events")


# pairs


def test_the_first_chunk_of_a_process_does_not_count() -> None:
    used = {"cpu": 1.0, "wall": 1.0, "bytes": 1, "memory": None}
    times = [("p", 0.0, 5.0), ("p", 1.0, 7.0), ("p", 5.0, 6.0), ("q", 2.0, 3.0), ("q", 3.0, 4.0)]
    rows = [
        {"dataset": "d", "first": "a", "start": start, "stop": stop, "process": process, "a": used, "b": used}
        for process, start, stop in times
    ]
    found = result_of(("A", "B"), rows, [], 7.0)
    assert [row["warm"] for row in found.pairs] == [False, False, True, False, True]
    assert "fewer than two pairs in each order" in found.missing["cpu"]
    assert found.verdict.startswith("No verdict on CPU: fewer than two pairs")
    assert found.missing["memory"] == "not measured, or threads share a process"


# changes


def pairs_of(
    random: np.random.Generator, many: int, factor: float = 1.0, first: float = 1.0
) -> tuple[Any, Any, Any, Any]:
    """Pairs of two datasets on a busy host: a tenth of the times is disturbed, and the first version pays extra."""
    b_first = random.random(many) < 0.5
    size = random.lognormal(0, 0.5, many)
    noise = random.normal(0, 0.04, (2, many)) + (random.random((2, many)) < 0.1) * random.exponential(0.5, (2, many))
    a, b = size * np.exp(noise) * [[1.0], [factor]]
    return np.where(b_first, a, a * first), np.where(b_first, b * first, b), b_first, np.arange(many) % 2


def test_the_order_of_the_versions_cancels() -> None:
    a = np.full(400, 2.0)
    b_first = np.arange(400) % 4 == 0
    found = change_of_pairs(np.where(b_first, a, a * 1.5), np.where(b_first, a * 1.5, a), b_first, np.zeros(400, int))
    assert found.low == found.high == found.change == 0
    assert not found.is_clear
    doubled = change_of_pairs(a, 2 * a, b_first, np.zeros(400, int))
    assert doubled.change == pytest.approx(1.0)


def test_equal_versions_alarm_as_rarely_as_is_said() -> None:
    """Names A and B are drawn again for the same pairs: then the versions are equal, whatever the times are."""
    random = np.random.default_rng(20261130)
    first, second = (each.copy() for each in pairs_of(random, 300)[:2])
    first *= 1.1
    alarms = 0
    for _ in range(1000):
        b_first = random.random(300) < 0.5
        a, b = np.where(b_first, second, first), np.where(b_first, first, second)
        alarms += change_of_pairs(a, b, b_first, np.arange(300) % 2).is_clear
    assert alarms <= 25  # 10 are expected


def test_a_change_of_two_percent_is_found() -> None:
    random = np.random.default_rng(1)
    found = [change_of_pairs(*pairs_of(random, 400, 1.02, first=1.1)) for _ in range(100)]
    assert sum(one.is_clear for one in found) >= 90
    assert sum(one.low <= 0.02 <= one.high for one in found) >= 96
    assert np.median([one.detectable for one in found]) < 0.02


def test_a_change_in_a_small_dataset_counts_by_its_size() -> None:
    random = np.random.default_rng(2)
    a = np.concatenate([np.full(360, 1.0), np.full(40, 1.0)])
    dataset = np.repeat([0, 1], [360, 40])
    b = np.where(dataset == 1, 1.5, 1.0) * np.exp(random.normal(0, 0.01, 400))
    found = change_of_pairs(a, b, random.random(400) < 0.5, dataset)
    assert found.change == pytest.approx(0.05, abs=0.006)  # the trimmed mean over all pairs would be 0
    assert found.is_clear


def test_trimmed_mean_of_a_hand_calculation() -> None:
    middle, square, freedom = trimmed_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, 7, 8, -50]))
    assert (middle, freedom) == (4.5, 5)  # of 2 to 7
    # winsorized: 2 2 2 3 4 5 6 7 7 7, with a sum of squared deviations of 42.5
    assert square == pytest.approx(42.5 / 30)


def test_what_the_verdict_says() -> None:
    def verdict(**changes: Any) -> str:
        change = Change(a=1.0, b=1.02, change=0.021, low=0.017, high=0.025, detectable=0.006)._replace(**changes)
        one = study.Duet(names=("A", "B"), seconds=1.0, pairs=[], changes={"cpu": change}, differences=[], missing={})
        return one.verdict

    assert verdict() == "B uses 2.1 % more CPU than A (99 % interval: 1.7 % to 2.5 %)."
    assert verdict(change=-0.02, low=-0.03, high=-0.01).startswith("B uses 2 % less CPU than A (99 % interval: 1 %")
    assert verdict(low=-0.1) == (
        "No difference in CPU found; a difference of 0.6 % or more would have been found with 90 % power."
    )


# outputs


def filled(*values: float) -> hist.Hist:
    return hist.Hist.new.Reg(4, 0, 4, name="x").Weight().fill(list(values))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({"n": 1, "h": filled(1, 2)}, {"n": 1, "h": filled(1, 2)}, []),
        ({"n": float("nan")}, {"n": float("nan")}, []),
        ({"n": 1}, {"n": 1.0}, ["output['n']: int in A, float in B"]),
        ({"n": 1, "m": 1}, {"n": 2}, ["output['n']: differs in 1 of 1 value", "output['m']: only in A"]),
        ({"d": {"h": filled(1)}}, {"d": {"h": filled(2)}}, ["output['d']['h'].value", "output['d']['h'].variance"]),
        (filled(1), hist.Hist.new.Reg(4, 0, 5, name="x").Weight().fill([1]), ["output: other axes"]),
        (np.zeros(3), np.zeros(3, np.float32), ["float64 of shape (3,) in A, float32 of shape (3,) in B"]),
        (np.zeros(3), np.array([0, 1e-9, 0]), ["differs in 1 of 3 values, by up to 1 of the value"]),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0 + 4e-9]), ["differs in 1 of 2 values, by up to 2e-09 of the value"]),
        (column_accumulator(np.ones(2)), column_accumulator(np.ones(2)), []),
        (column_accumulator(np.ones(2)), column_accumulator(np.zeros(2)), ["output: differs in 2 of 2 values"]),
        (ak.Array([[1, 2], []]), ak.Array([[1, 2], []]), []),
        (ak.Array([[1, 2], []]), ak.Array([[1], [2]]), ["output: other values"]),
        (defaultdict_accumulator(int, {"x": 1}), defaultdict_accumulator(int, {"x": 2}), ["output['x']"]),
        ({"s": {1, 2}, "l": [1, (2, 3)]}, {"s": {2, 1}, "l": [1, (2, 4)]}, ["output['l'][1][1]: differs"]),
        ([1], [1, 2], ["output: 1 item in A, 2 in B"]),
        ({"t": "x"}, {"t": "y"}, ["output['t']: other values"]),
    ],
)
def test_where_outputs_differ(a: Any, b: Any, words: list[str]) -> None:
    found = list(differences(a, b))
    assert len(found) == len(words)
    for text, expected in zip(found, words, strict=True):
        assert expected in text


@pytest.mark.usefixtures("steps")
def test_outputs_are_compared_after_postprocess(sample: Any) -> None:
    found = duet_of(Mean(1), Mean(2), sample)
    assert found.differences == ["output['mean']: differs in 1 of 1 value, by up to 0.5 of the value"]
    assert "The outputs differ in 1 place" in str(found)
    assert "The outputs are equal." in str(duet_of(Mean(1), Mean(1), sample))


# runs


@pytest.mark.usefixtures("steps")
def test_a_planted_slower_version_is_found(sample: Any) -> None:
    found = duet_of(Spinning(0.02), Spinning(0.026), sample, minutes=2)
    assert found.changes["cpu"].low > 0.05
    assert found.verdict.startswith("B uses ")
    assert " more CPU than A (99 % interval: " in found.verdict
    text = str(found)
    assert len(text.strip().splitlines()) <= 24
    for words in ("duet  A: Spinning, B: Spinning", "CPU time", "wall time", "bytes read", "99 % interval"):
        assert words in text
    document = json.loads(json.dumps(found.as_dict()))
    assert document["changes"]["cpu"]["change"] == found.changes["cpu"].change
    assert len(document["pairs"]) == len(found.pairs)


@pytest.mark.usefixtures("steps")
def test_random_order_and_fresh_events_on_futures(sample: Any) -> None:
    executor = FuturesExecutor(pool=ThreadPoolExecutor, workers=2, status=False)
    found = duet_of(Jets(), Jets(), sample, executor, minutes=2)
    assert found.differences == []
    assert {row["first"] for row in found.pairs} == {"a", "b"}
    assert all(row["a"]["bytes"] == row["b"]["bytes"] > 0 for row in found.pairs)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster, Client(cluster) as client:
        yield client


def test_on_dask(sample: Any, client: Client) -> None:
    found = duet_of(Jets(), Jets(), sample, DaskExecutor(client=client, status=False), minutes=0.2)
    assert found.differences == []
    assert found.pairs
    assert all(row["a"]["bytes"] == row["b"]["bytes"] > 0 for row in found.pairs)
    assert what_stays(client) == []


WITHOUT = """
import cloudpickle, json, sys
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client, LocalCluster

def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "roastcoffea"]:
        del sys.modules[name]
    sys.modules["roastcoffea"] = None  # importing it fails from now on

if __name__ == "__main__":
    from roastcoffea.studies import duet as study
    study.importable_package = lambda: None
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.run(forget)
        runner = Runner(DaskExecutor(client=client, status=False), schema=NanoAODSchema, chunksize=1000)
        with open("sample.json") as file:
            found = study.duet(Jets(), Jets(), runner, json.load(file), minutes=0.2, treename="Events")
    print(len(found.pairs), found.differences, cloudpickle.list_registry_pickle_by_value())
"""


def test_on_workers_without_the_package(sample: Any, tmp_path: Path) -> None:
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    (tmp_path / "script.py").write_text(WITHOUT)
    done = run_in(tmp_path, sys.executable, "script.py")
    assert done.returncode == 0, done.stderr
    pairs, *rest = done.stdout.splitlines()[-1].split(maxsplit=1)
    assert int(pairs) > 0
    assert rest == ["[] set()"]


@pytest.mark.usefixtures("steps")
def test_nothing_is_left_behind(sample: Any) -> None:
    modules, one = {*sys.modules}, runner()
    before = dict(vars(one)), type(one.executor), Runner.run, IterativeExecutor.copy
    processor = Jets()
    with MetricsCollector() as collector:
        duet(processor, Jets(), one, sample, minutes=1, treename="Events")
        output, *_ = [one(sample, treename="Events", processor_instance=processor)]
    assert (dict(vars(one)), type(one.executor), Runner.run, IterativeExecutor.copy) == before
    assert vars(processor) == {}
    assert [name for name in {*sys.modules} - modules if name.startswith("_roastcoffea")] == []
    assert len(collector.measurement.run.calls) == 1  # not the duet
    assert output


def test_wrong_arguments(sample: Any) -> None:
    with pytest.raises(ValueError, match="minutes is 0; pass a number above 0"):
        duet_of(Jets(), Jets(), sample, minutes=0)
    with pytest.raises(NotMeasuredError, match="no chunk was processed by both versions in"):
        duet_of(Jets(), Jets(), sample, minutes=1e-9)
