"""What importing the package brings, and what it must not bring."""

import ast
import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import roastcoffea
from roastcoffea.visualization import plots

HEAVY = {"bokeh", "coffea", "dask", "distributed", "matplotlib", "numpy", "pandas", "pyarrow", "rich"}
PUBLIC = [name for name in roastcoffea.__all__ if name != "__version__"]

DOCUMENTED_BEFORE = {
    "auto": "Recorder TerminatedError record",
    "demo": "DijetProcessor clean_jets write_sample",
    "importers": "measurement_from_report",
    "metrics": "ByteLedger Finding Metrics TimeLedger Verdict",
    "metrics.advice": "Saving",
    "metrics.ledger": "Certificate",
    "monitor": "ReportComparison Snapshot TaskMonitor",
    "redaction": "add_pattern redacted",
    "studies.branches": "BranchStudy",
    "studies.compare": "Comparison",
    "studies.scaling": "Scaling",
    "studies.what_if": "WhatIf",
    "visualization.draw": "OF_TIME",
    "visualization.plots": "extract_per_task_metrics plot_time_ledger",
    "visualization.registry": "PlotFunction",
}
"""Names in submodules, as README, guides and reference had them before there were rooms."""


@cache
def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert loaded_by("import roastcoffea").isdisjoint(HEAVY)


@pytest.mark.slow
def test_unpickling_the_probe_loads_nothing_heavy_that_coffea_has_not_loaded() -> None:
    coffea = "import coffea.nanoevents, coffea.processor"
    probe = loaded_by(f"{coffea}, roastcoffea.instrument.probe")
    assert (probe - loaded_by(coffea)).isdisjoint(HEAVY)


@pytest.mark.slow
def test_what_runs_inside_an_analysis_loads_nothing_that_coffea_and_dask_do_not() -> None:
    """Hook, probe, plugins and the journal's writer use only coffea, Dask, LZ4 and the standard library."""
    before = "import coffea.nanoevents, coffea.processor, distributed"
    inside = "roastcoffea.backends.scheduler, roastcoffea.backends.worker, roastcoffea.instrument.hook"
    found = loaded_by(f"{before}; import {inside}, roastcoffea.instrument.tasks, roastcoffea.log.journal")
    found -= loaded_by(before)
    ours = {name for name in found if name.partition(".")[0] == "roastcoffea"}
    assert {name.partition(".")[0] for name in found - ours} <= set(sys.stdlib_module_names)
    assert {name.split(".")[1] for name in ours if "." in name} == {"backends", "instrument", "log", "records"} | {
        "errors", "generations", "interrupts", "redaction", "storage"
    }  # fmt: skip
    imported = set().union(*map(imports_of, ours)) - {"roastcoffea"} - set(sys.stdlib_module_names)
    assert imported == {"dask", "distributed", "lz4"}


def imports_of(module: str) -> set[str]:
    """Packages that a module imports as it is imported itself."""
    tree = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text())
    names = [[alias.name for alias in node.names] for node in tree.body if isinstance(node, ast.Import)]
    names += [[str(node.module)] for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for each in names for name in each}


@pytest.mark.slow
def test_a_collector_loads_nothing_that_only_its_results_need() -> None:
    """A cluster's client has loaded `distributed`; results need the other rooms, pandas and scipy, pages Bokeh."""
    coffea = "import coffea.nanoevents, coffea.processor"
    found = loaded_by(f"{coffea}; from roastcoffea import MetricsCollector") - loaded_by(coffea)
    rooms = {name.split(".")[1] for name in found if name.startswith("roastcoffea.")}
    assert rooms == {"backends", "compat", "generations", "instrument", "log", "records", "recording", "storage"} | {
        "collector", "errors", "interrupts", "redaction", "units"
    }  # fmt: skip
    others = {name.split(".")[0] for name in found} - set(sys.stdlib_module_names)
    of_dask = {"jinja2", "markupsafe", "tblib", "tlz", "toolz"}
    assert others - of_dask == {"dask", "numpy", "pyarrow", "roastcoffea"}


def test_the_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("roastcoffea") == roastcoffea.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves_on_first_use(name: str) -> None:
    value = getattr(roastcoffea, name)
    assert value.__name__ == name
    assert value.__module__.startswith("roastcoffea.")
    assert name in dir(roastcoffea)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in DOCUMENTED_BEFORE.items() for name in names.split()]
)
def test_a_path_that_was_documented_before_is_there(module: str, name: str) -> None:
    value = getattr(importlib.import_module(f"roastcoffea.{module}"), name)
    assert getattr(value, "__name__", name) == name


@pytest.mark.slow
def test_older_paths_can_be_imported_first() -> None:
    """Each in a process that has nothing of ours yet: what they pass on imports the room that they are in."""
    code = """
import importlib, os, sys
import coffea.processor, pyarrow, pandas, scipy.stats
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(f"roastcoffea.{name}")
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, name
"""
    modules = ("importers", "metrics.advice", "studies.compare", "studies.scaling", "studies.what_if")
    subprocess.run([sys.executable, "-c", code, *modules], check=True)


@pytest.mark.parametrize("module", ["metrics", "monitor"])
def test_an_unknown_name_of_a_room_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'roastcoffea.{module}' has no attribute 'Verdicts'"):
        _ = importlib.import_module(f"roastcoffea.{module}").Verdicts


def imports_for_type_checkers(file: str | None) -> list[ast.ImportFrom]:
    tree = ast.parse(Path(str(file)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return [node for node in block.body if isinstance(node, ast.ImportFrom)]


def test_type_checkers_see_the_same_names() -> None:
    imported = {
        alias.name: node.module for node in imports_for_type_checkers(roastcoffea.__file__) for alias in node.names
    }
    assert imported.pop("*") == plots.__name__
    ours = {
        name: value.__module__
        for name in PUBLIC
        if not (value := getattr(roastcoffea, name)).__name__.startswith("plot_")
    }
    assert imported == ours


def test_type_checkers_see_the_plots_of_every_module() -> None:
    imported = [node.module for node in imports_for_type_checkers(plots.__file__)]
    assert imported == [f"{plots.__name__}.{module.name}" for module in pkgutil.iter_modules(plots.__path__)]


def test_a_plot_is_found_where_it_is_defined() -> None:
    """Neither the package nor its plots have a list of names."""
    written = "\n".join(Path(str(module.__file__)).read_text() for module in (roastcoffea, plots))
    assert [name for name in plots.PLOTS if f"plot_{name}" in written] == []
    assert {f"plot_{name}" for name in plots.PLOTS} == {name for name in PUBLIC if name.startswith("plot_")}


def test_a_star_brings_all_names() -> None:
    found: dict[str, object] = {}
    exec("from roastcoffea import *", found)
    assert set(roastcoffea.__all__) <= set(found)


@pytest.mark.parametrize("name", ["MetricCollector", "plot_nope"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'roastcoffea' has no attribute '{name}'"):
        getattr(roastcoffea, name)
