"""A task monitor on real clusters, against what the tasks themselves and the scheduler tell."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from analyses import Jets, runner_for
from conftest import wait_until, what_stays
from distributed import Client, Event, LocalCluster, as_completed, get_worker
from processes import PATIENCE

from roastcoffea import MetricsCollector, TaskMonitor
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.monitor.shown import MONITOR_COLUMNS

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "watch.md"
CLOCK = 0.02
"""Seconds by which the clock of the scheduler may be mistaken: half of the shortest answer."""

EXAMPLE = re.compile(r"<!-- tests/monitor/test_task_monitor.py runs this -->\n```python\n(.*?)```", re.DOTALL)


def told(number: int, seconds: float = 0.001) -> dict[str, Any]:
    """What a task knows of itself."""
    start = time.time()
    time.sleep(seconds)
    worker = get_worker()
    return {
        "key": str(worker.get_current_task()),
        "worker": worker.address,
        "thread": threading.get_ident(),
        "start": start,
        "stop": time.time(),
        "shift": worker.scheduler_delay,
    }


def wait_for(event: str, number: int) -> int:
    Event(event).wait()
    return number


def fail(message: str) -> None:
    raise ValueError(message)


def add(value: int, number: int) -> int:
    return value + number


def fail_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).touch()
        raise OSError("once")
    return 1


def with_metadata(value: int) -> int:
    task = get_worker().state.tasks[get_worker().get_current_task()]
    task.metadata["notes"] = {"value": value, "more": [1.5, "text"]}
    return value


def told_and_released(client: Client, count: int) -> list[dict[str, Any]]:
    """What so many tasks tell, whose futures are released as they come, each with the most by which Dask shifts it."""
    results, workers = [], client.cluster.scheduler.workers
    for future, result in as_completed(client.map(told, range(count), pure=False), with_results=True):
        results.append(result | {"late": max(abs(workers[result["worker"]].time_delay), abs(result["shift"]))})
        future.release()
    return results


@contextmanager
def watching(watched: Any) -> Iterator[tuple[TaskMonitor, float]]:
    """A monitor, and by how much it may mistake a clock: the shortest answer took no longer than to begin."""
    began = time.perf_counter()
    with TaskMonitor(watched) as monitor:
        yield monitor, CLOCK + (time.perf_counter() - began) / 2


def check_against_the_tasks(
    monitor: TaskMonitor, results: list[dict[str, Any]], clock: float, late: float = PATIENCE
) -> None:
    # Dask shifts times by what it last knew of that, so that they may be wrong by as much
    clock += 2 * max(result["late"] for result in results)
    seen = {task["key"]: task for task in monitor.get_all_tasks() if task["prefix"] == "told"}
    assert seen.keys() == {result["key"] for result in results}
    for result in results:
        task = seen[result["key"]]
        assert (task["state"], task["outcome"], task["type"]) == ("memory", "ok", "dict")
        assert (task["worker"], task["thread"]) == (result["worker"], result["thread"])
        assert result["start"] - late < task["start"] <= result["start"] + clock  # a busy machine begins late
        assert result["stop"] - clock <= task["stop"] < result["stop"] + late
        assert task["duration"] >= result["stop"] - result["start"] - 1e-4
        assert task["nbytes"] > 0


def test_no_finished_task_is_missed(client: Client) -> None:
    with watching(client) as (monitor, clock):
        results = told_and_released(client, 150)
    assert monitor.problems == []
    check_against_the_tasks(monitor, results, clock)
    per_worker = monitor.per_worker().set_index("worker")
    assert per_worker["tasks"].to_dict() == Counter(result["worker"] for result in results)
    assert per_worker["nbytes"].sum() == sum(task["nbytes"] for task in monitor.get_all_tasks())
    assert (per_worker["mean_nbytes"] * per_worker["tasks"]).sum() == pytest.approx(per_worker["nbytes"].sum())


def scheduler_states(client: Client) -> dict[str, str]:
    return client.run_on_scheduler(  # type: ignore[no-any-return]
        lambda dask_scheduler: {str(key): task.state for key, task in dask_scheduler.tasks.items()}
    )


def states_of(snapshot: Any) -> dict[str, str]:
    return {task["key"]: task["state"] for task in snapshot.tasks}


def test_snapshots_show_what_the_scheduler_holds(client: Client) -> None:
    with TaskMonitor(client, interval=0.05) as monitor:
        futures = client.map(wait_for, ["roastcoffea-test"] * 5, range(5), pure=False)
        assert wait_until(lambda: list(scheduler_states(client).values()).count("processing") >= 2)
        waiting = scheduler_states(client)
        assert wait_until(lambda: [states_of(one) for one in monitor.snapshots[-1:]] == [waiting])
        held = monitor.snapshots[-1]
        assert states_of(held) == waiting
        assert held["num_tasks"] == len(held["tasks"]) == 5
        Event("roastcoffea-test").set()
        client.gather(futures)
        finished = scheduler_states(client)
        assert wait_until(lambda: states_of(monitor.snapshots[-1]) == finished)
        done = monitor.snapshots[-1]
        assert {(task["nbytes"], task["type"]) for task in done.tasks} == {(28, "int")}
        del futures
        assert wait_until(lambda: scheduler_states(client) == {})
        assert wait_until(lambda: monitor.snapshot().num_tasks == 0)
    times = [snapshot.time for snapshot in monitor.snapshots]
    assert [round(later - times[0], 6) for later in times] == [round(0.05 * n, 6) for n in range(len(times))]
    assert {snapshot.num_workers for snapshot in monitor.snapshots} == {2}
    assert max(snapshot.num_tasks for snapshot in monitor.snapshots) == 5


def now_on_scheduler(dask_scheduler: Any) -> dict[Any, tuple[str, str | None, int | None]]:
    """Tasks of the scheduler itself, as a snapshot has them."""
    tasks = {}
    for key, task in dask_scheduler.tasks.items():
        workers = [task.processing_on] if task.processing_on else list(task.who_has or ())
        placed = task.state in {"processing", "memory"}
        nbytes = task.nbytes if placed and task.nbytes >= 0 else None
        tasks[key] = (task.state, workers[0].address if placed else None, nbytes)
    return tasks


@pytest.mark.slow
def test_a_watch_is_the_scheduler_s_own_state(client: Client) -> None:
    """In one call on its loop, at ten moments of a run."""
    counts = []
    with TaskMonitor(client) as monitor:
        running = threading.Thread(target=told_and_released, args=(client, 200))
        running.start()
        data: list[Any] = []  # the scheduler tells no plugin of what comes with them
        for snapshot in monitor.watch(0.02, now_on_scheduler):
            found = {task["key"]: (task["state"], task["worker"], task["nbytes"]) for task in snapshot.tasks}
            assert found == snapshot.reply
            assert snapshot.num_tasks == len(found)
            counts.append(dict(snapshot.states))
            data[:] = client.scatter([len(counts)] * 3, hash=False) if len(counts) % 3 else []
            if len(counts) == 10:
                break
        running.join()
    assert monitor.problems == []
    assert len({tuple(each.items()) for each in counts}) > 2


def test_a_watch_ends_with_its_monitor(client: Client) -> None:
    monitor = TaskMonitor(client)
    with pytest.raises(RoastcoffeaError, match="is not running"):
        monitor.watch()
    with pytest.raises(RoastcoffeaError, match="is not running"):
        monitor.snapshot()
    with monitor:
        with pytest.raises(ValueError, match="positive number of seconds"):
            monitor.watch(0)
        watch = monitor.watch(0.01)
        assert next(watch).num_workers == 2
        with pytest.raises(RoastcoffeaError, match="planted"):
            monitor.snapshot(lambda dask_scheduler: fail("planted"))
        assert next(watch).num_workers == 2
    assert list(watch) == []
    assert monitor.problems == []


def test_forms_of_the_constructor(client: Client) -> None:
    scheduler = client.cluster.scheduler
    for monitor in (
        TaskMonitor(client),
        TaskMonitor(scheduler=scheduler),
        TaskMonitor(scheduler, 0.01),
        TaskMonitor(client, interval=0.01),
    ):
        assert (monitor.scheduler, monitor.thread, monitor.running) == (scheduler, None, False)
    with monitor:
        assert monitor.running
    assert not monitor.running
    with pytest.raises(TypeError, match="takes a client or a scheduler"):
        TaskMonitor()
    with pytest.raises(TypeError, match="takes a client or a scheduler"):
        TaskMonitor(client, scheduler=scheduler)


@pytest.mark.slow
def test_data_that_is_scattered(client: Client) -> None:
    with watching(client) as (monitor, clock):
        before = time.time()
        data = client.scatter({f"scattered-{number}": "x" * number for number in range(3)}, hash=False)
        snapshot = monitor.snapshot(now_on_scheduler)
        found = {task["key"]: (task["state"], task["worker"], task["nbytes"]) for task in snapshot.tasks}
        assert found == snapshot.reply
        assert snapshot.states == {"memory": 3}
        unseen = client.scatter({"soon-released": 1}, hash=False)
        client.cancel(list(unseen.values()))
        assert wait_until(lambda: "soon-released" not in scheduler_states(client))
        many = client.scatter({f"many-{number}": number for number in range(1500)}, hash=False)
        assert monitor.snapshot().num_tasks == 1503
        last = client.scatter({"last": 1}, hash=False)
    tasks = {task["key"]: task for task in monitor.get_all_tasks()}
    assert tasks.keys() == data.keys() | many.keys() | unseen.keys() | last.keys()
    assert {task["state"] for task in tasks.values()} == {"memory"}
    assert {task["attempts"] for task in tasks.values()} == {0}
    assert all(before - clock < tasks[key]["created"] < snapshot.time + clock for key in data)
    assert monitor.problems == []


def held_wrongly(snapshot: Any) -> list[Any]:
    """Tasks in memory that a snapshot shows on a worker that does not have them."""
    assert {task["key"] for task in snapshot.tasks} == snapshot.reply.keys()
    return [task for task in snapshot.tasks if task["worker"] not in snapshot.reply[task["key"]]]


def holders(dask_scheduler: Any) -> dict[Any, list[str]]:
    """Workers that have each task."""
    return {key: [worker.address for worker in task.who_has or ()] for key, task in dask_scheduler.tasks.items()}


def test_results_that_move_to_another_worker() -> None:
    """Neither a rebalance nor a worker that is retired comes with a transition."""
    calls: list[Any] = []
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        first, second = client.scheduler_info()["workers"]
        with TaskMonitor(client, on_transition=lambda *words, **_: calls.append(words[1:])) as monitor:
            made = client.map(bytes, [1_000_000 + number for number in range(8)], workers=[first])
            data = client.scatter([bytes(2_000_000)], workers=[first], hash=False)
            client.gather(made)
            before = monitor.snapshot(holders)
            client.replicate(made[:1], n=2)
            client.run_on_scheduler(drop, key=made[0].key, worker=first)
            moved = monitor.snapshot(holders)
            assert held_wrongly(before) == held_wrongly(moved) == []
            assert moved.reply[made[0].key] == [second]
            client.retire_workers([first])
            retired = monitor.snapshot(holders)
            assert held_wrongly(retired) == []
            assert {task["worker"] for task in retired.tasks} == {second}
            assert retired.num_tasks == 9
            assert monitor.problems == []
        tasks = {task["key"]: task for task in monitor.get_all_tasks()}
        assert {tasks[future.key]["worker"] for future in made} == {first}  # that computed it
        assert tasks[data[0].key]["worker"] == second
        assert ("memory", "memory") not in calls


async def drop(dask_scheduler: Any, key: Any, worker: str) -> None:
    await dask_scheduler.delete_worker_data(worker, [key], "roastcoffea-test")


def test_keys_that_are_tuples_stay_tuples(client: Client) -> None:
    key, needs = ("numbers", 0, ("deep", 1.5)), ("sum", 1)
    graph = {key: (list, "ab"), needs: (len, key)}
    with TaskMonitor(client, worker_view=True) as monitor:
        assert client.get(graph, needs) == 2
    keys = {key, needs}
    assert {task["key"] for snapshot in monitor.snapshots for task in snapshot.tasks} <= keys
    assert {task["key"] for task in monitor.get_all_tasks()} == keys
    assert set(monitor.to_dataframe()["key"]) == set(monitor.attempts["key"]) == keys
    assert {view["key"] for view in monitor.worker_tasks} == keys


def test_tasks_that_were_there_before(client: Client) -> None:
    data = client.scatter({"before": [1, 2, 3]})["before"]
    running = client.submit(wait_for, "roastcoffea-before", 1)
    assert wait_until(lambda: "processing" in scheduler_states(client).values())
    with TaskMonitor(client) as monitor:
        first = monitor.snapshots[0].tasks
        assert {task["key"]: task["state"] for task in first} == {"before": "memory", running.key: "processing"}
        Event("roastcoffea-before").set()
        running.result()
    tasks = {task["key"]: task for task in monitor.get_all_tasks()}
    assert tasks[running.key]["outcome"] == "ok"
    assert (tasks["before"]["state"], tasks["before"]["outcome"], tasks["before"]["attempts"]) == ("memory", None, 0)
    del data


@pytest.mark.parametrize("thread", [False, True])
def test_a_scheduler_of_this_process(client: Client, thread: bool) -> None:
    found = []
    clients = set(client.cluster.scheduler.clients)

    def watch() -> None:
        with watching(client.cluster.scheduler) as (monitor, clock):
            found.append((monitor, told_and_released(client, 20), clock))

    if thread:
        runner = threading.Thread(target=watch)
        runner.start()
        runner.join()
    else:
        watch()
    check_against_the_tasks(*found[0])
    assert wait_until(lambda: set(client.cluster.scheduler.clients) == clients)


def test_the_thread_of_the_event_loop_is_refused(client: Client) -> None:
    async def on_the_loop() -> None:
        TaskMonitor(client.cluster.scheduler).start()

    going = asyncio.run_coroutine_threadsafe(on_the_loop(), client.loop.asyncio_loop)
    with pytest.raises(RoastcoffeaError, match="use another thread"):
        going.result(PATIENCE)


def test_what_cannot_be_watched_is_refused(client: Client) -> None:
    async def asynchronous() -> None:
        async with Client(client.scheduler.address, asynchronous=True) as other:
            TaskMonitor(other)

    with pytest.raises(TypeError, match="this one is asynchronous"):
        asyncio.run(asynchronous())
    with pytest.raises(TypeError, match=r"needs a distributed\.Client, not int"):
        TaskMonitor(3)
    with pytest.raises(ValueError, match="positive number of seconds"):
        TaskMonitor(client, interval=0)
    with Client(client.scheduler.address, set_as_default=False) as other:
        pass
    with pytest.raises(ValueError, match="this one is closed"):
        TaskMonitor(other)


def test_errors_and_attempts(client: Client, tmp_path: Path) -> None:
    with TaskMonitor(client) as monitor:
        failed = client.submit(fail, "planted")
        again = client.submit(fail_once, str(tmp_path / "marker"), retries=2)
        assert isinstance(failed.exception(), ValueError)
        assert again.result() == 1
    tasks = {task["key"]: task for task in monitor.get_all_tasks()}
    assert (tasks[failed.key]["state"], tasks[failed.key]["outcome"]) == ("erred", "error")
    assert "planted" in tasks[failed.key]["error"]
    assert tasks[failed.key]["nbytes"] is None
    assert (tasks[again.key]["outcome"], tasks[again.key]["attempts"]) == ("ok", 2)
    assert sorted(monitor.attempts["outcome"]) == ["error", "error", "ok"]


def tasks_there(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def test_start_stop_and_reset(client: Client) -> None:
    monitor = TaskMonitor(client)
    assert (monitor.snapshots, monitor.get_all_tasks(), monitor.worker_tasks) == ([], [], [])
    assert len(monitor.to_dataframe()) == len(monitor.attempts) == len(monitor.per_worker()) == 0
    for numbers in ((1, 2), (3,)):
        monitor.start()
        monitor.start()
        client.gather(client.map(abs, numbers, pure=False))
        monitor.stop()
        monitor.stop()
        client.submit(abs, 7).result()
        # a task that is still there would be seen by the next start
        assert wait_until(lambda: client.run_on_scheduler(tasks_there) == 0)
    assert len(monitor.get_all_tasks()) == 3
    with monitor:
        client.submit(abs, 5, pure=False).result()
        monitor.reset()
        last = client.submit(abs, 6, pure=False)
        last.result()
    assert [task["key"] for task in monitor.get_all_tasks() if task["outcome"]] == [last.key]
    monitor.reset()
    assert (monitor.snapshots, monitor.get_all_tasks(), monitor.problems) == ([], [], [])


def test_a_table_with_units(client: Client) -> None:
    with TaskMonitor(client) as monitor:
        client.gather(client.map(told, range(3), pure=False))
    table = monitor.to_dataframe()
    assert list(table) == list(table.attrs["columns"]) == [column.name for column in MONITOR_COLUMNS]
    assert len(table) == 3
    assert table["duration"].to_numpy() == pytest.approx((table["stop"] - table["start"]).to_numpy())
    assert table.attrs["columns"]["nbytes"].endswith("[B]")
    assert (table["created"] <= table["assigned"]).all()
    assert (table["assigned"] <= table["seen"]).all()
    assert set(table["group"]) == {key.rsplit("-", 1)[0] for key in table["key"]} or set(table["group"]) == {"told"}


@pytest.fixture(scope="module")
def viewed(shared_client: Client) -> Iterator[tuple[TaskMonitor, dict[str, Any]]]:
    """A monitor of a value that one worker makes and the other needs, and of a task that fails."""
    first, second = shared_client.scheduler_info()["workers"]
    with TaskMonitor(shared_client, worker_view=True) as monitor:
        value = shared_client.submit(with_metadata, 3, workers=[first], pure=False)
        with dask.annotate(purpose="a test"):
            needs = shared_client.submit(sum, [value, 4], workers=[second], pure=False, priority=5)
        failed = shared_client.submit(fail, "planted", workers=[first], pure=False)
        assert needs.result() == 7
        assert isinstance(failed.exception(), ValueError)
        going = shared_client.submit(wait_for, "roastcoffea-view", 1, pure=False)
        assert wait_until(lambda: "processing" in scheduler_states(shared_client).values())
        time.sleep(0.05)
    Event("roastcoffea-view", client=shared_client).set()
    names = {"value": value.key, "needs": needs.key, "failed": failed.key, "unfinished": going.key}
    del value, needs, failed, going
    yield monitor, names | {"first": first, "second": second}
    assert wait_until(lambda: scheduler_states(shared_client) == {})


def view_of(viewed: tuple[TaskMonitor, dict[str, Any]], task: str, worker: str = "") -> dict[str, Any]:
    monitor, names = viewed
    held = [view for view in monitor.worker_tasks if view["key"] == names[task]]
    (view,) = [view for view in held if not worker or view["worker"] == names[worker]]
    return view


def test_the_view_of_the_worker_that_computed(viewed: Any) -> None:
    monitor, names = viewed
    assert monitor.problems == []
    made = view_of(viewed, "value", "first")
    assert [state for state, _ in made["transitions"]][:4] == ["waiting", "ready", "executing", "memory"]
    moments = [moment for _, moment in made["transitions"]]
    assert moments == sorted(moments)
    assert moments[0] <= made["start"] <= made["stop"] <= moments[3]
    assert (made["state"], made["type"], made["nbytes"], made["coming_from"]) == ("memory", "int", 28, None)
    assert made["metadata"] == {"notes": {"value": 3, "more": [1.5, "text"]}}
    assert made["dependencies"] == made["waiting_for_data"] == []
    assert made["compute"] == pytest.approx(made["stop"] - made["start"])
    assert isinstance(made["run_id"], int)
    assert (made["suspicious"], made["resource_restrictions"]) == (0, {})
    (told,) = [task for task in monitor.get_all_tasks() if task["key"] == names["value"]]
    assert {part: told[part] for part in ("run_id", "thread", "span", "start")} == {
        part: made[part] if part != "start" else pytest.approx(made["start"], abs=1e-4)
        for part in ("run_id", "thread", "span", "start")
    }


def test_the_view_of_the_worker_that_fetched(viewed: Any) -> None:
    _, names = viewed
    fetched = view_of(viewed, "value", "second")
    assert fetched["who_has"] == [fetched["coming_from"]] == [names["first"]]
    assert [state for state, _ in fetched["transitions"]][:3] == ["fetch", "flight", "memory"]
    assert (fetched["start"], fetched["compute"], fetched["dependents"]) == (None, None, [names["needs"]])
    needs = view_of(viewed, "needs")
    assert needs["dependencies"] == needs["waiting_for_data"] == [names["value"]]
    assert (needs["num_dependencies"], needs["worker"]) == (1, names["second"])
    (transfer,) = [span for span in needs["startstops"] if span["action"] == "transfer"]
    assert transfer["source"] == names["first"]
    assert 0 < needs["transfer"] == transfer["stop"] - transfer["start"]
    assert needs["annotations"]["purpose"] == "a test"
    assert needs["priority"][0] == -5


def test_the_view_of_what_failed_and_of_what_went_on(viewed: Any) -> None:
    failed = view_of(viewed, "failed")
    assert failed["state"] == "error"
    assert "planted" in failed["exception"]
    assert "raise ValueError(message)" in failed["traceback"]
    going = view_of(viewed, "unfinished")
    assert (going["state"], going["stop"]) == ("executing", None)


FIELDS = (
    *("dependencies", "dependents", "priority", "state", "who_has", "coming_from", "waiting_for_data"),
    *("resource_restrictions", "exception", "traceback", "type", "suspicious_count", "startstops", "start_time"),
    *("stop_time", "metadata", "nbytes", "annotations"),
)
"""The worker's own names; `duration`, which newer versions of Dask keep at the scheduler alone, is looked up there."""


