"""The metric catalogue: one function for each metric, with parameters named after its inputs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypeVar

from roastcoffea.errors import RoastcoffeaError
from roastcoffea.units import Unit

if TYPE_CHECKING:
    from typing_extensions import Self

THROUGHPUT: Final = "throughput"
BYTES: Final = "bytes"
WRITING: Final = "writing"
EVENTS: Final = "events"
RESOURCES: Final = "resources"
TIMING: Final = "timing"
TIME: Final = "time"
CENTRAL: Final = "scheduler and client"
FINE: Final = "fine metrics"
CHUNKS: Final = "chunks"
PHASES: Final = "phases"
RAW: Final = "raw"
GROUPS: Final = (THROUGHPUT, BYTES, WRITING, EVENTS, RESOURCES, TIMING, TIME, CENTRAL, FINE, CHUNKS, PHASES, RAW)

RUN: Final = "run"

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class NotMeasuredError(RoastcoffeaError):
    """Raised if a run cannot provide a value. The message is the reason shown to the user."""


def refuse_if(lacking: object, reason: str) -> None:
    if lacking:
        raise NotMeasuredError(reason)


class Sourced(NamedTuple):
    """A metric's value and its source, for metrics whose source varies from run to run."""

    value: Any
    source: str


class Needs(NamedTuple):
    inputs: tuple[str, ...]
    optional: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any], first: int = 0) -> Self:
        """Use a function's parameters as its inputs. A parameter that defaults to None is an optional input."""
        parameters = list(inspect.signature(function).parameters.values())[first:]
        optional = frozenset(parameter.name for parameter in parameters if parameter.default is None)
        return cls(tuple(parameter.name for parameter in parameters), optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A quantity that is computed from a run and used to compute metrics.

    If an optional input is missing, the function receives None. If `kept` is true, users can view the fact as a table.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    kept: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], inputs: tuple[str, ...] | None = None, **described: Any) -> Self:
        needs = Needs.of(function)
        described.setdefault("name", getattr(function, "__name__", ""))
        return cls(function=function, inputs=inputs or needs.inputs, optional=needs.optional, **described)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # pickle cannot look up a decorated function by name, but it can look up the catalogue entry
        if CATALOGUE.entries.get(self.name) is self:
            return _entry, (self.name,)
        return super(Fact, self).__reduce_ex__(protocol)

    @property
    def on_request(self) -> bool:
        """Whether the entry is a raw structure. Raw structures are large and are built only on request."""
        return getattr(self, "group", None) == RAW


def _entry(name: str) -> Fact:
    return CATALOGUE.entries[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Fact):
    """A number, string or structure that users can look up by name.

    In tables, metrics that have the same group and label but different statistics (such as "mean" and "min") share a
    row.
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
        """The formula given in the catalogue or, if there is none, the expression that the function returns."""
        return self.written_formula or returned_expression(self.function)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Facts and metrics, ordered so that each can be computed from earlier entries.

    An entry can be added only after its inputs, so unknown names and cycles cannot occur. The names in `given` and the
    entries of the catalogue `below` are always available and cannot be redefined.
    """

    entries: dict[str, Fact] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = (RUN,)
    below: Catalogue | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.given or name in self.entries or (self.below is not None and name in self.below)

    def add(self, entry: Fact) -> None:
        alias = entry.alias if isinstance(entry, Metric) else None
        for name in filter(None, (entry.name, alias)):
            if name in self or name in self.aliases:
                raise ValueError(f"{name} is already in the catalogue")
        unknown = [name for name in entry.inputs if name not in self]
        if unknown:
            raise ValueError(f"{entry.name} needs inputs that are not in the catalogue yet: {', '.join(unknown)}")
        if isinstance(entry, Metric) and entry.group not in GROUPS:
            raise ValueError(f"{entry.name} has group {entry.group!r}; choose one of {GROUPS}")
        self.entries[entry.name] = entry
        if alias:
            self.aliases[alias] = entry.name

    def metrics(self) -> Iterator[Metric]:
        metrics = [entry for entry in self._all().values() if isinstance(entry, Metric)]
        return iter(sorted(metrics, key=lambda metric: GROUPS.index(metric.group)))

    def tables(self) -> list[str]:
        return [name for name, entry in self._all().items() if entry.kept and not isinstance(entry, Metric)]

    def _all(self) -> dict[str, Fact]:
        return ({} if self.below is None else self.below._all()) | self.entries


CATALOGUE: Final = Catalogue()


def fact(function: AnyFunction) -> AnyFunction:
    CATALOGUE.add(Fact.of(function))
    return function


def table(function: AnyFunction) -> AnyFunction:
    """Register a function as a fact that users can view as a table."""
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
    """Register a function as a metric.

    The function's docstring describes the metric. A parameter that defaults to None is an optional input.

    Parameters
    ----------
    label
        Label in tables. The default is the name, with spaces instead of underscores.
    formula
        How the metric is computed. Required if the function does more than arithmetic on its inputs.
    name, meaning
        Name and description of the metric, if the function is used for several metrics.
    **described
        The fields `group`, `source`, `alias` and `statistic` of `Metric`, and `inputs` if they differ from the
        function's parameters.
    """

    def register(function: AnyFunction) -> AnyFunction:
        own = name or function.__name__
        described.setdefault("meaning", meaning or inspect.cleandoc(function.__doc__ or ""))
        described.setdefault("label", label or own.replace("_", " "))
        catalogue.add(Metric.of(function, name=own, unit=unit, written_formula=formula, **described))
        return function

    return register


def returned_expression(function: Callable[..., Any]) -> str:
    last = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body[-1]  # type: ignore[attr-defined]
    return ast.unparse(last.value)
