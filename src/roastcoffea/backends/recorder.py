"""Internal interface of backends, and the recorder for a scheduler plugin's log."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import dask
import pyarrow as pa

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.backends.hosts import with_withheld
from roastcoffea.backends.limits import Withheld
from roastcoffea.compat.shapes import tracking_data
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.interrupts import whole
from roastcoffea.log.journal import CLIENT, LOG, RECORDS, REQUESTED
from roastcoffea.log.marks import ANNOTATION, FromEnvironment
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.log.workers import ClusterLog
from roastcoffea.records.arrow import table_of_rows, with_column
from roastcoffea.records.run import Environment, Host, Run
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS, PAUSE_COLUMNS, REQUEST_COLUMNS, SUBMITTED
from roastcoffea.storage.reading import check_fields
from roastcoffea.units import counted, were

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

NO_SCHEDULER: Final = "there is no scheduler to sample: the run was measured without a Dask client"
NO_CLIENT: Final = "there is no Dask client to record: the run was measured without one"
NO_TASKS: Final = "there are no Dask tasks: the run was measured without a Dask client"

SAMPLED: Final = ("samples", "sampling", "worker_states")

PROFILE: Final = "profile"
FROM_CHUNKS: Final = ("branch_reads", "sections", PROFILE)

MOST_REQUESTS: Final = 100_000
"""Maximum number of recorded changes of worker requests."""

FACTS: Final = "facts"

OF_CLIENT: Final = ("client_steps", "worker_requests")
"""Tables recorded only by a client."""

TABLES: Final = ("chunks", *FROM_CHUNKS, "preprocessing", "tasks", *SAMPLED, "lifetimes", "pauses", *OF_CLIENT)
"""A run's tables, in build order; chunks come first, because they show which processes are workers."""


@dataclass(eq=False)
class Period:
    """A recording period, and the records received during it so far.

    Attributes
    ----------
    is_open, was_open : bool
        Whether the period is active, and whether anything was recorded.
    clock_offset : float
        Scheduler clock minus client clock, in seconds: 0 if the measured bounds allow it, otherwise their midpoint.
    dropped : dict
        Number of rows dropped on the scheduler so far, by table.
    refused : int
        Number of messages to our topic that were refused because they came from other senders.
    """

    received: ReceivedRecords = field(default_factory=ReceivedRecords)
    is_open: bool = False
    was_open: bool = False
    clock_offset: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    refused: int = 0


