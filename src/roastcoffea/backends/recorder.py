"""What a collector requires of the backends in the package, and the one that reads the log of a scheduler's plugin."""

from __future__ import annotations

import json
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import dask
import pyarrow as pa

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.backends.hosts import with_withheld
from roastcoffea.backends.limits import Withheld
from roastcoffea.compat.shapes import tracking_data
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.interrupts import whole
from roastcoffea.log.journal import CLIENT, LOG, RECORDS
from roastcoffea.log.marks import ANNOTATION, FromEnvironment
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.log.workers import ClusterLog
from roastcoffea.records.arrow import table_of_rows, with_column
from roastcoffea.records.run import Environment, Host, Run
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS, PAUSE_COLUMNS
from roastcoffea.storage.reading import check_fields
from roastcoffea.units import counted, were

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

    def close(self) -> None:
        """Stop recording and keep the records; missing ones are noted."""

    def reaches(self, executor: Any) -> bool:
        """Whether the backend can record this executor; without a cluster those that have no Dask client."""
        return not hasattr(executor, "client")

    def packed_for_tasks(self, thing: Any) -> bytes | None:  # noqa: ARG002  (for those that may lack the package)
        """Pickle by value of our code for tasks; None if they can import it."""
        return None

    def step(
        self,
        executor: Any,  # noqa: ARG002  (for those that have no scheduler to tell of workers)
        call: str | None,  # noqa: ARG002
        *,
        preprocessing: bool,  # noqa: ARG002
    ) -> AbstractContextManager[FromEnvironment | None]:
        """Context in which an executor works for a Runner call: on its chunks, or on the files of preprocessing.

        It returns what the tasks are to report of their environment.
        """
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


def jobs_of(cluster: Any) -> list[str]:
    """Jobs that a cluster object asked a batch system for, as those of dask-jobqueue do; none of another kind."""
    workers = getattr(cluster, "workers", None)
    jobs = [getattr(one, "job_id", None) for one in (list(workers.values()) if isinstance(workers, dict) else ())]
    return [str(job) for job in jobs if job]


@dataclass(eq=False)
class LoggedPeriod(Period):
    """A period that a scheduler's plugin logs.

    Attributes
    ----------
    log : ClusterLog
        What was drained so far.
    failures : int
        Errors inside the plugin so far.
    """

    log: ClusterLog = field(default_factory=ClusterLog)
    failures: int = 0

    def __post_init__(self) -> None:
        self.received = self.log.received

    def last_contact(self, start: float, stop: float) -> float:  # noqa: ARG002  (for those with a connection)
        """The stop, or the last contact with the cluster if the connection was lost."""
        return stop

    def notes(self) -> list[str]:
        """Problems of the plugins and of their log."""
        notes = [*self.log.problems, *self.log.received.problems]
        if self.failures:
            notes.append(f"the scheduler plugin failed {counted(self.failures, 'time')}: records are missing")
        if self.refused:
            refused = counted(self.refused, "message")
            notes.append(f"{refused} of others to the collector's topic {were(self.refused)} refused")
        dropped = self.dropped.items()
        return notes + [
            f"{counted(rows, 'row')} of {table} {were(rows)} dropped on the scheduler" for table, rows in dropped
        ]


