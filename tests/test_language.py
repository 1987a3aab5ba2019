"""Phrases that read as translated stay out of all that people read, and of what developers read as well.

The list has exact phrases alone: whether a single everyday word is the right one is for a reader to say.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from releases import tree_of

import roastcoffea
from roastcoffea.cli import command_line
from roastcoffea.metrics.catalogue import CATALOGUE
from roastcoffea.metrics.phases import BYTE_CLASSES, OLDER_NAMES, PHASES, TIME_CLASSES
from roastcoffea.report.tables import TABLES
from roastcoffea.visualization import plots

ROOT = Path(__file__).parent.parent
PACKAGE = Path(roastcoffea.__file__).parent

SAY_INSTEAD = {
    "on the way": "in flight",
    "on its way": "in flight",
    "on their way": "in flight",
    "way home": "return path",
    "comes home": "is reported",
    "idle: placement": "idle: misplaced",
    "attempts that gave nothing": "failed attempts",
    "gave nothing": "failed",
    "gives nothing": "fails, or returns None",
    "what could be won": "potential saving",
    "for want of": "for lack of; CPU contention",
    "without CPU, and not in reading": "waiting",
    "what first chunks took beyond that": "start-up",
    "goes one after the other": "is serial",
    "problems with the measuring": "measurement problems",
    "not to be trusted fully": "caveats",
    "runs that were made": "measured runs",
    "of which there is": "(say what there is)",
    "who waits needs none": "(a waiting thread needs no core)",
    "the most first": "most first",
    "the most time first": "most time first",
    "the longest first": "longest first",
    "the largest first": "largest first",
    "of one's own": "your own, custom",
    "whatever the name says": "despite the name",
    "and its kin": "and similar tools",
    "nobody had read before": "read for the first time",
    "nobody counted": "not counted",
    "nothing tells of it": "not recorded",
    "from which on": "above which, from",
    "from where on": "where, from what point",
    "that is there": "existing, present",
    "that was there": "existing, present",
    "that are there": "existing, present",
    "that were there": "existing, present",
    "those that there were": "(name them)",
    "all that there is": "everything",
    "where all is understood": "ideally 0",
    "as far as each one came": "(failed attempts count up to their failure)",
    "took of itself": "took itself",
    "asked for of which": "requested without",
    "what eats the loss": "where the loss goes",
    "what could not be had": "what is missing",
    "could not be had": "is not available",
    "which does not tell": "which does not report",
    "do not tell what they requested": "have no count of requested bytes",
    "a part that is not known": "an unknown part",
    "tells of it": "records it",
    "so many seconds": "this many seconds",
    "so many events": "this many events",
    "is called start-up": "is start-up",
    "the way home": "the path to the client",
    "with what is preloaded": "including preloaded branches",
    "in all else": "other",
    "of what was seen": "of the records",
    "as they often do": "that happens often",
    "for a chunk of any size": "fixed cost of a chunk",
    "does not stand out": "cannot be told apart from noise",
    "give or take": "within",
    "stand beside the datasets": "have parts of their own",
    "spread over its own time": "spread evenly over its duration",
    "factor beside a name": "factor after a name",
    "tells its phases": "has recorded phases",
    "bound by": "limited by; bottleneck",
    "rate over wall time": "event rate",
}
"""Phrases that do not appear anywhere, and what to say instead."""


def found_in(text: str) -> list[str]:
    """Forbidden phrases in a text, each with what to say instead; line breaks are spaces."""
    plain = " ".join(text.split()).lower()
    near = [phrase for phrase in SAY_INSTEAD if phrase.lower() in plain]
    found = [phrase for phrase in near if re.search(rf"\b{re.escape(phrase.lower())}\b", plain)]
    return [f"{phrase!r} (say: {SAY_INSTEAD[phrase]})" for phrase in sorted(found)]


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the literals and docstrings of a module; older names of classes are data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in OLDER_NAMES:
            yield node.lineno, node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of blocks of comments."""
    lines = {token.start[0]: token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
             if token.type == tokenize.COMMENT}  # fmt: skip
    for number, text in lines.items():
        if number - 1 not in lines:
            block = [text]
            while number + len(block) in lines:
                block.append(lines[number + len(block)])
            yield number, " ".join(line.lstrip("# ") for line in block)


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands(each)


@pytest.mark.slow
def test_texts_and_comments_of_the_package() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        texts = [*literals(tree_of(path)), *comments(path.read_text(encoding="utf-8"))]
        found = [f"line {line}: {phrase}" for line, text in texts for phrase in found_in(text)]
        assert not found, path.relative_to(PACKAGE)


def test_pages_and_templates() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(PACKAGE.rglob("*.html"))]:
        assert not found_in(path.read_text(encoding="utf-8")), path.relative_to(ROOT)


def test_metrics_as_the_catalogue_shows_them() -> None:
    shown = {one.name: [one.label, one.meaning, one.source, one.formula] for one in CATALOGUE.metrics()}
    assert not {name: found for name, texts in shown.items() if (found := found_in(" | ".join(texts)))}


def test_names_and_meanings_of_classes_and_phases() -> None:
    entries = (*TIME_CLASSES, *BYTE_CLASSES, *PHASES)
    shown = {one: [text for text in one if isinstance(text, str) and text not in OLDER_NAMES] for one in entries}
    assert not {one.name: found for one, texts in shown.items() if (found := found_in(" | ".join(texts)))}


def test_titles_of_plots_and_columns_of_tables() -> None:
    shown = {name: str(getattr(plots, name).__doc__) for name in plots.__all__}
    shown |= {name: " | ".join(column.meaning for column in table.columns) for name, table in TABLES.items()}
    assert not {name: found for name, text in shown.items() if (found := found_in(text))}


def test_help_of_commands() -> None:
    shown = {one.name: one.get_help(click.Context(one)) for one in commands(command_line)}
    assert not {name: found for name, text in shown.items() if (found := found_in(text))}


@pytest.mark.parametrize("text", ["Time for\n    want of cores.", "On the way", "It was idle: placement."])
def test_a_forbidden_phrase_is_found(text: str) -> None:
    assert len(found_in(text)) == 1


def test_words_that_hold_a_phrase_are_others() -> None:
    assert not found_in("In tasks of its kind; the options that therefore matter.")
