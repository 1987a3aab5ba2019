"""Scaling as tables for the terminal."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding

from roastcoffea.report.terminal import INDENT, console_for, named_table
from roastcoffea.studies.tables import line, title
from roastcoffea.units import FRACTION, SECOND, number, three_digits

if TYPE_CHECKING:
    from roastcoffea.studies.scaling.scaling import Between, Law, Scaling

MOST_LOSSES: Final = 6
SMALL_LOSS: Final = 0.01
SMALLEST_REST: Final = 0.0005
OTHERS: Final = "others"
"""The rest, with all that an event takes less: with it the shares make up 100 %."""
WITHOUT_END: Final = "no end"


def print_scaling(found: Scaling, file: IO[str] | None) -> None:
    """Print what more workers gave, what that follows, and what eats the loss."""
    console = console_for(file)
    title(console, f"{found.kind.capitalize()} scaling; 95 % intervals from {found.basis}")
    _print_points(console, found)
    title(console, "Laws")
    for name, law in found.laws.items():
        line(console, f"{name}: {_of_law(law, found)}")
    for name, reason in found.missing.items():
        line(console, f"{name}: none, {reason}.")
    _print_losses(console, found)
    for doubt in found.doubts:
        line(console, f"Note that {doubt}.")


def _print_points(console: Console, found: Scaling) -> None:
    table = named_table(found.unit, ["runs", "wall", "events/s", "speed-up", "efficiency"])
    for column in table.columns[3:]:
        column.no_wrap = False  # an interval may stand below its value
    for point in found.points:
        table.add_row(
            number(point.workers),
            number(point.runs),
            SECOND.text(point.seconds),
            _between(point.rate),
            _between(point.speedup),
            _between(point.efficiency),
        )
    console.print(Padding(table, INDENT, expand=False))


def _between(found: Between) -> str:
    text = number(three_digits(found.value))
    if found.low is None or found.high is None:
        return text
    return f"{text} [{number(three_digits(found.low))}, {number(three_digits(found.high))}]"


def _of_law(law: Law, found: Scaling) -> str:
    """What a law says, in a sentence."""
    largest = found.points[-1].workers
    parts = [f"{_between(law.contention)} of the work goes one after the other"]
    if law.coherency.value > 0:
        parts.append(f"coherency {_between(law.coherency)}")
    parts.append(f"points lie within {FRACTION.text(law.deviation)}")
    parts.append(f"another of the {found.unit} is worth it up to {_workers(law.worth)}")
    if (law.worth_low, law.worth_high) != (law.worth, law.worth):
        parts[-1] += f" [{_workers(law.worth_low)}, {_workers(law.worth_high)}]"
    if law.worth is None or law.worth > largest:
        parts[-1] += f" (beyond the {number(largest)} that were tried)"
    if law.peak is not None:
        parts.append(f"more than {number(round(law.peak))} slow it down")
    return f"{'; '.join(parts)}."


def _workers(worth: int | None) -> str:
    return WITHOUT_END if worth is None else number(worth)


def _print_losses(console: Console, found: Scaling) -> None:
    """Print which classes of thread time grew."""
    fewest, most = found.points[0].workers, found.points[-1].workers
    title(console, f"What an event takes more on {number(most)} {found.unit} than on {number(fewest)}")
    if sum(loss.seconds for loss in found.losses) <= 0:
        line(console, "Nothing is lost.")
        return
    table = named_table("thread time", ["for each event", "share of the loss"])
    shown = [loss for loss in found.losses[:MOST_LOSSES] if loss.share >= SMALL_LOSS]
    for loss in shown:
        table.add_row(loss.name, SECOND.text(loss.seconds), FRACTION.text(loss.share))
    others = [loss for loss in found.losses if loss not in shown]
    share = sum(loss.share for loss in others)
    if abs(share) >= SMALLEST_REST:
        table.add_row(OTHERS, SECOND.text(sum(loss.seconds for loss in others)), FRACTION.text(share))
    console.print(Padding(table, INDENT, expand=False))
