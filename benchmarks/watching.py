"""What watching costs a scheduler in a process of its own, and whether what is seen is what the scheduler has.

`python benchmarks/monitor.py --watch` runs it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from distributed import Client, as_completed

from roastcoffea import TaskMonitor
from roastcoffea.backends.deployment import Connection
from roastcoffea.monitor import shown as looks

WORKERS: Final = 2
MOMENTS: Final = 40
INTERVAL: Final = 0.1
RESAMPLES: Final = 10_000
HIGHEST_SHARE: Final = 0.02
"""What our callbacks may take of the scheduler's CPU time."""

PLAIN: Final = "plain"
AGAIN: Final = "plain again"
LOOKS: Final = "roastcoffea watch"
MONITOR: Final = "TaskMonitor.watch"


class Cost(NamedTuple):
    """Of one run: wall time, CPU of the scheduler's process, and CPU of our code in it (seconds).

    `callbacks` is what Dask calls for each transition of a task, `answers` what a client asks for.
    """

    wall: float
    scheduler: float
    callbacks: float
    answers: float


# on the scheduler


def begin(dask_scheduler: Any) -> float:
    """Time what our plugin does, where there is one, from now on; give the process's CPU time."""
    spent = dask_scheduler.roastcoffea_spent = {"callbacks": 0.0, "answers": 0.0}
    began, looks_at_clock = time.thread_time(), 10_000
    for _ in range(looks_at_clock):
        time.thread_time()
    of_clock = (time.thread_time() - began) / looks_at_clock

    def timed(function: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent[what] += time.thread_time() - began - of_clock

        return call

    for name, plugin in dask_scheduler.plugins.items():
        if name.startswith("roastcoffea"):
            plugin.transition = timed(plugin.transition, "callbacks")
            plugin.drain = timed(plugin.drain, "answers")
    return time.process_time()


def end(dask_scheduler: Any) -> dict[str, float]:
    """CPU time of our code since `begin`."""
    return dict(dask_scheduler.__dict__.pop("roastcoffea_spent"))


def timed_counts(dask_scheduler: Any) -> Any:
    """What a look asks for, timed."""
    began = time.thread_time()
    counts = {
        prefix.name: (dict(prefix.states), prefix.state_counts["memory"])
        for prefix in dask_scheduler.task_prefixes.values()
    }
    dask_scheduler.roastcoffea_spent["answers"] += time.thread_time() - began
    return time.time(), len(dask_scheduler.workers), counts


def states_of_tasks(dask_scheduler: Any) -> dict[Any, str]:
    """The scheduler's own tasks."""
    return {key: task.state for key, task in dask_scheduler.tasks.items()}


def counts_and_tasks(dask_scheduler: Any) -> Any:
    """What Dask counts, and the same counted from its tasks, in one call."""
    tasks: dict[str, Counter[str]] = {}
    for task in dask_scheduler.tasks.values():
        tasks.setdefault(task.prefix.name, Counter())[task.state] += 1
    counts = {
        prefix.name: {state: count for state, count in prefix.states.items() if count and state != "forgotten"}
        for prefix in dask_scheduler.task_prefixes.values()
    }
    return {name: states for name, states in counts.items() if states}, {
        name: dict(each) for name, each in tasks.items()
    }


# here


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Client]:
    """A client of a scheduler and workers, each in a process of its own."""
    file = folder / "scheduler.json"
    place = ("--host", "127.0.0.1", "--dashboard-address", ":0", "--scheduler-file", str(file))
    worker = ("worker", *place, "--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
    processes = [subprocess.Popen([sys.executable, "-m", "dask", "scheduler", *place, "--port", "0"], **quiet())]
    try:
        while not file.exists():
            time.sleep(0.05)
        processes += [subprocess.Popen([sys.executable, "-m", "dask", *worker], **quiet()) for _ in range(WORKERS)]
        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(WORKERS)
            yield client
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def quiet() -> dict[str, Any]:
    """Scheduler and workers import this module, and print nothing."""
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": dict(os.environ) | path}


def short(number: int) -> int:
    """Take a millisecond."""
    time.sleep(1e-3)
    return number


def run(client: Client, tasks: int) -> None:
    """Compute so many tasks, and release each as it ends."""
    total = 0
    for future, number in as_completed(client.map(short, range(tasks), pure=False), with_results=True):
        total += number
        future.release()
    if total != tasks * (tasks - 1) // 2:
        raise RuntimeError("a task gave another result, or none")


def cost(client: Client, arm: str, tasks: int) -> Cost:
    """Run once, watched in this way."""
    stopped = threading.Event()
    with TaskMonitor(client) if arm == MONITOR else contextlib.nullcontext() as monitor:
        before = client.run_on_scheduler(begin)
        watch: Any = ()
        if arm == MONITOR:
            watch = monitor.watch(INTERVAL)
        elif arm == LOOKS:
            watch = looks.looks(client, INTERVAL)
        watcher = threading.Thread(target=lambda: next((1 for _ in watch if stopped.is_set()), None))
        began = time.perf_counter()
        watcher.start()
        run(client, tasks)
        wall = time.perf_counter() - began
        after = client.run_on_scheduler(time.process_time)
        stopped.set()
        watcher.join()
        ours = client.run_on_scheduler(end)
    return Cost(wall, after - before, **ours)


def equal_moments(client: Client, tasks: int) -> dict[str, int]:
    """At how many of 40 moments of a run what is seen is what the scheduler has, in one call on its loop."""
    equal = dict.fromkeys((LOOKS, MONITOR), 0)
    connection = Connection(client)
    running = threading.Thread(target=run, args=(client, tasks))
    with TaskMonitor(client) as monitor:
        running.start()
        for moment, snapshot in enumerate(monitor.watch(INTERVAL, states_of_tasks), 1):
            equal[MONITOR] += {task["key"]: task["state"] for task in snapshot.tasks} == snapshot.reply
            counted, tasks_there = connection.answer(counts_and_tasks, {})
            equal[LOOKS] += counted == tasks_there
            if moment == MOMENTS:
                break
        running.join()
    return equal


def main(rounds: int, tasks: int, seed: int) -> None:
    """Measure, and print."""
    random = np.random.default_rng(seed)
    looks.counts_now = timed_counts  # what runs on the scheduler then is timed
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    print(f"{tasks} tasks of 1 ms on {WORKERS} workers, a look each {INTERVAL:g} s, {rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="roastcoffea-watching-") as folder, cluster(Path(folder)) as client:
        run(client, tasks // 10)
        for arm, moments in equal_moments(client, tasks).items():
            print(f"{arm}: equal to the scheduler's own tasks at {moments} of {MOMENTS} moments")
        arms = [PLAIN, AGAIN, LOOKS, MONITOR]
        costs = [{arm: cost(client, arm, tasks) for arm in random.permutation(arms).tolist()} for _ in range(rounds)]
    chosen = random.integers(rounds, size=(RESAMPLES, rounds))
    print(f"\n{'medians':22}{'wall':>10}{'scheduler':>12}{'callbacks':>20}{'answers':>20}   wall ratio to plain [95 %]")
    for arm in arms:
        of_arm = np.array([each[arm] for each in costs])
        wall, scheduler, *ours = np.median(of_arm, axis=0)
        shares = np.median(of_arm[:, 2:] / of_arm[:, 1:2], axis=0)
        ratios = of_arm[:, 0] / np.array([each[PLAIN].wall for each in costs])
        low, high = np.quantile(np.median(ratios[chosen], axis=1), [0.025, 0.975])
        row = f"{arm:22}{wall:8.3f} s{scheduler:10.3f} s"
        row += "".join(f"{1e3 * each:9.2f} ms{100 * share:6.2f} %" for each, share in zip(ours, shares, strict=True))
        print(f"{row}   {np.median(ratios):.3f} [{low:.3f}, {high:.3f}]")
        if arm in {LOOKS, MONITOR}:
            word = "kept" if shares[0] <= HIGHEST_SHARE else "MISSED"
            print(f"{'':22}callbacks at most {HIGHEST_SHARE:.0%} of the scheduler's CPU: {word}")
