"""Comparison of runs with explanations, as text, Markdown, JSON or an HTML page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from itertools import product
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE, Metrics
from roastcoffea.metrics.ledger import LABELS_OF, bar_of
from roastcoffea.metrics.phases import CONTENTION, FAMILY_OF, WAIT
from roastcoffea.report.page import frame
from roastcoffea.sheets.markup import markdown
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Card, Cell, Column, Drawn, Sheet, columns
from roastcoffea.sheets.terminal import for_terminal, print_sheets
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.explanation import Difference, Part, explained, middle_of
from roastcoffea.studies.merging import measurement_of
from roastcoffea.studies.observations import (
    CHUNKS,
    CONFIDENCE,
    FAILED,
    LETTERS,
    RUNS,
    UNKNOWN,
    Outcome,
    Side,
    change_of,
    condition_of,
    distinct,
    outcome_of,
    side_of,
    signed,
    spread,
)
from roastcoffea.studies.side_by_side import (
    BYTE_LEDGER,
    EVENTS,
    JUDGED,
    MAIN,
    METRICS,
    THREAD_TIME,
    WALL,
    Row,
    Speed,
    all_have,
    facts_of,
    rows_of,
    speed,
)
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, Unit, alike, counted

if TYPE_CHECKING:
    import pandas as pd


def bars_of(sides: Sequence[Side]) -> Iterator[Drawn]:
    """Draw each ledger as one bar per side on a common scale, unless a side lacks the ledger.

    If a side has repeats, the bar shows the run with the median wall time.
    """
    for section, unit, name in ((THREAD_TIME, SECOND, "time"), (BYTE_LEDGER, BYTE, "bytes")):
        ledgers = [getattr(middle_of(side.runs), name) for side in sides]
        known = [{of: amount for of, amount in ledger.items() if amount is not None} for ledger in ledgers]
        totals = [sum(ledger.values()) for ledger in known]
        if all(totals):
            for side, ledger, total in zip(sides, known, totals, strict=True):
                yield bar_of(ledger, unit, f"{side.letter}: {section}, {unit.text(total)}", total, max(totals))


def card_of(part: Part) -> Card:
    label, saving = LABELS_OF.get(part.cause, part.cause), f"{signed(SECOND, part.wall_seconds)} of wall time"
    return Card(f"{label[:1].upper()}{label[1:]}", saving, part.text, family=FAMILY_OF.get(part.cause))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Presented):
    """Result of `compare`. Each side is compared with the first."""

    sides: tuple[Side, ...]
    confidence: float
    speeds: tuple[Speed, ...]
    """Verdict on each side except the first."""
    explanations: tuple[Difference, ...]
    """Explanation for each side except the first."""
    facts: Mapping[str, tuple[str, ...]]
    """Environment and settings of each side."""
    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    """Outcomes of the `fail_if` conditions."""

    @property
    def verdict(self) -> str:
        """Verdict on the second side ("faster", "slower" or "cannot tell")."""
        return self.speeds[0].word

    @property
    def headline(self) -> str:
        """Summary of the significant changes on the second side."""
        return self.speeds[0].headline

    @property
    def explanation(self) -> Difference:
        """Why the second side differs from the first."""
        return self.explanations[0]

    @property
    def status(self) -> int:
        """Exit status for CI: 0 if all conditions passed, 1 if any failed, otherwise 2."""
        words = [outcome.word for outcome in self.outcomes]
        return 1 if FAILED in words else 2 if UNKNOWN in words else 0

    def sheets(self, *, everything: bool = False) -> list[Sheet]:
        return list(_sheets(self, everything))

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print the differences (or all values) to the terminal or a file."""
        print_sheets(self.sheets(everything=everything), file)

    def to_markdown(self, *, everything: bool = False) -> str:
        """Render the differences (or all values) as GitHub Markdown."""
        return markdown(self.sheets(everything=everything))

    markdown = to_markdown

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON-serialisable dictionary."""
        first, *others = self.sides
        return {
            "format": "roastcoffea comparison 1",
            "confidence": self.confidence,
            "sides": [
                {"letter": side.letter, "label": side.label, "left_out": list(side.left_out)}
                | {"runs": [run.name for run in side.runs]}
                | {"incomplete": {run.name: run.lacks for run in side.runs if run.lacks is not None}}
                for side in self.sides
            ],
            "comparisons": [
                {"before": first.letter, "after": other.letter, "verdict": speed.word, "headline": speed.headline}
                | {"metric": speed.metric, "text": speed.text, "judgement": speed.judgement._asdict()}
                | {"clear": [change._asdict() for change in speed.clear]}
                | {"explanation": asdict(why) | {"rest_seconds": why.rest}}
                for other, speed, why in zip(others, self.speeds, self.explanations, strict=True)
            ],
            "facts": {name: list(values) for name, values in self.facts.items()},
            "metrics": {row.metric.name: _metric(row) for row in self.rows if any(row.spreads)},
            "conditions": [
                {"condition": one.condition.text, "side": one.label, "outcome": one.word, "text": one.text}
                | {"judgement": one.judgement._asdict()}
                for one in self.outcomes
            ],
            "status": self.status,
        }

    def write(
        self, path: str | PathLike[str] | None, form: str = "text", *, everything: bool = False, overwrite: bool = False
    ) -> None:
        """Write the comparison to a file or, without a path, to standard output.

        Parameters
        ----------
        form : {"text", "markdown", "json", "html"}
            Output format.
        everything
            Include values without a clear difference. JSON output always includes all values.
        overwrite
            Overwrite an existing file.

        Raises
        ------
        MeasurementError
            If the file already exists or cannot be written.
        """
        if path is not None:
            with whole_file(Path(path), overwrite=overwrite) as file:
                file.write(self.text(form, everything=everything).encode())
        elif form == "text":
            print(for_terminal(self.sheets(everything=everything)), end="", flush=True)  # noqa: T201
        else:
            print(self.text(form, everything=everything), end="", flush=True)  # noqa: T201

    def text(self, form: str, *, everything: bool = False) -> str:
        if form == "markdown":
            return self.to_markdown(everything=everything)
        if form == "json":
            return json.dumps(self.as_dict(), indent=1) + "\n"
        if form == "html":
            first, *others = (side.label for side in self.sides)
            return frame.page(f"{', '.join(others)} against {first}", self.sheets(everything=everything))
        file = StringIO()
        self.print(file, everything=everything)
        return file.getvalue()


# For people


def _sheets(found: Comparison, everything: bool) -> Iterator[Sheet]:
    yield Sheet(title="verdict", notes=list(_verdict(found, everything)), bars=list(bars_of(found.sides)))
    if found.outcomes:
        yield Sheet(title="conditions", notes=[f"{o.label}: {o.text}" for o in found.outcomes])
    for side, explanation in zip(found.sides[1:], found.explanations, strict=True):
        yield _explanation(f"why {side.letter} differs from {found.sides[0].letter}", explanation, everything)
        yield from _functions(found.sides[0], side)
    facts = [(name, *values) for name, values in found.facts.items() if everything or len(set(values)) > 1]
    if facts:
        heads = columns(None, "", *(side.letter for side in found.sides))
        yield Sheet(title="environment and settings", columns=heads, rows=facts)
    yield from _sections(found, everything)
    yield from _notes(found, everything)


def _verdict(found: Comparison, everything: bool) -> Iterator[str]:
    first, *others = found.sides
    pairs = [*zip(others, found.speeds, strict=True)]
    yield from (f"{side.letter}{' is' if speed.told else ':'} {speed.headline}" for side, speed in pairs)
    releases = found.facts.get("coffea", ())
    if len({*releases} - {"-"}) > 1:
        used = (f"{release} ({side.letter})" for side, release in zip(found.sides, releases, strict=True))
        yield f"The runs used different releases of coffea: {', '.join(used)}"
    for side in found.sides:
        for run in (run for run in side.runs if run.lacks is not None):
            yield f"{side.letter} is incomplete{f' ({run.name})' if len(side.runs) > 1 else ''}: {run.lacks}"
    for side in found.sides:
        text = f"{side.letter}: {side.label} ({counted(len(side.runs), 'run')})"
        if all_have(side.runs, WALL):
            wall = spread(side.runs, WALL, found.confidence)
            text += f", wall time {SECOND.text(wall.median)}"
            if wall.low is not None and wall.high is not None:
                over = ", from its chunks" if wall.over == CHUNKS else ""
                text += f" ({SECOND.text(wall.low)} to {SECOND.text(wall.high)}{over})"
        yield text
    for side in others:  # a run passed on both sides hides differences
        same = [run.name for run in side.runs if run.id in {known.id for known in first.runs}]
        if same:
            yield f"{side.letter} shares runs with {first.letter}: {', '.join(same)}"
    yield from (f"left out of {side.letter}: {reason}" for side in found.sides for reason in side.left_out)
    for side, one in pairs:
        if one.text not in one.headline:
            whole = everything or one.observed is None or not one.clear
            said = one.text if whole else f"no verdict on {JUDGED[one.metric]}, because {one.judgement.why}"
            yield f"{side.letter}: {said}"


# The explanation


def _explanation(title: str, why: Difference, everything: bool) -> Sheet:
    if why.absent is not None:
        return Sheet(title=title, notes=[f"not explained: {why.absent}"])
    # combine small parts
    least = 0.0 if everything else 0.02 * max((abs(part.wall_seconds) for part in why.parts), default=0.0)
    shown = [part for part in why.parts if abs(part.wall_seconds) >= least]
    rows = [(LABELS_OF.get(one.cause, one.cause), *_seconds(one), _reason(one)) for one in shown]
    small = [_seconds(part) for part in why.parts if part not in shown]
    if small:
        rows.append((f"{len(small)} smaller", *np.sum(small, axis=0).tolist(), "--all (everything=True) shows them"))
    # waiting due to higher load is listed under contention and interpreter lock
    rows.append(("difference", why.wall_seconds, why.thread_seconds, 0.0, ""))
    seconds = Unit("s", partial(signed, alike(SECOND, [amount for row in rows for amount in row[1:4]])))
    sheet = Sheet(
        title=title,
        columns=[
            Column("cause"),
            *columns(seconds, "wall", "thread time"),
            Column("core wait", seconds, "additional waiting for a core or the GIL due to this cause"),
            Column(""),
        ],
        rows=[(*row[:3], row[3] or None, row[4]) for row in rows],
        notes=[*(f"{one.text}." for one in why.kept), *why.remarks],
        cards=[card_of(part) for part in shown[:6]],
    )
    if not everything:  # these two add up to the wall time only over all threads
        return sheet.without(3).without(2)
    return sheet if any(row[3] for row in rows) else sheet.without(3)


def _seconds(part: Part) -> tuple[float, float, float]:
    return part.wall_seconds, part.thread_seconds, part.load_seconds


def _reason(part: Part) -> str:
    waits = abs(part.load_seconds) > 0.1 * abs(part.thread_seconds)
    return f"{part.text}, including the resulting waits for a core" if waits else part.text


def _functions(first: Side, other: Side) -> Iterator[Sheet]:
    """CPU time of the user functions that changed most, scaled to the first side's events."""
    runs = [middle_of(side.runs) for side in (first, other)]
    events = [run.metrics.get(EVENTS) for run in runs]
    if not all(events) or any(run.functions is None for run in runs):
        return
    sums = [Counter[str](), Counter[str]()]
    for run, each, count in zip(runs, sums, events, strict=True):
        for (function, _), seconds in (run.functions or {}).items():
            each[function] += seconds * events[0] / count  # type: ignore[assignment,operator]
    least = 0.05 * max(sum(each.values()) for each in sums)
    changed = sorted({*sums[0], *sums[1]}, key=lambda name: -abs(sums[1][name] - sums[0][name]))[:4]
    rows: list[list[Cell]] = [
        [name, *(Amount(each[name], SECOND) for each in sums), Amount(change, text=change_of(SECOND, change))]
        for name in changed
        if abs(change := sums[1][name] - sums[0][name]) >= least
    ]
    if rows:
        heads = columns(None, "function") + columns(COUNT, first.letter, other.letter, "change")
        scaled = f" for the events of {first.letter}" if events[0] != events[1] else ""
        yield Sheet(title=f"CPU time of your functions{scaled}", columns=heads, rows=rows)


