"""A finding about worker memory that grows from chunk to chunk."""

from roastcoffea.diagnosis.evidence import NAMED, Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.findings.lost_work import MEMORY
from roastcoffea.metrics.memory import IN_RESULTS, of_workers
from roastcoffea.records.arrow import rows_in
from roastcoffea.records.columns import Row
from roastcoffea.units import BYTE, SECOND, counted


def _room(row: Row) -> float:
    """Chunks until the limit or, without one, until memory doubles."""
    left = row["memory_after"] / row["growth"] if row["chunks_left"] is None else row["chunks_left"]
    return max(float(left), 1.0)


def _text(row: Row) -> str:
    low, high = (BYTE.text(max(row[f"growth_{end}"], 0.0)) for end in ("low", "high"))
    each = f"{BYTE.text(row['growth'])} per chunk, {low} to {high}"
    if row["chunks_left"] is None:
        return f"{row['worker']} ({each})"
    left = counted(float(f"{_room(row):.2g}"), "more chunk")
    return f"{row['worker']} ({each}; limit reached after about {left}, {SECOND.text(row['seconds_left'])})"


@finding(
    "memory grows",
    "Memory grows from chunk to chunk",
    part="in the result",
    shows="nowhere",
    page=MEMORY,
)
def memory_grows(evidence: Evidence) -> Finding | None:
    """Limited by growing memory.

    Chunks leak memory. With ten times as many chunks, a worker would reach its limit (or, if the limit is unknown,
    double its memory use).

    **Check.** `grows` says whether the memory is kept by the process, or by Dask as results of chunks.

    ```python
    columns = ["worker", "growth", "growth_low", "growth_high", "results_growth", "grows", "dataset", "chunks_left"]
    print(measurement.memory_growth[columns])
    ```

    **Fix.** *process:* do not keep chunk data on the processor instance, in globals or in unbounded caches. Until then,
    restart workers in time (`--lifetime`), or run fewer threads per worker. *results:* return less, such as fewer
    or coarser histograms.

    **Fine if** each Runner call ends before the limit is reached: restart the workers between calls.
    """
    rows = rows_in(evidence.growth)
    ran = of_workers(evidence.run.chunks, "id", "count")
    found = sorted((one for one in rows if one["grows"] and _room(one) < 10 * ran[one["worker"]]), key=_room)
    if not found:
        return None
    what = (
        f"Memory grows from chunk to chunk on {counted(len(found), 'worker')}: {', '.join(map(_text, found[:NAMED]))}."
    )
    datasets = list(dict.fromkeys(one["dataset"] for one in found if one["dataset"]))
    if datasets:
        what += f" The growth comes from chunks of {', '.join(datasets[:NAMED])}."
    advice, remedy = _advice(evidence, found)
    return Finding(
        what=what,
        advice=advice,
        culprits=(
            *(Culprit("worker", one["worker"]) for one in found),
            *(Culprit("dataset", name) for name in datasets),
        ),
        remedy=remedy,
        rows={},
        always=True,
    )


def _advice(evidence: Evidence, found: list[Row]) -> tuple[str, str | None]:
    if found[0]["grows"] == IN_RESULTS:
        return "Dask holds it as results: return less from process(), such as fewer or coarser histograms.", None
    keep = "Do not keep chunk data in the processor"
    if evidence.local:
        return f"{keep}.", None
    # Dask pauses workers at four fifths of the limit
    minutes = min((0.7 * (one["age"] + one["seconds_left"]) // 60 for one in found if one["chunks_left"]), default=0)
    if minutes < 5:  # restarts would take most of the time
        return f"{keep}; restart between Runner calls.", "client.restart()"
    return f"{keep}; restart workers in time.", f"dask worker ... --lifetime {minutes:.0f}m --lifetime-restart"
