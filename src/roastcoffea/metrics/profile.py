"""Time within process(): the profile from thread samples, and user-defined sections."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics.catalogue import CHUNKS, NotMeasuredError, fact, metric, table
from roastcoffea.metrics.chunks import by_name_and_dataset
from roastcoffea.metrics.evaluation import Metrics
from roastcoffea.metrics.facts import aggregated, reason_of_absence, recorded
from roastcoffea.metrics.phases import COMPUTING, DECODING, READING, TROUBLE, Family, phases_of
from roastcoffea.metrics.statistics import Numbers, amounts, places
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import NOT_SAMPLED, OTHER, STATES
from roastcoffea.records.columns import Column, Row, bytes_column, integer_column, picked, seconds_column, text_column
from roastcoffea.records.run import PROFILE_COLUMNS, SECTION_COLUMNS, Run
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
"""Library files whose code, apart from decoders, blocks only while waiting for storage."""

DECODERS: Final = (
    "uproot/compression.py",
    "uproot/interpretation/",
    "uproot/models/TBasket.py",
    "uproot/models/RNTuple.py",
)


class Place(NamedTuple):
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function

    @property
    def name(self) -> str:
        return self.function.rpartition(".")[2]

    @property
    def package(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")


class Stack(NamedTuple):
    """Frames from process() to the innermost function, with samples and time by state."""

    dataset: str | None
    places: tuple[Place, ...]
    samples: int
    seconds: float
    states: Mapping[str, float]
    chunk: int | None = None
    """ID of the attempt, if it is the dataset's longest."""

    @property
    def amounts(self) -> Row:
        return {"samples": self.samples} | {f"{state}_seconds": self.states[state] for state in STATES}

    @property
    def runnable(self) -> float:
        """Time spent on a core or waiting for one, in seconds.

        On a busy host, CPU shares based on this sum are more accurate than those based on core time alone.
        """
        return self.seconds - self.states["blocked"]

    @property
    def decodes(self) -> bool:
        return any(place.file.startswith(DECODERS) for place in self.places)

    def families(self) -> Iterator[tuple[Family, float]]:
        decodes, reads = self.decodes, any(place.file.startswith(READERS) for place in self.places)
        yield DECODING if decodes else COMPUTING, self.states["core"] + self.states[UNKNOWN]
        yield READING if reads and not decodes else TROUBLE, self.states["blocked"]
        yield TROUBLE, self.states["contention"]


@dataclass(slots=True, kw_only=True)
class Node:
    """A frame in the call tree.

    A frame's parent is the function that called it.

    Attributes
    ----------
    place : Place
        Function, file and line.
    seconds : float
        Thread time in the function, including its callees.
    self_seconds : float
        Thread time in the function itself.
    samples : int
        Number of samples in the function, including its callees.
    states : dict
        `seconds` by state: "core", "contention", "blocked", "unknown".
    datasets : dict
        `seconds` by dataset.
    families : dict
        `seconds` by family of time ledger classes.
    children : list of Node
        Frames of its callees, sorted by decreasing time.
    """

    place: Place
    seconds: float = 0.0
    self_seconds: float = 0.0
    samples: int = 0
    states: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ALL_STATES, 0.0))
    datasets: dict[str | None, float] = field(default_factory=partial(defaultdict, float))
    families: dict[Family, float] = field(default_factory=partial(defaultdict, float))
    children: list[Node] = field(default_factory=list)


ROOT: Final = Place("process()", "", 0)


def stacks_of(rows: Table) -> Iterator[Stack]:
    """Stacks from a table with PROFILE_COLUMNS, summed over Runner calls. Stacks without time are left out.

    The interpreter may run finalizers and Dask's garbage collection callback inside any function. The time they take is
    attributed to that function.
    """
    sums: dict[tuple[Any, ...], Numbers] = defaultdict(lambda: np.zeros(2 + len(STATES)))
    for row in rows.to_pylist():
        places = tuple(map(Place, row["functions"], row["files"], row["lines"]))
        outer = takewhile(lambda place: place.name not in {"_gc_callback", "__del__"}, places[1:])
        key = row["dataset"], (*places[:1], *outer), row["chunk"]
        sums[key] += [row["samples"], row["seconds"], *(row[name] for name in STATE_SECONDS)]
    for (dataset, places, chunk), known in sums.items():
        samples, seconds, *states = known.tolist()
        unknown = seconds - sum(states)
        # a rounding difference does not count as time in an unknown state
        states.append(unknown if unknown > 1e-3 * max(samples, 1) else 0.0)
        if seconds:
            yield Stack(dataset, places, int(samples), seconds, dict(zip(ALL_STATES, states, strict=True)), chunk)


