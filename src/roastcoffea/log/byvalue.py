"""Pickling our code by value, for schedulers and workers that do not have the package."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import cloudpickle

import roastcoffea
from roastcoffea.interrupts import interrupts_held

_lock = threading.RLock()  # what is packed may hold functions that are packed themselves


def is_registered() -> bool:
    """Whether everything in the package is pickled by value."""
    return roastcoffea.__name__ in cloudpickle.list_registry_pickle_by_value()


def packed_by_value(thing: Any) -> bytes:
    """Pickle of an object of this package that loads without the package installed."""
    with interrupts_held(), _lock:
        if is_registered():
            return bytes(cloudpickle.dumps(thing))
        cloudpickle.register_pickle_by_value(roastcoffea)
        try:
            return bytes(cloudpickle.dumps(thing))
        finally:
            cloudpickle.unregister_pickle_by_value(roastcoffea)


class ByValue:
    """Placeholder for an object of this package that unpickles to it wherever cloudpickle is installed."""

    def __init__(self, thing: Any) -> None:
        self._packed = packed_by_value(thing)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._packed,)