def fields_on_worker(keys: list[Any], dask_worker: Any) -> dict[Any, dict[str, Any]]:
    """What a worker itself has of tasks."""
    found = {}
    for key in keys:
        task = dask_worker.state.tasks.get(key)
        if task is not None:
            own = {name: getattr(task, name) for name in FIELDS}
            own |= {name: {other.key for other in own[name]} for name in (*FIELDS[:2], "waiting_for_data")}
            own["type"] = None if task.type is None else task.type.__name__
            own |= {"exception": task.exception_text, "traceback": task.traceback_text}
            own["metadata"] = {name: value for name, value in task.metadata.items() if "roastcoffea" not in name}
            own["startstops"] = [span["action"] for span in task.startstops]
            own["delay"] = dask_worker.scheduler_delay
            found[key] = own
    return found


@pytest.fixture
def copies_stay(client: Client) -> Iterator[None]:
    """Dask drops second copies of results when it looks at memory, every two seconds."""
    client.amm.stop()
    yield
    client.amm.start()


@pytest.mark.usefixtures("copies_stay")
def test_the_fields_are_those_of_the_worker_itself(client: Client) -> None:
    first, second = client.scheduler_info()["workers"]
    with TaskMonitor(client, worker_view=True, run_spec=40) as monitor:
        client.submit(with_metadata, 1, workers=[first], pure=False).result()
        value = client.submit(with_metadata, 3, workers=[first], pure=False)
        value.result()
        expected = client.run_on_scheduler(
            lambda dask_scheduler: dask_scheduler.task_prefixes["with_metadata"].duration_average
        )
        timed = client.submit(with_metadata, 4, workers=[first], pure=False)
        timed.result()
        with dask.annotate(purpose="a test"):
            needs = [client.submit(sum, [value, 4], workers=[each], pure=False) for each in (first, second)]
        client.gather(needs)
        failed = client.submit(fail, "planted", workers=[first], pure=False)
        assert failed.exception() is not None
        keys = [future.key for future in (value, timed, *needs, failed)]
        truth = client.run(fields_on_worker, keys)
    views = {(view["worker"], view["key"]): view for view in monitor.worker_tasks}
    compared = 0
    for worker, tasks in truth.items():
        for key, own in tasks.items():
            view = views[worker, key]
            for name in ("dependencies", "dependents"):
                assert set(view[name]) == own[name]
                assert view[f"num_{name}"] == len(own[name])
            assert list(view["priority"] or ()) == list(own["priority"] or ())
            assert view["state"] == own["state"]
            for name in ("metadata", "nbytes", "suspicious_count"):
                assert view[name] == own[name]
            assert view["type"] == own["type"]
            for name in ("exception", "traceback"):
                assert (view[name] or "") == own[name]
            for name in ("resource_restrictions", "annotations"):
                assert (view[name] or {}) == json.loads(json.dumps(own[name] or {}))  # a list stands for a tuple
            assert set(view["who_has"]) >= own["who_has"]
            assert [span["action"] for span in view["startstops"]] == own["startstops"]
            assert own["waiting_for_data"] == set()
            if own["start_time"] is not None:
                assert view["start_time"] == pytest.approx(own["start_time"], abs=1)
                assert view["start_time"] <= view["start"] <= view["stop"] == view["stop_time"]
            compared += 1
    assert compared >= 6
    assert set(views[first, value.key]["dependents"]) == {needs[0].key}
    assert views[second, value.key]["coming_from"] == first
    assert views[second, needs[1].key]["waiting_for_data"] == [value.key]
    assert views[first, timed.key]["duration"] == pytest.approx(expected)
    assert views[first, timed.key]["compute"] > 0
    assert views[first, timed.key]["run_spec"] == "with_metadata(4)"
    assert len(views[first, failed.key]["run_spec"]) <= 40


