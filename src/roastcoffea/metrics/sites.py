"""Sites of files: the fileset's replicas, by which bytes and thread time are split."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

BETWEEN = "\0"


def with_sites(attempts: pa.Table, asked: pa.Table | None) -> pa.Table:
    """Attempts with the site of each file, as it was asked for; None where that is not known."""
    sites = pa.nulls(len(attempts), pa.string())
    if asked is not None and "site" in asked.column_names and asked["site"].null_count < len(asked):
        known = asked.filter(asked["site"].is_valid()).group_by(["dataset", "file"]).aggregate([("site", "max")])
        sites = known["site_max"].take(pc.index_in(_places(attempts), value_set=_places(known).combine_chunks()))
    return attempts.append_column("site", sites)


def _places(table: pa.Table) -> pa.ChunkedArray:
    """Dataset and file as one text."""
    return pc.binary_join_element_wise(table["dataset"], table["file"], BETWEEN, null_handling="replace")
