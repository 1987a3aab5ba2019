"""The first look at a run as plain data: terminal, page and notebook draw the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from roastcoffea.diagnosis.completeness import INTERRUPT, Incompleteness
from roastcoffea.diagnosis.finding import Finding, Verdict
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.ledger import Ledger
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, Family
from roastcoffea.records.run import FAILED, Run
from roastcoffea.report.summary import amount_of, title_of
from roastcoffea.units import BYTE, SECOND, Unit, counted, moment, number

TILES: Final = {
    "elapsed_time_seconds": "elapsed",
    "event_rate_elapsed_khz": "event rate",
    "data_rate_gbps": "data rate",
    "core_efficiency": "core efficiency",
    "peak_memory_bytes": "peak memory of a worker",
}
"""Metrics that are key numbers, with their labels."""

NEGLIGIBLE: Final = 1e-3
"""Share of a ledger that may be unaccounted without a word."""

OUTWEIGHS: Final = 2 / 3
"""Share of a family above which a bar names the class that has it, not the family."""


class Tile(NamedTuple):
    """A key number with its label."""

    value: str
    label: str


class Share(NamedTuple):
    """A part of a bar."""

    family: Family
    fraction: float
    """Of the whole bar, from 0 to 1."""
    amount: str
    """How much it is, with its unit."""
    classes: Mapping[str, str]
    """Amounts of the classes in it, largest first."""
    main: str = ""
    """Class that has most of it; empty where none outweighs the others."""

    @property
    def label(self) -> str:
        """Its main class, else its family."""
        return self.main or self.family.label


class Bar(NamedTuple):
    """A quantity that is split up without a rest."""

    title: str
    total: str
    shares: Sequence[Share]
    remark: str
    """Whether it closes."""


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What the first look at a run shows.

    Attributes
    ----------
    name : str
        Name of the run, else its processors.
    state : str
        "complete", "incomplete", "failed", "interrupted" or "nothing was run".
    coverage : str
        How much of what was asked for the result has.
    facts : sequence of str
        What ran, on which data, where and when.
    tiles : sequence of Tile
        Key numbers.
    time, bytes : Bar or None
        Thread time and bytes by family of classes; None where there is no ledger.
    findings : sequence of Finding
        What to change, the most important first.
    verdict : str
        One sentence where there is no finding, or that concludes them; empty where there is nothing to add.
    problems : sequence of str
        What could not be measured as it should.
    """

    name: str
    state: str
    coverage: str
    facts: Sequence[str]
    tiles: Sequence[Tile]
    time: Bar | None
    bytes: Bar | None
    findings: Sequence[Finding]
    verdict: str
    problems: Sequence[str]


def digest_of(run: Run, metrics: Metrics) -> Digest:
    """The first look at a run."""
    verdict: Verdict | None = metrics.get("verdict")
    missing = _missing(metrics)
    return Digest(
        name=title_of(run),
        state=_state(run, missing),
        coverage=_coverage(metrics),
        facts=list(_facts(run, metrics)),
        tiles=list(_tiles(metrics)),
        time=_bar("thread time", metrics.get("time_ledger"), SECOND),
        bytes=_bar("bytes", metrics.get("byte_ledger"), BYTE),
        findings=[] if verdict is None else list(verdict),
        verdict="" if verdict is None else verdict.conclusion,
        problems=[*run.problems, *metrics.problems],
    )


def _missing(metrics: Metrics) -> Incompleteness | None:
    try:
        found: Incompleteness = metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return None
    return found


def _state(run: Run, missing: Incompleteness | None) -> str:
    if run.outcome == FAILED:
        return "interrupted" if missing is not None and missing.run_error == INTERRUPT else "failed"
    if not run.calls and not (run.tasks is not None and len(run.tasks)):
        return "nothing was run"
    return "incomplete" if missing is not None and not missing.complete else "complete"


def _coverage(metrics: Metrics) -> str:
    """Chunks in the result, of those that were asked for, and their events."""
    done, lacking, events = (metrics.get(name) for name in ("num_chunks", "num_missing_chunks", "total_events"))
    if done is None:
        return ""
    of_all = f"{number(done)} of {counted(done + lacking, 'chunk')}" if lacking is not None else counted(done, "chunk")
    return of_all if events is None else f"{of_all}, {number(events)} events"


def _facts(run: Run, metrics: Metrics) -> Iterator[str]:
    """Datasets, workers and time."""
    datasets = list(metrics.get("per_dataset") or {})
    files = len(set(run.chunks["file"].to_pylist())) if run.chunks is not None else 0
    if datasets:
        more = f" and {number(len(datasets) - 3)} more" if len(datasets) > 3 else ""
        yield f"{', '.join(datasets[:3])}{more} in {counted(files, 'file')}"
    workers, hosts = metrics.get("peak_workers"), {host.name for host in run.environment.hosts}
    if workers:
        where = next(iter(hosts)) if len(hosts) == 1 else counted(len(hosts), "host")
        yield f"{counted(int(workers), 'worker')} on {where}"
    yield moment(run.start)


def _tiles(metrics: Metrics) -> Iterator[Tile]:
    for name, label in TILES.items():
        if name in metrics:
            yield Tile(str(amount_of(metrics, name)), label)


def _bar(title: str, ledger: Ledger[float] | Ledger[int | None] | None, unit: Unit) -> Bar | None:
    """A ledger by family, in the order of the families."""
    total = None if ledger is None else ledger.total
    if ledger is None or not total:
        return None
    parts: dict[str, dict[str, float]] = {family.name: {} for family in FAMILIES}
    for name, amount in ledger.items():
        if amount and amount > 0 and name in FAMILY_OF:
            parts[FAMILY_OF[name].name][name] = amount
    shares = []
    for family in FAMILIES:
        classes = dict(sorted(parts[family.name].items(), key=lambda item: -item[1]))
        amount = sum(classes.values())
        if amount > 0:
            texts = {name: unit.text(part) for name, part in classes.items()}
            main = next(name for name in classes) if max(classes.values()) > OUTWEIGHS * amount else ""
            shares.append(Share(family, amount / total, unit.text(amount), texts, main))
    rest = ledger.residual or 0
    closes = abs(rest) < NEGLIGIBLE * total
    remark = "everything is accounted for" if closes else f"unaccounted {unit.text(rest)}"
    return Bar(title, unit.text(total), shares, remark)
