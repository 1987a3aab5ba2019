"""Thread time as nested boxes: a flame graph of process(), and the run by dataset."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from bokeh import models

from roastcoffea.metrics.catalogue import RUN, refuse_if
from roastcoffea.metrics.facts import with_outcome
from roastcoffea.metrics.phases import (
    BUSY,
    COLUMNS_OF,
    COMPUTING,
    FAMILIES,
    IDLING,
    OVERHEAD,
    RESIDUAL,
    STARTUP,
    TIME_NAMES,
    TOTAL,
    TROUBLE,
    Phase,
    phases_of,
)
from roastcoffea.metrics.profile import ALL_STATES, WORDS, Place, is_own
from roastcoffea.metrics.profile import Node as Frame
from roastcoffea.metrics.statistics import amounts, named_codes, places
from roastcoffea.records.arrow import rows_in
from roastcoffea.records.chunks import OK
from roastcoffea.records.columns import grouped
from roastcoffea.report.page.figures import EDGES, Chart, Context, drawn_by_script, family_of, own_figure
from roastcoffea.report.tables import known
from roastcoffea.units import FRACTION, SECOND, counted
from roastcoffea.visualization.distributions import FOR_CPU

SMALLEST: Final = 5e-4
"""Minimum share of the total for a box to be drawn."""

MOST_SEPARATE: Final = 40
"""Maximum number of datasets, and of files per dataset, that get their own boxes."""

OUTSIDE: Final = tuple(name for name in BUSY if name not in {*COLUMNS_OF, STARTUP, OVERHEAD})
"""Ledger classes that consist of entire attempts."""

ROW: Final = 21
"""Height of a box in pixels."""


@dataclass(slots=True)
class Box:
    """A part of the thread time, at least as long as its children combined."""

    name: str
    seconds: float
    paint: str
    """Name of the box's family. If empty, `main_paint` chooses a family from the children."""
    children: list[Box] = field(default_factory=list)
    notes: Sequence[str] = ()
    pale: bool = False
    number: int = 1
    """Number of files that the box stands for."""

    def __post_init__(self) -> None:
        self.seconds = max(self.seconds, sum(child.seconds for child in self.children))
        self.paint = self.paint or main_paint(self.children)


def main_paint(boxes: Iterable[Box]) -> str:
    """Family that accounts for most of the boxes' time. Pale boxes are considered only if there are no others."""
    sums: dict[str, float] = defaultdict(float)
    for box in boxes:
        sums[box.paint] += box.seconds * (1e-9 if box.pale else 1.0)
    return max(sums, key=sums.__getitem__, default=IDLING.name)


def flame_graph(context: Context) -> Chart:
    """Functions in which process() spent its time, each drawn above the functions it calls. A frame's colour shows what
    took most of its time, ignoring CPU contention. Full colours mark your own code; faded colours mark libraries. Click
    a frame to zoom in, or the top frame to zoom out.
    """
    profile = context.inputs.value("profile")
    refuse_if(not profile.stacks, "no chunk was in process() when its thread was sampled")
    root = profile.tree()
    first = root.children[0].place if root.children else root.place
    note = f"{counted(root.samples, 'sample')}, covering {SECOND.text(root.seconds)} of thread time."
    chart = _chart("flame", {"functions": _of_frame(root, first, root.seconds, 30)}, "process() by function")
    used = set(chart.facts["trees"][0]["paint"])
    return chart._replace(legend={one.label: one.name for one in FAMILIES if one.name in used}, note=note)


def _of_frame(frame: Frame, first: Place, whole: float, depth: int, numbered: bool = False) -> Box:
    children = [child for child in frame.children if child.seconds >= SMALLEST * whole] if depth else []
    place, functions = frame.place, Counter(child.place.function for child in children)
    work = frame.families | {TROUBLE: frame.families.get(TROUBLE, 0.0) - frame.states["contention"]}
    states = [f"{SECOND.text(frame.states[state])} {WORDS[state]}" for state in ALL_STATES if frame.states[state] > 0]
    where = [f"{place.file}:{place.line}"] if place.file else []
    return Box(
        f"{place.function}:{place.line}" if numbered else place.function,
        frame.seconds,
        max(work, key=work.__getitem__).name,
        [_of_frame(child, first, whole, depth - 1, functions[child.place.function] > 1) for child in children],
        [*where, f"self time {SECOND.text(frame.self_seconds)}", ", ".join(states)],
        pale=bool(place.file) and not is_own(place, first),
    )


Key = tuple[str, str]

Rows = Mapping[Key, list[dict[str, Any]]]
Parts = Callable[[Key, Mapping[Phase, float]], list[Box]]
"""Function that divides a file into boxes, given the time spent in each of its phases."""


