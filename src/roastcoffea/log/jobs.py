"""Identify a process's batch job from its environment and the job ad.

This module may be pickled by value. It uses only the standard library, runs no commands and reads only a few small
files.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

MIB = 1 << 20
PROCESSES = "/proc"
NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

MOST_ANCESTORS = 64

Facts = dict[str, Any]


def job(environment: Mapping[str, str] | None = None, processes: str = PROCESSES) -> Facts:
    """Node of this process and, in a batch job, the job columns of `lifetimes`.

    `job_start` is when the job started, if the batch system reports it. Otherwise, `job_age` is the age of the
    process's topmost ancestor in the job. Unknown values are omitted.

    Parameters
    ----------
    environment : mapping, optional
        Environment variables of a process; defaults to the current process.
    processes : str
        Directory with information about processes; usually /proc.
    """
    environment = os.environ if environment is None else environment
    found: Facts = {}
    for variable, system, facts in SYSTEMS:
        if environment.get(variable):
            found = {**facts(environment), "batch_system": system}
            if "job_start" not in found:
                found["job_age"] = _age_of_first(variable, environment[variable], processes)
            break
    return {"node": socket.gethostname()} | {name: value for name, value in found.items() if value is not None}


def job_since_start(environment: Mapping[str, str] | None = None, processes: str = PROCESSES) -> Facts:
    """Result of `job`, with the age converted to a start time; empty outside a batch job."""
    found = job(environment, processes)
    age = found.pop("job_age", None)
    if age is not None:
        found["job_start"] = time.time() - age
    return found if "batch_system" in found else {}


def age_of(process: str = "self", processes: str = PROCESSES) -> float | None:
    """Age of a process in seconds; None if the system does not report it."""
    with suppress(AttributeError, IndexError, OSError, ValueError):
        ticks = int(_statistics(process, processes)[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return None


# Batch systems


def _slurm(environment: Mapping[str, str]) -> Facts:
    get = environment.get
    nodes = _number(get("SLURM_JOB_NUM_NODES") or get("SLURM_NNODES")) or 1
    cores = _cores_of_nodes(get("SLURM_JOB_CPUS_PER_NODE", "")) or _times(_number(get("SLURM_CPUS_ON_NODE")), nodes)
    memory = _times(_number(get("SLURM_MEM_PER_NODE")), nodes) or _times(_number(get("SLURM_MEM_PER_CPU")), cores)
    start, end = (_number(get(f"SLURM_JOB_{edge}_TIME")) for edge in ("START", "END"))
    found = {
        "job": get("SLURM_JOB_ID"),
        "queue": get("SLURM_JOB_PARTITION"),
        "node": get("SLURMD_NODENAME"),
        "job_cores": cores,
        "job_memory": _bytes(_times(memory, MIB)),
    }
    if start:
        found |= {"job_start": start, "job_limit": None if end is None else end - start}
    return found


def _cores_of_nodes(text: str) -> float | None:
    """Total number of cores on all nodes, from a string such as `72(x2),36`."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    if None in parts:
        return None
    return float(sum(int(part[1]) * int(part[2] or 1) for part in parts if part is not None)) or None


def _condor(environment: Mapping[str, str]) -> Facts:
    ad, machine = (_ad(environment.get(f"_CONDOR_{kind}_AD", "")) for kind in ("JOB", "MACHINE"))
    cluster, process = _number(ad.get("clusterid")), _number(ad.get("procid"))
    limits = (_number(ad.get(name)) for name in ("allowedjobduration", "allowedexecuteduration", "maxruntime"))
    known = [limit for limit in limits if limit]
    found = {
        "job": None if cluster is None else f"{cluster:.0f}.{process or 0:.0f}",
        "queue": _word(ad.get("jobflavour")),
        "node": _word(machine.get("machine")),
        # a slot may be larger than requested, and requests may be expressions
        "job_cores": _number(machine.get("cpus")) or _number(ad.get("requestcpus")),
        "job_memory": _bytes(_times(_number(machine.get("memory")) or _number(ad.get("requestmemory")), MIB)),
        "job_queued": _number(ad.get("qdate")),
        "job_limit": min(known) if known else None,
    }
    start = _number(ad.get("jobcurrentstartdate")) or _number(ad.get("jobstartdate"))
    return found | ({"job_start": start} if start else {})