def test_dependents_are_kept_until_the_end_of_the_stay(client: Client) -> None:
    """The worker lets go of a value that nobody keeps, long after it came to memory."""
    first, _ = client.scheduler_info()["workers"]
    with TaskMonitor(client, worker_view=True) as monitor:
        value = client.submit(with_metadata, 3, workers=[first], pure=False)
        needs = [client.submit(add, value, number, workers=[first], pure=False) for number in range(3)]
        client.gather(needs)
        keys = {future.key for future in needs}
        made = value.key
        del needs, value
        assert wait_until(lambda: monitor.snapshot().num_tasks == 0)
        assert wait_until(lambda: not client.run(lambda dask_worker: len(dask_worker.state.tasks))[first])
    views = {view["key"]: view for view in monitor.worker_tasks}
    assert (set(views[made]["dependents"]), views[made]["num_dependents"]) == (keys, 3)
    assert [views[key]["num_dependents"] for key in keys] == [0, 0, 0]


@pytest.mark.slow
def test_views_are_complete(client: Client) -> None:
    with TaskMonitor(client, worker_view=True) as monitor:
        results = told_and_released(client, 50)
    assert monitor.problems == []
    computed = [view for view in monitor.worker_tasks if view["start"] is not None]  # others were stolen
    assert {(view["key"], view["worker"]) for view in computed} == {(told["key"], told["worker"]) for told in results}
    assert len(computed) == 50
    assert all(view["start"] <= view["stop"] and view["nbytes"] > 0 for view in computed)


