"""README and documentation: their code runs as it is printed, as far as it can here, and nothing in them is stale.

Cells of notebooks are executed as the site is built; here they are held against the names and signatures of ours.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client

import roastcoffea
from roastcoffea import MetricsCollector
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.cli import command_line
from roastcoffea.visualization.plots import PLOTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- (?P<note>.*?) -->\n)?```(?P<kind>[^\n]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE_COMMAND = re.compile(r"`(roastcoffea [a-z][^`]*)`")
CELL = "{code-cell} ipython3"
NOT_RUN = "not run here"
"""Note above a block that needs what a test does not have; one that another test runs names that."""


class Block(NamedTuple):
    """A block of code on a page."""

    page: Path
    kind: str
    note: str | None
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        text = re.sub(r"\A(:\w+:.*\n)+", "", found["text"])
        yield Block(page, found["kind"], found["note"], text)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


ALL = [block for page in PAGES for block in blocks(page)]
PIECE = "tests/test_contributing.py runs this"
"""Note above a piece of a module, which is no program of a user's."""

CODE = [block for block in ALL if block.kind in {"python", CELL} and block.note != PIECE]
RUN_HERE = {
    page: [block for block in CODE if (block.page, block.kind, block.note) == (page, "python", None)] for page in PAGES
}


def test_blocks_are_of_a_kind_that_is_looked_at() -> None:
    directives = {"{eval-rst}", "{glossary}", "{toctree}", "{include} ../CHANGELOG.md", "{glue} ledgers-over-time"}
    assert {block.kind for block in ALL} == {"python", CELL, "console", "text", "yaml"} | directives
    for note in {block.note for block in ALL} - {None, NOT_RUN}:
        assert (ROOT / re.fullmatch(r"(tests/[\w/]+\.py) (runs|prints) this", str(note))[1]).exists()  # type: ignore[index]


