"""A scheduler of stand-ins with an observer, on a clock that tests move."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import wait_until
from stand_ins import Scheduler, Task

from roastcoffea.log.journals import journals_in
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.recording.facility import observer as observers
from roastcoffea.recording.facility.index import recorded_in
from roastcoffea.recording.facility.observer import Observer
from roastcoffea.recording.facility.recorder import NAME, Recorder

BEGINNING = 1_700_000_000.0
FILE = "root://xrootd-3.example.org//store/user/jane/secret-name.root"


class Observed:
    """Feeds an observer with what distributed tells plugins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int = 2) -> None:
        self.now = BEGINNING
        monkeypatch.setattr(observers, "time", SimpleNamespace(time=lambda: self.now))
        self.scheduler: Any = Scheduler(workers)
        self.scheduler.queued = self.scheduler.unrunnable = ()
        self.worker = next(iter(self.scheduler.workers.values()))
        self.closed: list[bool] = []
        self.observer = Observer(self.scheduler, lambda: self.closed.append(True))

    def pass_time(self, seconds: int) -> None:
        """Let seconds pass, in which the workers are sampled."""
        for _ in range(seconds):
            self.now += 1
            self.observer.tick(self.now)

    def chunk(self, number: int, call: str = "call-1", collector: str = "c-1", **options: Any) -> Task:
        """A task of a Runner call that a collector measures."""
        mark = {"collectors": [collector], "step": "processing", "prefix": "Dijet", "call": call}
        task = Task(f"Dijet-{number}", self.worker, "Dijet", number, {ANNOTATION: mark}, client="Client-1", **options)
        self.submit(task)
        return task

    def preprocessed(self, number: int, call: str = "call-1") -> None:
        """Have a task of preprocessing of a Runner call end."""
        mark = {"collectors": ["c-1"], "step": "preprocessing", "prefix": "metadata", "call": call}
        task = Task(f"metadata-{number}", self.worker, "metadata", number, {ANNOTATION: mark}, client="Client-1")
        self.submit(task)
        self.end(task, 1.0)
        self.forget(task)

    def submit(self, task: Task) -> None:
        self.scheduler.tasks[task.key] = task
        self.observer.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
        self.observer.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")

    def end(self, task: Task, seconds: float = 10.0, state: str = "memory", reason: str = "", **record: Any) -> None:
        """End an attempt that took these seconds, with this record."""
        task.start, task.stop = self.now - seconds, self.now
        if record:
            task.metadata = {METADATA_KEY: packed_records([made_record(task.run_id, seconds) | record])}
        known = task.told() if state == "memory" else {}
        self.observer.transition(task.key, "processing", state, stimulus_id=reason or "task-finished-1", **known)

    def forget(self, task: Task) -> None:
        self.observer.transition(task.key, "released", "forgotten", stimulus_id="client-releases-keys-1")
        self.scheduler.tasks.pop(task.key, None)


def made_record(number: int, seconds: float) -> dict[str, Any]:
    """Record of a chunk of 1000 events; half of its time is CPU."""
    return {
        "id": number,
        "dataset": "ttbar",
        "file": FILE,
        "tree": "Events",
        "outcome": "ok",
        "events": 1000,
        "wall_seconds": 0.9 * seconds,
        "cpu_seconds": 0.5 * seconds,
        "compute_seconds": 0.5 * seconds,
        "read_seconds": 0.3 * seconds,
        "open_seconds": 0.1 * seconds,
        "bytes_requested": 100,
        "bytes_payload": 80,
        "bytes_metadata": 20,
    }


def recorded(observed: Observed, folder: Path) -> Recorder:
    """A run that ended, with metered chunks, and one that goes on, without."""
    observed.observer.tokens[NAME] = "token"
    observed.scheduler.plugins = {}
    recorder = Recorder(observed.scheduler, observed.observer, folder)
    for number in range(4):
        task = observed.chunk(number, "call-1")
        observed.pass_time(1)
        observed.end(task, 36.0, call="call-1", thread=number, worker=observed.worker.address, key=task.key)
    lost = observed.chunk(9, "call-1")
    observed.end(lost, 1.0, state="released", reason="handle-worker-cleanup-1")
    observed.forget(lost)
    observed.pass_time(40)
    recorder.tick(observed.now)
    observed.end(observed.chunk(10, "call-2"), 9.0)
    observed.pass_time(1)
    recorder.tick(observed.now)
    assert wait_until(lambda: len(journals_in(folder)[0]) == 3)  # threads write them
    assert wait_until(lambda: any(recorded_in(one).run.get("ended") for one in journals_in(folder)[0]))
    return recorder
