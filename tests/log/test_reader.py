"""The log between scheduler and client: entries that cannot be read, messages of others, and bounds."""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import analyses
import pytest
from analyses import Jets, runner_for
from conftest import wait_until
from distributed import Client, Event, wait
from stand_ins import CLIENT, NAME, TOKEN, Scheduler, Task, Worker, started_plugin

from roastcoffea import TaskMonitor, load
from roastcoffea.backends import workers
from roastcoffea.collector import MetricsCollector
from roastcoffea.log import kinds, writer
from roastcoffea.log.kinds import NO_SIZE, NO_STRING, Fields, Kind
from roastcoffea.log.packing import packed_records
from roastcoffea.log.reader import ClusterLog
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.log.writer import MOST_TEXTS, LogWriter
from roastcoffea.monitor.history import TaskLog
from roastcoffea.records.tasks import OTHER

T = 1_700_000_000.0
CALL = "call-1"
OF_MONITORS = {kinds.STATE, kinds.VIEWS}
READERS = {"collector": set(kinds.ALL) - OF_MONITORS, "monitor": set(kinds.ALL)}
"""What each of them reads."""

FREE_TEXT = (kinds.STRING, kinds.TASK_ERROR, kinds.PROBLEM)
"""Kinds of entries that hold nothing but text: whatever bytes there are can be read."""

WORKER, NAMED, HOST, PREFIX = "tcp://10.0.0.1:1", "first", "10.0.0.1", "Jets"
TEXTS = (WORKER, NAMED, HOST, PREFIX, "dict", "span-1")

Entry = tuple[Kind, bytes]


def packed(fields: Fields, **values: Any) -> bytes:
    """Fixed part of an entry; what is not given is 0."""
    return struct.pack(kinds.packing(fields), *(values.get(name, 0) for name, _ in fields))


def task(number: int) -> bytes:
    fixed = {"worker": 0, "prefix": 3, "type": 4, "span": 5, "kind": 1, "start": T, "stop": T + 1, "seen": T + 2}
    return packed(kinds.TASK.fields, **fixed, run_id=number, thread=7) + f"Jets-{number}".encode()


def states(first: int, names: list[str]) -> bytes:
    numbers = {"worker": NO_STRING, "type": NO_STRING, "nbytes": NO_SIZE, "state": 1, "expected": -1}
    rows = b"".join(packed(kinds.STATE_FIELDS, task=first + place, time=T, **numbers) for place in range(len(names)))
    return struct.pack(kinds.STATE.packing, first, len(rows)) + rows + json.dumps([[name] for name in names]).encode()


def views(number: int) -> bytes:
    row = {"number": number, "key": f"Jets-{number}", "transitions": [["memory", T]]}
    return zlib.compress(json.dumps([WORKER, [row]]).encode())


def counted(amount: float) -> bytes:
    counts = [[["execute", "span-1", "Jets", "thread-cpu", "seconds"], amount]]
    return packed(kinds.COUNTED.fields, worker=0) + zlib.compress(json.dumps(counts).encode())


def sampling(number: int) -> bytes:
    state = packed(kinds.WORKER_STATE_FIELDS, worker=0, processing=number, nbytes=0)
    return packed(kinds.SAMPLING.fields, time=T + number, workers=1, whole=number == 0) + state


def record(identity: int) -> bytes:
    return packed_records([{"id": identity, "key": f"Jets-{identity}", "call": CALL, "start": T + identity}])


