"""Forms in which texts name hosts, users and paths."""

from __future__ import annotations

import re

import pytest

from roastcoffea.storage.places import HOSTS, PLACES, URL, USERS, any_of, is_address, is_telling


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
    assert [name for name in ("jane", "root", "Worker", "jd", "1234", "ok", "compute") if is_telling(name)] == ["jane"]
