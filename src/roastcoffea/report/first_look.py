"""First look at a run: one terminal screen, also shown in pages and notebooks."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from roastcoffea.diagnosis.completeness import COMPLETE, NO_RUNNER, NOTHING, Incompleteness, shortened, state_of
from roastcoffea.diagnosis.finding import NOTHING_READ, Finding, Verdict
from roastcoffea.diagnosis.findings.computing import cores_of_others
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.facts import Names, counted_chunks, name_of
from roastcoffea.metrics.phases import FAILED as FAILED_WORK
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, IDLING, RESIDUAL, TROUBLE, UNRECORDED, Family
from roastcoffea.metrics.profile import UserLine
from roastcoffea.records.run import FINISHED, NO_FILE, Run
from roastcoffea.report.glossary import linked, page_address
from roastcoffea.report.summary import LEAST_OF_LINE, amount_of, problems_of_measuring
from roastcoffea.report.tables import known
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import (
    NAMED,
    SHARED,
    UNACCOUNTED,
    Card,
    Drawn,
    Heading,
    Paint,
    Segment,
    drawn,
    palette,
    percent_of,
    segment,
)
from roastcoffea.sheets.terminal import verbatim
from roastcoffea.units import BYTE, FRACTION, SECOND, Unit, counted, few, minute, number, rough, three_digits

ELAPSED: Final = "elapsed"
TILES: Final = {
    "elapsed_time_seconds": ELAPSED,
    "event_rate_elapsed_khz": "event rate",
    "data_rate_gbps": "data rate",
    "core_efficiency": "core efficiency",
    "peak_memory_bytes": "peak memory of a worker",
}


class Tile(NamedTuple):
    value: str
    label: str
    note: str = ""


class Hot(NamedTuple):
    """Line of user code that takes a lot of CPU time, including the functions that it calls."""

    share: str
    """Share of the CPU time in process()."""
    each: str
    """CPU time per chunk; empty if unknown."""
    where: str
    calls: str
    """Library function that takes most of this time; empty if the line itself does."""


class Bar(NamedTuple):
    """A quantity split into parts that add up to the total."""

    title: str
    total: str
    shares: Sequence[Segment]
    remark: str


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Contents of a run's first look.

    Attributes
    ----------
    name : str
        Name of the run or, if it has no name, of its processors.
    state : str
        "complete", "incomplete", "failed", "interrupted" or "nothing was run". If only other tasks ran: "no Runner was
        called" or, with `everything`, "no task opened a file with uproot".
    coverage : str
        Number of chunks in the result, number of chunks requested, and number of failed attempts.
    error : str
        Error that ended the run; empty if the run finished.
    lacking : Incompleteness or None
        What is missing from the result; None if nothing is known to be missing.
    facts : sequence of str
        What ran, when and where it ran, and on which data.
    tiles : sequence of Tile
        Key figures.
    time, bytes : Bar or None
        Thread time and bytes by family of classes; None if there is no ledger.
    hot : sequence of Hot
        Lines of user code that took the most CPU time.
    findings : sequence of Finding
        What to change, most important first.
    verdict : str
        A sentence that replaces the findings if there are none, or a conclusion from several findings. May be empty.
    problems : sequence of str
        Problems with the measurement.
    """

    name: str
    state: str
    coverage: str
    error: str
    lacking: Incompleteness | None
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
        """Main point of the first look: the first finding with its culprit and saving, or the verdict."""
        if not self.findings:
            return self.verdict
        first = self.findings[0]
        # function names end with a line number in parentheses; file names include folders
        name = first.card.culprit.partition(" (")[0]
        name = PurePath(name).name if name and first.culprits[0].kind == "file" else name
        return f"{first.headline}{f': {name}' if name else ''}. {'' if first.incomplete else first.saving}".rstrip()

    @property
    def chip(self) -> str:
        return " · ".join(filter(None, [self.state, self.coverage]))

    @property
    def alarming(self) -> bool:
        """Whether the output is incomplete."""
        return self.state != COMPLETE

    @property
    def bars(self) -> list[Drawn]:
        of_all = (self.time, "Where the time went", "of thread time"), (self.bytes, "Where the bytes went", "requested")
        return [drawn(title, f"{bar.total} {of}; {bar.remark}", bar.shares) for bar, title, of in of_all if bar]

    @property
    def tab(self) -> str:
        """Title of the browser tab: name, wall time and state."""
        return " · ".join([self.name, *(tile.value for tile in self.tiles[:1]), self.state])

    @property
    def description(self) -> str:
        """Short description of the run for link previews of its page."""
        tiles = ", ".join(f"{tile.label} {tile.value}" for tile in self.tiles)
        findings = "; ".join(f"{card.title} {card.saving}".rstrip() for card in cards_of(self))
        return ". ".join(filter(None, [self.chip, tiles, findings]))


