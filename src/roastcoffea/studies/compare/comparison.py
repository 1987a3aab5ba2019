"""A comparison of runs, and how people and programs get it: as text, Markdown, page, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final

from roastcoffea.report.markdown import markdown
from roastcoffea.report.page import frame
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Amount, Cell, Column, Sheet
from roastcoffea.report.terminal import for_terminal, print_sheets
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.compare.explanation import Explanation, Part
from roastcoffea.studies.compare.gate import FAILED, PASSED, STATUS, UNKNOWN, Outcome, change_of, signed
from roastcoffea.studies.compare.repeats import CHUNKS, RUNS, Judgement, spread
from roastcoffea.studies.compare.side_by_side import BYTE_LEDGER, METRICS, THREAD_TIME, Fact, Row
from roastcoffea.studies.compare.sides import Side
from roastcoffea.studies.compare.speed import WALL, Speed, all_have
from roastcoffea.units import COUNT, FRACTION, SECOND, Unit, number

FORMAT: Final = "roastcoffea comparison 1"

Document = dict[str, Any]

LEAST_PART: Final = 0.02
"""Share of the largest part below which parts of an explanation are shown together."""

OF_REPEATS: Final = ("processor", "executor", "fileset", "chunksize", "threads of workers")
"""What repeats of a run have in common."""

DIFFERENCE: Final = Unit("s", partial(signed, SECOND))
CAUSES: Final = (
    Column(name="cause"),
    Column(name="wall", unit=DIFFERENCE),
    Column(name="thread time", unit=DIFFERENCE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Presented):
    """Runs side by side, each against the first: see `compare`."""

    sides: tuple[Side, ...]
    confidence: float
    speeds: tuple[Speed, ...]
    """Verdict on each side but the first."""
    explanations: tuple[Explanation, ...]
    """Why each side but the first differs from it."""
    facts: tuple[Fact, ...]
    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    """What became of the conditions of `fail_if`."""

    @property
    def verdict(self) -> str:
        """ "faster", "slower" or "cannot tell", of the second side."""
        return self.speeds[0].word

    @property
    def explanation(self) -> Explanation:
        """Why the second side differs from the first."""
        return self.explanations[0]

    @property
    def status(self) -> int:
        """Exit status of a gate: 0, 1 (a condition failed, with evidence) or 2 (one cannot be told)."""
        words = [outcome.word for outcome in self.outcomes]
        return STATUS[FAILED if FAILED in words else UNKNOWN if UNKNOWN in words else PASSED]

    def sheets(self, *, everything: bool = False) -> list[Sheet]:
        """What differs, or everything."""
        return list(_sheets(self, everything))

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print what differs, or everything, to the terminal or into a file."""
        print_sheets(self.sheets(everything=everything), file)

    def to_markdown(self, *, everything: bool = False) -> str:
        """What differs, or everything, in GitHub's Markdown."""
        return markdown(self.sheets(everything=everything))

    markdown = to_markdown

    def as_dict(self) -> Document:
        """All of it in types of standard JSON."""
        return _document(self)

    def write(
        self, path: str | PathLike[str] | None, form: str = "text", *, everything: bool = False, overwrite: bool = False
    ) -> None:
        """Write it to a file, or (without a path) to the standard output.

        Parameters
        ----------
        form : {"text", "markdown", "json", "html"}
            How to write it.
        everything
            Whether also what does not differ; "json" has all of it.
        overwrite
            Replace a file that is there.

        Raises
        ------
        MeasurementError
            If there is a file already.
        """
        if path is not None:
            with whole_file(Path(path), overwrite=overwrite) as file:
                file.write(self.text(form, everything=everything).encode())
        elif form == "text":
            print(for_terminal(self.sheets(everything=everything)), end="", flush=True)  # noqa: T201
        else:
            print(self.text(form, everything=everything), end="", flush=True)  # noqa: T201

    def text(self, form: str, *, everything: bool = False) -> str:
        """It as "text", "markdown", "json" or "html", the last as a page of its own."""
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
    """Verdict, explanation, and what differs (or everything) of the environment, metrics and ledgers."""
    yield Sheet(title="verdict", notes=list(_verdict(found)))
    if found.outcomes:
        yield Sheet(title="conditions", notes=[f"{o.label}: {o.text}" for o in found.outcomes])
    for side, explanation in zip(found.sides[1:], found.explanations, strict=True):
        yield _explanation(f"why {side.letter} differs from {found.sides[0].letter}", explanation, everything)
    yield from _facts(found, everything)
    yield from _sections(found, everything)
    yield from _notes(found, everything)


