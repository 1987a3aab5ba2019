"""Totals of events and bytes: where they come from, and whether their sources agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import pyarrow as pa

from roastcoffea.metrics import facts
from roastcoffea.metrics.catalogue import NotMeasuredError, Sourced, refuse_if
from roastcoffea.records.chunks import CHECKPOINT, OK, SKIPPED
from roastcoffea.records.run import FINISHED, Run, RunnerCall

CHUNK_RECORDS: Final = "chunk records"
CUSTOM_METRICS: Final = "custom_metrics of set_coffea_report"
REPORT_SET: Final = "coffea report (set_coffea_report)"
REPORTS_RECORDED: Final = "coffea report (from the Runner call)"


class Quantity(NamedTuple):
    """A quantity counted by both coffea's report and the records of chunks.

    `columns` are those of chunks; the first one known for all chunks is used.
    """

    metric: str
    noun: str
    in_report: str
    in_custom: tuple[str, ...]
    columns: tuple[str, ...]


REQUESTED: Final = ("performance_counters", "num_requested_bytes")
EVENTS: Final = Quantity("total_events", "events", "entries", ("entries",), ("events",))
BYTES: Final = Quantity("total_bytes_read", "bytes", "bytesread", REQUESTED, ("bytes_requested", "coffea_bytes_read"))


def total(quantity: Quantity, run: Run, chunks: pa.Table | None) -> Sourced:
    """Total over the run, from the first source that has it.

    Sources in order: `custom_metrics`, the report that was set unless it omits Runner calls, the reports of all Runner
    calls, and the chunks that counted. If checkpoints were loaded, only the chunks know the bytes read.

    Raises
    ------
    NotMeasuredError
        No source has it.
    """
    custom = _custom_total(quantity, run)
    if custom is not None:
        return custom
    if quantity is BYTES and (hits := _hits(chunks)):
        of_chunks = _chunk_total(quantity, run, facts.with_outcome(chunks, (OK,)))
        return Sourced(of_chunks.value, f"{CHUNK_RECORDS}, without {hits} chunks loaded from checkpoints")
    given = _given_total(quantity, run)
    if given is not None and not _lacks_calls(given, _finished(run), _expected(quantity, run, chunks)):
        return given
    return _reported_total(quantity, run.calls) or _chunk_total(quantity, run, chunks)


def disagreements(run: Run) -> Iterator[str]:
    """Disagreements between the sources of totals, in words."""
    chunks = None
    with suppress(NotMeasuredError):
        chunks = facts.counted_chunks(facts.recorded(run, "chunks"))
    for quantity in (EVENTS, BYTES):
        expected = _expected(quantity, run, chunks)
        given = _custom_total(quantity, run)
        if given is None and not (quantity is BYTES and _hits(chunks)):
            given = _given_total(quantity, run)
        if given is not None and expected is not None and given.value != expected.value:
            yield _disagreement(quantity, run, given, expected)
    if run.coffea_report is not None and all(_given_total(quantity, run) is None for quantity in (EVENTS, BYTES)):
        names = " or ".join(quantity.in_report for quantity in (EVENTS, BYTES))
        yield f"the report of set_coffea_report has no number for {names}: totals come from other sources"
    yield from _reports_against_chunks(run, chunks)


def _disagreement(quantity: Quantity, run: Run, given: Sourced, expected: Sourced) -> str:
    calls = _finished(run)
    if given.source == REPORT_SET and _lacks_calls(given, calls, expected):
        return (
            f"the report of set_coffea_report has {given.value:,} of {expected.value:,} {quantity.noun}: "
            f"{quantity.metric} and its rates cover all {len(calls)} Runner calls"
        )
    return (
        f"{quantity.metric} is {given.value:,} according to the {given.source}, "
        f"but {expected.value:,} according to the {expected.source}: the first is used"
    )


def _reports_against_chunks(run: Run, chunks: pa.Table | None) -> Iterator[str]:
    """Disagreement on events between coffea's reports and the chunks, if every chunk has a record."""
    calls = _finished(run)
    reported = _reported_total(EVENTS, calls)
    if reported is None or chunks is None or not calls or not _all_recorded(run, calls, chunks):
        return
    recorded_events = _chunk_total_or_none(EVENTS, run, facts.of_finished_calls(run, chunks))
    if recorded_events is not None and reported.value != recorded_events.value:
        yield f"coffea's reports have {reported.value:,} events, but the chunk records have {recorded_events.value:,}"


