"""The public name of what is in `roastcoffea.recording.auto`."""

from roastcoffea.recording.auto import record

__all__ = ["record"]