def digest_of(run: Run, metrics: Metrics) -> Digest:
    verdict: Verdict | None = metrics.get("verdict")
    missing: Incompleteness | None = known(metrics.evaluator, "incompleteness")
    lines: Sequence[UserLine] = known(metrics.evaluator, "user_lines") or ()
    fruitless = run.ended_early and not metrics.get("num_chunks")
    state = state_of(run, missing)
    if state == NOTHING:
        concluded = "No Runner was called while the collector was open: call it inside the `with` block."
    elif verdict is None:
        concluded = f"No bottleneck can be named: {metrics.missing['verdict']}."
    else:
        concluded = " ".join(filter(None, [verdict.not_interpreted, verdict.conclusion]))
    return Digest(
        name=name_of(run) or f"run {run.id[:8]}",
        state=state,
        coverage="" if state == NOTHING else ", ".join(_coverage(run, metrics)),
        error=shortened(run.error or "no error message was kept") if run.ended_early else "",
        lacking=None if missing is None or missing.complete else missing,
        facts=list(_facts(run, metrics)),
        tiles=[
            tile for tile in _tiles(run, metrics) if tile.label == ELAPSED or state not in {NOTHING, NO_RUNNER, NO_FILE}
        ],
        time=None if state == NOTHING else _bar("thread time", metrics.get("time_ledger"), SECOND),
        bytes=_bar("bytes", metrics.get("byte_ledger"), BYTE),
        hot=[_hot(line) for line in lines[:3] if line.share >= LEAST_OF_LINE],
        # a run that failed immediately needs no speed-up
        findings=[one for one in (verdict.shown if verdict else ()) if one.incomplete or not fruitless],
        verdict="" if fruitless else concluded,
        problems=list(problems_of_measuring(run, metrics)),
    )


def _hot(line: UserLine) -> Hot:
    each = "" if line.seconds is None else f"{SECOND.text(line.seconds)} a chunk"
    return Hot(percent_of(line.share), each, str(line.place), line.calls or "")


def _coverage(run: Run, metrics: Metrics) -> Iterator[str]:
    """Number of chunks in the result (out of those requested), events and failed attempts.

    Unfinished attempts are counted separately, and cancelled attempts are not counted.
    """
    if not run.calls and run.tasks is not None and len(run.tasks):
        yield counted(len(run.tasks), "other task")
        return
    names = ("num_chunks", "num_missing_chunks", "num_missing_files", "total_events", "num_failed_attempts")
    done, lacking, files, events, failed = (metrics.get(name) for name in names)
    unfinished = metrics.get("num_unfinished_attempts") or 0
    if done is not None:
        # chunks of a failed Runner call are missing from the result
        asked = max(0 if run.asked is None else len(run.asked) - run.asked["entry_start"].null_count, done)
        chunks = counted(done, "chunk") if lacking is None else f"{number(done)} of {counted(asked, 'chunk')}"
        broken = pa.array([call.id for call in run.calls if call.outcome != FINISHED], pa.string())
        computed = run.chunks and run.chunks.filter(pc.is_in(run.chunks["call"], broken))
        lost = len(counted_chunks(computed)) if computed else 0
        if lost:
            chunks += f" computed, {'all' if lost == done else number(lost)} lost with the output"
            events = 0 if lost == done else events
        yield chunks
    if events:
        yield f"{number(events)} events"
    if files:
        yield f"{counted(files, 'file')} missing"
    for count, thing in (((failed or 0) - unfinished, "failed attempt"), (unfinished, "unfinished attempt")):
        if count:
            yield counted(count, thing)


