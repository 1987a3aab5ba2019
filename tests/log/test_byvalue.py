"""Pickles of our code that load where the package is not installed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import roastcoffea
from roastcoffea.instrument.shared import portable
from roastcoffea.log.byvalue import ByValue, packed_by_value
from roastcoffea.log.marks import added_up

LOADING = """
import pickle, sys
assert sys.modules.get("roastcoffea") is None
sys.modules["roastcoffea"] = None  # an import of it raises
added_up = pickle.load(open(sys.argv[1], "rb"))
print(added_up([{"a": 1}, {"a": 2, "b": 3}]))
"""


def test_what_is_packed_by_value_needs_no_package(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(pickle.dumps(ByValue(added_up)))
    done = subprocess.run([sys.executable, "-c", LOADING, str(packed)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{'a': 3, 'b': 3}\n", "")


def test_what_it_unpickles_to_is_the_object() -> None:
    assert pickle.loads(pickle.dumps(ByValue({"a": (1, 2)}))) == {"a": (1, 2)}


@pytest.mark.parametrize("thing", [1, lambda: None])
def test_the_package_is_registered_no_longer_than_it_takes(thing: object) -> None:
    packed_by_value(thing)
    assert roastcoffea.__name__ not in cloudpickle.list_registry_pickle_by_value()


class Refusing:
    """What cannot be pickled."""

    def __reduce__(self) -> tuple[object, ...]:
        raise ValueError("planted")


def test_where_packing_fails_the_package_is_not_registered_either() -> None:
    with pytest.raises(ValueError, match="planted"):
        packed_by_value(Refusing())
    assert roastcoffea.__name__ not in cloudpickle.list_registry_pickle_by_value()


def test_a_registration_of_the_user_s_stays() -> None:
    cloudpickle.register_pickle_by_value(roastcoffea)
    try:
        packed_by_value(added_up)
        assert roastcoffea.__name__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(roastcoffea)


def test_what_is_packed_may_hold_functions_that_pack_themselves() -> None:
    function = portable(added_up)
    assert pickle.loads(packed_by_value([function]))[0]([{"a": 1}, {"a": 2}]) == {"a": 3}
