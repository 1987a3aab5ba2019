"""Whether the byte ledger holds all that was requested, by other records of the same run."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import (
    assigned_chunks,
    counted_chunks,
    identities,
    known_sum,
    lost_rows,
    rows_where,
    with_outcome,
)
from roastcoffea.metrics.ledger import Attempts, Certificate
from roastcoffea.metrics.phases import RESIDUAL
from roastcoffea.metrics.requests import ChunkRequests, Transferred
from roastcoffea.metrics.statistics import having, integers
from roastcoffea.records.chunks import OK, SKIPPED
from roastcoffea.records.run import FINISHED, Run, RunnerCall
from roastcoffea.records.tasks import CANCELLED, LOST, MERGE_PREFIX, PREPROCESSING, PROCESSOR
from roastcoffea.units import BYTE

LOSABLE: Final = ("chunks", "branch_reads", "preprocessing", "tasks")


def certificate(run: Run, chunks: ChunkRequests, requests: pa.Table, transferred: Transferred) -> Certificate:
    """What is missing of the byte ledger."""
    attempts, missing = _missing_attempts(run, chunks.table)
    reasons = [*missing, *_missing_preprocessing(run), *lost_rows(run, *LOSABLE)]
    counts = {
        "attempts of chunks do not tell what they requested": np.count_nonzero(~chunks.known),
        "chunks do not tell their metadata": np.count_nonzero(
            chunks.counted & ~chunks.table["bytes_metadata"].is_valid().to_numpy()
        ),
        "chunks lack branches that they read": chunks.lacking_branches(),
    }
    reasons += [f"{count} {what}" for what, count in counts.items() if count]
    reasons += _contradictions(requests, transferred)
    return Certificate(attempts=attempts, reasons=reasons, estimated=int(np.count_nonzero(chunks.reads.estimated)))


def _contradictions(requests: pa.Table, transferred: Transferred) -> list[str]:
    """What cannot be where all was seen: bytes in no class, and bytes that never came though no request failed."""
    unexplained = np.count_nonzero(integers(requests[RESIDUAL]))
    reasons = []
    if unexplained:
        reasons.append(f"{unexplained} attempts have a residual, of {BYTE.text(known_sum(requests[RESIDUAL]))} in all")
    if transferred.lacking:
        reasons.append(f"{BYTE.text(transferred.lacking)} less were transferred than requested")
    return reasons


def _missing_attempts(run: Run, chunks: pa.Table) -> tuple[Attempts, list[str]]:
    """Attempts of chunks by Dask's tasks, else by what the Runner handed out; and those without a record."""
    if run.tasks is not None:
        tasks, missing = _without_record(run.tasks, PROCESSOR, chunks)
        reasons = [*_by_end(missing, "attempts of chunks"), *_doubled(tasks, chunks, "attempts of chunks")]
        return Attempts(len(tasks) - len(missing), len(tasks)), reasons
    assigned = assigned_chunks(run)
    if assigned is None or not run.calls:
        return Attempts(len(chunks), None), ["nobody counted the attempts of chunks that began"]
    ended = len(counted_chunks(chunks)) + len(with_outcome(chunks, (SKIPPED,)))
    return Attempts(ended, assigned), _compared(assigned, ended, ended, "chunks")


def _compared(assigned: int, seen: int, ended: int, what: str) -> list[str]:
    """What is wrong where fewer things left a record than were handed out, or more ended."""
    if seen < assigned:
        return [f"{assigned - seen} of {assigned} {what} left no record"]
    return [f"{ended} {what} ended, of {assigned} that were handed out"] if ended > assigned else []


def _missing_preprocessing(run: Run) -> list[str]:
    records, what = run.preprocessing, "preprocessing tasks"
    if records is None:
        absent = run.absent.get("preprocessing")
        return ["preprocessing was not recorded" if absent is None else f"preprocessing: {absent}"]
    unknown = records["bytes_requested"].null_count
    reasons = [f"{unknown} {what} do not tell what they requested"] if unknown else []
    if run.tasks is None:
        return [*reasons, *_missing_files(run.calls, records)]
    openings = run.tasks.filter(pc.equal(run.tasks["kind"], PREPROCESSING))
    openings = openings.filter(pc.fill_null(pc.not_equal(openings["prefix"], MERGE_PREFIX), True))
    tasks, missing = _without_record(openings, PREPROCESSING, records)
    return [*reasons, *_by_end(missing, what), *_doubled(tasks, records, what)]


def _missing_files(calls: tuple[RunnerCall, ...], preprocessing: pa.Table) -> list[str]:
    """What is wrong with records of the files that finished Runner calls handed out, where they were counted.

    A file that is tried again has a record for each time, and ends once.
    """
    handed = {call.id: call.files for call in calls if call.outcome == FINISHED and call.files is not None}
    ours = preprocessing.filter(pc.is_in(preprocessing["call"], value_set=pa.array(list(handed), pa.string())))
    seen = ours.group_by(["call", "dataset", "file", "tree"]).aggregate([])
    return _compared(sum(handed.values()), len(seen), len(with_outcome(ours, (OK,))), "files of preprocessing")


def _without_record(tasks: pa.Table, kind: str, records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Tasks of a kind, and those of them that left no record."""
    ours = rows_where(tasks.select(["key", "run_id", "outcome"]), having(tasks["kind"], kind))
    known, attempts = identities(ours, records)
    return ours, ours.filter(pa.array((attempts < 0) | ~np.isin(attempts, known)))


def _doubled(tasks: pa.Table, records: pa.Table, what: str) -> list[str]:
    """How many records there are beyond one for each attempt of a task."""
    known, assigned = identities(tasks, records)
    found = known[(known >= 0) & np.isin(known, assigned)]
    more = int(np.count_nonzero(np.diff(np.sort(found)) == 0))
    return [f"{more} {what} are recorded once more"] if more else []


ENDS: Final = {LOST: "whose worker was lost", CANCELLED: "that were cancelled"}


def _by_end(missing: pa.Table, what: str) -> list[str]:
    """How many left no record, by the way in which they ended."""
    ends = [ENDS.get(outcome, "that ended") for outcome in missing["outcome"].to_pylist()]
    return [f"{ends.count(end)} {what} {end} left no record" for end in dict.fromkeys(ends)]
