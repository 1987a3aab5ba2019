"""Every task of a cluster, recorded from outside."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roastcoffea.monitor.task_monitor import TaskMonitor as TaskMonitor


# workers and schedulers import what runs there alone, so nothing else may come with it
def __getattr__(name: str) -> Any:
    if name != "TaskMonitor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("roastcoffea.monitor.task_monitor").TaskMonitor
