"""What failed, as sheets: files with errors, attempts that ended without one, and missing chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import root_cause
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.failures import REPEATED
from roastcoffea.records import tasks
from roastcoffea.report.sheets import Sheet
from roastcoffea.units import are, counted, number, were

MOST_FILES: Final = 10
LONGEST_LINE: Final = 200

WITHOUT_ERROR: Final = {
    tasks.LOST: "lost with a worker",
    tasks.CANCELLED: "cancelled",
    tasks.UNFINISHED: "unfinished when the run stopped",
    REPEATED: "repeated: another result of the chunk was used",
}
"""What happened to attempts that raised no error, by reason."""


def failures(metrics: Metrics) -> Iterator[Sheet]:
    """Files with errors, and what else failed; nothing where nothing did, or it is not known."""
    try:
        files, failed = map(metrics.evaluator.value, ("failed_files", "failed_work"))
    except NotMeasuredError:
        return
    missing = metrics.get("num_missing_chunks") or 0
    if len(files):
        yield Sheet(title=f"files with failed attempts ({number(len(files))})", items=list(_of_files(files, missing)))
        missing = 0
    others = list(_without_error(failed, missing))
    if others:
        yield Sheet(title="other failures" if len(files) else "failures", items=others)


def _of_files(files: pa.Table, missing: int) -> Iterator[str]:
    for row in files.slice(0, MOST_FILES).to_pylist():
        yield _of_file(row)
    if len(files) > MOST_FILES:
        yield f"and {number(len(files) - MOST_FILES)} more"
    elsewhere = missing - (pc.sum(files["missing"]).as_py() or 0)
    if elsewhere:
        yield f"{counted(elsewhere, 'chunk')} of other files {are(elsewhere)} missing as well"


def _of_file(row: Mapping[str, Any]) -> str:
    lacking = "not opened" if row["missing"] is None else f"{counted(row['missing'], 'chunk')} missing"
    outcome, error = lacking if row["missing"] != 0 else "nothing missing", root_cause(row["error"])[:LONGEST_LINE]
    return f"{row['file']}, {row['dataset']}: {row['attempts']} failed, {outcome}; {error}"


def _without_error(failed: pa.Table, missing: int) -> Iterator[str]:
    """Attempts that ended without an error, by reason, and chunks that are missing."""
    reasons = Counter(failed.filter(pc.is_null(failed["error"]))["reason"].to_pylist())
    for reason, text in WITHOUT_ERROR.items():
        if reasons[reason]:
            yield f"{counted(reasons[reason], 'attempt')} {were(reasons[reason])} {text}"
    if missing:
        yield f"{counted(missing, 'chunk')} {are(missing)} missing from the output"
