"""Errors raised by roastcoffea itself; errors from the analysis are never wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.redaction import Added, neutral, redacted_ends

LONGEST_ERROR: Final = 2000


class RoastcoffeaError(Exception):
    """Base class of all exceptions raised by roastcoffea."""

    def __str__(self) -> str:
        return neutral(super().__str__())


class MeasurementError(RoastcoffeaError):
    """Raised when a measurement cannot be read or written.

    The message suggests a fix. `saved` is the folder of a measurement that was saved, but not as a whole.
    """

    saved: Path | None = None


class MissingMeasurementError(MeasurementError, FileNotFoundError):
    """Raised when a measurement, or part of it, does not exist."""


class UnreadableMeasurementError(MeasurementError, ValueError):
    """Raised for data that are damaged, from a newer version, or not a measurement."""


class ComparisonError(RoastcoffeaError):
    """Raised when runs cannot be compared as requested.

    The message gives the reason and suggests a fix.
    """


class MissingMetricError(RoastcoffeaError, KeyError):
    """Raised when a metric could not be computed for a run.

    The message gives the reason.
    """

    def __str__(self) -> str:
        return neutral(Exception.__str__(self))


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}{hint}"


CAUSED_BY: Final = "; caused by "


def error_text(error: BaseException, added: Added | None = None) -> str:
    """Types and messages of an error and its causes, with secrets masked.

    Very long messages are truncated in the middle. `added` contains additional secret patterns; see `redacted`.
    """
    texts = [_own_text(error)]
    while error.__cause__ is not None and len(texts) <= 3:
        error = error.__cause__
        texts.append(_own_text(error))
    return redacted_ends(CAUSED_BY.join(texts), LONGEST_ERROR, added)


def root_cause(text: str) -> str:
    """First line of the root cause in the result of `error_text`."""
    lines = text.rsplit(CAUSED_BY, 1)[-1].splitlines()
    return lines[0] if lines else ""


def _own_text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001  (the class may be the user's)
        raise_if_interrupted(problem)
        text = "(no message)"
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


@dataclass(slots=True, eq=False)
class reported:  # noqa: N801  (a context manager, like those in contextlib)
    """Context manager that suppresses and reports expected errors.

    Errors in the measuring code must not break the analysis. Code that uses the user's objects, or that could abort the
    run, should expect any `Exception`; other code should expect only specific errors. Errors listed in `passed` still
    propagate, as do exceptions raised by signal handlers.
    """

    report: Callable[[str], object]
    what: str
    expected: type[Exception] | tuple[type[Exception], ...]
    passed: tuple[type[Exception], ...] = ()

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type | None, problem: BaseException | None, traceback: object) -> bool:
        if not isinstance(problem, self.expected) or isinstance(problem, self.passed):
            return False
        raise_if_interrupted(problem)
        self.report(f"{self.what}: {error_text(problem)}")
        return True