PROFILE_FORMATS: Final = ("speedscope", "collapsed")
_PLACE: Final = (
    text_column("dataset", "dataset in the fileset"),
    text_column("function", "function name, including its class"),
    text_column("file", "file that defines the function; for installed packages, the path relative to site-packages"),
    integer_column("line", "line number in the file"),
)
PLACE: Final = tuple(column.name for column in _PLACE)
FUNCTION_COLUMNS: Final = (
    *_PLACE,
    integer_column("samples", "number of samples on this line itself"),
    seconds_column("self_seconds", "thread time spent on this line itself"),
    seconds_column("total_seconds", "thread time spent on this line, including the functions that it calls"),
    *(
        seconds_column(name, f'part of `self_seconds` in the state "{WORDS[state]}"')
        for state, name in zip(STATES, STATE_SECONDS, strict=True)
    ),
)
"""The table has one row per dataset and sampled line, sorted by decreasing time."""

HOT_COLUMNS: Final = (
    *_PLACE,
    text_column("leaf", "innermost function called from the line; none if the time was spent on the line itself"),
    text_column("leaf_file", "file that defines the innermost function"),
    integer_column("leaf_line", "line number in the innermost function"),
    *picked(PROFILE_COLUMNS, "samples", "seconds", *STATE_SECONDS),
    Column("share", "number", None, "share of the dataset's sampled time"),
)
"""The table has one row per dataset, line of user code, and innermost function called from the line."""


