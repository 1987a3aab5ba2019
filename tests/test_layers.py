"""Each layer imports only layers below it, and what travels to workers needs next to nothing."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import roastcoffea

STANDARD = set(sys.stdlib_module_names)
PACKAGE = Path(roastcoffea.__file__).parent
MODULES = {
    ".".join(("roastcoffea", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

BELOW: dict[str, tuple[str, ...]] = {
    "units": (),
    "redaction": (),
    "errors": ("redaction",),
    "interrupts": (),
    "report.sheets": ("units",),
    "report.markup": ("units",),
    "report.terminal": ("report.sheets",),
    "report.markdown": ("report.sheets",),
    "report.notebook": ("report.sheets", "report.markup"),
    "report.presented": ("report.terminal", "report.markdown", "report.notebook"),
    "records": ("units", "errors"),
    "log": ("records",),
    "instrument": ("log", "interrupts"),
    "backends": ("log", "compat", "interrupts"),
    "storage": ("compat",),
    "compat": ("records",),
    "metrics": ("compat", "report.presented"),
    "replay": ("metrics",),
    "diagnosis": ("replay",),
    "visualization": ("diagnosis", "storage"),
    "report": ("visualization", "interrupts"),
    "measurement": ("report", "storage"),
    "compat.measurements": ("measurement",),
    "export": ("compat.measurements",),
    "legacy": ("compat",),
    "collector": ("measurement", "instrument", "backends"),
    "studies": ("collector",),
    "monitor": ("measurement", "instrument", "backends"),
    "recording": ("collector",),
    "auto": ("recording",),
    "cli": ("recording", "monitor", "studies"),
    "demo": ("cli",),
    "__main__": ("cli",),
    "__init__": (),
}
"""The layers right below each part of the package; what is below those may be imported as well."""

TRAVELLING = (
    "roastcoffea.instrument.probe",
    "roastcoffea.instrument.carried",
    "roastcoffea.instrument.track",
    "roastcoffea.backends.scheduler",
    "roastcoffea.backends.worker",
    "roastcoffea.monitor.task_events",
)
"""Modules that run on workers or on the scheduler."""

FOR_PLUGINS = {"dask", "distributed.diagnostics.plugin"}
"""What the backend's half on the cluster may load beside the standard library; Dask is there already."""


def part(module: str) -> str:
    """The part of the package that a module belongs to: the longest name of BELOW that its own begins with."""
    names = module.split(".")[1:] or ["__init__"]
    return next((name for end in range(len(names), 0, -1) if (name := ".".join(names[:end])) in BELOW), names[0])


def all_below(layer: str) -> set[str]:
    """The layer itself and everything under it."""
    return {layer}.union(*(all_below(lower) for lower in BELOW[layer]))


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


def imported(module: str, deep: bool) -> set[str]:
    """Names of the modules that a module imports."""
    names = set()
    for node in import_nodes(ast.parse(MODULES[module].read_text()), deep):
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


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_layers_below_its_own(module: str) -> None:
    assert part(module) in BELOW, f"{module} has no layer: give it one in BELOW"
    inner = {name for name in imported(module, deep=True) if name.startswith("roastcoffea.")}
    assert {part(name) for name in inner} <= all_below(part(module))


@pytest.mark.parametrize("module", MODULES)
def test_the_package_itself_is_imported_for_its_version_alone(module: str) -> None:
    names = [
        alias.name
        for node in import_nodes(ast.parse(MODULES[module].read_text()), deep=True)
        if isinstance(node, ast.ImportFrom) and node.module == "roastcoffea"
        for alias in node.names
    ]
    assert all(name == "__version__" or module_of("roastcoffea", name) != "roastcoffea" for name in names)


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
    assert part(module) in {"records", "instrument", "backends", "errors", "redaction"}
