"""Clocks of a simulation, and the storage that its readers share."""

from __future__ import annotations

from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Integers, Numbers

INFINITY: Final = np.inf


class SharedStorage:
    """Readers share storage equally; up to `streams` of them, each has its full rate.

    `reader` has their jobs as a heap, by what storage will have `served_to` each stream when they end. `Simulation`
    sets all attributes, because compiled classes do not call the constructor of another one.
    """

    streams: float
    clock: Numbers
    heap: Integers
    place: Integers
    storage_clock: int
    reader: Integers
    served_to: Numbers
    began: Numbers
    readers: int
    served: float
    served_at: float
    reading: float

    def _set_clock(self, which: int, time: float) -> None:
        """Set the next moment of a clock: move it up until none above is later, then down until none is earlier."""
        clock, heap, place = self.clock, self.heap, self.place
        clock[which] = time
        at = place[which]
        while at > 0 and clock[heap[(at - 1) >> 1]] > time:
            heap[at] = heap[(at - 1) >> 1]
            place[heap[at]] = at
            at = (at - 1) >> 1
        while 2 * at + 1 < len(heap):
            below = 2 * at + 1
            if below + 1 < len(heap) and clock[heap[below + 1]] < clock[heap[below]]:
                below += 1
            if clock[heap[below]] >= time:
                break
            heap[at] = heap[below]
            place[heap[at]] = at
            at = below
        heap[at] = which
        place[which] = at

    def _serve(self, time: float) -> None:
        """Let storage serve until now: each reader gets the same."""
        self.served += (time - self.served_at) * self._stream_share()
        self.served_at = time

    def _stream_share(self) -> float:
        """Rate of each reader relative to that of one alone."""
        return 1.0 if self.readers <= self.streams else self.streams / self.readers

    def _read(self, job: int, seconds: float, time: float) -> None:
        """Start reading: move the job up in the heap until none above ends later."""
        self._serve(time)
        reader, end = self.reader, self.served_to
        end[job] = self.served + seconds
        self.began[job] = time
        at = self.readers
        self.readers += 1
        while at > 0 and end[reader[(at - 1) >> 1]] > end[job]:
            reader[at] = reader[(at - 1) >> 1]
            at = (at - 1) >> 1
        reader[at] = job
        self._look_at_storage()

    def _look_at_storage(self) -> None:
        """Set when the next reading ends."""
        time = INFINITY
        if self.readers > 0:
            left = self.served_to[self.reader[0]] - self.served
            time = self.served_at + max(left, 0.0) / self._stream_share()
        self._set_clock(self.storage_clock, time)

    def _first_reader(self, time: float) -> int:
        """End the first reading, and return its job: move the last one of the heap down from its place."""
        self._serve(time)
        reader, end = self.reader, self.served_to
        job: int = reader[0]
        self.readers -= 1
        last, at = reader[self.readers], 0
        while 2 * at + 1 < self.readers:
            below = 2 * at + 1
            if below + 1 < self.readers and end[reader[below + 1]] < end[reader[below]]:
                below += 1
            if end[reader[below]] >= end[last]:
                break
            reader[at] = reader[below]
            at = below
        reader[at] = last
        self.reading += time - self.began[job]
        self._look_at_storage()
        return job