def _verdict(found: Comparison) -> Iterator[str]:
    first, *others = found.sides
    yield from (f"{side.heading}{_wall_of(side, found.confidence)}" for side in found.sides)
    for side in others:  # a run that was given for two sides makes each look like the other
        same = [run.name for run in side.runs if run.id in {known.id for known in first.runs}]
        if same:
            yield f"{side.letter} has runs of {first.letter} in it: {', '.join(same)}"
    yield from (f"{side.letter} has left out {reason}" for side in found.sides for reason in side.left_out)
    for side, speed in zip(others, found.speeds, strict=True):
        yield f"{side.letter} is {speed.text}" if speed.judgement.side else f"{side.letter}: {speed.text}"


def _wall_of(side: Side, confidence: float) -> str:
    """Median of the wall time, with its interval."""
    if not all_have(side.runs, WALL):
        return ""
    found = spread(side.runs, WALL, confidence)
    middle = f", wall time {SECOND.text(found.median)}"
    if found.low is None or found.high is None:
        return middle
    over = ", over its chunks" if found.over == CHUNKS else ""
    return f"{middle} ({SECOND.text(found.low)} to {SECOND.text(found.high)}{over})"


# The explanation


def _explanation(title: str, explanation: Explanation, everything: bool) -> Sheet:
    if explanation.absent is not None:
        return Sheet(title=title, notes=[f"not explained: {explanation.absent}"])
    shown, rest = _split(explanation.parts, everything)
    rows = [(part.cause, part.wall_seconds, part.thread_seconds, part.text) for part in shown]
    if rest:
        names = ", ".join(part.cause for part in rest)
        wall, threads = sum(part.wall_seconds for part in rest), sum(part.thread_seconds for part in rest)
        rows.append((f"{len(rest)} smaller ones", wall, threads, names))
    rows.append(("difference", explanation.wall_seconds, explanation.thread_seconds, ""))
    return Sheet(title=title, columns=(*CAUSES, Column(name="")), rows=rows, notes=explanation.remarks)


def _split(parts: Sequence[Part], everything: bool) -> tuple[list[Part], list[Part]]:
    """Parts that are shown, and those that are too small to be."""
    least = 0.0 if everything else LEAST_PART * max((abs(part.wall_seconds) for part in parts), default=0.0)
    small = [part for part in parts if abs(part.wall_seconds) < least]
    return [part for part in parts if part not in small], small if len(small) > 1 else []


# Side by side


def _facts(found: Comparison, everything: bool) -> Iterator[Sheet]:
    rows = [(fact.name, *fact.values) for fact in found.facts if fact.differs or everything]
    if rows:
        columns = [Column(name=name) for name in ("", *(side.letter for side in found.sides))]
        yield Sheet(title="what they ran on", columns=columns, rows=rows)


def _sections(found: Comparison, everything: bool) -> Iterator[Sheet]:
    """Metrics and ledgers, of each side beside the first."""
    for place in range(1, len(found.sides)):
        shown = [row for row in found.rows if row.is_known(place) and (everything or row.differs_at[place])]
        for section in (METRICS, THREAD_TIME, BYTE_LEDGER):
            rows = [row for row in shown if row.section == section]
            if rows:
                yield _section(found, section, rows, place)


def _section(found: Comparison, section: str, rows: list[Row], place: int) -> Sheet:
    first, other = found.sides[0].letter, found.sides[place].letter
    labels = Counter(_label(row) for row in found.rows if row.section == section)
    named = [_label(row) if labels[_label(row)] == 1 else f"{row.metric.group}: {_label(row)}" for row in rows]
    amounts = [Column(name=name, unit=COUNT) for name in (first, other, "change", "relative")]
    return Sheet(
        title=section if len(found.sides) == 2 else f"{section}, {other} beside {first}",
        columns=[Column(name=""), *amounts],
        rows=[(name, *_cells(row, place)) for name, row in zip(named, rows, strict=True)],
    )