def test_what_is_dropped_is_told(client: Client) -> None:
    def without_room(dask_scheduler: Any) -> None:
        for name, plugin in dask_scheduler.plugins.items():
            if "roastcoffea" in name:
                plugin.log.cap = -1

    with TaskMonitor(client) as monitor:
        client.run_on_scheduler(without_room)
        futures = client.map(abs, range(10), pure=False)
        client.gather(futures)
        keys = [future.key for future in futures]
        transitions = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.story(*keys)))
    dropped = [int(problem.split()[0]) for problem in monitor.problems if "states of tasks were dropped" in problem]
    assert dropped == [transitions]


@pytest.mark.slow
def test_the_plugin_goes_with_its_client(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        monitor = TaskMonitor(other, worker_view=True)
        monitor.start()
        client.submit(abs, 1, pure=False).result()
        assert len(monitor.get_all_tasks()) == 1
        assert len(what_stays(client)) > 0
    assert wait_until(lambda: what_stays(client) == [])
    monitor.stop()
    assert len(monitor.get_all_tasks()) == 1
    assert any("the connection to the cluster was lost" in problem for problem in monitor.problems)


@pytest.fixture(scope="module")
def analysed(shared_client: Client, sample: Any) -> Any:
    with MetricsCollector(shared_client) as collector, TaskMonitor(shared_client) as monitor:
        _, report = runner_for(shared_client, 1000)(sample, processor_instance=Jets())
    return monitor, collector.measurement, report


def test_tasks_joined_with_their_chunks(analysed: Any) -> None:
    monitor, measurement, _ = analysed
    joined = monitor.joined(measurement)
    assert len(joined) == 16
    assert set(joined["prefix"]) == {"Jets"}
    assert joined.notna().all().all()
    truth = measurement.chunks.set_index("key")
    for row in joined.itertuples():
        chunk = truth.loc[row.key]
        for name in ("dataset", "file", "entry_start", "entry_stop", "events", "worker"):
            assert getattr(row, name) == chunk[name]
        assert row.bytes == chunk["coffea_bytes_read"] > 0
        assert abs(row.start - chunk["start"]) < PATIENCE  # a busy machine begins late


def test_comparison_with_the_report(analysed: Any) -> None:
    monitor, measurement, report = analysed
    chunks, totals = monitor.compare_with_report(report, measurement)
    of_tasks = totals.set_index("quantity")["tasks"]
    assert of_tasks.pop("result_bytes") == chunks["output_bytes"].sum()
    assert of_tasks.to_dict() == pytest.approx(
        {name: report[name] for name in ("chunks", "entries", "bytesread", "processtime")}
    )
    assert totals["difference"].abs().max() < 1e-6
    assert (chunks["bytes_per_event"] * chunks["events"]).sum() == pytest.approx(report["bytesread"])
    assert (chunks["throughput"] * chunks["seconds"]).sum() == pytest.approx(report["bytesread"])
    assert (chunks["output_bytes"] > 0).all()
    lacking = monitor.compare_with_report({"chunks": 16}, measurement).totals
    assert lacking["report"].notna().tolist() == lacking["difference"].notna().tolist() == [True, *[False] * 4]
    for other in ({}, {"a": 1}):
        with pytest.raises(ValueError, match="and none of chunks, entries, bytesread"):
            monitor.compare_with_report(other, measurement)


def test_what_was_not_recorded_is_not_zero(analysed: Any, client: Client) -> None:
    _, _, report = analysed
    never = TaskMonitor(client)
    chunks, totals = never.compare_with_report(report)
    assert len(chunks) == 0
    assert totals["tasks"].isna().all()
    assert totals.attrs["missing"].keys() == set(totals["quantity"])
    with never:
        client.submit(abs, -1, pure=False).result()
    totals = never.compare_with_report(report).totals.set_index("quantity")
    assert totals["tasks"].notna().to_dict() == {name: name == "chunks" for name in totals.index}
    assert totals["tasks"]["chunks"] == 0
    assert "pass the collector" in totals.attrs["missing"]["bytesread"]
    assert "recorded no chunk" in totals.attrs["missing"]["entries"]


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"run_spec": "a"}, TypeError, "a number of characters, not 'a'"),
        ({"run_spec": 2.5}, TypeError, "a number of characters, not 2.5"),
        ({"run_spec": -5}, ValueError, "a number of characters, not -5"),
        ({"run_spec": True, "worker_view": False}, ValueError, "requires worker_view=True"),
    ],
)
def test_what_run_spec_may_be(client: Client, settings: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        TaskMonitor(client, **{"worker_view": True, **settings})


@pytest.mark.slow
def test_the_example_of_the_guide(client: Client, sample: Any, capsys: Any) -> None:
    (example,) = EXAMPLE.findall(GUIDE.read_text())
    names = {
        "client": client,
        "runner": runner_for(client, 4000, savemetrics=False),
        "fileset": sample,
        "processor": Jets(),
    }
    exec(example, names)
    assert names["monitor"].problems == names["collector"].measurement.problems == []
    assert names["totals"]["difference"].abs().max() < 1e-6
    assert "('waiting'," in capsys.readouterr().out


def kill_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


@pytest.mark.slow
def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        with TaskMonitor(client, 0.002, worker_view=True) as monitor:
            killing = client.submit(kill_once, str(tmp_path / "marker"))
            client.gather(client.map(told, range(20), pure=False))
            assert killing.result() == 1
            client.wait_for_workers(2, timeout=PATIENCE)
        (task,) = [task for task in monitor.get_all_tasks() if task["key"] == killing.key]
        lost = [problem for problem in monitor.problems if "was lost: its view of tasks may lack" in problem]
        assert len(lost) == 1
        assert (task["suspicious"], task["attempts"], task["outcome"]) == (1, 2, "ok")
        assert {snapshot.num_workers for snapshot in monitor.snapshots} >= {1, 2}
        assert what_stays(client) == []
