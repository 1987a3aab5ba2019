"""Comparison of runs: what differs, what explains it, and whether repeats can tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import IO, Any

from roastcoffea.errors import ComparisonError
from roastcoffea.report.markdown import markdown
from roastcoffea.report.page import frame
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Sheet
from roastcoffea.report.terminal import for_terminal, print_sheets
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.compare.comparison_document import Document, document_of
from roastcoffea.studies.compare.comparison_sheets import sheets_of
from roastcoffea.studies.compare.explanation import explained
from roastcoffea.studies.compare.findings import Findings
from roastcoffea.studies.compare.gate import condition_of, outcome_of
from roastcoffea.studies.compare.repeats import CONFIDENCE
from roastcoffea.studies.compare.side_by_side import facts_of, rows_of
from roastcoffea.studies.compare.sides import LETTERS, side_of
from roastcoffea.studies.compare.speed import speed


class Comparison(Findings, Presented):
    """Runs side by side, each against the first: see `compare`."""

    __slots__ = ()

    def sheets(self, *, everything: bool = False) -> list[Sheet]:
        """What differs, or everything."""
        return sheets_of(self, everything=everything)

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print what differs, or everything, to the terminal or into a file."""
        print_sheets(self.sheets(everything=everything), file)

    def to_markdown(self, *, everything: bool = False) -> str:
        """What differs, or everything, in GitHub's Markdown."""
        return markdown(self.sheets(everything=everything))

    markdown = to_markdown

    def as_dict(self) -> Document:
        """All of it in types of standard JSON."""
        return document_of(self)

    def write(
        self, path: str | PathLike[str] | None, form: str = "text", *, everything: bool = False, overwrite: bool = False
    ) -> None:
        """Write it to a file, or (without a path) to the standard output.

        Parameters
        ----------
        form : {"text", "markdown", "json", "html"}
            How to write it.
        everything
            Whether also what does not differ; "json" has all of it.
        overwrite
            Replace a file that is there.

        Raises
        ------
        MeasurementError
            If there is a file already.
        """
        if path is not None:
            with whole_file(Path(path), overwrite=overwrite) as file:
                file.write(self.text(form, everything=everything).encode())
        elif form == "text":
            print(for_terminal(self.sheets(everything=everything)), end="", flush=True)  # noqa: T201
        else:
            print(self.text(form, everything=everything), end="", flush=True)  # noqa: T201

    def text(self, form: str, *, everything: bool = False) -> str:
        """It as "text", "markdown", "json" or "html", the last as a page of its own."""
        if form == "markdown":
            return self.to_markdown(everything=everything)
        if form == "json":
            return json.dumps(self.as_dict(), indent=1) + "\n"
        if form == "html":
            first, *others = (side.label for side in self.sides)
            return frame.page(f"{', '.join(others)} against {first}", self.sheets(everything=everything))
        file = StringIO()
        self.print(file, everything=everything)
        return file.getvalue()


def compare(
    *given: Any,
    labels: Sequence[str] | None = None,
    fail_if: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    folder: Path | None = None,
) -> Comparison:
    """Compare runs with the first of them: what differs, why, and whether repeats can tell.

    Parameters
    ----------
    given
        Two or more of: a measurement, a collector, a path, or a list of them, which are repeats of one run. A path is
        that of a measurement, of a folder of repeats, a pattern, or a name to which repeats have added a number.
    labels
        What to call them, one for each.
    fail_if
        Conditions on the change of metrics, such as "event_rate_core_khz < -10%"; see `Comparison.status`.
    confidence
        Of intervals, verdicts and conditions.
    folder
        Where a name is looked for that is not found as a path.

    Raises
    ------
    ComparisonError
        If there is nothing to compare, labels are too few or too many, or a condition cannot be understood.
    MeasurementError
        If a measurement cannot be read.
    """
    conditions = [condition_of(text) for text in fail_if]
    _refuse_unusable(given, labels, confidence)
    names: Sequence[str | None] = labels or [None] * len(given)
    sides = tuple(side_of(*each, folder) for each in zip(LETTERS, given, names, strict=False))
    first, others = sides[0].runs, sides[1:]
    return Comparison(
        sides=sides,
        confidence=confidence,
        speeds=tuple(speed(first, side.runs, confidence) for side in others),
        explanations=tuple(explained(first, side.runs) for side in others),
        facts=facts_of(sides),
        rows=rows_of(sides, confidence),
        outcomes=tuple(
            outcome_of(condition, first, side.runs, side.letter, confidence)
            for side in others
            for condition in conditions
        ),
    )


def _refuse_unusable(given: Sequence[Any], labels: Sequence[str] | None, confidence: float) -> None:
    if not 2 <= len(given) <= len(LETTERS):
        raise ComparisonError(f"it takes two runs or more to compare, up to {len(LETTERS)}; {len(given)} given")
    if not 0.5 <= confidence < 1:
        raise ComparisonError(f"a confidence of {confidence} is none: it lies between 0.5 and 1")
    if labels and len(labels) != len(given):
        raise ComparisonError(f"{len(labels)} labels for {len(given)} runs: give one for each")
