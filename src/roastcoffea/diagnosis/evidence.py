"""What a run is judged by, from where on something is said (thresholds with their reasons), and what is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.stragglers import SlowWorker
from roastcoffea.metrics import phases
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.report.phrases import absence
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Sheet
from roastcoffea.units import FRACTION, SECOND

LEAST: Final = 0.05
"""Share of the wall time that a finding must be able to win: less than that, repeats of one run differ."""

SHORTEST: Final = 0.1
"""Seconds of wall time that a finding must be able to win: nobody changes an analysis for less."""

LEAST_OF: Final[Mapping[str, float]] = {
    # Dask's event loop, the garbage collector and the kernel take so much from the threads of any run
    "contention": 0.10,
    "interpreter lock": 0.10,
    "blocked": 0.10,
    # compressed files save more waiting than that, wherever storage is not on the same machine
    "decompression": 0.25,
    # arrays have to be made of what is read
    "interpretation": 0.25,
    # a client needs its time to prepare and to merge, and short runs have no more of it than long ones
    "client": 0.10,
    # the last round of chunks ends together only by luck
    "tail": 0.10,
    # each file has to be opened once
    "metadata": 0.10,
    # the way to a worker and back takes milliseconds
    "scheduler": 0.10,
}
"""Causes of which a share that is larger is still what a healthy run has, and why."""

BUSY_INTERPRETER: Final = 0.7
"""CPU of a process divided by the time of its chunks from which on its threads wait for each other's interpreter."""

LONGEST_LINE: Final = 120
"""Letters of an error that are shown."""

MOST: Final = 0.9
"""A section inside of another is named in its place where it waited for so much of the other's time."""

LEAST_OF_CLIENT: Final = 0.01
"""Share of all thread time from which on a part of the client's time is named."""

TARGET: Final = 0.05
"""Share of a chunk's time that opening and scheduling should take, in the chunk sizes that are proposed."""

LARGER: Final = 1.5
"""Factor by which a proposed chunk size is larger at least: less changes little."""

ROUNDS_OF_CHUNKS: Final = 3
"""Chunks for each thread that a proposed chunk size leaves at least, so that all threads end together."""


Rows = Mapping[str, float]
"""Thread seconds by what they went into: classes of the time ledger, or parts of them."""

WORDS: Final = {one.name: one.word for one in phases.TIME_CLASSES if one.word is not None}
"""Word for each class of the time ledger."""


@dataclass(frozen=True)
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
        return {name: self.ledger[name] for name in names if name in self.ledger and self.ledger[name] > 0}

    def sum_of(self, column: str) -> float | None:
        """Sum of a column of the chunks that counted; None where it is not known."""
        found: float | None = None if self.counted is None else pc.sum(self.counted[column]).as_py()
        return found

    @property
    def chunks(self) -> int:
        """Number of chunks that counted."""
        return 0 if self.counted is None else len(self.counted)


def words(*, shared: bool) -> dict[str, str]:
    """Word for each class; where an interpreter is shared, all that waits in process() waits for it as well."""
    waiting = (one.name for one in phases.TIME_CLASSES if one.work == "waiting")
    return WORDS | (dict.fromkeys(waiting, WORDS[phases.LOCK]) if shared else {})


def shares_interpreter(counted: pa.Table | None) -> bool:
    """Whether chunks ran side by side in processes whose one interpreter was busy most of the time.

    Then what looks like waiting for storage is for the most part waiting for that interpreter, which every answer of
    the storage has to pass.
    """
    if counted is None or not (pc.max(counted["overlaps"]).as_py() or 0):
        return False
    wall, cpu = (pc.sum(counted[name]).as_py() for name in ("wall_seconds", "process_cpu_seconds"))
    return bool(wall and cpu and cpu >= BUSY_INTERPRETER * wall)


@dataclass(frozen=True, slots=True)
class Finding:
    """A potential saving: `seconds` of wall time if what is in `rows` (thread seconds) vanished for all.

    The other rows are taken to stay. Some of the idle time may be there because of it: that would be won besides.
    """

    cause: str
    seconds: float
    text: str
    rows: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


class Verdict(list[Finding], Presented):
    """Findings, the worst first; empty where the run is healthy.

    Where there is no time ledger to judge by it is empty as well, and `absent` has the reason. Where the ledger lacks
    something, `incomplete` says what: then nothing is said of idle time, as what is lacking looks like it.
    """

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        absent: str | None = None,
        incomplete: Iterable[str] = (),
        *,
        bound: str | None = None,
        elapsed: float = 0.0,
        failed: bool = False,
    ) -> None:
        super().__init__(findings)
        self.absent = absent
        self.incomplete = list(incomplete)
        self._bound, self._elapsed, self._failed = bound, elapsed, failed

    @property
    def healthy(self) -> bool:
        """Whether there was all to judge by, and nothing was found."""
        return self.absent is None and not self.incomplete and not self

    def sheets(self) -> list[Sheet]:
        """The bottleneck and the potential savings."""
        if self.absent is not None:
            return [Sheet(title="verdict", lead=[absence(self.absent)])]
        return [Sheet(title="incomplete" if self._bound is None else f"bound by {self._bound}", items=self._lines())]

    def _lines(self) -> list[str]:
        """Potential savings, a line each; one line that says so where there are none."""
        lines = [
            f"{finding.cause}, worth {SECOND.text(finding.seconds)} of {SECOND.text(self._elapsed)}: {finding.text}."
            for finding in self
        ]
        if self.incomplete:
            lines.insert(0, f"Incomplete, so that nothing is said of idle time: {'; '.join(self.incomplete)}.")
        if lines:
            return lines
        if self._failed:
            return ["Nothing was found before it failed."]
        return ["No change of the settings would save time."]
