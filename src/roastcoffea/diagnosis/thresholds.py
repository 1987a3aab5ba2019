"""From where on something is said: thresholds of findings, and of the sizes that they propose, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEAST: Final = 0.05
"""Share of the wall time that a finding must be able to win: less than that, repeats of one run differ."""

SHORTEST: Final = 0.1
"""Seconds of wall time that a finding must be able to win: nobody changes an analysis for less."""

LEAST_OF: Final[Mapping[str, float]] = {
    # Dask's event loop, the garbage collector and the kernel take so much from the threads of any run
    "wait": 0.10,
    # compressed files save more waiting than that, wherever storage is not on the same machine
    "decompression": 0.25,
    # arrays have to be made of what is read
    "interpretation": 0.25,
    # a client needs its time to prepare and to merge, and short runs have no more of it than long ones
    "client": 0.10,
    # the last round of chunks ends together only by luck
    "tail": 0.10,
    # each file has to be opened once
    "metadata": 0.10,
    # the way to a worker and back takes milliseconds
    "scheduler": 0.10,
}
"""Causes of which a share that is larger is still what a healthy run has, and why."""

BUSY_INTERPRETER: Final = 0.7
"""CPU of a process divided by the time of its chunks from which on its threads wait for each other's interpreter."""

LONGEST_LINE: Final = 120
"""Letters of an error that are shown."""

MOST: Final = 0.9
"""A section inside of another is named in its place where it waited for so much of the other's time."""

FEW: Final = 0.1
"""First chunks of threads are told apart where they took more than that share of all opening."""

LEAST_OF_CLIENT: Final = 0.01
"""Share of all thread time from which on a part of the client's time is named."""

TARGET: Final = 0.05
"""Share of a chunk's time that opening and scheduling should take, in the chunk sizes that are proposed."""

LARGER: Final = 1.5
"""Factor by which a proposed chunk size is larger at least: less changes little."""

ROUNDS_OF_CHUNKS: Final = 3
"""Chunks for each thread that a proposed chunk size leaves at least, so that all threads end together."""
