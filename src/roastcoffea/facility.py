"""Scheduler preload module: `dask scheduler --preload roastcoffea.facility`."""

from roastcoffea.recording.facility.recorder import dask_setup, dask_teardown

__all__ = ["dask_setup", "dask_teardown"]