def entries() -> list[Entry]:
    """A log with entries of each kind."""
    return [
        *((kinds.STRING, text.encode()) for text in TEXTS),
        (kinds.ARRIVAL, packed(kinds.ARRIVAL.fields, worker=0, name=1, host=2, time=T, threads=4)),
        (kinds.PAUSE, packed(kinds.PAUSE.fields, worker=0, time=T + 1, paused=1)),
        (kinds.SAMPLE, packed(kinds.SAMPLE.fields, worker=0, time=T, last_seen=T)),
        (kinds.SAMPLING, sampling(0)),
        (kinds.STATE, states(0, ["Jets-1", "Jets-2"])),
        (kinds.TASK, task(1)),
        (kinds.TASK_ERROR, b"OSError: planted"),
        (kinds.CHUNK, record(1)),
        (kinds.VIEWS, views(1)),
        (kinds.PROBLEM, b"a worker is slow"),
        (kinds.STATE, states(2, ["Jets-3"])),
        (kinds.TASK, task(2)),
        (kinds.CHUNK, record(2)),
        (kinds.VIEWS, views(2)),
        (kinds.SAMPLE, packed(kinds.SAMPLE.fields, worker=0, time=T + 1, last_seen=T + 1)),
        (kinds.SAMPLING, sampling(1)),
        (kinds.PROCESS_CPU, packed(kinds.PROCESS_CPU.fields, worker=0, cpu_seconds=1.5)),
        (kinds.DEPARTURE, packed(kinds.DEPARTURE.fields, worker=0, time=T + 5)),
        (kinds.COUNTED, counted(2.5)),
        *((kinds.STRING, text.encode()) for text in ("tcp://10.0.0.2:2", "second")),
        (kinds.ARRIVAL, packed(kinds.ARRIVAL.fields, worker=6, name=7, host=2, time=T + 6, threads=4)),
    ]


@dataclass
class Found:
    """What a client makes of a log."""

    log: ClusterLog
    tasks: TaskLog | None

    @property
    def problems(self) -> list[str]:
        return [one for one in (*self.log.problems, *self.log.received.problems) if one != "a worker is slow"]

    def tables(self) -> dict[str, Any]:
        """All that a reader makes of a log."""
        workers = self.log.workers
        found: dict[str, Any] = {
            "tasks": self.log.attempts.table(0.0).drop_columns("error").to_pylist(),
            "samples": workers.samples(0.0).to_pylist(),
            "lifetimes": workers.lifetimes(0.0, T, T + 100).to_pylist(),
            "pauses": workers.pauses(0.0, T, T + 100).to_pylist(),
            "sampling": self.log.sampling.sampling(0.0).to_pylist(),
            "worker states": self.log.sampling.states(0.0).to_pylist(),
            "chunks": self.log.received.chunks({CALL}).to_pylist(),
            "counted": workers.counted((), ["span-1"]),
        }
        if self.tasks is not None:
            history = self.tasks.history(0.0)
            found |= {"states": list(history.described(history.rows)), "views": self.tasks.views(0.0)}
        return found


def read(reader: str, entries_read: list[Entry]) -> Found:
    log = ClusterLog()
    found = Found(log, TaskLog(log) if reader == "monitor" else None)
    log.feed(b"".join(struct.pack(kinds.HEADER, kind.code, len(payload)) + payload for kind, payload in entries_read))
    return found


