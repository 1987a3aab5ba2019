"""A run's environment: hosts, available resources and package versions."""

from __future__ import annotations

import platform
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import itemgetter, or_
from typing import Any, Final

import pyarrow as pa

from roastcoffea.backends.limits import Withheld, versions_of
from roastcoffea.records.arrow import with_column
from roastcoffea.records.columns import grouped
from roastcoffea.records.run import Environment, Host
from roastcoffea.records.workers import WITHHELD

SAMPLED: Final = 0.1
"""Relative error of the kernel's CPU time for a host; if less than one core is busy, the error is relative to one
core."""

SHORTEST: Final = 1.0
"""Shortest run, in seconds, for which the kernel's counters (in steps of 10 ms per core) are precise enough."""

TIMES: Final = ("own", "children")
NO_LOAD: Final = "no process in the run read the host's CPU time at both start and end"

Load = Mapping[str, Any]

Process = Mapping[str, Any]
"""Result of `limits.limits`, with the process's `host` added."""


def environment_of(hosts: Iterable[Host]) -> Environment:
    versions = {"python": platform.python_version()} | versions_of(
        ("roastcoffea", "coffea", "awkward", "uproot", "dask", "distributed", "numpy")
    )
    return Environment(versions=versions, client_host=socket.gethostname(), hosts=tuple(hosts))


def versions_on(processes: Iterable[Process], known: Mapping[str, str]) -> dict[str, str]:
    """Add the package versions in these processes to the known versions.

    If there are several versions of a package, all of them are listed.
    """
    found = {package: set(versions.split(", ")) for package, versions in known.items()}
    for process in processes:
        for package, version in process["versions"].items():
            found.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(versions)) for package, versions in found.items()}


def differing_versions(workers: Mapping[str, str], client: Mapping[str, str]) -> dict[str, str]:
    """Version differences between the workers and the client, by package."""
    return {
        package: f"{version} on workers, {client[package]} on the client"
        for package, version in workers.items()
        if version != client.get(package, version)
    }


def hosts_of(processes: Iterable[Process]) -> list[Host]:
    return [_host(name, there) for name, there in grouped(processes, "host").items()]


def with_more(known: Iterable[Host], now: Iterable[Host]) -> tuple[Host, ...]:
    """Merge two lists of hosts; for a host in both lists, keep the entry with more cores."""
    hosts = {host.name: host for host in known}
    hosts |= {host.name: max(host, hosts.get(host.name, host), key=lambda one: one.cores or 0) for host in now}
    return tuple(hosts.values())


def with_others(
    hosts: Iterable[Host], before: Iterable[Load], now: Iterable[Load], lost: Collection[int] = ()
) -> tuple[Host, ...]:
    """Add to each host the number of cores used by other programs, or why it is unknown.

    Parameters
    ----------
    hosts
        Hosts of the run.
    before, now
        Results of `limits.load` from the run's processes at earlier times, and from all remaining processes at the end.
    lost
        IDs of the processes, on any host, that ended before their final load was measured.
    """
    end = grouped(now, "system")
    found: dict[str, dict[str, Any]] = {}
    reported = _are_reported(before, now, lost)
    for system, start in grouped(before, "system").items():
        there = _others(sorted(start, key=lambda one: one["time"] or 0.0), end.get(system, []))
        if there.get("others") is not None and not reported:
            there = {"others_absent": "a worker left without sending a last message, so its CPU time is unknown"}
        found |= dict.fromkeys([load["host"] for load in start], there)
    known = (replace(host, **{"others": None} | found.get(host.name, {"others_absent": NO_LOAD})) for host in hosts)
    return tuple(
        host if host.others is None else replace(host, others=min(host.others, host.node_cores or host.others))
        for host in known
    )


def _are_reported(before: Iterable[Load], now: Iterable[Load], lost: Collection[int]) -> bool:
    """Whether surviving parents report the CPU time of all lost processes.

    Processes are identified by host and process ID, because each container has its own process IDs. For lost processes,
    only the ID is known, so another process that has exited may have the same ID.
    """
    alive = {(load["host"], process["pid"]) for load in now for process in load["processes"]}
    parents = {
        (load["host"], process["pid"]): (load["host"], process["parent"])
        for load in before
        for process in load["processes"]
    }
    ended = [place for place in parents if place[1] in lost and place not in alive]
    return not Counter(lost) - Counter(pid for _, pid in ended) and all(parents[place] in alive for place in ended)