class Profile(Presented):
    """Time in process() by function and line, from thread samples.

    Each thread is sampled about ten times a second, and each sample represents the time since the previous one. A share
    based on n samples has a relative error of about 1/sqrt(n). Threads started by a processor are not sampled.

    Attributes
    ----------
    stacks : list of Stack
        Sampled stacks, with time by state.
    absent : str or None
        Reason why there is no profile.
    """

    def __init__(self, stacks: Iterable[Stack] = (), absent: str | None = None) -> None:
        self.stacks = list(stacks)
        self.absent = absent

    @classmethod
    def not_measured(cls, reason: str) -> Profile:
        return cls(absent=reason)

    def __repr__(self) -> str:
        return f"<Profile: {self.absent or f'{self.samples} samples, {SECOND.text(self.seconds)}'}>"

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(stack.samples for stack in self.stacks)

    @property
    def seconds(self) -> float:
        """Thread time in process() covered by the samples, in seconds."""
        return sum(stack.seconds for stack in self.stacks)

    @cached_property
    def states(self) -> dict[str, float]:
        """Thread time by state, in seconds.

        The states are "core", "contention" (runnable but waiting for a core), "blocked" and "unknown".
        """
        return dict(self.tree().states)

    @property
    def datasets(self) -> list[str | None]:
        """Sampled datasets, sorted by decreasing time."""
        seconds = self.tree().datasets
        return sorted(seconds, key=lambda name: -seconds[name])

    def tree(self, dataset: str | None = None) -> Node:
        """Call tree of process() for one or all datasets, as used in flame graphs."""
        nodes: dict[tuple[Place, ...], Node] = {(): Node(place=ROOT)}
        for stack in self.stacks:
            if dataset not in (None, stack.dataset):
                continue
            for depth in range(len(stack.places) + 1):
                path = stack.places[:depth]
                if path not in nodes:
                    nodes[path] = Node(place=path[-1])
                    nodes[path[:-1]].children.append(nodes[path])
                node = nodes[path]
                node.seconds += stack.seconds
                node.samples += stack.samples
                node.datasets[stack.dataset] += stack.seconds
                for family, seconds in stack.families():
                    node.families[family] += seconds
                for state, seconds in stack.states.items():
                    node.states[state] += seconds
            node.self_seconds += stack.seconds
        for node in nodes.values():
            node.children.sort(key=lambda child: -child.seconds)
        return nodes[()]

    def collapsed(self) -> str:
        """Collapsed stacks for flamegraph.pl and similar tools.

        Each stack starts with the dataset. Times are in microseconds.
        """

        def word(part: object) -> str:
            return " ".join(str(part).replace(";", ",").split())

        if self.absent is not None:
            return f"{word(absence(self.absent))} 0\n"
        paths = ((stack, (stack.dataset or "(no dataset)", ROOT, *stack.places)) for stack in self.stacks)
        return "".join(sorted(f"{';'.join(map(word, path))} {round(stack.seconds * 1e6)}\n" for stack, path in paths))

    def speedscope(self) -> Row:
        """Contents of a file for https://www.speedscope.app.

        For each dataset, the file contains one profile of the total time and one for each state.
        """
        frames: dict[Place, int] = {}
        found: dict[str, list[tuple[Stack, float]]] = {}
        for dataset in self.datasets:
            name, of = dataset or "(no dataset)", [stack for stack in self.stacks if stack.dataset == dataset]
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
        """Write the profile to a file for a flame graph viewer, and return the path.

        If there is no profile, the file contains only the reason.

        Parameters
        ----------
        path
            File to write.
        file_format : {"speedscope", "collapsed"}
            "speedscope" is JSON for https://www.speedscope.app. "collapsed" is text for flamegraph.pl and similar
            tools.
        overwrite
            Whether to overwrite an existing file.

        Raises
        ------
        MeasurementError
            If the format is unknown, or if the file exists or cannot be written.
        """
        if file_format not in PROFILE_FORMATS:
            raise MeasurementError(f"unknown profile format {file_format!r}; choose {', '.join(PROFILE_FORMATS)}")
        text = self.collapsed() if file_format == "collapsed" else json.dumps(self.speedscope(), allow_nan=False)
        file = Path(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file, overwrite=overwrite) as opened:
                opened.write(text.encode(errors="backslashreplace"))
        except OSError as error:
            raise MeasurementError(f"nothing was exported to {file}: {error}") from error
        return file

    def functions(self) -> list[Row]:
        """Sampled lines, sorted by the time spent on the line itself.

        Each row has the columns in FUNCTION_COLUMNS.
        """
        rows: list[Row] = []
        for stack in self.stacks:
            places, of = stack.places or (ROOT,), {"dataset": stack.dataset}
            rows += [of | place._asdict() | {"total_seconds": stack.seconds} for place in dict.fromkeys(places)]
            rows.append(of | places[-1]._asdict() | stack.amounts | {"self_seconds": stack.seconds})
        return _summed(rows, FUNCTION_COLUMNS, ("self_seconds", "total_seconds"))

    def hot_functions(self) -> list[Row]:
        """Lines of user code with the functions they call, sorted by time.

        Each row has the columns in HOT_COLUMNS. The line is that of the innermost frame in user code (see `own_frame`).
        """
        rows, of_dataset = [], self.tree().datasets
        for stack in self._known():
            own = own_frame(stack.places)
            leaf = stack.places[-1] if own < len(stack.places) - 1 else (None,) * 3
            place = stack.places[own]._asdict() | dict(zip(("leaf", "leaf_file", "leaf_line"), leaf, strict=True))
            times = {"seconds": stack.seconds, "share": stack.seconds / of_dataset[stack.dataset]}
            rows.append({"dataset": stack.dataset} | place | stack.amounts | times)
        return _summed(rows, HOT_COLUMNS, ("seconds",))

    def _known(self) -> Iterator[Stack]:
        return (
            stack for stack in self.stacks if stack.places and stack.places[-1].function not in (OTHER, NOT_SAMPLED)
        )

    def calls(self, chunk: int | None = None) -> dict[Call, tuple[float, int]]:
        """Share of CPU time and number of samples for each call from user code, largest share first.

        If an attempt is given, only its samples are used, and the shares are relative to its thread time.
        """
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
        if self.absent is not None:
            return [Sheet(title="profile", lead=[absence(self.absent)])]
        if not self.stacks:
            return [Sheet(title="profile", lead=["No chunk was in process() when its thread was sampled."])]
        import pandas as pd

        lines = pd.DataFrame(self.functions()).groupby(["function", "file", "line"], sort=False).sum(numeric_only=True)
        lines = lines[lines["samples"] > 0].sort_values("self_seconds", ascending=False, kind="stable")
        # rounding differences do not count as time; adding 0.0 removes the sign of -0.0
        lines["unknown_seconds"] = (lines["self_seconds"] - lines[[*STATE_SECONDS]].sum(axis=1)).round(3) + 0.0
        states = [state for state in ALL_STATES if self.states[state] > 0]
        rows: list[tuple[Cell, ...]] = [
            (
                function,
                own["self_seconds"],
                own["self_seconds"] / self.seconds,
                *(own[f"{state}_seconds"] for state in states),
                f"{file}:{line}" if file else "",
            )
            for (function, file, line), own in zip(lines.index[:15], lines.to_dict("records"), strict=False)
        ]
        heads = [Head("function"), Head("self", SECOND), Head("share", FRACTION, bars=True)]
        of_states = [Head(WORDS[state], SECOND, dispensable=1) for state in states]
        columns = [*heads, *of_states, Head("file:line", dispensable=2)]
        shares = ", ".join(f"{FRACTION.text(self.states[state] / self.seconds)} {WORDS[state]}" for state in states)
        notes = [f"{number(self.samples)} samples covering {SECOND.text(self.seconds)} in process(): {shares}."]
        if len(lines) > len(rows):
            notes.append(f"{number(len(rows))} of {number(len(lines))} lines.")
        return [Sheet(title="profile", columns=columns, rows=rows, notes=notes)]