def _all_recorded(run: Run, calls: list[RunnerCall], chunks: pa.Table) -> bool:
    """Whether each chunk submitted by these calls has a record of its end."""
    ends = pa.concat_tables([chunks.select(["call"]), facts.with_outcome(run.chunks, (SKIPPED,)).select(["call"])])
    ended = {row["values"]: row["counts"] for row in ends["call"].value_counts().to_pylist()}
    return all(call.chunks is not None and ended.get(call.id, 0) == call.chunks for call in calls)


def _finished(run: Run) -> list[RunnerCall]:
    """Runner calls that returned an output."""
    return [call for call in run.calls if call.outcome == FINISHED]


def _hits(chunks: pa.Table | None) -> int:
    """Chunks loaded from a checkpoint: coffea's report repeats the bytes that they once read."""
    return 0 if chunks is None else len(facts.with_outcome(chunks, (CHECKPOINT,)))


def _lacks_calls(given: Sourced, calls: list[RunnerCall], expected: Sourced | None) -> bool:
    """Whether a report covers some of several Runner calls, but not all."""
    return expected is not None and len(calls) > 1 and given.value < expected.value


def _expected(quantity: Quantity, run: Run, chunks: pa.Table | None) -> Sourced | None:
    """Total over the Runner calls that returned an output; None if unknown."""
    reported = _reported_total(quantity, _finished(run))
    if reported is not None or chunks is None or not _finished(run):
        return reported
    return _chunk_total_or_none(quantity, run, facts.of_finished_calls(run, chunks))


def _custom_total(quantity: Quantity, run: Run) -> Sourced | None:
    """Sum over the datasets of the user's own breakdown, if each has the number."""
    if not isinstance(run.custom_metrics, Mapping):
        return None
    return _sum((_amount(dataset, *quantity.in_custom) for dataset in run.custom_metrics.values()), CUSTOM_METRICS)


def _given_total(quantity: Quantity, run: Run) -> Sourced | None:
    """Number in the report that was set."""
    return _sum([_amount(run.coffea_report, quantity.in_report)], REPORT_SET)


def _reported_total(quantity: Quantity, calls: Iterable[RunnerCall]) -> Sourced | None:
    """Sum over the reports of these Runner calls, if each has the number."""
    return _sum((_amount(call.report, quantity.in_report) for call in calls), REPORTS_RECORDED)


def _sum(amounts: Iterable[float | None], source: str) -> Sourced | None:
    """Sum of amounts; None if there are none or one is unknown."""
    given = list(amounts)
    known = [amount for amount in given if amount is not None]
    return Sourced(sum(known), source) if known and len(known) == len(given) else None


def _chunk_total(quantity: Quantity, run: Run, chunks: pa.Table | None) -> Sourced:
    if chunks is None:
        raise NotMeasuredError(f"no coffea report and no chunks: {facts.reason_of_absence(run, 'chunks')}")
    column = next((name for name in quantity.columns if not chunks[name].null_count), "")
    refuse_if(not column, "neither coffea's report nor every chunk record has it: set savemetrics=True in the Runner")
    lacking = "; ".join(facts.why_calls_lack(run))
    source = f"{CHUNK_RECORDS}, incomplete: {lacking}" if lacking else CHUNK_RECORDS
    return Sourced(facts.complete_sum(chunks, column, "chunks"), source)


def _chunk_total_or_none(quantity: Quantity, run: Run, chunks: pa.Table) -> Sourced | None:
    with suppress(NotMeasuredError):
        return _chunk_total(quantity, run, chunks)
    return None


def _amount(report: Any, *path: str) -> float | None:
    """Number at a path of keys in an object from the user or coffea; None if it is not usable."""
    for name in path:
        report = report.get(name) if isinstance(report, Mapping) else None
    if not isinstance(report, Real) or isinstance(report, bool):
        return None
    amount = int(report) if isinstance(report, Integral) else float(report)
    return amount if 0 <= amount < math.inf else None
