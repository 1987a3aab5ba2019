"""Time within process(): the profile, which functions and lines took it, from samples of threads; and sections named by
the user."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics.catalogue import CHUNKS, NotMeasuredError, fact, metric, refuse_if, table
from roastcoffea.metrics.chunks import by_name_and_dataset
from roastcoffea.metrics.evaluation import Metrics
from roastcoffea.metrics.facts import aggregated, reason_of_absence, recorded
from roastcoffea.metrics.phases import COMPUTING, DECODING, READING, TROUBLE, Family
from roastcoffea.metrics.statistics import Numbers, amounts, places
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import NOT_SAMPLED, OTHER, PHASES, PROFILE_COLUMNS, SECTION_COLUMNS, STATES
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Cell, Sheet, absence
from roastcoffea.sheets.sheet import Column as Head
from roastcoffea.storage.folders import whole_file
from roastcoffea.units import FRACTION, SECOND, STRUCTURE, number

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


NO_DATASET: Final = "(no dataset)"
ROOT: Final = Place("process()", "", 0)
"""First frame of all stacks."""


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


PROFILE_FORMATS: Final = ("speedscope", "collapsed")
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

    def tree(self, dataset: str | None = None) -> Node:
        """Frames from process() down, for one dataset or all: the data of a flame graph."""
        root = Node(place=ROOT)
        nodes: dict[tuple[Place, ...], Node] = {(): root}
        for stack in self.stacks:
            if dataset not in (None, stack.dataset):
                continue
            for depth in range(len(stack.places) + 1):
                path = stack.places[:depth]
                if path not in nodes:
                    nodes[path] = Node(place=path[-1])
                    nodes[path[:-1]].children.append(nodes[path])
                nodes[path].add(stack, itself=depth == len(stack.places))
        for node in nodes.values():
            node.children.sort(key=lambda child: -child.seconds)
        return root

    def collapsed(self) -> str:
        """Collapsed stacks for flamegraph.pl and similar tools: frames from the dataset down, and microseconds."""

        def word(part: object) -> str:
            return " ".join(str(part).replace(";", ",").split())

        if self.absent is not None:
            return f"{word(absence(self.absent))} 0\n"
        paths = ((stack, (stack.dataset or NO_DATASET, ROOT, *stack.places)) for stack in self.stacks)
        return "".join(sorted(f"{';'.join(map(word, path))} {round(stack.seconds * 1e6)}\n" for stack, path in paths))

    def speedscope(self) -> dict[str, Any]:
        """Content of a file for https://www.speedscope.app: for each dataset its time, total and by state."""
        frames: dict[Place, int] = {}
        found: dict[str, list[tuple[Stack, float]]] = {}
        for dataset in self.datasets:
            name, of = dataset or NO_DATASET, [stack for stack in self.stacks if stack.dataset == dataset]
            found[name] = [(stack, stack.seconds) for stack in of]
            for state in ALL_STATES:
                if own := [(stack, stack.states[state]) for stack in of if stack.states[state] > 0]:
                    found[f"{name}, {WORDS[state]}"] = own
        if not found:
            found["No samples." if self.absent is None else absence(self.absent)] = []
        profiles = [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(seconds for _, seconds in own),
                # frames are numbered in order of appearance
                "samples": [[frames.setdefault(at, len(frames)) for at in (ROOT, *stack.places)] for stack, _ in own],
                "weights": [seconds for _, seconds in own],
            }
            for name, own in found.items()
        ]
        named = [
            {"name": place.function} | ({"file": place.file, "line": place.line} if place.file else {})
            for place in frames
        ]
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "roastcoffea",
            "name": "process()",
            "activeProfileIndex": 0,
            "shared": {"frames": named},
            "profiles": profiles,
        }

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
            raise MeasurementError(f"a profile has no format {file_format!r}; choose {', '.join(PROFILE_FORMATS)}")
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
        for stack in self._known():
            own = own_frame(stack.places)
            leaf = stack.places[-1] if own < len(stack.places) - 1 else (None,) * 3
            found.append(((stack.dataset, *stack.places[own], *leaf), stack))
        rows = _summed(found, (*PLACE, "leaf", "leaf_file", "leaf_line"), "seconds").values()
        of_dataset = self.tree().datasets
        shared = [row | {"share": row["seconds"] / of_dataset[row["dataset"]]} for row in rows]
        return sorted(shared, key=lambda row: -row["seconds"])

    def _known(self) -> Iterator[Stack]:
        """Stacks that end in a known function."""
        return (
            stack for stack in self.stacks if stack.places and stack.places[-1].function not in (OTHER, NOT_SAMPLED)
        )

    def calls(self, chunk: int | None = None) -> dict[Call, tuple[float, int]]:
        """Share of the CPU time, and samples, of calls from user code, of all attempts or of one, largest first."""
        seconds: dict[Call, float] = defaultdict(float)
        samples = Counter[Call]()
        for stack in self._known():
            if chunk in (None, stack.chunk):
                call = call_of(stack)
                seconds[call] += stack.runnable if chunk is None else stack.seconds
                samples[call] += stack.samples
        whole = sum(seconds.values()) or 1.0
        order = sorted(seconds, key=lambda call: -seconds[call])
        return {call: (seconds[call] / whole, samples[call]) for call in order}

    def sheets(self) -> list[Sheet]:
        """Lines with the most time of their own, and their states."""
        if self.absent is not None:
            return [Sheet(title="profile", lead=[absence(self.absent)])]
        if not self.stacks:
            return [Sheet(title="profile", lead=["No chunk was in process() when its thread was sampled."])]
        sums: dict[Place, Node] = {}
        for stack in self.stacks:
            place = stack.places[-1] if stack.places else ROOT
            sums.setdefault(place, Node(place=place)).add(stack, itself=True)
        states = [state for state in ALL_STATES if self.states[state] > 0]
        rows: list[tuple[Cell, ...]] = [
            (
                node.place.function,
                node.self_seconds,
                node.self_seconds / self.seconds,
                *(node.self_states[state] for state in states),
                f"{node.place.file}:{node.place.line}" if node.place.file else "",
            )
            for node in sorted(sums.values(), key=lambda node: -node.self_seconds)[:15]
        ]
        heads = [Head("function"), Head("self", SECOND), Head("share", FRACTION, bars=True)]
        of_states = [Head(WORDS[state], SECOND, dispensable=1) for state in states]
        columns = [*heads, *of_states, Head("file:line", dispensable=2)]
        shares = ", ".join(f"{FRACTION.text(self.states[state] / self.seconds)} {WORDS[state]}" for state in states)
        notes = [f"{number(self.samples)} samples of {SECOND.text(self.seconds)} in process(): {shares}."]
        if len(sums) > len(rows):
            notes.append(f"{number(len(rows))} of {number(len(sums))} lines.")
        return [Sheet(title="profile", columns=columns, rows=rows, notes=notes)]


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


