"""Who is slow: what its finding says, names and advises, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from handmade import evidence_of
from limited_runs import LIMITED, edited
from made_runs import made_run, plan

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import CAUSED_IDLE, CAUSES, Culprit, Finding
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.facts import Names
from roastcoffea.metrics.profile import Place, Profile, Stack

SMALL = made_run([plan(0.2, open_cpu=0.5, open_wait=0.5, file=f"{number % 4}.root") for number in range(80)], 4)
UNEVEN = made_run([plan(1.0)] * 19 + [plan(20.0)], 4)


def findings(seen: Evidence) -> dict[str, Finding]:
    return {finding.cause: finding for finding in conclusions(seen)[0]}


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("worker", "w0", "Worker w0 is slow: its 3 chunks took 14 times (12 to 16) as long as expected."),
        ("host", "10.0.0.1", "Host 10.0.0.1 is slow: its 3 chunks took 14 times (12 to 16) as long as expected."),
        ("file", "a.root", "File a.root is slow: its 3 chunks took 14 times (12 to 16) as long as expected."),
        (
            "dataset",
            "data",
            "Dataset data is slow: its events take 14 times (12 to 16) as long as in other datasets.",
        ),
    ],
)
def test_who_is_slow_is_named_with_factor_and_interval(kind: str, name: str, says: str) -> None:
    slow = Slow(kind, name, 14.0, (12.0, 16.0), 39.0, 3)
    plans = [plan(14.0 if place in {0, 15, 30} else 1.0) for place in range(40)]
    finding = findings(evidence_of(made_run(plans, 2), slow=[slow]))[f"slow {kind}"]
    assert finding.what == says
    assert finding.culprits == (Culprit(kind, name, 39.0, 14.0),)
    # the other thread is idle for as long as the replay says
    assert finding.rows == {f"{kind} {name}": 39.0, CAUSED_IDLE: pytest.approx(5.0, rel=0.01)}


@pytest.mark.parametrize(("kind", "name"), [("worker", "w1"), ("file", "b.root"), ("dataset", "heavy")])
def test_only_the_chunks_of_who_is_slow_become_faster(kind: str, name: str) -> None:
    """Each second chunk is of w1, b.root and "heavy": 20 of these take 4 s instead of 1 s on one of two threads."""
    pair = [plan(1.0), plan(4.0, file="b.root", dataset="heavy")]
    run = made_run(pair * 10, 2)
    assert run.chunks is not None
    mine = [row["wall_seconds"] for row in run.chunks.to_pylist() if row[kind] == name]
    slow = Slow(kind, name, 4.0, (3.5, 4.5), 0.75 * sum(mine), len(mine))
    found = findings(evidence_of(run, slow=[slow]))[f"slow {kind}"]
    left = sum(row["wall_seconds"] for row in run.chunks.to_pylist()) - 0.75 * sum(mine)
    assert found.seconds == pytest.approx(run.stop - run.start - left / 2, abs=2.0)


def test_slow_ones_say_what_is_slow_where_and_what_this_run_cannot_tell_apart() -> None:
    slow = Slow("worker", "w0", 14.0, (12.0, 16.0), 39.0, 3, "read_seconds", "node3", (("file", "a.root"),))
    plans = [plan(14.0 if place in {0, 15, 30} else 1.0) for place in range(40)]
    finding = findings(evidence_of(made_run(plans, 2), slow=[slow]))["slow worker"]
    assert finding.what.startswith("Worker w0 on node3 reads slowly: its 3 chunks")
    assert finding.what.endswith("; the cause may be file a.root instead.")


def test_a_heavy_dataset_gets_no_smaller_chunks_where_larger_ones_are_advised() -> None:
    slow = Slow("dataset", "data", 5.0, (4.0, 6.0), 60.0, 80)
    (draft,) = CAUSES["slow dataset"].findings(evidence_of(SMALL, slow=[slow]))
    assert draft.advice == "Check what its events need that others do not."
    (draft,) = CAUSES["slow dataset"].findings(evidence_of(UNEVEN, slow=[slow]))
    assert draft.advice.endswith("use smaller chunks for it if it finishes last.")


def test_two_slow_workers_are_one_finding_that_names_both() -> None:
    """Two of four workers take 7 and 14 s for each chunk of 1 s: 40 chunks in 20 s, and in 10 s by equals."""
    factors = {"tcp://w2:1": 7.0, "tcp://w3:1": 14.0}
    run = made_run([plan(1.0)] * 40, 4)
    slow = [Slow("worker", name, factor, (factor, factor), 10.0, 3, "compute") for name, factor in factors.items()]
    (draft,) = CAUSES["slow worker"].findings(evidence_of(run, slow=slow))
    assert draft.what == (
        "Worker tcp://w2:1 computes slowly: its 3 chunks took 7 times as long as expected. "
        "Worker tcp://w3:1 computes slowly: its 3 chunks took 14 times as long as expected."
    )
    assert draft.remedy == 'client.retire_workers(["tcp://w2:1", "tcp://w3:1"])'
    assert [culprit.name for culprit in draft.culprits] == [*factors]
    many = [*slow, *(Slow("worker", f"w{number}", 2.0, (1.5, 2.5), 1.0, 3) for number in range(4, 7))]
    (draft,) = CAUSES["slow worker"].findings(evidence_of(run, slow=many))
    assert draft.what.endswith("2 more are slow.")


def test_two_slow_files_are_taken_out_together() -> None:
    """Twenty chunks each of a file that takes 2 s a chunk and of one that takes 4 s, on two threads: 60 s, not 20 s."""
    run = made_run([plan(2.0), plan(4.0, file="b.root")] * 20, 2)
    slow = [
        Slow("file", "b.root", 4.0, (3.9, 4.1), 60.0, 20, "compute"),
        Slow("file", "a.root", 2.0, (1.9, 2.1), 20.0, 20, "compute"),
    ]
    finding = findings(evidence_of(run, slow=slow))["slow file"]
    assert finding.seconds == pytest.approx(run.stop - run.start - 20.0, rel=0.05)


def test_a_dataset_that_waits_for_storage_is_not_heavy() -> None:
    slow = Slow("dataset", "data", 5.0, (4.0, 6.0), 60.0, 80, "read")
    (draft,) = CAUSES["slow dataset"].findings(evidence_of(SMALL, slow=[slow]))
    assert draft.what == "Dataset data reads slowly: its events take 5 times (4 to 6) as long as in other datasets."
    assert draft.advice == "Cache it nearby, or read another copy of it."


def test_servers_are_found_by_their_requests_and_their_files_are_innocent() -> None:
    """Of eight files four are read ten times more slowly: 20 chunks wait 5 s instead of 0.5 s on four threads."""

    def two_of_them(row: dict[str, Any]) -> dict[str, Any]:
        return {"endpoint": "data-3.example.org"} if row["file"].endswith(("7.root", "8.root")) else {}

    verdict = Measurement(edited(LIMITED["slow endpoint"](), chunks=two_of_them)).verdict
    found = {finding.cause: finding for finding in verdict}["slow endpoint"]
    assert {culprit.name for culprit in found.culprits} == {"data-2.example.org", "data-3.example.org"}
    assert found.what.count("is slow: requests take") == 2
    assert sum(found.rows.values()) == pytest.approx(20 * 4.5)
    assert found.seconds == pytest.approx(20 * 4.5 / 4, abs=2.0)
    assert not {"slow file", "storage"} & {finding.cause for finding in verdict}


def test_findings_call_workers_by_name_and_lines_to_copy_by_address() -> None:
    address = "tcp://127.0.0.1:401"
    slow = Slow("worker", address, 14.0, (12.0, 16.0), 39.0, 3, "compute", host="127.0.0.1")
    plans = [plan(14.0 if place in {0, 15, 30} else 1.0) for place in range(40)]
    run, names = made_run(plans, 2), Names({address: "laptop:1"}, {"127.0.0.1": "laptop"})
    tables: dict[str, Any] = {}
    for table, content in (("chunks", run.chunks), ("tasks", run.tasks), ("lifetimes", run.lifetimes)):
        assert content is not None
        workers = [address if worker == "w0" else worker for worker in content["worker"].to_pylist()]
        tables[table] = content.set_column(content.schema.get_field_index("worker"), "worker", [workers])
    finding = findings(evidence_of(replace(run, **tables), slow=[slow], names=names))["slow worker"]
    assert finding.what == "Worker laptop:1 computes slowly: its 3 chunks took 14 times (12 to 16) as long as expected."
    assert finding.remedy == f'client.retire_workers(["{address}"])'
    assert finding.text.endswith(finding.remedy)
    assert [(one.name, one.label) for one in finding.culprits] == [(address, "laptop:1")]
    assert finding.card.culprit == "laptop:1"


def test_a_chunk_that_stands_out_is_named_with_its_line_and_the_idle_time_it_causes() -> None:
    process, loop = Place("P.process", "/my.py", 3), Place("matched", "/my.py", 20)
    states = {"core": 20.0, "contention": 0.0, "blocked": 0.0, "unknown": 0.0}
    stacks = [Stack("data", (process, loop), 200, 20.0, states, 19), Stack("data", (process,), 190, 19.0, states)]
    stragglers = Measurement(UNEVEN).metrics.evaluator.value("stragglers")
    (found,) = findings(evidence_of(UNEVEN, stragglers=stragglers, profile=Profile(stacks))).values()
    assert found.cause == "slow chunk"
    chunk = "a.root, entries 1900 to 2000"
    assert found.what == f"A chunk ({chunk}) took 20 s instead of 1 s, most of it in matched (/my.py:20)."
    assert found.advice == "Check what matched (/my.py:20) does with these events."
    assert [(one.kind, one.name) for one in found.culprits] == [("file", chunk), ("function", "matched (/my.py:20)")]
    # 24 s on four threads; without the excess of 19 s they end after 5 s
    assert found.seconds == pytest.approx(19.0, rel=0.02)
    assert found.rows == {f"chunk of {chunk}": pytest.approx(19.0), CAUSED_IDLE: pytest.approx(57.0, rel=0.02)}
    assert "threads sit idle for another 57 s of thread time until it is done" in found.saving


def test_a_chunk_that_stands_out_has_no_line_where_the_profile_has_none_of_it() -> None:
    stragglers = Measurement(UNEVEN).metrics.evaluator.value("stragglers")
    process = Place("P.process", "/my.py", 3)
    states = {"core": 20.0, "contention": 0.0, "blocked": 0.0, "unknown": 0.0}
    others = Profile([Stack("data", (process,), 200, 20.0, states, 3)])
    for profile in (None, others):
        found = findings(evidence_of(UNEVEN, stragglers=stragglers, profile=profile))["slow chunk"]
        assert found.what == "A chunk (a.root, entries 1900 to 2000) took 20 s instead of 1 s: it computes slowly."
