"""Calls that concern files in a folder, one of which fails, for `every_fault.py`."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

ERRORS: Final = {
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EACCES,
    "replace": errno.EACCES,
    "mkdir": errno.ENOSPC,
    "open": errno.EMFILE,
    "utime": errno.EPERM,
    "ftruncate": errno.EIO,
}
"""What functions of `os` fail with."""


class Fault(NamedTuple):
    """The call that fails, counted from 0 among all calls or those of one name."""

    number: int
    late: bool = False
    """Whether a write fails after half of its bytes, and a message after it has arrived."""
    call: str | None = None

    def __str__(self) -> str:
        return f"{self.call or ''} {self.number}{', late' * self.late}".strip()


class Faults:
    """Counts calls that concern files in a folder, and lets one of them fail."""

    def __init__(self, folder: Path, fault: Fault) -> None:
        self.folder, self.late = str(folder), fault.late
        self.fault = fault
        self.calls: list[str] = []
        self.lock = threading.Lock()
        self.original = {name: getattr(os, name) for name in (*ERRORS, "fdopen")}

    def concerns(self, place: Any) -> bool:
        if isinstance(place, int):
            with suppress(OSError):
                place = Path(f"/proc/self/fd/{place}").readlink()
        return isinstance(place, str | os.PathLike) and os.path.abspath(place).startswith(self.folder)  # noqa: PTH100

    def due(self, name: str) -> bool:
        """Whether this call is to fail."""
        with self.lock:
            self.calls.append(name)
            counted = len(self.calls) if self.fault.call is None else self.calls.count(name)
            return self.fault.call in (None, name) and counted == self.fault.number + 1

    def failing(self, name: str) -> Callable[..., Any]:
        original = self.original[name]

        def call(place: Any, *args: Any, **kwargs: Any) -> Any:
            # opening a file to read it is not a fault that a disk has when it is full
            counts = name != "open" or bool(args and args[0] & os.O_CREAT)
            if not (counts and self.concerns(place) and self.due(name)):
                return original(place, *args, **kwargs)
            if name == "write" and self.late:
                return original(place, bytes(args[0])[: max(len(args[0]) // 2, 1)])
            raise OSError(ERRORS[name], f"planted in {name}", os.fspath(place) if not isinstance(place, int) else None)

        return call

    def fdopen(self, descriptor: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" not in mode or not self.concerns(descriptor):
            return self.original["fdopen"](descriptor, mode, *args, **kwargs)
        return io.BufferedWriter(Raw(descriptor, self))

    @contextmanager
    def planted(self) -> Iterator[None]:
        changed = {name: self.failing(name) for name in ERRORS} | {"fdopen": self.fdopen}
        for name, each in changed.items():
            setattr(os, name, each)
        try:
            yield
        finally:
            for name, each in self.original.items():
                setattr(os, name, each)


class Raw(io.FileIO):
    """A file of which one write fails."""

    def __init__(self, descriptor: int, faults: Faults) -> None:
        super().__init__(descriptor, "wb")
        self.faults = faults

    def write(self, data: Any) -> int:
        if not self.faults.due("write"):
            return super().write(data)
        if self.faults.late:
            return super().write(bytes(data)[: max(len(data) // 2, 1)])
        raise OSError(errno.ENOSPC, "planted in write")
