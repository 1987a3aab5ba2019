"""Made-up names keep the structure of the names they replace."""

from __future__ import annotations

import pytest

from roastcoffea.storage.pseudonyms import Pseudonyms


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
