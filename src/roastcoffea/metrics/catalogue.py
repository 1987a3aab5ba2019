"""The catalogue of metrics: one function per metric, with its inputs as parameters."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, SupportsIndex, TypeVar

from roastcoffea.errors import RoastcoffeaError
from roastcoffea.units import Unit

THROUGHPUT: Final = "throughput"
BYTES: Final = "bytes"
EVENTS: Final = "events"
RESOURCES: Final = "resources"
TIMING: Final = "timing"
TIME: Final = "time"
CENTRAL: Final = "scheduler and client"
FINE: Final = "fine metrics"
CHUNKS: Final = "chunks"
PHASES: Final = "phases"
RAW: Final = "raw"
GROUPS: Final = (THROUGHPUT, BYTES, EVENTS, RESOURCES, TIMING, TIME, CENTRAL, FINE, CHUNKS, PHASES, RAW)

RUN: Final = "run"
"""The one input that every catalogue starts with: the run itself."""

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class NotMeasuredError(RoastcoffeaError):
    """A value that this run cannot provide; the text is the reason shown to the user."""


def refuse_if(lacking: object, reason: str) -> None:
    """Raise NotMeasuredError with this reason if something is missing."""
    if lacking:
        raise NotMeasuredError(reason)


class Sourced(NamedTuple):
    """Value of a metric with its source in this run, if sources vary."""

    value: Any
    source: str


class Needs(NamedTuple):
    """Inputs of a function, and which of them are optional."""

    inputs: tuple[str, ...]
    optional: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any], first: int = 0) -> Self:
        """Inputs named by a function's parameters; a default of None makes one optional."""
        parameters = list(inspect.signature(function).parameters.values())[first:]
        optional = frozenset(parameter.name for parameter in parameters if parameter.default is None)
        return cls(tuple(parameter.name for parameter in parameters), optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A quantity computed from a run as an input of metrics.

    A missing input named in `optional` becomes None. One that is `kept` is a table that users can look at.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    kept: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], inputs: tuple[str, ...] | None = None, **described: Any) -> Self:
        """Entry of a function whose parameters name its inputs, if these are not given; a default of None makes one
        optional."""
        needs = Needs.of(function)
        described.setdefault("name", getattr(function, "__name__", ""))
        return cls(function=function, inputs=inputs or needs.inputs, optional=needs.optional, **described)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # a decorated function is not found by its name: an entry of the catalogue is found there
        if CATALOGUE.entries.get(self.name) is self:
            return _entry, (self.name,)
        return super(Fact, self).__reduce_ex__(protocol)

    @property
    def on_request(self) -> bool:
        """Whether it is one of the raw structures, which are large and built only when their value is requested."""
        return getattr(self, "group", None) == RAW


def _entry(name: str) -> Fact:
    """Entry of the catalogue, as pickles name it."""
    return CATALOGUE.entries[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Fact):
    """A number (a structure in group "raw") that users look up by name.

    `label` and `statistic` place it in tables: metrics of one group and label that differ in their statistic ("mean",
    "min", ...) share a row.
    """

    unit: Unit
    group: str
    source: str
    meaning: str
    label: str
    statistic: str | None = None
    alias: str | None = None
    written_formula: str | None = None
    kept: bool = True

    @property
    def formula(self) -> str:
        """How it is computed: the text in the catalogue, otherwise the function's own arithmetic."""
        return self.written_formula or returned_expression(self.function)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Facts and metrics in an order in which they can be computed.

    Inputs are defined before they are used, which rules out unknown names and cycles. `given` names and the entries of
    the catalogue `below` are available from the start; names below are not redefined.
    """

    entries: dict[str, Fact] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = (RUN,)
    below: Catalogue | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.given or name in self.entries or (self.below is not None and name in self.below)

    def add(self, entry: Fact) -> None:
        """Add a fact or a metric.

        Raises
        ------
        ValueError
            If its name is taken, its group is not in GROUPS, or an input is not in the catalogue yet.
        """
        alias = entry.alias if isinstance(entry, Metric) else None
        for name in filter(None, (entry.name, alias)):
            if name in self or name in self.aliases:
                raise ValueError(f"{name} is already in the catalogue")
        unknown = [name for name in entry.inputs if name not in self]
        if unknown:
            raise ValueError(f"{entry.name} needs {', '.join(unknown)}, which the catalogue does not have yet")
        if isinstance(entry, Metric) and entry.group not in GROUPS:
            raise ValueError(f"{entry.name} has group {entry.group!r}; choose one of {GROUPS}")
        self.entries[entry.name] = entry
        if alias:
            self.aliases[alias] = entry.name

    def metrics(self) -> Iterator[Metric]:
        """Metrics by group, in the order of GROUPS."""
        metrics = [entry for entry in self._all().values() if isinstance(entry, Metric)]
        return iter(sorted(metrics, key=lambda metric: GROUPS.index(metric.group)))

    def tables(self) -> list[str]:
        """Names of facts kept as tables for users."""
        return [name for name, entry in self._all().items() if entry.kept and not isinstance(entry, Metric)]

    def _all(self) -> dict[str, Fact]:
        """Entries, including those below that this catalogue does not override."""
        return ({} if self.below is None else self.below._all()) | self.entries


CATALOGUE: Final = Catalogue()


def fact(function: AnyFunction) -> AnyFunction:
    """Decorate a function as a fact; it remains an ordinary function."""
    CATALOGUE.add(Fact.of(function))
    return function


def table(function: AnyFunction) -> AnyFunction:
    """Decorate a function as a fact that users can look at as a table; it remains an ordinary function."""
    CATALOGUE.add(Fact.of(function, kept=True))
    return function


def metric(
    unit: Unit,
    label: str | None = None,
    formula: str | None = None,
    *,
    name: str | None = None,
    meaning: str | None = None,
    catalogue: Catalogue = CATALOGUE,
    **described: Any,
) -> Callable[[AnyFunction], AnyFunction]:
    """Decorate a function as a metric; it remains an ordinary function.

    Its docstring is the metric's meaning. A parameter with default None is an optional input.

    Parameters
    ----------
    label
        Name in tables; by default the name with spaces.
    formula
        Required if the function is more than arithmetic on its inputs.
    name, meaning
        Override the function's own if one function serves several metrics.
    **described
        `group`, `source`, `alias` and `statistic`; `inputs` where the function's parameters do not name them.
    """

    def register(function: AnyFunction) -> AnyFunction:
        own = name or function.__name__
        described.setdefault("meaning", meaning or inspect.cleandoc(function.__doc__ or ""))
        described.setdefault("label", label or own.replace("_", " "))
        catalogue.add(Metric.of(function, name=own, unit=unit, written_formula=formula, **described))
        return function

    return register


def returned_expression(function: Callable[..., Any]) -> str:
    """Source text of a function's return expression, from its last statement."""
    last = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body[-1]  # type: ignore[attr-defined]
    return ast.unparse(last.value)
