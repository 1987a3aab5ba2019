"""Errors raised by roastcoffea itself; errors of the analysis are never wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.redaction import Added, neutral, redacted_ends

LONGEST_ERROR: Final = 2000


class RoastcoffeaError(Exception):
    """Base class of all errors of this package."""

    def __str__(self) -> str:
        return neutral(super().__str__())


class MeasurementError(RoastcoffeaError):
    """A stored measurement cannot be read or written; the text names the file and a way out."""


class MissingMeasurementError(MeasurementError, FileNotFoundError):
    """A measurement, or a part of it, does not exist."""


class UnreadableMeasurementError(MeasurementError, ValueError):
    """Stored data are damaged, of a newer version, or not a measurement."""


class ComparisonError(RoastcoffeaError):
    """Runs cannot be compared as requested; the text says why, with a way out."""


class MissingMetricError(RoastcoffeaError, KeyError):
    """A metric could not be computed for this run; the text gives the reason."""

    def __str__(self) -> str:
        return neutral(Exception.__str__(self))


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Text of a KeyError for an unknown name, with similar known ones."""
    near = get_close_matches(str(name), list(known))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}{hint}"


CAUSED_BY: Final = "; caused by "


def error_text(error: BaseException, added: Added | None = None) -> str:
    """Type and text of an error and its causes, without secrets; of very long ones the beginning and the end.

    `added` are patterns of secrets, as for `redacted`.
    """
    texts = [_own_text(error)]
    while error.__cause__ is not None and len(texts) <= 3:
        error = error.__cause__
        texts.append(_own_text(error))
    return redacted_ends(CAUSED_BY.join(texts), LONGEST_ERROR, added)


def root_cause(text: str) -> str:
    """First cause in an error's text, in one line."""
    lines = text.rsplit(CAUSED_BY, 1)[-1].splitlines()
    return lines[0] if lines else ""


def _own_text(error: BaseException) -> str:
    """Type and text of an error alone; only the type if it has no printable text."""
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001  (the class is the user's)
        raise_if_interrupted(problem)
        text = "(it has no text)"
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


@dataclass(slots=True, eq=False)
class reported:  # noqa: N801  (a context, as those of contextlib)
    """Continue if the block fails as expected, and report it.

    Measuring must not fail the analysis: code that uses the user's objects, or could end the run, expects any error
    (`Exception`); other code only specific ones. Errors in `passed` are left to others, and so is what a signal's
    handler raised.
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
