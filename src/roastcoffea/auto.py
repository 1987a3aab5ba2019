"""Public alias of `roastcoffea.recording.auto`."""

from roastcoffea.recording.auto import Recorder, TerminatedError, record

__all__ = ["Recorder", "TerminatedError", "record"]
