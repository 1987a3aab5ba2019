"""Duet: two versions of a processor on the same chunks, with the change in CPU time, wall time, bytes and memory."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from math import ceil, inf, isfinite, sqrt
from numbers import Number, Real
from operator import itemgetter
from typing import Any, Final, NamedTuple

import cloudpickle
import numpy as np
import pandas as pd
from scipy.stats import t as students_t

import roastcoffea
from roastcoffea.backends.worker import importable_package
from roastcoffea.generations import captured_error, output_of, own_client, runner_and_executor
from roastcoffea.instrument.calls import Watchers, here, name_of_processor
from roastcoffea.instrument.duet import PAIRS, Turns, Versions
from roastcoffea.instrument.shared import portable
from roastcoffea.log.byvalue import is_registered, packed_by_value
from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.statistics import Flags, Integers, Numbers
from roastcoffea.sheets.sheet import Amount, Cell, Heading, Sheet, columns
from roastcoffea.studies.observations import signed
from roastcoffea.studies.plan import chunks_of
from roastcoffea.studies.what_if import Paged
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, Unit, counted, duration, rough, suffixed

CONFIDENCE: Final = 0.99
"""Confidence level of the intervals; of equal versions, 1 % seem to differ."""

TRIMMED: Final = 0.2
"""Share of the pairs ignored at each end, because other programs disturb some of them."""

LEAST: Final = 10
"""Number of pairs in each order below which a dataset's pairs are combined with those of other datasets."""

LEAST_MEMORY: Final = 1_000_000
"""Memory growth in bytes below which the allocator's own pages decide."""

MOST: Final = 100
"""Maximum number of differences between outputs that are listed."""

METRICS: Final[Mapping[str, tuple[str, Unit]]] = {
    "cpu": ("CPU time", SECOND),
    "wall": ("wall time", SECOND),
    "bytes": ("bytes read", BYTE),
    "memory": ("memory growth", BYTE),
}


