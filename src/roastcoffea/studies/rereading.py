"""What storage can deliver: the baskets of a sample of a run's chunks, read again by more and more streams."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd

from roastcoffea.errors import MeasurementError, RoastcoffeaError
from roastcoffea.instrument.shared import portable
from roastcoffea.interrupts import interrupts_ignored
from roastcoffea.metrics.endpoints import endpoint
from roastcoffea.metrics.facts import recorded
from roastcoffea.redaction import redacted
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Sheet, columns, percent_of
from roastcoffea.units import BYTE, BYTE_PER_SECOND, COUNT, SECOND, counted, few

if TYPE_CHECKING:
    from distributed import Client

    from roastcoffea.measurement import Measurement

STORAGE_FORMAT: Final = "roastcoffea storage 1"
STREAMS: Final = (1, 2, 4, 8)
SEED: Final = 37
SUSTAINED: Final = 2.0
"""Minimum time for a rate that a burst or a cache cannot explain, in seconds."""

LEAST_BYTES: Final = 1_000_000
"""Minimum amount for a rate."""

Ranges = list[list[tuple[int, int]]]
"""First byte and end of each basket, by branch."""
Amounts = list[tuple[float, int]]
"""Seconds since a stream began, and number of bytes read until then, after each branch."""


class Part(NamedTuple):
    """A chunk's branches in a file, and the number of bytes that the run read from their baskets."""

    file: str
    tree: str
    start: int
    stop: int
    branches: Sequence[str]
    size: int


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
    """For each chunk, the ranges of its baskets by branch; or the error. Runs on workers."""
    import uproot

    found: list[Ranges] = []
    try:
        with uproot.open({file: tree}, object_cache=None, array_cache=None) as opened:
            if not isinstance(opened, uproot.TTree):
                return f"{tree} is not a TTree"
            for start, stop, branches in chunks:
                found.append([])
                for name in branches:
                    offsets = opened[name].entry_offsets
                    seeks, sizes = (opened[name].member(each) for each in ("fBasketSeek", "fBasketBytes"))
                    inside = [place for place, end in enumerate(offsets[1:]) if offsets[place] < stop and end > start]
                    found[-1].append([(int(seeks[place]), int(seeks[place] + sizes[place])) for place in inside])
            return found
    except Exception as error:  # noqa: BLE001  (reported: a file or a server may fail in any way)
        return _reason(error)


@portable
def _streamed(parts: list[tuple[str, Any]], seconds: float) -> tuple[Any, str | None]:
    """Amounts that one stream reads in this time, and the error that ended it; runs on workers."""
    import queue
    import time

    import uproot

    amounts, size, began = [], 0, time.perf_counter()
    try:
        for file, branches in parts:
            with uproot.ReadOnlyFile(file, object_cache=None, array_cache=None, begin_chunk_size=1024) as opened:
                for ranges in branches:
                    arrived: queue.Queue[Any] = queue.Queue()
                    opened.source.chunks(ranges, notifications=arrived)
                    for _ in ranges:
                        chunk = arrived.get()
                        chunk.wait()
                        size += len(chunk.raw_data.tobytes())  # local files are read only now
                    amounts.append((time.perf_counter() - began, size))
                    if amounts[-1][0] > seconds:
                        return amounts, None
    except Exception as error:  # noqa: BLE001  (reported)
        return amounts, _reason(error)
    return amounts, None


def sampled(measurement: Measurement, most_bytes: float) -> dict[str, list[Part]]:
    """Draw chunks of a run at random, up to a number of bytes for each server in the URLs."""
    run = measurement.run
    reads = recorded(run, "branch_reads").select(["chunk", "branch"]).to_pandas()
    branches = reads.groupby("chunk")["branch"].agg(list)
    chunks = measurement.chunks
    chunks = chunks[chunks["bytes_payload"].gt(0) & chunks["entry_stop"].notna() & chunks["id"].isin(branches.index)]
    chunks = chunks.drop_duplicates(["file", "tree", "entry_start", "entry_stop"]).sample(frac=1, random_state=SEED)
    found, total = defaultdict[str, list[Part]](list), defaultdict[str, int](int)
    for row in chunks.to_dict("records"):
        server, size = endpoint(row["file"]) or "", int(row["bytes_payload"])
        if total[server] + size <= most_bytes or not found[server]:
            entries = int(row["entry_start"]), int(row["entry_stop"])
            found[server].append(Part(row["file"], row["tree"], *entries, branches[row["id"]], size))
            total[server] += size
    if not found:
        raise MeasurementError(f"{run.name or run.id} has no chunk of a TTree whose branches were recorded")
    return found


