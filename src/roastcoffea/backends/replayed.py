"""Recorders whose records come from a journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.backends.local_journal import PROCESSES, remember
from roastcoffea.backends.logged import LoggedCluster
from roastcoffea.backends.recorder import Recorder

NOT_ASKED: Final = "the client was lost before it asked for them"


class _Replayed(Recorder):
    """A recorder that records nothing itself."""

    def open(self, interval: float | None, span: str | None = None) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to stop."""

    def reaches(self, executor: Any) -> bool:  # noqa: ARG002  (it records nothing)
        return False


class ReplayedCluster(_Replayed, LoggedCluster):
    """A Dask cluster from a journal."""

    def _reset(self) -> None:
        super()._reset()
        self.absent["span_metrics"] = NOT_ASKED


class ReplayedProcesses(_Replayed, LocalMetricsBackend):
    """Processes of one host from a journal."""

    def take(self, kind: str, data: bytes) -> None:
        if kind == PROCESSES:
            remember(json.loads(data), self.processes.seen, self._steps)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        super().learn(facts)
        if "process" in facts:  # else they are of a backend of the user's
            self._host, self._process = facts["host"], facts["process"]
            self._cpu_at_open, self._job = facts["cpu_at_open"], facts["job"]
            self._withheld = tuple(facts["withheld"])


def replayed(kind: str) -> Recorder:
    """A recorder that takes the entries of a journal, of a backend of this kind."""
    if kind == ReplayedCluster.kind:
        return ReplayedCluster()
    recorder = ReplayedProcesses()
    recorder.kind = kind
    return recorder
