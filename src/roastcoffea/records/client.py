"""The client while executors work on Dask: what its thread does for each of them, and its event loop."""

from typing import Final

from roastcoffea.records.columns import Column

SUBMIT: Final = "submit"
RESULTS: Final = "results"
MERGE: Final = "merge"
EXECUTOR: Final = "executor"
LOOP: Final = "event loop"
SHARED_LOOP: Final = "shared event loop"
"""Steps; an event loop is shared if it is the scheduler's as well (LocalCluster)."""

CLIENT_STEP_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call; none for the event loop"),
    Column("work", "text", None, '"processing" or "preprocessing"; none for the event loop'),
    Column(
        "step",
        "text",
        None,
        '"executor" (all of its work), "submit" (a graph of tasks), "results" (from the last graph until the result is '
        'there), "merge" (into the output, on the client), "event loop" (a sample of it), or "shared event loop" (a '
        "sample, if the scheduler has the same one)",
    ),
    Column("start", "number", "s", "when it began; for the event loop, the previous sample (Unix time)"),
    Column("stop", "number", "s", "when it ended (Unix time)"),
    Column("cpu_seconds", "number", "s", "CPU time of its thread meanwhile"),
    Column("process_cpu_seconds", "number", "s", "CPU time of the client's process meanwhile (event loop only)"),
    Column("graph_bytes", "integer", "B", "size of the graph that was sent (submit only)"),
    Column("tasks", "integer", "tasks", "tasks of that graph (submit only)"),
    Column("late_seconds", "number", "s", "delay until the event loop took a call (event loop only)"),
)
"""One row for each step of the client's thread, and about one a second for its event loop."""
