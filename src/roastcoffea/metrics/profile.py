"""The profile: which functions and lines took the time of process(), from samples of its threads."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics.catalogue import NotMeasuredError, fact, table
from roastcoffea.metrics.evaluation import Metrics
from roastcoffea.metrics.facts import recorded
from roastcoffea.metrics.stacks import (
    ALL_STATES,
    ROOT,
    STATE_SECONDS,
    WORDS,
    Node,
    Place,
    Stack,
    collapsed,
    speedscope,
    stacks_of,
    tree_of,
)
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import NOT_SAMPLED, OTHER, PHASES, PROFILE_COLUMNS, STATES
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Cell, Sheet, absence
from roastcoffea.sheets.sheet import Column as Head
from roastcoffea.storage.folders import whole_file
from roastcoffea.units import FRACTION, SECOND, number

TITLE: Final = "profile"
MOST_ROWS: Final = 15
PROFILE_FORMATS: Final = ("speedscope", "collapsed")
PLACEHOLDERS: Final = (OTHER, NOT_SAMPLED)
"""Placeholder functions for unknown ones."""

_PLACE: Final = (
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("function", "text", None, "function, with its class"),
    Column("file", "text", None, "its file; for installed packages relative to the directory of packages"),
    Column("line", "integer", None, "line in the file"),
)
PLACE: Final = tuple(column.name for column in _PLACE)
FUNCTION_COLUMNS: Final = (
    *_PLACE,
    Column("samples", "integer", None, "samples with a thread at this line itself"),
    Column("self_seconds", "number", "s", "thread time at this line itself"),
    Column("total_seconds", "number", "s", "thread time at this line or in its calls"),
    *(
        Column(name, "number", "s", f"of self_seconds, {WORDS[state]}")
        for state, name in zip(STATES, STATE_SECONDS, strict=True)
    ),
)
"""One row per sampled line of a function and dataset, most time first."""

HOT_COLUMNS: Final = (
    *_PLACE,
    Column("leaf", "text", None, "innermost function called there; none if the time was in the line itself"),
    Column("leaf_file", "text", None, "its file"),
    Column("leaf_line", "integer", None, "its line"),
    *picked(PROFILE_COLUMNS, "samples", "seconds", *STATE_SECONDS),
    Column("share", "number", None, "of all seconds of the dataset"),
)
"""One row per line of user code, innermost function below it, and dataset."""


class Profile(Presented):
    """Functions and lines that took the time of process(), from samples of the threads that ran chunks.

    Each thread is sampled about ten times a second; a sample stands for the time since the previous one. The relative
    error of a share is about one over the square root of its samples. Threads started by a processor are not sampled.

    Attributes
    ----------
    stacks : list of Stack
        Where threads were, with seconds by state.
    absent : str or None
        Why there is no profile.
    """

    def __init__(self, stacks: Iterable[Stack] = (), absent: str | None = None) -> None:
        self.stacks = list(stacks)
        self.absent = absent

    @classmethod
    def not_measured(cls, reason: str) -> Profile:
        """Profile of a run without samples."""
        return cls(absent=reason)

    def __repr__(self) -> str:
        return f"<Profile: {self.absent or f'{self.samples} samples, {SECOND.text(self.seconds)}'}>"

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(stack.samples for stack in self.stacks)

    @property
    def seconds(self) -> float:
        """Thread seconds of process() covered by the samples."""
        return sum(stack.seconds for stack in self.stacks)

    @cached_property
    def states(self) -> dict[str, float]:
        """Seconds by state: "core", "contention" (runnable without a free core), "blocked" and "unknown"."""
        return dict(self.tree().states)

    @property
    def datasets(self) -> list[str | None]:
        """Sampled datasets, most time first."""
        seconds = self.tree().datasets
        return sorted(seconds, key=lambda name: -seconds[name])

    def of(self, dataset: str | None) -> list[Stack]:
        """Stacks of one dataset, or of all for None."""
        return [stack for stack in self.stacks if dataset is None or stack.dataset == dataset]

    def tree(self, dataset: str | None = None) -> Node:
        """Frames from process() down, for one dataset or all: the data of a flame graph."""
        return tree_of(self.of(dataset))

    def collapsed(self) -> str:
        """Collapsed stacks for flamegraph.pl and similar tools: frames from the dataset down, and microseconds."""
        return collapsed(self.stacks, self.absent)

    def speedscope(self) -> dict[str, Any]:
        """Content of a file for https://www.speedscope.app: for each dataset its time, total and by state."""
        return speedscope(self.stacks, self.absent)

    def export(self, path: str | PathLike[str], file_format: str, overwrite: bool = False) -> Path:
        """Write the profile for a flame graph viewer, completely or not at all, and return the file's path.

        Without a profile, the file contains only the reason.

        Parameters
        ----------
        path
            The file.
        file_format : {"speedscope", "collapsed"}
            "speedscope" is JSON for https://www.speedscope.app, "collapsed" is text for flamegraph.pl and others.
        overwrite
            Overwrite an existing file.

        Raises
        ------
        MeasurementError
            If the format is unknown, the file exists, or it cannot be written.
        """
        if file_format not in PROFILE_FORMATS:
            choices = ", ".join(PROFILE_FORMATS)
            raise MeasurementError(f"a profile has no format {file_format!r}; choose {choices}")
        text = self.collapsed() if file_format == "collapsed" else json.dumps(self.speedscope(), allow_nan=False)
        file = Path(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file, overwrite=overwrite) as opened:
                opened.write(text.encode(errors="backslashreplace"))
        except OSError as error:
            raise MeasurementError(f"nothing was exported to {file}: {error}") from error
        return file

    def functions(self) -> list[dict[str, Any]]:
        """Rows with FUNCTION_COLUMNS, most time at the line itself first."""
        totals: dict[tuple[Any, ...], float] = defaultdict(float)
        for stack in self.stacks:
            for place in dict.fromkeys(stack.places or (ROOT,)):
                totals[stack.dataset, *place] += stack.seconds
        own = (((stack.dataset, *(stack.places or (ROOT,))[-1]), stack) for stack in self.stacks)
        sums = _summed([*((key, None) for key in totals), *own], PLACE, "self_seconds")
        rows = [row | {"total_seconds": totals[key]} for key, row in sums.items()]
        return sorted(rows, key=lambda row: (-row["self_seconds"], -row["total_seconds"]))

    def hot_functions(self) -> list[dict[str, Any]]:
        """Rows with HOT_COLUMNS, most time first.

        The user's line is the innermost frame of a stack in user code, see `own_frame`.
        """
        found: list[tuple[tuple[Any, ...], Stack]] = []
        for stack in self.stacks:
            places = stack.places
            if places and places[-1].function not in PLACEHOLDERS:
                own = own_frame(places)
                leaf = places[-1] if own < len(places) - 1 else (None,) * 3
                found.append(((stack.dataset, *places[own], *leaf), stack))
        rows = _summed(found, (*PLACE, "leaf", "leaf_file", "leaf_line"), "seconds").values()
        of_dataset = self.tree().datasets
        shared = [row | {"share": row["seconds"] / of_dataset[row["dataset"]]} for row in rows]
        return sorted(shared, key=lambda row: -row["seconds"])

    def calls(self, chunk: int | None = None) -> dict[Call, tuple[float, int]]:
        """Share of the CPU time, and samples, of calls from user code, of all attempts or of one, largest first."""
        seconds: dict[Call, float] = defaultdict(float)
        samples = Counter[Call]()
        for stack in self.stacks:
            if stack.places and stack.places[-1].function not in PLACEHOLDERS and chunk in (None, stack.chunk):
                call = call_of(stack)
                seconds[call] += stack.runnable if chunk is None else stack.seconds
                samples[call] += stack.samples
        whole = sum(seconds.values()) or 1.0
        order = sorted(seconds, key=lambda call: -seconds[call])
        return {call: (seconds[call] / whole, samples[call]) for call in order}

    def sheets(self) -> list[Sheet]:
        """Lines with the most time of their own, and their states."""
        if self.absent is not None:
            return [Sheet(title=TITLE, lead=[absence(self.absent)])]
        if not self.stacks:
            return [Sheet(title=TITLE, lead=["No chunk was in process() when its thread was sampled."])]
        sums: dict[Place, Node] = {}
        for stack in self.stacks:
            place = stack.places[-1] if stack.places else ROOT
            sums.setdefault(place, Node(place=place)).add(stack, itself=True)
        rows: list[tuple[Cell, ...]] = [
            (
                node.place.function,
                node.self_seconds,
                node.self_seconds / self.seconds,
                *(node.self_states[state] for state in self._states()),
                f"{node.place.file}:{node.place.line}" if node.place.file else "",
            )
            for node in sorted(sums.values(), key=lambda node: -node.self_seconds)[:MOST_ROWS]
        ]
        heads = [Head("function"), Head("self", SECOND), Head("share", FRACTION, bars=True)]
        states = [Head(WORDS[state], SECOND, dispensable=1) for state in self._states()]
        columns = [*heads, *states, Head("file:line", dispensable=2)]
        return [Sheet(title=TITLE, columns=columns, rows=rows, notes=self._notes(len(sums)))]

    def _states(self) -> list[str]:
        return [state for state in ALL_STATES if self.states[state] > 0]

    def _notes(self, lines: int) -> list[str]:
        shares = [f"{FRACTION.text(self.states[state] / self.seconds)} {WORDS[state]}" for state in self._states()]
        counted = f"{number(self.samples)} samples of {SECOND.text(self.seconds)} in process(): {', '.join(shares)}."
        return [counted, *([f"{number(MOST_ROWS)} of {number(lines)} lines."] if lines > MOST_ROWS else [])]