def _ad(path: str) -> dict[str, str]:
    lines = (line.partition("=") for line in _content(path).decode("utf-8", "replace").splitlines())
    return {name.strip().lower(): value.strip() for name, equals, value in lines if equals}


def _lsf(environment: Mapping[str, str]) -> Facts:
    get = environment.get
    index = get("LSB_JOBINDEX", "0")
    words = get("LSB_MCPU_HOSTS", "").split()
    counts = [_number(word) for word in words[1::2]]
    of_hosts = None if None in counts else sum(filter(None, counts)) or None
    return {
        "job": get("LSB_JOBID", "") + (f"[{index}]" if index not in {"", "0"} else ""),
        "queue": get("LSB_QUEUE"),
        "job_cores": _number(get("LSB_DJOB_NUMPROC")) or of_hosts,
    }


def _pbs(environment: Mapping[str, str]) -> Facts:
    get = environment.get
    hosts = set(_content(get("PBS_NODEFILE", "")).split())
    of_one_host = _number(get("NCPUS")) if len(hosts) <= 1 else None
    return {
        "job": get("PBS_JOBID"),
        "queue": get("PBS_QUEUE"),
        "job_cores": _number(get("PBS_NP")) or of_one_host,
        "job_limit": _number(get("PBS_WALLTIME")),
    }


def _kubernetes(environment: Mapping[str, str]) -> Facts:
    def told(what: str) -> str | None:
        """Look up a value from the pod's manifest (downward API) under its common variable names."""
        names = (what, f"MY_{what}", f"K8S_{what}", f"KUBERNETES_{what}")
        return next((environment[name] for name in names if environment.get(name)), None)

    return {
        "job": told("POD_NAME") or socket.gethostname(),
        "queue": told("POD_NAMESPACE") or _content(NAMESPACE).decode("utf-8", "replace").strip() or None,
        "node": told("NODE_NAME"),
        "job_cores": _number(told("CPU_REQUEST")),
        "job_memory": _bytes(_number(told("MEM_REQUEST") or told("MEMORY_REQUEST"))),
    }


KUBERNETES = "kubernetes"
SYSTEMS: tuple[tuple[str, str, Callable[[Mapping[str, str]], Facts]], ...] = (
    ("_CONDOR_JOB_AD", "htcondor", _condor),
    ("SLURM_JOB_ID", "slurm", _slurm),
    ("LSB_JOBID", "lsf", _lsf),
    ("PBS_JOBID", "pbs", _pbs),
    ("KUBERNETES_SERVICE_HOST", KUBERNETES, _kubernetes),
)
"""Environment variable, name and reader for each batch system. Kubernetes is last, because other systems may run in
pods.
"""


# Processes and files


def _age_of_first(variable: str, value: str, processes: str) -> float | None:
    """Age of the topmost ancestor process that was started with this variable; None if unknown.

    A Dask process overwrites its environment with its title, so a process without the variable may also belong to the
    job.
    """
    entry = f"{variable}={value}".encode()
    process = oldest = "self"
    for _ in range(MOST_ANCESTORS):
        statistics = _statistics(process, processes)
        if len(statistics) < 2 or process == "0":
            break
        if entry in _content(f"{processes}/{process}/environ").split(b"\0"):
            oldest = process
        process = statistics[1].decode()
    return age_of(oldest, processes)


def _statistics(process: str, processes: str) -> list[bytes]:
    """Fields that follow the process name in a `stat` file."""
    return _content(f"{processes}/{process}/stat").rpartition(b")")[2].split()


def _content(path: str) -> bytes:
    with suppress(OSError, ValueError), open(path, "rb") as file:  # noqa: PTH123  (for speed)
        return file.read(MIB)
    return b""


def _number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        number = float(text)  # type: ignore[arg-type]
        return number if 0 <= number < float("inf") else None
    return None


def _times(amount: float | None, factor: float | None) -> float | None:
    return None if amount is None or factor is None else amount * factor


def _bytes(size: float | None) -> int | None:
    return round(size) if size else None


def _word(text: str | None) -> str | None:
    return text.strip('"') if text and text.startswith('"') else None
