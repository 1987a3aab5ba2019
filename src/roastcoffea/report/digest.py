"""The first look at a run as plain data: terminal, page and notebook draw the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.completeness import NO_RUNNER, NOTHING, Incompleteness, shortened, state_of
from roastcoffea.diagnosis.finding import Finding, Verdict
from roastcoffea.diagnosis.findings.computing import cores_of_others
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks, name_of
from roastcoffea.metrics.ledger import Ledger
from roastcoffea.metrics.phases import FAILED as FAILED_WORK
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, IDLING, RESIDUAL, TROUBLE, UNRECORDED, Family
from roastcoffea.metrics.profile import UserLine
from roastcoffea.records.run import FINISHED, NO_FILE, Run
from roastcoffea.report.summary import amount_of, problems_of_measuring
from roastcoffea.sheets.sheet import SHARED, percent_of
from roastcoffea.units import BYTE, SECOND, Unit, counted, minute, number, three_digits

ELAPSED: Final = "elapsed"
TILES: Final = {
    "elapsed_time_seconds": ELAPSED,
    "event_rate_elapsed_khz": "event rate",
    "data_rate_gbps": "data rate",
    "core_efficiency": "core efficiency",
    "peak_memory_bytes": "peak memory of a worker",
}
"""Metrics that are key numbers, with their labels."""

LEAST_SHOWN: Final = {"elapsed_time_seconds": 1e-3}
"""Amounts up to which a key number tells nothing; 0 where none is given."""

NEGLIGIBLE: Final = 1e-3
"""Share of a ledger that may be unaccounted without a word."""

WAITING: Final = "waiting"
"""What the family of trouble is called where nothing failed."""

HOTTEST: Final = 3
"""Lines of user code that are shown, whatever else is found."""

LEAST_HOT: Final = 0.005
"""Share of the CPU time from which a line is shown."""

OUTWEIGHS: Final = 0.98
"""Share of a family above which a bar names the class that has it, not the family."""

ALMOST_ALL: Final = 0.95
"""Share of a family above which a bar names the two classes that have it."""


class Tile(NamedTuple):
    """A key number with its label."""

    value: str
    label: str
    note: str = ""
    """What it is to be compared with."""


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
    """Class that has most of it, or two that have almost all; empty where there are more."""

    @property
    def label(self) -> str:
        """Its main classes, else its family."""
        if self.main:
            return self.main
        if self.family is TROUBLE and FAILED_WORK not in self.classes:
            return WAITING
        return f"{self.family.label}, {UNRECORDED}" if UNRECORDED in self.classes else self.family.label


class Lacking(NamedTuple):
    """What the result lacks."""

    what: str
    """What is missing, and of which files."""
    how_much: str
    """Events that are lost."""
    remedy: str | None
    """Line to copy that runs the rest; None where nothing that is known is missing, or is to be fixed first."""
    to_fix: str | None = None
    """What is to be fixed first."""


class Hot(NamedTuple):
    """A line of user code that takes much CPU time, including what it calls."""

    share: str
    """Of the CPU time in process()."""
    each: str
    """CPU time of a chunk; empty where it is unknown."""
    where: str
    """Function, file and line."""
    calls: str
    """Library function that takes most of it; empty for the line itself."""


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
        "complete", "incomplete", "failed", "interrupted", "nothing was run", or, where other tasks ran, "no Runner was
        called" or, with `everything`, "no task opened a file with uproot".
    coverage : str
        How much of what was asked for the result has, and how many attempts failed.
    error : str
        The cause of what ended the run; empty where it finished.
    lacking : Lacking or None
        What the result lacks; None where it has all, or that is not known.
    facts : sequence of str
        What ran, on which data, where and when.
    tiles : sequence of Tile
        Key numbers.
    time, bytes : Bar or None
        Thread time and bytes by family of classes; None where there is no ledger.
    hot : sequence of Hot
        Lines of user code with the most CPU time.
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
    error: str
    lacking: Lacking | None
    facts: Sequence[str]
    tiles: Sequence[Tile]
    time: Bar | None
    bytes: Bar | None
    hot: Sequence[Hot]
    findings: Sequence[Finding]
    verdict: str
    problems: Sequence[str]

    @property
    def sentence(self) -> str:
        """What matters most: the first finding with its culprit and saving, else the verdict."""
        if not self.findings:
            return self.verdict
        first = self.findings[0]
        # functions have their line in parentheses, and files their folders
        name = first.card.culprit.partition(" (")[0]
        name = PurePath(name).name if name and first.culprits[0].kind == "file" else name
        return f"{first.headline}{f': {name}' if name else ''}. {'' if first.incomplete else first.saving}".rstrip()


def digest_of(run: Run, metrics: Metrics) -> Digest:
    """The first look at a run."""
    verdict: Verdict | None = metrics.get("verdict")
    missing = _missing(metrics)
    fruitless = run.ended_early and not metrics.get("num_chunks")
    state = state_of(run, missing)
    empty = state in {NOTHING, NO_RUNNER, NO_FILE}
    return Digest(
        name=name_of(run) or f"run {run.id[:8]}",
        state=state,
        coverage=_coverage(run, metrics),
        error=shortened(run.error or "no error text was kept") if run.ended_early else "",
        lacking=None if missing is None or missing.complete else _lacking(missing),
        facts=list(_facts(run, metrics)),
        tiles=[tile for tile in _tiles(run, metrics) if not empty or tile.label == ELAPSED],
        time=None if state == NOTHING else _bar("thread time", metrics.get("time_ledger"), SECOND),
        bytes=_bar("bytes", metrics.get("byte_ledger"), BYTE),
        hot=[_hot(line) for line in _lines(metrics)[:HOTTEST] if line.share >= LEAST_HOT],
        # a run that failed at once is not one to make faster
        findings=[one for one in verdict or () if one.incomplete or not fruitless],
        verdict="" if fruitless or state == NOTHING else _concluded(verdict, metrics),
        problems=list(problems_of_measuring(run, metrics)),
    )


def _lines(metrics: Metrics) -> Sequence[UserLine]:
    try:
        found: Sequence[UserLine] = metrics.evaluator.value("user_lines")
    except NotMeasuredError:
        return ()
    return found


def _hot(line: UserLine) -> Hot:
    each = "" if line.seconds is None else f"{SECOND.text(line.seconds)} a chunk"
    return Hot(percent_of(line.share), each, str(line.place), line.calls or "")


def _missing(metrics: Metrics) -> Incompleteness | None:
    try:
        found: Incompleteness = metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return None
    return found


def _lacking(missing: Incompleteness) -> Lacking:
    known = missing.files or missing.chunks
    return Lacking(missing.what, missing.how_much if known else "", missing.line, missing.to_fix and missing.advice)


def _concluded(verdict: Verdict | None, metrics: Metrics) -> str:
    if verdict is None:
        return f"No bottleneck can be named: {metrics.missing['verdict']}."
    return " ".join(filter(None, [verdict.not_interpreted, verdict.conclusion]))


def _coverage(run: Run, metrics: Metrics) -> str:
    """Chunks in the result, of those that were asked for, their events, and failed attempts.

    Each is counted once: attempts that were unfinished are apart, and cancelled ones are none of them.
    """
    if not run.calls and run.tasks is not None and len(run.tasks):
        return counted(len(run.tasks), "other task")
    names = ("num_chunks", "num_missing_chunks", "num_missing_files", "total_events", "num_failed_attempts")
    done, lacking, files, events, failed = (metrics.get(name) for name in names)
    unfinished = metrics.get("num_unfinished_attempts") or 0
    parts = []
    if done is not None:
        # what a failed Runner call computed is among what the result lacks
        asked = max(_asked(run), done)
        parts.append(counted(done, "chunk") if lacking is None else f"{number(done)} of {counted(asked, 'chunk')}")
        if lost := _lost(run):
            parts[0] += f" computed, {'all' if lost == done else number(lost)} lost with the output"
            events = 0 if lost == done else events
    parts += [f"{number(events)} events"] if events else []
    parts += [f"{counted(files, 'file')} missing"] if files else []
    failed = (failed or 0) - unfinished
    parts += [counted(failed, "failed attempt")] if failed else []
    parts += [counted(unfinished, "unfinished attempt")] if unfinished else []
    return ", ".join(parts)


def _lost(run: Run) -> int:
    """Computed chunks whose Runner call did not give its output."""
    failed = pa.array([call.id for call in run.calls if call.outcome != FINISHED], pa.string())
    if run.chunks is None or not len(failed):
        return 0
    return len(counted_chunks(run.chunks.filter(pc.is_in(run.chunks["call"], value_set=failed))))


def _asked(run: Run) -> int:
    """Chunks that Runner calls asked for."""
    return 0 if run.asked is None else len(run.asked) - run.asked["entry_start"].null_count


def _facts(run: Run, metrics: Metrics) -> Iterator[str]:
    """Merged runs, processor, datasets, workers, version and time."""
    if run.merged:
        yield f"{counted(len(run.merged), 'run')} merged"
    if run.name and (processors := list(dict.fromkeys(call.processor for call in run.calls))):
        yield ", ".join(processors)
    datasets = list(metrics.get("per_dataset") or {})
    files = pc.count_distinct(run.chunks["file"]).as_py() if run.chunks is not None else 0
    if datasets:
        more = f" and {number(len(datasets) - 3)} more" if len(datasets) > 3 else ""
        yield f"{', '.join(datasets[:3])}{more} in {counted(files, 'file')}"
    yield from _workers(run, metrics)
    yield from [others] if (others := cores_of_others(run)) else []
    yield from (f"{name} {version}" for name, version in run.environment.versions.items() if name == "coffea")
    yield from [f"as reported by {run.reported_by}"] if run.reported is not None else []
    yield minute(run.start)
    yield from [SHARED] if run.shared else []


def _workers(run: Run, metrics: Metrics) -> Iterator[str]:
    """Workers with their threads, and where they were."""
    workers, hosts = metrics.get("peak_workers"), {host.name for host in run.environment.hosts}
    if not workers:
        return
    threads = set() if run.lifetimes is None else set(run.lifetimes["threads"].drop_null().to_pylist())
    of_each = f" x {counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    where = next(iter(hosts)) if len(hosts) == 1 else counted(len(hosts), "host")
    every = 0 if run.lifetimes is None else pc.count_distinct(run.lifetimes["worker"]).as_py()
    at_once = f", at most {number(int(workers))} at once" if every > workers else ""
    yield f"{counted(max(every, int(workers)), 'worker')}{of_each}{f' on {where}' if hosts else ''}{at_once}"


def _tiles(run: Run, metrics: Metrics) -> Iterator[Tile]:
    for name, label in TILES.items():
        if (metrics.get(name) or 0.0) > LEAST_SHOWN.get(name, 0.0):  # a rate of 0 tells nothing
            yield Tile(str(amount_of(metrics, name)), label, _note(name, run, metrics))


def _note(name: str, run: Run, metrics: Metrics) -> str:
    """What a key number is to be compared with."""
    match name:
        case "event_rate_elapsed_khz" if "event_rate_core_khz" in metrics:
            return f"{amount_of(metrics, 'event_rate_core_khz')} per {_slot(run, metrics)}"
        case "data_rate_gbps":
            if (metrics.get("bytes_other_files") or 0) > (metrics.get("bytes_payload") or 0):
                return "most of it other files"
            useful = metrics.get("useful_fraction")
            return f"{amount_of(metrics, 'useful_fraction')} useful" if useful else "without preprocessing"
        case "core_efficiency" if "total_cores" in metrics:
            return f"of {counted(three_digits(metrics['total_cores']), _slot(run, metrics))}"
        case "peak_memory_bytes" if run.lifetimes is not None:
            limit = pc.min(run.lifetimes["memory_limit"]).as_py()
            return f"of {BYTE.text(limit)}" if limit else ""
    return ""


def _slot(run: Run, metrics: Metrics) -> str:
    """What a worker thread has to itself: a core, unless the hosts have fewer cores than there were threads."""
    cores = [host.cores for host in run.environment.hosts]
    known = [number for number in cores if number is not None]
    return "thread" if known and len(known) == len(cores) and metrics["total_cores"] > sum(known) else "core"


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
        if amount >= OUTWEIGHS * total and RESIDUAL in classes and len(classes) == 1:
            return None  # no class was recorded: the tables say why
        if amount > 0:
            texts = {name: unit.text(part) for name, part in classes.items()}
            main = _main(classes, amount)
            if unit is BYTE:  # families are named after time
                main = main or ", ".join(classes)
            shares.append(Share(family, amount / total, unit.text(amount), texts, main))
    return Bar(title, unit.text(total), shares, _remark(ledger, total, unit))


def _remark(ledger: Ledger[Any], total: float, unit: Unit) -> str:
    """Whether all of a ledger is accounted for, and measured."""
    first, *others = [*ledger.certificate.reasons, ""]
    if first:
        return f"incomplete: {first}{f', and {number(len(others) - 1)} more' if len(others) > 1 else ''}"
    rest = ledger.residual or 0
    closes = abs(rest) < NEGLIGIBLE * total
    return "everything is accounted for" if closes else f"unaccounted {unit.text(rest)}"


def _main(classes: Mapping[str, float], amount: float) -> str:
    """The class that has most of a family, or the two that have almost all; idle time has one name then."""
    (first, most), *others = classes.items()
    if most > OUTWEIGHS * amount:
        return first
    second, more = others[0]
    of_two = most + more > ALMOST_ALL * amount and FAMILY_OF[first] is not IDLING
    return f"{first}, {second}" if of_two else ""
