"""Pairs of a duet: what each version used against the kernel's clock and the file's baskets, and exceptions."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from analyses import Jets, spin
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner
from releases import Processor

from roastcoffea.instrument.duet import Turns
from roastcoffea.studies import duet as study

SECONDS = {"a": 0.02, "b": 0.026}


class Clocked(Processor):
    """Spins for a while, and gives the CPU time that the kernel counts; the first version in a chunk finds no mark."""

    def __init__(self, seconds: float, extra: bool = False) -> None:
        self.seconds, self.extra = seconds, extra

    def process(self, events: Any) -> dict[str, Any]:
        clock = Path("/proc/thread-self/schedstat")
        began = int(clock.read_text().split()[0])
        jets = int(ak.sum(ak.num(events.Jet)))
        if self.extra:
            ak.materialize(events.Jet.pt)
        spin(self.seconds)
        return {"jets": jets, "kernel": [(int(clock.read_text().split()[0]) - began) / 1e9]}


class Failing(Processor):
    def process(self, events: Any) -> Any:
        raise LookupError("planted")


def runner() -> Runner:
    return Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=1000)


def duet_of(a: Any, b: Any, sample: Any) -> study.Duet:
    return study.duet(a, b, runner(), sample, minutes=1.0, treename="Events")


@pytest.mark.usefixtures("steps")
def test_cpu_time_of_pairs_is_what_the_kernel_counts(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "differences", lambda a, b: iter([json.dumps([a["kernel"], b["kernel"]])]))
    found = duet_of(*map(Clocked, SECONDS.values()), sample)
    for side, kernel in zip("ab", json.loads(found.differences[0]), strict=True):
        pairs = found.pairs[: len(kernel)]
        assert len(pairs) > 10
        assert [row[side]["cpu"] for row in pairs] == pytest.approx(kernel, rel=0.05, abs=2e-3)
        assert all(row[side]["wall"] >= row[side]["cpu"] - 1e-3 for row in pairs)


@pytest.mark.usefixtures("steps")
def test_each_version_reads_its_own_baskets(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = duet_of(Clocked(0), Clocked(0, extra=True), sample)
    sizes: dict[str, dict[str, list[int]]] = {"a": {}, "b": {}}
    for dataset, files in sample.items():
        for file in files["files"]:
            with uproot.open(file) as opened:
                tree = opened["Events"]
                counts, pts = (
                    [tree[name].basket_compressed_bytes(number) for number in range(tree[name].num_baskets)]
                    for name in ("nJet", "Jet_pt")
                )
            sizes["a"].setdefault(dataset, []).extend(counts)  # all that ak.num needs
            sizes["b"].setdefault(dataset, []).extend(np.add(counts, pts).tolist())
    for side in "ab":
        for row in found.pairs:
            assert row[side]["bytes"] in sizes[side][row["dataset"]]
    change = found.changes["bytes"]
    expected = np.ptp([np.mean([*chain(*each.values())]) for each in sizes.values()])
    assert change.b - change.a == pytest.approx(expected, rel=0.3)  # which chunks are drawn is left to chance
    assert change.low > 0
    assert all(text.startswith("output['kernel']") for text in found.differences)


@pytest.mark.usefixtures("steps")
def test_exceptions_of_a_processor_come_out_unchanged(sample: Any) -> None:
    with pytest.raises(Exception, match="planted") as alone:
        runner()(sample, treename="Events", processor_instance=Failing())
    for versions in ((Jets(), Failing()), (Failing(), Jets())):
        with pytest.raises(Exception, match="planted") as raised:
            duet_of(*versions, sample)
        assert type(raised.value) is type(alone.value)
        assert isinstance(raised.value.__cause__, LookupError)


def test_chunks_after_the_deadline_are_left_out() -> None:
    turns = Turns(lambda _: pytest.fail("processed"), 0.0, 0, None)
    assert turns(None) == {"out": {}, "processed": set()}
