"""An HTTP server on this machine that answers ranges late and slowly, and keeps a log of what it was asked for."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class HttpServer:
    """A server, and the ranges that it was asked for: path, first byte and size."""

    url: str = ""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)


@contextmanager
def http_server(folder: Path, *, delay: float = 0.0, rate: float | None = None) -> Iterator[HttpServer]:
    """Serve a folder; each answer comes after `delay` seconds, at most `rate` bytes per second."""
    served, lock = HttpServer(), threading.Lock()

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
        server.shutdown()
        server.server_close()
        thread.join()
