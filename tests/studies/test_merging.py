"""Merged measurements: sums are those of the jobs, and no job's worker explains what another one waited for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from analyses import run_job
from conftest import ServedPool
from handmade import T, empty_run
from made_runs import independent_job
from saved_runs import a_run

from roastcoffea import Measurement, load, merge
from roastcoffea.cli.sample import write_sample
from roastcoffea.errors import MeasurementError
from roastcoffea.records.run import FAILED, Run
from roastcoffea.storage.store import save_run
from roastcoffea.studies.merging import measurement_at, merged_run

NUMBERS = count()


def job(durations: Sequence[float], workers: int = 2, **changes: Any) -> Run:
    """A job with a number of its own."""
    return independent_job(next(NUMBERS), durations, workers, **changes)


def ledgers(run: Run) -> dict[str, float]:
    measured = Measurement(run)
    time = {f"time {name}": seconds for name, seconds in measured.time_ledger.items()}
    return time | {f"bytes {name}": float(amount or 0) for name, amount in measured.byte_ledger.items()}


@pytest.mark.slow
def test_sums_are_those_of_the_jobs_and_both_ledgers_close() -> None:
    jobs = [job([1.0, 3.0, 2.0]), job([4.0], late=1.0), job([0.5] * 6, workers=3, late=100.0, host="node-2")]
    merged = Measurement(merged_run(jobs))
    apart = [Measurement(each) for each in jobs]
    for name, amount in ledgers(merged.run).items():
        assert amount == pytest.approx(sum(ledgers(each)[name] for each in jobs), abs=1e-6), name
    assert merged.time_ledger.total == pytest.approx(sum(each.time_ledger.total or 0 for each in apart))
    assert abs(merged.time_ledger.residual or 0) < 1e-6
    for name in ("total_events", "num_chunks", "total_cpu_time"):
        if name in merged.metrics:
            assert merged.metrics[name] == pytest.approx(sum(each.metrics[name] for each in apart)), name
    at_once, later = max(each.stop for each in jobs[:2]) - T, jobs[2].stop - jobs[2].start
    assert merged.metrics["elapsed_time_seconds"] == pytest.approx(at_once + later)
    assert merged.metrics["peak_workers"] == 4


def test_gaps_between_jobs_are_in_no_saving_no_average_and_no_rate() -> None:
    """Two equal jobs, 100 s apart: together they take as long as both, on as many cores as each."""
    first, second = job([1.0, 1.0, 10.0]), job([1.0, 1.0, 10.0], late=100.0)
    alone, merged = Measurement(first), Measurement(merged_run([first, second]))
    both, ran = merged.metrics, 2 * (first.stop - first.start)
    assert both["elapsed_time_seconds"] == pytest.approx(ran)
    for name in ("total_cores", "avg_workers", "core_efficiency", "event_rate_elapsed_khz", "event_rate_core_khz"):
        assert both[name] == pytest.approx(alone.metrics[name]), name
    assert both["event_rate_core_khz"] == pytest.approx(both["event_rate_elapsed_khz"] / both["total_cores"])
    idle, threads = merged.time_ledger["idle: tail"], merged.time_ledger.total or 0.0
    found = {one.cause: one for one in merged.verdict}["tail"]
    assert found.elapsed == pytest.approx(ran)
    assert 0 < (found.seconds or 0.0) <= idle / threads * ran * 1.001
    assert sum(one.seconds or 0.0 for one in merged.verdict) <= ran


@pytest.mark.parametrize("days", [1, 60, 400])
def test_jobs_of_a_long_campaign_have_the_idle_time_that_each_has(days: int) -> None:
    alone = Measurement(job([1.0, 1.0, 10.0])).time_ledger
    jobs = [job([1.0, 1.0, 10.0], late=late) for late in (0.0, 100.0, days * 86_400.0)]
    together = Measurement(merged_run(jobs)).time_ledger
    for name in ("idle: tail", "idle: client", "compute"):
        assert together[name] == pytest.approx(3 * alone[name], abs=1e-4), name
    assert abs(together.residual or 0.0) < 1e-4


def test_a_free_worker_of_one_job_does_not_wait_for_the_chunks_of_another() -> None:
    """Both run at the same time: one has nothing to do for 3 s while the other one is busy."""
    short, long = job([1.0], workers=1), job([4.0], workers=1)
    alone = Measurement(short).time_ledger
    together = Measurement(merged_run([short, long])).time_ledger
    assert together["idle: tail"] == pytest.approx(alone["idle: tail"] + Measurement(long).time_ledger["idle: tail"])
    lines = together.timeline(40)
    for name in together:
        if name in lines:
            assert lines[name] @ lines["seconds"] == pytest.approx(together[name], abs=1e-5), name


def test_workers_of_equal_names_stay_apart_and_are_on_their_jobs_host() -> None:
    address = "tcp://127.0.0.1:40000"
    renamed = [_with_worker(job([1.0], workers=1, host=host), address) for host in ("node-1", "node-1", "node-2")]
    found = Measurement(merged_run(renamed)).lifetimes
    assert sorted(found["worker"]) == ["tcp://node-1:40000", "tcp://node-1:40000/2", "tcp://node-2:40000"]
    assert sorted(Measurement(merged_run(renamed)).metrics.evaluator.value("worker_names").values()) == [
        "node-1:1",
        "node-1:2",
        "node-2:1",
    ]
    assert len(set(found["run"])) == 3


def _with_worker(run: Run, address: str) -> Run:
    changed = {}
    for name in ("chunks", "tasks", "lifetimes"):
        table = getattr(run, name)
        place = table.schema.get_field_index("worker")
        changed[name] = table.set_column(place, "worker", [[address] * len(table)])
    return replace(run, **changed)


def test_a_failed_job_makes_a_failed_campaign_whose_other_results_count() -> None:
    good, bad = job([1.0, 1.0]), job([1.0], outcome=FAILED, error="OSError: no such file")
    merged = merged_run([good, bad])
    assert (merged.outcome, merged.error) == (FAILED, "1 run of 2 failed: OSError: no such file")
    assert [part.outcome for part in merged.merged] == [good.outcome, FAILED]


def test_what_only_some_jobs_recorded_is_refused_with_the_reason() -> None:
    with_samples, without = job([1.0]), job([1.0], samples=None, absent={"samples": "sampling was off"})
    merged = Measurement(merged_run([with_samples, without]))
    assert merged.run.absent["samples"] == "in 1 of 2 runs: sampling was off"
    assert merged.run.samples is not None


def test_problems_of_some_say_of_how_many() -> None:
    merged = merged_run([job([1.0], problems=("late", "lost")), job([1.0], problems=("late",))])
    assert merged.problems == ("late", "lost (in 1 of 2 runs)")


def test_a_merged_measurement_is_saved_and_merged_again(tmp_path: Path) -> None:
    jobs = [job([1.0], late=number) for number in range(4)]
    first = Measurement(merged_run(jobs[:3]))
    again = load(first.save(tmp_path, "three"))
    assert again.run.merged == first.run.merged
    whole = merged_run([again.run, jobs[3]])
    assert [part.id for part in whole.merged] == [each.id for each in jobs]
    assert ledgers(whole) == pytest.approx(ledgers(merged_run(jobs)))
    with pytest.raises(MeasurementError, match=f"run {jobs[0].id} was passed more than once"):
        merged_run([again.run, jobs[0]])


def test_a_folder_of_measurements_is_one(tmp_path: Path) -> None:
    for number in range(3):
        save_run(job([1.0, 2.0]), tmp_path, f"job-{number}")
    assert len(merge(tmp_path).run.merged) == len(merge(sorted(tmp_path.iterdir())).run.merged) == 3
    assert not measurement_at(tmp_path / "job-1").run.merged
    (tmp_path / "empty").mkdir()
    with pytest.raises(MeasurementError, match="empty"):
        merge(tmp_path / "empty")
    with pytest.raises(MeasurementError, match="nothing to merge"):
        merge()


def test_what_cannot_be_merged_is_told() -> None:
    scheduled, local = job([1.0]), job([1.0], tasks=None, name="alone")
    with pytest.raises(MeasurementError, match=r"without a scheduler \(alone\) cannot be merged; merge each kind"):
        merged_run([scheduled, local])
    with pytest.raises(MeasurementError, match=r"has only numbers from roastcoffea 0\.1\.2 and no records"):
        merged_run([scheduled, a_run(reported={"wall_time": 1.0}, reported_by="roastcoffea 0.1.2", outcome="finished")])


def test_a_run_in_which_nothing_ran_is_left_out() -> None:
    jobs = [job([1.0]), job([2.0])]
    merged = merged_run([*jobs, empty_run()])
    assert len(merged.merged) == 2
    assert merged.problems == ("1 empty run was left out",)
    assert ledgers(merged) == pytest.approx(ledgers(merged_run(jobs)))


def test_a_folder_of_other_runs_than_jobs_is_not_shown_as_one(tmp_path: Path) -> None:
    same = {"fileset": "ab" * 32}
    for number in range(2):
        run = job([1.0])
        save_run(replace(run, calls=tuple(replace(call, **same) for call in run.calls)), tmp_path, f"{number}")
    with pytest.raises(MeasurementError, match="not jobs of one campaign: they ran different processors or processed"):
        measurement_at(tmp_path)
    assert len(merge(tmp_path).run.merged) == 2


@pytest.mark.slow
def test_twenty_jobs_as_batch_nodes_run_them(tmp_path: Path) -> None:
    """Each in a process with a Runner of its own, three at a time, as `pocket-coffea run -e iterative` on HTCondor."""
    files = write_sample(tmp_path / "files", files=10, events=300, baskets=1)
    work = [(dataset, path, str(tmp_path / "jobs")) for dataset, found in files.items() for path in found["files"]]
    with ServedPool(3) as pool:
        reports = list(pool.map(run_job, *zip(*work, strict=True)))
    merged = merge(tmp_path / "jobs")
    apart = [load(path) for path in (tmp_path / "jobs").iterdir()]
    assert len(apart) == len(merged.run.merged) == len(reports) == 20
    of_jobs = [ledgers(each.run) for each in apart]
    for name, amount in ledgers(merged.run).items():
        # each ledger has whole microseconds
        assert amount == pytest.approx(sum(each[name] for each in of_jobs), abs=20 * 2e-6), name
    assert (
        abs(merged.time_ledger.residual or 0.0) <= sum(abs(each.time_ledger.residual or 0.0) for each in apart) + 1e-6
    )
    assert merged.byte_ledger.residual == 0
    assert merged.byte_ledger.certificate.complete, merged.byte_ledger.certificate.reasons
    chunks = merged.chunks
    assert chunks["events"].sum() == sum(report["entries"] for report in reports) == 20 * 300
    assert chunks["bytes_requested"].sum() == sum(report["bytesread"] for report in reports)
    assert merged.lifetimes["run"].nunique() == 20
    assert measurement_at(tmp_path / "jobs").byte_ledger == merged.byte_ledger
    assert "20 runs merged" in summary_of(merged)


def summary_of(measurement: Measurement) -> str:
    with redirect_stdout(StringIO()) as printed:
        measurement.print_summary()
    return printed.getvalue()
