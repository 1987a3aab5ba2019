"""Short worker names: the host and a number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from roastcoffea.metrics.catalogue import fact
from roastcoffea.records.run import Run

ADDRESS: Final = re.compile(r"(?:\w+://)?(?P<host>\[[^]]*\]|[^/:]+)[:/](?P<place>[\d/:.]+)")
"""tcp://host:40000, tcp://[::1]:40000 and, for workers in the client's process, inproc://host/12/1."""

NUMERIC: Final = re.compile(r"[\d.]+|\[.*\]")
LOOPBACK: Final = re.compile(r"127\.[\d.]+|\[::1\]|localhost")
OF_WORKERS: Final = ("lifetimes", "samples", "chunks", "tasks")
"""Tables with worker names."""


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
def worker_names(run: Run) -> dict[str, str]:
    """Names `host:n` of all workers of the run, by address."""
    tables = [table for name in OF_WORKERS if (table := getattr(run, name)) is not None]
    seen = {worker for table in tables for worker in table["worker"].unique().to_pylist() if worker is not None}
    arrivals: dict[str, float] = {}
    if run.lifetimes is not None:
        for life in run.lifetimes.select(["worker", "start"]).drop_null().to_pylist():
            arrivals[life["worker"]] = min(life["start"], arrivals.get(life["worker"], life["start"]))
    return short_names(seen, arrivals, run.environment.client_host)


def on_host(address: str, this_host: str | None) -> str:
    """Address, or host, with the name of the machine in place of what means the machine itself.

    Examples
    --------
    >>> on_host("tcp://127.0.0.1:40000", "node-1"), on_host("tcp://10.0.0.7:40000", "node-1")
    ('tcp://node-1:40000', 'tcp://10.0.0.7:40000')
    """
    found = ADDRESS.fullmatch(address) or re.fullmatch("(?P<host>.*)", address, re.DOTALL)
    if not this_host or found is None or not LOOPBACK.fullmatch(found["host"]):
        return address
    return address[: found.start("host")] + this_host + address[found.end("host") :]


def _place(address: str, this_host: str | None) -> Place | None:
    found = ADDRESS.fullmatch(address)
    if found is None:
        return None
    host = on_host(found["host"], this_host)
    return Place(host, tuple(int(number) for number in re.findall(r"\d+", found["place"])))


def _without_domains(hosts: set[str]) -> dict[str, str]:
    """Hosts by their first label, if it is unique."""
    first = {host: host if NUMERIC.fullmatch(host) else host.partition(".")[0] for host in hosts}
    labels = list(first.values())
    return {host: label if labels.count(label) == 1 else host for host, label in first.items()}
