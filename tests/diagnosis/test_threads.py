"""Advice on threads and processes: one rule, which no two findings of a run contradict, and savings of several."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from handmade import evidence_of, memory_of
from limited_runs import APART, MORE, assert_left_is_no_more_than_all, contradictions, edited
from made_runs import made_run, plan

from roastcoffea.diagnosis import Verdict
from roastcoffea.diagnosis.completeness import Fit, MemoryEvidence
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.records.run import Host, Run

CORES = {"enough": (64, 0.0), "of each other": (2, 0.0), "of others": (64, 32.0)}
"""Cores of the host, and those that other programs took, by whom threads wait for."""


def run_with(contention: str, *, storage: bool, lock: bool, threads: int = 4) -> Run:
    """Chunks on one process with several threads, or one process for each, of which a third of the time is lost."""
    parts = {"wait": 1.0 * lock, "read": 1.5 * storage, "core_wait": 1.5 * (contention != "")}
    cores, others = CORES[contention or "enough"]
    run = made_run([plan(1.0, file=f"root://store//{n % 4}.root", **parts) for n in range(24)], 4, cores=cores)
    host = Host(name="node", cores=cores, node_cores=cores, memory=None, others=others)
    run = replace(run, environment=replace(run.environment, hosts=(host,)))
    run = edited(
        run,
        chunks=lambda row: {"lock_seconds": row["blocked_seconds"], "blocked_seconds": 0.0, "bytes_requested": 10**7},
    )
    if threads == 1:
        return run
    one: Any = {"worker": "w0"}
    thread = {table: lambda row: one | {"thread": int(row["worker"][1:])} for table in ("chunks", "tasks")}
    merged = edited(run, lifetimes=lambda row: {"threads": threads}, **thread)
    assert merged.lifetimes is not None
    return replace(merged, lifetimes=merged.lifetimes.slice(0, 1))


@pytest.mark.parametrize(
    ("contention", "storage", "lock", "memory", "threads"),
    [
        (contention, storage, lock, (number + storage + lock) % 2 > 0, threads)
        for threads in (1, 4)
        for number, contention in enumerate(CORES | {"": (0, 0.0)})
        for storage, lock in product([False, True], [False, True] if threads > 1 else [False])
    ],
)
def test_findings_of_a_run_do_not_contradict_each_other(
    contention: str, storage: bool, lock: bool, memory: bool, threads: int
) -> None:
    run = run_with(contention, storage=storage, lock=lock and threads > 1, threads=threads)
    short = memory_of(50, 100.0, lost=12.0) if memory else None
    found, together = conclusions(evidence_of(run, memory=short))
    causes = {one.cause for one in found}
    planted = {"contention": contention, "storage": storage, "interpreter lock": lock and threads > 1, "memory": memory}
    # beside lost attempts, what is a smaller saving may be left out
    assert {name for name, is_so in planted.items() if is_so and (name == "memory" or not memory)} <= causes
    assert contradictions(found) == []
    assert (MORE in " ".join(one.text for one in found)) == (storage and causes == {"storage"})
    assert (APART in " ".join(one.text for one in found)) == ("interpreter lock" in causes and not memory)
    assert_left_is_no_more_than_all(found, together)
    shown = [one.of_others for one in Verdict(found).shown]
    assert shown == sorted(shown)
    assert shown.count(True) == (contention == "of others" and "contention" in causes)


def test_what_the_findings_before_it_save_is_not_told_again() -> None:
    found = Finding(what="It waits.", advice="Wait less.", seconds=6.0, left=2.0, rows={"wait": 6.0}, elapsed=20.0)
    assert found.text == "It waits. Fixing it too saves about 2 s of 20 s. Wait less."
    assert replace(found, left=6.0).saves == replace(found, left=None).saves == "fixing it saves about 6 s"
    assert replace(found, left=0.0).text == "It waits. Wait less."


def test_twice_the_chunks_and_a_process_for_each_thread_need_memory() -> None:
    """Of 600 MB, 100 MB a process and 1 MB an event: chunks of 100 events on one thread, 250 would fit twice."""
    run = run_with("", storage=True, lock=False, threads=1)
    for events, fits in ((100.0, True), (249.0, True), (251.0, False)):
        fit = Fit(500, "data", 1_000_000_000, 1, 100e6, 1e6, at_most=False)
        memory = MemoryEvidence(workers=[], datasets=[], fit=fit, fit_absent=None, chunk_events=events)
        assert evidence_of(run, memory=memory).layout.more == fits
    run = run_with("", storage=False, lock=True)
    for baseline, fits in ((40e6, True), (60e6, False)):  # four times, and four chunks of 100 MB
        fit = Fit(110, "data", 1_000_000_000, 4, baseline, 1e6, at_most=False)
        memory = MemoryEvidence(workers=[], datasets=[], fit=fit, fit_absent=None, chunk_events=100.0)
        assert evidence_of(run, memory=memory).layout.apart == fits
