"""Energy that processors count themselves (RAPL), where a worker may read it; on most systems only root may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

POWERCAP: Final = Path("/sys/class/powercap")
PACKAGES: Final = "intel-rapl:[0-9]*"
METRIC: Final = "roastcoffea-energy"
"""Name of the worker metric: joules of all processor packages of the host since the worker's preload began."""

MICROJOULES: Final = 1e-6


class PackageEnergy:
    """Joules of a host's processor packages since this was made.

    Raises
    ------
    OSError
        There are no such counters, or they may not be read.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # those with a second colon are parts of a package
        self._domains = [path for path in sorted(root.glob(PACKAGES)) if path.name.count(":") == 1]
        if not self._domains:
            raise FileNotFoundError(f"{root} has no counters of processor packages")
        self._ranges = [_number(path / "max_energy_range_uj") for path in self._domains]
        self._last = self._read()
        self._joules = 0.0

    def joules(self, _worker: Any = None) -> float:
        """Joules so far; it is to be asked for before a counter wraps twice, which takes minutes."""
        now = self._read()
        for before, after, most in zip(self._last, now, self._ranges, strict=True):
            grown = after - before
            self._joules += MICROJOULES * (grown if grown >= 0 else grown + most)
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        return [_number(path / "energy_uj") for path in self._domains]


class HostEnergy:
    """Joules of all hosts whose workers report them; workers of one host report the same counters."""

    def __init__(self) -> None:
        self.joules: float | None = None
        self.hosts = 0
        self._last: dict[str, float] = {}

    def take(self, workers: Mapping[str, Any]) -> None:
        """Add what the hosts used since the last time."""
        grown: dict[str, float] = {}
        last = {}
        for address, worker in workers.items():
            joules = worker.metrics.get(METRIC)
            if joules is not None:
                last[address] = joules
                more = joules - self._last.get(address, 0.0)
                grown[worker.host] = max(grown.get(worker.host, 0.0), more)
        self._last, self.hosts = last, len(grown)
        if grown:
            self.joules = (self.joules or 0.0) + sum(grown.values())


def _number(file: Path) -> int:
    return int(file.read_text())


def hosts_of(workers: Iterable[Any]) -> int:
    """Number of hosts of workers."""
    return len({worker.host for worker in workers})
