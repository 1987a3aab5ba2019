"""Weight of the package: syntax nodes of each room next to its budget, and what a reader has to hold in mind.

`python benchmarks/weight.py` prints, for `src/roastcoffea` or the folders that follow, a line for each room (a folder
right below), and all of it next to its goal. Nothing is run or imported, so it takes a few seconds.

nodes       of the syntax tree, without contexts (Load, Store), operators and bare strings
lines       of code, without blanks, comments and bare strings such as docstrings
constants   names in capitals at the top of a module
once        functions whose name stands in one place besides their definition
for one     of these, private functions: a helper with one caller
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "src" / "roastcoffea"
TESTS: Final = ROOT / "tests"
TOP: Final = "(top)"
"""Modules of the package that are in no room."""

BUDGETS: Final[Mapping[str, int]] = {
    "metrics": 39_330,
    "studies": 43_200,
    "diagnosis": 31_860,
    "instrument": 27_480,
    "report": 24_560,
    "backends": 24_580,
    "log": 18_890,
    "recording": 15_580,
    "visualization": 14_130,
    "monitor": 11_400,
    "storage": 11_200,
    "replay": 9_490,
    TOP: 7_310,
    "cli": 7_460,
    "compat": 4_260,
    "records": 3_450,
    "sheets": 2_700,
    "export": 100,
}
"""Most syntax nodes of each room: a number changes with the reason in the commit. tests/test_weight.py holds them."""

GOALS: Final[Mapping[str, float]] = {
    "nodes": 215_000,
    "nodes a line": 6.5,
    "files": 205,
    "constants": 900,
    "functions": 2_800,
    "for one": 400,
    "module names twice": 8,
    "class names twice": 5,
    "lines of a function, median": 6,
    "lines of a function, 90 %": 18,
    "lines of a function, most": 70,
    "lines of the recorder": 7_115,
    "lines of tests": 28_000,
    "other modules of tests": 15,
}
"""At most; what has none is only reported."""

RECORDER: Final = ("backends.scheduler", "backends.worker", "instrument.hook", "instrument.tasks", "log.journal")
"""What runs around and inside an analysis: hook, probe, plugins, and the writer of the journal."""

NO_NODES: Final = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
NO_CODE: Final = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


@dataclass
class Module:
    """A module of Python, read but not imported."""

    path: Path
    room: str = TOP
    tree: ast.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.source = self.path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self.every = list(ast.walk(self.tree))
        strings = (node.value for node in self.every if isinstance(node, ast.Expr))
        self.prose = {one for one in strings if isinstance(one, ast.Constant) and isinstance(one.value, str)}

    @property
    def nodes(self) -> int:
        return sum(not isinstance(node, NO_NODES) and node not in self.prose for node in self.every)

    @cached_property
    def code(self) -> set[int]:
        """Numbers of the lines of code."""
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type not in NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
        return code - {line for one in self.prose for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}

    @property
    def constants(self) -> int:
        assigned = (node for node in self.tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
        names = (node for statement in assigned for node in ast.walk(statement) if isinstance(node, ast.Name))
        return sum(name.id.isupper() and isinstance(name.ctx, ast.Store) for name in names)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.every if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def lengths(self) -> list[int]:
        """Lines of code of each function, with its decorators and what is defined in it."""
        code = np.sort(np.fromiter(self.code, np.int64))
        edges = [
            (min([one.lineno, *(each.lineno for each in one.decorator_list)]), one.end_lineno) for one in self.functions
        ]
        return [int(np.diff(np.searchsorted(code, [start, int(stop or start) + 1]))[0]) for start, stop in edges]

    @property
    def classes(self) -> list[str]:
        return [node.name for node in self.every if isinstance(node, ast.ClassDef)]

    @cached_property
    def mentions(self) -> Counter[str]:
        """How often each name is used; imports, which only pass it on, are no use."""
        names = Counter(node.id for node in self.every if isinstance(node, ast.Name))
        return names + Counter(node.attr for node in self.every if isinstance(node, ast.Attribute))


def modules_of(package: Path) -> list[Module]:
    """Modules of a package, without its tests."""
    paths = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    return [
        Module(package / path, path.parts[0] if len(path.parts) > 1 else TOP)
        for path in paths
        if "tests" not in path.parts
    ]


def nodes_by_room(modules: Iterable[Module]) -> Counter[str]:
    """Syntax nodes of each room, the heaviest first."""
    nodes: Counter[str] = Counter()
    for module in modules:
        nodes[module.room] += module.nodes
    return Counter(dict(nodes.most_common()))


def used_once(modules: Iterable[Module]) -> Iterator[tuple[Module, str]]:
    """Functions whose name stands in one place besides their definition; of a private one its module is searched."""
    modules = list(modules)
    everywhere = sum((module.mentions for module in modules), Counter[str]())
    for module in modules:
        for function in module.functions:
            known = module.mentions if is_private(function.name) else everywhere
            if known[function.name] == 1:
                yield module, function.name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def twice(names: Iterable[str]) -> int:
    """How many names occur more than once."""
    return sum(number > 1 for number in Counter(names).values())


def totals(modules: list[Module]) -> dict[str, float]:
    """All that has a goal, and code lines."""
    lines = sum(len(module.code) for module in modules)
    nodes = sum(module.nodes for module in modules)
    lengths = [length for module in modules for length in module.lengths] or [0]
    return {
        "nodes": nodes,
        "lines": lines,
        "nodes a line": round(nodes / max(lines, 1), 1),
        "files": len(modules),
        "constants": sum(module.constants for module in modules),
        "functions": sum(len(module.functions) for module in modules),
        "once": len(once := list(used_once(modules))),
        "for one": sum(is_private(name) for _, name in once),
        "module names twice": twice(stem for one in modules if not (stem := one.path.stem).startswith("__")),
        "class names twice": twice(name for module in modules for name in module.classes),
        "lines of a function, median": float(np.median(lengths)),
        "lines of a function, 90 %": float(np.quantile(lengths, 0.9)),
        "lines of a function, most": max(lengths),
    }


def recorder(modules: Iterable[Module]) -> dict[str, Module]:
    """Modules that are imported with `RECORDER`, by name."""
    found: dict[str, Module] = {}
    by_path = {module.path: module for module in modules}
    waiting = [PACKAGE.name, *(f"{PACKAGE.name}.{name}" for name in RECORDER)]
    while waiting:
        name = waiting.pop()
        path = PACKAGE.parent.joinpath(*name.split("."))
        module = by_path.get(path.with_suffix(".py")) or by_path.get(path / "__init__.py")
        if module is None or name in found:
            continue
        found[name] = module
        waiting.append(name.rpartition(".")[0])
        for node in module.tree.body:
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                waiting += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def of_tests(folder: Path) -> dict[str, float]:
    """Weight of tests: code lines, and modules that are neither tests nor the folders' own."""
    modules = [Module(path) for path in sorted(folder.rglob("*.py"))]
    others = [one for one in modules if not one.path.stem.startswith("test_") and one.path.stem != "__init__"]
    return {"lines of tests": sum(len(module.code) for module in modules), "other modules of tests": len(others)}


def main(folders: list[Path]) -> None:
    for folder in folders or [PACKAGE]:
        modules = modules_of(folder)
        once = Counter(module.room for module, _ in used_once(modules))
        print(
            f"{folder.name:16}{'nodes':>8}{'budget':>8}{'lines':>8}{'files':>7}{'constants':>11}{'functions':>11}{'once':>6}"
        )
        for room, nodes in nodes_by_room(modules).items():
            own = [module for module in modules if module.room == room]
            budget = BUDGETS.get(room, "") if folder == PACKAGE else ""
            lines, constants = sum(len(one.code) for one in own), sum(one.constants for one in own)
            functions = sum(len(one.functions) for one in own)
            print(f"{room:16}{nodes:8}{budget:>8}{lines:8}{len(own):7}{constants:11}{functions:11}{once[room]:6}")
        found = totals(modules)
        if folder == PACKAGE:
            recorded = recorder(modules).values()
            found |= {"lines of the recorder": sum(len(one.code) for one in recorded)} | of_tests(TESTS)
        for name, value in found.items():
            goal = f"   goal {GOALS[name]:g}" if folder == PACKAGE and name in GOALS else ""
            print(f"{name:32}{value:10g}{goal}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
