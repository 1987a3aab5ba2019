"""Samples that the scheduler took itself, as tables: the log has only each worker's changes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.log.kinds import LEFT, NO_SIZE, NO_STRING, SAMPLING, USAGE, WORKER_STATE_FIELDS
from roastcoffea.log.layout import Layout, Texts
from roastcoffea.records.arrow import table_of_columns
from roastcoffea.records.workers import SAMPLING_COLUMNS, WORKER_STATE_COLUMNS

MOST_STATES: Final = 2_000_000
"""Most rows of the table of workers; beyond it, the table has only every second or third sample, and so on."""


class SamplingLog:
    """Samples of the scheduler."""

    def __init__(self, texts: Texts) -> None:
        self.readers = {SAMPLING: self._take, USAGE: self._take_usage}
        self.problems: list[str] = []
        self._texts = texts
        self._layout = Layout(SAMPLING.fields, texts)
        self._usage = Layout(USAGE.fields, texts)
        self._used = bytearray()
        self._used_in: list[int] = []
        self._states = Layout(WORKER_STATE_FIELDS, texts)
        self._samples = bytearray()
        self._rows = bytearray()
        self._counts: list[int] = []

    def _take(self, payload: bytes) -> None:
        time, *_ = self._layout.values(payload)
        if not math.isfinite(time):
            raise ValueError("it has no time")
        fixed, rows = payload[: self._layout.size], payload[self._layout.size :]
        found = np.frombuffer(rows, self._states.dtype)
        self._states.check(found)
        if (found["worker"] == NO_STRING).any():
            raise LookupError("it has no worker")
        self._samples += fixed
        self._rows += rows
        self._counts.append(len(found))

    def _take_usage(self, payload: bytes) -> None:
        """What the scheduler used until a sample follows the sample."""
        loop_cpu, _, process_cpu, _ = self._usage.values(payload)
        if not math.isfinite(loop_cpu + process_cpu):
            raise ValueError("it has no CPU time")
        if len(self._used_in) >= len(self._counts):
            raise LookupError("its sample could not be read")
        self._used += payload[: self._usage.size]
        self._used_in.append(len(self._counts) - 1)

    def sampling(self, offset: float) -> pa.Table:
        """Samples in order; `offset` is the scheduler's clock minus the client's."""
        samples = self._layout.rows(self._samples)
        columns = {
            "time": samples["time"] - offset,
            "workers": samples["workers"].astype(np.int64),
            "late_seconds": samples["late"].astype(np.float64),
            "missed": samples["missed"].astype(np.int64),
            **self._used_so_far(),
        }
        return table_of_columns(SAMPLING_COLUMNS, columns)

    def _used_so_far(self) -> dict[str, pa.Array]:
        """What the scheduler used until each sample, if known."""
        used = np.zeros(len(self._counts), self._usage.dtype)
        for name, code in USAGE.fields:
            used[name] = np.nan if code == "d" else NO_SIZE
        used[self._used_in] = self._usage.rows(self._used)
        numbers = {
            f"{name}_seconds": pa.array(used[name], from_pandas=True) for name, code in USAGE.fields if code == "d"
        }
        return numbers | {"transitions": pa.array(used["transitions"], mask=used["transitions"] == NO_SIZE)}

    def states(self, offset: float) -> pa.Table:
        """Each worker in each sample, in order of time."""
        samples, rows = self._layout.rows(self._samples), self._states.rows(self._rows)
        first = np.repeat(np.arange(len(samples)), self._counts)
        order = np.lexsort((first, rows["worker"]))
        rows, first = rows[order], first[order]
        # a row holds until the next one of its worker, or until a sample that lists all present workers
        whole = np.append(np.flatnonzero(samples["whole"]), len(samples))
        end = whole[np.searchsorted(whole, first, side="right")]
        same = rows["worker"][1:] == rows["worker"][:-1]
        end[:-1][same] = np.minimum(end[:-1], first[1:])[same]
        here = rows["processing"] != LEFT
        rows, first, end = rows[here], first[here], end[here]
        every = self._thinned(int((end - first).sum()))
        first, end = -(-first // every), -(-end // every)
        row, sample = _expanded(first, end - first)
        order = np.argsort(sample, kind="stable")
        place, kinds = row[order], {"processing": np.int64, "nbytes": np.int64, "occupancy": np.float64}
        columns = {
            "worker": self._texts.column(rows["worker"][place]),
            "time": samples["time"][every * sample[order]] - offset,
            **{name: rows[name].astype(kind)[place] for name, kind in kinds.items()},
        }
        return table_of_columns(WORKER_STATE_COLUMNS, columns)

    def _thinned(self, rows: int) -> int:
        """Every how many samples are in the table, to limit its size."""
        every = max(-(-rows // MOST_STATES), 1)
        self.problems = [f"worker states have one of {every} samples: all would be {rows} rows"] if every > 1 else []
        return every


Indices = npt.NDArray[np.int64]


def _expanded(first: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """Numbers of the row and the sample, for this many samples from each row's first one."""
    row = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, first[row] + within
