"""Whom findings name."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
from distributed import LocalCluster
from distributed.cli.dask_worker import main as dask_worker
from handmade import evidence_of, handmade_run
from made_runs import made_run, plan

from roastcoffea.diagnosis.evidence import NAMED, Evidence, by_part
from roastcoffea.diagnosis.finding import CAUSES, Culprit
from roastcoffea.diagnosis.findings.computing import blocked_sections
from roastcoffea.diagnosis.findings.reading import endpoints, rate_of_stream
from roastcoffea.diagnosis.findings.scheduling import straggler
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.profile import HOT_COLUMNS
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import SECTION_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS

FILES = [plan(1.0, wait=3.0, file="root://slow//a.root"), plan(1.0, read=2.0, file="root://near//b.root")]
NOTHING = dataclasses.replace(
    evidence_of(), run=handmade_run(chunks=None, tasks=None, sections=None, lifetimes=None), counted=None
)


def test_sums_by_a_key_are_ordered() -> None:
    counted = evidence_of(made_run([*FILES, plan(1.0, read=0.5, file="c")], 1)).counted
    assert by_part(counted, "file", ["read_seconds"]) == {
        "root://near//b.root": 2.0,
        "c": 0.5,
        "root://slow//a.root": 0.0,
    }
    assert by_part(None, "file", ["read_seconds"]) == by_part(counted, "file", []) == {}


@pytest.mark.parametrize(
    ("rows", "names"), [(["read"], ["near"]), (["blocked"], ["slow"]), (["checkpoint"], []), (["idle: tail"], [])]
)
def test_endpoints_are_those_of_the_files_that_took_the_time(rows: list[str], names: list[str]) -> None:
    assert [culprit.name for culprit in endpoints(evidence_of(made_run(FILES, 1)), dict.fromkeys(rows, 1.0))] == names


def test_endpoints_have_their_seconds_and_the_most_come_first() -> None:
    found = endpoints(evidence_of(made_run(FILES, 1)), {"read": 1.0, "blocked": 1.0})
    assert found == [Culprit("endpoint", "slow", 3.0), Culprit("endpoint", "near", 2.0)]
    many = [plan(1.0, read=1.0 + place, file=f"root://host{place}//a.root") for place in range(NAMED + 2)]
    assert len(endpoints(evidence_of(made_run(many, 1)), {"read": 1.0})) == NAMED


@pytest.mark.parametrize("file", ["/data/a.root", "a.root", "http://[broken/a.root"])
def test_local_and_unknown_places_are_no_endpoints(file: str) -> None:
    assert endpoints(evidence_of(made_run([plan(1.0, read=2.0, file=file)], 1)), {"read": 1.0}) == []


def test_the_rate_of_a_stream_is_bytes_by_time_of_opening_and_reading() -> None:
    # of the attempts of k1 and k2 that counted, and of the chunk without a task
    seconds = (0.125 + 0.5 + 0.5) + (0.125 + 0.125 + 1.0) + (0.25 + 0.25 + 0.5)
    assert rate_of_stream(evidence_of()) == pytest.approx(4500 / seconds)
    assert rate_of_stream(NOTHING) is None
    assert rate_of_stream(evidence_of(made_run([plan(1.0)], 1))) is None


def sections_of(amounts: dict[str, tuple[float, float]]) -> list[Culprit]:
    rows: list[dict[str, Any]] = [
        {"name": name, "wall_seconds": wall, "cpu_seconds": cpu} for name, (wall, cpu) in amounts.items()
    ]
    return blocked_sections(evidence_of(handmade_run(sections=table_of_rows(SECTION_COLUMNS, rows))))


def test_the_innermost_section_that_is_blocked_is_named() -> None:
    found = sections_of({"outer": (9.0, 1.0), "outer/inner": (8.0, 0.5), "other": (3.0, 0.0)})
    # CPU time waits for the interpreter by a twelfth
    expected = [Culprit("section", "outer/inner", pytest.approx(8.0 - 0.5 * 13 / 12)), Culprit("section", "other", 3.0)]
    assert found == expected


def test_a_section_that_waits_by_itself_is_named_beside_one_inside_of_it() -> None:
    found = sections_of({"outer": (9.0, 1.0), "outer/inner": (4.0, 0.5)})
    assert [culprit.name for culprit in found] == ["outer", "outer/inner"]


def test_sections_that_compute_are_not_named() -> None:
    assert sections_of({"busy": (3.0, 3.0)}) == []
    assert blocked_sections(NOTHING) == []


def hot(*rows: tuple[str, int, str | None, float, float]) -> Any:
    return table_of_rows(
        HOT_COLUMNS,
        [
            {
                "dataset": "data",
                "function": function,
                "file": "my.py",
                "line": line,
                "leaf": leaf,
                "core_seconds": core,
                "blocked_seconds": blocked,
            }
            for function, line, leaf, core, blocked in rows
        ],
    )


def test_functions_are_named_with_the_line_that_took_the_most() -> None:
    seen = evidence_of(hot=hot(("f", 3, None, 1.0, 0.0), ("f", 7, "sqrt", 4.0, 0.0), ("g", 9, None, 2.0, 6.0)))
    assert seen.functions("core") == [Culprit("function", "f (my.py:7)", 5.0), Culprit("function", "g (my.py:9)", 2.0)]
    assert seen.functions("blocked") == [Culprit("function", "g (my.py:9)", 6.0)]


def test_own_time_of_a_function_is_not_what_it_calls() -> None:
    seen = evidence_of(hot=hot(("f", 3, None, 1.0, 0.0), ("f", 7, "sqrt", 4.0, 0.0), ("g", 9, None, 2.0, 6.0)))
    own = seen.functions("core", own=True)
    assert own == [Culprit("function", "g (my.py:9)", 2.0), Culprit("function", "f (my.py:3)", 1.0)]
    assert evidence_of().functions("core") == []


def test_hosts_that_waited_for_cores_else_their_workers() -> None:
    run = made_run([plan(1.0, core_wait=2.0), plan(1.0, core_wait=1.0)], 2)
    seen = evidence_of(run)
    (known,) = CAUSES["contention"].findings(seen)
    assert known.culprits == (Culprit("host", "10.0.0.1", 3.0),)
    without = dataclasses.replace(seen, run=dataclasses.replace(run, lifetimes=None))
    (unknown,) = CAUSES["contention"].findings(without)
    assert unknown.culprits == (Culprit("host", "w0", 2.0), Culprit("host", "w1", 1.0))


def test_the_worst_straggler_is_a_file_with_its_entries() -> None:
    assert straggler(evidence_of()) is None
    run = made_run([plan(1.0)] * 19 + [plan(20.0)], 4)
    found = straggler(evidence_of(run, stragglers=Measurement(run).metrics.evaluator.value("stragglers")))
    assert found is not None
    assert (found.kind, found.name) == ("file", "a.root, entries 1900 to 2000")
    assert found.factor == pytest.approx(20.0)
    assert found.seconds == pytest.approx(19.0)


def with_addresses(addresses: list[str], threads: int) -> Evidence:
    """Evidence of a run with these workers."""
    run = made_run([plan(1.0)] * 4, len(addresses))
    assert run.lifetimes is not None
    rows = run.lifetimes.to_pylist()
    lives = [row | {"worker": one, "threads": threads} for row, one in zip(rows, addresses, strict=True)]
    return dataclasses.replace(
        evidence_of(), run=dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))
    )


def test_lines_that_start_workers_give_them_their_threads() -> None:
    """Dask's own cluster gets what the line says: it makes `nthreads` of other options, whatever that is set to."""
    local, far = (with_addresses([f"tcp://{host}:{port}" for port in (4000, 4001)], 2) for host in ("127.0.0.1", "n-1"))
    assert far.started_with(2) == "dask worker ... --nthreads 2"
    for line, threads in ((local.started_with(2), [2, 2]), (local.started_with(1, 4), [1] * 4)):
        options = {"processes": False, "dashboard_address": ":0", "silence_logs": 50}
        with eval(line, {"LocalCluster": partial(LocalCluster, **options)}) as cluster:
            assert [worker.state.nthreads for worker in cluster.workers.values()] == threads


def test_lines_for_dask_worker_are_options_of_it() -> None:
    words = with_addresses(["tcp://n-1:4000"], 4).started_with(1, 4).split()
    given = dict(zip(words[3::2], words[4::2], strict=True))
    known = {name: each.type for each in dask_worker.params for name in each.opts}
    assert {name: known[name].convert(value, None, None) for name, value in given.items() if known[name]}
    assert given == {"--nworkers": "4", "--nthreads": "1"}
