"""Names of workers: short, unique, and the same however often a run is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import handmade_run
from pictures import synthetic_run

from roastcoffea.metrics import evaluate
from roastcoffea.metrics.facts import Names, natural, short_names
from roastcoffea.records.run import Environment


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("tcp://10.0.3.17:40123", "10.0.3.17:1"),
        ("tls://node-7.example.org:40123", "node-7:1"),
        ("tcp://[2001:db8::7]:40123", "[2001:db8::7]:1"),
        ("inproc://10.0.3.17/4711/9", "10.0.3.17:1"),
        ("node-7:9000", "node-7:1"),
        ("tcp://127.0.0.1:40123", "laptop:1"),
        ("farm", "farm"),
        ("an odd name", "an odd name"),
    ],
)
def test_the_name_of_an_address(address: str, name: str) -> None:
    assert short_names([address], this_host="laptop") == {address: name}


def test_loopback_stays_where_the_host_is_not_known() -> None:
    assert short_names(["tcp://127.0.0.1:40123"]) == {"tcp://127.0.0.1:40123": "127.0.0.1:1"}


def test_workers_of_a_host_are_numbered_by_arrival_then_by_port() -> None:
    ports = {40000: 5.0, 9999: 5.0, 40002: 0.0}
    arrivals = {f"tcp://node:{port}": moment for port, moment in ports.items()}
    wanted = {"tcp://node:40002": "node:1", "tcp://node:9999": "node:2", "tcp://node:40000": "node:3"}
    assert short_names(arrivals, arrivals) == wanted
    later = arrivals | {"tcp://node:1": 9.0}
    assert short_names(later, later) == wanted | {"tcp://node:1": "node:4"}


def test_hosts_of_one_name_in_two_domains_keep_the_domain() -> None:
    names = short_names(["tcp://n1.cern.ch:1", "tcp://n1.fnal.gov:1", "tcp://n2.cern.ch:1"])
    assert sorted(names.values()) == ["n1.cern.ch:1", "n1.fnal.gov:1", "n2:1"]


def test_every_worker_of_a_run_has_a_name_of_its_own() -> None:
    run = synthetic_run(workers=30, rounds=2)
    names = evaluate(run).evaluator.value("worker_names")
    assert set(names) == set(run.lifetimes["worker"].to_pylist())
    assert len(set(names.values())) == 30


def test_workers_that_only_other_tables_know_have_names_too() -> None:
    run = replace(synthetic_run(), lifetimes=None)
    run = replace(run, environment=Environment(versions={}, client_host="laptop"))
    assert set(evaluate(run).evaluator.value("worker_names")) == set(run.chunks["worker"].to_pylist())
    assert evaluate(handmade_run()).evaluator.value("worker_names")["A"] == "A"


def test_hosts_are_named_as_their_workers_are() -> None:
    run = synthetic_run(workers=2, rounds=2)
    rows = {"worker": ["tcp://127.0.0.1:1", "tcp://n2.cern.ch:1"], "host": ["127.0.0.1", "n2.cern.ch"]}
    lifetimes = run.lifetimes
    for name, values in rows.items():
        lifetimes = lifetimes.set_column(lifetimes.schema.get_field_index(name), name, [values])
    changes = {"lifetimes": lifetimes, "samples": None, "chunks": None, "tasks": None}
    run = replace(run, environment=Environment(versions={}, client_host="laptop.org"), **changes)
    names = evaluate(run).evaluator.value("place_names")
    assert names.workers == {"tcp://127.0.0.1:1": "laptop:1", "tcp://n2.cern.ch:1": "n2:1"}
    assert names.hosts == {"127.0.0.1": "laptop", "n2.cern.ch": "n2"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Worker tcp://127.0.0.1:401 on 127.0.0.1 computes slowly.", "Worker laptop:1 computes slowly."),
        ("tcp://127.0.0.1:4012, tcp://127.0.0.1:401", "laptop:2, laptop:1"),
        ("Opening files takes long at 127.0.0.1:8000.", "Opening files takes long at 127.0.0.1:8000."),
        ("no free core on 127.0.0.1.", "no free core on laptop."),
        ("http://127.0.0.1/a.root", "http://127.0.0.1/a.root"),
        ("Worker farm is slow.", "Worker farm is slow."),
    ],
)
def test_texts_call_workers_and_hosts_by_name(text: str, wanted: str) -> None:
    workers = {"tcp://127.0.0.1:401": "laptop:1", "tcp://127.0.0.1:4012": "laptop:2", "farm": "farm"}
    assert Names(workers, {"127.0.0.1": "laptop"}).in_text(text) == wanted


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["node-1:10", "worker", "node-10:1", "node-1:2", "node-2:1", "node-1:1"]
    assert sorted(names, key=natural) == ["node-1:1", "node-1:2", "node-1:10", "node-2:1", "node-10:1", "worker"]
