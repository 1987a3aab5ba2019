"""The tree of frames of sampled stacks."""

from __future__ import annotations

import pyarrow as pa
from profiled import ROWS, profile_table

from roastcoffea.metrics.profile import Place, Profile, stacks_of


def test_stacks_of_several_calls_are_summed() -> None:
    once = list(stacks_of(profile_table()))
    twice = list(stacks_of(pa.concat_tables([profile_table(), profile_table()])))
    assert [stack.seconds for stack in twice] == [2 * stack.seconds for stack in once]
    assert len(once) == len(ROWS)


def test_the_tree_sums_what_is_called() -> None:
    root = Profile(stacks_of(profile_table())).tree()
    assert (root.seconds, root.self_seconds, root.samples) == (20.0, 0.0, 200)
    assert root.datasets == {"tt": 16.0, "dy": 4.0}
    (process,) = root.children
    assert process.place == Place("P.process", "/home/p.py", 10)
    assert (process.seconds, process.self_seconds) == (20.0, 1.0)
    assert [child.place.function for child in process.children] == ["spin", "ak.sum", "helper"]
    recursive = process.children[0]
    assert (recursive.seconds, recursive.self_seconds) == (12.0, 10.0)
    assert recursive.states["core"] == 11.0
