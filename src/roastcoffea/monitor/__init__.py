"""Record every task on a Dask cluster."""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roastcoffea.monitor.history import Snapshot as Snapshot
    from roastcoffea.monitor.shown import ReportComparison as ReportComparison
    from roastcoffea.monitor.task_monitor import TaskMonitor as TaskMonitor

# workers and schedulers import modules of this package, so importing the package must import nothing else
_MODULES: Final = {"ReportComparison": "shown", "Snapshot": "history", "TaskMonitor": "task_monitor"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
