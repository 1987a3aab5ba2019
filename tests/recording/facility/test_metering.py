"""Chunks of clients without roastcoffea."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest
from coffea.processor import Runner
from releases import RELEASE

from roastcoffea.recording.facility import recorder as metering


def functions() -> dict[str, object]:
    return {name: Runner.__dict__[name] for name in metering.FUNCTIONS}


def test_coffeas_functions_are_restored_and_wrapped_once() -> None:
    before = functions()
    metering.start()
    wrapped = functions()
    metering.start()
    assert functions() == wrapped
    assert not wrapped.items() & before.items()
    metering.stop()
    assert functions() == before
    metering.stop()


def test_tasks_find_the_wrapped_function_by_name() -> None:
    name = "metadata_fetcher_root"
    sent = cloudpickle.dumps(getattr(Runner, name))
    metering.start()
    try:
        wrapped = getattr(Runner, name)
        assert pickle.loads(sent) is wrapped
        assert pickle.loads(cloudpickle.dumps(wrapped)) is wrapped
    finally:
        metering.stop()


def test_outside_a_dask_task_it_is_coffeas_own() -> None:
    metering.start()
    try:
        with pytest.raises(AttributeError, match="filename"):
            Runner.metadata_fetcher_root(10, False, *([{}] if RELEASE >= (2026, 4) else []), None)
    finally:
        metering.stop()
