"""What a collector requires of the backends in the package."""

from __future__ import annotations

import json
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.compat.shapes import tracking_data
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.log.journal import RECORDS
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Environment, Host, Run
from roastcoffea.records.workers import PAUSE_COLUMNS
from roastcoffea.storage.reading import check_fields

if TYPE_CHECKING:
    import pyarrow as pa

NO_SCHEDULER: Final = "there is no scheduler to sample: the run was measured without a Dask client"
NO_CLIENT: Final = "there is no Dask client to record: the run was measured without one"
NO_TASKS: Final = "there are no Dask tasks: the run was measured without a Dask client"

SAMPLED: Final = ("samples", "sampling", "worker_states")
"""Tables of a run that are sampled."""

PROFILE: Final = "profile"
FROM_CHUNKS: Final = ("branch_reads", "sections", PROFILE)
"""Tables that hold parts of the records of chunks."""

FACTS: Final = "facts"
"""Kind of entries of a journal with what a backend knows."""

TABLES: Final = ("chunks", *FROM_CHUNKS, "preprocessing", "tasks", *SAMPLED, "lifetimes", "pauses", "client_steps")
"""Tables of a run in the order of their creation: a backend learns its workers from chunks."""


@dataclass(eq=False)
class Period:
    """Records so far of a period in which the workers are recorded.

    Attributes
    ----------
    is_open, was_open : bool
        Whether it is active, and whether anything was recorded.
    clock_offset : float
        The scheduler's clock minus the client's, in seconds: 0 if its bounds allow it, otherwise their middle.
    dropped : dict
        Rows lost so far on the scheduler, by table.
    refused : int
        Messages of others to our topic.
    """

    received: ReceivedRecords = field(default_factory=ReceivedRecords)
    is_open: bool = False
    was_open: bool = False
    clock_offset: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    refused: int = 0