def _facts(run: Run, metrics: Metrics) -> Iterator[str]:
    if run.merged:
        yield f"{counted(len(run.merged), 'run')} merged"
    if run.name and run.calls:
        yield ", ".join(dict.fromkeys(call.processor for call in run.calls))
    datasets = list(metrics.get("per_dataset") or {})
    if datasets:
        files = len(run.chunks["file"].drop_null().unique()) if run.chunks is not None else 0
        yield f"{few(datasets)} in {counted(files, 'file')}"
    yield from _workers(run, int(metrics.get("peak_workers") or 0))
    # a finding about other programs' cores comes after findings that the user can act on
    if not any(one.of_others for one in metrics.get("verdict") or ()):
        yield from filter(None, [cores_of_others(run)])
    yield from (f"{name} {version}" for name, version in run.environment.versions.items() if name == "coffea")
    if run.reported is not None:
        yield f"as reported by {run.reported_by}"
    yield minute(run.start)
    yield from [SHARED] * run.shared


def _workers(run: Run, at_once: int) -> Iterator[str]:
    if not at_once:
        return
    hosts = {host.name for host in run.environment.hosts}
    every, threads = at_once, []
    if run.lifetimes is not None:
        every = max(len(run.lifetimes["worker"].drop_null().unique()), at_once)
        threads = run.lifetimes["threads"].drop_null().unique().to_pylist()
    of_each = f" x {counted(threads[0], 'thread')}" if len(threads) == 1 else ""
    where = f" on {hosts.pop() if len(hosts) == 1 else counted(len(hosts), 'host')}" if hosts else ""
    limit = f", at most {number(at_once)} at once" if every > at_once else ""
    yield f"{counted(every, 'worker')}{of_each}{where}{limit}"


def _tiles(run: Run, metrics: Metrics) -> Iterator[Tile]:
    for name, label in TILES.items():
        # a rate of 0, or a millisecond, is not worth showing
        if (metrics.get(name) or 0.0) > (1e-3 if label == ELAPSED else 0.0):
            share = metrics.unit[name] is FRACTION
            text = rough(metrics[name], FRACTION) if share else str(amount_of(metrics, name))
            yield Tile(text, label, _note(name, run, metrics))


def _note(name: str, run: Run, metrics: Metrics) -> str:
    cores = [host.cores or math.inf for host in run.environment.hosts]
    # each worker thread has its own core, unless the hosts have fewer cores than threads
    slot = "thread" if cores and (metrics.get("total_cores") or 0) > sum(cores) else "core"
    match name:
        case "event_rate_elapsed_khz" if "event_rate_core_khz" in metrics:
            return f"{amount_of(metrics, 'event_rate_core_khz')} per {slot}"
        case "data_rate_gbps":
            if (metrics.get("bytes_other_files") or 0) > (metrics.get("bytes_payload") or 0):
                return "mostly other files"
            useful = metrics.get("useful_fraction")
            return f"{rough(useful, FRACTION)} useful" if useful else "without preprocessing"
        case "core_efficiency" if "total_cores" in metrics:
            return f"of {counted(three_digits(metrics['total_cores']), slot)}"
        case "peak_memory_bytes" if run.lifetimes is not None:
            limit = pc.min(run.lifetimes["memory_limit"]).as_py()
            return f"of {BYTE.text(limit)}" if limit else ""
    return ""


CLOSES: Final = 1e-3
"""Residuals below this share of a ledger are ignored."""


def _bar(title: str, ledger: Any, unit: Unit) -> Bar | None:
    if ledger is None or not ledger.total:
        return None
    total = ledger.total
    amounts = {name: amount for name, amount in ledger.items() if name in FAMILY_OF and amount and amount > 0}
    if amounts.get(RESIDUAL, 0.0) < CLOSES * total:
        amounts.pop(RESIDUAL, None)
    if set(amounts) == {RESIDUAL} and amounts[RESIDUAL] >= 0.98 * total:
        return None  # no class was recorded: the tables explain why
    shares = []
    for family in FAMILIES:
        classes = sorted((name for name in amounts if FAMILY_OF[name] is family), key=lambda name: -amounts[name])
        amount = sum(amounts[name] for name in classes)
        if classes:
            label = _label(family, {name: amounts[name] / amount for name in classes})
            if unit is BYTE and label.startswith(family.label):
                label = ", ".join(classes)  # family labels describe time
            texts = ", ".join(f"{name} {unit.text(amounts[name])}" for name in classes)
            label = label.replace(RESIDUAL, UNACCOUNTED)
            shares.append(segment(family, amount / total, label, unit.text(amount), details=texts))
    return Bar(title, unit.text(total), shares, _remark(ledger, unit))


