"""Scaling of runs whose law is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from made_runs import made_run, plan

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.studies.scaling import Scaling, scaling, target_of

WORK = 64.0


def amdahl(workers: int, serial: float = 0.1, chunks: int = 64, **changes: object) -> Run:
    """Run in which so much of the work is done before the chunks, while all workers wait."""
    work = WORK * chunks / 64
    return made_run([plan((1 - serial) * work / chunks)] * chunks, workers, before=serial * WORK, **changes)  # type: ignore[arg-type]


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


def test_weak_scaling() -> None:
    found = scaling([amdahl(workers, chunks=64 * workers) for workers in (1, 2, 4)])
    assert found.kind == "weak"
    assert of(found, "efficiency") == [1.0, 1.0, 1.0]
    assert found.losses == [] or max(abs(loss.seconds) for loss in found.losses) < 1e-12
    assert "same work" in found.missing["Amdahl"]


def repeats(workers: int, factors: Sequence[float]) -> list[Run]:
    return [made_run([plan(factor)] * 64, workers) for factor in factors]


@pytest.mark.slow
def test_intervals_of_repeats() -> None:
    found = scaling([*repeats(1, [0.9, 1.0, 1.1]), *repeats(4, [0.95, 1.0, 1.05])])
    assert found.basis == "repeats"
    speedup = found.points[1].speedup
    assert speedup.value == pytest.approx(4.0, rel=0.01)
    assert speedup.low is not None
    assert speedup.high is not None
    assert 0.9 * 4 / 1.05 <= speedup.low < speedup.value < speedup.high <= 1.1 * 4 / 0.95
    assert found.points[0].speedup.low is None
    (doubt,) = found.doubts
    assert "fewer than 5 repeats are too narrow" in doubt
    assert scaling([*repeats(1, [0.9, 1.0, 1.1, 1.0, 1.0]), amdahl(4)]).doubts == []


@pytest.mark.slow
def test_what_cannot_be_compared_is_told() -> None:
    with pytest.raises(NotMeasuredError, match="all these runs have 2 workers"):
        scaling([amdahl(2), amdahl(2)])
    other = amdahl(4)
    other = replace(other, calls=tuple(replace(call, processor="Another") for call in other.calls))
    with pytest.raises(NotMeasuredError, match=r"ran Another and .*: pass runs of the same analysis"):
        scaling([amdahl(2), other])
    found = scaling([made_run([plan(1.0)] * 8, 1, cores=2), made_run([plan(1.0, events=50)] * 16, 4, cores=2)])
    assert found.doubts == [
        "the runs have different chunk sizes, so differences include the fixed cost of chunks",
        "from 4 workers on, threads share 2 cores, so the laws include CPU contention",
    ]


def with_threads(run: Run, threads: int) -> Run:
    """The same run, of workers with so many threads."""
    assert run.lifetimes is not None
    lives = [row | {"threads": threads} for row in run.lifetimes.to_pylist()]
    return replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))


def test_cores_are_shared_by_threads() -> None:
    def run(workers: int, threads: int) -> Run:
        return with_threads(made_run([plan(1.0)] * 8, workers, cores=6), threads)

    found = scaling([run(1, 4), run(2, 4)])
    assert found.unit == "workers"
    assert found.doubts == ["from 2 workers on, threads share 6 cores, so the laws include CPU contention"]
    found = scaling([run(1, 3), run(2, 4)])
    assert (found.unit, [point.workers for point in found.points]) == ("threads", [3, 8])


def came_late(run: Run, seconds: Sequence[float]) -> Run:
    """The same run, to which workers came so late."""
    assert run.lifetimes is not None
    lives = [row | {"start": row["start"] + late} for row, late in zip(run.lifetimes.to_pylist(), seconds, strict=True)]
    return replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))


def test_workers_that_came_late_count_and_make_a_doubt() -> None:
    """In the mean less than half of a worker was there, and 2.8 of four."""
    late = came_late(made_run([plan(1.0)] * 8, 1), [4.8])
    others = came_late(made_run([plan(1.0)] * 16, 4, name="four"), [0.0, 1.2, 1.7, 1.9])
    found = scaling([late, others])
    assert [point.workers for point in found.points] == [1, 4]
    assert found.unit == "workers"
    assert [doubt.split(",")[0] for doubt in found.doubts] == [
        "workers of made joined late or left early",
        "workers of four joined late or left early",
    ]
    assert "for 60 % of the time" in found.doubts[0]


def test_the_threads_of_a_worker_are_a_mean() -> None:
    """What is a float may differ in its last bit."""
    one = came_late(made_run([plan(1.0)] * 9, 1), [0.01])
    two = came_late(made_run([plan(1.0)] * 18, 2), [0.0, 0.01])
    runs = [with_threads(run, 7) for run in (one, two)]
    assert len({Measurement(run).metrics["cores_per_worker"] for run in runs}) > 1
    assert scaling(runs).unit == "workers"


def test_a_run_without_events_is_refused() -> None:
    empty = made_run([plan(1.0, events=0)] * 8, 2, name="empty")
    with pytest.raises(NotMeasuredError, match="empty processed 0 events"):
        scaling([amdahl(1), empty])


def printed(found: Scaling) -> str:
    out = StringIO()
    found.print(out)
    return " ".join(out.getvalue().split())


def test_shares_of_the_loss_make_up_all() -> None:
    """With four workers each chunk takes a tenth less, and 6.4 s go by before them: 25.6 s lost, and 6.4 s won."""
    found = scaling([made_run([plan(1.0)] * 64, 1), made_run([plan(0.9)] * 64, 4, before=6.4)])
    assert "idle: client 4 ms 133 % others -1 ms -33.3 %" in printed(found)


def test_nothing_lost_is_said() -> None:
    assert "No loss" in printed(scaling([amdahl(1, serial=0.0), amdahl(2, serial=0.0)]))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200 Gbit/s", (2e11, "bits")),
        ("200Gbps", (2e11, "bits")),
        ("25 GB/s", (2e11, "bits")),
        ("50 kHz", (5e4, "events")),
        ("1e6 events/s", (1e6, "events")),
    ],
)
def test_rates_as_people_write_them(text: str, rate: tuple[float, str]) -> None:
    assert target_of(text) == rate


@pytest.mark.parametrize("text", ["fast", "200", "0 Gbit/s", "-3 kHz", "200 Gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate; pass a rate such as"):
        scaling([amdahl(1), amdahl(2)], rate=text)


@pytest.mark.slow
def test_the_reason_comes_first_on_the_page(tmp_path: Path) -> None:
    study = scaling([made_run([plan(1.0)] * 32, workers, before=4.0) for workers in (1, 2, 4)])
    text = study.page(tmp_path / "new" / "page.html").read_text()
    assert text.index("Client limits these runs, and more than about") < text.index("<nav")
    assert "All workers wait for the client, 4 s before the first task" in text
    with pytest.raises(MeasurementError, match="exists"):
        study.page(tmp_path / "new" / "page.html")
    study.page(tmp_path / "new" / "page.html", overwrite=True)