class Recorder(AbstractMetricsBackend):
    """A backend as a collector uses it: workers, tasks, records of chunks, and fine metrics of a span.

    The backends in the package derive from it. A custom backend has the methods of `AbstractMetricsBackend`, and
    `backends.registry` makes a recorder from it.
    """

    kind: str
    """Name of the backend in a run."""

    elsewhere: str
    """Why work on an executor out of reach is not recorded."""

    keep: Callable[[str, bytes], None] | None = None
    """Takes entries for the journal of the run, in addition to those of `news`; None without a journal."""

    functions: Any = None
    """What the collector wants of functions that tasks run without a Runner."""

    holds_all: ClassVar[bool] = False
    """Whether a closed backend holds all that its tables need: they can be made later."""

    merges_equal_chunks: ClassVar[bool] = False
    """Whether equal chunks (of a file that is listed twice) run only once."""

    def __init__(self) -> None:
        self._reset()

    @classmethod
    def for_collector(cls, client: Any, carried: Any) -> Self:  # noqa: ARG003  (for those that have a cluster)
        """Make a recorder for a collector with this client, whose tasks need the carried code."""
        return cls()

    def renewed(self, client: Any, carried: Any) -> Self:  # noqa: ARG002  (as above)
        """Make a recorder for a collector that was given this one: each collector has its own."""
        fresh = copy(self)
        fresh._reset()
        return fresh

    def _reset(self) -> None:
        """Forget all records, and take a new name."""
        self.name = f"roastcoffea-{uuid.uuid4().hex[:12]}"
        self.problems: list[str] = []
        self.absent: dict[str, str] = dict.fromkeys(("tasks", "span_metrics"), NO_TASKS)
        self.absent |= dict.fromkeys(("sampling", "worker_states"), NO_SCHEDULER)
        self.absent["client_steps"] = NO_CLIENT
        self.hosts: tuple[Host, ...] = ()
        self.versions: dict[str, str] = {}
        """Versions of packages on workers, where they may differ from those here."""
        self.attempts: dict[str, int] | None = None
        self.span_metrics: dict[tuple[Any, ...], float] | None = None
        self.span_metrics_per_worker: dict[str, dict[tuple[Any, ...], float]] | None = None
        self._began = time.time()
        self._period = Period()
        self._told = b""
        """Facts that the journal has."""

    # life cycle of a collector

    @property
    def is_open(self) -> bool:
        """Whether it is recording."""
        return self._period.is_open

    @property
    def was_open(self) -> bool:
        """Whether there are any records."""
        return self._period.was_open

    @abstractmethod
    def open(self, interval: float | None, span: str | None = None) -> None:
        """Start recording the workers, without the records of an earlier period.

        Parameters
        ----------
        interval
            Seconds between samples of the workers; None for no samples.
        span
            Identity of the Dask span of the run.

        Raises
        ------
        RoastcoffeaError
            It is already recording.
        """

    def _begin(self) -> None:
        if self.is_open:
            raise RoastcoffeaError("this backend is already watching the workers: stop it first")
        if self.was_open:
            self._reset()

    def drain(self) -> None:
        """Fetch the records so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop recording and keep the records; missing ones are noted."""

    @abstractmethod
    def reaches(self, executor: Any) -> bool:
        """Whether the backend can record this executor."""

    def packed_for_tasks(self, thing: Any) -> bytes | None:  # noqa: ARG002  (for those that may lack the package)
        """Pickle by value of our code for tasks; None if they can import it."""
        return None

    def step(
        self,
        executor: Any,  # noqa: ARG002  (for those that have no scheduler to tell of workers)
        call: str | None,  # noqa: ARG002
        *,
        preprocessing: bool,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Context in which an executor works for a Runner call: on its chunks, or on the files of preprocessing."""
        return nullcontext()

    def learn_chunks(self, chunks: pa.Table, *, preprocessing: bool = False) -> None:
        """Learn where chunks ran, or files were opened, before lifetimes and samples are asked for."""

    # records

    @property
    def received(self) -> ReceivedRecords:
        """Records of attempts of chunks received so far."""
        return self._period.received

    @property
    def clock_offset(self) -> float:
        """The scheduler's clock minus the client's, in seconds; 0 without a scheduler."""
        return self._period.clock_offset

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows lost for lack of a receiver, by table."""
        return self._period.dropped

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """Start and end of times of which nothing was recorded."""
        return ()

    @property
    def refused(self) -> int:
        """Refused messages of others to the topic of the backend."""
        return self._period.refused

    def workers_now(self) -> int | None:
        """Workers present now; None if only known at the end."""
        return None

    def threads_now(self) -> tuple[int, int] | None:
        """Threads of the workers present now, and how many execute a task; None if unknown."""
        return None

    @abstractmethod
    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers present between start and stop."""

    def pauses(self, start: float, stop: float) -> pa.Table:  # noqa: ARG002  (for those that have a scheduler)
        """Pauses of workers between start and stop; none without a scheduler."""
        return table_of_rows(PAUSE_COLUMNS, [])

    @abstractmethod
    def samples(self) -> pa.Table:
        """Samples of the workers."""

    def take_client_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Take what the client's thread did for an executor; without a Dask client nothing is kept."""

    def chunks(self, calls: Collection[str]) -> pa.Table:
        """Attempts of chunks of these Runner calls, and of tasks without one; the backend learns where they ran."""
        self.learn_chunks(self.received.preprocessing(), preprocessing=True)
        chunks = self.received.chunks(set(calls) | self.received.calls_of_tasks())
        self.learn_chunks(chunks)
        return chunks

    def table(self, name: str, chunks: pa.Table | None, start: float, stop: float) -> pa.Table | None:
        """One of `TABLES` except the first, between start and stop; None if there is nothing of its kind."""
        if name in FROM_CHUNKS:
            return None if chunks is None else getattr(self.received, name)(chunks)
        if name == "preprocessing":
            return self.received.preprocessing()
        made = getattr(self, name, None)  # only those that have a scheduler have all
        return made and made(*((start, stop) if name in {"lifetimes", "pauses"} else ()))

    def notes(self) -> list[str]:
        """Problems met."""
        return [*self.problems, *self.received.problems]

    def note(self, problem: str) -> None:
        """Note a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    # in a journal

    def facts(self) -> dict[str, Any]:
        """What else is known, in values of JSON."""
        hosts = [asdict(host) for host in self.hosts]
        return {"recorded": self.was_open, "hosts": hosts, "versions": self.versions, "problems": list(self.problems)}

    def news(self) -> Iterator[tuple[str, bytes]]:
        """Entries for the journal that are new since the last call: the facts, if they have changed."""
        facts = json.dumps(self.facts()).encode()
        if facts != self._told:
            self._told = facts
            yield FACTS, facts

    def take(self, kind: str, data: bytes) -> None:
        """Take an entry from the journal of a run that was lost, as when it was new; others are ignored."""
        if kind == RECORDS:
            self.received.take(data)
        elif kind == FACTS:
            self.learn(json.loads(data))

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Take facts from a journal."""
        for host in facts["hosts"]:
            check_fields(host, Host, "a host")
        check_fields({"problems": facts["problems"]}, Run, "the backend")
        check_fields({"versions": facts.get("versions", {})}, Environment, "the backend")
        self._period.was_open = bool(facts["recorded"])
        self.hosts = tuple(Host(**host) for host in facts["hosts"])
        self.versions = dict(facts.get("versions", {}))
        self.problems = list(facts["problems"])

    def leave_span(self) -> None:
        """End what `open` started in the caller's context."""

    # the documented names

    def start_tracking(self, interval: float = 1.0) -> None:
        """Start sampling the workers every `interval` seconds, without the records of an earlier period.

        Raises
        ------
        ValueError
            The interval is not a positive number.
        RoastcoffeaError
            The workers are already tracked.
        """
        self.open(checked_interval(interval))

    def stop_tracking(self) -> dict[str, Any]:
        """Stop sampling; it may be started again.

        Returns
        -------
        dict
            `worker_counts` {datetime: int}, and for each worker field {worker address: [(datetime, value), ...]}; the
            `pace` of a series says when its values were taken.
        """
        self.close()
        now = time.time()
        of_scheduler = (self.table(name, None, self._began, now) for name in ("sampling", "worker_states"))
        return tracking_data(self.samples(), self.lifetimes(self._began, now), *of_scheduler)
