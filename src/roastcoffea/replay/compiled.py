"""A simulation that is compiled where there are many chunks, and runs as it is where there are few."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from roastcoffea.replay.engine import Simulation
from roastcoffea.replay.inputs import Costs, Hosts, Outcome, Setting, Tasks

MANY: Final = 10_000
"""Chunks from which on compiling is worth its time."""


def simulated(setting: Setting, costs: Costs, tasks: Tasks, hosts: Hosts) -> Outcome:
    """Simulate chunks and merges on a cluster, until all have ended."""
    if setting.chunks >= MANY:
        return _compiled()(setting, costs, tasks, hosts)
    return _with_lists(Simulation(setting, costs, tasks, hosts)).until_done()


def _with_lists(simulation: Simulation) -> Simulation:
    """The same with lists in place of arrays, which are quicker where nothing is compiled."""
    for name, value in vars(simulation).items():
        if isinstance(value, np.ndarray):
            setattr(simulation, name, value.tolist())
    return simulation


@cache
def _compiled() -> Callable[[Setting, Costs, Tasks, Hosts], Outcome]:
    """The whole simulation, compiled as a class whose attributes have the types that they have in an example.

    It begins and ends inside: a simulation that were handed out would be compiled for access from Python, which takes
    as long again.
    """
    from numba import njit, typeof
    from numba.experimental import jitclass

    none, counts = np.zeros(0), np.zeros(0, np.int64)
    setting = Setting(chunks=0, workers=1, threads=1, limit=1, fetch=0.0, serial=False)
    tasks = Tasks(before=none, wait=none, after=none, parent=counts, missing=counts)
    example = Simulation(setting, Costs(), tasks, Hosts(cores=np.ones(1), first_job=np.array([0, 3])))
    compiled = jitclass({name: typeof(value) for name, value in vars(example).items()})(Simulation)

    def whole(setting: Setting, costs: Costs, tasks: Tasks, hosts: Hosts) -> Outcome:
        outcome: Outcome = compiled(setting, costs, tasks, hosts).until_done()
        return outcome

    done: Callable[[Setting, Costs, Tasks, Hosts], Outcome] = njit(whole)
    return done
