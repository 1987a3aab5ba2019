"""All plots. Each plot takes a collector, a measurement, a Run or data from version 0.1.2, and returns (figure, axes).

Each plot is a function in one of this folder's modules, decorated with `plot`.
"""

# ruff: noqa: F403, F405, PLE0604  (the star imports are for type checkers and editors; at run time, plots are discovered)
from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from roastcoffea.visualization.registry import PLOTS as PLOTS
from roastcoffea.visualization.registry import registered as registered

if TYPE_CHECKING:
    from roastcoffea.visualization.plots.chunks import *
    from roastcoffea.visualization.plots.ledgers import *
    from roastcoffea.visualization.plots.per_task import *
    from roastcoffea.visualization.plots.workers import *
else:
    for module in pkgutil.iter_modules(__path__):  # in the order of the plots
        importlib.import_module(f"{__name__}.{module.name}")
    from roastcoffea.visualization.plots.per_task import extract_per_task_metrics

    globals().update({entry.function_name: entry.function for entry in PLOTS.values()})
    __all__ = ["PLOTS", "registered", "extract_per_task_metrics", *(entry.function_name for entry in PLOTS.values())]
