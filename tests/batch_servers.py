"""A SLURM and a Dask Gateway of our own on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import psutil
from processes import PATIENCE, free_ports, wait_until

SLURM_PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo")
QUEUE = "hep"
CPUS = 8

SLURM_CONFIGURATION = """
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


def slurm_lacks() -> str | None:
    """Why there can be no SLURM here; None if there can."""
    found = [program for program in SLURM_PROGRAMS if _program(program) is None]
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
    configuration.write_text(SLURM_CONFIGURATION.format(controller=controller, node=node, **names))
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


GATEWAY_PACKAGES: Final = ("dask_gateway", "dask_gateway_server", "sqlalchemy", "traitlets")

GATEWAY_CONFIGURATION: Final = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"
c.DaskGateway.address = "127.0.0.1:{api}"
c.Proxy.address = "127.0.0.1:{http}"
c.Proxy.tcp_address = "127.0.0.1:{tcp}"
c.UnsafeLocalBackend.clusters_directory = "{folder}/clusters"
c.UnsafeLocalBackend.sigint_timeout = 2
c.UnsafeLocalBackend.inherited_environment = ["PATH", "HOME", "TMPDIR"]
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "1 G"
c.UnsafeLocalBackend.cluster_start_timeout = {patience}
c.UnsafeLocalBackend.worker_start_timeout = {patience}
c.ClusterConfig.environment = {{"PYTHONPATH": {path!r}}}
c.ClusterConfig.scheduler_cmd = "{folder}/dask-scheduler"
c.ClusterConfig.worker_cmd = "{folder}/dask-worker"
"""

COMMAND: Final = """#!{python}
import sys
from distributed.cli.dask_{name} import main

if __name__ == "__main__":
    sys.exit(main())
"""
"""What a gateway starts is one word; newer releases of Dask have only `dask scheduler` and `dask worker`."""


CLOSED: Final[list[Any]] = []
"""Gateways of users: once closed, they raise when Python deletes them, except at its end."""


class Gateway(NamedTuple):
    """Where a running gateway is reached."""

    address: str
    proxy: str

    @contextmanager
    def cluster(self) -> Iterator[Any]:
        """A cluster of a user who is logged in."""
        from dask_gateway import BasicAuth, GatewayCluster

        found = GatewayCluster(self.address, proxy_address=self.proxy, auth=BasicAuth(username="tester"))
        CLOSED.append(found.gateway)
        with found:
            yield found


def gateway_lacks() -> str | None:
    """Why there can be no gateway here; None if there can."""
    missing = [name for name in GATEWAY_PACKAGES if importlib.util.find_spec(name) is None]
    return f"there is no {', '.join(missing)}: pip install -e '.[servers]'" if missing else None


@contextmanager
def gateway(path: str) -> Iterator[Gateway]:
    """A gateway whose workers find modules in this path; its processes end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-"))
    ports = dict(zip(("api", "http", "tcp"), free_ports(3), strict=True))
    config = folder / "config.py"
    config.write_text(GATEWAY_CONFIGURATION.format(folder=folder, path=path, patience=PATIENCE, **ports))
    for name in ("scheduler", "worker"):
        command = folder / f"dask-{name}"
        command.write_text(COMMAND.format(python=sys.executable, name=name))
        command.chmod(0o755)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "dask_gateway_server", "--config", str(config)],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{ports['http']}"
        assert wait_until(lambda: _answers(address), PATIENCE), "the gateway does not answer"
        yield Gateway(address, f"gateway://127.0.0.1:{ports['tcp']}")
    except BaseException:
        print(_log(folder))
        raise
    finally:
        server.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        _end_all(folder, server)
        shutil.rmtree(folder, ignore_errors=True)


def _end_all(folder: Path, server: subprocess.Popen[bytes]) -> None:
    """End what the server may have left: its proxy, and clusters, which have folders in its own."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                process.kill()
    server.wait()


def _log(folder: Path) -> str:
    """What server, schedulers and workers wrote last."""
    logs = [folder / "log", *sorted(folder.glob("clusters/*/logs/*"))]
    return "\n".join(f"{log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


def _answers(address: str) -> bool:
    """Whether the proxy passes requests on to the gateway."""
    with suppress(OSError), urlopen(f"{address}/api/version", timeout=5) as answer:
        return bool(answer.status == HTTPStatus.OK)
    return False
