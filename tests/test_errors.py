"""Errors that are caught: each is reported, and nothing but what is expected is caught where that can be named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from releases import tree_of

import roastcoffea
from roastcoffea.errors import reported

PACKAGE = Path(roastcoffea.__file__).parent
BROAD = {"Exception", "BaseException"}

LAST_RESORTS = {("cli/reading.py", "compare_command")}
"""Functions whose broad handler says by what it gives that something failed: a traceback, another text, None."""

WITHOUT_ANALYSIS = {"measurement.py", "storage", "cli", "records", "replay", "studies", "visualization"}
"""Parts of the package that run when no analysis does: a fault of ours may come out there."""


def trees() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(PACKAGE).as_posix(), tree_of(path)) for path in sorted(PACKAGE.rglob("*.py"))]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def caught(handler: ast.ExceptHandler) -> set[str]:
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else BROAD


def is_reported(handler: ast.ExceptHandler) -> bool:
    """Whether what is caught is raised again, or handed on to somebody under its name."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == handler.name) for node in nodes
    )


@pytest.mark.slow
def test_what_is_caught_in_any_case_is_reported_or_raised_again() -> None:
    handlers = [
        (name, function.name, handler)
        for name, tree in trees()
        for function in functions(tree)
        for handler in ast.walk(function)
        if isinstance(handler, ast.ExceptHandler) and caught(handler) & BROAD
    ]
    assert len(handlers) > 20
    assert {place[:2] for place in handlers if not is_reported(place[2])} == LAST_RESORTS


@pytest.mark.slow
def test_nothing_suppresses_every_error() -> None:
    calls = [node for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    suppressing = [ast.unparse(call) for call in calls if ast.unparse(call.func).endswith("suppress")]
    assert suppressing
    assert not [call for call in suppressing if "Exception" in call]


@pytest.mark.slow
def test_everything_is_expected_only_where_the_analysis_runs() -> None:
    expected = [
        (name, ast.unparse(node.args[2]))
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reported"
    ]
    assert len(expected) > 20
    without = [name for name, what in expected if what == "Exception" and name.split("/")[0] in WITHOUT_ANALYSIS]
    assert without == ["studies/plan.py"]  # it adds and pickles the analysis's outputs


def test_only_what_is_expected_is_caught() -> None:
    reports: list[str] = []
    with reported(reports.append, "a file was not read", OSError):
        raise FileNotFoundError("gone")
    assert reports == ["a file was not read: FileNotFoundError: gone"]
    for error in (ValueError("ours"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reported(reports.append, "a file was not read", OSError):
            raise error
    with pytest.raises(KeyboardInterrupt), reported(reports.append, "anything", Exception):
        raise KeyboardInterrupt
    assert len(reports) == 1
