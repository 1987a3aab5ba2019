"""A shared run has other names and the same structure."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import handmade_run
from planted_names import ORIGINALS, planted_run
from saved_runs import a_run

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.calls import ASKED_COLUMNS
from roastcoffea.records.run import Run
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.storage.document import fields_by_name
from roastcoffea.storage.sharing import shared
from roastcoffea.storage.store import load_run, save_run
from roastcoffea.storage.tables import TABLES, tables_of


def text_of(run: Run) -> str:
    """All that a run holds."""
    tables = {name: table.to_pydict() for name, table in tables_of(run).items()}
    return repr(({name: value for name, value in fields_by_name(run).items() if name not in TABLES}, tables))


@pytest.mark.slow
def test_no_text_of_a_shared_run_has_an_original_name() -> None:
    run = planted_run()
    assert [name for name in ORIGINALS if name not in text_of(run)] == []
    assert [name for name in ORIGINALS if name in text_of(shared(run))] == []


def test_a_shared_run_is_saved_and_says_so(tmp_path: Any) -> None:
    found = shared(a_run())
    assert found.shared
    assert shared(found) is found
    assert load_run(save_run(found, tmp_path)) == found
    assert not load_run(save_run(a_run(), tmp_path)).shared


def test_names_are_the_same_each_time() -> None:
    assert shared(planted_run()) == shared(planted_run())


def test_tables_keep_their_numbers_and_what_is_unknown() -> None:
    run, found = a_run(), shared(a_run())
    for name, table in tables_of(run).items():
        other = tables_of(found)[name]
        assert other.schema == table.schema
        for column in table.column_names:
            if not (pa.types.is_string(table[column].type) or pa.types.is_list(table[column].type)):
                assert other[column].to_pylist() == table[column].to_pylist()
            assert other[column].is_null().to_pylist() == table[column].is_null().to_pylist()
            assert len({*map(repr, other[column])}) == len({*map(repr, table[column])})
    assert found.profile is not None
    assert found.profile["files"].to_pylist() == [["/a b.py"], []]
    assert found.chunks is not None
    assert found.chunks["coffea_columns"].to_pylist() == [["Jet_pt", None], [], None]


def test_lists_of_a_part_of_a_table() -> None:
    chunks = a_run().chunks
    assert chunks is not None
    found = shared(a_run(chunks=pa.concat_tables([chunks.slice(1), chunks]))).chunks
    assert found is not None
    assert found["coffea_columns"].to_pylist() == [[], None, ["Jet_pt", None], [], None]


def test_the_client_is_the_first_host() -> None:
    lives = [{"worker": "tcp://wn2.x.org:1", "host": "10.0.0.2", "node": "wn2.x.org", "job": "12345", "queue": "q"}]
    found = shared(a_run(lifetimes=table_of_rows(LIFETIME_COLUMNS, lives)))
    assert found.environment.client_host == "host-1"
    assert [host.name for host in found.environment.hosts] == ["host-2", "host-3"]
    (life,) = found.lifetimes.to_pylist()  # type: ignore[union-attr]
    assert [life[name] for name in ("node", "job", "queue")] == ["host-5.domain-1", "job-1", "queue-1"]
    assert life["worker"] == "tcp://host-5.domain-1:1"


def test_a_fingerprint_is_that_of_the_made_up_names() -> None:
    def of(folder: str, name: str = "a.root") -> str | None:
        row = {"call": "call", "dataset": "tt", "file": f"{folder}/{name}", "tree": "t", "uuid": "ab" * 16}
        run = shared(a_run(asked=table_of_rows(ASKED_COLUMNS, [row])))
        return run.calls[0].fileset

    assert of("/data/mine") == of("/data/yours") not in {None, of("/data/mine", "b.root"), a_run().calls[0].fileset}
    assert shared(a_run(asked=None)).calls[0].fileset is None


class Thing:
    def __repr__(self) -> str:
        return "<Thing of /home/janedoe/x>"


def test_what_the_user_gave_is_searched_to_the_bottom() -> None:
    given = {
        ("a", "/home/janedoe/x"): [np.array(["janedoe"]), np.array([1.5]), {"janedoe"}, Thing(), None, 2, "tcp://h9:1"],
        "worker": {"node9": 1},
    }
    found = shared(handmade_run(coffea_report=given, custom_metrics=given)).coffea_report
    assert "janedoe" not in repr(found)
    (key, items), *_ = found.items()
    assert key == ("a", "/path-2/x")
    assert items[1] == [1.5]
    assert items[4:6] == [None, 2]


def test_values_of_chunks_stay_json() -> None:
    chunks = a_run().chunks
    assert chunks is not None
    values = pa.array([json.dumps({"janédoe": "of /home/janédoe/x", "n": 1.5, "b": True}), None, "{}"])
    place = chunks.column_names.index("custom")
    found = shared(a_run(chunks=chunks.set_column(place, chunks.schema.field(place), values))).chunks
    assert found is not None
    first, *others = found["custom"].to_pylist()
    assert json.loads(first) == {"user-1": "of /path-1/x", "n": 1.5, "b": True}
    assert others == [None, "{}"]


@pytest.mark.parametrize("table", list(TABLES))
def test_every_column_of_text_is_planted(table: str) -> None:
    rows = tables_of(planted_run())[table]
    texts = [column.name for column in TABLES[table] if column.kind in {"text", "texts", "values"}]
    assert [name for name in texts if not any(original in repr(rows[name].to_pylist()) for original in ORIGINALS)] == []
