"""Workers that never arrive, or are connected and finish nothing: in simulated runs with known truth, and real."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from handmade import T, evidence_of
from limited_runs import edited, task_row, until, with_rows
from made_runs import made_run, plan

from roastcoffea import MetricsCollector
from roastcoffea.diagnosis.finding import CAUSES, Finding
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import REQUEST_COLUMNS, SAMPLE_COLUMNS

Row = dict[str, Any]
SEEDS = range(5000, 5003)
"""None of these numbers was used while the rules were made."""


def found(run: Run) -> dict[str, Finding]:
    """Findings on both causes, before others are weighed against them."""
    arrivals = Measurement(run).metrics.tables["arrivals"] if run.worker_requests is not None else None
    evidence = evidence_of(run, arrivals=arrivals)
    return {cause: one for cause in ("missing workers", "stuck worker") for one in CAUSES[cause].findings(evidence)}


class Plan:
    """What a seed draws: workers that arrive, chunks with a tail, and heartbeats that are late at times."""

    def __init__(self, seed: int, late: float = 0.0) -> None:
        self.draw = np.random.default_rng(seed)
        self.workers = int(self.draw.integers(3, 25))
        self.arrivals = np.sort(self.draw.uniform(0, late, self.workers)) if late else np.zeros(self.workers)
        rounds = int(self.draw.integers(25, 60))
        lengths = self.draw.lognormal(0.5, self.draw.uniform(0.1, 0.7), rounds * self.workers)
        self.plans = [plan(float(length), file=f"{place % 7}.root") for place, length in enumerate(lengths)]

    def run(self, *, frozen: Mapping[int, float] | None = None) -> Run:
        """The run, in which workers stop at these moments: what they began then is never finished."""
        run = made_run(self.plans, self.workers, arrivals=self.arrivals)
        stop = run.stop
        lost: list[Row] = []
        for worker, moment in (frozen or {}).items():
            name, halt = f"w{worker}", T + moment
            assert run.tasks is not None
            assert run.chunks is not None
            begun = [row for row in run.tasks.to_pylist() if row["worker"] == name and row["stop"] > halt]
            lost += [task_row("processor", 10_000 + worker, name, halt, stop, outcome="unfinished") | {"stop": None}]
            keys = {row["key"] for row in begun}
            run = replace(
                run,
                tasks=run.tasks.filter([key not in keys for key in run.tasks["key"].to_pylist()]),
                chunks=run.chunks.filter([key not in keys for key in run.chunks["key"].to_pylist()]),
            )
        beats = 0.5 if self.workers < 10 else 1.0
        samples = []
        run = replace(run, sampling_interval=beats)
        for worker, came in enumerate(self.arrivals):
            times = np.arange(T + came, stop, beats) + self.draw.uniform(0, 0.3 * beats)
            # a chunk holds the interpreter, and heartbeats come late
            held = float(self.draw.uniform(T, stop))
            times = times[(times < held) | (times > held + 6 * beats)]
            times = times[times < T + (frozen or {}).get(worker, stop)]
            samples += [{"worker": f"w{worker}", "time": moment, "last_seen": moment} for moment in [*times]]
            if worker not in (frozen or {}):  # they report when the collector leaves
                samples.append({"worker": f"w{worker}", "time": stop, "last_seen": stop})
        return (
            until(with_rows(run, tasks=lost, samples=samples), stop)
            if lost
            else replace(run, samples=table_of_rows(SAMPLE_COLUMNS, samples))
        )


def with_requests(run: Run, rows: Sequence[Row]) -> Run:
    """The same run with what its cluster was asked for; its workers have the names c-0, c-1, ..."""
    named = edited(run, lifetimes=lambda row: {"name": f"c-{row['worker'][1:]}"})
    return replace(named, worker_requests=table_of_rows(REQUEST_COLUMNS, rows))


def request(number: int, state: str, moment: float | None, **more: Any) -> Row:
    time = None if moment is None else T + moment
    job = None if state in {"requested", "released"} else str(500 + number)
    return {"name": f"c-{number}", "state": state, "time": time, "job": job} | more


# Workers that did not arrive


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_that_never_came(seed: int) -> None:
    """Some of their jobs are held, pending or ended, others were not submitted; the first worker arrives late."""
    made = Plan(seed, late=20.0)
    first = float(made.draw.uniform(5, 15))
    made.arrivals += first - made.arrivals[0]
    run = made.run()
    elapsed = run.stop - T
    states = {
        "held": "memory limit of the job",
        "pending": "Priority",
        "ended": "FAILED NonZeroExitCode",
        "requested": None,
    }
    numbers = {state: int(made.draw.integers(1, 12)) for state in states}
    rows = [request(number, state, 1.0) for number in range(made.workers) for state in ("requested", "submitted")]
    missing, place = 0.0, made.workers
    for state, number in numbers.items():
        for _ in range(number):
            begun = float(made.draw.uniform(1, 0.3 * elapsed))
            begun = 1.0 if place == made.workers else begun
            rows.append(request(place, "requested", begun))
            if state != "requested":
                rows += [request(place, "submitted", begun), request(place, state, begun + 9, reason=states[state])]
            missing, place = missing + elapsed - begun, place + 1
    rows.sort(key=lambda row: row["time"])
    finding = found(with_requests(run, rows))["missing workers"]
    whole = re.match(r"(\d+) workers were requested, (\d+) arrived, the first ([\d.]+) s into the run; ", finding.what)
    assert whole is not None, finding.what
    assert (int(whole[1]), int(whole[2])) == (place, made.workers)
    assert float(whole[3]) == pytest.approx(first, rel=0.1)
    parts = re.findall(r"(\d+) (?:job|worker)s? (\w+)(?: \(([\w ]+)\))?[,.]", finding.what.partition("others: ")[2])
    assert {state: (int(number), reason or None) for number, state, reason in parts} == {
        state: (numbers[state], reason) for state, reason in states.items()
    }
    assert sum(finding.rows.values()) == pytest.approx(missing, rel=0.1)
    held = [str(500 + made.workers + number) for number in range(numbers["held"])]
    assert sorted(one.name for one in finding.culprits) == held
    assert finding.advice.startswith("Fix the reason, then release the jobs")
    assert set(found(with_requests(run, rows))) == {"missing workers"}


def test_held_jobs_are_reported_even_if_they_cost_little() -> None:
    run = Plan(1).run()
    rows = [request(number, "requested", None) for number in range(30)]
    rows += [request(99, "requested", run.stop - T - 1), request(99, "held", run.stop - T - 0.5, reason="JobHeldUser")]
    known = [row for row in rows if row["name"] == "c-99" or int(row["name"][2:]) < len(run.lifetimes or [])]
    assert "others: 1 job held (JobHeldUser)." in found(with_requests(run, known))["missing workers"].what
    pending = [row | {"state": "pending"} if row["state"] == "held" else row for row in known]
    assert found(with_requests(run, pending)) == {}


def test_a_gateway_knows_only_numbers() -> None:
    run = with_requests(Plan(2).run(), [])
    assert run.lifetimes is not None
    here = len(run.lifetimes)
    rows = [{"name": str(number), "state": "requested"} for number in range(here + 6)]
    rows += [{"name": str(number), "state": "released", "time": T + 8} for number in range(here + 2, here + 6)]
    finding = found(replace(run, worker_requests=table_of_rows(REQUEST_COLUMNS, rows)))["missing workers"]
    what = f"{here + 6} workers were requested, {here} arrived; others: 2 workers requested, 4 workers released."
    assert finding.what == what
    assert sum(finding.rows.values()) == pytest.approx(2 * (run.stop - T) + 4 * 8)


def test_a_batch_system_that_does_not_answer() -> None:
    run = Plan(3).run()
    rows = [request(number, "submitted", None) for number in range(30)]
    silent = "the batch system did not answer: FileNotFoundError: squeue"
    finding = found(replace(with_requests(run, rows), absent={"batch_queue": silent}))["missing workers"]
    assert finding.what.endswith(f" jobs submitted ({silent}).")


# Workers that do nothing


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_hangs(seed: int) -> None:
    made = Plan(seed, late=10.0)
    worker = int(made.draw.integers(0, made.workers))
    whole = max(made.arrivals) + sum(each["cpu"] for each in made.plans) / made.workers
    halt = float(made.draw.uniform(0.2, 0.55)) * whole + float(made.arrivals[worker])
    run = made.run(frozen={worker: halt})
    finding = found(run)["stuck worker"]
    assert [one.name for one in finding.culprits] == [f"w{worker}"]
    assert sum(finding.rows.values()) == pytest.approx(run.stop - T - halt, rel=0.1)
    assert "sent no heartbeat for" in finding.what
    assert "1 task was left on it" in finding.what


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_is_given_nothing(seed: int) -> None:
    """Its heartbeats come, and no task is ever assigned to it."""
    made = Plan(seed, late=10.0)
    run = made.run()
    came = float(made.draw.uniform(0, 0.3)) * (run.stop - T)
    life = {"worker": "idle", "host": "10.0.0.9", "threads": 1, "start": T + came, "stop": run.stop, "cpu_seconds": 0.1}
    beats = [{"worker": "idle", "time": moment, "last_seen": moment} for moment in np.arange(T + came, run.stop, 0.5)]
    finding = found(with_rows(run, lifetimes=[life], samples=beats))["stuck worker"]
    assert [one.name for one in finding.culprits] == ["idle"]
    assert finding.rows == {"worker idle": pytest.approx(run.stop - T - came, rel=1e-6)}
    assert run.tasks is not None
    others = sum(row["stop"] > T + came for row in run.tasks.to_pylist())
    others *= (run.stop - T - came) / sum(run.stop - T - max(arrival, came) for arrival in made.arrivals)
    told = re.search(r"the others about ([\d,]+) each", finding.what)
    assert told is not None, finding.what
    assert float(told[1].replace(",", "")) == pytest.approx(others, rel=0.1)


# Healthy runs


@pytest.mark.parametrize("seed", range(2000, 2005))
def test_healthy_runs(seed: int) -> None:
    """All workers arrive, some late; adaptive scaling soon gives some up, and others leave near the end."""
    made = Plan(seed, late=(0.0, 5.0, 60.0, 150.0)[seed % 4])
    run = made.run()
    elapsed = run.stop - T
    rows = [request(number, state, None) for number in range(made.workers) for state in ("requested", "submitted")]
    rows += [request(number, "pending", 4.5, reason="Priority") for number in range(made.workers) if seed % 3]
    for number in range(made.workers, made.workers + seed % 3):
        moment = float(made.draw.uniform(0, 0.9 * elapsed))
        rows += [request(number, "requested", moment), request(number, "released", moment + 0.02 * elapsed)]
    rows.sort(key=lambda row: row["time"] or 0.0)
    if seed % 5 == 0:  # once there is little to do, most are retired
        assert run.tasks is not None
        last = {row["worker"]: row["stop"] for row in run.tasks.to_pylist()}
        run = edited(run, lifetimes=lambda row: {"stop": min(last.get(row["worker"], row["stop"]) + 1, row["stop"])})
    assert found(with_requests(run, rows)) == {}


def test_late_workers_of_a_run_whose_tasks_are_given_away() -> None:
    """Tasks were assigned before they came, and none is left for them."""
    made = Plan(3)
    run = made.run()
    late = {"worker": "late", "host": "10.0.0.9", "threads": 1, "start": T + 5, "stop": run.stop, "cpu_seconds": 0.1}
    beats = [{"worker": "late", "time": moment, "last_seen": moment} for moment in np.arange(T + 5, run.stop, 0.5)]
    given = edited(run, tasks=lambda row: {"assigned": T})
    assert found(with_rows(given, lifetimes=[late], samples=beats)) == {}


def test_paused_workers_are_left_to_the_finding_on_memory() -> None:
    made = Plan(4)
    run = made.run()
    life = {"worker": "p", "host": "10.0.0.9", "threads": 1, "start": T, "stop": run.stop, "cpu_seconds": 0.1}
    beats = [{"worker": "p", "time": moment, "last_seen": moment} for moment in np.arange(T, run.stop, 0.5)]
    idle = with_rows(run, lifetimes=[life], samples=beats)
    assert set(found(idle)) == {"stuck worker"}
    assert found(with_rows(idle, pauses=[{"worker": "p", "start": T + 1, "stop": run.stop}])) == {}


# Real workers


@pytest.mark.slow
def test_a_worker_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system stops one of three workers; the others go on."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.gather(client.map(time.sleep, [0.01] * 30, pure=False))
        processes = client.run(os.getpid)
        stopped, *others = processes
        with MetricsCollector(client, worker_tracking_interval=0.5) as collector:
            client.gather(client.map(time.sleep, [0.02] * 30, pure=False))
            os.kill(processes[stopped], signal.SIGSTOP)
            begun = time.time()
            try:
                while time.time() - begun < 14:
                    client.gather(client.map(time.sleep, [0.05] * 20, pure=False, workers=others))
            finally:
                collector.__exit__(None, None, None)
                os.kill(processes[stopped], signal.SIGCONT)
            halted = time.time() - begun
        measurement = collector.measurement
    (finding,) = [one for one in measurement.verdict if one.cause == "stuck worker"]
    assert [one.name for one in finding.culprits] == [stopped]
    silent = re.search(r"no heartbeat for ([\d.]+) s", finding.what)
    assert silent is not None, finding.what
    assert 10 <= float(silent[1]) <= halted + 2
    assert not [one for one in measurement.verdict if one.cause == "missing workers"]
    arrivals = measurement.arrivals
    assert arrivals["name"].tolist() == ["0", "1", "2"]
    assert set(arrivals["worker"]) == set(processes)
