"""Energy that processors count themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.recording.facility.recorder import METRIC, HostEnergy, PackageEnergy


def counter(root: Path, name: str, microjoules: int, most: int = 1_000_000_000) -> None:
    path = root / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")


def test_packages_are_summed_without_their_parts_and_counters_may_wrap(tmp_path: Path) -> None:
    counter(tmp_path, "intel-rapl:0", 100)
    counter(tmp_path, "intel-rapl:1", 990_000_000)
    counter(tmp_path, "intel-rapl:0:0", 5)
    energy = PackageEnergy(tmp_path)
    assert energy.joules() == 0
    counter(tmp_path, "intel-rapl:0", 2_000_100)
    counter(tmp_path, "intel-rapl:1", 20_000_000)
    counter(tmp_path, "intel-rapl:0:0", 5_000_000)
    assert energy.joules() == pytest.approx(2 + 30)
    assert energy.joules() == pytest.approx(32)


def test_without_counters_there_is_no_energy(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no processor package counters"):
        PackageEnergy(tmp_path)


def worker(host: str, joules: float | None) -> Any:
    return SimpleNamespace(host=host, metrics={} if joules is None else {METRIC: joules})


def test_workers_of_one_host_are_not_counted_twice() -> None:
    energy = HostEnergy()
    energy.take({"a": worker("one", None)})
    assert (energy.joules, energy.hosts) == (None, 0)
    energy.take(
        {"a": worker("one", 10.0), "b": worker("one", 9.0), "c": worker("two", 5.0), "d": worker("three", None)}
    )
    assert (energy.joules, energy.hosts) == (15.0, 2)
    energy.take({"a": worker("one", 14.0), "b": worker("one", 13.5)})
    assert (energy.joules, energy.hosts) == (19.5, 1)