def of_run(measurement: Measurement) -> dict[str, tuple[float, float | None]]:
    """Rate of the run (baskets alone) and mean number of simultaneous requests for each server, from its first to its
    last chunk."""
    chunks = measurement.chunks
    waits = chunks.get("request_seconds", pd.Series(np.nan, chunks.index))
    chunks = chunks.assign(server=chunks["file"].map(endpoint, na_action="ignore"), waits=waits)
    found = {}
    for server, own in chunks.groupby("server"):
        window = own["stop"].max() - own["start"].min()
        requests = None if own["waits"].isna().any() else own["waits"].sum() / window
        found[str(server)] = (own["bytes_payload"].sum() / window, requests)
    return found


class Rate(NamedTuple):
    """Throughput of several streams together, over the time during which all of them read."""

    streams: int
    rate: float
    bytes: int
    seconds: float


def rate_of(streams: Sequence[Amounts]) -> Rate:
    """Rate without the first quarter, in which connections are made and throttled servers allow a burst."""
    window = min(amounts[-1][0] for amounts in streams)
    read = [np.interp([window / 4, window], *np.transpose([(0.0, 0), *amounts])) for amounts in streams]
    return Rate(
        len(streams),
        float(np.diff(read).sum()) / (0.75 * window),
        sum(amounts[-1][1] for amounts in streams),
        window,
    )


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
        at_once = "" if self.run_requests is None else f", with {self.run_requests:.2g} requests at a time on average"
        read = f"{self.name}: the run read {BYTE_PER_SECOND.text(self.run_rate)}{at_once}"
        if self.best is None:
            most = BYTE.text(max(one.bytes for one in self.rates))
            return f"{read}. At most {most} were read again, too little for a comparison."
        long = [one for one in self.rates if one.seconds >= SUSTAINED and one.bytes >= LEAST_BYTES]
        chosen = dict.fromkeys([self.best, *sorted(long, key=lambda one: -one.rate)[:1]])
        return f"{read}: {', and '.join(map(self._compared, chosen))}."

    def _compared(self, one: Rate) -> str:
        share = self.run_rate / one.rate
        part = "more than" if share > 1 else f"{percent_of(share)} of"
        short = f" for {SECOND.text(one.seconds)}, perhaps from a cache" * (one.seconds < SUSTAINED)
        return f"{part} the {BYTE_PER_SECOND.text(one.rate)} that {counted(one.streams, 'stream')} reached{short}"


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

    Each chunk is read once, so that caches do not serve the second read; storage may still have the run's files in a
    cache.

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
    parts, own, streams = sampled(measurement, most_bytes), of_run(measurement), sorted({*streams})
    sizes = [part.size for drawn in parts.values() for part in drawn]
    threads = streams[-1] if client is None else sum(client.nthreads().values())
    if threads < streams[-1]:
        raise RoastcoffeaError(
            f"{streams[-1]} streams need as many threads, and the cluster has {threads}; choose fewer streams"
        )
    files = counted(len({part.file for drawn in parts.values() for part in drawn}), "file")
    agree(
        f"Read up to {BYTE.text(sum(sizes))} of {counted(len(sizes), 'chunk')} and the metadata of {files} from "
        f"{', '.join(parts)}, for up to {SECOND.text(seconds)} {'each ' * (len(streams) > 1)}with "
        f"{', '.join(map(str, streams))} streams"
    )
    with ExitStack() as stack:
        client = client or stack.enter_context(_processes(stack, streams[-1]))
        slots = _slots(client.nthreads())
        measured = [Endpoint(name, *own[name], *_rates(client, slots, parts[name], streams, seconds)) for name in parts]
    return Rereading(measured)


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


def _rates(
    client: Client, slots: Sequence[str], parts: Sequence[Part], streams: Sequence[int], seconds: float
) -> tuple[list[Rate], list[str]]:
    """Rates of a server, and the errors."""
    files = defaultdict[tuple[str, str], list[tuple[int, int, Sequence[str]]]](list)
    for part in parts:
        files[part.file, part.tree].append((part.start, part.stop, part.branches))
    named = [(*file, chunks) for file, chunks in files.items()]
    found = client.gather(client.map(_located, *zip(*named, strict=True), pure=False))
    errors = [each for each in found if isinstance(each, str)]
    left = [
        (file, each) for (file, _), some in zip(files, found, strict=True) if not isinstance(some, str) for each in some
    ]
    random.Random(SEED).shuffle(left)
    share, rates = len(left) // len(streams), list[Rate]()
    for number in streams:
        if len(left) < number:
            errors += [f"{counted(number, 'stream')}: not enough chunks"] * bool(left or rates)
            continue
        lists = [[left.pop() for _ in range(max(1, share // number))] for _ in range(number)]
        futures = [
            client.submit(_streamed, own, seconds, workers=[slot], pure=False)
            for own, slot in zip(lists, slots, strict=False)
        ]
        amounts, failed = zip(*client.gather(futures), strict=True)
        errors += [error for error in failed if error is not None]
        if all(amounts) and not any(failed):
            rates.append(rate_of(amounts))
    return rates, [redacted(text)[:200] for text in dict.fromkeys(errors)]
