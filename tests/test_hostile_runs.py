"""Folders that somebody has damaged or made up: an error that names the file, or a measurement that can be shown."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import handmade_run

from roastcoffea import load
from roastcoffea.cli import main
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.report.exports.openmetrics import write_openmetrics
from roastcoffea.storage.document import RUN_FILE
from roastcoffea.storage.store import list_runs
from roastcoffea.storage.upgrades import LAST_TAGGED

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    "text",
    "\x1b[2J\x1b]0;title\x07",
    [],
    [[1]],
    {},
    {"a": {"b": None}},
    {"$": "float", "of": "nan"},
    {"$": "set", "of": [[]]},
    {"$": "unknown", "of": 1},
)
"""What stands in the place of a value."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in a document, the inner ones first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))
    if path:
        yield path


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(document))
    *outer, last = path
    inner = changed
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return changed


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Measurement(handmade_run()).save(tmp_path_factory.mktemp("hostile"), "run")


def check(folder: Path, what: str) -> bool:
    """Whether the measurement could be loaded, and then be used; any error must be ours, and name the file."""
    try:
        measurement = load(folder)
    except MeasurementError as reason:
        named = str(folder) in str(reason)
    else:
        named = None
    if named is not None:
        assert named, what
        return False
    measurement.print_summary(io.StringIO())
    again = measurement.save(folder.parent.parent / "saved-again", "run", overwrite=True)
    assert load(again).run.id == measurement.run.id
    return True


@pytest.mark.parametrize("number", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_any_value_of_run_json_may_be_anything(saved: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    file = saved / RUN_FILE
    original = file.read_bytes()
    document = json.loads(original)
    chosen = random.Random(number)
    cases = [(path, wrong) for path in places(document) for wrong in chosen.sample(WRONG, 2)]
    outcomes = set()
    try:
        for path, wrong in chosen.sample(cases, min(len(cases), number)):
            file.write_text(json.dumps(with_value(document, path, wrong)))
            outcomes.add(check(saved, f"{path} = {wrong!r}"))
            (entry,) = list_runs(saved.parent)
            assert entry.name == "run"
    finally:
        file.write_bytes(original)
    assert outcomes == {True, False}
    assert check(saved, "as it was")


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 100_000, b'{"a":' * 5000, b"\xff\xfe", b"null", b"[]", b'{"format": "roastcoffea_run"}', b"1e999999"],
    ids=["empty", "lists", "objects", "bytes", "null", "list", "format", "number"],
)
def test_a_file_that_is_no_document(content: bytes, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).write_bytes(content)
    assert not check(tmp_path / "run", "no document")
    (entry,) = list_runs(tmp_path)
    assert entry.error


def test_an_array_that_claims_to_be_huge_ends_no_list(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(huge, header)
    file = saved / RUN_FILE
    original = file.read_bytes()
    document = json.loads(original)
    document["run"]["coffea_report"] = {"$": "numpy.array", "of": base64.b64encode(huge.getvalue()).decode()}
    try:
        file.write_text(json.dumps(document | {"schema": LAST_TAGGED}))
        assert not check(saved, "huge")
        assert main(["list", str(saved.parent)]) == 0
    finally:
        file.write_bytes(original)
    assert "unreadable" in capsys.readouterr().out


def test_no_name_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = tmp_path / "a\x1b[31mred\x07"
    evil.mkdir()
    (evil / RUN_FILE).write_text("{")
    for arguments in (
        ["show", str(evil)],
        ["list", str(tmp_path)],
        ["report", str(evil)],
        ["list", str(evil / "none")],
    ):
        main(arguments)
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "\x07" not in printed.out + printed.err
    assert "\\x1b" in printed.out + printed.err


SAMPLE = re.compile(r'[a-z][a-zA-Z0-9_]*\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\[\\n"])*",?)*\} [-+\w.]+ [\d.]+')
"""A line of OpenMetrics with labels, a value and a time."""


def test_names_and_labels_in_openmetrics_are_as_the_format_wants_them() -> None:
    evil = 'set"\n# HELP evil\\{a="b"} 1'
    run = handmade_run(name=evil)
    environment = dataclasses.replace(run.environment, versions={evil: evil, "0": "1", "": "2"})
    measurement = Measurement(dataclasses.replace(run, environment=environment))
    written = io.BytesIO()
    write_openmetrics(measurement.run, measurement.metrics, written)
    lines = written.getvalue().decode().removesuffix("\n").split("\n")
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) > 50
    assert [line for line in samples if not SAMPLE.fullmatch(line)] == []
    assert "# HELP evil" not in [line[:11] for line in lines]


# what the commands print and take


def test_times_have_their_zone(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("COLUMNS", "200")
    time.tzset()
    try:
        main(["list", str(saved.parent)])
        main(["show", str(saved)])
    finally:
        monkeypatch.undo()
        time.tzset()
    started = [line for line in capsys.readouterr().out.splitlines() if " JST" in line]
    assert len(started) == 2
