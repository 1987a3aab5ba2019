"""HTTP and XRootD servers on this machine, late, slow or throttled; and what each counted itself."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from processes import PATIENCE, free_port, wait_until


@dataclass
class HttpServer:
    """A server, and the ranges that it was asked for: path, first byte and size; it is silent about some."""

    url: str = ""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    silent: set[tuple[str, int]] = field(default_factory=set)


@contextmanager
def http_server(folder: Path, *, delay: float = 0.0, rate: float | None = None) -> Iterator[HttpServer]:
    """Serve a folder; each answer comes after `delay` seconds, at most `rate` bytes per second."""
    served, lock, closing = HttpServer(), threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # else the system may keep the content back until the client has confirmed the head
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self._head(200, len(self._content()))

        def do_GET(self) -> None:
            content, asked = self._content(), re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(asked[1]), int(asked[2])) if asked else (0, len(content) - 1)
            part = content[first : last + 1]
            with lock:
                served.ranges.append((self.path, first, len(part)))
            if (self.path, first) in served.silent:
                closing.wait()
            time.sleep(delay + (len(part) / rate if rate else 0.0))
            self._head(206 if asked else 200, len(part), f"bytes {first}-{first + len(part) - 1}/{len(content)}")
            self.wfile.write(part)

        def _content(self) -> bytes:
            return (folder / self.path.lstrip("/")).read_bytes()

        def _head(self, status: int, size: int, part: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.send_header("Accept-Ranges", "bytes")
            if status == 206:
                self.send_header("Content-Range", part)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


XROOTD_PROGRAMS: Final = ("xrootd", "cmsd")
XROOTD_PACKAGES: Final = ("XRootD", "fsspec_xrootd")
MISSING: Final = [name for name in XROOTD_PROGRAMS if shutil.which(name) is None] + [
    name for name in XROOTD_PACKAGES if importlib.util.find_spec(name) is None
]
needs_xrootd = pytest.mark.skipif(
    bool(MISSING),
    reason=f"there is no {', '.join(MISSING)}: apt-get install xrootd-server; pip install -e '.[xrootd]'",
)

COMMON: Final = """
all.export /
xrd.network nodnr norpipa nokeepalive
xrootd.async off
all.adminpath {folder}/run
all.pidpath {folder}/run
"""
ALONE: Final = "xrd.port {port}\n"
IN_CLUSTER: Final = """
all.manager localhost:{manager}
all.role {role}
cms.delay startup 2 servers 1 lookup 1
cms.allow host *
if exec xrootd
xrd.port {port}
else
xrd.port {cluster_port}
fi
"""
DATA: Final = "oss.localroot {folder}/data\n"
MONITORED: Final = """
xrootd.monitor all flush io 1s fstat 1s lfn ops xfr 1 window 1s dest files io info user fstat 127.0.0.1:{monitor}
"""
CACHING: Final = """
ofs.osslib libXrdPss.so
pss.cachelib libXrdPfc.so
pss.origin {origin}
pfc.blocksize 64k
pfc.prefetch 0
pfc.ram 1g
"""
THROTTLED: Final = """
if exec xrootd
xrootd.fslib throttle default
throttle.throttle data {rate}
fi
"""


class Server(NamedTuple):
    """A running server: its port, the folder with its files, and its processes."""

    port: int
    files: Path
    processes: Sequence[subprocess.Popen[bytes]]

    @property
    def endpoint(self) -> str:
        return f"localhost:{self.port}"

    def url(self, file: str) -> str:
        return f"root://{self.endpoint}//{file}"

    def kill(self) -> None:
        """End it as a crash would."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def _running(config: Callable[[int], str], programs: Sequence[str]) -> Iterator[Server]:
    """Programs with the configuration for a free port; those that crash before they listen are started again."""
    for attempts_left in (2, 1, 0):
        port = free_port()
        with _started(config(port), programs) as (folder, processes):
            if _listens(port, processes):
                yield Server(port, folder / "data", processes)
                return
            crashed = any((process.poll() or 0) < 0 for process in processes)
            if not (crashed and attempts_left):
                logs = [log.read_text(encoding="utf-8", errors="replace")[-3000:] for log in folder.glob("*.log")]
                pytest.fail("\n".join(["an XRootD server did not begin:", *logs]))


