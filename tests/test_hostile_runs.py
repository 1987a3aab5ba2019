"""Folders that somebody has damaged or made up: an error that names the file, or a measurement that can be shown."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import handmade_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import write_everything
from saved_runs import WRONG, Mutation, Plants, a_run, first, places, with_value, written

from roastcoffea import load
from roastcoffea.cli import main
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.report.exports.openmetrics import write_openmetrics
from roastcoffea.report.summary import summary
from roastcoffea.sheets.markup import markdown
from roastcoffea.storage.document import LAST_TAGGED, RUN_FILE, TABLES
from roastcoffea.storage.store import list_runs, save_run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(handmade_run(), tmp_path_factory.mktemp("hostile"), "run")


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


@pytest.mark.slow
@pytest.mark.parametrize("number", [6])
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


def loaded_or_refused(folder: Path, mutation: Mutation) -> str:
    """Whether a folder with the mutation can be loaded; any error must be ours and name it."""
    whole = {name: (folder / name).read_bytes() for name in mutation.files}
    try:
        for name, content in mutation.files.items():
            (folder / name).write_bytes(content)
        load(folder)
    except MeasurementError as error:
        return "refused" if str(folder) in str(error) else f"{mutation.what}: {error}"
    finally:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
    return "loaded"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement that has everything."""
    return save_run(a_run(), tmp_path_factory.mktemp("whole"), "run")


@pytest.mark.slow
def test_some_mutations_are_measurements_or_our_errors(whole: Path) -> None:
    assert {loaded_or_refused(whole, mutation) for mutation in first(12, whole, 8)} == {"loaded", "refused"}


MANY = settings(max_examples=25, deadline=None, database=None, derandomize=True)

TEXTS = st.text("a$\0\x1b\u202e\U0001f600'\"\\", max_size=9)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)
ARRAYS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | TEXTS | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"a": inner}),
)
OUTCOMES = {"loaded", "refused"}


@pytest.mark.slow
def test_any_json_in_any_place_is_a_measurement_or_our_error(whole: Path) -> None:
    document = json.loads((whole / RUN_FILE).read_bytes())
    paths = list(places(document))

    @MANY
    @given(st.sampled_from(paths), JSONS)
    def check_one(path: tuple[Any, ...], value: Any) -> None:
        content = json.dumps(with_value(document, path, value)).encode()
        assert loaded_or_refused(whole, Mutation(f"{path} = {value!r}", {RUN_FILE: content})) in OUTCOMES

    check_one()


@pytest.mark.slow
def test_any_column_of_any_table_is_a_measurement_or_our_error(whole: Path) -> None:
    tables = {name: pq.read_table(whole / f"{name}.parquet") for name in TABLES}
    columns = [(name, column) for name, table in tables.items() for column in table.column_names]

    @MANY
    @given(st.sampled_from(columns), ARRAYS)
    def check_one(place: tuple[str, str], value: Any) -> None:
        name, column = place
        table = tables[name]
        try:
            changed = pa.array([value] * len(table))
        except (pa.ArrowException, OverflowError):
            return  # Arrow has no such array
        table = table.set_column(table.column_names.index(column), column, changed)
        mutation = Mutation(f"{place} = {value!r}", {f"{name}.parquet": written(table)})
        assert loaded_or_refused(whole, mutation) in OUTCOMES

    check_one()


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


STEERS = "\x1b[31mred\x07\x9b2J\u202eevil\u2028x\r\b\0=1+1"
STEERING = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.slow
def test_no_text_steers_the_terminal_from_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # a run of such texts has no meaning
    measurement = Measurement(Plants(STEERS, {}).run())
    saved = write_everything(measurement, tmp_path / "written")
    files = [path for path in saved.parent.rglob("*") if path.is_file() and path.suffix not in {".parquet", ".gz"}]
    assert len(files) > 40
    shown = {str(path): path.read_text(encoding="utf-8") for path in files}
    shown["markdown"] = markdown(summary(measurement.run, measurement.metrics))
    shown["notebook"] = measurement._repr_html_()
    assert {name: STEERING.findall(text)[:3] for name, text in shown.items() if STEERING.search(text)} == {}


def test_errors_steer_no_terminal(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError) as error:
        load(tmp_path / "a\x1b[31m")
    assert "a\\x1b[31m" in str(error.value)


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
