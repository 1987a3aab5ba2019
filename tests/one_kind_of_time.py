"""Runs whose chunks are one phase and nothing else."""

from handmade import T, chunk, handmade_run, phases, task

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, SECTION_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS


def one_kind_of_time(column, **changes):
    """A run of one worker whose ten chunks of 10 s are one phase and nothing else."""
    rows = [
        chunk("data", f"k{place}", place, "ok", attempt=1, id=place, worker="A", file="a.root", overlaps=3)
        | phases(*[0.0] * 9)
        | {"wall_seconds": 10.0, column: 10.0, "process_seconds": 10.0, "start": T + 10 * place}
        | {"stop": T + 10 * place + 10, "events": 100, "cpu_seconds": 1.0}
        | {"entry_start": 100 * place, "entry_stop": 100 * place + 100}
        | changes
        for place in range(10)
    ]
    tasks = [task(f"k{place}", place, "processor", "ok", "A", 10 * place, 10 * place + 10) for place in range(10)]
    life = {"worker": "A", "host": "h", "threads": 1, "start": T, "stop": T + 100}
    return Measurement(
        handmade_run(
            asked=table_of_rows(ASKED_COLUMNS, []),
            chunks=table_of_rows(CHUNK_COLUMNS, rows),
            tasks=table_of_rows(TASK_COLUMNS, tasks),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, [life]),
            attempts={"processor": 10},
            pauses=table_of_rows(PAUSE_COLUMNS, []),
            sections=table_of_rows(SECTION_COLUMNS, []),
            span_metrics={},
            span_metrics_per_worker={},
        )
    )
