"""Public alias of `roastcoffea.recording.importers`."""

from roastcoffea.recording.importers import measurement_from_report

__all__ = ["measurement_from_report"]
