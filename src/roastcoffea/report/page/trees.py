"""Trees of thread time as boxes below each other: the flame graph of process(), and the run by dataset, file, phase."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from bokeh import models
from markupsafe import Markup

from roastcoffea.metrics.catalogue import RUN, NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import with_outcome
from roastcoffea.metrics.phases import (
    BUSY,
    COLUMNS_OF,
    COMPUTING,
    FAMILIES,
    IDLING,
    OVERHEAD,
    PHASES,
    RESIDUAL,
    STARTUP,
    TIME_NAMES,
    TOTAL,
    Phase,
    phases_of,
)
from roastcoffea.metrics.profile import is_own
from roastcoffea.metrics.stacks import ALL_STATES, WORDS, Place
from roastcoffea.metrics.stacks import Node as Frame
from roastcoffea.metrics.statistics import Numbers, amounts, places
from roastcoffea.records.chunks import OK
from roastcoffea.report.page.figures import Chart, Context, family_of, own_figure, variable
from roastcoffea.sheets.markup import rendered
from roastcoffea.units import FRACTION, SECOND, counted

SMALLEST: Final = 5e-4
"""Share of the whole that a box has at least."""

MOST_BOXES: Final = 3000
MOST_DEPTH: Final = 30
MOST_SEPARATE: Final = 40
"""Datasets, and files of each, that have boxes of their own."""

MOST_BRANCHES: Final = 12
OUTSIDE: Final = tuple(name for name in BUSY if name not in {*COLUMNS_OF, STARTUP, OVERHEAD})
"""Classes that hold entire attempts."""

ROW: Final = 21
"""Height of a box in pixels."""

IN_STILL: Final = 300


@dataclass(slots=True, kw_only=True)
class Box:
    """A part of the time, and what it consists of."""

    name: str
    seconds: float
    paint: str
    """Name of its family."""
    pale: bool = False
    notes: Sequence[str] = ()
    children: list[Box] = field(default_factory=list)

    def widened(self) -> Box:
        """It, at least as long as all that is in it."""
        self.seconds = max(self.seconds, sum(child.seconds for child in self.children))
        return self


def flame_graph(context: Context) -> Chart:
    """Functions that took the time of process(), each above what it calls; click one to zoom in, the top one to go
    back. A frame has the colour of what took most of its time. Strong colours are your own code, pale ones libraries.
    """
    profile = context.inputs.value("profile")
    refuse_if(not profile.stacks, "no chunk was in process() when its thread was sampled")
    root = profile.tree()
    first = root.children[0].place if root.children else root.place
    note = f"{counted(root.samples, 'sample')} of {SECOND.text(root.seconds)}."
    functions = _of_frame(root, first, root.seconds, MOST_DEPTH)
    used = {row["paint"] for row in _flat(functions)}
    legend = {family.label: family.name for family in FAMILIES if family.name in used}
    return _chart("flame", {"functions": functions}, note, "process() by function")._replace(legend=legend)


def _of_frame(frame: Frame, first: Place, whole: float, depth: int, numbered: bool = False) -> Box:
    children = [child for child in frame.children if child.seconds >= SMALLEST * whole] if depth else []
    place, functions = frame.place, Counter(child.place.function for child in children)
    states = [f"{SECOND.text(frame.states[state])} {WORDS[state]}" for state in ALL_STATES if frame.states[state] > 0]
    where = [f"{place.file}:{place.line}"] if place.file else []
    notes = [*where, f"in itself {SECOND.text(frame.self_seconds)}", ", ".join(states)]
    return Box(
        name=f"{place.function}:{place.line}" if numbered else place.function,
        seconds=frame.seconds,
        paint=max(frame.families, key=frame.families.__getitem__).name,
        pale=bool(place.file) and not is_own(place, first),
        notes=notes,
        children=[_of_frame(child, first, whole, depth - 1, functions[child.place.function] > 1) for child in children],
    )


def icicle(context: Context) -> Chart:
    """Thread time of the run by dataset, file, and phase and branch, or section. Idle time and time of no dataset
    have parts of their own. Pale sections waited more than they computed. Click a part to zoom in, the top
    one to go back.
    """
    inputs = context.inputs
    attempts: pa.Table = inputs.value("chunk_attempts")
    columns = ["id", "dataset", "file", "outcome", *(phase.column for phase in PHASES)]
    chunks = with_outcome(attempts.select(columns), (OK,))
    lacking = all(chunks[phase.column].null_count == len(chunks) for phase in phases_of(chunks))
    refuse_if(lacking, "no chunk has recorded phases")
    ledger, sections = _measured(inputs, "time_ledger"), _sections(inputs.value(RUN).sections, chunks)
    branches = _by_file(_measured(inputs, "branches"))
    trees = {
        "phases and branches": _run(_datasets(chunks, lambda file, phases: _phases(file, phases, branches)), ledger)
    }
    if sections:
        trees["sections"] = _run(
            _datasets(chunks, lambda file, phases: _within_sections(file, phases, sections), longer=True), ledger
        )
    return _chart("icicle", trees, "", "thread time by dataset and file")


def _run(datasets: list[Box], ledger: Any) -> Box:
    """The whole run: datasets, and what the ledger has beside them."""
    if ledger is None:
        return Box(name="run", seconds=0.0, paint=IDLING.name, children=_largest(datasets, "dataset")).widened()
    parts = [*_largest(_completed(datasets, ledger), "dataset"), *_of_no_dataset(ledger)]
    return Box(name="run", seconds=ledger.total, paint=IDLING.name, children=parts).widened()


def _measured(inputs: Any, name: str) -> Any:
    try:
        return inputs.value(name)
    except NotMeasuredError:
        return None


def _completed(datasets: list[Box], ledger: Any) -> list[Box]:
    """Datasets with what the ledger has beyond their chunks: other tasks, failed attempts, start-up, task overhead."""
    rows = ledger.by("dataset")
    for box in datasets:
        if box.name in rows.index:
            row = rows.loc[box.name]
            rest = float(row[TOTAL]) - sum(child.seconds for child in box.children)
            for name in OUTSIDE:
                seconds = min(float(row.get(name, 0.0)), rest)
                box.children += [_of_class(name, seconds)] if seconds > 0 else []
                rest -= max(seconds, 0.0)
            around = Box(name="around the chunks", seconds=rest, paint=family_of(OVERHEAD).name)
            box.children += [around] if rest > 0 else []
            box.widened()
    return datasets


def _of_no_dataset(ledger: Any) -> Iterator[Box]:
    """Classes of which no dataset has anything."""
    rows = ledger.by("dataset")
    nobody = rows[rows.index.isna()]
    for name in TIME_NAMES:
        seconds = float(nobody[name].sum()) if name in nobody else 0.0
        if name == RESIDUAL or seconds <= 0:
            continue
        yield _of_class(name, seconds)


def _of_class(name: str, seconds: float) -> Box:
    return Box(name=name, seconds=seconds, paint=family_of(name).name)


File = tuple[str, str]
"""Dataset and path."""

Parts = Callable[[File, Mapping[Phase, float]], list[Box]]
"""What a file consists of, by its name and the seconds of its phases."""


def _datasets(chunks: pa.Table, parts: Parts, *, longer: bool = False) -> list[Box]:
    """Datasets with their files; parts of a file may take longer than its phases, which makes it larger."""
    phases = phases_of(chunks)
    columns = [phase.column for phase in phases]
    sums = chunks.group_by(["dataset", "file"]).aggregate([("id", "count"), *((name, "sum") for name in columns)])
    seconds = np.column_stack([np.nan_to_num(amounts(sums, f"{name}_sum")) for name in columns])
    datasets: dict[str, list[int]] = {}
    for row, name in enumerate(sums["dataset"].to_pylist()):
        datasets.setdefault(str(name), []).append(row)
    found = []
    for name, rows in datasets.items():
        largest = np.array(rows)[np.argsort(-seconds[rows].clip(min=0).sum(axis=1), kind="stable")]
        separate = len(largest) if longer else MOST_SEPARATE
        files = [_file(row, phases, parts) for row in sums.take(pa.array(largest[:separate])).to_pylist()]
        found.append(_dataset(name, [*files, *_others(files, phases, seconds[largest[separate:]])]))
    return _sorted(found)


def _file(row: Mapping[str, Any], phases: Sequence[Phase], parts: Parts) -> Box:
    of_phases = {phase: row[f"{phase.column}_sum"] or 0.0 for phase in phases}
    children = _sorted(parts((row["dataset"], row["file"]), of_phases))
    box = Box(name=str(row["file"]), seconds=sum(of_phases.values()), paint=_main(children), children=children)
    box.notes = [counted(row["id_count"], "chunk")]
    return box.widened()


def _others(files: Sequence[Box], phases: Sequence[Phase], seconds: Numbers) -> Iterator[Box]:
    """Smaller files, which have no boxes of their own: of a hundred thousand, their parts would take a minute."""
    families = [family_of(phase.time_class).name for phase in phases]
    names, spent = list(dict.fromkeys(families)), seconds.clip(min=0)
    of_family = np.column_stack([spent[:, [each == name for each in families]].sum(axis=1) for name in names])
    most = min((box.seconds for box in files), default=0.0)
    for whole, family in zip(spent.sum(axis=1).tolist(), of_family.argmax(axis=1).tolist(), strict=True):
        yield Box(name="", seconds=min(whole, most), paint=names[family] if whole else IDLING.name)


def _dataset(name: str, files: list[Box]) -> Box:
    shown = _largest(files, "file")
    return Box(name=name, seconds=0.0, paint=_main(shown), children=shown).widened()


def _largest(boxes: list[Box], thing: str) -> list[Box]:
    """The largest of these things, and one box for all others."""
    boxes, least = _sorted(boxes), SMALLEST * sum(box.seconds for box in boxes)
    shown = [box for box in boxes[:MOST_SEPARATE] if box.seconds >= least]
    if rest := boxes[len(shown) :]:
        name = counted(len(rest), f"more {thing}" if shown else thing)
        shown.append(Box(name=name, seconds=sum(box.seconds for box in rest), paint=_main(rest)))
    return shown


def _sections(sections: pa.Table | None, chunks: pa.Table) -> dict[File, list[Mapping[str, Any]]]:
    """Sections of each file, over these chunks; outer ones before those in them."""
    found: dict[File, list[Mapping[str, Any]]] = {}
    if sections is None or not len(sections):
        return found
    rows = places(sections["chunk"], chunks["id"].combine_chunks())
    here = sections.select(["name", "wall_seconds", "cpu_seconds"]).filter(pa.array(rows >= 0))
    for name in ("dataset", "file"):
        here = here.append_column(name, chunks[name].take(pa.array(rows[rows >= 0])))
    sums = here.group_by(["dataset", "file", "name"]).aggregate([("wall_seconds", "sum"), ("cpu_seconds", "sum")])
    for row in sorted(sums.to_pylist(), key=lambda row: str(row["name"])):
        found.setdefault((row["dataset"], row["file"]), []).append(row)
    return found


def _within_sections(
    file: File, phases: Mapping[Phase, float], sections: Mapping[File, Iterable[Mapping[str, Any]]]
) -> list[Box]:
    """Sections of a file, those in others below them, and the rest of its time."""
    boxes: dict[str, Box] = {}
    top: list[Box] = []
    for row in sections.get(file, ()):
        wall, cpu = row["wall_seconds_sum"] or 0.0, row["cpu_seconds_sum"]
        outer, _, name = str(row["name"]).rpartition("/")
        notes = [] if cpu is None else [f"of it CPU {SECOND.text(cpu)}"]
        waits = cpu is not None and cpu < wall / 2
        box = Box(name=name, seconds=wall, paint=COMPUTING.name, pale=waits, notes=notes)
        boxes[str(row["name"])] = box
        (boxes[outer].children if outer in boxes else top).append(box)
    rest = sum(phases.values()) - sum(box.seconds for box in top)
    outside = [Box(name="outside of sections", seconds=rest, paint=IDLING.name, pale=True)] if rest > 0 else []
    return [*(box.widened() for box in top), *outside]


def _phases(
    file: File, phases: Mapping[Phase, float], branches: Mapping[File, Iterable[Mapping[str, Any]]]
) -> list[Box]:
    return [_phase(phase, seconds, branches.get(file, ())) for phase, seconds in phases.items() if seconds > 0]


def _by_file(branches: pa.Table | None) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    if branches is not None:
        for row in branches.to_pylist():
            found.setdefault((row["dataset"], row["file"]), []).append(row)
    return found


def _phase(phase: Phase, seconds: float, branches: Iterable[Mapping[str, Any]]) -> Box:
    """A phase of a file, with the branches that it went into where these are known."""
    column = f"{phase.name}_seconds"
    paint = family_of(phase.time_class).name
    rows = sorted(((row.get(column) or 0.0, str(row["branch"])) for row in branches), reverse=True)
    children = [Box(name=name, seconds=spent, paint=paint) for spent, name in rows[:MOST_BRANCHES] if spent > 0]
    if sum(child.seconds for child in children) > seconds * (1 + 1e-3):
        children = []  # branches that were read at the same time have more time than there was
    return Box(name=phase.name, seconds=seconds, paint=paint, children=children)


def _sorted(boxes: Iterable[Box]) -> list[Box]:
    return sorted(boxes, key=lambda box: -box.seconds)


def _main(boxes: Iterable[Box]) -> str:
    """Family that most of the time of boxes is of."""
    sums: dict[str, float] = {}
    for box in boxes:
        sums[box.paint] = sums.get(box.paint, 0.0) + box.seconds
    return max(sums, key=lambda name: sums[name], default=IDLING.name)


# Drawing


def _chart(name: str, trees: Mapping[str, Box], note: str, spoken: str) -> Chart:
    """Boxes for a script, which fits labels to what is shown; of several trees people choose one."""
    flat = {label: _flat(root) for label, root in trees.items()}
    depth = max(row["depth"] for rows in flat.values() for row in rows) + 1
    rows, seconds = next(iter(flat.values())), max(root.seconds for root in trees.values())
    plot = own_figure(
        name,
        ROW * depth + 12,
        x_range=models.Range1d(start=0, end=seconds),
        y_range=models.Range1d(start=depth, end=0),
        min_border_left=1,
        min_border_right=1,
    )
    plot.axis.visible = False
    plot.grid.visible = False
    plot.outline_line_color = None
    edges = {name: name for name in ("left", "right", "top", "bottom")}
    boxes = models.ColumnDataSource({key: [] for key in (*edges, "colour")}, name=f"{name}-boxes")
    plot.quad(source=boxes, fill_color="colour", line_color=None, **edges)
    labels = models.ColumnDataSource({key: [] for key in ("x", "y", "text", "colour")}, name=f"{name}-labels")
    plot.text(
        x="x", y="y", text="text", text_color="colour", source=labels, text_font_size="12px", text_baseline="middle"
    )
    facts = {"label": spoken}
    columns = {label: {key: [row[key] for row in found] for key in found[0]} for label, found in flat.items()}
    content = [{"label": label} | of_tree for label, of_tree in columns.items()]
    return Chart(plot, _still(rows, seconds, depth, spoken), {}, facts, json.dumps(content).encode(), note)


def _flat(root: Box) -> list[dict[str, Any]]:
    """Boxes of a tree in the order of their depth, without the smallest."""
    rows: list[dict[str, Any]] = []
    waiting = [(root, 0.0, 0)]
    for box, begin, depth in waiting:
        if len(rows) == MOST_BOXES:
            break
        share = FRACTION.text(box.seconds / root.seconds) if root.seconds else ""
        tip = [box.name, f"{SECOND.text(box.seconds)}, {share} of all", *box.notes]
        rows.append({"left": begin, "width": box.seconds, "depth": depth, "name": box.name, "paint": box.paint})
        rows[-1] |= {"pale": int(box.pale), "tip": tip}
        left = begin
        for child in box.children:
            if child.seconds >= SMALLEST * root.seconds:
                waiting.append((child, left, depth + 1))
            left += child.seconds
    return rows


def _still(rows: Sequence[Mapping[str, Any]], seconds: float, depth: int, spoken: str) -> Markup:
    scale = 1000 / max(seconds, 1e-12)
    boxes = [
        (f"{row['left'] * scale:.1f}", ROW * row["depth"], f"{row['width'] * scale:.1f}", variable(row["paint"]), tip)
        for row in rows[:IN_STILL]
        for tip in [", ".join(row["tip"])]
    ]
    return rendered("tree.svg", height=ROW * depth, label=spoken, boxes=boxes)
