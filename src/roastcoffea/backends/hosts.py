"""The environment of a run: hosts, resources available to its processes, and versions of packages."""

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
from roastcoffea.records.run import Environment, Host
from roastcoffea.records.workers import WITHHELD

SAMPLED: Final = 0.1
"""Error of the kernel's count of a host's CPU time: as a share, and in cores."""

SHORTEST: Final = 1.0
"""Seconds in which the kernel's ticks of 10 ms, counted for each core, are few enough to neglect."""

TIMES: Final = ("own", "children")
NO_LOAD: Final = "no process of the run read the CPU time of the host at its start and its end"

Load = Mapping[str, Any]
"""Result of `limits.load`."""

Process = Mapping[str, Any]
"""Result of `limits` for a process, with its `host`."""


def environment_of(hosts: Iterable[Host]) -> Environment:
    """Environment of a run on these hosts, as this process has it."""
    versions = {"python": platform.python_version()} | versions_of(
        ("roastcoffea", "coffea", "awkward", "uproot", "dask", "distributed", "numpy")
    )
    return Environment(versions=versions, client_host=socket.gethostname(), hosts=tuple(hosts))


def versions_on(processes: Iterable[Process], known: Mapping[str, str]) -> dict[str, str]:
    """Versions of packages in these processes, added to the known ones: several of a package are listed."""
    found = {package: set(versions.split(", ")) for package, versions in known.items()}
    for process in processes:
        for package, version in process["versions"].items():
            found.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(versions)) for package, versions in found.items()}


def differing_versions(workers: Mapping[str, str], client: Mapping[str, str]) -> dict[str, str]:
    """Packages whose versions on workers and client differ, with both versions."""
    return {
        package: f"{version} on workers, {client[package]} on the client"
        for package, version in workers.items()
        if version != client.get(package, version)
    }


def hosts_of(processes: Iterable[Process]) -> list[Host]:
    """Hosts of these processes, with the cores and memory available to all of them together."""
    return [_host(name, there) for name, there in _by("host", processes).items()]


def with_more(known: Iterable[Host], now: Iterable[Host]) -> tuple[Host, ...]:
    """Known hosts, and present ones; a host whose processes had more resources before is kept as it was."""
    hosts = {host.name: host for host in known}
    hosts |= {host.name: max(host, hosts.get(host.name, host), key=lambda one: one.cores or 0) for host in now}
    return tuple(hosts.values())


def with_others(
    hosts: Iterable[Host], before: Iterable[Load], now: Iterable[Load], lost: Collection[int] = ()
) -> tuple[Host, ...]:
    """Hosts with the cores that processes of others used; else with the reason.

    Parameters
    ----------
    hosts
        Hosts of the run.
    before, now
        Loads (`limits.load`) of processes of the run at earlier times, and of all that are left at the end.
    lost
        Processes that ended, without a load as they did, on any of the hosts.
    """
    end = _by("system", now)
    found: dict[str, dict[str, Any]] = {}
    reported = _are_reported(before, now, lost)
    for system, start in _by("system", before).items():
        there = _others(sorted(start, key=lambda one: one["time"] or 0.0), end.get(system, []))
        if there.get("others") is not None and not reported:
            there = {"others_absent": "a worker left without a last message: the CPU time that it used is not known"}
        found |= dict.fromkeys([load["host"] for load in start], there)
    known = (replace(host, **{"others": None} | found.get(host.name, {"others_absent": NO_LOAD})) for host in hosts)
    return tuple(
        host if host.others is None else replace(host, others=min(host.others, host.node_cores or host.others))
        for host in known
    )


def _are_reported(before: Iterable[Load], now: Iterable[Load], lost: Collection[int]) -> bool:
    """Whether parents that are still there report what all lost processes used.

    Processes are known by host and number: containers of one system have numbers of their own. Only the numbers of lost
    ones are known, so that others of these numbers that ended may have been meant.
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
    """Cores of a host that processes of others used from the first of these loads to the last."""
    if hidden := next((load["hidden"] for load in (*before, *now) if load["hidden"]), None):
        return {"others_absent": hidden}
    if not now:
        return {"others_absent": NO_LOAD}
    first, last = before[0], max(now, key=itemgetter("time"))
    seconds, busy, own = last["time"] - first["time"], last["busy"] - first["busy"], _own(before, now)
    if seconds < SHORTEST:
        return {"others_absent": "the run was too short for the kernel's counters of the host"}
    # the kernel samples what the host does, and measures what processes use
    if own > busy + SAMPLED * max(busy, seconds):
        return {"others_absent": "the host reports less CPU time than the run used, so it does not report all"}
    return {"others": max(busy - own, 0.0) / seconds, "others_absent": None}


def _own(before: Sequence[Load], now: Sequence[Load]) -> float:
    """CPU time of the run's processes since the first of these loads.

    What a process that has ended used after its last load is what its parent, which waited for it, reports beyond that.
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
    """Lifetimes with throttling and steal by address; for several workers of one address, those of the last."""
    last = {worker: row for row, worker in enumerate(lifetimes["worker"].to_pylist())}
    amounts: list[Withheld] = [(None, None, None)] * len(lifetimes)
    for worker, found in withheld.items():
        if found is not None and worker in last:
            amounts[last[worker]] = found
    for name, values in zip(WITHHELD, zip(*amounts, strict=True), strict=False):
        lifetimes = with_column(lifetimes, name, values)
    return lifetimes


def _host(name: str, processes: Sequence[Process]) -> Host:
    groups = _by("group", processes)
    cores, memory = processes[0]["node_cores"], processes[0]["node_memory"]
    return Host(
        name=name,
        cores=_least(_total(map(_cores_of_group, groups.values())), _allowed(processes), cores),
        memory=_least(_total(_least(*(one["memory"] for one in group)) for group in groups.values()), memory),
        node_cores=cores,
        node_memory=memory,
    )


def _by(what: str, processes: Iterable[Process]) -> dict[Any, list[Process]]:
    """Processes grouped by this value."""
    found: dict[Any, list[Process]] = {}
    for process in processes:
        found.setdefault(process[what], []).append(process)
    return found


def _cores_of_group(processes: Sequence[Process]) -> int | None:
    """Cores available to the processes of one control group: its quota, otherwise the processors of their affinity."""
    quotas = [one["cores"] for one in processes if one["cores"] != _allowed([one])]
    return _least(*quotas, _allowed(processes))


def _allowed(processes: Iterable[Process]) -> int | None:
    """Number of processors that any of the processes may run on; None if the system does not report it."""
    masks = [process["affinity"] for process in processes]
    return None if None in masks else reduce(or_, (int(mask, 16) for mask in masks), 0).bit_count()


def _least(*amounts: int | None) -> int | None:
    """Smallest known amount."""
    return min((amount for amount in amounts if amount is not None), default=None)


def _total(amounts: Iterable[int | None]) -> int | None:
    """Sum of amounts; None if one is unknown."""
    known = list(amounts)
    return None if None in known else sum(filter(None, known))
