"""What storage can deliver: the baskets of a sample of a run's chunks, read again by more and more streams."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.processes import interrupts_ignored
from roastcoffea.errors import MeasurementError, RoastcoffeaError
from roastcoffea.instrument.shared import portable
from roastcoffea.metrics.endpoints import hosts_of_urls
from roastcoffea.metrics.facts import recorded
from roastcoffea.metrics.statistics import union_length
from roastcoffea.redaction import MASK, redacted
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Sheet, columns, percent_of
from roastcoffea.units import BYTE, BYTE_PER_SECOND, COUNT, SECOND, counted, few

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client, Future

    from roastcoffea.measurement import Measurement
    from roastcoffea.records.run import Run

STORAGE_FORMAT: Final = "roastcoffea storage 1"
STREAMS: Final = (1, 2, 4, 8)
MOST_PROCESSES: Final = 64
"""Maximum number of streams without a cluster."""

PATIENCE: Final = 30.0
"""Seconds to wait for a server's answer; twice as many for a worker, which may have to import everything first."""

SUSTAINED: Final = 2.0
"""Minimum time for a rate that a burst or a cache cannot explain, in seconds."""

LEAST_BYTES: Final = 1_000_000
"""Minimum amount for a rate."""

Ranges = list[list[tuple[int, int]]]
"""First byte and end of each basket, by branch."""
Amounts = list[tuple[float, int]]
"""Time, and number of bytes that a stream had read by then: once its first file was open, and after each branch."""
NEEDED: Final = ("id", "file", "tree", "entry_start", "entry_stop", "start", "stop", "bytes_payload", "request_seconds")


@portable
def _reason(error: BaseException | None) -> str:
    """Name and text of an error, or of the failed connection that led to it; runs on workers."""
    chain = [error]
    while chain[-1] is not None and len(chain) < 10:
        chain.append(chain[-1].__context__)
    cause = next((each for each in chain if isinstance(each, OSError)), error)
    return f"{type(cause).__name__}: {cause}"


@portable
def _located(file: str, tree: str, chunks: list[tuple[int, int, list[str]]]) -> Any:
    """For each chunk, the ranges of its baskets by branch, without those of earlier chunks; or the error.

    Runs on workers.
    """
    found: list[Ranges] = []
    taken: set[tuple[int, int]] = set()
    try:
        import uproot

        with uproot.open({file: tree}, object_cache=None, array_cache=None) as opened:
            if not isinstance(opened, uproot.TTree):
                return f"{tree} is not a TTree"
            for start, stop, branches in chunks:
                found.append([])
                for name in branches:
                    offsets = opened[name].entry_offsets
                    seeks, sizes = (opened[name].member(each) for each in ("fBasketSeek", "fBasketBytes"))
                    own = {
                        (int(seek), int(seek + size))
                        for first, end, seek, size in zip(offsets, offsets[1:], seeks, sizes, strict=False)
                        if first < stop and end > start and size
                    }
                    found[-1].append(sorted(own - taken))
                    taken |= own
            return found
    except Exception as error:  # noqa: BLE001  (reported: a file or a server may fail in any way)
        return _reason(error)


@portable
def _streamed(parts: list[tuple[str, Any]], seconds: float, patience: float) -> tuple[Amounts, list[str]]:
    """Amounts that one stream reads in this time, and errors; runs on workers."""
    import queue
    import time

    amounts: Amounts = [(time.time(), 0)]
    errors: list[str] = []
    size, end = 0, time.time() + seconds
    for file, branches in parts:
        try:
            import uproot

            with uproot.ReadOnlyFile(file, object_cache=None, array_cache=None, begin_chunk_size=1024) as opened:
                for ranges in branches:
                    arrived: queue.Queue[Any] = queue.Queue()
                    opened.source.chunks(ranges, notifications=arrived)
                    for _ in ranges:
                        chunk = arrived.get(timeout=patience)
                        chunk.wait()
                        size += len(chunk.raw_data.tobytes())  # local files are read only now
                    amounts.append((time.time(), size))
                    if time.time() > end:
                        break
        except queue.Empty:
            errors.append(f"no answer within {patience:g} s ({file})")
        except Exception as error:  # noqa: BLE001  (reported)
            errors.append(f"{_reason(error)} ({file})")
        amounts.append((time.time(), size))
        if time.time() > end:
            break
    return amounts, errors


