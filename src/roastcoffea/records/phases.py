"""The phases of an attempt in one table, used by columns, metrics, stragglers, plots and exports.

A new phase is one entry here, plus the code that measures it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

COMPUTE: Final = "compute"
DECOMPRESS: Final = "decompress"
INTERPRET: Final = "interpret"
READ: Final = "read"
CONTENTION: Final = "contention"
LOCK: Final = "interpreter lock"
BLOCKED: Final = "blocked"
WAIT: Final = "wait"
OPEN: Final = "open"
CHECKPOINT: Final = "checkpoint"
OVERHEAD: Final = "task overhead"

Part = Literal["opening", "CPU", "waiting", "saving"]
"""What an attempt does in a phase: open its file and build events, compute or wait in process(), save the result."""


class Phase(NamedTuple):
    """A part of an attempt's time."""

    name: str
    time_class: str
    """Its class of the time ledger."""
    part: Part
    recorded: str
    """What its column in the table of chunks holds, without the prefix for process()."""
    meaning: str

    @property
    def column(self) -> str:
        """Its column in the table of chunks."""
        return f"{self.name}_seconds"

    @property
    def in_process(self) -> bool:
        """Whether it is part of process()."""
        return self.part in {"CPU", "waiting"}


# fmt: off
PHASES: Final = (
    Phase("open", OPEN, "opening", "opening the file",
          "Wall time to open files"),
    Phase("build", OPEN, "opening", "building tree, schema and events",
          "Wall time to build trees, schemas and events"),
    Phase("read", READ, "waiting", "waiting for storage",
          "Waiting for storage in process(), or as branches are preloaded"),
    Phase("decompress", DECOMPRESS, "CPU", "CPU time of the thread spent decompressing",
          "CPU time in process() or preloading spent decompressing, in the chunks' own threads"),
    Phase("interpret", INTERPRET, "CPU",
          "CPU time of the thread spent interpreting baskets as arrays",
          "CPU time in process() or preloading spent interpreting baskets, in the chunks' own threads"),
    Phase("compute", COMPUTE, "CPU", "other CPU time of the thread",
          "Other CPU time in process(), in the chunks' own threads"),
    Phase("contention", CONTENTION, "waiting", "runnable without a free core, also while reading (Linux only)",
          "Runnable in process() without a free core"),
    Phase("lock", LOCK, "waiting", "blocked while other threads held the interpreter lock (estimated)",
          "Blocked in process() while other threads held the interpreter lock (estimated)"),
    Phase("blocked", BLOCKED, "waiting", "other time off the CPU: sleep, locks, network services",
          "Other time off the CPU in process(): sleep, locks, network services"),
    Phase(WAIT, WAIT, "waiting", "contention, interpreter lock and blocked combined",
          "Contention, interpreter lock and blocked combined"),
    Phase("checkpoint", CHECKPOINT, "saving", "loading and saving the checkpoint",
          "Wall time to load and save checkpoints"),
    Phase("result", OVERHEAD, "saving", "after process(): closing the file, coffea's own metrics",
          "Wall time after process(): closing the file, coffea's own metrics"),
)
"""Phases of an attempt, in order of time; those within process() alternate."""
# fmt: on

UNSPLIT: Final = f"{WAIT}_seconds"
"""Sum of the next columns, on platforms or in older versions that do not separate them."""
SPLIT: Final = tuple(phase.column for phase in PHASES if phase.time_class in {CONTENTION, LOCK, BLOCKED})