class Recorder:
    """Internal interface of a backend, as used by collectors.

    Users call the five methods of `AbstractMetricsBackend` instead. `RecordingBackend` provides these methods for this
    package's recorders, and `backends.registry` turns a custom backend into a recorder.
    """

    kind: str

    elsewhere: str
    """Reason why executors that run elsewhere are not recorded."""

    keep: Callable[[str, bytes], None] | None = None
    """Function that receives journal entries in addition to those from `news`; None if there is no journal."""

    functions: Any = None
    """The collector's settings for functions in tasks without a Runner."""

    holds_all: ClassVar[bool] = False
    """Whether a closed backend holds everything needed to build its tables later."""

    merges_equal_chunks: ClassVar[bool] = False
    """Whether identical chunks (e.g. from a file that is listed twice) run only once."""

    def __init__(self) -> None:
        self._reset()

    @classmethod
    def for_collector(cls, client: Any, carried: Any) -> Self:  # noqa: ARG003  (for cluster recorders)
        """Create a recorder for a collector with this client.

        `carried` is code that the collector's tasks may need.
        """
        return cls()

    def renewed(self, client: Any, carried: Any) -> Self:  # noqa: ARG002  (as above)
        """Create a fresh copy, because a recorder cannot be shared between collectors."""
        fresh = copy(self)
        fresh._reset()
        return fresh

    def _reset(self) -> None:
        self.name = f"roastcoffea-{uuid.uuid4().hex[:12]}"
        self.problems: list[str] = []
        self.absent: dict[str, str] = dict.fromkeys(("tasks", "span_metrics"), NO_TASKS)
        self.absent |= dict.fromkeys(("sampling", "worker_states"), NO_SCHEDULER)
        self.absent |= dict.fromkeys(OF_CLIENT, NO_CLIENT)
        self.hosts: tuple[Host, ...] = ()
        self.versions: dict[str, str] = {}
        """Package versions on the workers, if they may differ from the versions in this process."""
        self.attempts: dict[str, int] | None = None
        self.span_metrics: dict[tuple[Any, ...], float] | None = None
        self.span_metrics_per_worker: dict[str, dict[tuple[Any, ...], float]] | None = None
        self._began = time.time()
        self._period = Period()
        self._told = b""

    # life cycle of a collector

    @property
    def is_open(self) -> bool:
        return self._period.is_open

    @property
    def was_open(self) -> bool:
        return self._period.was_open

    def open(self, interval: float | None, span: str | None = None) -> None:
        """Start recording the workers, discarding the records from an earlier period.

        Parameters
        ----------
        interval
            Seconds between worker samples, or None to take no samples.
        span
            ID of the run's Dask span.

        Raises
        ------
        RoastcoffeaError
            If recording is already in progress.
        """

    def _begin(self) -> None:
        if self.is_open:
            raise RoastcoffeaError("this backend is already recording the workers: stop it first")
        if self.was_open:
            self._reset()

    def drain(self) -> None:
        """Fetch all records produced so far."""

    def close(self) -> None:
        """Stop recording, keep the records, and note any missing records."""

    def reaches(self, executor: Any) -> bool:
        """Whether this executor can be recorded; by default, any executor without a Dask client can."""
        return not hasattr(executor, "client")

    def packed_for_tasks(self, thing: Any) -> bytes | None:  # noqa: ARG002  (for clusters that may lack the package)
        """Our task code, pickled by value, or None if the tasks can import it."""
        return None

    def step(
        self,
        executor: Any,  # noqa: ARG002  (for backends without a scheduler)
        call: str | None,  # noqa: ARG002
        *,
        preprocessing: bool,  # noqa: ARG002
    ) -> AbstractContextManager[FromEnvironment | None]:
        """Context manager entered while an executor works on chunks or preprocessing.

        It yields the environment variables that the tasks should report.
        """
        return nullcontext()

    def learn_chunks(self, chunks: pa.Table, *, preprocessing: bool = False) -> None:
        """Use records of chunks or file opens to identify the workers."""

    # records

    @property
    def received(self) -> ReceivedRecords:
        return self._period.received

    @property
    def clock_offset(self) -> float:
        return self._period.clock_offset

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of rows dropped because the client did not fetch them in time, by table."""
        return self._period.dropped

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """Start and end times of periods in which nothing was recorded."""
        return ()

    @property
    def refused(self) -> int:
        return self._period.refused

    def workers_now(self) -> int | None:
        """Current number of workers; None if known only at the end."""
        return None

    def threads_now(self) -> tuple[int, int] | None:
        """Current number of worker threads, and how many are busy; None if unknown."""
        return None

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        raise NotImplementedError

    def pauses(self, start: float, stop: float) -> pa.Table:  # noqa: ARG002  (for backends with a scheduler)
        """Worker pauses between start and stop; empty if there is no scheduler."""
        return table_of_rows(PAUSE_COLUMNS, [])

    def samples(self) -> pa.Table:
        raise NotImplementedError

    def take_client_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Store the client's steps for an executor; do nothing if there is no Dask client."""

    def chunks(self, calls: Collection[str]) -> pa.Table:
        """Chunk attempts from these Runner calls, and attempts of non-Runner tasks.

        All attempts are also passed to `learn_chunks`.
        """
        self.learn_chunks(self.received.preprocessing(), preprocessing=True)
        chunks = self.received.chunks(set(calls) | self.received.calls_of_tasks())
        self.learn_chunks(chunks)
        return chunks

    def table(self, name: str, chunks: pa.Table | None, start: float, stop: float) -> pa.Table | None:
        """Any table in `TABLES` except chunks, limited to the time between start and stop; None if missing."""
        if name in FROM_CHUNKS:
            return None if chunks is None else getattr(self.received, name)(chunks)
        if name == "preprocessing":
            return self.received.preprocessing()
        made = getattr(self, name, None)  # only backends with a scheduler have all tables
        return made and made(*((start, stop) if name in {"lifetimes", "pauses"} else ()))

    def notes(self) -> list[str]:
        return [*self.problems, *self.received.problems]

    def note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    # in a journal

    def facts(self) -> dict[str, Any]:
        """Everything except the records, as JSON values."""
        hosts = [asdict(host) for host in self.hosts]
        return {"recorded": self.was_open, "hosts": hosts, "versions": self.versions, "problems": list(self.problems)}

    def news(self) -> Iterator[tuple[str, bytes]]:
        """Yield the journal entries since the last call, i.e. `facts` if they have changed."""
        facts = json.dumps(self.facts()).encode()
        if facts != self._told:
            self._told = facts
            yield FACTS, facts

    def take(self, kind: str, data: bytes) -> None:
        """Restore a journal entry of an interrupted run; entries of unknown kinds are ignored."""
        if kind == RECORDS:
            self.received.take(data)
        elif kind == FACTS:
            self.learn(json.loads(data))

    def learn(self, facts: Mapping[str, Any]) -> None:
        for host in facts["hosts"]:
            check_fields(host, Host, "a host")
        check_fields({"problems": facts["problems"]}, Run, "the backend")
        check_fields({"versions": facts.get("versions", {})}, Environment, "the backend")
        self._period.was_open = bool(facts["recorded"])
        self.hosts = tuple(Host(**host) for host in facts["hosts"])
        self.versions = dict(facts.get("versions", {}))
        self.problems = list(facts["problems"])

    def leave_span(self) -> None:
        """Leave the span that `open` entered in the caller's context."""

    def tracking_data(self) -> dict[str, Any]:
        now = time.time()
        of_scheduler = (self.table(name, None, self._began, now) for name in ("sampling", "worker_states"))
        return tracking_data(self.samples(), self.lifetimes(self._began, now), *of_scheduler)