# Side by side


def _sections(found: Comparison, everything: bool) -> Iterator[Sheet]:
    known = {row.label for row in found.rows if row.section == THREAD_TIME and all(row.spreads)}
    sums = {WAIT} if CONTENTION in known and not everything else set()
    for place in range(1, len(found.sides)):
        first, other = found.sides[0].letter, found.sides[place].letter
        heads = columns(None, "") + columns(COUNT, first, other, "change", "relative")
        for section in (METRICS, THREAD_TIME, BYTE_LEDGER):
            every = [row for row in found.rows if row.section == section and row.label not in sums]
            every.sort(key=lambda row: MAIN.index(row.metric.group) if row.metric.group in MAIN else len(MAIN))
            labels = Counter(row.label for row in every)
            rows = [
                (row.label if labels[row.label] == 1 else f"{row.metric.group}: {row.label}", *_cells(row, place))
                for row in every
                if (row.spreads[0] or row.spreads[place]) and (everything or (row.shown and row.differs_at[place]))
            ]
            if rows:
                title = section if len(found.sides) == 2 else f"{section}, {other} against {first}"
                yield Sheet(title=title, columns=heads, rows=rows)


def _cells(row: Row, place: int) -> Iterator[Cell]:
    change, relative = row.change(place), row.relative_change(place)
    both = [known and known.median for known in (row.spreads[0], row.spreads[place])]
    unit = alike(row.metric.unit, [amount for amount in (*both, change) if amount is not None])
    yield from (None if amount is None else Amount(amount, text=unit.text(amount)) for amount in both)
    yield Amount(change, text="" if change is None else change_of(unit, change))
    text, judgement = "" if relative is None else signed(FRACTION, relative), row.judgements[place]
    if text and judgement and judgement.low != judgement.high:
        text += f" ({100 * (judgement.low or 0.0):+.3g}, {100 * (judgement.high or 0.0):+.3g})"
    yield Amount(relative, text=text)


