"""Which causes are findings, and in which order: against schedules that are worked out by hand."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from handmade import evidence_of, handmade_run, memory_of
from limited_runs import edited
from made_runs import made_run, plan

from roastcoffea.diagnosis.completeness import Incompleteness
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import CAUSES, Finding
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run

EACH = 0.01
"""Relative difference that gaps between tasks may make."""


def found(run: Run, **facts: Any) -> tuple[dict[str, Finding], float | None]:
    """Findings by cause, in their order, and what all of them save."""
    findings, together = conclusions(evidence_of(run, **facts))
    assert len({finding.cause for finding in findings}) == len(findings)
    return {finding.cause: finding for finding in findings}, together


def lacking(run: Run) -> Incompleteness:
    evidence: Incompleteness = Measurement(run).metrics.evaluator.value("incompleteness")
    return evidence


# 40 chunks with 1 s of CPU and 0.2 s blocked, of which three were blocked for another 13 s, all on one of two workers
SLOWED = made_run([plan(1.0, wait=0.2 + 13 * (place in {0, 15, 30})) for place in range(40)], 2)
SLOW = Slow("worker", "w0", 14.2 / 1.2, (10.0, 14.0), 39.0, 3)


@pytest.mark.slow
def test_a_named_culprit_comes_before_a_larger_class_that_is_its_consequence_and_is_left_out() -> None:
    alone, _ = found(SLOWED)
    assert list(alone) == ["blocked"]
    assert alone["blocked"].seconds == pytest.approx(25.0, rel=EACH)  # 20 s are left of 45 s
    named, together = found(SLOWED, slow=[SLOW])
    assert list(named) == ["slow worker"]
    assert named["slow worker"].seconds == pytest.approx(42.0 / 2, rel=EACH)  # excess and idle time
    assert together == named["slow worker"].seconds
    assert [(one.kind, one.name) for one in named["slow worker"].culprits] == [("worker", "w0")]


@pytest.mark.slow
def test_a_named_culprit_does_not_come_before_what_is_none_of_its_consequences() -> None:
    """Of 65 s the client takes 30 s and the slow worker 22 s: neither explains the other."""
    plans = [plan(1.0, wait=0.2 + 13 * (place in {0, 15, 30})) for place in range(40)]
    both, together = found(made_run(plans, 2, before=30.0), slow=[SLOW])
    assert list(both) == ["client", "slow worker"]
    assert both["client"].seconds == pytest.approx(30.0, rel=EACH)
    assert together == pytest.approx(52.0, rel=2 * EACH)


def test_two_independent_causes_both_stay_and_add_up() -> None:
    both, together = found(made_run([plan(1.0, read=2.0)] * 40, 2, before=20.0))
    assert sorted(both) == ["client", "storage"]
    # 20 chunks on each thread wait half of their 2 s each
    assert both["storage"].seconds == pytest.approx(20.0, rel=EACH)
    assert both["client"].seconds == pytest.approx(20.0, rel=EACH)
    assert together == pytest.approx(40.0, rel=EACH)


def test_a_chunk_size_hides_no_cause_that_is_independent_of_it() -> None:
    events = [100, 90, 110, 100] * 10
    plans = [
        plan(0.1 + 0.002 * size, open_cpu=0.5, open_wait=0.5, events=size, file=file)
        for file in "abcd"
        for size in events
    ]
    both, together = found(made_run(plans, 4, before=30.0))
    # opening is the chunk size's, and no finding of its own
    assert list(both) == ["chunk size", "client"]
    assert together == pytest.approx((both["chunk size"].seconds or 0) + 30.0, rel=EACH)


def test_savings_that_share_time_are_not_summed() -> None:
    """One thread works 20 s for a chunk that is blocked for 16 s; without the tail or without that, 5 s are left."""
    run = made_run([plan(1.0)] * 12 + [plan(4.0, wait=16.0)], 4)
    findings, together = found(run, slow=[Slow("file", "a.root", 5.0, (4.0, 6.0), 16.0, 1)])
    seconds = [finding.seconds or 0.0 for finding in findings.values()]
    assert together is not None
    assert max(seconds) * (1 - EACH) <= together <= run.stop - run.start
    assert together <= sum(seconds) * (1 + EACH)


def test_what_the_result_lacks_comes_first_however_little_it_is() -> None:
    run = handmade_run()
    findings, together = found(run, incompleteness=lacking(run))
    assert next(iter(findings)) == "missing data"
    first = findings["missing data"]
    assert (first.seconds, first.severity, first.saving) == (None, "incomplete result", "")
    assert first.remedy is not None
    assert first.text.endswith(first.remedy)
    _, without = found(run)
    assert together == without  # it saves nothing, and hides nothing
    run = made_run([plan(1.0)] * 4, 2)
    assert list(found(run, incompleteness=lacking(handmade_run()))[0]) == ["missing data"]
    assert found(run, incompleteness=lacking(run)) == ({}, None)


@pytest.mark.slow
def test_nothing_below_its_least_is_a_finding() -> None:
    # storage must save 5 % of the wall time: half of its waiting
    for read, causes in ((0.10, []), (0.12, ["storage"])):
        assert list(found(made_run([plan(1.0, read=read)] * 40, 2))[0]) == causes
    assert found(made_run([plan(1.0)] * 40, 2)) == ({}, None)


def test_incomplete_ledgers_say_nothing_of_idle_time() -> None:
    complete, incomplete = handmade_run(), handmade_run(attempts={"merge": 5})
    assert list(found(complete)[0]) == ["client"]
    assert not evidence_of(incomplete).ledger.certificate.complete
    assert list(found(incomplete)[0]) == []
    assert {"client", "tail", "merge", "scheduler", "preprocessing"} == {
        one.name for one in CAUSES.values() if one.looks_idle
    }


# Mixtures of causes


def mixture(seed: int) -> Evidence:
    """A run with some causes at once, of any size."""
    drawn = random.Random(seed)

    def some(most: float) -> float:
        return drawn.uniform(0.0, most) if drawn.random() < 0.4 else 0.0

    sizes = drawn.choice([[100], [100, 80, 120], [2000, 1500]])
    often = {
        "wait": some(1.0),
        "read": some(2.0),
        "open_cpu": some(1.0),
        "open_wait": some(1.0),
        "core_wait": some(1.0),
    }
    chunks = drawn.choice([6, 20, 60])
    place = drawn.choice(["root://far.org//{}.root", "/data/{}.root"])
    plans = [
        plan(
            drawn.uniform(0.2, 0.4),
            **often,
            events=drawn.choice(sizes),
            file=place.format(number % drawn.choice([2, 5])),
        )
        for number in range(chunks)
    ]
    if drawn.random() < 0.3:
        plans[-1] = dict(plans[-1]) | {"cpu": 10.0}
    run = made_run(plans, drawn.choice([2, 4]), before=some(20.0))
    slow = [Slow("worker", "w0", 3.0, (2.0, 4.0), chunks / 2, chunks // 3)] if drawn.random() < 0.3 else []
    if drawn.random() < 0.2:
        slow.append(Slow("dataset", "data", 2.0, (1.5, 2.5), chunks / 3, chunks))
    memory = None
    if drawn.random() < 0.4:
        events = sum(sizes) / len(sizes)
        fits = drawn.choice([None, int(0.4 * events), int(5 * events)])
        memory = memory_of(fits, events, lost=drawn.choice([0.0, 30.0]))
    lacks = lacking(handmade_run()) if drawn.random() < 0.2 else None
    stragglers = Measurement(run).metrics.evaluator.value("stragglers") if chunks == 60 else None
    return evidence_of(run, slow=slow, memory=memory, incompleteness=lacks, stragglers=stragglers)


OPPOSITE = (
    ("chunks smaller|smaller chunks|Cut the longest|all threads end together", "fewer chunks|longer tasks|too small"),
    ("nthreads 1|one thread each|threads on|free core", "2 threads per core|--nthreads 2"),
)
"""Advice that contradicts each other."""


@pytest.mark.parametrize("seed", range(6))
def test_no_verdict_contradicts_itself(seed: int) -> None:
    seen = mixture(seed)
    findings, together = conclusions(seen)
    texts = [f"{finding.text} {finding.remedy or ''}" for finding in findings]
    said = " ".join(texts)
    assert len(set(re.findall(r"chunksize=(\d+)", said))) <= 1, texts
    for one, other in OPPOSITE:
        assert not (re.search(one, said) and re.search(other, said)), texts
    for finding in findings:
        parts = [part for part in (finding.what, finding.saving, finding.advice) if part]
        assert finding.remedy is None or finding.text.endswith(f": {finding.remedy}")
        assert all(
            part[0].isupper() or part[0].isdigit() or part.startswith(("chunksize=", "process()")) for part in parts
        ), parts
        assert finding.what.endswith(".")
        assert str(finding) == repr(finding) == f"{finding.cause}: {finding.text}"
        assert not re.search(r"\bNone\b|nan|Finding\(|  ", finding.text)
        # what it saves is in its rows, with the idle time that they cause
        assert (finding.seconds or 0.0) <= seen.wall(sum(finding.rows.values())) * (1 + 1e-9)
    saved = [finding for finding in findings if finding.seconds is not None]
    assert all(finding.seconds >= seen.least(finding.cause) for finding in saved)  # type: ignore[operator]
    lacks = [finding.cause == "missing data" for finding in findings]
    assert lacks == sorted(lacks, reverse=True)
    assert (together is None) == (not saved)
    if saved:
        assert together is not None
        assert together <= seen.elapsed * (1 + 1e-9)


def test_without_a_replay_nothing_saves_more_than_its_own_rows() -> None:
    """Of 4 s for opening a chunk it waits 2 s for a core, which is no slow opening."""
    run = made_run([plan(1.0, open_cpu=1.0, open_wait=3.0)] * 8, 2)
    run = edited(run, chunks=lambda row: {"core_wait_seconds": 2.0})
    verdict = Measurement(replace(run, tasks=None, absent={"tasks": "no scheduler"})).verdict
    (opening,) = (finding for finding in verdict if finding.cause == "metadata")
    assert sum(opening.rows.values()) == pytest.approx(8 * 2.0)
    assert opening.seconds == pytest.approx(8 * 2.0 / 2)
