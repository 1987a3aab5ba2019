"""A real browser without a window, driven through Chromium's own protocol on a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil
from processes import PATIENCE

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "about:blank",
)
WITH_PIPES: Final = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Starts a program whose pipes are where Chromium looks for them."""


def installed_browser() -> str | None:
    """Path of a Chromium that is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A browser with one tab; what its page logs, throws and asks the network for is kept."""

    def __init__(self, folder: Path, program: str) -> None:
        self.messages: list[str] = []
        self._requests: list[tuple[str, str]] = []
        self._numbers = itertools.count(1)
        self._received = b""
        from_here, to_there = os.pipe()
        from_there, to_here = os.pipe()
        command = [program, f"--user-data-dir={folder}", *SWITCHES]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WITH_PIPES, str(from_here), str(to_here), *command],
            pass_fds=(from_here, to_here),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(from_here)
        os.close(to_here)
        self._out, self._in = to_there, from_there
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cpu_seconds(self) -> float:
        """CPU time of the browser and of the processes that draw for it."""
        main = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    @property
    def requests(self) -> list[str]:
        """What this page asked for, itself first."""
        return [url for _, url in self._requests]

    def close(self) -> None:
        for pipe in (self._out, self._in):
            os.close(pipe)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Result of a call of the protocol."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
        raise TimeoutError(method)

    def _next(self, end: float) -> dict[str, Any]:
        """Message that comes next; events are kept."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._received += data
        first, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._keep(message)
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.messages.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.messages.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self._requests.append((params.get("loaderId", ""), params["request"]["url"]))
        elif method == "Page.frameNavigated" and "parentId" not in params["frame"]:
            # late messages of the previous page are not this page's
            self.messages.clear()
            self._requests = [each for each in self._requests if each[0] == params["frame"]["loaderId"]]

    # What a person does

    def open(self, path: Path, condition: str = "true") -> float:
        """Show a file; seconds until the condition holds and nothing is left to do."""
        began = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(f"document.readyState === 'complete' && ({condition})")
        self.evaluate("new Promise((done) => requestIdleCallback(() => done(1)))")
        return time.monotonic() - began

    def evaluate(self, expression: str) -> Any:
        """Value of an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition holds in the page."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} does not come true; {self.messages}"
            time.sleep(0.02)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Have the system prefer "dark" or "light"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, on: bool) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, begin: tuple[float, float], end: tuple[float, float], steps: int = 60) -> list[float]:
        """Drag from here to there; milliseconds between the frames that are drawn meanwhile."""
        (x, y), (far_x, far_y) = begin, end
        self.evaluate(
            "window.frames_ = []; { let last = performance.now(); const next = (now) => { if (!window.frames_) return;"
            " frames_.push(now - last); last = now; requestAnimationFrame(next); }; requestAnimationFrame(next); }"
        )
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for step in range(1, steps + 1):
            share = step / steps
            where = x + share * (far_x - x), y + share * (far_y - y)
            self.mouse("mouseMoved", *where, button="left", buttons=1)
        self.mouse("mouseReleased", far_x, far_y, button="left", clickCount=1)
        frames: list[float] = self.evaluate("frames_.slice(2)")
        self.evaluate("delete window.frames_")
        return frames

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is in the window, after it was brought there."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
        place: dict[str, float] = self.evaluate(f"{element}.getBoundingClientRect().toJSON()")
        return place

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def picture(self, path: Path | None = None, clip: dict[str, float] | None = None, whole: bool = False) -> bytes:
        """PNG of what is seen, or of a part of it."""
        more: dict[str, Any] = {}
        if clip:  # which is counted from the beginning of the page
            y = clip["y"] + self.evaluate("scrollY")
            more["clip"] = {"x": clip["x"], "y": y, "width": clip["width"], "height": clip["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **more)
        data = base64.b64decode(answer["data"])
        if path is not None:
            path.write_bytes(data)
        return data

    def pdf(self) -> bytes:
        """What is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])
