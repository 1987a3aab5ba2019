"""What others build on: public names, commands and columns, and all numbers of stored measurements, as they were.

`data/contract/names.json` lists the names. `data/contract/numbers.json` has what stored measurements of every schema
said, and three runs that were recorded for it, which are beside it: one on Dask, one with FuturesExecutor, and one of
plain tasks. Everything goes through public calls, so that a change of the inside leaves it as it is. What is meant to
differ is written by `python tests/test_contract.py --write`, and git shows the difference.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib
import inspect
import io
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import entry_points
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from analyses import Jets
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client
from stored import baskets_of

import roastcoffea
from roastcoffea import Measurement, MetricsCollector, TaskMonitor
from roastcoffea.cli import command_line
from roastcoffea.records import arrow

DATA = Path(__file__).parent / "data"
NAMES, NUMBERS = DATA / "contract" / "names.json", DATA / "contract" / "numbers.json"
RECORDED = ("dask", "futures", "tasks")
"""Runs of a few seconds: on Dask with two datasets, a lost file, a skipped chunk, a repeated attempt, corrections read
from another file, sections and values; with FuturesExecutor; and tasks without a Runner, one of which fails."""
REAL = os.environ.get("ROASTCOFFEA_TEST_DATA")
STORED = {
    **{name: DATA / "contract" / name for name in RECORDED},
    **{f"schema{number}": DATA / f"schema{number}" for number in range(1, 15)},
    **({"0.1.2": Path(REAL, "measurement-0.1.2")} if REAL else {}),
}
FORMATS = ("csv", "parquet", "json", "openmetrics", "perfetto", "speedscope", "collapsed")
TEXT = "text or list"
ABSENT = "(nothing)"
ROUNDING = 1e-12
"""What is smaller is left by sums that cancel: no amount in our units is."""
LONGEST = 3000
"""Letters of JSON above which a digest is kept in place of a value."""


# Names


@cache
def listed(what: str) -> dict[str, Any]:
    """Part of the list of names."""
    found: dict[str, Any] = json.loads(NAMES.read_text(encoding="utf-8"))[what]
    return found


@cache
def loaded(name: str) -> Measurement:
    return roastcoffea.load(STORED[name])


def stored_things() -> dict[str, Any]:
    """What names of the list begin with, other than the package: results of calls that it documents."""
    measurement, by_hand = loaded("dask"), loaded("schema13")
    return {
        "measurement": measurement,
        "metrics": measurement.metrics,
        "byte_ledger": measurement.byte_ledger,
        "time_ledger": measurement.time_ledger,
        "certificate": measurement.byte_ledger.certificate,
        "advice": by_hand.byte_ledger.advice[0],
        "verdict": measurement.verdict,
        "finding": measurement.verdict[0],
        "culprit": next(finding.culprits[0] for finding in measurement.verdict if finding.culprits),
        "profile": measurement.profile,
        "profile_tree": measurement.profile.tree(),
        "comparison": roastcoffea.compare(measurement, loaded("futures")),
        "scaling": roastcoffea.scaling([measurement, loaded("futures")]),
        "what_if": roastcoffea.what_if(measurement),
        "history": roastcoffea.history(DATA / "contract"),
    }


def things_of_a_run(collector: MetricsCollector, monitor: TaskMonitor, snapshot: Any, report: Any) -> dict[str, Any]:
    """The same for what only a cluster makes."""
    return {
        "collector": collector,
        "monitor": monitor,
        "snapshot": snapshot,
        "report_comparison": monitor.compare_with_report(report, collector.measurement),
        "series": collector.tracking_data["worker_memory"],
    }


def found(name: str, things: Mapping[str, Any]) -> Any:
    """What is called so: an attribute of one of the things, or of a module."""
    first, *others = name.split(".")
    thing = things[first] if first in things else importlib.import_module(first)
    for place, attribute in enumerate(others, 2):
        if inspect.ismodule(thing) and not hasattr(thing, attribute):
            importlib.import_module(".".join([first, *others][:place]))
        thing = getattr(thing, attribute)
    return thing


def parameters(thing: Any) -> str | None:
    """Names of the parameters, those that need a name behind a *; None for what cannot be called."""
    if not callable(thing):
        return None
    try:
        known = inspect.signature(thing).parameters.values()
    except ValueError:
        return ""
    positional = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = ["*" + one.name for one in known if one.kind is one.VAR_POSITIONAL]
    named = [one.name for one in known if one.kind is one.KEYWORD_ONLY]
    return " ".join([*positional, *rest, *(["*", *named] if named else [])])


def still_takes(thing: Any, wanted: str | None) -> bool:
    """Whether it can be called as before: positional parameters in their order, the others by name."""
    if wanted is None:
        return True
    given = parameters(thing)
    if given is None:
        return False
    (before, _, named), (now, _, others) = (text.partition("* ") for text in (wanted, given))
    return now.split()[: len(before.split())] == before.split() and {*named.split()} <= {*now.split(), *others.split()}


def takes_older(thing: Any, pairs: str) -> bool:
    """Whether it takes arguments by their older keywords."""
    return getattr(thing, "older_keywords", {}) == dict(pair.split("=") for pair in pairs.split())


def lost_names(things: Mapping[str, Any], ours: Callable[[str], bool]) -> dict[str, str]:
    """Names of the list that are no more, or are called in another way."""
    lost = {}
    for name, wanted in listed("names").items():
        if not ours(name.partition(".")[0]):
            continue
        try:
            thing = found(name, things)
        except (AttributeError, ImportError) as error:
            lost[name] = repr(error)
        else:
            if not still_takes(thing, wanted):
                lost[name] = f"took ({wanted}), takes ({parameters(thing)})"
            elif not takes_older(thing, older := listed("older keywords").get(name, "")):
                lost[name] = f"took {older}"
    return lost


@pytest.mark.slow
def test_public_names_take_what_they_took() -> None:
    things = stored_things()
    assert lost_names(things, lambda first: first in things or first == "roastcoffea") == {}
    assert {f"roastcoffea.{name}" for name in roastcoffea.__all__} - listed("names").keys() == set(), "list it"


def words_of(command: list[str]) -> set[str]:
    """Words of what a command says with --help."""
    (script,) = entry_points(group="console_scripts", name="roastcoffea")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", printed)
        assert script.load()([*command, "--help"]) == 0
    return set(re.findall(r"-{0,2}\w[\w.-]*", printed.getvalue()))


def words_taken(name: str) -> set[str]:
    """Options that a command takes, and what its help says: older options are not in the help."""
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    return words_of([name]) | {word for option in command.params for word in option.opts}


def test_commands_have_their_options() -> None:
    commands = listed("commands")
    assert commands.keys() <= words_of([]) | {"redact"}
    lacking = {name: set(options.split()) - words_taken(name) for name, options in commands.items()}
    assert {name: options for name, options in lacking.items() if options} == {}


def test_tables_have_their_columns() -> None:
    tables = loaded("dask").tables
    assert tables.keys() == listed("tables").keys()
    for name, columns in listed("tables").items():
        assert columns.items() <= columns_of(tables[name]).items(), name
        assert getattr(loaded("dask"), name, tables[name]) is tables[name]


def columns_of(frame: pd.DataFrame) -> dict[str, str]:
    """Type and unit of each column."""
    units = frame.attrs.get("units", {})
    # what text is differs between versions of pandas
    kinds = {name: kind if pd.api.types.is_numeric_dtype(kind) else TEXT for name, kind in frame.dtypes.items()}
    return {str(name): f"{kind} {units.get(name) or ''}".strip() for name, kind in kinds.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_metrics_have_their_units_and_aliases(name: str) -> None:
    metrics = loaded(name).metrics
    assert {each: str(metrics.unit[each]) for each in listed("metrics")} == listed("metrics")
    assert listed("metrics").keys() <= {*metrics, *metrics.missing}
    for older, present in listed("aliases").items():
        assert metrics.get(older) == metrics.get(present)


# Numbers


def plain(value: Any) -> Any:
    """A value in the types of JSON; what is neither a number nor text is its parts."""
    match value:
        case None | bool() | str():
            return value
        case _ if value is pd.NA or value is pd.NaT:
            return None
        case np.bool_():
            return bool(value)
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else str(float(value))
        case datetime():
            return value.isoformat()
        case Mapping():
            return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
        case pd.DataFrame():
            return {str(name): plain(value[name]) for name in value}
        case tuple() if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case pd.Series():
            # text that is missing is None or NaN, by the version of pandas
            return [None if isinstance(one, float) and math.isnan(one) else plain(one) for one in value]
        case list() | tuple() | np.ndarray():
            return [plain(one) for one in value]
        case _ if dataclasses.is_dataclass(value):
            return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    raise TypeError(f"what is a {type(value)}?")


def numbers_of(measurement: Measurement, scratch: Path) -> Iterator[tuple[str, Any]]:
    """All that a measurement says, by name."""
    facts = ("outcome", "error", "problems", "bound", "bottleneck", "fine_metrics", "fine_metrics_per_worker")
    yield "measurement", {name: getattr(measurement, name) for name in facts if hasattr(measurement, name)}
    metrics = measurement.metrics
    for name in [*metrics]:
        value = [finding.cause for finding in metrics[name]] if name == "verdict" else metrics[name]
        yield f"metric {name}", [value, str(metrics.unit[name]), metrics.source[name]]
    yield from ((f"missing {name}", reason) for name, reason in metrics.missing.items())
    for name in ("byte_ledger", "time_ledger"):
        ledger = getattr(measurement, name)
        certificate = {"complete": ledger.certificate.complete, "reasons": ledger.certificate.reasons}
        sums = {"total": ledger.total, "residual": ledger.residual, "absent": ledger.absent}
        yield name, {"classes": dict(ledger), **sums, "certificate": certificate}
    yield "byte_ledger.transferred", measurement.byte_ledger.transferred
    yield "byte_ledger.advice", measurement.byte_ledger.advice
    if measurement.time_ledger:
        timeline = measurement.time_ledger.timeline(10).reset_index()
        yield from ((f"time_ledger.timeline {name}", timeline[name]) for name in timeline)
    verdict = measurement.verdict
    yield "verdict", {name: getattr(verdict, name) for name in ("absent", "incomplete", "together", "healthy")}
    for place, finding in enumerate(verdict):
        fields = {name: value for name, value in finding.to_dict().items() if name != "text"}
        yield f"verdict {place}", fields | {"headline": finding.headline, "text": finding.text}
    for name, frame in measurement.tables.items():
        if absent := frame.attrs.get("absent"):
            yield f"table {name}", absent
        for column, about in columns_of(frame).items():
            yield f"table {name}.{column}", [about, frame[column]]
    first, every = io.StringIO(), io.StringIO()
    measurement.print_summary(first)
    measurement.print_summary(every, all=True)
    yield "first look", first.getvalue().replace(str(measurement.path), "PATH").splitlines()
    yield from sheets(every.getvalue())
    yield from exports(measurement, scratch)


def sheets(text: str) -> Iterator[tuple[str, Any]]:
    """Printed sheets by their title."""
    parts = [part.splitlines() for part in re.split(r"\n\n+(?=\S)", text)]
    titles = [lines[0].strip() for lines in parts]
    for place, (title, lines) in enumerate(zip(titles, parts, strict=True)):
        yield f"sheet {title} {titles[:place].count(title) or ''}".rstrip(), lines[1:]


def exports(measurement: Measurement, scratch: Path) -> Iterator[tuple[str, Any]]:
    """Digests of what is in the files of each format; of tables the values are compared above."""
    for form in FORMATS:
        try:
            written = measurement.export(scratch / f"{form}.txt", form)
        except roastcoffea.RoastcoffeaError as error:
            yield f"export {form}", str(error)
            continue
        files = sorted(written.iterdir()) if written.is_dir() else [written]
        yield f"export {form}", {file.stem: digest(plain(content(file, form))) for file in files}


def content(file: Path, form: str) -> Any:
    """What is in an exported file, in types that can be compared."""
    if form == "parquet" and file.suffix == ".parquet":
        table = pq.read_table(file)
        # what text is differs between versions of pandas
        return [[str(field.type).removeprefix("large_") for field in table.schema], table.to_pydict()]
    text = file.read_text(encoding="utf-8")
    if form == "csv" and file.suffix == ".csv":
        return [[number(cell) for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
    if form in {"openmetrics", "collapsed"}:
        return [[number(word) for word in line.split(" ")] for line in text.splitlines()]
    return json.loads(text)


def number(text: str) -> float | str:
    """The number that a text is."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def compact(value: Any) -> Any:
    """The value itself, or a digest of one that is long."""
    text = json.dumps(value)
    return value if len(text) <= LONGEST else {"length": len(value), "digest": digest(value)}


