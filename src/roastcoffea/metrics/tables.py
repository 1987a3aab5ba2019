"""Tables of branches, for people to look at."""

from __future__ import annotations

import pyarrow as pa

from roastcoffea.metrics.branches import branches_of
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import fact, refuse_if
from roastcoffea.metrics.facts import reason_of_absence
from roastcoffea.records.run import Run


@fact
def branches(run: Run, byte_ledger: ByteLedger | None = None) -> pa.Table:
    """Branches of files by dataset, with BRANCH_COLUMNS: as the ledger counted them, where there is one."""
    found = branches_of(run) if byte_ledger is None else byte_ledger.branches
    refuse_if(found is None, reason_of_absence(run, "chunks" if run.chunks is None else "branch_reads"))
    return found
