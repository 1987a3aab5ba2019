"""Sampled stacks, the tree of their frames, and formats of flame graph viewers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from roastcoffea.metrics.phases import COMPUTING, DECODING, READING, TROUBLE, Family
from roastcoffea.records.chunks import STATES
from roastcoffea.sheets.sheet import absence

UNKNOWN: Final = "unknown"
ALL_STATES: Final = (*STATES, UNKNOWN)
WORDS: Final = {"core": "on a core", "contention": "contention", "blocked": "blocked", UNKNOWN: "state unknown"}
STATE_SECONDS: Final = tuple(f"{state}_seconds" for state in STATES)

READERS: Final = ("uproot/", "fsspec/", "fsspec_xrootd/", "XRootD/", "pyarrow/parquet/", "pyarrow/dataset.py")
"""Files of libraries that are blocked only while they wait for storage, unless they decode."""

DECODERS: Final = (
    "uproot/compression.py",
    "uproot/interpretation/",
    "uproot/models/TBasket.py",
    "uproot/models/RNTuple.py",
)
"""Files of uproot that decompress and interpret."""


CALLBACKS: Final = ("_gc_callback", "__del__")
"""Functions that the interpreter calls in the middle of others: Dask's, when garbage is collected, and finalizers."""


class Place(NamedTuple):
    """Where a thread was: a line of a function."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function

    @property
    def name(self) -> str:
        """Name of the function without its class and module."""
        return self.function.rpartition(".")[2]

    @property
    def package(self) -> str:
        """Package of an installed function."""
        return self.file.partition("/")[0].removesuffix(".py")


class Stack(NamedTuple):
    """Frames from process() down, with samples and seconds by state."""

    dataset: str | None
    places: tuple[Place, ...]
    samples: int
    seconds: float
    states: Mapping[str, float]
    chunk: int | None = None
    """Its attempt, if that is the longest of the dataset."""

    @property
    def runnable(self) -> float:
        """Seconds on a core or waiting for one: on a busy host, these are more exact shares of CPU time."""
        return self.seconds - self.states["blocked"]

    @property
    def decodes(self) -> bool:
        """Whether it decompresses or interprets."""
        return any(place.file.startswith(DECODERS) for place in self.places)

    def families(self) -> Iterator[tuple[Family, float]]:
        """Seconds by family of classes of the time ledger, as its frames and states tell them."""
        decodes, reads = self.decodes, any(place.file.startswith(READERS) for place in self.places)
        yield DECODING if decodes else COMPUTING, self.states["core"] + self.states[UNKNOWN]
        yield READING if reads and not decodes else TROUBLE, self.states["blocked"]
        yield TROUBLE, self.states["contention"]


@dataclass(slots=True, kw_only=True)
class Node:
    """A frame of the tree: a place called from that of its parent.

    Attributes
    ----------
    place : Place
        Function, file and line.
    seconds : float
        Thread time in it, including its calls.
    self_seconds : float
        Thread time in itself, without its calls.
    samples : int
        Samples with a thread in it or in its calls.
    states : dict
        `seconds` by state: "core", "contention", "blocked", "unknown".
    self_states : dict
        `self_seconds` by state.
    datasets : dict
        `seconds` by dataset.
    families : dict
        `seconds` by family of classes of the time ledger.
    children : list of Node
        Frames it called, most time first.
    """

    place: Place
    seconds: float = 0.0
    self_seconds: float = 0.0
    samples: int = 0
    states: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ALL_STATES, 0.0))
    self_states: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ALL_STATES, 0.0))
    datasets: dict[str | None, float] = field(default_factory=partial(defaultdict, float))
    families: dict[Family, float] = field(default_factory=partial(defaultdict, float))
    children: list[Node] = field(default_factory=list)

    def add(self, stack: Stack, *, itself: bool) -> None:
        """Add a stack that passes through this frame, or ends in it."""
        self.seconds += stack.seconds
        self.samples += stack.samples
        self.datasets[stack.dataset] += stack.seconds
        for family, seconds in stack.families():
            self.families[family] += seconds
        for state, seconds in stack.states.items():
            self.states[state] += seconds
            self.self_states[state] += seconds * itself
        self.self_seconds += stack.seconds * itself


ROOT: Final = Place("process()", "", 0)
"""First frame of all stacks."""


def tree_of(stacks: Iterable[Stack]) -> Node:
    """Frames of stacks from process() down, with their calls."""
    root = Node(place=ROOT)
    nodes: dict[tuple[Place, ...], Node] = {(): root}
    for stack in stacks:
        for depth in range(len(stack.places) + 1):
            path = stack.places[:depth]
            if path not in nodes:
                nodes[path] = Node(place=path[-1])
                nodes[path[:-1]].children.append(nodes[path])
            nodes[path].add(stack, itself=depth == len(stack.places))
    for node in nodes.values():
        node.children.sort(key=lambda child: -child.seconds)
    return root


def stacks_of(rows: pa.Table) -> Iterator[Stack]:
    """Stacks with any time of a table with PROFILE_COLUMNS, summed over Runner calls.

    What the interpreter calls in the middle of a function is time of that function.
    """
    sums: dict[tuple[Any, ...], list[float]] = {}
    names = ("samples", "seconds", *STATE_SECONDS)
    for row in rows.to_pylist():
        places = tuple(map(Place, row["functions"], row["files"], row["lines"]))
        called = next((at for at, place in enumerate(places) if at and place.name in CALLBACKS), len(places))
        known = sums.setdefault((row["dataset"], places[:called], row["chunk"]), [0.0] * len(names))
        for at, name in enumerate(names):
            known[at] += row[name]
    for (dataset, places, chunk), (samples, seconds, *states) in sums.items():
        if not seconds:
            continue
        unknown = max(seconds - sum(states), 0.0)
        # a rounding difference is no time in an unknown state
        by_state = dict(zip(ALL_STATES, (*states, unknown if unknown > 1e-3 * max(samples, 1) else 0.0), strict=True))
        yield Stack(dataset, places, int(samples), seconds, by_state, chunk)


MICROSECONDS: Final = 1_000_000
SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
NO_DATASET: Final = "(no dataset)"


def collapsed(stacks: Sequence[Stack], absent: str | None = None) -> str:
    """One line per stack: its frames from the dataset down, and microseconds; or why there are none."""
    if absent is not None:
        return f"{_word(absence(absent))} 0\n"
    paths = [(stack, [stack.dataset or NO_DATASET, *map(str, (ROOT, *stack.places))]) for stack in stacks]
    lines = [f"{';'.join(map(_word, path))} {round(stack.seconds * MICROSECONDS)}\n" for stack, path in paths]
    return "".join(sorted(lines))


def _word(text: str) -> str:
    return " ".join(text.replace(";", ",").split())


def speedscope(stacks: Sequence[Stack], absent: str | None = None) -> dict[str, Any]:
    """Content of a speedscope file: for each dataset one profile of all its time, and one per state."""
    frames: dict[Place, int] = {}
    seconds: dict[str | None, float] = defaultdict(float)
    for stack in stacks:
        seconds[stack.dataset] += stack.seconds
    profiles = []
    for dataset in sorted(seconds, key=lambda name: -seconds[name]):
        of_dataset = [stack for stack in stacks if stack.dataset == dataset]
        name = dataset or NO_DATASET
        profiles.append(_sampled(name, [(stack, stack.seconds) for stack in of_dataset], frames))
        for state in ALL_STATES:
            found = [(stack, stack.states[state]) for stack in of_dataset if stack.states[state] > 0]
            profiles += [_sampled(f"{name}, {WORDS[state]}", found, frames)] if found else []
    if not profiles:
        profiles.append(_sampled("No samples." if absent is None else absence(absent), [], frames))
    return {
        "$schema": SCHEMA,
        "exporter": "roastcoffea",
        "name": "process()",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(place) for place in frames]},
        "profiles": profiles,
    }


def _sampled(name: str, found: Sequence[tuple[Stack, float]], frames: dict[Place, int]) -> dict[str, Any]:
    """A profile of stacks with their seconds; frames are numbered in order of appearance."""
    paths = [(ROOT, *stack.places) for stack, _ in found]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(seconds for _, seconds in found),
        "samples": [[frames.setdefault(place, len(frames)) for place in path] for path in paths],
        "weights": [seconds for _, seconds in found],
    }


def _frame(place: Place) -> dict[str, Any]:
    return {"name": place.function, **({"file": place.file, "line": place.line} if place.file else {})}
