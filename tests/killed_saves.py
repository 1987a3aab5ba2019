"""A process that saves measurements in children of its own, some of which kill themselves at a step of saving.

It has no threads, so that it may fork, and imports once what each child needs. A line of JSON asks for some children at
a time, and is answered by a line with their exit statuses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import PATIENCE

from roastcoffea.records.run import FINISHED, Environment, Run
from roastcoffea.storage.store import save_run

START = 1772409598.25


def minimal_run(**changes: Any) -> Run:
    """A run that has nothing that it may lack."""
    fields: dict[str, Any] = {
        "id": "0",
        "name": None,
        "start": START,
        "stop": START,
        "outcome": FINISHED,
        "error": None,
        "backend": "dask",
        "environment": Environment(versions={}, client_host=None),
    }
    return Run(**fields | changes)


class Saver:
    """Asks such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def save(
        self,
        folder: Path,
        *,
        children: int = 1,
        times: int = 1,
        overwrite: bool,
        steps: int = -1,
    ) -> list[int]:
        """Exit statuses of children that save so many times, and are killed before a step of it if that is no -1."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"folder": str(folder), "times": times, "overwrite": overwrite}
        print(json.dumps(question | {"children": children, "steps": steps}), file=self._process.stdin, flush=True)
        return [int(status) for status in json.loads(self._process.stdout.readline())]


@contextmanager
def started() -> Iterator[Saver]:
    """Such a process while the block runs."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Saver(process)
        process.communicate(timeout=PATIENCE)


def dying(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The function, which kills the process where no step is left."""

    def called(*arguments: Any, **settings: Any) -> Any:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return function(*arguments, **settings)

    return called


def save(folder: str, times: int, overwrite: bool, steps: int) -> None:
    left = [steps]
    Path.rename = dying(Path.rename, left)  # type: ignore[method-assign]
    Path.rmdir = dying(Path.rmdir, left)  # type: ignore[method-assign]
    for _ in range(times):
        save_run(minimal_run(id="new"), folder, "saved", overwrite=overwrite, metrics_json=lambda: b"{}")


def forked(**what: Any) -> int:
    """Process number of a child that saves."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            save(**what)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> None:
    for line in sys.stdin:
        what = json.loads(line)
        children = [forked(**what) for _ in range(what.pop("children"))]
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], flush=True)


if __name__ == "__main__":
    main()
