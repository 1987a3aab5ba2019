"""A shared run has other names and the same structure."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import handmade_run
from saved_runs import ORIGINALS, a_run, planted_run

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import ASKED_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.storage.document import TABLES, fields_by_name, tables_of
from roastcoffea.storage.sharing import HOSTS, PLACES, URL, USERS, Pseudonyms, any_of, is_address, shared
from roastcoffea.storage.store import load_run, save_run


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


def replaced(*texts: str, kind: str = "text") -> list[str]:
    names = Pseudonyms()
    for text in texts:
        names.learn(kind, text)
    return [names.replaced(kind, text) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root://a.x.org:1094//store/mc/Run3/f.root?n=1", "root://host-1.domain-1:1094//store/mc/Run3/f.root?n=1"),
        ("root://a.x.org//eos/u/jane/f.root", "root://host-1.domain-1//path-1/f.root"),
        ("root://jane:***@a.x.org//f.root", "root://user-1@host-1.domain-1//f.root"),
        (
            "root://xcache.x.org//root:/a.y.org//data/f.root",
            "root://xcache-1.domain-1//root:/host-1.domain-2//path-1/f.root",
        ),
        ("root://a.x.org//root://b.x.org//f.root", "root://host-1.domain-1//root://host-2.domain-1//f.root"),
        ("simplecache::root://a.x.org//f.root", "simplecache::root://host-1.domain-1//f.root"),
        ("tcp://10.0.0.7:40000 lost", "tcp://host-1:40000 lost"),
        ("tls://[2001:db8::1]:4000", "tls://host-1:4000"),
        ("inproc://10.0.0.7/12/1", "inproc://host-1/12/1"),
        ("tcp://127.0.0.1:4000 tcp://[::1]:4000 localhost", "tcp://127.0.0.1:4000 tcp://[::1]:4000 localhost"),
        ("see https://docs.dask.org/en/stable/a.html", "see https://docs.dask.org/en/stable/a.html"),
        ("'/home/Jane Doe/my files/a.py': no, Jane Doe", "'/path-1/a.py': no, user-1"),
        ("/opt/lib/python3.11/site-packages/coffea/a.py", "/path-1/python3.11/site-packages/coffea/a.py"),
        ("/venv/x/site-packages/coffea/a.py", "/path-1/coffea/a.py"),
        ("/store/user/jane/skim/f.root", "/store/user/user-1/path-1/f.root"),
        ("C:\\Users\\jane\\a.py, jane_v2", "C:\\path-1\\a.py, user-1_v2"),
        ("ttbar_jane_v2 of /home/jane/x, janet", "ttbar_user-1_v2 of /path-1/x, janet"),
        ("worker on root at home, N/A, events.Muon.pt", "worker on root at home, N/A, events.Muon.pt"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert replaced(text) == [expected]


def test_equal_names_are_equal_everywhere() -> None:
    texts = ("node7 lost", "tcp://node7.x.org:1", "node7.x.org", "tcp://node8.x.org:1", "10.0.0.1", "NODE7")
    expected = [
        "host-1 lost",
        "tcp://host-1.domain-1:1",
        "host-1.domain-1",
        "tcp://host-2.domain-1:1",
        "host-3",
        "host-1",
    ]
    assert replaced(*texts) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("host", "node7", "host-1"),
        ("host", "node7.x.org:1094", "host-1.domain-1:1094"),
        ("host", "login/1234", "host-1/1234"),
        ("host", "tcp://node7:4000", "tcp://host-1:4000"),
        ("file", "/data/my nano/a b.root", "/path-1/a b.root"),
        ("file", "data/nano/a.root", "path-1/a.root"),
        ("file", "a.root", "a.root"),
        ("file", "root://a.x.org//my data/f.root?a=1", "root://host-1.domain-1//path-1/f.root?a=1"),
        ("place", "/home/jane/a.py", "/path-1/a.py"),
        ("place", "coffea/processor/executor.py", "coffea/processor/executor.py"),
        ("place", "<string>", "<string>"),
        ("uuid", "ab" * 16, "0" * 31 + "1"),
        ("job", "1234.0", "job-1"),
        ("queue", "short", "queue-1"),
        ("site", "T2_DE_DESY", "site-1"),
    ],
)
def test_kinds(kind: str, text: str, expected: str) -> None:
    assert replaced(text, kind=kind) == [expected]


def test_paths_with_spaces_are_found_in_other_texts() -> None:
    names = Pseudonyms()
    for path in ("/data/my nano/a.root", "root://a.x.org//my data/b c.root"):
        names.learn("file", path)
    text = "missing: /data/my nano/other.root, root://a.x.org//my data/b c.root and /data/x/c.root"
    expected = "missing: /path-1/other.root, root://host-1.domain-1//path-2/b c.root and /path-3/c.root"
    assert names.replaced("text", text) == expected


def test_a_job_is_found_in_other_texts() -> None:
    names = Pseudonyms()
    names.learn("job", "987654.0")
    assert names.replaced("text", "job 987654.0 was killed, 1987654.01") == "job job-1 was killed, 1987654.01"


def test_a_name_that_was_cut_is_replaced() -> None:
    names = Pseudonyms()
    names.learn("text", "/home/janedoe/x")
    assert names.replaced("text", f"{'x ' * 60} cannot open /home/janed").endswith("cannot open /path-1/user-1")
    assert names.replaced("text", "short janed") == "short janed"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("root://xrootd-3.example.org:1094//store/a.root", "xrootd-3.example.org"),
        ("tcp://[2001:db8::1]:4000", "[2001:db8::1]"),
        ("root://jane:pw@door.example.org//f", "door.example.org"),
        ("s3://bucket/key", "bucket"),
        ("file:///home/jane/f.root", ""),
        ("(see http://a.example.org/b).", "a.example.org"),
    ],
)
def test_hosts_of_urls(text: str, host: str) -> None:
    found = URL.search(text)
    assert found is not None
    assert found["host"] == host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/jane/a.root: denied", ["/home/jane/a.root"]),
        ("'/home/Jane Doe/a b.root' is gone", ["'/home/Jane Doe/a b.root'"]),
        ('File "/a/b/c.py", line 3', ['"/a/b/c.py"']),
        ("in ~jane/x/y.py and ../x/y.py:3", ["~jane/x/y.py", "../x/y.py"]),
        (r"C:\Users\jane\x.py line 3", [r"C:\Users\jane\x.py"]),
        ("/DC=ch/CN=jane/CN=Jane Doe, valid", ["/DC=ch/CN=jane/CN=Jane Doe"]),
        ("root://a//b/c.root and /x/y", ["root://a//b/c.root", "/x/y"]),
        ("N/A, 3/4/5, kB/s/core, and/or, jets/read/x, a::b, /only", []),
    ],
)
def test_places_in_texts(text: str, expected: list[str]) -> None:
    assert [found[0] for found in PLACES.finditer(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.7, 2001:db8::1 and fe80::1", ["10.0.0.7", "2001:db8::1", "fe80::1"]),
        ("door-3.example.org refused", ["door-3.example.org"]),
        ("at 12:30:01, events.Muon.pt, numpy.linalg.svd, std::vector, a::b, 2026.9.0, f.root, v1.2.3.4.5", []),
    ],
)
def test_hosts_by_their_form(text: str, expected: list[str]) -> None:
    found = list(re.finditer(HOSTS, text))
    assert [match[0] for match in found if match.lastgroup == "name" or is_address(match[0])] == expected


@pytest.mark.parametrize(
    "text",
    [
        "/home/jane/x",
        "/afs/cern.ch/user/j/jane/x",
        "/eos/home-j/jane",
        "/store/user/jane/f.root",
        "/store/user/rucio/jane/f.root",
        r"C:\Users\jane\x",
        "~jane/x",
        "user.jane:dataset",
        "username=jane",
        "jane@example.org",
        "jupyter-jane",
        "/DC=ch/CN=jane/CN=1234",
    ],
)
def test_users(text: str) -> None:
    assert "jane" in {found["user"] for pattern in USERS for found in pattern.finditer(text)}


@pytest.mark.parametrize("text", ["the user code of users", "events.user.config", "home alone", "1234", "a@b"])
def test_what_names_no_user(text: str) -> None:
    assert [found["user"] for pattern in USERS for found in pattern.finditer(text)] == []


def test_the_longest_name_is_found() -> None:
    names = [f"node{number}" for number in range(200)] + ["mary", "mary-jane", "a.b"]
    pattern = re.compile(any_of(names))
    assert all(pattern.fullmatch(name) for name in names)
    assert [found[0] for found in pattern.finditer("mary-jane on node199, a.b, axb")] == ["mary-jane", "node199", "a.b"]


def test_common_words_tell_nothing() -> None:
    names, words = Pseudonyms(), ("jane", "root", "Worker", "jd", "1234", "ok", "compute")
    for word in words:
        names.learn("text", f"/home/{word}/file")
    assert [word for word in words if names.replaced("text", word) != word] == ["jane"]
