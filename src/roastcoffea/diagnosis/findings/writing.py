"""A finding about chunks that spend much time writing files."""

import numpy as np

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.findings.reading import HALF, STORAGE
from roastcoffea.diagnosis.savings import Taken, in_order, of_chunks
from roastcoffea.metrics import phases
from roastcoffea.metrics.endpoints import LOCAL
from roastcoffea.metrics.statistics import amounts
from roastcoffea.replay.changes import STORAGE_FACTOR, Chunks, with_computing
from roastcoffea.units import BYTE, BYTE_PER_SECOND, counted


@finding(
    "writing",
    "Writing files takes long",
    part="in chunks",
    shows="`write`",
    page=STORAGE,
)
def writing(evidence: Evidence) -> Finding | None:
    """Limited by writing.

    Threads write files, such as skims, in `process()`.

    **Check.** Is it storage or CPU time (serializing, compressing)?

    ```python
    print(measurement.outputs)
    print(measurement.chunks[["write_wait_seconds", "write_cpu_seconds"]].sum())
    ```

    **Fix.** *Storage*: write to local disks. *CPU*: write less, or pass more events to each `extend`.

    **Fine if** you need these files. The saving assumes writing twice as fast.
    """
    rows, outputs = evidence.rows_of("writing"), evidence.outputs
    seconds = sum(rows.values())
    # writing twice as fast must save enough, even if it also shortens idle time by chance
    if outputs is None or evidence.wall(seconds) < STORAGE_FACTOR * evidence.least("writing"):
        return None
    known = [row for row in outputs.to_pylist() if row["seconds"]]
    if not known:
        return None
    most = max(known, key=lambda row: row["seconds"])
    place = Culprit("endpoint", most["endpoint"], most["seconds"])
    if is_local := most["endpoint"] == LOCAL:
        place = place._replace(kind="folder", name=most["folder"] or LOCAL)
    if evidence.seconds_in("write_cpu_seconds") >= HALF * seconds:
        advice = "Write fewer events or branches, or use faster compression."
        remedy = "compression=uproot.LZ4(1)" if most["kind"] == "ROOT" else 'compression="lz4"'
    else:
        advice, remedy = "Write to a faster disk." if is_local else "Write to local disks, then move whole files.", None
    verb = "dominates" if seconds >= HALF * evidence.total else "takes long"
    return Finding(
        what=f"Writing {verb}: {evidence.share(seconds)} of "
        f"thread time is spent writing {'files, mostly ' if len(known) > 1 else ''}{counted(most['files'], 'file')} "
        f"({BYTE.text(most['bytes_written'])}) to {place.name}, at {BYTE_PER_SECOND.text(most['rate'])} per thread.",
        advice=advice,
        remedy=remedy,
        culprits=(place,),
        rows=rows,
        taken=_faster(evidence, seconds),
    )


def _faster(evidence: Evidence, seconds: float) -> Taken:
    share = 1 - 1 / STORAGE_FACTOR
    cpu, wait = (share * amounts(evidence.counted, name) for name in phases.WRITING)

    def change(chunks: Chunks) -> Chunks:
        less_cpu = np.maximum(chunks.parts.cpu - in_order(cpu, chunks, 0.0), 0.0)
        less_wait = np.maximum(chunks.parts.wait - in_order(wait, chunks, 0.0), 0.0)
        return with_computing(chunks, cpu=less_cpu, wait=less_wait)

    return Taken(of_chunks(change), share * seconds)