def _chunks(run: Run) -> pd.DataFrame:
    """Chunks with the servers in their URLs."""
    table = recorded(run, "chunks")
    chunks: pd.DataFrame = table.select([name for name in NEEDED if name in table.column_names]).to_pandas()
    return chunks.reindex(columns=NEEDED).assign(server=hosts_of_urls(table).to_pandas())


def sampled(run: Run, most_bytes: float) -> pd.DataFrame:
    """Draw chunks at random, up to a number of bytes for each server in the URLs; "branches" lists their branches."""
    name, reads, chunks = run.name or run.id, recorded(run, "branch_reads"), _chunks(run)
    known = chunks["id"].isin(pc.unique(reads["chunk"]).to_pandas()) & chunks["entry_stop"].notna()
    chunks = chunks[known & chunks["bytes_payload"].gt(0)]
    if chunks.empty:
        raise MeasurementError(f"{name} has no chunk of a TTree whose branches were recorded")
    if chunks["file"].str.contains(MASK, regex=False).any():
        raise MeasurementError(f"{name} cannot be read again: secrets in URLs are not stored, but replaced by {MASK}")
    chunks = chunks.drop_duplicates(["file", "tree", "entry_start", "entry_stop"])
    chunks = chunks.sample(frac=1, random_state=np.random.default_rng())
    total = chunks.groupby("server")["bytes_payload"].cumsum()
    chunks = chunks[(total <= most_bytes) | ~chunks.duplicated("server")]
    drawn = reads.select(["chunk", "branch"]).filter(pc.is_in(reads["chunk"], pa.array(chunks["id"])))
    return chunks.assign(branches=chunks["id"].map(drawn.to_pandas().groupby("chunk")["branch"].agg(list)))


def of_run(run: Run) -> dict[str, tuple[float, float | None]]:
    """Rate of the run (baskets alone) and mean number of simultaneous requests for each server, while at least one of
    its chunks was processed. Chunks whose bytes are unknown are left out."""
    found = {}
    for server, own in _chunks(run).dropna(subset=["bytes_payload"]).groupby("server"):
        window = union_length(own["start"].to_numpy(), own["stop"].to_numpy())
        size, requests = float(own["bytes_payload"].sum()), float(own["request_seconds"].sum(skipna=False))
        found[str(server)] = (size / window, None if np.isnan(requests) else requests / window)
    return found


class Rate(NamedTuple):
    """Throughput of several streams together, over the time during which all of them read."""

    streams: int
    rate: float
    bytes: int
    seconds: float


def rate_of(streams: Sequence[Amounts]) -> Rate | None:
    """Rate from the last stream's begin to the first one's end, or None if they did not all read for half of a stream's
    time.

    The first quarter is excluded, in which connections are made and throttled servers allow a burst.
    """
    begins, ends = np.transpose([(amounts[0][0], amounts[-1][0]) for amounts in streams])
    window = float(ends.min() - begins.max())
    if window <= 0.5 * (ends - begins).min():
        return None
    times = ends.min() - 0.75 * window, ends.min()
    read = np.diff([np.interp(times, *np.transpose(amounts)) for amounts in streams])
    size = sum(amounts[-1][1] for amounts in streams)
    return Rate(len(streams), float(read.sum()) / (0.75 * window), size, window) if read.all() else None


