"""Runs as the scheduler sees them: which tasks belong to which run, and how far each has come."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from roastcoffea.backends.attempts import CoffeaTasks, kind_of
from roastcoffea.log.completeness import Tally
from roastcoffea.log.marks import ANNOTATION, is_measured
from roastcoffea.records.workers import KINDS, OTHER, PREPROCESSING, PROCESSOR
from roastcoffea.redaction import redacted
from roastcoffea.report.live import Progress, Rates

QUIET: Final = 30.0
"""Seconds without any task after which the next one of the same client begins another run."""

BETWEEN_STEPS: Final = 600.0
"""The same between preprocessing and the first chunk of a Runner call that a collector measures."""

MOST_RUNS: Final = 20
"""Most runs kept, as the page shows no more; those that ended first are forgotten first."""

LONGEST_NAME: Final = 60


@dataclass(eq=False)
class ObservedRun:
    """A run so far: a Runner call of a client with roastcoffea, or what a client without it does between two pauses.

    Attributes
    ----------
    collectors : tuple
        Collectors that measure it; none for a client without roastcoffea.
    asked, files : int
        Chunks and files that the client submitted so far.
    pending : int
        Its tasks without an end.
    metered : bool
        Whether any chunk left a record.
    """

    name: str
    client: str
    start: float
    collectors: tuple[str, ...]
    rates: Rates
    tally: Tally = field(default_factory=Tally)
    asked: int = 0
    files: int = 0
    pending: int = 0
    last: float = 0.0
    stop: float | None = None
    metered: bool = False
    processor: str | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def ended(self) -> bool:
        """Whether nothing more of it is expected."""
        return self.stop is not None

    @property
    def longest_pause(self) -> float:
        """Seconds without any task after which it has ended."""
        return BETWEEN_STEPS if self.collectors and not self.asked else QUIET

    def proceed(self, now: float, threads: tuple[int, int]) -> None:
        """Note how far it has come."""
        known = {**asdict(self.tally), "chunks_asked": self.asked, "files_asked": self.files}
        self.progress = Progress(**known, threads=threads)
        self.rates.add(now, self.progress)


class Part(NamedTuple):
    """What a task does for a run; none for tasks of no run."""

    run: ObservedRun | None
    kind: str
    events: int | None = None


NO_PART: Final = Part(None, OTHER)


class Runs:
    """Runs of all clients of a scheduler, and the part that each active task has in one."""

    def __init__(self) -> None:
        self.all: OrderedDict[str, ObservedRun] = OrderedDict()
        self.begun = 0
        self._coffea = CoffeaTasks()
        self._parts: dict[Any, Part] = {}
        self._of_client: dict[str, ObservedRun] = {}

    @property
    def going(self) -> list[ObservedRun]:
        """Runs that have not ended."""
        return [run for run in self.all.values() if not run.ended]

    def part(self, task: Any, now: float) -> Part:
        """The part of a task; it becomes known when it is first asked for."""
        part = self._parts.get(task.key)
        if part is None:
            part = self._parts[task.key] = self._described(task, now)
            run, kind = part.run, part.kind
            if run is not None:
                run.pending += 1
                run.last = now
                run.asked += kind == PROCESSOR
                run.files += kind == PREPROCESSING and not task.dependencies  # a merge opens no file
        return part

    def known(self, key: Any) -> Part:
        """The part of an active task, if it was asked for before."""
        return self._parts.get(key, NO_PART)

    def ended(self, key: Any, now: float) -> None:
        """Note that a task has a result, or an error."""
        part = self._parts.pop(key, NO_PART)
        if part.run is not None:
            part.run.pending -= 1
            part.run.last = now

    def forgotten(self, key: Any, now: float) -> None:
        """Note that a task was dropped by its client; one without an end will never have any."""
        self._coffea.forget(key)
        part = self._parts.get(key)
        if part is not None and part.run is not None:
            part.run.asked -= part.kind == PROCESSOR
        self.ended(key, now)

    def collector_left(self, name: str, now: float) -> None:
        """End the runs that only this collector measured; one with tasks goes on, as its client may be stopped."""
        for run in self.all.values():
            if name in run.collectors:
                run.collectors = tuple(other for other in run.collectors if other != name)
                if not run.collectors and not run.ended and run.pending <= 0:
                    run.stop = now

    def client_left(self, client: str, now: float) -> None:
        """End the runs of a client."""
        self._of_client.pop(client, None)
        for run in self.all.values():
            if run.client == client and not run.ended:
                run.stop = now

    def proceed(self, now: float, threads: tuple[int, int]) -> list[ObservedRun]:
        """Note how far all have come; those that ended now are returned."""
        over = []
        for run in self.going:
            run.proceed(now, threads)
            if run.pending <= 0 and now - run.last > run.longest_pause:
                run.stop = run.last
                over.append(run)
        ended = [identity for identity, run in self.all.items() if run.ended]
        for identity in ended[: max(len(self.all) - MOST_RUNS, 0)]:
            del self.all[identity]
        return over

    def _described(self, task: Any, now: float) -> Part:
        mark = (task.annotations or {}).get(ANNOTATION)
        if isinstance(mark, Mapping) and mark.get("collectors"):
            kind = kind_of(task, mark)
            if kind == OTHER and is_measured(task):
                kind = PROCESSOR
            return Part(self._marked(task, mark, kind, now), kind)
        code, *of_chunk = self._coffea.described(task) or (None,)
        if code is None:
            return NO_PART
        kind = KINDS[code]
        run = self._unmarked(task, kind, now)
        return Part(run, kind, of_chunk[4] - of_chunk[3] if of_chunk else None)

    def _marked(self, task: Any, mark: Mapping[str, Any], kind: str, now: float) -> ObservedRun:
        """The Runner call of a client with roastcoffea, or all that its collector measures without a Runner."""
        collectors = tuple(map(str, mark["collectors"]))
        identity = str(mark.get("call") or collectors[-1])
        run = self.all.get(identity)
        if run is None or run.ended:  # one that ended is not recorded any more
            self.all.pop(identity, None)
            run = self._begin(identity, client_of(task), collectors, now)
        self._name(run, mark.get("prefix") or (task.prefix.name if kind == PROCESSOR else None))
        return run

    def _unmarked(self, task: Any, kind: str, now: float) -> ObservedRun:
        """The run of a client without roastcoffea: another one begins after a pause, or with another processor."""
        client = client_of(task)
        run = self._of_client.get(client)
        processor = task.prefix.name if kind == PROCESSOR else None
        paused = run is not None and run.pending <= 0 and now - run.last > QUIET
        another = run is not None and None not in {processor, run.processor} and processor != run.processor
        if run is None or run.ended or paused or another:
            if run is not None and not run.ended and run.pending <= 0:  # else it ends with its tasks
                run.stop = run.last
            run = self._of_client[client] = self._begin(f"{client} {self.begun + 1}", client, (), now)
        self._name(run, processor)
        return run

    def _begin(self, identity: str, client: str, collectors: tuple[str, ...], now: float) -> ObservedRun:
        self.begun += 1
        run = ObservedRun("preprocessing", client, now, collectors, Rates(now), last=now)
        self.all[identity] = run
        return run

    def _name(self, run: ObservedRun, processor: str | None) -> None:
        if processor is not None and run.processor is None:
            run.processor = processor
            run.name = redacted(str(processor))[:LONGEST_NAME]


def client_of(task: Any) -> str:
    """Identity of the client that submitted a task; of one that nobody wants itself, of the tasks that need it."""
    wanting = task.who_wants or next((other.who_wants for other in task.dependents if other.who_wants), ())
    return min((str(client.client_key) for client in wanting), default="a client that left")


def short(client: str) -> str:
    """Identity of a client without the end of its UUID.

    Examples
    --------
    >>> short("Client-ttbar-5ae17017-e80c-11f1-93cd-02fc00000001")
    'Client-ttbar-5ae17017'
    """
    return re.sub(r"(-[0-9a-f]{8})(-[0-9a-f]{4,12})+$", r"\1", redacted(client))[:40]
