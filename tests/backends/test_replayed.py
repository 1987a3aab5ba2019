from __future__ import annotations

import pytest

from roastcoffea.recording.recovery import ReplayedCluster, ReplayedProcesses, replayed


def test_each_kind_has_a_recorder_that_records_nothing_itself() -> None:
    assert isinstance(replayed("dask"), ReplayedCluster)
    for kind in ("local", "MyBackend"):
        recorder = replayed(kind)
        assert isinstance(recorder, ReplayedProcesses)
        assert recorder.kind == kind
        assert not recorder.reaches(None)
        recorder.close()
        with pytest.raises(NotImplementedError):
            recorder.open(1.0)


def test_a_backend_of_the_users_has_facts_without_processes() -> None:
    recorder = replayed("MyBackend")
    recorder.learn({"recorded": True, "hosts": [], "problems": []})
    assert recorder.was_open
    assert recorder.lifetimes(0.0, 1.0).num_rows == 0