class Change(NamedTuple):
    """Trimmed mean per chunk of each version, and the change from A to B.

    Changes are relative to A. `low` and `high` limit the 99 % interval. `detectable` is the smallest change
    that as many pairs with this scatter would show with 90 % probability.
    """

    a: float
    b: float
    change: float
    low: float
    high: float
    detectable: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def _percent(share: float) -> str:
    return signed(Unit("%", suffixed("%", 100)), round(share, 4)) if isfinite(share) else "unlimited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duet(Paged):
    """Result of `duet`.

    `pairs` has a row for each chunk and pass: `a` and `b` map metrics to what each version used in process(), `first`
    is the version that ran first, and `warm` says whether the process had finished a chunk before. Only warm pairs
    count. `changes` maps metrics to changes, and `missing` to the reason if there is none. `differences` lists where
    the outputs differ.
    """

    names: Sequence[str]
    seconds: float
    pairs: list[dict[str, Any]]
    changes: dict[str, Change]
    differences: list[str]
    missing: dict[str, str]

    @property
    def verdict(self) -> str:
        """Whether B uses more or less CPU time than A."""
        one = self.changes.get("cpu")
        if one is None:
            return f"No verdict on CPU: {self.missing['cpu']}."
        if one.is_clear:
            size = [rough(abs(share), FRACTION) for share in (one.change, *sorted((one.low, one.high), key=abs))]
            more = "more" if one.change > 0 else "less"
            return f"B uses {size[0]} {more} CPU than A (99 % interval: {size[1]} to {size[2]})."
        least = rough(one.detectable, FRACTION) if isfinite(one.detectable) else "any size"
        return f"No difference in CPU found; a difference of {least} or more would have been found with 90 % power."

    def sheets(self) -> list[Sheet]:
        """The verdict, the changes in all metrics, and where the outputs differ."""
        many = len(self.differences)
        title = f"The outputs differ in {'at least ' * (many == MOST)}{counted(many, 'place')}"
        items = [*self.differences[:10], *[f"and {many - 10} more"] * (many > 10)]
        return [self._heading(), self._table(), *[Sheet(title=title, items=items)] * (many > 0)]

    def _heading(self) -> Heading:
        warm = sum(row["warm"] for row in self.pairs)
        lead = [f"{counted(warm, 'pair')} of chunks in {duration(self.seconds)}", self.verdict]
        lead.append("The outputs differ." if self.differences else "The outputs are equal.")
        return Heading(label="duet", title=f"A: {self.names[0]}, B: {self.names[1]}", lead=lead)

    def _table(self) -> Sheet:
        rows: list[tuple[Cell, ...]] = []
        for name, (label, unit) in METRICS.items():
            if (one := self.changes.get(name)) is not None:
                change, low, high = map(_percent, (one.change, one.low, one.high))
                rows.append((label, Amount(one.a, unit), Amount(one.b, unit), change, f"{low} to {high}"))
        return Sheet(
            title="In process(), trimmed mean per chunk",
            columns=columns(None, "") + columns(COUNT, "A", "B", "B - A", "99 % interval"),
            rows=rows,
            notes=["The change is the mean of the pairs' relative differences: disturbed pairs affect A and B more."]
            + [f"{METRICS[name][0].capitalize()} not compared: {reason}." for name, reason in self.missing.items()],
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain types."""
        changes = {name: one._asdict() for name, one in self.changes.items()}
        return {"format": "roastcoffea duet 1"} | asdict(self) | {"changes": changes, "verdict": self.verdict}


def duet(a: Any, b: Any, runner: Any, fileset: Any, *, minutes: float = 10.0, **options: Any) -> Duet:
    """Compare two versions of a processor on the same chunks within one run.

    Each chunk is processed by both versions, one right after the other on the same worker and in random order. Each of
    them opens the file anew. Chunks are drawn in random order until the time is over; a smaller fileset is processed
    repeatedly. The outputs of both versions are compared. Checkpoints are neither loaded nor saved.

    Parameters
    ----------
    a, b
        The versions; A is the one that B is compared with.
    runner
        A coffea Runner.
    fileset
        A fileset or chunks, as for the Runner.
    minutes
        Time for processing chunks. Chunks in progress are completed.
    options
        Keyword arguments for the Runner call, such as `treename`.

    Raises
    ------
    NotMeasuredError
        If no pair of chunks was completed.
    ValueError
        If `minutes` is not a positive number.

    Examples
    --------
    >>> found = duet(Before(), After(), runner, fileset, minutes=5, treename="Events")  # doctest: +SKIP
    >>> found.print()  # doctest: +SKIP
    >>> found.changes["cpu"].change  # doctest: +SKIP
    0.021
    """
    if not isinstance(minutes, Real) or not 0 < minutes < inf:
        raise ValueError(f"minutes is {minutes!r}; pass a number above 0")
    one = copy.copy(runner)
    if getattr(one, "checkpointer", None) is not None:
        one.checkpointer = None
    pickled = [each if isinstance(each, bytes) else cloudpickle.dumps(each) for each in (a, b)]
    versions, pairs, found = Versions(pickled), list[dict[str, Any]](), list[str]()
    with ExitStack() as stack:
        token = here.set(Watchers())  # open collectors would count each chunk twice
        stack.callback(here.reset, token)
        stack.enter_context(own_client(one))
        items = chunks_of(one, fileset, {"processor_instance": versions} | options)
        refuse_if(not items, "the fileset has no chunks")
        packed = _code_for_workers(one.executor, stack)
        # a new pool of processes for each pass would take longer, but Dask has only one task for equal chunks
        items *= 1 if hasattr(one.executor, "client") else ceil(1000 / len(items))
        began = time.time()
        end = began + 60 * minutes
        while time.time() < end:
            turns = partial(Turns, deadline=end, number=len(pairs), packed=packed)
            one.executor = _in_turns(runner.executor, turns)
            result = one.run(random.SystemRandom().sample(items, len(items)), versions, **options)
            if (error := captured_error(result)) is not None:
                raise error
            output = output_of(result)["out"]
            pairs += output.get(PAIRS, [])
            if PAIRS in output and not found:
                found = list(islice(differences(output["a"], output["b"]), MOST))
    refuse_if(not pairs, f"no chunk was processed by both versions in {duration(60 * minutes)}")
    return result_of(
        [name_of_processor(cloudpickle.loads(each)) for each in pickled], pairs, found, time.time() - began
    )


def _code_for_workers(executor: Any, stack: ExitStack) -> bytes | None:
    """Pickle this package's code by value if Dask workers do not have this version of the package."""
    client: Any = getattr(executor, "client", None)
    if not hasattr(client, "run") or {*client.run(portable(importable_package)).values()} <= {roastcoffea.__version__}:
        return None
    if not is_registered():
        cloudpickle.register_pickle_by_value(roastcoffea)
        stack.callback(cloudpickle.unregister_pickle_by_value, roastcoffea)
    return packed_by_value(Turns)


def _in_turns(executor: Any, turns: Callable[..., Turns]) -> Any:
    """Copy of an executor that processes each chunk with both versions."""
    found = runner_and_executor()
    refuse_if(found is None or not isinstance(executor, found[1]), "a duet needs an executor from coffea")
    kind: Any = type(executor)

    def __call__(self: Any, items: Any, function: Any, accumulator: Any) -> Any:  # noqa: N807
        return kind.__call__(self, items, turns(function), accumulator)

    own = executor.copy()
    # the mark keeps our own hook from watching this executor
    own.__class__ = type(kind)(kind.__name__, (kind,), {"__call__": __call__, "__slots__": (), "_roastcoffea": True})
    return own


# The change


def result_of(names: Sequence[str], pairs: list[dict[str, Any]], found: list[str], seconds: float) -> Duet:
    """The result for the pairs of a duet; marks those after the first in each process as warm."""
    ready = {row["process"]: row["stop"] for row in sorted(pairs, key=itemgetter("stop"), reverse=True)}
    pairs = [row | {"warm": row["start"] >= ready[row["process"]]} for row in pairs]
    warm = [row for row in pairs if row["warm"]]
    missing = dict[str, str]()
    changes = {name: change for name in METRICS if (change := change_of_metric(warm, name, missing)) is not None}
    return Duet(names=names, seconds=seconds, pairs=pairs, changes=changes, differences=found, missing=missing)


def change_of_metric(pairs: Sequence[Mapping[str, Any]], name: str, missing: dict[str, str]) -> Change | None:
    """Change in a metric over warm pairs; without one, `missing` gets the reason."""
    known = [row for row in pairs if row["a"][name] is not None and row["b"][name] is not None]
    b_first = np.array([row["first"] == "b" for row in known], np.bool_)
    if pairs and not known:
        missing[name] = "not measured" + ", or threads share a process" * (name == "memory")
        return None
    if min(b_first.sum(), (~b_first).sum()) < 2:
        missing[name] = "fewer than two pairs in each order, after the first chunk in each process"
        return None
    a, b = (np.maximum(np.array([row[side][name] for row in known], np.float64), 0.0) for side in "ab")
    if name == "memory" and trimmed_mean(a)[0] + trimmed_mean(b)[0] < 2 * LEAST_MEMORY:
        missing[name] = f"less than {BYTE.text(LEAST_MEMORY)} per chunk"
        return None
    dataset = np.asarray(pd.factorize(np.array([row["dataset"] for row in known], object))[0])
    return change_of_pairs(a, b, b_first, dataset)


def change_of_pairs(a: Numbers, b: Numbers, b_first: Flags, dataset: Integers) -> Change:
    """Change from A to B.

    The difference of each pair is relative to its mean, so it is as large with A and B exchanged. The trimmed means of
    both orders are averaged, so what only the first or second version suffers cancels. Datasets count by their size.
    """
    mean = (a + b) / 2
    difference = np.divide(b - a, mean, out=np.zeros(len(a)), where=mean > 0)
    few = np.array([_are_few(b_first[dataset == one]) for one in range(dataset.max() + 1)])
    combined = few[dataset]
    combined |= combined.any() and _are_few(b_first[combined])
    group = np.where(combined, -1, dataset)
    value = variance = squares = 0.0
    for one in np.unique(group):
        weight = mean[group == one].sum() / (mean.sum() or 1.0) / 2
        for order in (b_first, ~b_first):
            middle, square, freedom = trimmed_mean(difference[(group == one) & order])
            value += weight * middle
            variance += weight**2 * square
            squares += (weight**2 * square) ** 2 / freedom
    freedoms = variance**2 / squares if squares else inf
    half, power = (float(students_t.ppf(share, freedoms)) * sqrt(variance) for share in ((1 + CONFIDENCE) / 2, 0.9))
    changes = map(_relative_to_a, (value, value - half, value + half, half + power))
    return Change(trimmed_mean(a)[0], trimmed_mean(b)[0], *changes)


def _are_few(b_first: Flags) -> bool:
    return bool(np.bincount(b_first, minlength=2).min() < LEAST)


def trimmed_mean(values: Numbers) -> tuple[float, float, int]:
    """Trimmed mean of at least two values, its squared standard error, and the degrees of freedom.

    The standard error is that of Yuen (1974): it follows from the variance of the winsorized values.
    """
    values, cut = np.sort(values), int(TRIMMED * len(values))
    kept = values[cut : len(values) - cut]
    squares = float(np.clip(values, kept[0], kept[-1]).var()) * len(values)
    return float(kept.mean()), squares / (len(kept) * (len(kept) - 1)), len(kept) - 1


def _relative_to_a(difference: float) -> float:
    """Convert a difference relative to the mean of A and B to one relative to A."""
    difference = max(round(float(difference), 12), -2.0)  # rounding errors are no change
    return 2 * difference / (2 - difference) if difference < 2 else inf


# The outputs


def differences(a: Any, b: Any, place: str = "output") -> Iterator[str]:
    """Yield where two outputs differ in type, keys or values. NaN equals NaN."""
    if type(a) is not type(b):
        yield f"{place}: {type(a).__name__} in A, {type(b).__name__} in B"
    elif isinstance(a, Mapping):
        for key in dict.fromkeys(chain(a, b)):
            if key in a and key in b:
                yield from differences(a[key], b[key], f"{place}[{key!r}]")
            else:
                yield f"{place}[{key!r}]: only in {'A' if key in a else 'B'}"
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            yield f"{place}: {counted(len(a), 'item')} in A, {len(b)} in B"
        for number, both in enumerate(zip(a, b, strict=False)):
            yield from differences(*both, f"{place}[{number}]")
    elif hasattr(a, "axes") and hasattr(a, "view"):  # a histogram
        views = [np.asarray(each.view(flow=True)) for each in (a, b)]
        yield from _of_arrays(views[0], views[1], place) if a.axes == b.axes else [f"{place}: other axes"]
    elif isinstance(a, np.ndarray | np.generic | Number):
        yield from _of_arrays(np.asarray(a), np.asarray(b), place)
    elif hasattr(a, "value"):  # one of coffea's accumulators
        yield from differences(a.value, b.value, place)
    elif not _are_equal(a, b):
        yield f"{place}: other values"


def _of_arrays(a: Any, b: Any, place: str) -> Iterator[str]:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield f"{place}: {a.dtype} of shape {a.shape} in A, {b.dtype} of shape {b.shape} in B"
        return
    for name in a.dtype.names or ():
        yield from _of_arrays(np.asarray(a[name]), np.asarray(b[name]), f"{place}.{name}")
    numeric, size = a.dtype.kind in "fiuc", ""
    other = np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)) if numeric else a != b)
    if a.dtype.names is None and other.any():
        if numeric and np.isfinite([a[other], b[other]]).all():
            x, y = (each[other].astype(complex) for each in (a, b))
            size = f", by up to {(abs(y - x) / np.maximum(abs(x), abs(y))).max():.2g} of the value"
        yield f"{place}: differs in {other.sum()} of {counted(other.size, 'value')}{size}"


def _are_equal(a: Any, b: Any) -> bool:
    """Whether two objects of the same type are equal: by their own comparison or their pickles."""
    import awkward

    same = awkward.array_equal(a, b, equal_nan=True) if isinstance(a, awkward.Array) else np.all(a == b)
    return bool(same) or cloudpickle.dumps(a) == cloudpickle.dumps(b)
