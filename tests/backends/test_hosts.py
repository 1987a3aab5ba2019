"""Hosts of a run: what the processes on them may use together."""

from __future__ import annotations

import platform
import socket
from typing import Any

import pyarrow as pa
import pytest
from handmade import handmade_run

import roastcoffea
from roastcoffea import Measurement
from roastcoffea.backends.hosts import environment_of, hosts_of, with_more, with_others, with_withheld
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Host
from roastcoffea.records.workers import LIFETIME_COLUMNS

GIB = 2**30


def process(cores: int, affinity: str | None = "ffff", group: int = 0, host: str = "node", memory: int = 4) -> Any:
    """A process on a machine of 16 cores and 64 GiB."""
    amounts = {"cores": cores, "memory": memory * GIB, "node_cores": 16, "node_memory": 64 * GIB}
    return {"host": host, "affinity": affinity, "group": group, **amounts}


@pytest.mark.parametrize(
    ("processes", "cores"),
    [
        ([process(16)] * 3, 16),
        ([process(4)] * 3, 4),
        ([process(4, group=1), process(4, group=2)], 8),
        ([process(10, group=1), process(10, group=2)], 16),
        ([process(2, "3")] * 3, 2),
        ([process(2, "3"), process(2, "c")], 4),
        ([process(8, "ff", group=1), process(8, "ff", group=2)], 8),
        ([process(1, "ff", group=1), process(8, "ff", group=2)], 8),
        ([process(1, "3", group=1), process(1, "c", group=2)], 2),
        ([process(16, None)] * 2, 16),
        ([process(4, None)] * 2, 4),
    ],
    ids=[
        "no limits",
        "one container",
        "two containers",
        "more than there is",
        "shared processors",
        "processors of their own",
        "steps of one job",
        "one with a quota",
        "quotas below affinity",
        "no affinity",
        "no affinity and a quota",
    ],
)
def test_cores_that_processes_may_use_together(processes: list[Any], cores: int) -> None:
    (host,) = hosts_of(processes)
    assert (host.cores, host.node_cores) == (cores, 16)


def test_memory_is_shared_within_a_group() -> None:
    shared, apart, much = (
        hosts_of([process(1, group=first, memory=memory), process(1, group=second, memory=memory)])[0]
        for first, second, memory in ((1, 1, 4), (1, 2, 4), (1, 2, 40))
    )
    assert (shared.memory, apart.memory, much.memory) == (4 * GIB, 8 * GIB, 64 * GIB)
    assert shared.node_memory == 64 * GIB


def test_hosts_are_told_apart_and_keep_what_they_had() -> None:
    before = hosts_of([process(4, group=1, host="a"), process(4, group=2, host="a"), process(2, host="b")])
    assert [(host.name, host.cores) for host in before] == [("a", 8), ("b", 2)]
    after = with_more(before, hosts_of([process(4, group=1, host="a"), process(3, host="c")]))
    assert [(host.name, host.cores) for host in after] == [("a", 8), ("b", 2), ("c", 3)]


def test_throttling_stands_with_the_last_worker_of_an_address() -> None:
    rows = [{"worker": "a"}, {"worker": "b"}, {"worker": "a"}, {"worker": "c"}]
    table = with_withheld(
        table_of_rows(LIFETIME_COLUMNS, rows), {"a": (0.5, 2, None), "c": None, "gone": (1.0, 1, 3.0)}
    )
    assert table["throttled_seconds"].to_pylist() == [None, None, 0.5, None]
    assert table["throttled_periods"].to_pylist() == [None, None, 2, None]
    assert table["steal_seconds"].to_pylist() == [None, None, None, None]
    empty = with_withheld(table_of_rows(LIFETIME_COLUMNS, []), {"a": (0.5, 2, 0.0)})
    assert empty.schema == pa.schema(table.schema)


# Other processes


def used(pid: int, own: float, children: float = 0.0, *, born: float = 0.0, parent: int = 1) -> Any:
    """A process and its CPU time so far."""
    return {"pid": pid, "born": born, "parent": parent, "own": own, "children": children}


def load(time: float, busy: float, *processes: Any, hidden: str | None = None, host: str = "node") -> Any:
    """CPU time of a host and of processes on it."""
    times = {"time": time, "busy": busy, "processes": list(processes), "hidden": hidden}
    return {"host": host, "system": "boot"} | times