def icicle(context: Context) -> Chart:
    """Thread time by dataset and file, then by phase and branch, or by section. Idle time and time that belongs to no
    dataset are shown separately. Faded boxes show time spent waiting for a core or the GIL, or sections
    that waited longer than they computed. Click a box to zoom in, or the top box to zoom out.
    """
    inputs = context.inputs
    chunks = with_outcome(inputs.value("chunk_attempts"), (OK,))
    lacking = all(chunks[phase.column].null_count == len(chunks) for phase in phases_of(chunks))
    refuse_if(lacking, "no chunk has recorded phases")
    ledger, branches = known(inputs, "time_ledger"), known(inputs, "branches")
    of_branches = grouped(rows_in(branches), "dataset", "file")

    def phases(key: Key, seconds: Mapping[Phase, float]) -> list[Box]:
        return [_phase(phase, spent, of_branches.get(key, [])) for phase, spent in seconds.items() if spent > 0]

    trees = {"phases and branches": _run(_datasets(chunks, phases, MOST_SEPARATE), ledger)}
    if sections := _sections(inputs.value(RUN).sections, chunks):

        def within(key: Key, seconds: Mapping[Phase, float]) -> list[Box]:
            return _within_sections(sections.get(key, []), sum(seconds.values()))

        # sections may add up to more than the phases; the file's box then becomes larger
        trees["sections"] = _run(_datasets(chunks, within, len(chunks)), ledger)
    return _chart("icicle", trees, "thread time by dataset and file")


def _run(datasets: list[Box], ledger: Any) -> Box:
    if ledger is None:
        return Box("run", 0.0, IDLING.name, _largest(datasets, "dataset"))
    rows = ledger.by("dataset")
    whole = [_completed(box, rows.loc[box.name]) if box.name in rows.index else box for box in datasets]
    rest = rows[rows.index.isna()].sum()
    classes = [(name, float(rest.get(name, 0.0))) for name in TIME_NAMES if name != RESIDUAL]
    others = [Box(name, seconds, family_of(name).name) for name, seconds in classes if seconds > 0]
    return Box("run", ledger.total, IDLING.name, [*_largest(whole, "dataset"), *others])


def _completed(box: Box, row: Any) -> Box:
    """Add the dataset's time outside chunks, such as failed attempts and task overhead."""
    rest, more = float(row[TOTAL]) - sum(child.seconds for child in box.children), []
    for name in OUTSIDE:
        seconds = max(min(float(row.get(name, 0.0)), rest), 0.0)
        more.append(Box(name, seconds, family_of(name).name))
        rest -= seconds
    more.append(Box("outside the chunks", rest, family_of(OVERHEAD).name))
    return Box(box.name, 0.0, box.paint, [*box.children, *(part for part in more if part.seconds > 0)])