def _notes(found: Comparison, everything: bool) -> Iterator[Sheet]:
    known = [row for row in found.rows if any(row.spreads)]
    notes = []
    for side in found.sides:
        of_repeats = ("processor", "executor", "fileset", "chunksize", "threads of workers")
        names = ", ".join(name for name in of_repeats if len({run.facts.get(name) for run in side.runs}) > 1)
        if names:
            notes.append(f"runs of {side.letter} are not repeats of each other: they differ in {names}")
    if not everything:
        same = sum(not any(row.differs_at) for row in known)
        same += sum(len(set(values)) == 1 for values in found.facts.values())
        more = sum(any(row.differs_at) and not row.shown for row in known)
        hidden = f"{counted(more, 'other row')} with a difference and {same} without a clear one"
        notes.append(f"{hidden} are hidden; --all (everything=True) shows all.")
    if any(judgement and judgement.over == RUNS for row in found.rows for judgement in row.judgements):
        notes.append(f"In brackets: {found.confidence:.0%} interval of the change, based on repeats.")
    if notes:
        yield Sheet(title="notes", notes=notes)


# For programs


def _metric(row: Row) -> dict[str, Any]:
    changes = [
        judged and {"absolute": row.change(place), "relative": row.relative_change(place), **judged._asdict()}
        for place, judged in enumerate(row.judgements[1:], start=1)
    ]
    values = [found and found._asdict() for found in row.spreads]
    said = {"unit": str(row.metric.unit), "section": row.section, "differs": any(row.differs_at)}
    return said | {"values": values, "changes": changes}