def _others(before: Sequence[Load], now: Sequence[Load]) -> dict[str, Any]:
    if hidden := next((load["hidden"] for load in (*before, *now) if load["hidden"]), None):
        return {"others_absent": hidden}
    if not now:
        return {"others_absent": NO_LOAD}
    first, last = before[0], max(now, key=itemgetter("time"))
    seconds, busy, own = last["time"] - first["time"], last["busy"] - first["busy"], _own(before, now)
    if seconds < SHORTEST:
        return {"others_absent": "the run was too short for the kernel's host counters"}
    # the kernel only samples the host's CPU time, but measures each process's CPU time
    if own > busy + SAMPLED * max(busy, seconds):
        return {"others_absent": "the host reports less CPU time than the run used, so its figure is incomplete"}
    return {"others": max(busy - own, 0.0) / seconds, "others_absent": None}


def _own(before: Sequence[Load], now: Sequence[Load]) -> float:
    """CPU time used by the run's processes since the earliest of these loads.

    CPU time used by a process after it was last sampled is inferred from the child CPU time that its parent reports.
    """
    seen = dict[tuple[str, int, float], list[Process]]()
    for load in (*before, *now):
        for process in load["processes"]:
            seen.setdefault((load["host"], process["pid"], process["born"]), []).append(process)
    alive = {(load["host"], process["pid"]) for load in now for process in load["processes"]}
    ended = dict[tuple[str, int], float]()
    for (host, pid, _), each in seen.items():
        if (host, pid) not in alive:
            parent = host, each[-1]["parent"]
            ended[parent] = ended.get(parent, 0.0) + sum(each[-1][name] for name in TIMES)
    total = 0.0
    for (host, pid, born), each in seen.items():
        own, children = (each[-1][name] - (each[0][name] if born < before[0]["time"] else 0.0) for name in TIMES)
        total += own + max(children - ended.get((host, pid), 0.0), 0.0)
    return total


def with_withheld(lifetimes: pa.Table, withheld: Mapping[str, Withheld | None]) -> pa.Table:
    """Add each worker's throttling and steal time to its lifetime.

    If several workers had the same address, the values are added only to the last of them.
    """
    last = {worker: row for row, worker in enumerate(lifetimes["worker"].to_pylist())}
    amounts: list[Withheld] = [(None, None, None)] * len(lifetimes)
    for worker, found in withheld.items():
        if found is not None and worker in last:
            amounts[last[worker]] = found
    for name, values in zip(WITHHELD, zip(*amounts, strict=True), strict=False):
        lifetimes = with_column(lifetimes, name, values)
    return lifetimes


def _host(name: str, processes: Sequence[Process]) -> Host:
    groups = grouped(processes, "group")
    cores, memory = processes[0]["node_cores"], processes[0]["node_memory"]
    return Host(
        name=name,
        cores=_least(_total(map(_cores_of_group, groups.values())), _allowed(processes), cores),
        memory=_least(_total(_least(*(one["memory"] for one in group)) for group in groups.values()), memory),
        node_cores=cores,
        node_memory=memory,
    )


def _cores_of_group(processes: Sequence[Process]) -> int | None:
    """Number of cores available to a control group: its quota or, if smaller, its CPU affinity."""
    quotas = [one["cores"] for one in processes if one["cores"] != _allowed([one])]
    return _least(*quotas, _allowed(processes))


def _allowed(processes: Iterable[Process]) -> int | None:
    """Number of CPUs on which at least one of the processes may run; None if not reported."""
    masks = [process["affinity"] for process in processes]
    return None if None in masks else reduce(or_, (int(mask, 16) for mask in masks), 0).bit_count()


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _total(amounts: Iterable[int | None]) -> int | None:
    known = list(amounts)
    return None if None in known else sum(filter(None, known))
