"""The finding on writing: it names the folder or server where writing was planted, and is silent otherwise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from limited_runs import STORE, plans, writing_to
from made_runs import made_run

from roastcoffea.diagnosis.finding import Finding
from roastcoffea.measurement import Measurement


def finding_of(measurement: Measurement) -> Finding | None:
    return next((one for one in measurement.verdict if one.cause == "writing"), None)


class Planted(NamedTuple):
    """A run, seconds and rate of its writing, where it writes to, and its wall time if writing took half of that."""

    measurement: Measurement
    seconds: float
    rate: float
    folder: str
    halved: float


def planted(seed: int, share: float) -> Planted:
    """A run of which chunks spend about this share on writing."""
    random = np.random.default_rng(seed)
    workers, cpu = int(random.integers(2, 9)), float(random.uniform(0.2, 0.9))
    chunks = [
        {**each, "cpu": random.uniform(0.5, 1.5), "wait": random.gamma(20, share / (1 - share) / 20)}
        for each in plans(chunks=int(random.integers(40, 80)))
    ]
    rate, folder = float(random.uniform(1e6, 50e6)), ["/scratch/skims", f"{STORE}/skims"][seed % 2]
    run = writing_to(made_run(chunks, workers), folder, cpu, rate, ["ROOT", "Parquet"][seed // 2 % 2])
    halved = made_run([{**each, "wait": each["wait"] / 2} for each in chunks], workers)
    seconds = sum(each["wait"] for each in chunks)
    return Planted(Measurement(run), seconds, rate, folder, halved.stop - halved.start)


@pytest.mark.parametrize("seed", range(4))
def test_writing_that_was_planted_is_named_with_its_place(seed: int) -> None:
    measurement, seconds, rate, folder, halved = planted(seed, 0.25 + 0.05 * seed)
    found = finding_of(measurement)
    assert found is not None
    assert found.culprits[0].name == (folder if folder.startswith("/") else "xrootd-3.example.org")
    assert sum(found.rows.values()) == pytest.approx(seconds, rel=0.1)
    row = measurement.outputs.iloc[0]
    assert row["rate"] == pytest.approx(rate, rel=0.1)
    assert row["bytes_written"] == pytest.approx(rate * seconds, rel=0.1)
    run = measurement.run
    assert found.seconds == pytest.approx(run.stop - run.start - halved, rel=0.1)
    assert measurement.time_ledger.residual == pytest.approx(0, abs=1e-3)
    assert measurement.verdict[0] is found


@pytest.mark.parametrize("seed", range(4))
def test_a_little_writing_is_healthy(seed: int) -> None:
    assert finding_of(planted(100 + seed, 0.06).measurement) is None


@pytest.mark.parametrize(
    ("cpu", "kind", "advice"),
    [
        (0.2, "ROOT", "Write to a faster disk."),
        (0.9, "ROOT", "or use faster compression: compression=uproot.LZ4(1)"),
        (0.9, "Parquet", 'or use faster compression: compression="lz4"'),
    ],
)
def test_advice_says_what_writing_waits_for(cpu: float, kind: str, advice: str) -> None:
    run = writing_to(made_run(plans(cpu=0.5, wait=1.0), 4), "/scratch/skims", cpu, kind=kind)
    found = finding_of(Measurement(run))
    assert found is not None
    assert advice in found.text