def _datasets(chunks: pa.Table, parts: Parts, separate: int) -> list[Box]:
    """Boxes for datasets and their files. Only the `separate` largest files in each dataset are subdivided.

    Splitting a hundred thousand files would take a minute.
    """
    phases = phases_of(chunks)
    (dataset, names), (file, files) = (named_codes(chunks[name]) for name in ("dataset", "file"))
    # for a million chunks, Arrow's own grouping takes three times the memory
    codes, group = np.unique(dataset * len(files) + file, return_inverse=True)
    seconds, number = (
        np.column_stack([np.bincount(group, amounts(chunks, one.column)) for one in phases]),
        np.bincount(group),
    )
    whole = seconds.clip(min=0).sum(axis=1)
    order, found = np.argsort(-whole, kind="stable"), []
    for place, name in enumerate(names.to_pylist()):
        rows = order[codes[order] // len(files) == place]
        large, rest, boxes = rows[:separate], rows[separate:], list[Box]()
        texts = files.take(pa.array(codes[large] % len(files))).to_pylist()
        for text, spent, some in zip(texts, seconds[large].tolist(), number[large].tolist(), strict=True):
            inside = parts((name, text), dict(zip(phases, spent, strict=True)))
            inside.sort(key=lambda box: -box.seconds)
            boxes.append(Box(str(text), sum(spent), "", inside, [counted(some, "chunk")]))
        longest, amount = seconds[rest].argmax(axis=1), np.minimum(whole[rest], boxes[-1].seconds)
        for column, phase in enumerate(phases):
            own = amount[longest == column]
            boxes.append(Box("", float(own.sum()), family_of(phase.time_class).name, number=len(own)))
        found.append(Box(str(name), 0.0, "", _largest([box for box in boxes if box.number], "file")))
    return found


def _largest(boxes: list[Box], thing: str) -> list[Box]:
    boxes = sorted(boxes, key=lambda box: (box.number > 1, -box.seconds))
    least = SMALLEST * sum(box.seconds for box in boxes)
    shown = [box for box in boxes[:MOST_SEPARATE] if box.number == 1 and box.seconds >= least]
    if rest := boxes[len(shown) :]:
        name = counted(sum(box.number for box in rest), f"more {thing}" if shown else thing)
        shown.append(Box(name, sum(box.seconds for box in rest), main_paint(rest)))
    return shown


def _sections(sections: pa.Table | None, chunks: pa.Table) -> Rows:
    """Sections in each file, summed over these chunks, with outer sections first."""
    if sections is None:
        return {}
    rows = places(sections["chunk"], chunks["id"].combine_chunks())
    here = sections.select(["name", "wall_seconds", "cpu_seconds"]).filter(pa.array(rows >= 0))
    for name in ("dataset", "file"):
        here = here.append_column(name, chunks[name].take(pa.array(rows[rows >= 0])))
    sums = here.group_by(["dataset", "file", "name"]).aggregate([("wall_seconds", "sum"), ("cpu_seconds", "sum")])
    return grouped(sums.sort_by("name").to_pylist(), "dataset", "file")


def _within_sections(sections: Iterable[Mapping[str, Any]], seconds: float) -> list[Box]:
    inner: dict[str, list[Box]] = defaultdict(list)
    for row in reversed(list(sections)):  # an inner section is recorded before its outer section
        outer, _, name = row["name"].rpartition("/")
        wall, cpu = row["wall_seconds_sum"] or 0.0, row["cpu_seconds_sum"]
        notes = [] if cpu is None else [f"CPU {SECOND.text(cpu)}"]
        waits = cpu is not None and cpu < wall / 2
        inner[outer].append(Box(name, wall, COMPUTING.name, inner.pop(row["name"], []), notes, waits))
    # sections inside a section that was left open become top-level sections
    top = [box for boxes in inner.values() for box in boxes]
    rest = seconds - sum(box.seconds for box in top)
    return [*top, *([Box("outside sections", rest, IDLING.name, pale=True)] if rest > 0 else [])]


def _phase(phase: Phase, seconds: float, branches: Iterable[Mapping[str, Any]]) -> Box:
    paint = family_of(phase.time_class).name
    rows = sorted(((row.get(phase.column) or 0.0, str(row["branch"])) for row in branches), reverse=True)
    children = [Box(name, spent, paint) for spent, name in rows[:12] if spent > 0]
    # branches read at the same time add up to more than the elapsed time
    too_long = sum(child.seconds for child in children) > seconds * (1 + 1e-3)
    return Box(phase.name, seconds, paint, [] if too_long else children, pale=phase.time_class in FOR_CPU)


# Drawing


def _chart(name: str, trees: Mapping[str, Box], spoken: str) -> Chart:
    """Chart of boxes. A script fits the labels to the zoom level, and users choose which tree to show."""
    flat = [{"label": label, **_flat(root)} for label, root in trees.items()]
    depth = max(max(tree["depth"]) for tree in flat) + 1
    plot = own_figure(
        name,
        ROW * depth + 12,
        x_range=models.Range1d(start=0, end=max(root.seconds for root in trees.values())),
        y_range=models.Range1d(start=depth, end=0),
        min_border_left=1,
        min_border_right=1,
    )
    plot.axis.visible = False
    plot.grid.visible = False
    plot.outline_line_color = None
    drawn_by_script(plot.quad, f"{name}-boxes", EDGES, fill_color="colour", line_color=None)
    look: dict[str, Any] = {"text_color": "colour", "text_font_size": "12px", "text_baseline": "middle"}
    drawn_by_script(plot.text, f"{name}-labels", ("x", "y", "text"), **look)
    return Chart(plot, {"label": spoken, "trees": flat})


def _flat(root: Box) -> dict[str, list[Any]]:
    """Columns for a tree's boxes, ordered by depth. The smallest boxes are left out."""
    rows: list[tuple[Any, ...]] = []
    waiting = [(root, 0.0, 0)]
    for box, begin, depth in waiting:
        if len(rows) == 3000:
            break
        share = FRACTION.text(box.seconds / root.seconds) if root.seconds else ""
        tip = [box.name, f"{SECOND.text(box.seconds)}, {share} of the total", *box.notes]
        rows.append((begin, box.seconds, depth, box.name, box.paint, int(box.pale), tip))
        left = begin
        for child in box.children:
            if child.seconds >= SMALLEST * root.seconds:
                waiting.append((child, left, depth + 1))
            left += child.seconds
    names = ("left", "width", "depth", "name", "paint", "pale", "tip")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