def _label(family: Family, shares: dict[str, float]) -> str:
    """Label for a family: the name of its main class, the names of its two main classes, or its own label."""
    first, *others = shares
    if shares[first] > 0.98:
        return first
    if shares[first] + shares[others[0]] > 0.95 and family is not IDLING:
        return f"mostly {first}" if shares[first] > 0.9 else f"{first}, {others[0]}"
    if family is TROUBLE and FAILED_WORK not in shares:
        return "waiting"
    return f"{family.label}, {UNRECORDED}" if UNRECORDED in shares else family.label


def _remark(ledger: Any, unit: Unit) -> str:
    if reasons := ledger.certificate.reasons:
        more = f", and {number(len(reasons) - 1)} more" if len(reasons) > 1 else ""
        return f"incomplete: {reasons[0]}{more}"
    rest = ledger.residual or 0
    closes = abs(rest) < CLOSES * ledger.total
    return "everything is accounted for" if closes else f"unaccounted {unit.text(rest)}"


# In a terminal

NARROWEST: Final = 40
"""Minimum terminal width at which lines are wrapped."""

ALARM: Final = "bold red"
GAP: Final = "   "
OF_BAR: Final = 15
"""Width of a bar's label, in characters."""


class Fill(NamedTuple):
    """How to fill a bar segment: a block, a letter for terminals without blocks, and a colour."""

    block: str
    letter: str
    colour: str
    """The colour must be legible on light and dark backgrounds, because the terminal's background is unknown."""


FILLS: Final = {
    "computing": Fill("█", "#", "#306dd5"),
    "decoding": Fill("▓", "=", "#1a93d8"),
    "reading": Fill("▒", "o", "#ad5c0c"),
    "opening": Fill("░", ":", "#c87b04"),
    "handling": Fill("▄", "%", "#946daf"),
    "trouble": Fill("╳", "!", "#e63c2b"),  # noqa: RUF001
    "idling": Fill("·", ".", "#727884"),
}


class Places(NamedTuple):
    """Where to find the rest of a run's data."""

    tables: str = "print_summary(all=True)"
    page: str = 'measurement.report("report.html")'
    measurement: str = ""
    """Code that loads the measurement."""


