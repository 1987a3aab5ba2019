"""Public name of `roastcoffea.recording.facility.preload`: `dask scheduler --preload roastcoffea.facility`."""

from roastcoffea.recording.facility.preload import dask_setup, dask_teardown

__all__ = ["dask_setup", "dask_teardown"]
