"""Comparison of runs: what differs, what explains it, and whether repeats can tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from os import PathLike
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

import numpy as np

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE, Metric
from roastcoffea.metrics.catalogue import BYTES, RAW, TIME
from roastcoffea.report.summary import LEDGER_ROWS, TIME_ROWS
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.compare.explanation import Explanation, explained
from roastcoffea.studies.compare.gate import (
    FAILED,
    PASSED,
    STATUS,
    UNKNOWN,
    Outcome,
    condition_of,
    needed_text,
    outcome_of,
    signed,
)
from roastcoffea.studies.compare.observations import Observation
from roastcoffea.studies.compare.repeats import (
    ABOVE,
    CHUNKS,
    CONFIDENCE,
    EXACT,
    FEWEST,
    SEED,
    Judgement,
    Spread,
    judged,
    resampled_chunks,
    spread,
)
from roastcoffea.studies.compare.sides import LETTERS, Side, side_of
from roastcoffea.studies.compare.words import BYTE_LEDGER, METRICS, THREAD_TIME, WALL, document_of, sheets_of
from roastcoffea.studies.printed import Printed
from roastcoffea.units import FRACTION, STRUCTURE, WORD, Unit

FASTER: Final = "faster"
SLOWER: Final = "slower"
CANNOT_TELL: Final = "cannot tell"

RATE: Final = "event_rate_elapsed_khz"
SAME_EVENTS: Final = 1e-3
"""Relative difference in events below which wall times are compared, and not rates."""

SMALL: Final = 0.01
"""Relative change, or share of a ledger, from which on a difference of few runs is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Whether a run is "faster" or "slower" than the first, or one "cannot tell", by the metric that was judged."""

    word: str
    metric: str
    judgement: Judgement
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A metric of all sides, and its change from the first to each of the others; None where a side lacks it."""

    metric: Metric
    section: str
    spreads: tuple[Spread | None, ...]
    judgements: tuple[Judgement | None, ...]
    differs_at: tuple[bool, ...]
    """Of each side whether its difference from the first is worth to be shown."""

    @property
    def differs(self) -> bool:
        """Whether any side differs from the first."""
        return any(self.differs_at)

    def is_known(self, place: int) -> bool:
        """Whether the first side has it, or this one."""
        return self.spreads[0] is not None or self.spreads[place] is not None

    def change(self, place: int) -> float | None:
        """Difference of the medians, of a side less the first."""
        first, other = self.spreads[0], self.spreads[place]
        return None if first is None or other is None else other.median - first.median

    def relative_change(self, place: int) -> float | None:
        """Difference of the medians beside the first; None where that is 0."""
        first, change = self.spreads[0], self.change(place)
        return None if change is None or first is None or not first.median else change / abs(first.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that runs were made on or with, for each side."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether it is not the same everywhere."""
        return len(set(self.values)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Printed):
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

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print what differs, or everything, to the terminal or into a file."""
        from roastcoffea.report.terminal import console_for
        from roastcoffea.studies.sheets import print_sheets

        print_sheets(console_for(file), sheets_of(self, everything=everything))

    def markdown(self, *, everything: bool = False) -> str:
        """What differs, or everything, in GitHub's Markdown."""
        from roastcoffea.studies.sheets import markdown

        return markdown(sheets_of(self, everything=everything))

    def as_dict(self) -> dict[str, Any]:
        """All of it in types of standard JSON."""
        return document_of(self)

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
        if path is None:
            text = self._for_terminal(everything) if form == "text" else self.text(form, everything=everything)
            print(text, end="", flush=True)  # noqa: T201
        else:
            with whole_file(Path(path), overwrite=overwrite) as file:
                file.write(self.text(form, everything=everything).encode())

    def text(self, form: str, *, everything: bool = False) -> str:
        """It as "text", "markdown", "json" or "html", the last as a page of its own."""
        from roastcoffea.studies.sheets import page

        if form == "markdown":
            return self.markdown(everything=everything)
        if form == "json":
            return json.dumps(self.as_dict(), indent=1) + "\n"
        if form == "html":
            sheets = sheets_of(self, everything=everything)
            labels = [side.label for side in self.sides]
            return page(f"{', '.join(labels[1:])} against {labels[0]}", sheets)
        file = StringIO()
        self.print(file, everything=everything)
        return file.getvalue()

    def _for_terminal(self, everything: bool) -> str:
        """It as the standard output shows it. Rich itself would end the process where nobody reads that any more."""
        from roastcoffea.report.terminal import console_for
        from roastcoffea.studies.sheets import print_sheets

        console = console_for(None)
        with console.capture() as captured:
            print_sheets(console, sheets_of(self, everything=everything))
        return captured.get()

    def _repr_html_(self) -> str:
        from roastcoffea.studies.sheets import html

        return html(sheets_of(self, everything=False))


def compare(
    *given: Any,
    labels: Sequence[str] | None = None,
    fail_if: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    folder: Path | None = None,
) -> Comparison:
    """Compare runs with the first of them: what differs, why, and whether repeats can tell.

    Parameters
    ----------
    given
        Two or more of: a measurement, a collector, a path, or a list of them, which are repeats of one run. A path is
        that of a measurement, of a folder of repeats, a pattern, or a name to which repeats have added a number.
    labels
        What to call them, one for each.
    fail_if
        Conditions on the change of metrics, such as "event_rate_core_khz < -10%"; see `Comparison.status`.
    confidence
        Of intervals, verdicts and conditions.
    folder
        Where a name is looked for that is not found as a path.

    Raises
    ------
    ComparisonError
        If there is nothing to compare, labels are too few or too many, or a condition cannot be understood.
    MeasurementError
        If a measurement cannot be read.
    """
    conditions = [condition_of(text) for text in fail_if]
    if not 2 <= len(given) <= len(LETTERS):
        raise ComparisonError(f"it takes two runs or more to compare, up to {len(LETTERS)}; {len(given)} given")
    if not 0.5 <= confidence < 1:
        raise ComparisonError(f"a confidence of {confidence} is none: it lies between 0.5 and 1")
    if labels and len(labels) != len(given):
        raise ComparisonError(f"{len(labels)} labels for {len(given)} runs: give one for each")
    names: list[str | None] = [*labels] if labels else [None] * len(given)
    sides = tuple(side_of(*each, folder) for each in zip(LETTERS[: len(given)], given, names, strict=True))
    first, others = sides[0].runs, [side.runs for side in sides[1:]]
    return Comparison(
        sides=sides,
        confidence=confidence,
        speeds=tuple(speed(first, runs, confidence) for runs in others),
        explanations=tuple(explained(first, runs) for runs in others),
        facts=_facts(sides),
        rows=tuple(_rows(sides, confidence)),
        outcomes=tuple(
            outcome_of(condition, first, side.runs, side.letter, confidence)
            for side in sides[1:]
            for condition in conditions
        ),
    )


# The verdict


def speed(before: Sequence[Observation], after: Sequence[Observation], confidence: float = CONFIDENCE) -> Speed:
    """Verdict on wall time, where runs have as many events, else on their rate."""
    name = WALL if _same_events(before, after) else RATE
    lacking = next((run for run in (*before, *after) if name not in run.metrics), None)
    if lacking is not None:
        nothing = Judgement(None, None, None, None, lacking.missing.get(name, "it was not reported"))
        text = f"{CANNOT_TELL}: {lacking.name} has no {name}: {nothing.reason}"
        return Speed(word=CANNOT_TELL, metric=name, judgement=nothing, text=text)
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    judgement = judged(old, new, confidence=confidence)
    if judgement.over is None:
        judgement = _over_chunks(before, after, name, judgement, confidence)
    word = CANNOT_TELL
    if judgement.side is not None:
        word = SLOWER if (judgement.side == ABOVE) == (name == WALL) else FASTER
    return Speed(word=word, metric=name, judgement=judgement, text=_speed_text(word, name, before, after, judgement))


def _same_events(before: Sequence[Observation], after: Sequence[Observation]) -> bool:
    events = [_median(side, "total_events") for side in (before, after) if _all_have(side, "total_events")]
    return len(events) < 2 or abs(events[1] - events[0]) <= SAME_EVENTS * max(events)


def _median(side: Sequence[Observation], name: str) -> float:
    return median(run.metrics[name] for run in side)


def _all_have(side: Sequence[Observation], name: str) -> bool:
    return all(name in run.metrics for run in side)


def _over_chunks(
    before: Sequence[Observation], after: Sequence[Observation], name: str, judgement: Judgement, confidence: float
) -> Judgement:
    """The judgement with an interval of the change from resampled chunks, where it has none from runs."""
    if len(before) != 1 or len(after) != 1:
        return judgement
    old, new = (resampled_chunks(side[0], name, seed) for side, seed in ((before, SEED), (after, SEED + 1)))
    if old is None or new is None:
        return judgement
    low, high = np.quantile(new / old - 1, [(1 - confidence) / 2, (1 + confidence) / 2])
    return judgement._replace(low=float(low), high=float(high), over=CHUNKS)


def _speed_text(
    word: str, name: str, before: Sequence[Observation], after: Sequence[Observation], judgement: Judgement
) -> str:
    old, new = _median(before, name), _median(after, name)
    metric = next(metric for metric in CATALOGUE.metrics() if metric.name == name)
    what = "wall time" if name == WALL else f"event rate ({metric.label})"
    change = f"{what} {signed(FRACTION, (new - old) / old)}" if old else what
    told = f"{word}: {change}{interval_text(judgement, FRACTION)}, {_runs(after)} against {_runs(before)}"
    taken = _taken_text(name, before, after)
    if judgement.side is not None:
        return f"{told}{taken}"
    needed = f"; {needed_text(judgement)}" if judgement.needed else ""
    return f"{told}; {judgement.reason}{needed}{taken}"


def _taken_text(name: str, before: Sequence[Observation], after: Sequence[Observation]) -> str:
    """That wall times were compared without knowing the events of all runs; nothing where they are known."""
    lacking = [run.name for run in (*before, *after) if "total_events" not in run.metrics]
    if name != WALL or not lacking:
        return ""
    return f"; taken to have as many events, as those of {', '.join(dict.fromkeys(lacking))} are not known"


def _runs(side: Sequence[Observation]) -> str:
    return "1 run" if len(side) == 1 else f"{len(side)} runs"


def interval_text(judgement: Judgement, unit: Unit) -> str:
    """Interval of a change in brackets, with what it was made of where that is not runs; nothing without one."""
    if judgement.low is None or judgement.high is None or judgement.low == judgement.high:
        return ""
    over = ", over chunks within the runs" if judgement.over == CHUNKS else ""
    return f" ({signed(unit, judgement.low)} to {signed(unit, judgement.high)}{over})"


# Side by side


def _facts(sides: Sequence[Side]) -> tuple[Fact, ...]:
    names = dict.fromkeys(name for side in sides for run in side.runs for name in run.facts)
    return tuple(Fact(name=name, values=tuple(_told(side, name) for side in sides)) for name in names)


def _told(side: Side, name: str) -> str:
    """Different values of repeats, separated; "-" for what is not known."""
    return " / ".join(dict.fromkeys(run.facts.get(name, "-") for run in side.runs))


def _rows(sides: Sequence[Side], confidence: float) -> list[Row]:
    metrics = [metric for metric in CATALOGUE.metrics() if metric.group != RAW]
    plain = [metric for metric in metrics if metric.unit not in (STRUCTURE, WORD)]
    return [_row(metric, sides, confidence) for metric in plain]


def _row(metric: Metric, sides: Sequence[Side], confidence: float) -> Row:
    spreads = [
        spread(side.runs, metric.name, confidence) if _all_have(side.runs, metric.name) else None for side in sides
    ]
    first = spreads[0]
    judgements = [
        None
        if first is None or other is None
        else judged(first.values, other.values, exact=metric.name in EXACT, confidence=confidence)
        for other in spreads[1:]
    ]
    section = _section(metric)
    total = _total(section, sides[0].runs)
    differ = [_differs(first, other, seen, total) for other, seen in zip(spreads[1:], judgements, strict=True)]
    return Row(
        metric=metric,
        section=section,
        spreads=tuple(spreads),
        judgements=(None, *judgements),
        differs_at=(False, *differ),
    )


def _section(metric: Metric) -> str:
    if metric.group == TIME and metric.label in TIME_ROWS:
        return THREAD_TIME
    return BYTE_LEDGER if metric.group == BYTES and metric.label in LEDGER_ROWS else METRICS


def _total(section: str, runs: Sequence[Observation]) -> float:
    """Total of a ledger, beside which small differences of its classes are not shown; 0 of other sections."""
    total = "time_total_seconds"
    return _median(runs, total) if section == THREAD_TIME and _all_have(runs, total) else 0.0


def _differs(first: Spread | None, other: Spread | None, judgement: Judgement | None, total: float) -> bool:
    """Whether a difference is worth to be shown: it is told apart from noise, or cannot be and is not small."""
    if first is None or other is None or judgement is None:
        return first is not other
    change = abs(other.median - first.median)
    if change == 0 or change < SMALL * total:
        return False
    if judgement.side is not None:
        return True
    few = judgement.over is None or min(len(first.values), len(other.values)) < FEWEST
    return few and change >= SMALL * abs(first.median)