def compare(
    *given: Any,
    labels: Sequence[str] | None = None,
    fail_if: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    folder: Path | None = None,
) -> Comparison:
    """Compare runs with the first run, and explain the differences.

    Parameters
    ----------
    given
        Two or more sides. Each side is a measurement, a collector, a path, or a list of these. The items of a list are
        treated as repeats of a run. A path may point to a measurement or to a folder of repeats. It may also be a
        pattern, or the common name of numbered repeats.
    labels
        Labels for the sides.
    fail_if
        Conditions on how metrics change, such as "event_rate_core_khz < -10%". `Comparison.status` depends on their
        outcomes.
    confidence
        Confidence level for intervals, verdicts and conditions.
    folder
        Folder in which to look up measurements by name.

    Raises
    ------
    ComparisonError
        If there are no comparable runs, the number of labels is wrong, or a condition is malformed.
    MeasurementError
        If a measurement cannot be read.
    """
    conditions = [condition_of(text) for text in fail_if]
    if not 2 <= len(given) <= len(LETTERS):
        raise ComparisonError(f"compare takes 2 to {len(LETTERS)} runs, not {len(given)}")
    if not 0.5 <= confidence < 1:
        raise ComparisonError(f"confidence is {confidence}; pass at least 0.5 and less than 1")
    if labels and len(labels) != len(given):
        raise ComparisonError(f"{len(labels)} labels for {len(given)} runs: pass one label per run")
    names: Sequence[str | None] = labels or [None] * len(given)
    sides = distinct([side_of(*each, folder) for each in zip(LETTERS, given, names, strict=False)])
    first, others = sides[0].runs, sides[1:]
    pairs = product(others, conditions)
    return Comparison(
        sides=sides,
        confidence=confidence,
        speeds=tuple(speed(first, side.runs, confidence) for side in others),
        explanations=tuple(explained(first, side.runs) for side in others),
        facts=facts_of(sides),
        rows=tuple(rows_of(sides, confidence)),
        outcomes=tuple(outcome_of(one, first, side.runs, side.letter, confidence) for side, one in pairs),
    )