@dataclass(frozen=True)
class Endpoint:
    """Rates of a server, and the run's own rate and mean number of simultaneous requests (None if unknown)."""

    name: str
    run_rate: float
    run_requests: float | None
    rates: Sequence[Rate]
    errors: Sequence[str]

    @property
    def best(self) -> Rate | None:
        return max((one for one in self.rates if one.bytes >= LEAST_BYTES), key=lambda one: one.rate, default=None)

    @property
    def share(self) -> float | None:
        return self.best and self.run_rate / self.best.rate

    @property
    def text(self) -> str:
        if not self.rates:
            return f"{self.name}: nothing could be read."
        at_once = "" if self.run_requests is None else f" ({self.run_requests:.2g} requests at a time on average)"
        read = f"{self.name}: the run read {BYTE_PER_SECOND.text(self.run_rate)}{at_once}"
        if self.best is None:
            most = BYTE.text(max(one.bytes for one in self.rates))
            return f"{read}. At most {most} were read again, too little for a comparison."
        long = [one for one in self.rates if one.seconds >= SUSTAINED and one.bytes >= LEAST_BYTES]
        chosen = dict.fromkeys([self.best, *sorted(long, key=lambda one: -one.rate)[:1]])
        grows = [one for one in self.rates if one.rate > 0.9 * self.best.rate] == [self.rates[-1]]
        more = " Try more streams, as the rate may still grow." * (grows or self.run_rate > self.best.rate)
        return f"{read}, {', and '.join(map(self._compared, chosen))}.{more}"

    def _compared(self, one: Rate) -> str:
        share = self.run_rate / one.rate
        part = "more than" if share > 1 else f"{percent_of(share)} of"
        short = f" for {SECOND.text(one.seconds)}, perhaps from a cache" * (one.seconds < SUSTAINED)
        return f"{part} the {BYTE_PER_SECOND.text(one.rate)} reached by {counted(one.streams, 'stream')}{short}"


@dataclass(frozen=True)
class Rereading(Presented):
    """Rates of each server by number of streams."""

    endpoints: Sequence[Endpoint]

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": STORAGE_FORMAT,
            "endpoints": [
                {
                    "endpoint": one.name,
                    "run": {"rate": one.run_rate, "requests": one.run_requests},
                    "share": one.share,
                    "rates": [rate._asdict() for rate in one.rates],
                    "errors": [*one.errors],
                }
                for one in self.endpoints
            ],
        }

    def sheets(self) -> list[Sheet]:
        heads = [
            *columns(None, "endpoint"),
            *columns(COUNT, "streams"),
            *columns(BYTE_PER_SECOND, "rate", "per stream"),
            *columns(BYTE, "read"),
            *columns(SECOND, "time"),
        ]
        rows = [
            (one.name, rate.streams, rate.rate, rate.rate / rate.streams, rate.bytes, rate.seconds)
            for one in self.endpoints
            for rate in one.rates
        ]
        notes = [f"{one.name}: {few(one.errors)}" for one in self.endpoints if one.errors]
        lead = [one.text for one in self.endpoints]
        return [Sheet(title="storage", lead=lead, columns=heads, rows=rows, notes=notes, things="rates")]


def reread(
    measurement: Measurement,
    client: Client | None = None,
    *,
    streams: Sequence[int] = STREAMS,
    seconds: float = 5.0,
    most_bytes: float = 2e9,
    agree: Callable[[str], object] = lambda _: None,
) -> Rereading:
    """Read the baskets of randomly drawn chunks again, without decompressing them, with several streams at a time.

    The chunks are drawn anew each time, and each basket is read once, so that caches do not serve a second read;
    storage may still have the run's files in a cache.

    Parameters
    ----------
    measurement
        The run whose files are read.
    client
        Dask client; the streams run on its workers. By default, they are processes on this machine.
    streams
        Numbers of simultaneous streams.
    seconds, most_bytes
        Time limit for each number of streams, and number of bytes to read from each server.
    agree
        Function to call with a description of what will be read, before anything is read. It raises an exception to
        prevent the reading.
    """
    drawn, own, streams = sampled(measurement.run, most_bytes), of_run(measurement.run), sorted({*streams})
    servers: list[tuple[Any, pd.DataFrame]] = [*drawn.groupby("server")]
    threads = MOST_PROCESSES
    if client is not None:
        if _answers([client.submit(int, pure=False)]) != [0]:
            raise RoastcoffeaError(f"the cluster has no worker that is free within {SECOND.text(2 * PATIENCE)}")
        threads = sum(client.nthreads().values())
    if threads < streams[-1]:
        raise RoastcoffeaError(
            f"{streams[-1]} streams need as many threads, and {threads} are available; choose fewer streams, or a "
            "larger cluster with --scheduler"
        )
    files = counted(drawn["file"].nunique(), "file")
    agree(
        f"Read up to {BYTE.text(drawn['bytes_payload'].sum())} of {counted(len(drawn), 'chunk')} and the metadata of "
        f"{files} from {', '.join(name for name, _ in servers)}, for up to {SECOND.text(seconds)} each "
        f"with {', '.join(map(str, streams))} stream{'s' * (streams[-1] > 1)} "
        f"({SECOND.text(seconds * len(streams) * len(servers))} in all)"
    )
    try:
        with ExitStack() as stack:
            client = client or stack.enter_context(_processes(stack, streams[-1]))
            slots = _slots(client.nthreads())
            return Rereading(
                [Endpoint(name, *own[name], *_rates(client, slots, some, streams, seconds)) for name, some in servers]
            )
    except (CancelledError, OSError) as error:
        raise RoastcoffeaError(f"the cluster stopped before the data were read ({redacted(str(error))})") from error


