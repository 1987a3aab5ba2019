"""Inputs before a run: planted files of every kind, servers that do not answer, and what is written."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from processes import PATIENCE, wait_until
from servers import http_server

from roastcoffea.cli import main
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.studies.inspection import SILENT, Input, all_looked_at, fileset_at, inputs_of, inspect
from roastcoffea.studies.tree_headers import tree_header

BRANCHES = ("x", "y", "z")
WRONG = {
    "cut.root": "truncated: 2",
    "zero.root": "received 0 bytes",
    "stub.root": "received 5 bytes",
    "page.root": "not a ROOT file: first four bytes are b' <!D'",
    "text.root": "not a ROOT file: first four bytes are b'This'",
    "histogram.root": "no tree Events; it has none",
    "other.root": "no tree Events; it has Jets",
    "nothing.root": "",
    "empty.root": "no events",
    "twice.root": "same file as",
}


def write(path: Path, events: int = 100, branches: Any = BRANCHES, tree: str = "Events", **options: Any) -> Path:
    with uproot.recreate(path, **options) as file:
        made = file.mktree(tree, dict.fromkeys(branches, "float64"))
        for _ in range(2 if events else 0):
            made.extend({name: np.zeros(events // 2) for name in branches})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good files, and all others."""
    folder = tmp_path_factory.mktemp("inputs")
    good = write(folder / "a.root")
    write(folder / "b.root", 60)
    # the end of the file is lost, and the end of what is left is not
    (folder / "cut.root").write_bytes(good.read_bytes()[:-100])
    (folder / "zero.root").touch()
    (folder / "stub.root").write_bytes(b"root\n")
    (folder / "page.root").write_text(" <!DOCTYPE html>\n<html>" + "Log in to read files. " * 100)
    (folder / "text.root").write_text("This is no file. " * 100)
    with uproot.recreate(folder / "histogram.root") as file:
        file["h"] = np.histogram([1.0, 2.0])
    write(folder / "other.root", tree="Jets")
    write(folder / "empty.root", 0)
    shutil.copy(good, folder / "twice.root")
    write(folder / "less.root", branches=BRANCHES[:2])
    return folder


def fileset(root: str) -> dict[str, Any]:
    names = ["a.root", "b.root", "less.root", *WRONG]
    return {"data": {"files": {f"{root}/{name}": "Events" for name in names}, "metadata": {"year": 2018}}}


@pytest.mark.parametrize("remote", [False, True])
def test_each_wrong_file_is_named_with_its_reason(folder: Path, remote: bool) -> None:
    with http_server(folder) as server:
        root = server.url if remote else str(folder)
        found = inspect(fileset(root), threads=4)
    reasons = {one.file.rsplit("/", 1)[-1]: one.reason for one in found.dropped}
    assert reasons.keys() == WRONG.keys()
    for name, reason in WRONG.items():
        assert reasons[name], name
        assert reason in reasons[name], name
    assert found.cleaned == {
        "data": {"files": {f"{root}/{name}.root": "Events" for name in ("a", "b", "less")}, "metadata": {"year": 2018}}
    }
    kept = inspect(fileset(str(folder)), keep_empty=True).cleaned["data"]["files"]
    assert f"{folder}/empty.root" in kept


def test_branches_that_some_files_lack_are_listed(folder: Path) -> None:
    (row,) = inspect(fileset(str(folder))).partial_branches
    assert (row["branches"], row["missing_in"]) == (["z"], [f"{folder}/less.root"])


def test_amounts_are_those_of_the_files(folder: Path) -> None:
    files = [folder / "a.root", folder / "b.root"]
    found = inspect({"data": list(map(str, files))}).as_dict()
    trees = [uproot.open(file)["Events"] for file in files]
    for row, file, tree in zip(found["files"], files, trees, strict=True):
        assert (row["events"], row["size"]) == (tree.num_entries, file.stat().st_size)
        assert (row["baskets"], row["compressed"]) == (6, tree.compressed_bytes)
        assert row["baskets"] == sum(branch.num_baskets for branch in tree.branches)
    (row,) = found["datasets"]
    assert (row["files"], row["readable"], row["events"]) == (2, 2, 160)
    assert row["size"] == sum(file.stat().st_size for file in files)
    assert row["basket_size"] == sum(tree.compressed_bytes for tree in trees) / 12