@contextmanager
def _started(config: str, programs: Sequence[str]) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Programs with this configuration, in a folder that the user `nobody` can read."""
    folder = Path(tempfile.mkdtemp(prefix="xrootd-", dir="/tmp"))
    for part in (folder, folder / "data", folder / "run"):
        part.mkdir(exist_ok=True)
        part.chmod(0o777)
    file = folder / "xrootd.cfg"
    file.write_text(config.format(folder=folder), encoding="utf-8")
    as_user = ["-R", "nobody"] if os.getuid() == 0 else []
    processes = []
    try:
        for program in programs:
            command = [program, "-c", str(file), "-l", str(folder / f"{program}.log"), *as_user]
            processes.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
            )
        yield folder, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def _listens(port: int, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether something listens at a port, before one of the processes ends."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        time.sleep(0.05)
    return False


@contextmanager
def data_server(monitor: int | None = None, rate: str | None = None) -> Iterator[Server]:
    """A server by itself, throttled to a rate such as "6m"; `monitor` is the port that it reports to."""
    more = MONITORED.format(monitor=monitor) if monitor is not None else ""
    more += THROTTLED.format(rate=rate) if rate else ""
    with _running(lambda port: COMMON + ALONE.format(port=port) + DATA + more, ["xrootd"]) as server:
        yield server


@contextmanager
def cache_of(origin: Server) -> Iterator[Server]:
    """An XCache in front of a server, without anything in it."""
    more = CACHING.format(origin=origin.endpoint)
    with _running(lambda port: COMMON + ALONE.format(port=port) + DATA + more, ["xrootd"]) as server:
        yield server


@contextmanager
def cluster(rates: Sequence[str | None]) -> Iterator[tuple[Server, list[Server]]]:
    """A redirector and its data servers, each throttled to a rate, if there is one."""
    manager = free_port()

    def config(role: str, cluster_port: int, port: int) -> str:
        places = {"manager": manager, "role": role, "port": port, "cluster_port": cluster_port}
        return COMMON + IN_CLUSTER.format(**places)

    def data_config(rate: str | None, port: int) -> str:
        return config("server", free_port(), port) + DATA + (THROTTLED.format(rate=rate) if rate else "")

    with ExitStack() as stack:
        redirector = stack.enter_context(_running(partial(config, "manager", manager), XROOTD_PROGRAMS))
        servers = [stack.enter_context(_running(partial(data_config, rate), XROOTD_PROGRAMS)) for rate in rates]
        yield redirector, servers


def wait_for_file(url: str) -> None:
    """Wait until a redirector knows who has a file."""
    from XRootD import client
    from XRootD.client.flags import OpenFlags

    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        file = client.File()
        status, _ = file.open(url, OpenFlags.READ, timeout=5)
        if status.ok:
            file.close()
            return
        time.sleep(0.2)
    pytest.fail(f"{url} cannot be opened: {status.message}")


def close_handles() -> None:
    """Close the files that fsspec-xrootd keeps open for a while: servers count a file when it is closed."""
    from fsspec_xrootd.xrootd import XRootDFileSystem

    for system in list(XRootDFileSystem._cache.values()):
        system.invalidate_cache()


class Counted(NamedTuple):
    """What a server counted of files that were closed."""

    opens: int = 0
    closes: int = 0
    read_bytes: int = 0
    vector_bytes: int = 0
    reads: int = 0
    vectors: int = 0

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.vector_bytes

    @property
    def requests(self) -> int:
        return self.reads + self.vectors


OPENED, CLOSED, HAS_OPERATIONS = 1, 0, 2
PACKET: Final = struct.Struct(">cBHi")
RECORD: Final = struct.Struct(">BBHI")
BYTES: Final = struct.Struct(">qqq")
OPERATIONS: Final = struct.Struct(">iii")


class FileStream:
    """Takes the f-stream of a server's monitoring: one record for each opening and closing of a file."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.port: int = self._socket.getsockname()[1]
        self._counted = Counted()
        self._ends = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self._socket.close()

    def counted(self, closes: int) -> Counted:
        """What the server counted, as soon as it has reported so many closed files, and of all that were opened."""
        wait_until(lambda: self._counted.closes >= max(closes, self._counted.opens))
        return self._counted

    def _listen(self) -> None:
        while not self._ends:
            try:
                packet = self._socket.recv(65536)
            except TimeoutError:
                continue
            code, _, length, _ = PACKET.unpack_from(packet)
            if code == b"f":
                self._take(packet[PACKET.size : length])

    def _take(self, records: bytes) -> None:
        at, counted = 0, self._counted
        while at + RECORD.size <= len(records):
            kind, flags, size, _ = RECORD.unpack_from(records, at)
            if kind == OPENED:
                counted = counted._replace(opens=counted.opens + 1)
            elif kind == CLOSED:
                read, vector, _ = BYTES.unpack_from(records, at + RECORD.size)
                assert flags & HAS_OPERATIONS
                reads, vectors, _ = OPERATIONS.unpack_from(records, at + RECORD.size + BYTES.size)
                amounts = (0, 1, read, vector, reads, vectors)
                counted = Counted(*(before + more for before, more in zip(counted, amounts, strict=True)))
            at += max(size, RECORD.size)
        self._counted = counted


@contextmanager
def file_stream() -> Iterator[FileStream]:
    stream = FileStream()
    try:
        yield stream
    finally:
        stream.close()


def set_client(**values: Any) -> None:
    """Set what XRootD's client waits for, by the names of its documentation without XRD_."""
    from XRootD import client

    for name, value in values.items():
        client.EnvPutInt(name, value)