class LoggedCluster(Recorder):
    """Tables of a cluster, from the log of its scheduler's plugin."""

    kind = "dask"
    elsewhere = "it does not run on the cluster of the collector's client"
    holds_all = True
    merges_equal_chunks = True

    _period: LoggedPeriod

    def _reset(self) -> None:
        super()._reset()
        self.absent = {}
        self._asked: dict[str, float | None] = {}
        """When each job of a cluster was asked for, which the cluster does not keep; None for those from before."""
        self._period = LoggedPeriod()
        self._client_steps: list[Mapping[str, Any]] = []
        self._withheld: dict[str, Withheld | None] = {}
        """Throttling and steal of each worker present at the end."""

    @property
    def log(self) -> ClusterLog:
        """The log so far."""
        return self._period.log

    # records, on the client's clock

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        return tuple((since - self.clock_offset, time - self.clock_offset) for since, time in self.log.workers.gaps)

    def workers_now(self) -> int:
        """Workers present now."""
        return self.log.workers.here

    def threads_now(self) -> tuple[int, int] | None:
        """Threads of the workers present now, and how many execute a task; None before the first samples."""
        return self.log.workers.threads

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers present between start and stop, or until the last contact with the cluster."""
        table = self.log.workers.lifetimes(self.clock_offset, start, self._period.last_contact(start, stop))
        rows = table.select(["job", "job_queued"]).to_pylist()
        table = with_column(table, "job_queued", [row["job_queued"] or self._asked.get(row["job"]) for row in rows])
        return with_withheld(table, self._withheld)

    def pauses(self, start: float, stop: float) -> pa.Table:
        """Pauses of workers by Dask between start and stop, or until the last contact with the cluster."""
        return self.log.workers.pauses(self.clock_offset, start, self._period.last_contact(start, stop))

    def samples(self) -> pa.Table:
        return self.log.workers.samples(self.clock_offset)

    def sampling(self) -> pa.Table:
        return self.log.sampling.sampling(self.clock_offset)

    def worker_states(self) -> pa.Table:
        return self.log.sampling.states(self.clock_offset)

    def tasks(self) -> pa.Table:
        return self.log.attempts.table(self.clock_offset)

    def take_client_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self._client_steps += steps
        if self.keep is not None:
            self.keep(CLIENT, json.dumps(list(steps)).encode())

    def client_steps(self) -> pa.Table:
        return table_of_rows(CLIENT_STEP_COLUMNS, self._client_steps).sort_by("start")

    def notes(self) -> list[str]:
        return [*self.problems, *self._period.notes()]

    # in a journal

    def facts(self) -> dict[str, Any]:
        period = self._period
        counts = {"dropped": dict(period.dropped), "refused": period.refused, "failures": period.failures}
        known = {
            "clock_offset": period.clock_offset,
            "withheld": dict(self._withheld),
            "asked": dict(self._asked),
        }
        return super().facts() | counts | known

    def take(self, kind: str, data: bytes) -> None:
        if kind == LOG:
            self.log.feed(data)
        elif kind == CLIENT:
            self._client_steps += json.loads(data)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        check_fields({"scheduler_clock_offset": facts["clock_offset"], "dropped": facts["dropped"]}, Run, "the cluster")
        super().learn(facts)
        for name in ("clock_offset", "dropped", "refused", "failures"):
            setattr(self._period, name, facts[name])
        self._withheld = {worker: amounts and tuple(amounts) for worker, amounts in facts["withheld"].items()}
        self._asked = dict(facts["asked"])


class RunSpan(whole[str]):
    """The span of a run: opened around it, and again in threads that do not inherit the context.

    Parameters
    ----------
    name : str
        Tag of the span.
    topic : str, optional
        Collector whose mark the tasks get. The span is not enough: Dask counts tasks of a group that is still alive in
        that group's span, regardless of their annotation.
    """

    def __init__(self, name: str, topic: str | None = None) -> None:
        super().__init__(self._opened(name, topic))
        self.id: str | None = None
        self._annotation: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def _opened(self, name: str, topic: str | None) -> Iterator[str]:
        from distributed.spans import span  # which a run without a cluster does not need

        with ExitStack() as opened:
            self.id = str(opened.enter_context(span(name)))
            self._annotation = dask.get_annotations()["span"]
            if topic is not None:
                collectors = dask.get_annotations().get(ANNOTATION, {}).get("collectors", ())
                mark = {"collectors": (*collectors, topic), "step": None, "prefix": None}
                opened.enter_context(dask.annotate(**{ANNOTATION: mark}))
            yield self.id

    @contextmanager
    def ensured(self) -> Iterator[None]:
        """Context that counts submitted tasks in the span, in any thread."""
        here = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        if self.id is None or self.id in here["ids"]:
            yield
            return
        both = {part: (*self._annotation[part], *here[part]) for part in ("name", "ids")}
        with dask.annotate(span=both):
            yield
