"""The one lazy evaluator: an entry of a catalogue is computed when it is asked for, with what it needs alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.metrics.catalogue import Catalogue, Fact, Needs, NotMeasuredError, Sourced

RUNS_TESTS: Final = "PYTEST_CURRENT_TEST"
"""What pytest sets in the environment: there our own errors come out, so that tests find them."""


class Evaluator:
    """Values of a catalogue's entries, each computed once; threads may share it.

    Metrics and tables are kept. Other facts may be as large as the records: one is forgotten when all that is computed
    from it is known, and computed again where it is asked for later.
    """

    def __init__(self, catalogue: Catalogue, given: Mapping[str, Any], below: Evaluator | None = None) -> None:
        self.catalogue = catalogue
        self.problems: list[str] = [] if below is None else below.problems
        """Errors of ours that kept something from being computed."""
        self._below = below
        self._values = dict(given)
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._done: set[str] = set()
        self._users = catalogue.users()
        self._lock = RLock()

    def value(self, name: str) -> Any:
        """Value of an entry, or of an input that was given.

        Raises
        ------
        NotMeasuredError
            If it cannot be had; the text is the reason.
        """
        with self._lock:
            if name in self._reasons:
                raise NotMeasuredError(self._reasons[name])
            if name in self._values:
                return self._values[name]
            if self._below is not None and name not in self.catalogue.entries:
                return self._below.value(name)
            return self._compute(self.catalogue.entries[name])

    def reason(self, name: str) -> str | None:
        """Why an entry cannot be had, None where it can; one that is built on request is not built for that."""
        with self._lock:
            if name in self._reasons or name in self._values or name in self._done:
                return self._reasons.get(name)
            if self._below is not None and name not in self.catalogue.entries:
                return self._below.reason(name)
            entry = self.catalogue.entries[name]
            if entry.on_request:
                needed = (need for need in entry.inputs if need not in entry.optional)
                return next(filter(None, map(self.reason, needed)), None)
            try:
                self.value(name)
            except NotMeasuredError as error:
                return str(error)
            return None

    def source(self, name: str) -> str | None:
        """Where the value of a metric came from in this run, where that is not what the catalogue says."""
        if self._below is not None and name not in self.catalogue.entries:
            return self._below.source(name)
        return self._sources.get(name)

    def arguments(self, needs: Needs | Fact) -> list[Any]:
        """Inputs of a function, None for an optional one that cannot be had.

        Raises
        ------
        NotMeasuredError
            If another one cannot be had.
        """
        return [self._optional(name) if name in needs.optional else self.value(name) for name in needs.inputs]

    def _optional(self, name: str) -> Any:
        try:
            return self.value(name)
        except NotMeasuredError:
            return None

    def _compute(self, entry: Fact) -> Any:
        try:
            found = self._called(entry)
        except NotMeasuredError as error:
            self._reasons[entry.name] = str(error)
            self._settle(entry)
            raise
        if isinstance(found, Sourced):
            found, self._sources[entry.name] = found
        if entry.kept or self._is_needed(entry.name):
            self._values[entry.name] = found
        self._settle(entry)
        return found

    def _called(self, entry: Fact) -> Any:
        """What its function gives, where a division by zero or a number too large is a reason like others."""
        arguments = self.arguments(entry)
        with computing(entry.name, self.problems):
            try:
                return entry.function(*arguments)
            except OverflowError:
                raise NotMeasuredError("a number is too large") from None
            except ZeroDivisionError:
                zero = [name for name, value in zip(entry.inputs, arguments, strict=True) if value == 0]
                raise NotMeasuredError(f"{' and '.join(zero)} {'is' if len(zero) == 1 else 'are'} 0") from None

    def _settle(self, entry: Fact) -> None:
        """Forget inputs that this entry was the last to need."""
        self._done.add(entry.name)
        for name in entry.inputs:
            need = self.catalogue.entries.get(name)
            if need is not None and not need.kept and not self._is_needed(name):
                self._values.pop(name, None)

    def _is_needed(self, name: str) -> bool:
        """Whether something that is computed from it is not known yet."""
        return not self._users.get(name, set()) <= self._done


@contextmanager
def computing(what: str, problems: list[str]) -> Iterator[None]:
    """Turn an error of ours into the reason why something is missing, and note it: it takes nothing else away.

    Raises
    ------
    NotMeasuredError
        For any unexpected error of the block; under pytest that comes out as it is.
    """
    try:
        yield
    except NotMeasuredError:
        raise
    except Exception as error:
        if RUNS_TESTS in os.environ:
            raise
        reason = error_text(error)
        problems.append(f"{what} could not be computed: {reason}")
        raise NotMeasuredError(reason) from error
