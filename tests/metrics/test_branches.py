"""Branches of files."""

from handmade import BRANCH_READS, A, B, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.branches import branches_of
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS


def test_what_is_not_known_of_one_read_is_not_known_of_the_branch():
    reads = [row | ({"read_seconds": None} if row["chunk"] == 14 else {}) for row in BRANCH_READS]
    reads = [row | ({"bytes_uncompressed": None} if row["chunk"] == 16 else {}) for row in reads]
    run = handmade_run(branch_reads=table_of_rows(BRANCH_READ_COLUMNS, reads))
    rows = {(row["file"], row["branch"]): row for row in branches_of(run).to_pylist()}
    assert [rows[A, "run"][f"{step}_seconds"] for step in ("read", "decompress", "interpret")] == [None, 0.25, 0.125]
    assert rows[B, "run"]["read_seconds"] == 0.25
    assert Measurement(run).byte_ledger.by("branch")["uncompressed"].isna().all()
    assert "not known for 2 of 4 branches" in Measurement(run).metrics.missing["total_bytes_uncompressed"]