def digest(value: Any) -> str:
    known = json.dumps(each_float(value, digits), sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:10]


def digits(value: float) -> str:
    """What is compared of a number in a digest."""
    # one that ends at the digit where it is cut may go either way: few still do so times pi
    return f"{value * math.pi:.{8 if abs(value) < 1e9 else 15}g}" if abs(value) >= ROUNDING else "0"


def each_float(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, dict):
        return {key: each_float(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [each_float(one, change) for one in value]
    return change(value) if isinstance(value, float) else value


def differences(was: Any, now: Any, *where: object) -> Iterator[str]:
    """Where values differ: numbers by more than 1e-9 of them, and moments by more than microseconds."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in was | now:
            yield from differences(was.get(key, ABSENT), now.get(key, ABSENT), *where, key)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for place, pair in enumerate(zip(was, now, strict=True)):
            yield from differences(*pair, *where, place)
    elif was != now and not (isinstance(was, int | float) and isinstance(now, int | float) and are_close(was, now)):
        yield f"{' / '.join(map(str, where))}: was {was!r}, is {now!r}"


def are_close(was: float, now: float) -> bool:
    if isinstance(was, int) and isinstance(now, int):
        return False
    return math.isclose(was, now, rel_tol=1e-9 if abs(was) < 1e9 else 1e-14, abs_tol=ROUNDING)


def everything_of(name: str, scratch: Path) -> dict[str, Any]:
    measurement = roastcoffea.load(STORED[name])
    return {entry: compact(plain(value)) for entry, value in numbers_of(measurement, scratch)}


@cache
def numbers() -> dict[str, list[tuple[str, Any]]]:
    """What is stored: by name, values with the measurements that have them."""
    stored: dict[str, list[tuple[str, Any]]] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return stored


def of_this_host(patch: pytest.MonkeyPatch) -> None:
    """Leave out of texts what is not of the measurement: time zone, and width of the terminal."""
    patch.setenv("TZ", "UTC")
    patch.setenv("COLUMNS", "100")
    time.tzset()


@pytest.fixture
def _neutral() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        of_this_host(patch)
        yield
    time.tzset()


def mark_between(name: str) -> Any:
    """Schemas between the oldest, some and the newest are slow."""
    often = {*RECORDED, "0.1.2", "schema1", "schema6", "schema10", "schema14"}
    return name if name in often else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.usefixtures("_neutral")
@pytest.mark.parametrize("name", [mark_between(name) for name in (*STORED, *({"0.1.2"} - STORED.keys()))])
def test_stored_measurements_say_what_they_said(name: str, tmp_path: Path) -> None:
    if name not in STORED:
        pytest.skip("ROASTCOFFEA_TEST_DATA is not set")
    short = name.removeprefix("schema")
    wanted = {entry: value for entry, values in numbers().items() for names, value in values if short in names.split()}
    found = [*differences(wanted, everything_of(name, tmp_path))]
    assert not found, "\n".join([f"{len(found)} differences:", *(text[:300] for text in found[:30])])


@pytest.mark.slow
@pytest.mark.usefixtures("_neutral")
@pytest.mark.parametrize("least", [1, 6])
def test_tables_say_the_same_if_their_texts_are_dictionaries(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # those of a large run are; with 6 rows, only some of these
    monkeypatch.setattr(arrow, "MANY", least)
    assert pa.types.is_dictionary(roastcoffea.load(STORED["dask"]).run.chunks["worker"].type)
    test_stored_measurements_say_what_they_said("dask", tmp_path)


# A fresh run


def test_of_a_fresh_run(client: Client, sample: dict[str, Any], tmp_path: Path) -> None:
    runner = Runner(DaskExecutor(client=client, status=False), schema=NanoAODSchema, chunksize=2000, savemetrics=True)
    processor, monitor = Jets(), TaskMonitor(client, worker_view=True)
    options: dict[str, Any] = {"track_workers": True, "worker_tracking_interval": 0.1}
    with MetricsCollector(client=client, processor_instance=processor, **options) as collector, monitor:
        output, report = runner(sample, treename="Events", processor_instance=processor)
        snapshot = monitor.snapshot()
    collector.extract_metrics_from_output(output)
    collector.set_coffea_report(report)
    check_counts(collector.measurement, report, sample)
    metrics = collector.get_metrics()
    for name, keys in listed("keys").items():
        holder = {"metrics": metrics, "chunk": collector.chunk_metrics[0], "tracking": collector.tracking_data}[name]
        assert set(keys.split()) <= holder.keys(), name
    for name, columns in listed("tables of a monitor").items():
        frame = getattr(monitor, name)()
        assert columns.items() <= columns_of(frame).items()
    things = things_of_a_run(collector, monitor, snapshot, report)
    assert lost_names(things, things.__contains__) == {}
    saved = collector.save_measurement(tmp_path)
    assert dict(roastcoffea.load(saved).byte_ledger) == dict(collector.measurement.byte_ledger)


def check_counts(measurement: Measurement, report: Any, fileset: dict[str, Any]) -> None:
    """Events, chunks and bytes, against what was written, what uproot finds in the files, and coffea's report."""
    files = {file: dataset for dataset, known in fileset.items() for file in known["files"]}
    metrics, chunks = measurement.metrics, measurement.chunks
    assert (metrics["total_events"], metrics["num_chunks"]) == (4000 * len(files), 2 * len(files))
    assert metrics["total_events"] == report["entries"] == chunks["events"].sum()
    assert sorted(zip(chunks["file"], chunks["entry_start"], chunks["entry_stop"], strict=True)) == sorted(
        (file, start, start + 2000) for file in files for start in (0, 2000)
    )
    assert {*zip(chunks["dataset"], chunks["file"], strict=True)} == {(files[file], file) for file in files}
    branches = measurement.branches
    assert {"nJet", "Jet_pt"} <= set(branches["branch"])
    for row in branches.to_dict("records"):
        baskets = baskets_of(row["file"], row["branch"], 0, 4000)
        assert row["bytes_payload"] == sum(compressed for compressed, _ in baskets.values())
        assert row["baskets"] >= len(baskets)
    ledger = measurement.byte_ledger
    assert ledger.certificate.complete
    assert (ledger.residual, ledger["payload"]) == (0, branches["bytes_payload"].sum())
    assert ledger.total - ledger["preprocessing"] == report["bytesread"] == metrics["total_bytes_read"]
    assert {name: str(metrics.unit[name]) for name in listed("metrics")} == listed("metrics")


# Writing


def write() -> None:
    """Write the numbers of today."""
    if not REAL:
        sys.exit("ROASTCOFFEA_TEST_DATA has to name the folder of the measurement of 0.1.2")
    gathered: dict[str, list[list[Any]]] = {}
    for name in STORED:
        with tempfile.TemporaryDirectory() as scratch:
            for entry, value in everything_of(name, Path(scratch)).items():
                values = gathered.setdefault(entry, [])
                short = name.removeprefix("schema")
                known = next((one for one in values if not any(differences(one[1], value))), None)
                if known is None:
                    values.append([short, value])
                else:
                    known[0] += f" {short}"
    lines = (
        f"{json.dumps(entry)}: [\n" + ",\n".join(json.dumps(each_float(one, cut)) for one in values) + "\n]"
        for entry, values in sorted(gathered.items())
    )
    NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def cut(value: float) -> float:
    """A number with the digits that are compared."""
    return float(f"{value:.11g}") if abs(value) < 1e9 else value


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    of_this_host(pytest.MonkeyPatch())
    write()