def damages(payload: bytes) -> Iterator[bytes]:
    """Payloads that nobody can have written."""
    yield b""
    yield payload[: len(payload) // 2]
    yield b"\xff" * len(payload)


def test_every_kind_of_entry_is_in_the_example_and_is_one_of_its_own() -> None:
    assert {kind for kind, _ in entries()} == set(kinds.ALL)
    assert len(set(kinds.ALL)) == len(kinds.ALL)
    assert [kind.code for kind in kinds.ALL] == [bytes([place]) for place in range(len(kinds.ALL))]


@pytest.mark.parametrize("reader", READERS)
def test_each_kind_is_read_as_what_it_is(reader: str) -> None:
    read_log = read(reader, [entry for entry in entries() if entry[0] in READERS[reader]])
    log, found = read_log.log, read_log.tables()
    assert log.problems == ["a worker is slow"]
    assert [row["key"] for row in found["tasks"]] == ["Jets-1", "Jets-2"]
    assert log.attempts.table(0.0)["error"].to_pylist() == ["OSError: planted", None]
    assert [row["time"] for row in found["samples"]] == [T, T + 1]
    assert [row["time"] for row in found["sampling"]] == [T, T + 1]
    assert [(row["time"], row["processing"]) for row in found["worker states"]] == [(T, 0), (T + 1, 1)]
    assert [(row["start"], row["stop"], row["cpu_seconds"]) for row in found["lifetimes"]] == [
        (T, T + 5, 1.5),
        (T + 6, T + 100, None),
    ]
    assert found["pauses"] == [{"worker": WORKER, "start": T + 1, "stop": T + 5}]
    assert [row["id"] for row in found["chunks"]] == [1, 2]
    assert found["counted"] == {WORKER: {("execute", "Jets", "thread-cpu", "seconds"): 2.5}}
    if reader == "monitor":
        assert [row["key"] for row in found["states"]] == ["Jets-1", "Jets-2", "Jets-3"]
        assert [row["key"] for row in found["views"]] == ["Jets-1", "Jets-2"]


@pytest.mark.parametrize("reader", READERS)
def test_an_entry_that_cannot_be_read_is_skipped_and_reported(reader: str) -> None:
    good = [entry for entry in entries() if entry[0] in READERS[reader]]
    checked = set()
    for place, (kind, payload) in enumerate(good):
        if kind in FREE_TEXT:
            continue
        for damage in damages(payload):
            found = read(reader, [*good[:place], (kind, damage), *good[place:]])
            assert found.tables() == read(reader, good).tables(), (kind, damage)
            (problem,) = found.problems
            assert ("could not be read" if kind != kinds.CHUNK else "could not be unpacked") in problem
            checked.add(kind)
    assert checked == READERS[reader] - set(FREE_TEXT)


@pytest.mark.parametrize("reader", READERS)
def test_an_entry_that_is_lost_takes_no_other_with_it(reader: str) -> None:
    """Its rows are missing; names, texts and errors of all others stay their own."""
    good = [entry for entry in entries() if entry[0] in READERS[reader]]
    complete = read(reader, good).tables()
    for place, (kind, payload) in enumerate(good):
        if kind in FREE_TEXT or kind == kinds.ARRIVAL:
            continue
        damaged = read(reader, [*good[:place], (kind, payload[:3]), *good[place + 1 :]]).tables()
        for name in ("tasks", "samples", "states", "views", "chunks"):
            assert all(row in complete[name] for row in damaged.get(name, ())), (kind, name)


def test_kinds_that_nobody_knows_and_ends_that_are_missing_are_reported() -> None:
    unknown = Kind(b"\xfe", (), "", None)
    assert "kind 254" in read("monitor", [(unknown, b"?"), *entries()]).problems[-1]
    log = ClusterLog()
    log.feed(struct.pack(kinds.HEADER, kinds.STRING.code, 1) + b"a" + kinds.STRING.code)
    assert "the end of a piece" in log.problems[-1]


def test_a_worker_that_pauses_beside_a_monitor(client: Client) -> None:
    with TaskMonitor(client) as monitor, MetricsCollector(client) as collector:
        (address, *_) = client.scheduler_info()["workers"]
        client.run_on_scheduler(pause_and_go_on, address)
        wait(client.map(str, range(5), pure=False))
        assert monitor.snapshot().num_tasks >= 0
    assert monitor.problems == []
    assert len(monitor.to_dataframe()) >= 5
    assert collector.measurement.run.pauses["worker"].to_pylist() == [address]


def pause_and_go_on(address: str, dask_scheduler: Any) -> None:
    """What the scheduler does where a worker tells that it is paused, and then that it runs again."""
    for status in ("paused", "running"):
        dask_scheduler.handle_worker_status_change(status, address, "test")


# messages of others


def messages_of_others(random_numbers: random.Random) -> Iterator[Any]:
    """Messages that look like ours, or like nothing."""
    worker = "tcp://10.0.0.1:1"
    makers = [
        lambda: {"chunk": "text"},
        lambda: {"chunk": None, "token": "guessed"},
        lambda: {"chunk": record(5), "token": 5},
        lambda: {"digests": [[["execute"], 1.0]], "worker": worker},
        lambda: {"cpu_seconds": 1e9, "worker": worker},
        lambda: {"failed": "Jets-1", "run_id": 1, "times": []},
        lambda: {"last": True, "worker": worker, "token": None},
        lambda: {"problem": ["no text"], "token": ["a list"]},
        random_numbers.random,
        lambda: random_numbers.randbytes(20),
        lambda: [1, {"token": "x"}],
        lambda: None,
    ]
    while True:
        yield random_numbers.choice(makers)()


def test_a_thousand_messages_of_another_client_cost_nothing(client: Client, sample: Any) -> None:
    foreign = list(itertools.islice(messages_of_others(random.Random(0)), 1000))
    with Client(client.scheduler.address, set_as_default=False) as other, MetricsCollector(client) as collector:
        for message in foreign[:500]:
            other.log_event(collector.topic, message)
        runner_for(client, 1000)(sample, processor_instance=Jets())
        for message in foreign[500:]:
            other.log_event(collector.topic, message)
        assert wait_until(lambda: client.run_on_scheduler(refused, collector.topic) == 1000)
    measurement = collector.measurement
    assert measurement.chunks["outcome"].tolist() == ["ok"] * 16
    assert (measurement.tasks["kind"] == "processor").sum() == 16
    assert measurement.problems == ["1000 message(s) that others sent to the collector's topic were refused"]
    assert measurement.byte_ledger.residual == 0


def refused(name: str, dask_scheduler: Any) -> int:
    return int(dask_scheduler.plugins[name].refused)


def test_events_that_only_look_like_those_of_dask_are_ignored() -> None:
    scheduler = Scheduler(1)
    plugin = started_plugin(scheduler)
    (address,) = scheduler.workers
    nonsense = (
        None,
        5,
        "text",
        [],
        ["confirm"],
        ("confirm", {}, 1, 2, 3, 4),
        {"action": 1},
        {"action": "remove-worker"},
    )
    for topic, message in itertools.product(("stealing", "all", address), nonsense):
        plugin.log_event(topic, message)
    plugin.log_event(address, {"action": "worker-status-change"})
    assert (plugin.problems.failures, plugin.refused) == (0, 0)


def test_what_is_no_bytes_is_no_part_of_the_log() -> None:
    log = LogWriter()
    for payload in ("text", None, 5, ["a"]):
        with pytest.raises(TypeError):
            log.append(kinds.PROBLEM, payload)  # type: ignore[arg-type]
    log.append(kinds.PROBLEM, b"whole")
    found = ClusterLog()
    found.feed(log.drain(1000, 0)["data"])
    assert (found.problems, log.size) == (["whole"], 0)


# values that cannot be


def chunk(identity: int, **values: Any) -> dict[str, Any]:
    times = {"start": T, "stop": T + 2, "wall_seconds": 2.0, "cpu_seconds": 1.0}
    return {"id": identity, "call": CALL, "file": "a.root"} | times | values


@pytest.mark.parametrize(
    "values",
    [
        {"cpu_seconds": 1e9},
        {"cpu_seconds": -1.0},
        {"process_seconds": 50.0},
        {"helper_cpu_seconds": 1e9},
        {"process_cpu_seconds": float("inf")},
        {"memory_peak": -5},
        {"bytes_requested": 1 << 62},
    ],
)
def test_a_value_that_cannot_be_is_set_aside(values: dict[str, Any]) -> None:
    received = ReceivedRecords()
    received.take(packed_records([chunk(1, **values), chunk(2)]))
    rows = received.chunks({CALL}).to_pylist()
    (name,) = values
    assert [row[name] for row in rows] == [None, chunk(2).get(name)]
    (problem,) = received.problems
    assert problem.startswith("1 value(s) in records are impossible and were set aside")
    assert f"{name} of " in problem


@pytest.mark.parametrize(
    "values", [{"stop": T - 1}, {"start": -1.0}, {"stop": 1e12}, {"wall_seconds": -1.0}, {"wall_seconds": float("inf")}]
)
def test_a_record_whose_times_cannot_be_is_set_aside(values: dict[str, Any]) -> None:
    received = ReceivedRecords()
    received.take(packed_records([chunk(1, **values), chunk(2)]))
    assert received.chunks({CALL})["id"].to_pylist() == [2]
    assert received.tally.chunks == 0
    (problem,) = received.problems
    assert problem.startswith("1 record(s) hold impossible times and were set aside")


def test_tasks_and_workers_with_impossible_times() -> None:
    scheduler = Scheduler(1)
    (worker,) = scheduler.workers.values()
    plugin = started_plugin(scheduler)
    scheduler.run(plugin, Task("inc-1", worker, start=T + 5, stop=T, client=CLIENT))
    scheduler.run(plugin, Task("inc-2", worker, start=T, stop=T + 5, client=CLIENT))
    plugin.log_event(NAME, {"token": TOKEN, "worker": worker.address, "cpu_seconds": 1e9})
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    assert log.attempts.table(0.0)["start"].to_pylist() == [None, T]
    assert log.workers.lifetimes(0.0, T, T + 10)["cpu_seconds"].to_pylist() == [None]
    assert log.problems == [
        "1 task(s) ended before they began: their times were set aside",
        "1 CPU time(s) of workers were impossible and set aside",
    ]


# tasks of others


def test_of_tasks_of_other_users_only_worker_thread_and_times_are_saved(
    client: Client, sample: Any, tmp_path: Path
) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other, MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=Jets())
        with ThreadPoolExecutor(1) as thread:  # which has not entered the collector
            thread.submit(submit_theirs, other).result()
        ours = client.submit(str, 6, key="our-own-sum")
        wait(ours)
    measurement = load(collector.measurement.save(tmp_path))
    tasks = measurement.tasks
    assert "our-own-sum" in set(tasks["key"])
    anonymous = tasks[tasks["key"].isna()]
    assert len(anonymous) == 4
    assert set(anonymous["kind"]) == {OTHER}
    assert anonymous[["worker", "thread", "start", "stop", "assigned"]].notna().all().all()
    assert anonymous[["prefix", "type", "span", "error", "nbytes", "run_id"]].isna().all().all()
    measurement.print_summary()
    for name, frame in measurement.tables.items():
        assert "secret" not in frame.to_csv(), name
    assert measurement.time_ledger["other tasks"] > 0
    for file_format in ("json", "openmetrics", "perfetto"):
        measurement.export(tmp_path / file_format, file_format)
    measurement.report(tmp_path / "page.html")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if b"their-secret" in path.read_bytes()]


