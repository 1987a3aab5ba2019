"""Facts that several metrics share, and short names for workers and hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics.catalogue import CATALOGUE, RUN, Fact, NotMeasuredError, fact, refuse_if
from roastcoffea.metrics.statistics import (
    Flags,
    Integers,
    Numbers,
    clipped,
    having,
    integers,
    measured_values,
    of_texts,
    one_of,
    rows_of,
    union_length,
)
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records import workers as task_records
from roastcoffea.records.arrow import MANY, plain, row_codes
from roastcoffea.records.run import FINISHED, OF_CALL, Run, RunnerCall, SpanMetrics
from roastcoffea.units import FRACTION, SECOND, counted

if TYPE_CHECKING:
    from roastcoffea.metrics.evaluation import Evaluator

WITH_RESULT = (chunk_records.OK, chunk_records.CHECKPOINT)
FAILED = (chunk_records.ERROR, chunk_records.SKIPPED)


def recorded(run: Run, name: str) -> Any:
    """Return a field of a run; raise NotMeasuredError if it was not measured or is incomplete."""
    value, lost = getattr(run, name), run.dropped.get(name)
    refuse_if(value is None or name in run.absent, reason_of_absence(run, name))
    refuse_if(lost, f"{lost} rows of {name} were lost")
    return value


def elapsed_seconds(run: Run) -> float:
    """Wall time of the run. For a merged run, it is the time during which at least one of its runs was active."""
    if not run.merged:
        return run.stop - run.start
    return union_length(*np.array([(part.start, part.stop) for part in run.merged]).T)


def name_of(run: Run) -> str:
    """Name of the run or, if it has none, of its processors. Empty if neither name is known."""
    return run.name or ", ".join(dict.fromkeys(call.processor for call in run.calls))


def reason_of_absence(run: Run, name: str) -> str:
    return run.absent.get(name, f"{name.replace('_', ' ')} were not recorded")


def complete_sum(table: Table, column: str, things: str) -> Any:
    """Sum a column; raise NotMeasuredError if a value is missing, because the sum would be too small."""
    unknown = table[column].null_count
    refuse_if(unknown, f"unknown for {unknown} of {len(table)} {things}")
    return pc.sum(table[column], min_count=0).as_py()


def some(table: Table, otherwise: str) -> Table:
    refuse_if(not len(table), otherwise)
    return table


def known_sum(column: pa.ChunkedArray) -> Any:
    """Sum of the measured values in a column, or 0 if there are none."""
    return pc.sum(column, min_count=0).as_py() or 0


NULL_IF_ANY = pc.ScalarAggregateOptions(skip_nulls=False)
"""With these options, a sum is null if any of its terms is null."""

Steps = Mapping[str, tuple[str, str]]
"""Maps each output column of an aggregation to an input column and an operation."""


def aggregated(table: Table, keys: Sequence[str], steps: Steps, options: Any = NULL_IF_ANY, **how: Any) -> Table:
    names = {name for name, _ in steps.values()}.difference(keys)
    values = plain(table.select([*names]))
    table = pa.table({name: (table if name in keys else values)[name] for name in [*keys, *names]}).unify_dictionaries()
    found = plain(table.group_by([*keys], **how).aggregate([(*step, options) for step in steps.values()]))
    return found.select([*keys, *map("_".join, steps.values())]).rename_columns([*keys, *steps])


def joined(tables: Iterable[Table]) -> Table:
    """Concatenate tables, whether or not their texts are dictionaries and their integers short."""
    tables = [*tables]
    names = {field.name for table in tables for field in table.schema if pa.types.is_dictionary(field.type)}
    for place, table in enumerate(tables):
        encoded = {name: table[name].dictionary_encode() for name in names.intersection(table.column_names)}
        tables[place] = pa.table({name: encoded.get(name, table[name]) for name in table.column_names})
    return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()


def with_outcome(table: Table, outcomes: tuple[str, ...]) -> Table:
    return rows_with(table, "outcome", outcomes)


def rows_with(table: Table, column: str, values: Iterable[str | None]) -> Table:
    values = [*values]
    wanted = of_texts(table[column], pc.is_in, pa.array(values, pa.string()))
    return rows_where(table, pc.fill_null(wanted, None in values))


def rows_where(table: Table, wanted: pa.Array | pa.ChunkedArray | npt.NDArray[np.bool_]) -> Table:
    """Select rows. If all are selected, the table itself is returned, because copying a million rows is expensive."""
    wanted = pa.array(wanted) if isinstance(wanted, np.ndarray) else wanted
    every = pc.all(wanted, skip_nulls=False, min_count=0).as_py()
    return table if every else table.filter(wanted)


def of_finished_calls(run: Run, table: Table) -> Table:
    """Rows of Runner calls that returned their output. The results of all other calls were lost."""
    finished = [call.id for call in run.calls if call.outcome == FINISHED]
    return rows_with(table, "call", finished)


def lost_calls(run: Run) -> list[RunnerCall]:
    return [call for call in run.calls if OF_CALL + call.id in run.absent]


def why_calls_lack(run: Run) -> list[str]:
    """Reasons why Runner calls left no chunk records, and the share of the wall time that these calls took."""
    found = []
    for reason in dict.fromkeys(run.absent[name] for name in run.absent if name.startswith(OF_CALL)):
        of_calls = ""
        if lost := [call for call in lost_calls(run) if run.absent[OF_CALL + call.id] == reason]:
            took, names = sum(call.stop - call.start for call in lost), ", ".join({call.processor: "" for call in lost})
            share = f"{SECOND.text(took)}, {FRACTION.text(took / elapsed_seconds(run))} of the wall time"
            of_calls = f" ({counted(len(lost), 'Runner call')} for {names}: {share})"
        found.append(reason + of_calls)
    return found


def clock_offsets(run: Run) -> dict[str | None, float]:
    """Number of seconds by which each worker's clock is ahead of the client's, by address (0 if unknown)."""
    if run.lifetimes is None:
        return {}
    rows = run.lifetimes.select(["worker", "clock_offset"]).to_pylist()
    return {row["worker"]: row["clock_offset"] or 0.0 for row in rows}


def on_clients_clock(run: Run, table: Table, *columns: str) -> Table:
    """Shift these columns of a table from the workers' clocks to the client's."""
    offsets = {worker: offset for worker, offset in clock_offsets(run).items() if offset}
    if offsets:
        place = pc.index_in(table["worker"], value_set=pa.array(list(offsets), pa.string()))
        ahead = pc.fill_null(pc.take(pa.array(list(offsets.values())), place), 0.0)
        for name in columns:
            table = table.set_column(table.column_names.index(name), name, pc.subtract(table[name], ahead))
    return table


for name in ("chunks", "tasks", "samples", "sampling"):
    CATALOGUE.add(Fact(name=name, function=partial(recorded, name=name), inputs=(RUN,)))


@fact
def worker_states(run: Run) -> Table:
    lost = run.dropped.get("sampling")
    refuse_if(lost, f"{lost} scheduler samples were lost")
    return recorded(run, "worker_states")


@fact
def lifetimes(run: Run) -> Table:
    table = recorded(run, "lifetimes")
    for column in ("threads", "start", "stop"):
        unknown = table[column].null_count
        refuse_if(unknown, f"{column} unknown for {unknown} of {len(table)} workers")
    return table


@fact
def cumulative_metrics(run: Run) -> SpanMetrics:
    return recorded(run, "span_metrics")  # type: ignore[no-any-return]


@fact
def task_metrics(cumulative_metrics: SpanMetrics) -> SpanMetrics:
    """Dask's metrics for the run's tasks: {(prefix, activity, unit): amount}."""
    found = in_tasks(cumulative_metrics)
    refuse_if(not found, "Dask's span contains no task from this run")
    return found


def in_tasks(span_metrics: SpanMetrics) -> SpanMetrics:
    no_work = ("N/A", "idle or other spans")  # worker thread time outside the span's tasks
    return {key[1:]: value for key, value in span_metrics.items() if key[0] == "execute" and key[1:3] != no_work}


@fact
def processor_prefixes(tasks: Table) -> frozenset[str]:
    own = rows_with(tasks.select(["prefix", "kind"]), "kind", (task_records.PROCESSOR,))
    prefixes = frozenset(filter(None, own["prefix"].unique().to_pylist()))
    refuse_if(not prefixes, "no processor task was recorded")
    return prefixes


@fact
def present(run: Run, lifetimes: Table) -> tuple[Numbers, Numbers]:
    return clipped(measured_values(lifetimes["start"]), measured_values(lifetimes["stop"]), run.start, run.stop)


@fact
def counted_chunks(chunks: Table) -> Table:
    """Attempts whose result was used, that is, the last successful attempt at each task.

    A result that was lost with its worker and recomputed counts once. An attempt without a task counts separately,
    as does the same task in another Runner call.
    """
    succeeded = with_outcome(chunks, WITH_RESULT)
    attempt, run_id = (integers(succeeded[name], -1) for name in ("attempt", "run_id"))
    if (attempt == 1).all():
        return succeeded
    alone = ~succeeded["key"].is_valid().to_numpy()
    task = np.where(alone, -1 - np.arange(len(alone)), row_codes(succeeded.select(["key", "call"])))
    number = np.unique(task, return_inverse=True)[1]
    order = np.lexsort((attempt, run_id))
    last = np.zeros(number.max() + 1, np.int64)
    last[number[order]] = order
    return succeeded if len(last) == len(succeeded) else succeeded.take(pa.array(np.sort(last)))


@fact
def successful_chunks(chunks: Table) -> Table:
    """Attempts that completed. Chunks loaded from checkpoints are not included."""
    return with_outcome(chunks, (chunk_records.OK,))


# Join task attempts to their records by key and run ID


def lost_rows(run: Run, *names: str) -> list[str]:
    """Messages about rows lost from these tables, and about periods for which there are no data."""
    dropped = [f"{run.dropped[name]} rows of {name} were lost" for name in names if run.dropped.get(name)]
    unknown = sum(stop - start for gaps in (run.gaps, *(part.gaps for part in run.merged)) for start, stop in gaps)
    return [*dropped, f"nothing was recorded for {SECOND.text(unknown)}"] if unknown else dropped


def among(chunks: Table, counted: Table) -> Flags:
    if len(counted) == len(chunks):
        return np.ones(len(chunks), np.bool_)
    return one_of(chunks["id"], counted["id"].combine_chunks())


def identities(tasks: Table, records: Table) -> tuple[Integers, Integers]:
    """Integer codes for the key and run ID of each record, and matching codes for tasks.

    A code is -1 if the key or run ID is unknown, or if the task has no record. A scheduler never reuses a run ID, so
    the run ID identifies the key. Comparing the keys verifies this assumption and is much faster than looking them up.
    """
    of_records, of_tasks = (integers(table["run_id"], -1) for table in (records, tasks))
    first, keys = rows_of(of_records, of_records), records["key"]
    again = np.flatnonzero(first != np.arange(len(first)))
    alike = having(keys.take(pa.array(again)), keys.take(pa.array(first[again])))
    if len(records) and not keys.null_count and alike.all():
        place = rows_of(of_tasks, of_records)
        found = np.flatnonzero(place >= 0)
        # allocating memory for a million keys takes longer than comparing them
        for rows in np.array_split(found, len(found) // MANY + 1):
            same = having(tasks["key"].take(pa.array(rows)), keys.take(pa.array(place[rows])))
            place[rows[~same]] = -1
        return of_records, np.where(place >= 0, of_tasks, -1)
    both = joined([table.select(["key", "run_id"]) for table in (records, tasks)])
    whole = both["key"].is_valid().to_numpy() & both["run_id"].is_valid().to_numpy()
    of_records, of_tasks = np.split(np.where(whole, row_codes(both), -1), [len(records)])
    return of_records, np.where(np.isin(of_tasks, of_records), of_tasks, -1)


ADDRESS: Final = re.compile(r"(?:\w+://)?(?P<host>\[[^]]*\]|[^/:]+)[:/](?P<place>[\d/:.]+)")
"""Addresses such as tcp://host:40000, tcp://[::1]:40000 and, for workers in the client's process,
inproc://host/12/1."""