def _processes(stack: ExitStack, number: int) -> Client:
    from distributed import Client, LocalCluster

    with interrupts_ignored():  # workers report an error if the scheduler closes between heartbeats
        cluster = LocalCluster(
            n_workers=number, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        )
    return Client(stack.enter_context(cluster), set_as_default=False)


def _slots(threads: Mapping[str, int]) -> list[str]:
    """Addresses of workers, once for each thread, and all workers before the second thread of any."""
    levels = range(max(threads.values(), default=0))
    return [worker for level in levels for worker, number in threads.items() if number > level]


def _answers(futures: Sequence[Future[Any]], seconds: float = 0.0) -> list[Any]:
    """Results of tasks that take so long, or the reasons why they have none, once no task has ended for longer."""
    left, until, patience = 0, 0.0, seconds + 2 * PATIENCE
    while waiting := [each for each in futures if not each.done()]:
        if len(waiting) != left:
            left, until = len(waiting), time.monotonic() + patience
        elif time.monotonic() > until:
            break
        time.sleep(0.02)
    silent = f"no worker answered within {SECOND.text(patience)}"
    return [
        silent if each in waiting else _reason(each.exception()) if each.status == "error" else each.result(patience)
        for each in futures
    ]


def _rates(
    client: Client, slots: Sequence[str], chunks: pd.DataFrame, streams: Sequence[int], seconds: float
) -> tuple[list[Rate], list[str]]:
    """Rates of a server, and the errors."""

    def read(lists: Sequence[Any], seconds: float) -> list[Any]:
        pairs = zip(lists, slots, strict=False)
        tasks = [client.submit(_streamed, own, seconds, PATIENCE, workers=[slot], pure=False) for own, slot in pairs]
        return _answers(tasks, seconds)

    entries = chunks.set_index(["file", "tree"])[["entry_start", "entry_stop", "branches"]]
    files: list[tuple[Any, pd.DataFrame]] = [*entries.groupby(level=[0, 1])]
    located = [client.submit(_located, *names, some.to_numpy().tolist(), pure=False) for names, some in files]
    errors, left, rates = list[str](), list[tuple[str, Ranges]](), list[Rate]()
    for ((file, _), _), found in zip(files, _answers(located), strict=True):
        if isinstance(found, str):
            errors.append(found if file in found else f"{found} ({file})")
        else:
            left += [(file, each) for each in found if any(each)]
    random.SystemRandom().shuffle(left)
    share = len(left) // len(streams)
    # opening a file imports what it needs, so that all streams begin at the same time
    answers = read([[(left[0][0], [])]] * streams[-1], 0) if left else []
    for number in streams if left else ():
        if len(left) < number:
            errors.append(f"{counted(number, 'stream')}: not enough chunks")
            continue
        lists = [[left.pop() for _ in range(max(1, share // number))] for _ in range(number)]
        answers = [each for each in answers if isinstance(each, str)] or read(lists, seconds)
        if lost := [each for each in answers if isinstance(each, str)]:
            errors += lost
            break
        amounts, failed = zip(*answers, strict=True)
        errors += [error for each in failed for error in each]
        if rate := rate_of(amounts):
            rates.append(rate)
        else:
            errors.append(f"{counted(number, 'stream')}: not all of them read at the same time")
    return rates, [redacted(text)[:300] for text in dict.fromkeys(errors)]
