"""The older path of `Saving`, which is in `roastcoffea.metrics.byte_ledger`."""

from roastcoffea.metrics.byte_ledger import Saving

__all__ = ["Saving"]
