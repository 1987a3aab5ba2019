"""A Dask Gateway of our own on this machine, with its local backend (PyPI's dask-gateway and dask-gateway-server)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import psutil
from command_line import PATIENCE, wait_until
from ports import free_ports

PACKAGES: Final = ("dask_gateway", "dask_gateway_server", "sqlalchemy", "traitlets")

CONFIGURATION: Final = """
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


def lacking() -> str | None:
    """Why there can be no gateway here; None if there can."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"there is no {', '.join(missing)}: pip install -e '.[servers]'" if missing else None


@contextmanager
def gateway(path: str) -> Iterator[Gateway]:
    """A gateway whose workers find modules in this path; its processes end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-"))
    ports = dict(zip(("api", "http", "tcp"), free_ports(3), strict=True))
    config = folder / "config.py"
    config.write_text(CONFIGURATION.format(folder=folder, path=path, patience=PATIENCE, **ports))
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
