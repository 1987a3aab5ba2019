"""Former location of `Saving`, which is now in `roastcoffea.metrics.byte_ledger`."""

from roastcoffea.metrics.byte_ledger import Saving

__all__ = ["Saving"]