class RecordingBackend(AbstractMetricsBackend):
    """Adapter that provides the methods of `AbstractMetricsBackend` for a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.kind = recorder.kind

    def start_tracking(self, interval: float = 1.0) -> None:
        """Start sampling the workers every `interval` seconds.

        Samples from an earlier period are discarded.

        Raises
        ------
        ValueError
            If the interval is not a positive number.
        RoastcoffeaError
            If tracking has already started.
        """
        self._recorder.open(checked_interval(interval))

    def stop_tracking(self) -> dict[str, Any]:
        """Stop sampling and return the samples.

        Returns
        -------
        dict
            `worker_counts` is a mapping {datetime: int}. Each of the other series is a mapping
            {worker address: [(datetime, value), ...]}. The `pace` attribute of a series says when its values were
            sampled.
        """
        self._recorder.close()
        return self._recorder.tracking_data()


@dataclass(eq=False)
class LoggedPeriod(Period):
    """A recording period that is logged by a scheduler plugin.

    Attributes
    ----------
    log : ClusterLog
        Log entries fetched so far.
    failures : int
        Number of errors inside the plugin so far.
    """

    log: ClusterLog = field(default_factory=ClusterLog)
    failures: int = 0

    def __post_init__(self) -> None:
        self.received = self.log.received

    def last_contact(self, start: float, stop: float) -> float:  # noqa: ARG002  (for periods with a connection)
        """The stop time or, if the connection was lost, the time of the last contact."""
        return stop

    def notes(self) -> list[str]:
        notes = [*self.log.problems, *self.log.received.problems]
        if self.failures:
            notes.append(f"the scheduler plugin failed {counted(self.failures, 'time')}: records are missing")
        if self.refused:
            refused = counted(self.refused, "message")
            notes.append(f"{refused} from other senders to the collector's topic {were(self.refused)} refused")
        dropped = self.dropped.items()
        return notes + [
            f"{counted(rows, 'row')} of {table} {were(rows)} dropped on the scheduler" for table, rows in dropped
        ]


class LoggedCluster(Recorder):
    """Recorder that builds a cluster's tables from the scheduler plugin's log."""

    kind = "dask"
    elsewhere = "it does not run on the cluster of the collector's client"
    holds_all = True
    merges_equal_chunks = True

    _period: LoggedPeriod

    def _reset(self) -> None:
        super()._reset()
        self.absent = {}
        self._requested: list[Mapping[str, Any]] = []
        self._period = LoggedPeriod()
        self._client_steps: list[Mapping[str, Any]] = []
        self._withheld: dict[str, Withheld | None] = {}
        """Throttling and steal time of each worker that was present at the end."""

    @property
    def log(self) -> ClusterLog:
        return self._period.log

    # records, on the client's clock

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        return tuple((since - self.clock_offset, time - self.clock_offset) for since, time in self.log.workers.gaps)

    def workers_now(self) -> int:
        return self.log.workers.here

    def threads_now(self) -> tuple[int, int] | None:
        return self.log.workers.threads

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        table = self.log.workers.lifetimes(self.clock_offset, start, self._period.last_contact(start, stop))
        rows = table.select(["job", "job_queued"]).to_pylist()
        submitted = {row["job"]: row["time"] for row in self._requested if row["state"] == SUBMITTED}
        table = with_column(table, "job_queued", [row["job_queued"] or submitted.get(row["job"]) for row in rows])
        return with_withheld(table, self._withheld)

    def pauses(self, start: float, stop: float) -> pa.Table:
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

    def take_requests(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take changes of worker requests, up to a limit."""
        if len(self._requested) + len(rows) > MOST_REQUESTS:
            self.note(f"more than {MOST_REQUESTS} changes of worker requests: later ones were not recorded")
            return
        self._requested += rows
        if self.keep is not None:
            self.keep(REQUESTED, json.dumps(list(rows)).encode())

    def worker_requests(self) -> pa.Table | None:
        return table_of_rows(REQUEST_COLUMNS, self._requested) if self._requested else None

    def client_steps(self) -> pa.Table:
        return table_of_rows(CLIENT_STEP_COLUMNS, self._client_steps).sort_by("start")

    def notes(self) -> list[str]:
        return [*self.problems, *self._period.notes()]

    # in a journal

    def facts(self) -> dict[str, Any]:
        period = self._period
        counts = {"dropped": dict(period.dropped), "refused": period.refused, "failures": period.failures}
        known = {"clock_offset": period.clock_offset, "withheld": dict(self._withheld)}
        return super().facts() | counts | known

    def take(self, kind: str, data: bytes) -> None:
        if kind == LOG:
            self.log.feed(data)
        elif kind == CLIENT:
            self._client_steps += json.loads(data)
        elif kind == REQUESTED:
            self._requested += json.loads(data)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        check_fields({"scheduler_clock_offset": facts["clock_offset"], "dropped": facts["dropped"]}, Run, "the cluster")
        super().learn(facts)
        for name in ("clock_offset", "dropped", "refused", "failures"):
            setattr(self._period, name, facts[name])
        self._withheld = {worker: amounts and tuple(amounts) for worker, amounts in facts["withheld"].items()}


class RunSpan(whole[str]):
    """A run's span, which is reopened in threads that do not inherit the context.

    Parameters
    ----------
    name : str
        Tag of the span.
    topic : str, optional
        Collector whose mark is added to the tasks. The span alone is not enough: as long as a task group is alive, Dask
        counts its tasks in the group's span, regardless of their annotations.
    """

    def __init__(self, name: str, topic: str | None = None) -> None:
        super().__init__(self._opened(name, topic))
        self.id: str | None = None
        self._annotation: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def _opened(self, name: str, topic: str | None) -> Iterator[str]:
        from distributed.spans import span  # a run without a cluster does not need this

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
        """Context manager that adds tasks to the span, regardless of the submitting thread."""
        here = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        if self.id is None or self.id in here["ids"]:
            yield
            return
        both = {part: (*self._annotation[part], *here[part]) for part in ("name", "ids")}
        with dask.annotate(span=both):
            yield