# Scenarios


def compare_scenarios(scenarios: Mapping[str, Any], file: IO[str] | None = None) -> pd.DataFrame:
    """Print scenarios side by side, and return the table.

    The returned table has a row for each scenario and a column for each metric.

    Parameters
    ----------
    scenarios : mapping
        Maps each label to a collector, a measurement, the path of a measurement, or a mapping of metrics.
    file : optional
        File to print the table to. The default is the terminal.

    Raises
    ------
    ComparisonError
        If `scenarios` is empty or not a mapping.
    """
    import pandas as pd

    if not isinstance(scenarios, Mapping):
        raise ComparisonError(f"pass scenarios as {{label: run, ...}}, not as {type(scenarios).__name__}")
    if not scenarios:
        raise ComparisonError("there are no scenarios: pass {label: run, ...}")
    titles = {
        "elapsed_time_seconds": "wall time",
        "processor_cpu_time_seconds": "processor CPU",
        "processor_noncpu_time_seconds": "processor non-CPU",
        "processor_cpu_percentage": "CPU share",
        "processor_noncpu_percentage": "non-CPU share",
        "overhead_cpu_time_seconds": "overhead CPU",
        "overhead_noncpu_time_seconds": "overhead non-CPU",
    }
    metrics = {label: _metrics(run) for label, run in scenarios.items()}
    units = {metric.name: metric.unit for metric in CATALOGUE.metrics() if metric.name in titles}
    sheets = []
    for at in range(0, len(metrics), 4):
        some = dict([*metrics.items()][at : at + 4])
        reasons = {
            f"{label}: {getattr(values, 'missing', {}).get(name, f'{name} is missing')}": None
            for label, values in some.items()
            for name in titles
            if values.get(name) is None
        }
        rows: list[list[Cell]] = [
            [title, *(Amount(values.get(name), units[name]) for values in some.values())]
            for name, title in titles.items()
        ]
        heads = columns(None, "") + columns(COUNT, *some)
        sheets.append(Sheet(title="scenarios", columns=heads, rows=rows, notes=list(reasons)))
    print_sheets(sheets, file)
    table = [[values.get(name) for name in titles] for values in metrics.values()]
    frame = pd.DataFrame(table, index=pd.Index(list(metrics), name="scenario"), columns=list(titles), dtype=float)
    frame.attrs["units"] = {name: str(units[name]) for name in titles}
    return frame


def _metrics(run: Any) -> Mapping[str, Any]:
    if isinstance(run, Metrics):
        return run
    if isinstance(run, Mapping):
        return {name: run[alias] for alias, name in CATALOGUE.aliases.items() if alias in run} | dict(run)
    return measurement_of(run).metrics