LOOPBACK: Final = re.compile(r"127\.[\d.]+|\[::1\]|localhost")
OF_WORKERS: Final = ("lifetimes", "samples", "chunks", "tasks")


class Names(NamedTuple):
    workers: Mapping[str, str]
    hosts: Mapping[str, str]

    def in_text(self, text: str) -> str:
        """Replace addresses in a string with short names. The short name of a worker includes its host."""
        shown = {host: name for host, name in self.hosts.items() if host in text}
        on_host = f"(?: on (?:{'|'.join(map(re.escape, shown))}))?" if shown else ""
        for address, name in self.workers.items():
            if address != name and address in text:
                text = re.sub(rf"(?<![\w/.]){re.escape(address)}(?![\w/]){on_host}", name, text)
        for host, name in shown.items():
            text = re.sub(rf"(?<![\w/.:-]){re.escape(host)}(?![\w:/-]|\.\w)", name, text)
        return text


NO_NAMES: Final = Names({}, {})


def known_names(values: Evaluator) -> Names:
    try:
        found: Names = values.value("place_names")
    except NotMeasuredError:
        return NO_NAMES
    return found


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Natural sort key for a name: vm:2 sorts before vm:10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def short_names(
    addresses: Iterable[str], arrivals: Mapping[str, float] | None = None, this_host: str | None = None
) -> dict[str, str]:
    """Short worker names (`host:n`), by address.

    Workers on a host are numbered from 1 in order of arrival, with ties broken by port, so later arrivals do not change
    existing names. Strings that are not addresses are returned unchanged.

    Parameters
    ----------
    arrivals
        Arrival time of each worker, if known.
    this_host
        Name of the machine to which addresses such as 127.0.0.1 refer.

    Examples
    --------
    >>> short_names(["tcp://node-1.example.org:40001", "tcp://node-1.example.org:40000"])
    {'tcp://node-1.example.org:40000': 'node-1:1', 'tcp://node-1.example.org:40001': 'node-1:2'}
    """
    found, places = {}, []
    for address in sorted(set(addresses)):
        if match := ADDRESS.fullmatch(address):
            numbers = tuple(map(int, re.findall(r"\d+", match["place"])))
            places.append(((arrivals or {}).get(address, 0.0), _host(match["host"], this_host), numbers, address))
        else:
            found[address] = address
    labels = _without_domains({host for _, host, *_ in places})
    counts = Counter[str]()
    for _, host, _, address in sorted(places):
        counts[host] += 1
        found[address] = f"{labels[host]}:{counts[host]}"
    return found


