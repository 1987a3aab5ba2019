"""Runs of a history: what each cost, what it was made on, and why one is not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from roastcoffea.diagnosis.completeness import Incompleteness, is_interrupt, shortened
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.records.run import Run
from roastcoffea.studies.compare.observations import facts_of_run
from roastcoffea.studies.compare.per_event import COSTS, EVENTS
from roastcoffea.units import BYTE, KILOHERTZ, SECOND, Unit, moment

RATE: Final = "rate per core"
CPU: Final = "CPU per event"
BYTES: Final = "bytes per event"
SERIES: Final[Mapping[str, Unit]] = {RATE: KILOHERTZ, CPU: SECOND, BYTES: BYTE}
"""Numbers that are followed, with their units."""

OF_RATE: Final = "event_rate_core_khz"
FAILURES: Final = ("num_failed_attempts", "num_failed_chunks")
"""Metrics that count failures: the first that is known."""

COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
EMPTY: Final = "nothing was run"

NOISY: Final = 1 / 3
"""Share of steps from run to run above which a fact changes so often that it tells nothing."""


class Change(NamedTuple):
    """A fact that is another than in the run before; "-" where it was not recorded."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in a history."""

    id: str
    name: str
    """Name of its folder."""
    path: Path
    start: float
    processors: tuple[str, ...]
    datasets: tuple[str, ...]
    fileset: str
    """Equal for equal input; empty where it is not known."""
    state: str
    reason: str | None
    """Why it is not used; None where it is."""
    values: Mapping[str, float]
    """Numbers of `SERIES` that are known."""
    failures: float | None
    """Failed attempts; None where they are not known."""
    facts: Mapping[str, str]
    """Versions, machines, settings and data."""

    @property
    def used(self) -> bool:
        """Whether it can be compared with others."""
        return self.reason is None

    @property
    def when(self) -> str:
        """Local time of its start, to the minute."""
        return moment(self.start)[: len("2026-01-01 00:00")]


def entry_of(measurement: Measurement, path: Path) -> Entry:
    """What a history takes from a measurement; its records are not kept."""
    run, metrics = measurement.run, measurement.metrics
    values = dict(_values(metrics))
    state, reason = _state(measurement)
    if reason is None and not values:
        lacking = metrics.missing.get(OF_RATE, "it has no events")
        reason = f"it has no rate: {lacking}"
    return Entry(
        id=run.id,
        name=path.name,
        path=path,
        start=run.start,
        processors=tuple(dict.fromkeys(call.processor for call in run.calls)),
        datasets=tuple(_datasets(run, metrics)),
        fileset=" ".join(dict.fromkeys(call.fileset or "" for call in run.calls)).strip(),
        state=state,
        reason=reason,
        values=values,
        failures=next((metrics[name] for name in FAILURES if name in metrics), None),
        facts=facts_of_run(run),
    )


def _values(metrics: Metrics) -> Iterator[tuple[str, float]]:
    events = metrics.get(EVENTS)
    if events:
        costs = {label: metrics[name] / events for label, name in COSTS.items() if name in metrics}
        rate = {RATE: metrics[OF_RATE]} if OF_RATE in metrics else {}
        yield from (rate | costs).items()


def _datasets(run: Run, metrics: Metrics) -> list[str]:
    """Datasets that were asked for, else those that the numbers tell of."""
    table = run.asked if run.asked is not None and len(run.asked) else run.chunks
    if table is not None and len(table):
        return sorted(filter(None, table["dataset"].unique().to_pylist()))
    return sorted(metrics.get("per_dataset") or {})


def _state(measurement: Measurement) -> tuple[str, str | None]:
    """How a run ended, and why it is not used."""
    run = measurement.run
    if run.ended_early:
        error = shortened(run.error or "no error was recorded")
        return run.outcome, "it was interrupted" if is_interrupt(error) else f"it {run.ending}: {error}"
    try:
        missing: Incompleteness = measurement.metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return COMPLETE, None
    if not missing.complete:
        return INCOMPLETE, f"it is incomplete: {missing.what}"
    if run.reported is None and not run.calls and not (run.tasks is not None and len(run.tasks)):
        return EMPTY, "no Runner was called in it"
    return COMPLETE, None


# What changed


def changes(before: Entry, after: Entry) -> list[Change]:
    """Facts that differ between two runs."""
    names = dict.fromkeys([*before.facts, *after.facts])
    both = ((name, before.facts.get(name, "-"), after.facts.get(name, "-")) for name in names)
    return [Change(*each) for each in both if each[1] != each[2]]


def noisy_facts(entries: Sequence[Entry]) -> set[str]:
    """Facts that change so often from run to run that they tell nothing, such as the hosts of a batch system."""
    steps = [{change.name for change in changes(*pair)} for pair in pairwise(entries)]
    times = Counter(name for step in steps for name in step)
    return {name for name, often in times.items() if often > max(NOISY * len(steps), 1)}