def _summed(rows: list[Row], columns: Sequence[Column], most: Sequence[str]) -> list[Row]:
    keys = [one.name for one in columns if one.kind == "text" or one.name.endswith("line")]
    steps = {one.name: (one.name, "sum") for one in columns if one.name not in keys}
    zero_if_none = pc.ScalarAggregateOptions(min_count=0)
    sums = aggregated(table_of_rows(columns, rows), keys, steps, zero_if_none, use_threads=False)
    return sorted(sums.to_pylist(), key=lambda row: [-row[name] for name in most])


def own_frame(places: Sequence[Place]) -> int:
    """Index of the innermost frame in user code.

    Code counts as user code if it is in the file or package of process(), or outside installed packages.
    """
    # a library's process() may call the user's process()
    firsts = list(takewhile(lambda place: place.name == "process", places)) or places[:1]
    return max((at for at, place in enumerate(places) if any(is_own(place, one) for one in firsts)), default=0)


def is_own(place: Place, first: Place) -> bool:
    """Whether a place is in user code, given the place of process()."""
    # notebook cells are named In[...]
    if place.file == first.file or place.file.startswith("In["):
        return True
    if place.file.startswith("<") or not place.file:
        return False
    if _is_absolute(place.file):
        return True
    package = first.file.partition("/")[0]
    return not _is_absolute(first.file) and "/" in first.file and place.file.partition("/")[0] == package


def _is_absolute(file: str) -> bool:
    return file.startswith(("/", "\\")) or file[1:3] in (":\\", ":/")


LOADERS: Final = {
    "coffea": (".add_weight_sets", ".load"),
    "correctionlib": (".from_file", ".from_string"),
    "joblib": (".load",),
    "json": (".load", ".loads"),
    "keras": (".load_model",),
    "lightgbm": (".Booster.__init__",),
    "numpy": (".genfromtxt", ".load", ".loadtxt"),
    "onnxruntime": ("._create_inference_session",),
    "pandas": (".read_csv", ".read_hdf", ".read_json", ".read_parquet", ".read_pickle", ".read_table"),
    "pickle": ("._load", "._loads"),
    "tensorflow": (".load", ".load_model"),
    "torch": (".load",),
    "uproot": (".open",),
    "xgboost": (".load_model",),
    "yaml": (".full_load", ".load", ".load_all", ".safe_load", ".unsafe_load"),
}
"""Maps each package to its functions that load files, corrections or models. Functions written in C have no frames."""

COLUMNAR: Final = (
    *("awkward", "boost_histogram", "coffea", "correctionlib", "dask_awkward", "hist", "numba", "numpy", "scipy"),
    *("uproot", "vector"),
)
"""Packages whose functions are expected to dominate columnar code."""

ELEMENTWISE: Final = ("Array.__iter__", "Record.__getattr__", "Record.__getitem__")
"""Functions in awkward that read a single element of an array."""


class Call(NamedTuple):
    place: Place
    function: str | None
    """Name of the function, including its package. A loading function takes precedence over its callers."""
    package: str | None
    loads: bool
    decodes: bool
    is_process: bool
    """Whether the line is in process() itself or in a task's function."""
    elementwise: bool
    """Whether the line reads an awkward array one element at a time."""

    def __str__(self) -> str:
        return f"{self.place}{f' in {self.function}' if self.function else ''}"


