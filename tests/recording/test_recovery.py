"""What a journal gives back is what the collector had."""

from __future__ import annotations

import io
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from analyses import Jets, runner_for
from coffea.processor import IterativeExecutor, Runner
from distributed import Client

from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.instrument.calls import active
from roastcoffea.log.journal import HEADER_KEY, RECORDS, checksum
from roastcoffea.log.journals import COLUMNS, Entry, Journal, JournalError, journal_in, journals_in
from roastcoffea.measurement import Measurement
from roastcoffea.recording.assembly import BEGAN, END
from roastcoffea.recording.importers import recovered
from roastcoffea.records.run import LOST, Run
from roastcoffea.storage.store import load_run


def journal_of(folder: Path) -> Journal:
    ((journal,), unreadable) = journals_in(folder)
    assert unreadable == []
    return journal


class CutJournal(Journal):
    """A journal as it was before these entries, and all after the first of them."""

    before: str | float

    def entries(self) -> Iterator[Entry]:
        for entry in super().entries():
            if entry.kind == self.before or (isinstance(self.before, float) and entry.time > self.before):
                return
            yield entry


def cut(journal: Journal, before: str | float) -> CutJournal:
    found = CutJournal(journal.folder, journal.header, journal.last, journal.size)
    found.before = before
    return found


