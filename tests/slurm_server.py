"""A SLURM of our own on this machine (Debian's slurm-wlm and munge): controller, one node, its log of ended jobs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from command_line import PATIENCE, wait_until
from ports import free_ports

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo")
QUEUE = "hep"
CPUS = 8

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=5
OverTimeLimit=0
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName={queue} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Ended(NamedTuple):
    """A job in SLURM's own log; times in Unix seconds, whole ones."""

    start: float
    end: float
    state: str
    cores: int


class Slurm(NamedTuple):
    """The running SLURM."""

    folder: Path

    def run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def queued(self) -> list[str]:
        """Jobs that SLURM has not ended yet."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def ended(self) -> dict[str, Ended]:
        """SLURM's log of all jobs, once none is left."""
        assert wait_until(lambda: not self.queued()), f"jobs {self.queued()} did not end"
        rows = [dict(field.split("=", 1) for field in line.split()) for line in self._log().splitlines()]
        return {
            row["JobId"]: Ended(
                _moment(row["StartTime"]), _moment(row["EndTime"]), row["JobState"], int(row["ProcCnt"])
            )
            for row in rows
        }

    def _log(self) -> str:
        log = self.folder / "completed"
        return log.read_text() if log.exists() else ""


def lacking() -> str | None:
    """Why there can be no SLURM here; None if there can."""
    found = [program for program in PROGRAMS if _program(program) is None]
    if found:
        return f"needs Debian's slurm-wlm and munge (no {', '.join(found)})"
    if importlib.util.find_spec("dask_jobqueue") is None:
        return "needs dask-jobqueue"
    return None if os.geteuid() == 0 else "slurmd starts jobs as root only"


@contextmanager
def slurm() -> Iterator[Slurm]:
    """A SLURM of one node, which commands find by `SLURM_CONF`; nothing of it is left afterwards."""
    # munge wants folders that others may enter, and short names of sockets
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    controller, node = free_ports(2)
    names: dict[str, Any] = {"host": socket.gethostname(), "folder": folder, "queue": QUEUE, "cpus": CPUS}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(controller=controller, node=node, **names))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(configuration)
    daemons: list[subprocess.Popen[bytes]] = []
    server = Slurm(folder)
    try:
        _start(daemons, folder)
        _wait_for_node(server)
        yield server
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _start(daemons: list[subprocess.Popen[bytes]], folder: Path) -> None:
    munge = folder / "munge"
    subprocess.run([_program("mungekey") or "", "--create", f"--keyfile={munge}/key"], check=True)
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    commands = (
        [_program("munged"), "--foreground", *(f"--{option}={munge}/{name}" for option, name in files.items())],
        [_program("slurmctld"), "-D", "-f", f"{folder}/slurm.conf"],
        [_program("slurmd"), "-D", "-f", f"{folder}/slurm.conf"],
    )
    for number, command in enumerate(commands):
        log = (folder / f"daemon-{number}").open("wb")
        daemons.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log))
        log.close()
        if number == 0:
            assert wait_until((munge / "socket").exists), "munged has no socket"


def _wait_for_node(server: Slurm) -> None:
    def idle() -> bool:
        try:
            return "idle" in server.run("sinfo", "-h", "-o", "%T")
        except subprocess.CalledProcessError:
            return False

    assert wait_until(idle), "the node of SLURM is not idle"


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")


def _moment(text: str) -> float:
    """A time in SLURM's log, which is local."""
    return datetime.fromisoformat(text).timestamp()