def call_of(stack: Stack) -> Call:
    places, own = stack.places, own_frame(stack.places)
    below = places[own + 1 :]
    loader = next((one for one in below if f".{one.function}".endswith(LOADERS.get(one.package, ("no loader",)))), None)
    first = loader or next(iter(below), None)
    name, package = (f"{first.package}.{first.function}", first.package) if first else (None, None)
    is_process = own == 0 or places[own].name == "process"
    elementwise = any(one.package == "awkward" and one.function in ELEMENTWISE for one in below)
    return Call(places[own], name, package, loader is not None, stack.decodes, is_process, elementwise)


class UserLine(NamedTuple):
    """Time spent on a line of user code, including the functions that it calls."""

    place: Place
    calls: str | None
    """Library function with the most time, or None if the line itself takes the most time."""
    share: float
    seconds: float | None
    """CPU time per chunk in seconds, or None if unknown."""


def process_cpu(chunks: Table | None) -> Numbers | None:
    """CPU time of each chunk in process(), in seconds, or None if unknown."""
    if chunks is None or not len(chunks):
        return None
    columns = [phase.column for phase in phases_of(chunks) if phase.part == "CPU"]
    if any(chunks[name].null_count == len(chunks) for name in columns):
        return None
    return sum((amounts(chunks, name) for name in columns), np.zeros(len(chunks)))


@fact
def profile(run: Run) -> Profile:
    return Profile(stacks_of(recorded(run, "profile")))


@fact
def user_lines(profile: Profile, counted_chunks: Table | None = None) -> list[UserLine]:
    """Lines of user code, sorted by CPU time. The time includes the functions that a line calls."""
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
    """Profile of a run. If there are no samples, the profile is empty and `absent` holds the reason."""
    try:
        found: Profile = metrics.evaluator.value("profile")
    except NotMeasuredError as reason:
        return Profile.not_measured(str(reason))
    return found


@table
def functions(profile: Profile) -> Table:
    return table_of_rows(FUNCTION_COLUMNS, profile.functions())


@table
def hot_functions(profile: Profile) -> Table:
    return table_of_rows(HOT_COLUMNS, profile.hot_functions())


# Sections

SECTION_TOTALS: Final = (
    *picked(SECTION_COLUMNS, "name"),
    text_column("dataset", "dataset in the fileset"),
    *picked(SECTION_COLUMNS, "count", "wall_seconds", "self_seconds"),
    seconds_column("cpu_seconds", "CPU time that threads spent in the section"),
    *picked(SECTION_COLUMNS, "max_seconds", "bytes"),
    bytes_column("memory_peak", "highest resident memory of a process in the section, if track_memory was used"),
    integer_column("errors", "number of passes that raised an exception"),
)
"""The table has one row per section and dataset. It covers all attempts, including failed attempts."""


@fact
def section_totals(run: Run) -> Table:
    chunks, passes = run.chunks, run.sections
    if chunks is None or passes is None:
        raise NotMeasuredError(reason_of_absence(run, "chunks" if chunks is None else "sections"))
    rows = places(passes["chunk"], chunks["id"].combine_chunks())
    datasets = chunks["dataset"].take(pa.array(rows, mask=rows < 0))
    keys = ["name", "dataset"]
    # a sum is unknown if any pass was not measured
    steps = {
        name: (name, "max" if name in {"max_seconds", "memory_peak"} else "sum")
        for name in (column.name for column in SECTION_TOTALS)
        if name not in keys
    }
    found = aggregated(passes.append_column("dataset", datasets), keys, steps)
    return found.sort_by([(key, "ascending") for key in keys])


@metric(STRUCTURE, group=CHUNKS, source="section records", formula="sums and maxima over chunk attempts")
def sections(run: Run, chunks: Table, section_totals: Table) -> dict[str, dict[str, Row]]:  # noqa: ARG001
    """Totals for each section, over all attempts: {name: {dataset: {column: amount}}}.

    The columns are `count`, `wall_seconds`, `self_seconds`, `cpu_seconds`, `max_seconds`, `bytes`, `memory_peak` and
    `errors`. An amount is None unless it was measured for every pass.
    """
    recorded(run, "sections")
    return by_name_and_dataset(section_totals)
