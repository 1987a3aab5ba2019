"""What importing the package brings, and what it must not bring."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import roastcoffea

HEAVY = {"bokeh", "coffea", "dask", "distributed", "matplotlib", "numpy", "pandas", "pyarrow", "rich"}
PUBLIC = [name for name in roastcoffea.__all__ if name != "__version__"]


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert loaded_by("import roastcoffea").isdisjoint(HEAVY)


def test_unpickling_the_probe_loads_nothing_heavy_that_coffea_has_not_loaded() -> None:
    probe = loaded_by("import coffea.processor, roastcoffea.instrument.probe")
    assert (probe - loaded_by("import coffea.processor")).isdisjoint(HEAVY)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("roastcoffea") == roastcoffea.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves_on_first_use(name: str) -> None:
    value = getattr(roastcoffea, name)
    assert value.__name__ == name
    assert value.__module__.startswith("roastcoffea.")
    assert name in dir(roastcoffea)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(roastcoffea.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == roastcoffea._MODULES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MetricCollector'"):
        _ = roastcoffea.MetricCollector