def submit_theirs(client: Client) -> None:
    failing = [client.submit(fail_secretly, number, key=f"their-secret-key-{number}") for number in range(3)]
    wait([*failing, client.submit(str, 5, key="their-secret-sum")])


def fail_secretly(number: int) -> None:
    raise ValueError(f"a secret {number}")


# nothing grows, and nothing stays


def size_of(value: Any, seen: set[int]) -> int:
    """Elements of all containers that can be reached from a plugin, and bytes of its texts."""
    if id(value) in seen or isinstance(value, Scheduler | type):
        return 0
    seen.add(id(value))
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return len(value) + sum(size_of(item, seen) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return len(value) + sum(size_of(item, seen) for item in value)
    return size_of(vars(value), seen) if hasattr(value, "__dict__") else 0


def test_the_plugin_does_not_grow_with_workers_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(T)
    monkeypatch.setattr(workers, "time", SimpleNamespace(time=lambda: next(now)))
    monkeypatch.setattr(writer, "MOST_TEXTS", 500)
    scheduler = Scheduler(5)
    plugin = started_plugin(scheduler)
    sizes = []
    received = 0
    for number in range(1200):
        worker = Worker(f"tcp://late:{number:05}", f"late-{number:05}")
        scheduler.workers[worker.address] = worker
        plugin.add_worker(scheduler, worker.address)
        worker.beat(T, number)
        plugin.sample()
        name = f"prefix-{number:05}"
        scheduler.run(plugin, Task(f"{name}-{number:05}", worker, name, typename=f"type-{number:05}", client=CLIENT))
        message = {"token": TOKEN, "worker": worker.address}
        plugin.log_event(NAME, message | {"digests": [[["execute", "span-1", name, "thread-cpu", "seconds"], 1.0]]})
        plugin.log_event(NAME, message | {"failed": f"never-{number:05}", "run_id": 1, "times": [T] * 4})
        plugin.log_event("all", {"action": "remove-worker", "worker": worker.address, "expected": True})
        if number % 3 == 0:
            plugin.log_event(NAME, message | {"last": True})
        del scheduler.workers[worker.address]
        plugin.remove_worker(scheduler, worker.address)
        if number % 3 == 1:
            plugin.log_event(NAME, message | {"last": True})
        plugin.workers.give_up_departed()
        while (answer := plugin.drain(1_000_000, received))["data"]:
            received += len(answer["data"])
        if number % 7 == 0:
            sizes.append(size_of(vars(plugin), set()))
    assert plugin.problems.failures == 0
    assert max(sizes[157:]) <= 1.05 * max(sizes[:157])


def test_a_text_that_is_numbered_again_is_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TEXTS > 1000
    monkeypatch.setattr(writer, "MOST_TEXTS", 4)
    scheduler = Scheduler(3)
    plugin = started_plugin(scheduler)
    expected = []
    now = time.time() + 1
    for number, worker in zip(range(30), itertools.cycle(scheduler.workers.values()), strict=False):
        scheduler.beat(now + number, number)
        plugin.sample()
        scheduler.run(plugin, Task(f"{number}", worker, f"p{number % 5}", typename=f"t{number % 7}", client=CLIENT))
        expected.append((worker.address, f"p{number % 5}", f"t{number % 7}"))
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    tasks = log.attempts.table(0.0)
    assert list(zip(*(tasks[name].to_pylist() for name in ("worker", "prefix", "type")), strict=True)) == expected
    assert log.workers.samples(0.0)["worker"].to_pylist() == [*scheduler.workers] * 30
    assert log.workers.lifetimes(0.0, now, now + 100)["cpu_seconds"].to_pylist() == [29 / 16, 30 / 16, 31 / 16]


def test_counts_of_workers_at_one_address_add_up() -> None:
    scheduler = Scheduler(1)
    (worker,) = scheduler.workers.values()
    plugin = started_plugin(scheduler)
    key = ("execute", "span-1", "Jets", "thread-cpu", "seconds")

    def report(amount: float, **more: Any) -> None:
        message = {"token": TOKEN, "worker": worker.address, "digests": [(key, amount), (("gil", "x"), 1.0)]}
        plugin.log_event(NAME, message | more)

    report(1.0)
    scheduler.workers.clear()
    plugin.remove_worker(scheduler, worker.address)
    report(1.5, last=True)
    scheduler.workers[worker.address] = worker
    plugin.add_worker(scheduler, worker.address)
    report(4.0)
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    present = [(address, list(counts.items())) for address, counts in plugin.workers.counted.items()]
    counted = log.workers.counted(present, ["span-1"])
    assert counted == {worker.address: {("execute", "Jets", "thread-cpu", "seconds"): 5.5, ("gil", "x"): 2.0}}


def test_tasks_that_the_user_keeps_hold_nothing_of_ours(client: Client, sample: Any) -> None:
    release = f"release-{random.random()}"
    with MetricsCollector(client):
        output, _ = runner_for(client, 4000)(sample, processor_instance=Jets())
        kept = client.map(str, range(5), pure=False)
        failed = client.submit(fail_secretly, 1, pure=False)
        wait([*kept, failed])
        with pytest.raises(Exception, match="planted"):
            runner_for(client, 4000, retries=0)(sample, processor_instance=analyses.Raising(0))
        running = client.submit(wait_for_release, release, pure=False)
        assert wait_until(lambda: running.key in [key for keys in client.processing().values() for key in keys])
    Event(release, client).set()
    assert running.result() == release
    assert wait_until(lambda: what_tasks_hold(client) == []), what_tasks_hold(client)
    assert output


def wait_for_release(name: str) -> str:
    Event(name).wait(30)
    return name


def what_tasks_hold(client: Client) -> list[str]:
    places = [client.run_on_scheduler(_held_on_scheduler), *client.run(_held_on_worker).values()]
    return [name for names in places for name in names]


def _held_on_scheduler(dask_scheduler: Any) -> list[str]:
    tasks = dask_scheduler.tasks.values()
    return [
        f"{task.key}: {name}"
        for task in tasks
        for held in (task.metadata, task.annotations)
        for name in held or ()
        if "roastcoffea" in name
    ]


def _held_on_worker(dask_worker: Any) -> list[str]:
    tasks = dask_worker.state.tasks.values()
    return [
        f"{task.key}: {name}"
        for task in tasks
        for held in (task.metadata, task.annotations)
        for name in held or ()
        if "roastcoffea" in name
    ]
