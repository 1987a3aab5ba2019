"""Public alias of `roastcoffea.compat.legacy`."""

from roastcoffea.compat.legacy import load_legacy

__all__ = ["load_legacy"]
