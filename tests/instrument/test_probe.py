"""The probe alone: the same results and exceptions, small records, pickles that need no package."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import lz4.frame
import pytest
import uproot
from coffea.processor import Runner
from coffea.processor.executor import WorkItem
from dask.utils import funcname
from releases import needs_kinds_of_skips
from stored import outcome, write_tree

from roastcoffea.instrument.channels import CarriedProbe
from roastcoffea.instrument.probe import Probe
from roastcoffea.log.byvalue import packed_by_value

ITEM = WorkItem("ttbar", "root://host//file.root", "Events", 0, 100, b"\x01" * 16)


def probe(function: Any) -> Probe:
    return Probe(function, "Jets", "call", (("topic",), None, False))


def test_results_and_exceptions_are_those_of_the_function() -> None:
    result = object()
    assert probe(lambda item: result)(ITEM) is result
    error = KeyError("mine")

    def raising(item: Any) -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        probe(raising)(ITEM)
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


@pytest.mark.parametrize("item", [None, 3, ("not", "work"), object()])
def test_items_that_are_no_work_items_are_passed_on(item: Any) -> None:
    assert probe(lambda given: given)(item) is item


def test_a_gauge_that_fails_does_not_fail_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> float:
        raise OSError("no clock")

    monkeypatch.setattr("roastcoffea.instrument.attempt.time.thread_time", broken)
    assert probe(lambda item: 5)(ITEM) == 5


def interrupted() -> None:
    raise KeyboardInterrupt


class InterruptsUnpickling:
    """A processor that takes so long to unpickle that the user has enough of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return interrupted, ()


def test_an_interrupt_before_the_chunk_begins_leaves_nothing_open() -> None:
    begun = []
    packed = lz4.frame.compress(cloudpickle.dumps(InterruptsUnpickling()))
    function = partial(lambda item, processor_instance: begun.append(item), processor_instance=packed)
    with pytest.raises(KeyboardInterrupt):
        probe(function)(ITEM)
    assert begun == []
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


@needs_kinds_of_skips
def test_automatic_retries_of_coffea_still_retry() -> None:
    calls = []

    def flaky(item: Any) -> int:
        calls.append(item)
        if len(calls) < 3:
            raise OSError("once more")
        return 7

    function = partial(Runner.automatic_retries, 3, True, flaky)
    with pytest.warns(UserWarning, match="Performed attempt"):
        assert probe(function)(ITEM) == 7
    assert calls == [ITEM] * 3


def test_the_task_is_named_and_tokenized_for_the_call() -> None:
    from dask.base import tokenize

    assert funcname(probe(len)) == "Jets"
    assert str(probe(len)) == "Jets"
    assert tokenize(probe(len)) == tokenize(probe(len))
    assert tokenize(probe(len)) != tokenize(Probe(len, "Jets", "another call"))


def test_what_stands_for_it_in_tasks_is_small() -> None:
    stand_in = CarriedProbe(packed_by_value(CarriedProbe), "Jets", "topic", len, ("call", ("topic",)))
    assert funcname(stand_in) == "Jets"
    pickled = pickle.dumps(stand_in)
    assert len(pickled) < 6000
    assert pickle.loads(pickle.dumps(pickle.loads(pickled))).__name__ == "Jets"


def test_pickled_by_value_it_has_nothing_of_what_this_process_read(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "tree.root", baskets=1)
    outcome(path, len)
    with uproot.open(path) as file:
        assert file.file.fUUID not in packed_by_value(Probe)


def test_pickled_by_value_it_needs_no_package() -> None:
    pickled = packed_by_value(Probe)
    # each worker gets it once: at the bandwidth that Dask assumes, in 4 ms
    assert len(pickled) / dask.config.get("distributed.scheduler.bandwidth") < 4e-3
    script = textwrap.dedent("""
        import builtins, pickle, sys
        plain = builtins.__import__
        def lacking(name, *args, **kwargs):
            if name.split(".")[0] == "roastcoffea":
                raise ModuleNotFoundError(name)
            return plain(name, *args, **kwargs)
        builtins.__import__ = lacking
        probe = pickle.loads(sys.stdin.buffer.read())(len, "Jets", "call", (("topic",), None, False))
        print(probe([1, 2]), any("roastcoffea" in name for name in sys.modules))
    """)
    answer = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True, check=True)
    assert answer.stdout.split() == [b"2", b"False"]


def test_unpickling_the_probe_loads_nothing_heavy() -> None:
    script = textwrap.dedent("""
        import pickle, sys
        import roastcoffea
        before = set(sys.modules)
        pickle.loads(sys.stdin.buffer.read())([1])
        heavy = {"numpy", "pandas", "pyarrow", "rich", "matplotlib", "bokeh", "coffea", "uproot", "awkward"}
        print(sorted(heavy & set(sys.modules)))
    """)
    answer = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(probe(len)), capture_output=True, check=True
    )
    assert answer.stdout.strip() == b"[]", answer.stderr


@pytest.mark.slow
def test_its_own_cost_is_what_is_counted() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "counted.py"
    command = [sys.executable, str(script), "--bytecodes", "--branches", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shares = [float(share) for share in re.findall(r"(\d\.\d\d) of them in the class measuring", done.stdout)]
    assert len(shares) == 2
    assert all(0.75 < share < 1.25 for share in shares)