def _label(row: Row) -> str:
    metric = row.metric
    return f"{metric.label} ({metric.statistic})" if metric.statistic else metric.label


def _cells(row: Row, place: int) -> Iterator[Cell]:
    """Both medians, and their difference, absolute and relative."""
    unit, change, relative = row.metric.unit, row.change(place), row.relative_change(place)
    for known in (row.spreads[0], row.spreads[place]):
        yield None if known is None else Amount(known.median, unit)
    yield Amount(change, text="" if change is None else change_of(unit, change))
    within = "" if relative is None else signed(FRACTION, relative) + _within(row.judgements[place])
    yield Amount(relative, text=within)


def _within(judgement: Judgement | None) -> str:
    """Interval of a relative change, briefly."""
    if judgement is None or judgement.low is None or judgement.high is None or judgement.low == judgement.high:
        return ""
    return f" ({100 * judgement.low:+.3g}, {100 * judgement.high:+.3g})"


# Notes


def _notes(found: Comparison, everything: bool) -> Iterator[Sheet]:
    """How much is not shown, and what intervals are."""
    known = [row for row in found.rows if any(row.spreads)]
    alike = sum(not row.differs for row in known) + sum(not fact.differs for fact in found.facts)
    notes = list(_no_repeats(found.sides))
    if not everything:
        notes.append(f"{number(alike)} rows do not differ, or no more than repeats do: see --all")
    if any(judgement.over == RUNS for row in found.rows for judgement in row.judgements if judgement is not None):
        notes.append(f"In brackets: {found.confidence:.0%} interval of the change, from repeats.")
    if notes:
        yield Sheet(title="notes", notes=notes)


def _no_repeats(sides: Iterable[Side]) -> Iterator[str]:
    """Sides whose runs are not of one kind."""
    for side in sides:
        names = [name for name in OF_REPEATS if len({run.facts.get(name) for run in side.runs}) > 1]
        if names:
            yield f"{side.letter} has runs that are no repeats of each other: they differ in {', '.join(names)}"


# For programs


def _document(found: Comparison) -> Document:
    """All of a comparison."""
    return {
        "format": FORMAT,
        "confidence": found.confidence,
        "sides": [
            {
                "letter": side.letter,
                "label": side.label,
                "runs": [run.name for run in side.runs],
                "left_out": list(side.left_out),
            }
            for side in found.sides
        ],
        "comparisons": [_pair(found, place) for place in range(1, len(found.sides))],
        "facts": {fact.name: list(fact.values) for fact in found.facts},
        "metrics": {row.metric.name: _metric(row) for row in found.rows if any(row.spreads)},
        "conditions": [
            {
                "condition": outcome.condition.text,
                "side": outcome.label,
                "outcome": outcome.word,
                "text": outcome.text,
                "judgement": outcome.judgement._asdict(),
            }
            for outcome in found.outcomes
        ],
        "status": found.status,
    }


def _pair(found: Comparison, place: int) -> Document:
    speed, explanation = found.speeds[place - 1], found.explanations[place - 1]
    return {
        "before": found.sides[0].letter,
        "after": found.sides[place].letter,
        "verdict": speed.word,
        "metric": speed.metric,
        "text": speed.text,
        "judgement": speed.judgement._asdict(),
        "explanation": {
            "absent": explanation.absent,
            "wall_seconds": explanation.wall_seconds,
            "thread_seconds": explanation.thread_seconds,
            "rest_seconds": explanation.rest,
            "parts": [asdict(part) for part in explanation.parts],
            "remarks": list(explanation.remarks),
        },
    }


def _metric(row: Row) -> Document:
    return {
        "unit": str(row.metric.unit),
        "section": row.section,
        "differs": row.differs,
        "values": [None if found is None else found._asdict() for found in row.spreads],
        "changes": [_change(row, place) for place in range(1, len(row.judgements))],
    }


def _change(row: Row, place: int) -> Document | None:
    judgement = row.judgements[place]
    if judgement is None:
        return None
    return {"absolute": row.change(place), "relative": row.relative_change(place), **judgement._asdict()}
