"""Two versions of a processor on the same chunk, in random order; runs on workers."""

from __future__ import annotations

import gc
import operator
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import cloudpickle
from coffea.processor import ProcessorABC

from roastcoffea.errors import MeasurementError
from roastcoffea.instrument.attempt import Attempt
from roastcoffea.instrument.channels import DaskTask, Packed
from roastcoffea.instrument.gauges import process_name
from roastcoffea.instrument.probe import inside_retries, with_attempt
from roastcoffea.instrument.shared import Action, Row

VERSIONS: Final = ("a", "b")
PAIRS: Final = "pairs"


class Versions(ProcessorABC):  # type: ignore[misc]
    """Both versions as a single processor, so that coffea sends them to the workers.

    Parameters
    ----------
    pickled
        The pickled versions, A before B. Each chunk gets new copies, as in a run of one version.
    """

    def __init__(self, pickled: Sequence[bytes]) -> None:
        self._pickled = dict(zip(VERSIONS, pickled, strict=True))

    def version(self, name: str) -> Any:
        """Load a version's function for chunks."""
        processor = cloudpickle.loads(self._pickled[name])
        return getattr(processor, "process", processor)

    def process(self, events: Any) -> Any:
        """Process events with both versions; coffea calls this only to trace columns."""
        return {name: self.version(name)(events) for name in VERSIONS}

    def postprocess(self, accumulator: Any) -> Any:
        for name in set(VERSIONS) & set(accumulator):
            process = getattr(cloudpickle.loads(self._pickled[name]), "postprocess", lambda output: output)
            output = process(accumulator[name])
            accumulator[name] = accumulator[name] if output is None else output  # as in coffea
        return accumulator


class _Turn(Attempt):
    """A version's attempt at a chunk."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._used: Row = {}
        super().__init__(DaskTask())

    def sampled(self, function: Any) -> Action:
        return partial(self._clocked, function.__self__.version(self._name))

    def _clocked(self, function: Action, events: Any) -> Any:
        gc.collect(1)  # otherwise, the second version would pay for the first one's garbage
        helpers, wall, cpu = self.meter.helper_cpu, time.perf_counter(), time.thread_time()
        try:
            return function(events)
        finally:
            self._used = {"cpu": time.thread_time() - cpu - helpers, "wall": time.perf_counter() - wall}

    def row(self) -> Row:
        """What the version used in process(); None if unknown."""
        record = self.end()
        if not self._used:
            raise MeasurementError(f"process() was not measured: {'; '.join(self.problems)}")
        requested, metadata, other = (record[f"bytes_{name}"] for name in ("requested", "metadata", "other"))
        before, peak = record["memory_before"], record["memory_peak"]
        return {
            "cpu": self._used["cpu"] + record["helper_cpu_seconds"],
            "wall": self._used["wall"],
            "bytes": None if None in (requested, metadata, other) else requested - metadata + other,
            # threads share the peak of their process
            "memory": None if None in (before, peak) or record["overlaps"] else peak - before,
        }


class Turns:
    """Replacement for coffea's function that processes each chunk with both versions.

    Each version opens the file and builds the events anew. The result's output maps the versions to their outputs, and
    contains what the versions used.

    Parameters
    ----------
    function
        Function that coffea passed to the executor.
    deadline
        Unix time after which chunks are not processed.
    number
        Number of the pass; for equal tasks, Dask could reuse the results of an earlier pass.
    packed
        This class, pickled by value, if workers do not have the package.
    """

    def __init__(self, function: Action, deadline: float, number: int, packed: bytes | None) -> None:
        self._function, self._deadline, self._number, self._packed = function, deadline, number, packed

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "roastcoffea-duet", self._deadline, self._number

    def __reduce__(self) -> tuple[Any, ...]:
        kind = Turns if self._packed is None else Packed(self._packed)
        return operator.call, (kind, self._function, self._deadline, self._number, self._packed)

    def __call__(self, item: Any) -> Any:
        if time.time() > self._deadline:
            return {"out": {}, "processed": set()}
        return inside_retries(self._function, lambda closure: partial(self._pair, closure))(item)

    def _pair(self, closure: Action, item: Any) -> Any:
        work = item[0] if isinstance(item, tuple) else item
        order = random.SystemRandom().sample(VERSIONS, 2)  # leaves the processors' own random numbers alone
        row: Row = {"dataset": str(work.dataset), "start": time.time(), "first": order[0]}
        results, outputs = dict[str, Any](), dict[str, Any]()
        for name in order:
            turn = _Turn(name)
            try:
                ours, measured = with_attempt(closure, item, turn)
                turn.cache_function = lambda: None  # the versions must not share arrays
                results[name] = turn.run_closure(measured, ours)
            except BaseException as error:
                turn.end(error)
                raise
            row[name], outputs[name] = turn.row(), results[name]["out"]
        row |= {"stop": time.time(), "process": process_name()}
        return results["a"] | {"out": outputs | {PAIRS: [row]}}
