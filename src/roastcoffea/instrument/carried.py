"""The probe on clusters without the package: its code comes once to each worker, and tasks carry this stand-in."""

from __future__ import annotations

import logging
import operator
import pickle
from collections.abc import Callable
from typing import Any


class CarriedProbe:
    """Callable that makes its probe of what the collector's plugin on the worker has, and runs the function in it.

    Parameters
    ----------
    packed_class : bytes
        This class pickled by value.
    name : str
        Name for the Dask task.
    topic : str
        Name of the plugin.
    function : callable
        What coffea handed to the executor.
    state : tuple
        Further arguments of the probe.
    """

    def __init__(
        self, packed_class: bytes, name: str, topic: str, function: Callable[..., Any], state: tuple[Any, ...]
    ) -> None:
        self._state = (packed_class, name, topic, function, state)
        self.__name__ = name

    def __call__(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        _, name, topic, function, state = self._state
        from distributed import get_worker

        plugin = get_worker().plugins.get(topic)
        if plugin is None:
            logging.getLogger(__name__).warning("a chunk was not recorded: the worker does not have %s", topic)
            return function(item, *args, **kwargs)
        return plugin.unpacked()(function, name, *state)(item, *args, **kwargs)

    def __str__(self) -> str:
        return self.__name__

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("roastcoffea-probe", self._state[4])

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.call, (_Packed(self._state[0]), *self._state)


class _Packed:
    """Stands for an object that was pickled already, and unpickles to it."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.packed,)
