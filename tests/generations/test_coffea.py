"""What releases of coffea do differently, by what each passes and returns."""

from __future__ import annotations

import time
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea import processor
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from coffea.processor import IterativeExecutor, Runner
from releases import RELEASE, Processor
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.generations import (
    UNMARKED,
    arguments_of,
    captured_error,
    factory_of,
    marker_of_opening,
    opens_itself,
    output_of,
    runner_and_executor,
    with_arguments,
)


class Reading(Processor):
    """Adds up a branch."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": float(ak.sum(events.f0))}


class SlowSchema(BaseSchema):  # type: ignore[misc]
    """Takes a while to build events."""

    seconds = 0.05

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        super().__init__(*args, **kwargs)


def test_opening_ends_where_coffea_asks_for_its_cache() -> None:
    assert marker_of_opening({"cache_function": dict}) is dict
    assert marker_of_opening({"cache_function": None}) is marker_of_opening({}) is None


def test_output_and_error_may_be_inside_a_result() -> None:
    error = ValueError("planted")
    assert output_of({"out": 1}) == output_of(SimpleNamespace(value={"out": 1})) == {"out": 1}
    assert captured_error({"exception": error}) is captured_error(SimpleNamespace(exception=error)) is error
    assert captured_error({"out": 1}) is None


def test_time_before_process_is_opening_and_the_bytes_of_preprocessing_are_known(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "a.root")
    runner = Runner(IterativeExecutor(status=False), schema=SlowSchema, chunksize=1000, metadata_cache={})
    with MetricsCollector() as collector:
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=Reading())
    measurement = collector.measurement
    metrics, chunks = measurement.metrics, measurement.chunks
    assert (chunks["build_seconds" if RELEASE >= (2025, 11) else "open_seconds"] >= SlowSchema.seconds).all()
    assert chunks["build_seconds"].isna().all() == (RELEASE < (2025, 11))
    assert measurement.time_ledger["open"] >= 3 * SlowSchema.seconds  # what the first takes longer is start-up
    assert measurement.time_ledger.certificate.reasons == []
    assert measurement.byte_ledger["preprocessing"] > 0
    assert measurement.byte_ledger.residual == 0
    assert measurement.byte_ledger.certificate.complete, measurement.byte_ledger.certificate.reasons
    if RELEASE >= (2025, 11):
        assert metrics["chunk_build_seconds"] > 0
    else:
        assert metrics.missing["chunk_build_seconds"] == UNMARKED
        with pytest.raises(KeyError, match="since 2025"):
            metrics["chunk_build_seconds"]


def work_of_07(schema: Any, name: str, item: Any, processor_instance: Any) -> dict[str, Any]:
    """What coffea 0.7 does with a chunk: it opens the file itself, without options."""
    found = {"entry_start": item.entrystart, "entry_stop": item.entrystop}
    with uproot.open({item.filename: None}) as file:
        events = NanoEventsFactory.from_root(file, treepath=name, schemaclass=schema, **found).events()
        return {"out": processor_instance.process(events), "processed": {item}}


def run_of_07(runner: Any, fileset: Any, processor_instance: Any) -> Any:
    """A Runner call of coffea 0.7: the closure has all arguments but the processor by place."""
    chunks = list(runner.preprocess(fileset, treename="Events"))
    closure = partial(work_of_07, runner.schema, "Events", processor_instance=processor_instance)
    executor = runner.executor.copy(function_name=type(processor_instance).__name__)
    return executor(chunks, closure, None)[0]["out"]


def test_files_that_coffea_opens_without_options_are_metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", run_of_07)
    path = write_tree(tmp_path / "a.root")
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=1000, metadata_cache={})
    fileset = {"a": {"files": {str(path): "Events"}}}
    plain = runner.run(fileset, Reading())
    with MetricsCollector() as collector:
        assert runner.run(fileset, Reading()) == plain
    measurement = collector.measurement
    with uproot.open(f"{path}:Events") as tree:
        baskets = sum(tree["f0"].basket_compressed_bytes(basket) for basket in range(tree["f0"].num_baskets))
    ledger = measurement.byte_ledger
    assert ledger["payload"] == ledger.by("branch")["payload"]["f0"] == baskets
    assert ledger["metadata"] > 0
    assert ledger.residual == ledger["other files"] == 0
    assert (measurement.chunks["bytes_unmetered"] == 0).all()
    assert measurement.problems == ledger.certificate.reasons == []


def by_place(one: int, two: int, item: str, three: int = 3) -> tuple[Any, ...]:
    return one, two, item, three


def test_arguments_by_place_are_replaced_where_they_are() -> None:
    closure = partial(by_place, 1, 2, three=4)
    assert arguments_of(closure) == {"one": 1, "two": 2, "three": 4}
    assert with_arguments(closure, {"two": 20, "three": 40})("item") == (1, 20, "item", 40)
    assert closure("item") == (1, 2, "item", 4)
    named = partial(by_place, one=1, two=2)
    assert arguments_of(named) == {"one": 1, "two": 2}
    assert with_arguments(named, {"three": 5})(item="item") == (1, 2, "item", 5)
    assert arguments_of(len) == {}

    @wraps(by_place)
    def wrapped(*given: Any, **named: Any) -> Any:
        return by_place(*given, **named)

    assert arguments_of(partial(wrapped, 1, 2, three=4)) == arguments_of(closure)
    assert with_arguments(partial(wrapped, 1), {"one": 10})(2, "item") == (10, 2, "item", 3)


def test_coffea_opens_itself_where_it_takes_no_options() -> None:
    assert opens_itself({"schema": None})
    assert not opens_itself({"uproot_options": {}})
    assert not opens_itself({})


def test_events_of_awkward_1_have_their_factory_among_their_behavior() -> None:
    assert factory_of(SimpleNamespace(attrs={"@events_factory": 1})) == 1
    assert factory_of(SimpleNamespace(behavior={"__events_factory__": 2})) == 2


def test_coffea_2024_has_no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner_and_executor() == (Runner, IterativeExecutor.__mro__[1])
    monkeypatch.delattr(processor, "Runner")
    assert runner_and_executor() is None
