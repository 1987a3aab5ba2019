"""Processes of an analysis on this host in a journal: their states are written as they change, and read again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Final

from roastcoffea.backends.processes import Sample, Step, WatchedProcess

PROCESSES: Final = "processes"
"""Kind of entries of a journal with new states of processes and steps."""


class ProcessJournal:
    """What a journal has of processes and steps so far."""

    def __init__(self) -> None:
        self._states: list[tuple[Any, ...]] = []
        self._samples: list[int] = []
        self._steps: list[tuple[Any, ...]] = []

    def news(self, processes: Sequence[WatchedProcess], steps: Sequence[Step]) -> Iterator[tuple[str, bytes]]:
        """An entry with what has changed; none if nothing has."""
        changed = [state for number, one in enumerate(list(processes)) if (state := self._changed(number, one))]
        steps_now = [*map(astuple, list(steps))]
        new_steps = None if steps_now == self._steps else steps_now
        self._steps = steps_now
        if changed or new_steps is not None:
            yield PROCESSES, json.dumps({"changed": changed, "steps": new_steps}).encode()

    def _changed(self, number: int, process: WatchedProcess) -> list[Any] | None:
        """State of a process that the journal does not have, with its new samples."""
        if number == len(self._states):
            self._states.append(())
            self._samples.append(0)
        state = (process.is_tracker, process.seen, process.gone, process.cpu_seconds)
        samples = list(process.samples)
        if (state, len(samples)) == (self._states[number], self._samples[number]):
            return None
        first = self._samples[number] if self._samples[number] <= len(samples) else 0  # they were merged meanwhile
        self._states[number], self._samples[number] = state, len(samples)
        identity = (process.pid, process.parent, process.born)
        return [number, identity, state, first, samples[first:]]


def remember(entry: Mapping[str, Any], processes: list[WatchedProcess], steps: list[Step]) -> None:
    """Take an entry into the lists of what is known so far."""
    for number, identity, (is_tracker, *state), first, samples in entry["changed"]:
        if number == len(processes):
            processes.append(WatchedProcess.remembered(*identity))
        process = processes[number]
        process.is_tracker = is_tracker
        del process.samples[first:]
        process.remember(*state, samples=[Sample(*sample) for sample in samples])
    if entry["steps"] is not None:
        names = [field.name for field in fields(Step)]
        steps[:] = [Step(**dict(zip(names, step, strict=True))) for step in entry["steps"]]
