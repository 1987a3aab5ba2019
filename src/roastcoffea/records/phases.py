"""One table of the phases of an attempt: their columns, metrics, stragglers, plots and exports read it.

A new phase is one entry here, and what measures it.
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
"""What an attempt does in a phase. It opens its file and builds events, then it computes or waits in process(), and
then it saves what came of that."""


class Phase(NamedTuple):
    """A part of an attempt's time."""

    name: str
    time_class: str
    """Class of the time ledger that it belongs to."""
    part: Part
    recorded: str
    """What its column in the table of chunks holds, without the words that it is in process()."""
    meaning: str

    @property
    def column(self) -> str:
        """Its column in the table of chunks."""
        return f"{self.name}_seconds"

    @property
    def in_process(self) -> bool:
        """Whether it is a part of process()."""
        return self.part in {"CPU", "waiting"}


# fmt: off
PHASES: Final = (
    Phase("open", OPEN, "opening", "opening the file",
          "Wall time in which files were opened"),
    Phase("build", OPEN, "opening", "building tree, schema and events, with what is preloaded",
          "Wall time in which trees, schemata and events were built, and preloaded branches read"),
    Phase("read", READ, "waiting", "waiting for storage",
          "Time in process() that waited for storage"),
    Phase("decompress", DECOMPRESS, "CPU", "CPU time of the thread in decompression",
          "CPU time in process() of decompression, in the chunks' own threads"),
    Phase("interpret", INTERPRET, "CPU",
          "CPU time of the thread in interpretation of baskets, from hand-over to final array",
          "CPU time in process() of interpreting baskets, in the chunks' own threads"),
    Phase("compute", COMPUTE, "CPU", "CPU time of the thread in all else",
          "CPU time in process() of all else, in the chunks' own threads"),
    Phase("contention", CONTENTION, "waiting", "runnable without a core, in reading too (Linux only)",
          "Time in process() in which the chunks' threads could run and had no core"),
    Phase("lock", LOCK, "waiting", "blocked while other threads held the interpreter's lock (estimated)",
          "Time in process() blocked while other threads held the interpreter's lock (estimated)"),
    Phase("blocked", BLOCKED, "waiting", "other time without CPU: sleep, locks, network services",
          "Other time in process() without CPU: sleep, locks, network services"),
    Phase(WAIT, WAIT, "waiting", "all time without CPU but reading: the sum of these three",
          "Other time in process() without CPU: contention, the interpreter's lock, blocked"),
    Phase("checkpoint", CHECKPOINT, "saving", "loading and saving the checkpoint",
          "Wall time in which checkpoints were loaded and saved"),
    Phase("result", OVERHEAD, "saving", "after process(): closing the file, coffea's own metrics",
          "Wall time after process(): closing the file, coffea's own metrics"),
)
"""Phases of an attempt, in order of time; those within process() alternate."""
# fmt: on

UNSPLIT: Final = f"{WAIT}_seconds"
"""Column that has the sum of the next ones, where a platform or an older version did not tell them apart."""
SPLIT: Final = tuple(phase.column for phase in PHASES if phase.time_class in {CONTENTION, LOCK, BLOCKED})