@pytest.mark.parametrize("block", CODE, ids=lambda block: name_of(block.page))
def test_code_fits_the_package(block: Block) -> None:
    tree = ast.parse(block.text)
    ours = {"roastcoffea": roastcoffea}
    for earlier in CODE[: CODE.index(block) + 1]:
        if earlier.page == block.page:
            ours |= imported(ast.parse(earlier.text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            check_call(node, ours)


def imported(tree: ast.AST) -> dict[str, Any]:
    """What a piece of code imports of ours, by the name that it has there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "roastcoffea":
            module = importlib.import_module(str(node.module))
            found |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "roastcoffea":
                    importlib.import_module(alias.name)
    return found


def check_call(call: ast.Call, ours: dict[str, Any]) -> None:
    """Whether arguments of a call of ours fit the signature."""
    name, *attributes = ast.unparse(call.func).split(".")
    if name not in ours or any(keyword.arg is None for keyword in call.keywords):
        return
    function = ours[name]
    for attribute in attributes:
        function = getattr(function, attribute)
    arguments = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    inspect.signature(function).bind_partial(*arguments, **{str(keyword.arg): None for keyword in call.keywords})


def test_a_pair_is_unpacked_only_where_the_runner_returns_one() -> None:
    """By default a Runner returns the output alone, and to unpack a dictionary of two keys gives the keys."""
    savemetrics = set[Path]()
    for block in CODE:
        tree = ast.parse(block.text)
        if "savemetrics" in ast.unparse(tree):
            savemetrics.add(block.page)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Tuple)
                and "runner(" in ast.unparse(node)
            ):
                assert block.page in savemetrics, f"{name_of(block.page)}: {ast.unparse(node)}"


@pytest.fixture(scope="module")
def measured(shared_client: Client, sample: Any) -> dict[str, Any]:
    """What a reader has who comes to a page: a client, a Runner as most people make it, and a measured analysis."""
    runner = Runner(DaskExecutor(client=shared_client, status=False), schema=NanoAODSchema, chunksize=2000)
    with MetricsCollector(shared_client) as collector:
        output = runner(sample, treename="Events", processor_instance=Jets())
    return {
        "client": shared_client,
        "runner": runner,
        "fileset": sample,
        "processor": Jets(),
        "collector": collector,
        "measurement": collector.measurement,
        "output": output,
    }


def with_code(readme: bool) -> list[Path]:
    return [page for page, found in RUN_HERE.items() if found and (page.name == "README.md") is readme]


@pytest.mark.parametrize(
    "page",
    [*with_code(readme=True), *(pytest.param(page, marks=pytest.mark.slow) for page in with_code(readme=False))],
    ids=name_of,
)
def test_code_runs(page: Path, measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measured["collector"].save_measurement("roastcoffea-runs", "dijets")
    names = {"__name__": "__main__", "roastcoffea": roastcoffea, **measured}
    for block in RUN_HERE[page]:
        exec(compile(block.text, f"{name_of(page)}, as printed", "exec"), names)


def commands_of(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        for command in line.split("&&"):
            yield shlex.split(command)


CONSOLE = [words for block in ALL if block.kind == "console" for words in commands_of(block)]
INLINE = [
    shlex.split(text)
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    for text in INLINE_COMMAND.findall(line)
    if not line.startswith("#")  # messages are headings of docs/troubleshooting.md
]
OURS = {" ".join(words): words for words in CONSOLE + INLINE if words[0] == "roastcoffea"}


@pytest.mark.parametrize("words", OURS.values(), ids=OURS)
def test_commands_are_understood(words: list[str]) -> None:
    _, name, *arguments = words[: words.index(">")] if ">" in words else words
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(name, arguments)


def test_what_is_installed_can_be_installed() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    installed = [word for words in CONSOLE if words[0] == "pip" for word in words[2:] if word != "-e"]
    assert installed
    for place in installed:
        wanted = re.fullmatch(r"\.(?:\[([\w,]+)\])?", place)
        assert wanted is not None
        assert set(filter(None, (wanted[1] or "").split(","))) <= extras


def writer(name: str) -> Any:
    """A script of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    return dict(writer("write_references").WRITTEN)


def test_the_tested_environments_are_those_that_were_stored() -> None:
    text = (DOCS / "environments.md").read_text(encoding="utf-8")
    assert text == writer("write_environments").page(), "stale: run `python docs/write_environments.py`"


@pytest.mark.parametrize("page", ["columns.md", "glossary.md", "plots.md"])
def test_pages_that_are_written_are_up_to_date(page: str, references: dict[str, Any]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text == references[page](), f"docs/{page} is stale: run `python docs/write_references.py`"


def test_every_column_is_described(references: dict[str, Any], measured: dict[str, Any]) -> None:
    page = references["columns.md"]()
    described = {
        name: re.findall(r"^- `(\w+)`(?: \((.+?)\))?: .", text, re.MULTILINE)
        for name, text in re.findall(r"^## `measurement\.(\w+)`\n(.*?)(?=\n## )", page, re.MULTILINE | re.DOTALL)
    }
    for name in roastcoffea.report.tables.TABLES:
        frame = getattr(measured["collector"].measurement, name)
        units = {column: frame.attrs["units"].get(column, "") for column in frame}
        text = page.partition(f"## `measurement.{name}`\n")[2].partition("\n## ")[0]
        for place, columns in re.findall(r"`measurement\.(\w+)`: ((?:`\w+`(?:, )?)+)", text.partition("\nAs in ")[2]):
            described[name] += [(one, unit) for one, unit in described[place] if f"`{one}`" in columns]
        assert sorted(described[name]) == sorted(units.items()), name


def documented() -> Iterator[tuple[str, Any]]:
    """What docs/api.md and docs/plots.md describe, by name, with the members that they show."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for path, options in re.findall(r"^\.\. auto\w+:: (\S+)\n((?:   :.*\n)*)", page, re.MULTILINE):
        thing = pkgutil.resolve_name(path)
        yield path, thing
        shown, left_out = (re.search(rf":{name}:(.*)", options) for name in ("members", "exclude-members"))
        names = [name.strip() for name in shown[1].split(",")] if shown else []
        for name in vars(thing) if names == [""] else names:
            member = inspect.getattr_static(thing, name)
            is_ours = inspect.isroutine(member) or isinstance(member, property | cached_property)
            if is_ours and not name.startswith("_") and not (left_out and name in re.split(r"[\s,]+", left_out[1])):
                yield f"{path}.{name}", member
    yield from ((entry.function_name, entry.draw) for entry in PLOTS.values())


def test_first_lines_of_docstrings_are_short_and_plain() -> None:
    firsts = {name: (inspect.getdoc(thing) or "").partition("\n\n")[0] for name, thing in documented()}
    assert len(firsts) > 200
    assert {name: first for name, first in firsts.items() if not 0 < len(first) < 80 or "\n" in first} == {}
    # exact: no sentence that ends in a clause
    clauses = re.compile(r"\b(which|who|whose|what|where|(?<!than )that \w+ed)\b")
    assert {name: first for name, first in firsts.items() if clauses.search(first)} == {}


def test_what_the_hook_calls_is_not_public() -> None:
    public = {name for name in dir(DaskMetricsBackend) if not name.startswith("_")}
    assert public == {name for name in dir(AbstractMetricsBackend) if not name.startswith("_")}
    hidden = {
        "take_records",
        "packed_for_tasks",
        "step",
        "out_of_reach",
        "fetch_records",
        "span_ensured",
        "note",
        "topic",
    }
    assert hidden & {*dir(MetricsCollector(journal=None))} == set()


def test_every_public_name_is_in_the_reference() -> None:
    page, plots = ((DOCS / name).read_text(encoding="utf-8") for name in ("api.md", "plots.md"))
    for name in roastcoffea.__all__:
        if name.startswith("plot_"):
            assert f"## `{name}`" in plots, f"docs/plots.md lacks {name}"
        elif name != "__version__":
            assert re.search(rf"^\.\. auto\w+:: roastcoffea\.{name}$", page, re.MULTILINE), f"docs/api.md lacks {name}"