def print_first_look(console: Console, digest: Digest, places: Places, names: Names) -> None:
    """Print a run's first look.

    Parameters
    ----------
    places
        Where to find the rest of the data.
    names
        Short names for workers and hosts.
    """
    # shorten findings and code lines to fit a terminal of 24 lines, including the command and a prompt
    for room in (
        (3, 3, 2, 3),
        (3, 2, 2, 3),
        (2, 3, 2, 3),
        (2, 2, 2, 3),
        (1, 3, 1, 3),
        (1, 2, 1, 3),
        (1, 2, 1, 2),
        (1, 2, 1, 1),
        (1, 1, 1, 1),
    ):
        lines = list(Screen(console, digest, names).lines(places, *room))
        if sum(-(-max(line.cell_len, 1) // console.width) for line in lines) <= 22:
            break
    with console:  # notebooks merge consecutive output
        for line in lines:
            console.print(line, soft_wrap=True)  # users copy long lines: do not wrap them


class Screen:
    """Lines of the first look, fitted to a console. Names are printed verbatim."""

    def __init__(self, console: Console, digest: Digest, names: Names) -> None:
        self.console = console
        self.width = console.width
        self.digest = digest
        self.names = names
        self.blocks = console.encoding.lower().startswith("utf")

    def lines(self, places: Places, findings: int, what: int, others: int, hot: int) -> Iterator[Text]:
        """All lines, with limits on findings, lines per finding, other lines and code lines."""
        digest = self.digest
        if digest.state in {NOTHING, NO_RUNNER, NO_FILE}:
            yield from self._without_runner()
            return
        yield from self._first_line(digest.state, digest.coverage)
        # the message about missing data already includes the error
        if digest.error and digest.lacking is None:
            yield from self.wrapped(digest.error, most=2, style=ALARM)
        for line in self._side_by_side([Text(self.plain(fact)) for fact in digest.facts], Text("; ")):
            line.stylize("dim")
            yield line
        bars = [line for bar in (digest.time, digest.bytes) if bar for line in self._bar(bar)]
        tiles = [self._tile(tile) for tile in digest.tiles if tile.label != ELAPSED]
        for block in (
            self._lacking(places),
            [*self._side_by_side(tiles, Text(GAP), 2), *bars, *self._hot(hot)],
            self._findings(findings, what, others),
            self._rest(places),
        ):
            shown = list(block)
            yield from [Text(), *shown] if shown else []

    def plain(self, content: str) -> str:
        """Text on one line, without control characters."""
        return verbatim(self.console, " ".join(content.split())).plain

    def wrapped(self, content: str, indent: int = 0, most: int | None = None, style: str = "") -> list[Text]:
        """Wrap text. If there are too many lines, drop sentences or end with an ellipsis."""
        sentences = re.split(r"(?<=\.) (?=[A-Z0-9])", content)
        for kept in range(len(sentences), 0, -1):
            lines = self._broken(Text(self.plain(" ".join(sentences[:kept])), style), indent)
            if most is None or len(lines) <= most:
                return lines
        lines = lines[:most]
        last = lines[-1].plain
        # leave no partial word, bracket or comma before the ellipsis
        whole = last if len(last) <= self.width - 4 else last[: self.width - 3].rpartition(" ")[0]
        lines[-1].truncate(len(whole.rstrip(" (,;:")))
        lines[-1].append(" ...")
        return lines

    def _broken(self, text: Text, indent: int = 0) -> list[Text]:
        lines = text.wrap(self.console, self.width - indent, overflow="fold")
        for line in lines:
            line.rstrip()
            line.pad_left(indent)
        return list(lines)

    def _without_runner(self) -> Iterator[Text]:
        """Three lines: what did not run; the facts about the run, or measurement problems; and advice."""
        digest = self.digest
        yield from self._first_line(NO_RUNNER, digest.coverage)[:1]
        yield from self.wrapped(
            _problems(digest.problems) if digest.problems else f"{'; '.join(digest.facts)}.", most=1
        )
        to_do = {
            NO_RUNNER: "No Runner? Use MetricsCollector(client, everything=True) or measured(function).",
            NO_FILE: NOTHING_READ,
        }
        yield from self.wrapped(
            to_do.get(digest.state, "Call the Runner inside the `with` block of the MetricsCollector."), most=1
        )

    def _first_line(self, state: str, coverage: str) -> list[Text]:
        """Name, state and coverage, with the wall time at the right edge."""
        elapsed = next((tile.value for tile in self.digest.tiles if tile.label == ELAPSED), "")
        line = Text.assemble((self.plain(self.digest.name), "bold"), GAP, (state, "bold green"))
        line.append(f": {coverage}" if coverage else "")
        if state != COMPLETE:
            line.stylize(ALARM)
        return self._at_the_edge(line, elapsed)

    def _at_the_edge(self, line: Text, end: str) -> list[Text]:
        """Wrap a line, and put `end` at the right edge of the first line."""
        room = self.width - len(end)
        lines = list(line.wrap(self.console, room - len(GAP) if end else room, overflow="fold"))
        for one in lines:
            one.rstrip()
        if end:
            lines[0].pad_right(room - lines[0].cell_len)
            lines[0].append(end, "bold")
        return lines

    def _lacking(self, places: Places) -> Iterator[Text]:
        lacking = self.digest.lacking
        if lacking is None:
            return
        known_part = lacking.how_much if lacking.files or lacking.chunks else ""
        yield from self.wrapped(with_short_paths(f"{lacking.what} {known_part}"), most=4)
        if lacking.to_fix:
            yield from self.wrapped(lacking.advice, style="bold")
        if lacking.line is not None:
            yield Text("To run the rest:")
            for code in filter(None, [places.measurement, *lacking.line.split("; ")]):
                yield Text(self.plain(code), "bold")

    def _side_by_side(self, parts: Iterable[Text], between: Text, indent: int = 0) -> list[Text]:
        lines: list[Text] = []
        for part in parts:
            if lines and lines[-1].cell_len + between.cell_len + part.cell_len <= self.width:
                lines[-1] = Text.assemble(lines[-1], between, part)
            else:
                lines += self._broken(part, indent)
        return lines

    def _tile(self, tile: Tile) -> Text:
        note = f" {tile.note}" if tile.note.startswith("of ") else f" ({tile.note})" if tile.note else ""
        label = "" if tile.label.endswith("rate") else f"{tile.label.removesuffix(' of a worker')} "
        return Text.assemble(label, (tile.value, "bold"), note)

    def _bar(self, bar: Bar) -> Iterator[Text]:
        total = f"  {bar.total}"
        width = self.width - OF_BAR - max(len(total), 10)
        line = Text(f"  {bar.title:{OF_BAR - 2}}")
        for share, cells in zip(bar.shares, cells_of([share.fraction for share in bar.shares], width), strict=True):
            if cells:
                line.append_text(self._filled(share.family, cells))
        yield line.append(total)
        named = sorted((share for share in bar.shares if share.fraction >= NAMED), key=lambda one: -one.fraction)
        parts = [Text.assemble(self._filled(one.family, 1), f" {one.name} {one.percent}") for one in named]
        yield from self._side_by_side(parts, Text("  "), OF_BAR)

    def _filled(self, family: Paint, cells: int) -> Text:
        """Cells in a family's colour, which are solid only if true colour is available.

        With only 256 colours, red looks almost orange.
        """
        fill, colours = FILLS[family.name], None if self.console.no_color else self.console.color_system
        block = fill.block if colours != "truecolor" else FILLS["computing"].block
        return Text((block if self.blocks else fill.letter) * cells, fill.colour if colours else "")

    def _hot(self, most: int) -> Iterator[Text]:
        label = "your code"
        for one in self.digest.hot[:most]:
            each = f"{f', {one.each}' if one.each else ''}: {with_short_paths(one.where)}"
            texts = [f"{one.share} of CPU{each}", f"{one.share} of CPU: {with_short_paths(one.where)}"]
            texts[:0] = [f"{texts[0]} in {one.calls}"] if one.calls else []
            text = next((text for text in texts if len(text) <= self.width - OF_BAR), texts[-1])
            for line in self.wrapped(text, OF_BAR):
                yield Text.assemble(f"  {label:{OF_BAR - 2}}", line[OF_BAR:])
                label = ""

    def _findings(self, most: int, lines_of_what: int, lines_of_others: int) -> Iterator[Text]:
        """Findings with their savings and remedies. Missing data are shown separately."""
        digest = self.digest
        found = [
            one
            for one in digest.findings
            if digest.lacking is None or not one.incomplete or digest.lacking.what not in one.what
        ]
        if not found:
            yield from self.wrapped(digest.verdict) if digest.verdict else ()
            return
        yield Text("What to change", style="bold")
        for place, finding in enumerate(found[:most], 1):
            yield from self._at_the_edge(Text.assemble(f"  {place}  ", (finding.headline, "bold")), finding.saves)
            what = with_short_paths(self.names.in_text(finding.what))
            yield from self.wrapped(what, 5, lines_of_what)
            yield from self._advice(finding)
        # fixing causes outside the analysis may save the most
        rest = sorted(found[most:], key=lambda one: -(one.seconds or 0.0))
        more = [f"{one.headline}{f' ({one.saves_then})' if one.saves_then else ''}" for one in rest]
        if more or (digest.verdict and len(found) > 1):
            yield from self._others(more, digest.verdict, lines_of_others)

    def _others(self, more: Sequence[str], verdict: str, most: int) -> list[Text]:
        """As many other findings as fit, the number of findings left out and, if there is room, the verdict."""
        for kept in range(len(more), 0, -1):
            rest = f"; and {number(len(more) - kept)} more" if kept < len(more) else ""
            also = f"Also: {'; '.join(more[:kept])}{rest}."
            for text in (f"{also} {verdict}", also):
                lines = self.wrapped(text)
                if len(lines) <= most:
                    return lines
        return self.wrapped(f"Also: {more[0]}." if more else verdict, most=most)

    def _advice(self, finding: Finding) -> Iterator[Text]:
        """Advice. Lines to copy are not truncated, and they contain full addresses."""
        remedy = finding.remedy or ""
        advice = with_short_paths(self.names.in_text(finding.advice)).removesuffix(".")
        advice += f": {remedy}" if remedy else "."
        for place, line in enumerate(self.wrapped(advice, 8)):
            line.highlight_words([remedy] if remedy else [], "bold")
            yield line if place else Text.assemble("     -> ", line[8:])

    def _rest(self, places: Places) -> Iterator[Text]:
        if self.digest.problems:
            yield from self.wrapped(_problems(self.digest.problems), most=2)
        tables = Text.assemble(("All tables: ", "dim"), self.plain(places.tables))
        page = Text.assemble(("Page: ", "dim"), self.plain(places.page))
        both = Text.assemble(tables, GAP, page)
        yield from [both] if both.cell_len <= self.width else [tables, page]


def cells_of(fractions: Sequence[float], width: int) -> list[int]:
    """Number of cells for each share in a bar. Labelled shares get at least one cell."""
    ends = np.rint(np.cumsum(fractions) / (sum(fractions) or 1.0) * width).astype(int)
    cells = np.diff(ends, prepend=0)
    for place in np.flatnonzero((cells == 0) & (np.array(fractions) >= NAMED)):
        if cells.max() > 1:
            cells[cells.argmax()] -= 1
            cells[place] = 1
    return list(cells.tolist())


def with_short_paths(text: str) -> str:
    """Make paths relative to the working directory, and shorten long paths and URLs to their last component."""
    with suppress(OSError):  # there is no working directory any more
        here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
        text = text if here == "/" else re.sub(rf"(?<![\w./-]){re.escape(here)}", "", text)
    return re.sub(r"[^\s()',;\"]{24,}/([^\s()',;\"]+)", r".../\1", text)


def _problems(found: Sequence[str]) -> str:
    more = f" (and {number(len(found) - 1)} more)" if len(found) > 1 else ""
    return with_short_paths(f"{counted(len(found), 'measurement problem')}: {found[0]}{more}.")


# In HTML

EVIDENCE: Final = {
    **dict.fromkeys(("function", "section"), "flame-graph"),
    **dict.fromkeys(("worker", "host"), "workers"),
    **dict.fromkeys(("file", "dataset", "chunk size"), "chunks"),
    "endpoint": "tables-files",
    "branch": "tables-branches",
}
"""Maps each kind of culprit to the page section that shows it."""

EVIDENCE_OF: Final = {
    **dict.fromkeys(("failures", "missing data"), "tables-failed-work"),
    "memory": "workers",
    "time limit": "tables-batch-jobs",
    "slow dataset": "chunks",
    "decompression": "tables-branches",
    "metadata": "tables-files",
}
"""Maps each cause to the page section that shows it."""


def cards_of(digest: Digest, anchors: Collection[str] = ()) -> list[Card]:
    """Findings as cards. A card links to its evidence if the page has a section for it."""
    return [
        finding.card._replace(
            evidence=next((part for part in _evidence(finding) if part in anchors), ""),
            measure="memory" if finding.cause == "memory" else "",
            page=page_address(finding.page),
        )
        for finding in digest.findings
    ]


def _evidence(finding: Finding) -> Iterator[str]:
    # charts do not show files whose work was lost
    if EVIDENCE_OF.get(finding.cause) != "tables-failed-work":
        yield from (EVIDENCE[culprit.kind] for culprit in finding.culprits if culprit.kind in EVIDENCE)
    yield from (EVIDENCE_OF.get(finding.cause, ""), "over-time", "tables-ledgers")


def notebook_look(digest: Digest, heading: Heading) -> Markup:
    """First look for a notebook, without scripts and in the notebook's colours."""
    palettes = [Markup(palette(FAMILIES, scheme)) for scheme in ("light", "dark")]
    values = {"look": digest, "cards": cards_of(digest), "heading": heading, "palettes": palettes, "linked": linked}
    return rendered("first_look_of_notebook.html", **values)
