"""Storage that its readers share: an HTTP server in a process of its own, with a limited rate.

All requests that are served at a time share `rate` bytes per second equally, each gets at most `stream_rate`, and each
waits `latency` before its first byte. `python benchmarks/shared_storage.py FOLDER` serves a folder and prints its port.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from scale.cluster import Shared


class Rates(NamedTuple):
    """Bytes per second of all streams together and of each, and seconds of a request before its first byte."""

    rate: float
    stream_rate: float
    latency: float


@contextmanager
def shared_storage(folder: Path, rates: Rates) -> Iterator[str]:
    """URL of a server of this folder; it is ended with the block."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in rates._asdict().items()]
    command = [sys.executable, __file__, str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


class Server:
    """Answers to HEAD and GET, whole files or one range of bytes."""

    def __init__(self, folder: Path, rates: Rates) -> None:
        self._folder, self._latency = folder, rates.latency
        self._shared = Shared(lambda streams: min(rates.rate, streams * rates.stream_rate))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection until it is closed."""
        try:
            while request := await _request(reader):
                await self._one(*request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, method: str, path: str, fields: dict[str, str], writer: asyncio.StreamWriter) -> None:
        arrived = asyncio.get_running_loop().time()
        file = self._folder / unquote(path).lstrip("/")
        if not file.is_file():
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        size = file.stat().st_size
        begin, end = _range(fields.get("range"), size)
        await asyncio.sleep(self._latency)
        head = [f"Content-Length: {end - begin}", "Accept-Ranges: bytes", "Content-Type: application/octet-stream"]
        status = "200 OK"
        if "range" in fields:
            status = "206 Partial Content"
            head.append(f"Content-Range: bytes {begin}-{end - 1}/{size}")
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *head, "", ""]).encode())
        if method == "GET":
            await self._shared.serve(end - begin, arrived + self._latency)
            with file.open("rb") as opened:
                opened.seek(begin)
                writer.write(opened.read(end - begin))
        await writer.drain()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Method, path and header fields of the next request; None at the end."""
    line = (await reader.readline()).decode("latin-1").split()
    if len(line) < 2:
        return None
    fields = {}
    while text := (await reader.readline()).decode("latin-1").strip():
        name, _, value = text.partition(":")
        fields[name.lower()] = value.strip()
    return line[0], line[1], fields


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    """First byte, and the one after the last."""
    if wanted is None:
        return 0, size
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


async def _serve(folder: Path, rates: Rates) -> None:
    server = await asyncio.start_server(Server(folder, rates).answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in Rates._fields:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, required=True)
    options = vars(parser.parse_args())
    asyncio.run(_serve(options.pop("folder"), Rates(**options)))


if __name__ == "__main__":
    main()