@pytest.mark.parametrize("codec", ["LZMA", "ZLIB", "LZ4", "ZSTD"])
def test_the_codec_is_that_of_the_file(codec: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.root", 2_000, compression=getattr(uproot, codec)(1))
    assert {each.lower() for each in tree_header(str(path), None).codecs} == {codec.lower()}
    assert tree_header(str(write(tmp_path / "raw.root", compression=None)), None).codecs == {"none"}


def refuse(_: bytes) -> None:
    raise ValueError


def test_the_short_way_reads_what_uproot_reads(real_files: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files with up to 1,600 branches, some of which have others inside or baskets in the tree."""
    for entry in real_files.values():
        (path,) = entry["files"]
        short = tree_header(path, "Events")
        with monkeypatch.context() as patch:
            patch.setattr("roastcoffea.studies.tree_headers._parsed", refuse)
            assert tree_header(path, "Events") == short


def test_few_requests_suffice(folder: Path) -> None:
    with http_server(folder) as server:
        tree_header(f"{server.url}/a.root", "Events")
        assert len(server.ranges) <= 4


class Silent:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for each in (self.socket, *self.open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                self.open.append(self.socket.accept()[0])
            except OSError:
                return


@contextmanager
def silent_server() -> Iterator[Silent]:
    server = Silent()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.timeout(120)
def test_a_server_that_never_answers_stops_nothing(folder: Path) -> None:
    with silent_server() as silent:
        there = [f"{silent.url}/{number}.root" for number in range(40)]
        here = [str(folder / f"{name}.root") for name in "ab"]
        found = inspect({"data": [*here, *there]}, "Events", threads=SILENT, timeout=2.0)
    states = [one.state for one in found.files]
    assert states == ["ok"] * 2 + ["no answer"] * 40
    # the others were not tried, so that all of it takes a few times the limit
    assert SILENT <= sum("no answer within 2 s" in one.reason for one in found.files) <= SILENT + 2
    assert sum("not tried" in one.reason for one in found.files) >= 35
    assert list(found.cleaned["data"]) == here


@pytest.mark.timeout(60)
def test_a_server_that_answers_is_asked_on() -> None:
    """Some of its files may be slow."""
    release = threading.Event()

    def look(one: Input) -> Input:
        if "slow" in one.file:
            release.wait()
        return one

    names = ["0", *(f"slow{number}" for number in range(SILENT + 1)), *map(str, range(1, 20))]
    inputs = [Input("data", f"http://here.org/{name}", None) for name in names]
    numbers: list[int] = []
    found = all_looked_at(inputs, 1, 0.3, numbers.append, look)
    release.set()
    assert [one.state for one in found] == ["ok", *["no answer"] * (SILENT + 1), *["ok"] * 19]
    assert numbers[-1] == 21 + SILENT


FORMS = [
    ({"d": ["a", "b"]}, [("a", None), ("b", None)]),
    ({"d": {"files": ["a"], "treename": "T"}}, [("a", "T")]),
    ({"d": {"files": {"a": "T", "b": {"object_path": "U", "steps": [[0, 1]]}, "c": None}}}, [("a", "T"), ("b", "U")]),
]


@pytest.mark.parametrize(("given", "expected"), FORMS)
def test_filesets_have_the_forms_of_coffea(given: Any, expected: list[tuple[str, str | None]]) -> None:
    found = [(one.file, one.tree) for one in inputs_of(given, None)]
    assert found[: len(expected)] == expected
    assert [one.tree for one in inputs_of(given, "X")] == [tree or "X" for _, tree in found]


@pytest.mark.parametrize("given", [{"d": "a.root"}, {"d": {"file": ["a"]}}, {"d": 3}])
def test_what_is_no_fileset_is_refused(given: Any) -> None:
    with pytest.raises(RoastcoffeaError, match="dataset d has no list of files; a fileset has the form"):
        inputs_of(given, None)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_what_is_no_fileset_in_json_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "fileset.json"
    path.write_text(content)
    with pytest.raises(RoastcoffeaError, match=r"fileset\.json .*fileset"):
        fileset_at(path)
    path.with_suffix(".json.gz").write_text(content)
    with pytest.raises(RoastcoffeaError, match="cannot be read"):
        fileset_at(path.with_suffix(".json.gz"))


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_the_command_writes_the_clean_fileset_or_nothing(
    folder: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "all.json", tmp_path / f"clean.{ending}"
    source.write_text(json.dumps(fileset(str(folder))))
    assert main(["inspect", str(source), "-o", str(target)]) == 1
    out = capsys.readouterr().out
    assert f"Drop {len(WRONG)} files of 13" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80 or str(folder) in out
    assert out.splitlines()[-1] == str(target)
    assert len(fileset_at(target)["data"]["files"]) == 3
    assert main(["inspect", str(target)]) == 0
    # what is there stays
    before = target.read_bytes()
    assert main(["inspect", str(source), "-o", str(target)]) == 1
    assert "exists" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert main(["inspect", str(source), "-o", str(target), "--overwrite", "--keep-empty"]) == 1
    assert len(fileset_at(target)["data"]["files"]) == 4


def test_json_has_all_of_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fileset.json"
    path.write_text(json.dumps(fileset(str(folder))))
    assert main(["inspect", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "roastcoffea inspect 1"
    assert {Path(one["file"]).name for one in document["files"] if one["drop"]} == WRONG.keys()
    (good,) = (one for one in document["files"] if one["file"].endswith("/b.root"))
    assert (good["events"], good["branches"], good["state"], good["drop"]) == (60, 3, "ok", False)
    assert good["size"] == (folder / "b.root").stat().st_size


def test_of_a_file_that_is_listed_twice_the_first_one_stays(folder: Path) -> None:
    names = [f"{folder}/{name}.root" for name in "aba"]
    found = inspect({"data": names})
    assert [one.state for one in found.files] == ["ok", "ok", "duplicate"]
    assert found.cleaned == {"data": names[:2]}


def test_no_file_is_opened_after_an_interrupt() -> None:
    inputs, opened, go_on = (
        [Input("data", f"{number}.root", None) for number in range(50)],
        list[str](),
        threading.Event(),
    )

    def look(one: Input) -> Input:
        opened.append(one.file)
        if len(opened) > 1:
            go_on.wait(PATIENCE)
        return one

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_looked_at(inputs, 1, PATIENCE, interrupt, look)
    go_on.set()
    assert wait_until(lambda: not any(thread.name.endswith("(work)") for thread in threading.enumerate()))
    assert len(opened) <= 2