@fact
def place_names(run: Run) -> Names:
    tables = [table for name in OF_WORKERS if (table := getattr(run, name)) is not None]
    seen = {worker for table in tables for worker in table["worker"].unique().to_pylist() if worker is not None}
    arrivals: dict[str, float] = {}
    here, hosts = run.environment.client_host, dict[str, str]()
    if run.lifetimes is not None:
        known = run.lifetimes.select(["worker", "start"]).drop_null().sort_by([("start", "descending")])
        arrivals = dict(zip(*(column.to_pylist() for column in known.columns), strict=True))
        hosts = {host: _host(host, here) for host in run.lifetimes["host"].drop_null().to_pylist()}
    addresses = filter(None, map(ADDRESS.fullmatch, seen))
    labels = _without_domains({_host(address["host"], here) for address in addresses} | {*hosts.values()})
    return Names(short_names(seen, arrivals, here), {host: labels[name] for host, name in hosts.items()})


@fact
def worker_names(place_names: Names) -> Mapping[str, str]:
    return place_names.workers


def is_loopback(address: str) -> bool:
    found = ADDRESS.fullmatch(address)
    return found is not None and LOOPBACK.fullmatch(found["host"]) is not None


def on_host(address: str, this_host: str | None) -> str:
    """Replace a loopback host in an address with the machine's name.

    Examples
    --------
    >>> on_host("tcp://127.0.0.1:40000", "node-1"), on_host("tcp://10.0.0.7:40000", "node-1")
    ('tcp://node-1:40000', 'tcp://10.0.0.7:40000')
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        return _host(address, this_host)
    return address[: found.start("host")] + _host(found["host"], this_host) + address[found.end("host") :]


def _host(host: str, this_host: str | None) -> str:
    return this_host if this_host and LOOPBACK.fullmatch(host) else host


def _without_domains(hosts: set[str]) -> dict[str, str]:
    first = {host: host if re.fullmatch(r"[\d.]+|\[.*\]", host) else host.partition(".")[0] for host in hosts}
    hosts_of = Counter(first.values())
    return {host: label if hosts_of[label] == 1 else host for host, label in first.items()}
