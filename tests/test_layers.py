"""Each part of the package imports only parts before it, and what travels to workers needs next to nothing."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from releases import tree_of

import roastcoffea

STANDARD = set(sys.stdlib_module_names)
PACKAGE = Path(roastcoffea.__file__).parent
MODULES = {
    ".".join(("roastcoffea", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

ORDER = (
    *("__init__", "units", "redaction", "interrupts", "errors", "sheets", "records"),
    *("storage.processes", "storage.folders", "storage.reading", "log", "generations", "instrument"),
    *("compat", "legacy", "storage", "backends", "metrics", "replay", "diagnosis", "visualization", "report"),
    *("measurement", "compat.measurements", "export", "recording.assembly", "collector"),
    *("studies", "monitor", "recording", "auto", "facility", "importers", "cli", "demo", "__main__"),
)
"""The parts of the package: each imports only parts before it."""

TRAVELLING = (
    "roastcoffea.instrument.probe",
    "roastcoffea.instrument.channels",
    "roastcoffea.instrument.track",
    "roastcoffea.backends.scheduler",
    "roastcoffea.backends.worker",
    "roastcoffea.monitor.states",
    "roastcoffea.monitor.views",
)
"""Modules that run on workers or on the scheduler."""

FOR_PLUGINS = {"dask", "distributed.diagnostics.plugin"}
"""What the backend's half on the cluster may load beside the standard library; Dask is there already."""


ALIASES = ("auto", "demo", "export", "facility", "importers", "legacy")
"""Import paths from before there were rooms; each of their modules hands on what is elsewhere, in one import."""

MOST_ROOMS = 16
MOST_AT_THE_TOP = 9


def part(module: str) -> str:
    """The part of the package that a module belongs to: the longest name of ORDER that its own begins with."""
    names = module.split(".")[1:] or ["__init__"]
    return next((name for end in range(len(names), 0, -1) if (name := ".".join(names[:end])) in ORDER), names[0])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_nodes(node: ast.AST, deep: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports of a module that happen when it runs, in its functions as well where `deep`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif is_type_checking(child):
            yield from (found for other in child.orelse for found in import_nodes(other, deep))
        elif deep or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from import_nodes(child, deep)


@cache
def imported(module: str, deep: bool) -> set[str]:
    """Names of the modules that a module imports."""
    names = set()
    for node in import_nodes(tree_of(MODULES[module]), deep):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{module} imports relatively"
            names.update(module_of(str(node.module), alias.name) for alias in node.names)
    return names


def module_of(package: str, name: str) -> str:
    """`from package import name` loads the submodule where there is one, else the package."""
    full = f"{package}.{name}"
    return full if full in MODULES or f"{full}.__init__" in MODULES else package


def test_each_module_has_a_place() -> None:
    assert [module for module in MODULES if part(module) not in ORDER] == [], "give them a place in ORDER"


def test_a_module_imports_only_what_stands_before_it() -> None:
    above = {
        module: sorted(name for name in imported(module, deep=True) if comes_after(name, part(module)))
        for module in MODULES
    }
    assert {module: names for module, names in above.items() if names} == {}


def comes_after(name: str, own: str) -> bool:
    """Whether a module is one of ours that stands behind a part of the package."""
    return name.startswith("roastcoffea.") and ORDER.index(part(name)) > ORDER.index(own)


def test_the_package_itself_is_imported_for_its_version_alone() -> None:
    others = {module: [name for name in from_the_package(module) if name != "__version__"] for module in MODULES}
    assert {module: names for module, names in others.items() if names} == {}


def from_the_package(module: str) -> list[str]:
    """Names, other than those of modules, that a module imports from the package itself."""
    return [
        alias.name
        for node in import_nodes(tree_of(MODULES[module]), deep=True)
        if isinstance(node, ast.ImportFrom) and node.module == "roastcoffea"
        for alias in node.names
        if module_of("roastcoffea", alias.name) == "roastcoffea"
    ]


def travelling() -> set[str]:
    """The modules that run on workers or the scheduler, and all of ours that come with them."""
    found: set[str] = set()
    waiting = list(TRAVELLING)
    while waiting:
        module = waiting.pop()
        found.add(module)
        ours = {name for name in imported(module, deep=False) if name in MODULES}
        waiting.extend(ours - found)
    return found


@pytest.mark.parametrize("module", sorted(travelling()))
def test_what_travels_needs_only_records_and_the_standard_library(module: str) -> None:
    outer = {name for name in imported(module, deep=False) if name.split(".")[0] not in STANDARD | {"roastcoffea"}}
    assert outer <= (FOR_PLUGINS if part(module) == "backends" else set())
    assert module != "roastcoffea.records.arrow"
    assert part(module) in {
        "records",
        "log",
        "generations",
        "instrument",
        "backends",
        "monitor",
        "errors",
        "interrupts",
        "redaction",
    }


def all_imports(module: str) -> set[str]:
    """Modules of ours that a module names in any import, also where only type checkers read it."""
    nodes = list(ast.walk(tree_of(MODULES[module])))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        module_of(str(node.module), alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    files = {name if name in MODULES else f"{name}.__init__" for name in names}
    # the package itself is imported for its version alone, see above
    return files & set(MODULES) - {"roastcoffea.__init__"}


def test_no_imports_go_round_in_a_circle() -> None:
    TopologicalSorter({module: all_imports(module) for module in MODULES}).prepare()


def test_rooms_and_modules_at_the_top_are_few() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - set(ALIASES)
    modules = {path.stem for path in PACKAGE.glob("*.py")} - set(ALIASES)
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)
    assert len(modules) <= MOST_AT_THE_TOP, sorted(modules)


@pytest.mark.parametrize(
    "room", sorted(path.parent for path in PACKAGE.rglob("__init__.py")), ids=lambda room: room.name
)
def test_a_room_says_what_it_is(room: Path) -> None:
    first = (ast.get_docstring(tree_of(room / "__init__.py")) or "").partition("\n")[0]
    assert 10 < len(first) <= 120


@pytest.mark.parametrize("module", [name for name in MODULES if name.split(".")[1] in ALIASES])
def test_an_alias_is_one_import(module: str) -> None:
    body = tree_of(MODULES[module]).body
    statements = [node for node in body if not isinstance(node, ast.Expr)]
    exported = [
        node for node in statements if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert len(statements) - len(exported) <= 1


MIRRORED = (
    "backends",
    "compat",
    "diagnosis",
    "instrument",
    "log",
    "metrics",
    "recording",
    "replay",
    "storage",
)
"""Rooms in which each module that has a function or a class has tests in a file of its name."""


@pytest.mark.parametrize("room", MIRRORED)
def test_each_module_has_a_test_module(room: str) -> None:
    tests = Path(__file__).parent
    found = [path for path in (PACKAGE / room).rglob("*.py") if path.stem != "__init__"]
    modules = [path.relative_to(PACKAGE) for path in found if defines(path)]
    assert [str(path) for path in modules if not (tests / path.with_name(f"test_{path.name}")).exists()] == []


def defines(file: Path) -> bool:
    """Whether a module has functions or classes of its own, and does not only pass names on."""
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree_of(file).body)
