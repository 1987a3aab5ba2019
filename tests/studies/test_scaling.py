"""Scaling of runs whose law is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from made_runs import made_run, plan

from roastcoffea.cli import main
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.run import Run
from roastcoffea.studies.scaling import Scaling, scaling

WORK = 64.0


def amdahl(workers: int, serial: float = 0.1, chunks: int = 64, **changes: object) -> Run:
    """Run in which so much of the work is done before the chunks, while all workers wait."""
    work = WORK * chunks / 64
    return made_run([plan((1 - serial) * work / chunks)] * chunks, workers, before=serial * WORK, **changes)  # type: ignore[arg-type]


def gunther(workers: int, contention: float, coherency: float) -> Run:
    """Run whose chunks take longer, the more workers there are."""
    longer = 1 + contention * (workers - 1) + coherency * workers * (workers - 1)
    return made_run([plan(longer * WORK / 64)] * 64, workers)


def of(found: Scaling, name: str) -> list[float]:
    return [round(getattr(point, name).value, 3) for point in found.points]


def test_amdahl_by_hand() -> None:
    found = scaling([amdahl(workers) for workers in (8, 1, 2, 4)])
    assert (found.kind, found.unit) == ("strong", "workers")
    assert [point.workers for point in found.points] == [1, 2, 4, 8]
    assert [point.seconds for point in found.points] == pytest.approx([WORK * (0.1 + 0.9 / n) for n in (1, 2, 4, 8)])
    assert of(found, "speedup") == [1.0, 1.818, 3.077, 4.706]
    assert of(found, "efficiency") == [1.0, 0.909, 0.769, 0.588]
    law = found.laws["Amdahl"]
    assert law.contention.value == pytest.approx(0.1)
    assert law.rate == pytest.approx(64 * 100 / WORK)
    assert law.deviation < 1e-6
    # the gain of another worker is 0.9 / ((1 + 0.1 (N - 1)) (1 + 0.1 N)): below a tenth from 20 workers on
    assert law.worth == 21
    assert law.peak is None
    assert found.laws["USL"].coherency.value == pytest.approx(0.0, abs=1e-9)


def test_the_class_that_eats_the_loss() -> None:
    found = scaling([amdahl(1), amdahl(4)])
    assert found.losses[0].name == "idle: client"
    assert found.losses[0].share == pytest.approx(1.0)
    # 6.4 s of four workers instead of one, for 6400 events
    assert found.losses[0].seconds == pytest.approx(3 * 6.4 / 6400)
    assert found.missing.keys() == {"Amdahl", "USL"}
    assert "runs with 3 different numbers" in found.missing["Amdahl"]


def test_more_workers_that_slow_each_other_down() -> None:
    found = scaling([gunther(workers, 0.05, 0.01) for workers in (1, 2, 4, 8, 16)])
    law = found.laws["USL"]
    assert (law.contention.value, law.coherency.value) == pytest.approx((0.05, 0.01), rel=1e-6)
    assert law.peak == pytest.approx((0.95 / 0.01) ** 0.5)
    gains = [float(law.speedup(number + 1) - law.speedup(number)) for number in range(1, 12)]  # type: ignore[arg-type]
    assert law.worth == next(place for place, gain in enumerate(gains, 1) if gain < 0.1)
    assert found.losses[0].name == "compute"
    assert found.laws["Amdahl"].deviation > 0.1


def test_weak_scaling() -> None:
    found = scaling([amdahl(workers, chunks=64 * workers) for workers in (1, 2, 4)])
    assert found.kind == "weak"
    assert of(found, "efficiency") == [1.0, 1.0, 1.0]
    assert found.losses == [] or max(abs(loss.seconds) for loss in found.losses) < 1e-12
    assert "same work" in found.missing["Amdahl"]


def repeats(workers: int, factors: Sequence[float]) -> list[Run]:
    return [made_run([plan(factor)] * 64, workers) for factor in factors]


def test_intervals_of_repeats() -> None:
    found = scaling([*repeats(1, [0.9, 1.0, 1.1]), *repeats(4, [0.95, 1.0, 1.05])])
    assert found.basis == "repeats"
    speedup = found.points[1].speedup
    assert speedup.value == pytest.approx(4.0, rel=0.01)
    assert speedup.low is not None
    assert speedup.high is not None
    assert 0.9 * 4 / 1.05 <= speedup.low < speedup.value < speedup.high <= 1.1 * 4 / 0.95
    assert found.points[0].speedup.low is None


def test_what_cannot_be_compared_is_told() -> None:
    with pytest.raises(NotMeasuredError, match="all these runs have 2 workers"):
        scaling([amdahl(2), amdahl(2)])
    found = scaling([made_run([plan(1.0)] * 8, 1, cores=2), made_run([plan(1.0, events=50)] * 16, 4, cores=2)])
    assert found.doubts == [
        "the runs have different chunk sizes: what chunks cost is in the difference",
        "from 4 workers on they share 2 cores: the laws mix both",
    ]


def test_the_scaling_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(Measurement(amdahl(workers)).save(tmp_path, f"run{workers}")) for workers in (1, 2, 4, 8)]
    picture = tmp_path / "pictures" / "scaling.png"
    assert main(["scaling", *paths, "--plot", str(picture)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Strong scaling" in out
    assert "Amdahl: 0.1 [0.1, 0.1] of the work goes one after the other" in out or "Amdahl: 0.1 of the work" in out
    assert "idle: client" in out
    assert picture.stat().st_size > 10_000
    assert main(["scaling", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][3]["workers"] == 8
    assert main(["scaling", paths[0]]) == 1
    assert "give runs with different numbers" in capsys.readouterr().err


def test_nothing_lost_is_said() -> None:
    out = StringIO()
    scaling([amdahl(1, serial=0.0), amdahl(2, serial=0.0)]).print(out)
    assert "Nothing is lost" in out.getvalue()