def _summed(
    found: Iterable[tuple[tuple[Any, ...], Stack | None]], names: Sequence[str], seconds: str
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows with these names for each key, with samples, seconds, and seconds by state of its stacks."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, stack in found:
        zeros = {"samples": 0} | dict.fromkeys((seconds, *STATE_SECONDS), 0.0)
        row = rows.setdefault(key, dict(zip(names, key, strict=True)) | zeros)
        if stack is not None:
            amounts = (stack.samples, stack.seconds, *(stack.states[state] for state in STATES))
            for name, amount in zip(zeros, amounts, strict=True):
                row[name] += amount
    return rows


CELL: Final = "In["
"""Beginning of what a cell of a notebook is called."""


def own_frame(places: Sequence[Place]) -> int:
    """Index of the innermost frame of user code: in the file or package of process(), or outside installed packages."""
    # a processor of a library may do the work of the user's
    firsts = list(takewhile(lambda place: place.name == "process", places)) or places[:1]
    return max((at for at, place in enumerate(places) if any(is_own(place, one) for one in firsts)), default=0)


def is_own(place: Place, first: Place) -> bool:
    """Whether a place is in user code, given the place of process()."""
    if place.file == first.file or place.file.startswith(CELL):
        return True
    if place.file.startswith("<") or not place.file:
        return False
    if _is_absolute(place.file):
        return True
    package = first.file.partition("/")[0]
    return not _is_absolute(first.file) and "/" in first.file and place.file.partition("/")[0] == package


def _is_absolute(file: str) -> bool:
    """Whether a path is absolute on this system or on Windows."""
    return file.startswith(("/", "\\")) or file[1:3] in (":\\", ":/")


LOADERS: Final[Mapping[str, Collection[str]]] = {
    "coffea": ("add_weight_sets", "load"),
    "correctionlib": ("from_file", "from_string"),
    "joblib": ("load",),
    "json": ("load", "loads"),
    "keras": ("load_model",),
    "lightgbm": ("Booster.__init__",),
    "numpy": ("genfromtxt", "load", "loadtxt"),
    "onnxruntime": ("_create_inference_session",),
    "pandas": ("read_csv", "read_hdf", "read_json", "read_parquet", "read_pickle", "read_table"),
    "pickle": ("_load", "_loads"),
    "tensorflow": ("load", "load_model"),
    "torch": ("load",),
    "uproot": ("open",),
    "xgboost": ("load_model",),
    "yaml": ("full_load", "load", "load_all", "safe_load", "unsafe_load"),
}
"""Functions that load files, corrections and models, by package. Those in C have no frame."""

COLUMNAR: Final = (
    *("awkward", "boost_histogram", "coffea", "correctionlib", "dask_awkward", "hist", "numba", "numpy", "scipy"),
    *("uproot", "vector"),
)
"""Packages in whose functions columnar code is meant to spend its time."""


class Call(NamedTuple):
    """A line of user code, and what it calls of a library."""

    place: Place
    function: str | None
    """The function with its package; for a function that loads something its name, even if others call it."""
    package: str | None
    loads: bool
    """Whether it loads a file, a correction or a model."""
    decodes: bool
    """Whether that decompresses or interprets what was read."""
    is_process: bool
    """Whether the line is in process() itself, or in the function that a task ran."""

    def __str__(self) -> str:
        return f"{self.place}{f' in {self.function}' if self.function else ''}"


def call_of(stack: Stack) -> Call:
    """Call from user code that a stack passes through."""
    places, own = stack.places, own_frame(stack.places)
    below = places[own + 1 :]
    loader = next((one for one in below if _ends_with(one, LOADERS.get(one.package, ()))), None)
    first = loader or next(iter(below), None)
    name = first and f"{first.package}.{first.function}"
    return Call(
        places[own],
        name,
        first and first.package,
        loader is not None,
        stack.decodes,
        own == 0 or places[own].name == "process",
    )


def _ends_with(place: Place, names: Iterable[str]) -> bool:
    return any(f".{place.function}".endswith(f".{name}") for name in names)


class UserLine(NamedTuple):
    """A line of user code with all that it calls."""

    place: Place
    calls: str | None
    """Library function in which most of the time is; None for the line itself."""
    share: float
    """Of the CPU time in process()."""
    seconds: float | None
    """CPU seconds of a chunk; None if unknown."""


def process_cpu(chunks: pa.Table | None) -> Numbers | None:
    """CPU seconds of each chunk in process(); None if unknown."""
    columns = [phase.column for phase in PHASES if phase.part == "CPU"]
    if chunks is None or not len(chunks) or any(chunks[name].null_count == len(chunks) for name in columns):
        return None
    return sum((amounts(chunks, name) for name in columns), np.zeros(len(chunks)))


@fact
def profile(run: Run) -> Profile:
    """Functions and lines that took the time of process()."""
    return Profile(stacks_of(recorded(run, "profile")))


@fact
def user_lines(profile: Profile, counted_chunks: pa.Table | None = None) -> list[UserLine]:
    """Lines of user code by CPU time, including what they call, largest first."""
    cpu = process_cpu(counted_chunks)
    sums: dict[Place, float] = defaultdict(float)
    most: dict[Place, str | None] = {}
    for call, (share, _) in profile.calls().items():
        sums[call.place] += share
        most.setdefault(call.place, call.function)
    return [
        UserLine(place, most[place], share, None if cpu is None else share * float(cpu.mean()))
        for place, share in sorted(sums.items(), key=lambda item: -item[1])
        if share
    ]


def profile_of(metrics: Metrics) -> Profile:
    """Profile of a run; without one it is empty, with the reason in `.absent`."""
    try:
        found: Profile = metrics.evaluator.value("profile")
    except NotMeasuredError as reason:
        return Profile.not_measured(str(reason))
    return found


@table
def functions(profile: Profile) -> pa.Table:
    """Lines of functions by dataset, with FUNCTION_COLUMNS."""
    return table_of_rows(FUNCTION_COLUMNS, profile.functions())


@table
def hot_functions(profile: Profile) -> pa.Table:
    """Lines of user code by dataset and what they call, with HOT_COLUMNS."""
    return table_of_rows(HOT_COLUMNS, profile.hot_functions())
