"""The errors that roastcoffea raises for its own reasons; an error of the analysis is never wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from roastcoffea.redaction import Added, redacted_beginning

LONGEST_ERROR: Final = 2000


class RoastcoffeaError(Exception):
    """What every error of this package derives from."""


class MeasurementError(RoastcoffeaError):
    """A stored measurement cannot be read or written; the text names the file and the way out."""


class MissingMeasurementError(MeasurementError, FileNotFoundError):
    """There is no measurement, or not all of it, where one was to be read."""


class UnreadableMeasurementError(MeasurementError, ValueError):
    """What is stored is damaged, of a newer version, or no measurement."""


class ComparisonError(RoastcoffeaError):
    """Runs cannot be compared as was asked; the text says why, and the way out."""


class MissingMetricError(RoastcoffeaError, KeyError):
    """A metric could not be computed for this run; the text gives the reason."""

    def __str__(self) -> str:
        return Exception.__str__(self)


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """What a KeyError says of a name that is none, with those that are near."""
    near = get_close_matches(str(name), list(known))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}{hint}"


CAUSED_BY: Final = "; caused by "
MOST_CAUSES: Final = 3


def error_text(error: BaseException, added: Added | None = None) -> str:
    """Type and text of an error, and of those that caused it, without secrets and cut where it is very long.

    `added` are patterns of secrets, as for `redacted`.
    """
    texts = [_own_text(error)]
    while error.__cause__ is not None and len(texts) <= MOST_CAUSES:
        error = error.__cause__
        texts.append(_own_text(error))
    return redacted_beginning(CAUSED_BY.join(texts), LONGEST_ERROR, added)


def root_cause(text: str) -> str:
    """The first cause that an error's text tells, in one line."""
    lines = text.rsplit(CAUSED_BY, 1)[-1].splitlines()
    return lines[0] if lines else ""


def _own_text(error: BaseException) -> str:
    """Type and text of an error alone; one that cannot be written as text gives its type."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (the class is the user's)
        text = "(it has no text)"
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


@dataclass(slots=True, eq=False)
class reported:  # noqa: N801  (a context, as those of contextlib)
    """Go on where the block fails as expected, and report what could not be done.

    Measuring must not fail the analysis: where objects of the user's are asked, or the run would end, whatever fails is
    expected (`Exception`); elsewhere only what can be named. What is `passed` on is for others to handle.
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
        self.report(f"{self.what}: {error_text(problem)}")
        return True
