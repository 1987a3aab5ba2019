"""What a run is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.stragglers import SlowWorker
from roastcoffea.diagnosis.thresholds import BUSY_INTERPRETER, LEAST, LEAST_OF, SHORTEST
from roastcoffea.metrics import phases
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.units import FRACTION

Rows = Mapping[str, float]
"""Thread seconds by what they went into: classes of the time ledger, or parts of them."""

WORDS: Final = {one.name: one.word for one in phases.TIME_CLASSES if one.word is not None}
"""Word for each class of the time ledger."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run is judged by. Tables that were not recorded are None."""

    run: Run
    ledger: TimeLedger
    counted: pa.Table | None
    stragglers: pa.Table | None
    slow_workers: Mapping[str, SlowWorker]
    spilled: float
    fine: Mapping[str, Mapping[str, float]] | None

    @property
    def elapsed(self) -> float:
        """Wall time of the run."""
        return self.run.stop - self.run.start

    @property
    def total(self) -> float:
        """Thread time of the run."""
        return self.ledger.total or 0.0

    @property
    def threads(self) -> float:
        """Threads that there were on average."""
        return max(self.total / self.elapsed, 1.0) if self.elapsed else 1.0

    @property
    def local(self) -> bool:
        """Whether the run had no scheduler."""
        return self.run.tasks is None

    @cached_property
    def shares_interpreter(self) -> bool:
        """Whether chunks of a process shared one busy interpreter: see `shares_interpreter`."""
        return shares_interpreter(self.counted)

    def least(self, cause: str) -> float:
        """Seconds of wall time that a finding of this cause must be able to win."""
        return max(LEAST_OF.get(cause, LEAST) * self.elapsed, SHORTEST)

    def wall(self, thread_seconds: float) -> float:
        """Wall time that so much thread time takes when all threads share it."""
        return thread_seconds * self.elapsed / self.total

    def share(self, thread_seconds: float) -> str:
        """The share of all thread time, for people."""
        return FRACTION.text(thread_seconds / self.total)

    def rows_of(self, word: str) -> dict[str, float]:
        """Thread seconds of the classes that have this word, as far as there are any."""
        names = [name for name, own in words(shared=self.shares_interpreter).items() if own == word]
        return {name: self.ledger[name] for name in names if self.ledger.get(name, 0.0) > 0}

    def sum_of(self, column: str) -> float | None:
        """Sum of a column of the chunks that counted; None where it is not known."""
        found: float | None = None if self.counted is None else pc.sum(self.counted[column]).as_py()
        return found

    @property
    def chunks(self) -> int:
        """Number of chunks that counted."""
        return 0 if self.counted is None else len(self.counted)


def words(*, shared: bool) -> dict[str, str]:
    """Word for each class; where an interpreter is shared reading waits for it as well."""
    return WORDS | ({phases.READ: WORDS[phases.WAIT]} if shared else {})


def shares_interpreter(counted: pa.Table | None) -> bool:
    """Whether chunks ran side by side in processes whose one interpreter was busy most of the time.

    Then what looks like waiting for storage is for the most part waiting for that interpreter, which every answer of
    the storage has to pass.
    """
    if counted is None or not (pc.max(counted["overlaps"]).as_py() or 0):
        return False
    wall, cpu = (pc.sum(counted[name]).as_py() for name in ("wall_seconds", "process_cpu_seconds"))
    return bool(wall and cpu and cpu >= BUSY_INTERPRETER * wall)
