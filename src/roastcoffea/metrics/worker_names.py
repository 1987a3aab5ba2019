"""Short names of workers and hosts: a worker has that of its host, and a number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from roastcoffea.metrics.catalogue import NotMeasuredError, fact
from roastcoffea.records.run import Run

ADDRESS: Final = re.compile(r"(?:\w+://)?(?P<host>\[[^]]*\]|[^/:]+)[:/](?P<place>[\d/:.]+)")
"""tcp://host:40000, tcp://[::1]:40000 and, for workers in the client's process, inproc://host/12/1."""

NUMERIC: Final = re.compile(r"[\d.]+|\[.*\]")
LOOPBACK: Final = re.compile(r"127\.[\d.]+|\[::1\]|localhost")
OF_WORKERS: Final = ("lifetimes", "samples", "chunks", "tasks")
"""Tables with worker names."""


class Names(NamedTuple):
    """Short names of the workers and hosts of a run, by address."""

    workers: Mapping[str, str]
    hosts: Mapping[str, str]

    def in_text(self, text: str) -> str:
        """Text in which workers and hosts are called by these names; a worker's has its host already."""
        shown = {host: name for host, name in self.hosts.items() if host in text}
        on_host = f"(?: on (?:{'|'.join(map(re.escape, shown))}))?" if shown else ""
        for address, name in self.workers.items():
            if address != name and address in text:
                text = re.sub(rf"(?<![\w/.]){re.escape(address)}(?![\w/]){on_host}", name, text)
        for host, name in shown.items():
            text = re.sub(rf"(?<![\w/.:-]){re.escape(host)}(?![\w:/-]|\.\w)", name, text)
        return text


NO_NAMES: Final = Names({}, {})


class Values(Protocol):
    """What evaluates entries of the catalogue."""

    def value(self, name: str) -> Any:
        """Value of an entry."""


def known_names(values: Values) -> Names:
    """Short names of a run; none if they cannot be made."""
    try:
        found: Names = values.value("place_names")
    except NotMeasuredError:
        return NO_NAMES
    return found


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """What names are sorted by, so that those that differ in a number are in its order: vm:2 comes before vm:10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


class Place(NamedTuple):
    """Host and numbers in a worker's address."""

    host: str
    numbers: tuple[int, ...]
    """Port, or the equivalent."""


def short_names(
    addresses: Iterable[str], arrivals: Mapping[str, float] | None = None, this_host: str | None = None
) -> dict[str, str]:
    """Names `host:n` of workers, by address.

    Workers of a host are numbered from 1 in order of arrival, then port, so that later ones do not change existing
    names. Anything that is not an address is kept.

    Parameters
    ----------
    arrivals
        Arrival time of each worker, if known.
    this_host
        Name of the machine behind addresses like 127.0.0.1.

    Examples
    --------
    >>> short_names(["tcp://node-1.example.org:40001", "tcp://node-1.example.org:40000"])
    {'tcp://node-1.example.org:40000': 'node-1:1', 'tcp://node-1.example.org:40001': 'node-1:2'}
    """
    arrived = arrivals or {}
    places = {address: _place(address, this_host) for address in sorted(set(addresses))}
    labels = _without_domains({place.host for place in places.values() if place})
    names, counts = {}, dict.fromkeys(labels, 0)
    for address in sorted(places, key=lambda one: (arrived.get(one, 0.0), places[one] or (one, ()))):
        if (place := places[address]) is None:
            names[address] = address
        else:
            counts[place.host] += 1
            names[address] = f"{labels[place.host]}:{counts[place.host]}"
    return names


@fact
def place_names(run: Run) -> Names:
    """Short names of all workers and hosts of the run."""
    tables = [table for name in OF_WORKERS if (table := getattr(run, name)) is not None]
    seen = {worker for table in tables for worker in table["worker"].unique().to_pylist() if worker is not None}
    arrivals: dict[str, float] = {}
    known: set[str] = set()
    if run.lifetimes is not None:
        for life in run.lifetimes.select(["worker", "start"]).drop_null().to_pylist():
            arrivals[life["worker"]] = min(life["start"], arrivals.get(life["worker"], life["start"]))
        known = set(run.lifetimes["host"].drop_null().to_pylist())
    here = run.environment.client_host
    hosts = {host: _host(host, here) for host in known}
    labels = _without_domains({place.host for worker in seen if (place := _place(worker, here))} | {*hosts.values()})
    workers = short_names(seen, arrivals, here)
    return Names(workers, {host: labels[name] for host, name in hosts.items()})


@fact
def worker_names(place_names: Names) -> Mapping[str, str]:
    """Names `host:n` of all workers of the run, by address."""
    return place_names.workers


def is_loopback(address: str) -> bool:
    """Whether an address can only be reached from its own machine."""
    found = ADDRESS.fullmatch(address)
    return found is not None and LOOPBACK.fullmatch(found["host"]) is not None


def on_host(address: str, this_host: str | None) -> str:
    """Address, or host, with the name of the machine in place of what means the machine itself.

    Examples
    --------
    >>> on_host("tcp://127.0.0.1:40000", "node-1"), on_host("tcp://10.0.0.7:40000", "node-1")
    ('tcp://node-1:40000', 'tcp://10.0.0.7:40000')
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        return _host(address, this_host)
    return address[: found.start("host")] + _host(found["host"], this_host) + address[found.end("host") :]


def _place(address: str, this_host: str | None) -> Place | None:
    found = ADDRESS.fullmatch(address)
    if found is None:
        return None
    return Place(_host(found["host"], this_host), tuple(int(number) for number in re.findall(r"\d+", found["place"])))


def _host(host: str, this_host: str | None) -> str:
    return this_host if this_host and LOOPBACK.fullmatch(host) else host


def _without_domains(hosts: set[str]) -> dict[str, str]:
    """Hosts by their first label, if it is unique."""
    first = {host: host if NUMERIC.fullmatch(host) else host.partition(".")[0] for host in hosts}
    hosts_of = Counter(first.values())
    return {host: label if hosts_of[label] == 1 else host for host, label in first.items()}