def own_frame(places: Sequence[Place]) -> int:
    """Index of the innermost frame of user code: in the file or package of process(), or outside installed packages."""
    # a processor of a library may do the work of the user's
    firsts = list(takewhile(lambda place: place.name == "process", places)) or places[:1]
    return max((at for at, place in enumerate(places) if any(is_own(place, one) for one in firsts)), default=0)


def is_own(place: Place, first: Place) -> bool:
    """Whether a place is in user code, given the place of process()."""
    # a cell of a notebook is called In[...]
    if place.file == first.file or place.file.startswith("In["):
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


# Sections

SECTION_TOTALS: Final = (
    *picked(SECTION_COLUMNS, "name"),
    Column("dataset", "text", None, "dataset in the fileset"),
    *picked(SECTION_COLUMNS, "count", "wall_seconds", "self_seconds"),
    Column("cpu_seconds", "number", "s", "CPU time of the threads in it"),
    *picked(SECTION_COLUMNS, "max_seconds", "bytes"),
    Column("memory_peak", "integer", "B", "highest resident memory of a process in it (track_memory)"),
    Column("errors", "integer", None, "passes ended by an exception"),
)
"""One row per section and dataset, over all attempts; failed ones pass through sections as well."""


def totals_of(chunks: pa.Table, sections: pa.Table) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    rows = places(sections["chunk"], chunks["id"].combine_chunks())
    datasets = chunks["dataset"].take(pa.array(rows, mask=rows < 0))
    table = sections.append_column("dataset", datasets)
    keys = ["name", "dataset"]
    amounts = [column.name for column in SECTION_TOTALS if column.name not in keys]
    # a sum is unknown if one pass did not measure it
    steps = {name: (name, "max" if name in {"max_seconds", "memory_peak"} else "sum") for name in amounts}
    return aggregated(table, keys, steps).sort_by([(key, "ascending") for key in keys])


@fact
def section_totals(run: Run) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    for name in ("chunks", "sections"):
        refuse_if(getattr(run, name) is None, reason_of_absence(run, name))
    return totals_of(run.chunks, run.sections)


@metric(STRUCTURE, group=CHUNKS, source="section records", formula="sums and maxima over attempts of chunks")
def sections(run: Run, chunks: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Sections by name and dataset, over all attempts: {name: {dataset: {column: amount}}}.

    Columns are `count`, `wall_seconds`, `self_seconds`, `cpu_seconds`, `max_seconds`, `bytes`, `memory_peak` and
    `errors`. Amounts not tracked in every pass are None.
    """
    return by_name_and_dataset(totals_of(chunks, recorded(run, "sections")))