def differences(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Fields in which runs differ, as they are saved."""
    found = {}
    for field in fields(Run):
        values = getattr(one, field.name), getattr(other, field.name)
        if isinstance(values[0], pa.Table) and isinstance(values[1], pa.Table):
            if not values[0].combine_chunks().equals(values[1].combine_chunks()):
                found[field.name] = values
        elif values[0] != values[1]:
            found[field.name] = values
    return found


def measured(client: Client, sample: Any, executor: str, place: Path, *, peak_memory: bool = True) -> MetricsCollector:
    """A collector that has measured 8 chunks, with its journal in this place."""
    if executor == "dask":
        runner = runner_for(client, 2000)
    else:
        settings = {"chunksize": 2000, "metadata_cache": {}, "savemetrics": True}
        runner = Runner(executor=IterativeExecutor(status=False), **settings)
    dask = client if executor == "dask" else None
    with MetricsCollector(dask, name="mine", journal=place, peak_memory=peak_memory) as collector:
        runner(sample, processor_instance=Jets())
    return collector


KINDS = ["iterative", pytest.param("dask", marks=pytest.mark.slow)]


@pytest.mark.parametrize("executor", KINDS)
def test_a_run_that_ended_and_was_not_saved_is_all_there(
    client: Client, sample: Any, tmp_path: Path, executor: str
) -> None:
    collector = measured(client, sample, executor, tmp_path / "journals")
    again = recovered(journal_of(tmp_path / "journals")).run
    assert len(again.chunks) == 8
    saved = load_run(collector.save_measurement(tmp_path))
    assert differences(saved, again) == {}


@pytest.mark.slow
def test_a_run_whose_tables_nobody_asked_for_is_all_there(client: Client, sample: Any, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    with pytest.raises(ZeroDivisionError), MetricsCollector(client, journal=journals) as collector:
        active[-1].note("something that was noted")
        runner_for(client, 2000)(sample, processor_instance=Jets())
        collector.set_coffea_report({"bytesread": 5})
        _ = 1 / 0
    again = recovered(journal_of(journals)).run
    assert (again.outcome, again.error) == ("failed", "ZeroDivisionError: division by zero")
    assert again.problems[0] == "something that was noted"
    assert again.coffea_report == {"bytesread": 5}
    assert again.span_metrics
    saved = load_run(collector.save_measurement(tmp_path, "saved"))
    assert differences(saved, again) == {}
    assert list(journals.iterdir()) == []


@pytest.mark.parametrize("executor", KINDS)
def test_a_run_that_was_lost_has_what_was_recorded(client: Client, sample: Any, tmp_path: Path, executor: str) -> None:
    collector = measured(client, sample, executor, tmp_path / "journals")
    measurement = recovered(cut(journal_of(tmp_path / "journals"), END))
    assert measurement.outcome == LOST
    assert "its journal ends at" in str(measurement.error)
    run = measurement.run
    lacking = {"outcome", "error", "stop", "problems", "absent", "attempts", "span_metrics", "span_metrics_per_worker"}
    assert differences(collector.measurement.run, run).keys() <= lacking | {"lifetimes", "samples"}
    assert any("the client was lost" in problem for problem in run.problems)
    assert measurement.metrics["num_chunks"] == 8
    assert differences(load_run(measurement.save(tmp_path, "lost")), run) == {}
    assert "lost: 8 of 8 chunks" in printed(measurement)


def test_a_run_that_was_lost_says_what_was_not_wanted(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "iterative", tmp_path, peak_memory=False)
    run = recovered(cut(journal_of(tmp_path), END)).run
    assert collector.problems == []  # it holds the journal
    assert run.absent["memory_peak"] == "peak_memory=False"
    assert run.chunks["memory_peak"].null_count == 8


def test_a_call_that_ran_is_among_the_calls(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "dask", tmp_path / "journals")
    journal = journal_of(tmp_path / "journals")
    middle = collector.measurement.chunks["stop"].sort_values().iloc[4]
    run = recovered(cut(journal, middle)).run
    (call,) = run.calls
    assert (call.outcome, call.chunks) == (LOST, 8)
    assert call.stop <= middle
    assert len(run.asked) == 12
    assert set(run.chunks["id"].to_pylist()) <= set(collector.measurement.run.chunks["id"].to_pylist())
    assert recovered(cut(journal, middle)).metrics["num_missing_chunks"] == 8


@pytest.mark.slow
def test_a_cut_off_journal_says_so(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "iterative", tmp_path / "journals")
    journal = journal_of(tmp_path / "journals")
    (file,) = journal.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    measurement = recovered(journal)
    assert measurement.outcome == LOST
    assert any("cut off" in problem for problem in measurement.problems)
    assert set(measurement.chunks["id"]) <= set(collector.measurement.chunks["id"])


def printed(measurement: Measurement) -> str:
    """The first look at a measurement."""
    out = io.StringIO()
    measurement.print_summary(out)
    return out.getvalue()


# journals with values that cannot be

WRONG = [
    None,
    True,
    -1,
    10**400,
    1e308,
    math.nan,
    -math.inf,
    "text",
    "NaN",
    [],
    [[1]],
    {},
    {"a": {"b": None}},
    "\ud800",
]


@pytest.fixture(scope="module")
def journal(shared_client: Client, sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """The journal of a run that ended, with its process alive."""
    place = tmp_path_factory.mktemp("journals")
    collector = measured(shared_client, sample, "iterative", place)
    yield journal_of(place)
    del collector


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_in(item, (*path, key))


def changed(value: Any, dice: random.Random) -> Any:
    """A copy of parsed JSON with something else in one place, or nothing."""
    value = json.loads(json.dumps(value))
    *above, last = dice.choice([*places_in([value])][1:])
    outer = [value]
    place: Any = outer
    for key in above:
        place = place[key]
    if above and dice.random() < 0.2:
        del place[last]
    else:
        place[last] = dice.choice(WRONG)
    return outer[0]


def damaged(entry: Entry, dice: random.Random) -> Entry:
    """An entry with another value, another bit, or another time."""
    if dice.random() < 0.2:
        return entry._replace(time=dice.choice([1e308, -1e308, math.nan, -1.0]))
    try:
        return entry._replace(data=json.dumps(changed(json.loads(entry.data), dice)).encode())
    except ValueError:
        at = dice.randrange(len(entry.data))
        bits = bytes([entry.data[at] ^ 1 << dice.randrange(8)])
        return entry._replace(data=entry.data[:at] + bits + entry.data[at + 1 :])


def written(folder: Path, header: Mapping[str, Any], entries: Iterable[Entry]) -> Path:
    """A journal with this header and these entries, as its writer would have written them."""
    folder.mkdir(parents=True)
    schema = COLUMNS.with_metadata({HEADER_KEY: json.dumps(header)})
    rows = [{**entry._asdict(), "check": checksum(*entry)} for entry in entries]
    with pa.OSFile(str(folder / "000001.arrows"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(pa.Table.from_pylist(rows, schema))
    return folder


def outcome(folder: Path, out: Path) -> str:
    """What `recover` makes of a journal: a measurement that can be loaded, or an error that names the journal."""
    try:
        saved = recovered(journal_in(folder)).save(out)
    except JournalError as error:
        return "refused" if str(folder) in str(error) else str(error)
    run = load_run(saved)
    assert all(0 <= moment < 4e9 for moment in (run.start, run.stop))
    return "recovered"


def test_impossible_values_end_in_a_measurement_or_name_the_journal(journal: Journal, tmp_path: Path) -> None:
    dice = random.Random(0)
    entries = list(journal.entries())
    found = Counter()
    for number in range(25):
        header, kept = dict(journal.header), list(entries)
        if number % 3:
            at = dice.randrange(len(entries))
            kept[at] = damaged(entries[at], dice)
        else:
            header = changed(header, dice)
        if number % 2:
            kept = [entry for entry in kept if entry.kind != END]
        found[outcome(written(tmp_path / f"{number}", header, kept), tmp_path / "out")] += 1
    assert found.keys() == {"recovered", "refused"}


def test_one_bad_entry_leaves_the_others(journal: Journal, tmp_path: Path) -> None:
    entries = list(journal.entries())
    for number, entry in enumerate(entries):
        bad = entry._replace(time=math.nan, data=b"[1e308")
        folder = written(tmp_path / f"{number}", journal.header, [*entries[:number], bad, *entries[number + 1 :]])
        run = recovered(journal_in(folder)).run
        whole = len(run.chunks or ()) == 8
        told = any("no record of their own" in problem for problem in run.problems)
        assert whole or (entry.kind in {RECORDS, BEGAN} and told), entry.kind


def test_a_flipped_bit_ends_in_a_measurement_or_names_the_journal(journal: Journal, tmp_path: Path) -> None:
    (file,) = journal.folder.iterdir()
    whole, dice = file.read_bytes(), random.Random(0)
    for number in range(16):
        at = dice.randrange(len(whole) if number % 2 else 3000)  # half of them in the header
        (tmp_path / f"{number}").mkdir()
        flipped = bytes([whole[at] ^ 1 << dice.randrange(8)])
        (tmp_path / f"{number}" / file.name).write_bytes(whole[:at] + flipped + whole[at + 1 :])
        assert outcome(tmp_path / f"{number}", tmp_path / "out") in {"recovered", "refused"}


@pytest.mark.parametrize("start", [math.nan, True])
def test_a_bad_journal_does_not_stop_the_others(
    start: float, journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "journals"
    entries = list(journal.entries())
    good = {**journal.header, "locked": False, "process": 2**22 + 1}
    for name, header in {"a": good, "b": {**good, "start": start}, "c": good}.items():
        written(place / name, header, entries)
    assert main(["recover", str(place), "-o", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert str(place / "b") in " ".join(printed.err.split()).replace(" ", "")
    assert printed.out.count("finished: ") == 2
    assert [path.name for path in place.iterdir()] == ["b"]
    assert main(["list", str(tmp_path / "out")]) == 0