NODE = Host(name="node", cores=16, memory=None, node_cores=16)
CLIENT = used(7, 5.0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 70.0, used(7, 10.0))], 1.5),
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 70.0, used(7, 10.0))] * 3, 1.5),
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 70.0, used(7, 10.0), used(8, 4.0, born=101.0))], 1.1),
        ([load(100.0, 50.0, CLIENT, used(8, 4.0))], [load(110.0, 70.0, used(7, 10.0), used(8, 5.0))], 1.4),
        # a worker that was there before, and that the client waited for when it had used 3 s more
        ([load(100.0, 50.0, CLIENT, used(8, 4.0, parent=7))], [load(110.0, 70.0, used(7, 10.0, 7.0))], 1.2),
        # one that came and went, and was asked in between
        (
            [load(100.0, 50.0, CLIENT), load(105.0, 60.0, used(8, 2.0, born=101.0, parent=7))],
            [load(110.0, 70.0, used(7, 10.0, 3.0))],
            1.2,
        ),
        # a subprocess of the client that nobody saw
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 70.0, used(7, 10.0, 3.0))], 1.2),
        # more than the host's, by less than the kernel's ticks tell apart
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 54.5, used(7, 10.0))], 0.0),
        ([load(100.0, 50.0, CLIENT)], [load(101.0, 66.5, CLIENT)], 16.0),
    ],
    ids=["client", "asked thrice", "came", "was there", "left", "came and left", "subprocess", "by ticks", "all cores"],
)
def test_cores_of_others_are_those_of_the_host_less_those_of_the_run(before: Any, now: Any, expected: float) -> None:
    (host,) = with_others([NODE], before, now)
    assert (host.others, host.others_absent) == (pytest.approx(expected), None)


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ([load(100.0, 50.0, CLIENT)], [load(110.0, 52.0, used(7, 10.0))], "reports less CPU time than the run used"),
        (
            [load(100.0, 50.0, CLIENT, hidden="it is hidden")],
            [load(110.0, 70.0, hidden="it is hidden")],
            "it is hidden",
        ),
        ([load(100.0, 50.0, CLIENT)], [load(100.05, 50.1, CLIENT)], "too short"),
        ([load(100.0, 50.0, CLIENT)], [], "at both start and end"),
        ([], [load(110.0, 70.0, CLIENT)], "at both start and end"),
    ],
    ids=["a part", "hidden", "short", "gone", "late"],
)
def test_cores_of_others_are_missing_where_the_host_is_hidden(before: Any, now: Any, reason: str) -> None:
    (host,) = with_others([NODE], before, now)
    assert host.others is None
    assert reason in str(host.others_absent)
    missing = Measurement(handmade_run(environment=environment_of([host]))).metrics.missing
    assert missing["cores_of_others"] == host.others_absent


@pytest.mark.parametrize(
    ("parent", "others"), [(None, None), (7, 1.2)], ids=["its parent is unknown", "the client waited for it"]
)
def test_cores_of_others_are_missing_where_a_worker_left_without_a_word(
    parent: int | None, others: float | None
) -> None:
    seen = [] if parent is None else [used(8, 4.0, parent=parent)]
    before = [load(100.0, 50.0, CLIENT, *seen)]
    (host,) = with_others([NODE], before, [load(110.0, 70.0, used(7, 10.0, 7.0))], lost={8})
    assert host.others == others
    assert others is not None or "without sending a last message" in str(host.others_absent)


@pytest.mark.parametrize("lost", [[1], [1, 1], [77]], ids=["one of two", "one was never seen", "never seen"])
def test_a_lost_worker_is_not_taken_for_another_of_its_number(lost: list[int]) -> None:
    """Containers of one system have numbers of their own: it may have been on any host, so no number is made up."""
    other = Host(name="far", cores=8, memory=None, node_cores=8)

    def on(host: str, system: str, time: float, busy: float, *processes: Any) -> Any:
        return load(time, busy, *processes) | {"host": host, "system": system}

    pods = [on("node", "s", 100.0, 50.0, used(1, 0.0)), on("pod", "s", 100.0, 50.0, used(1, 0.0, born=2.0))]
    far = on("far", "t", 100.0, 50.0, used(5, 0.0))
    now = [on("node", "s", 110.0, 70.0, used(1, 1.0)), on("far", "t", 110.0, 60.0, used(5, 4.0))]
    for host in with_others([NODE, other], [*pods, far], now, lost=lost):
        assert host.others is None
        assert "without sending a last message" in str(host.others_absent)


def test_workers_of_one_number_in_two_containers_are_two() -> None:
    """A's worker used 50 s before it was last seen; its parent reports them as it has waited for it."""

    def pod(name: str, time: float, busy: float, *processes: Any) -> Any:
        return load(time, busy, *processes, host=name)

    before = [
        pod("node", 100.0, 50.0, used(1, 0.0, parent=0), used(20, 0.0, parent=1)),
        pod("b", 100.0, 50.0, used(1, 0.0, parent=0), used(20, 0.0, parent=1, born=3.0)),
        pod("node", 150.0, 100.0, used(1, 0.0, parent=0), used(20, 50.0, parent=1)),
    ]
    now = [
        pod("node", 200.0, 200.0, used(1, 0.0, 50.0, parent=0)),
        pod("b", 200.0, 200.0, used(1, 0.0, parent=0), used(20, 50.0, parent=1, born=3.0)),
    ]
    (host,) = with_others([NODE], before, now)
    assert host.others == pytest.approx((150.0 - 100.0) / 100.0)


def test_the_environment_has_the_versions_of_this_process() -> None:
    host = Host(name="node", cores=8, memory=None)
    found = environment_of([host])
    assert (found.client_host, found.hosts) == (socket.gethostname(), (host,))
    assert found.versions["python"] == platform.python_version()
    assert found.versions["roastcoffea"] == roastcoffea.__version__
