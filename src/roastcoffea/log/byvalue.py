"""Pickle the package's code by value, for schedulers and workers that do not have the package."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import cloudpickle

import roastcoffea
from roastcoffea.interrupts import interrupts_held

_lock = threading.RLock()  # a packed function may contain another packed function


def is_registered() -> bool:
    return roastcoffea.__name__ in cloudpickle.list_registry_pickle_by_value()


def packed_by_value(thing: Any) -> bytes:
    """Pickle an object from this package so that it can be loaded without the package."""
    with interrupts_held(), _lock:
        if is_registered():
            return bytes(cloudpickle.dumps(thing))
        cloudpickle.register_pickle_by_value(roastcoffea)
        try:
            return bytes(cloudpickle.dumps(thing))
        finally:
            cloudpickle.unregister_pickle_by_value(roastcoffea)


class ByValue:
    """Wrapper that unpickles to the wrapped object wherever cloudpickle is installed."""

    def __init__(self, thing: Any) -> None:
        self._packed = packed_by_value(thing)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._packed,)
