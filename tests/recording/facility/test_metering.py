"""Chunks of clients without roastcoffea."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest
from coffea.processor import Runner
from releases import RELEASE

from roastcoffea.recording.facility import recorder as metering


def functions() -> dict[str, object]:
    return {name: Runner.__dict__[name] for name in metering.FUNCTIONS if name in Runner.__dict__}


def test_runners_have_a_function_for_chunks_and_one_for_files() -> None:
    assert [metering.FUNCTIONS[name] for name in functions()] == [False, True]


def test_the_function_for_files_has_another_name_in_coffea_0_7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "metadata_fetcher", staticmethod(lambda timeout, align, item: item), raising=False)
    before = functions()["metadata_fetcher"]
    metering.start()
    assert functions()["metadata_fetcher"] is not before
    metering.stop()
    assert functions()["metadata_fetcher"] is before


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
    name = [*functions()][-1]
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
            getattr(Runner, [*functions()][-1])(10, False, *([{}] if RELEASE >= (2026, 4) else []), None)
    finally:
        metering.stop()
