"""What was read of each file."""

from handmade import BRANCH_READS, CHUNKS, B, branch_read, metrics_of


def test_trees_of_a_file_are_taken_together():
    other = CHUNKS[-1] | {"id": 100, "key": "other", "tree": "Runs", "tree_branches": 2}
    reads = [*BRANCH_READS, *(branch_read(100, name, 0, [100]) for name in ("Jet_pt", "run"))]
    files = metrics_of([*CHUNKS, other], reads)["file_read_metrics"]
    assert (files[B]["branches_read"], files[B]["total_branches"]) == (4, 6)
    assert files[B]["bytes_read"] == 600
    unknown = metrics_of([*CHUNKS, other | {"tree_branches": None}], reads)["file_read_metrics"]
    assert (unknown[B]["total_branches"], unknown[B]["branches_read_percent"]) == (None, None)
