"""The summary of a run in the terminal: each number, or the reason why it is missing."""

import dataclasses
import io
import re

import pytest
from handmade import CHUNKS, branch_read, chunk, empty_run, handmade_run, run_without_tables
from made_runs import made_run, plan
from rich.cells import cell_len

from roastcoffea.measurement import Measurement
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.catalogue import RAW
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.report.summary import _beginning
from roastcoffea.report.summary import summary as sheets_of

SHOWN = [m for m in CATALOGUE.metrics() if m.group != RAW and str(m.unit) != "structure"]
HUGE = {"events": 10**15, "wall_seconds": 9.9e6, "cpu_seconds": 9.9e6, "coffea_bytes_read": 10**18}
LONG = "/store/" + "averylongdatasetname" * 8


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def summary(run):
    file = io.StringIO()
    (run if isinstance(run, Measurement) else Measurement(run)).print_summary(file, all=True)
    return file.getvalue()


def with_dataset(dataset, **changes):
    return handmade_run(
        chunks=table_of_rows(CHUNK_COLUMNS, [*CHUNKS, chunk(dataset, "k9", 9, "ok", **HUGE)]), **changes
    )


def unfolded(text):
    """Text without the spaces and line breaks of a table."""
    return "".join(text.split())


RUNS = {
    "complete": handmade_run(),
    "nothing measured": run_without_tables(absent={"chunks": LONG}, problems=(LONG, "two\nlines")),
    "nothing happened": empty_run(),
    "long names": with_dataset(LONG, name=LONG),
    "wide characters": with_dataset("\u30d5\u30a1\u30a4\u30eb" * 30),
}
MEASUREMENTS = {name: Measurement(run) for name, run in RUNS.items()}


@pytest.mark.parametrize("measurement", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_80_columns_hold_it_all(measurement):
    text = summary(measurement)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "\u2026" not in text
    assert "..." not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("measurement", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_each_metric_is_there_or_its_reason(measurement):
    text, metrics = unfolded(summary(measurement)), measurement.metrics
    shown = [metric for metric in SHOWN if metric.name != "time_not_recorded_seconds"]  # of a facility's runs alone
    for metric in shown:
        expected = metric.unit.text(metrics[metric.name]) if metric.name in metrics else metrics.missing[metric.name]
        if metrics.get(metric.name) == 0 and not metric.statistic:
            expected = metric.label
        assert unfolded(expected) in text, metric.name


def test_a_line_of_it():
    lines = summary(handmade_run()).splitlines()
    assert "  elapsed                     1 min 40 s" in [line.rstrip() for line in lines]
    assert "  mc                 1       1      50         8 s        8 s     6.25 s" in [
        line.rstrip() for line in lines
    ]
    assert lines[-1] == "Measurement problems: none"


def test_the_byte_ledger_is_a_table():
    lines = [line.rstrip() for line in summary(handmade_run()).splitlines()]
    assert "  payload                      3.2 kB               52.9 %" in lines
    assert "  total                       6.05 kB                100 %" in lines
    assert "  transferred                 6.43 kB  384 B not requested" in lines
    text = unfolded("\n".join(lines))
    assert (
        unfolded("Incomplete: 1 attempt has unaccounted-for bytes (50 B in total); 5 of 5 attempts left a record.")
        in text
    )
    assert unfolded("with one chunk per file, each is read once") in text
    assert unfolded("align_clusters=True") in text


def test_a_ledger_that_lacks_something_says_so():
    chunks = [row | {"bytes_transferred": None} for row in CHUNKS[:-2]]
    text = unfolded(summary(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, chunks))))
    assert unfolded("Incomplete: 1 chunk attempts that ended left no record; 1 attempt has unaccounted") in text
    assert unfolded("4 of 5 attempts left a record.") in text
    assert (
        unfolded("4 of 7 attempts read through FSSpecSource(HTTPFileSystem), which does not report transfers.") in text
    )


def test_without_a_ledger_there_is_one_line():
    text = summary(handmade_run(branch_reads=None, absent={"branch_reads": "no meter"}))
    assert text.count("no meter") == 1
    assert "Branches" not in text


def test_the_branches_of_which_most_was_read_come_first():
    reads = [branch_read(11, f"b{number}", 0, [number]) for number in range(1, 14)]
    reads = [row | {"chunk": 12} for row in reads]
    text = summary(handmade_run(branch_reads=table_of_rows(BRANCH_READ_COLUMNS, reads)))
    lines = text[text.index("\nBranches\n") :].splitlines()
    assert [line.split()[0] for line in lines[3:13]] == [f"b{number}" for number in range(13, 3, -1)]
    assert lines[13].strip() == "and 3 more"


def test_sections_are_a_table():
    lines = [line.rstrip() for line in summary(handmade_run()).splitlines()]
    assert "  jets, mc              1     2 s     2 s     2 s     2 s      -  126 MB       0" in lines
    assert "Sections" not in summary(empty_run())


def test_metrics_that_lack_for_one_reason_share_it():
    text = summary(handmade_run(span_metrics=None, absent={"span_metrics": "spans are switched off"}))
    assert text.count("spans are switched off") == 1


def test_a_deviation_alone_may_be_missing():
    text = summary(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, CHUNKS[:1])))
    assert "duration (std)" in text
    assert "a standard deviation needs at least two chunks" in text


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("[red]x[/red]", "[red]x[/red]"),
        ("[/]:smile:a\x1b[31mb\x07", "[/]:smile:a\\x1b[31mb\\x07"),
        ("tab\tright\u202e\ud800", "tab\\tright\\u202e\\ud800"),
    ],
)
def test_names_are_printed_as_they_are(name, printed):
    text = summary(handmade_run(name=name, error=name, outcome="failed", problems=(name,)))
    assert text.count(printed) == 3
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "printed"), [("[red]x[/red]", "[red]x[/red]"), ("\x1b[2J", "\\x1b[2J")])
def test_datasets_are_printed_as_they_are(name, printed):
    assert printed in unfolded(summary(with_dataset(name)))


def test_a_dataset_of_several_lines_stays_in_its_cell():
    lines = [line.rstrip() for line in summary(with_dataset("first\nsecond")).splitlines()]
    row = next(number for number, line in enumerate(lines) if line.startswith("  first "))
    assert lines[row + 1] == "  second"


def test_the_first_line_has_the_wall_time():
    assert re.search(r":\d\d \w+, 1 min 40 s, dask, finished, ", summary(handmade_run()))
    run = handmade_run()
    assert re.search(r":\d\d \w+, dask, ", summary(dataclasses.replace(run, stop=run.start)))  # nobody knows how long


def test_a_failed_run_says_so_on_top():
    lines = summary(handmade_run(outcome="failed", error="ValueError: boom")).splitlines()
    assert "This run failed: ValueError: boom" in lines[:5]


def test_problems_come_last():
    lines = summary(handmade_run(problems=("one thing", "another"))).splitlines()
    assert [line.rstrip() for line in lines[-3:]] == ["Measurement problems (2)", "  - one thing", "  - another"]


def test_an_output_that_knows_ascii_only():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    run = with_dataset("d\u00e9j\u00e0", name="caf\u00e9", problems=("\u2192",))
    Measurement(run).print_summary(file, all=True)
    file.flush()
    assert b"caf\\xe9" in raw.getvalue()
    assert b"\\u2192" in raw.getvalue()


def test_reported_numbers_are_called_so():
    text = summary(handmade_run(reported={"total_events": 5}, reported_by="roastcoffea 0.1.2"))
    assert "Numbers as reported by roastcoffea 0.1.2; they were not recomputed." in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_is_for_terminals_that_want_it(monkeypatch, no_color):
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    file = Terminal()
    run = handmade_run(outcome="failed", error="boom")
    Measurement(run).print_summary(file, all=True)
    assert ("\x1b[1;31m" in file.getvalue()) is not no_color


def test_classes_with_next_to_nothing_are_named_below_a_ledger():
    measurement = Measurement(made_run([plan(1.0)] * 4, 2))
    ledger = next(sheets_of(measurement.run, measurement.metrics, "time"))
    names, beginning = [row[0] for row in ledger.rows], "Less than 0.1 %: "
    assert names == ["compute", "total"]
    (note,) = [note for note in ledger.notes if note.startswith(beginning)]
    small = note.removeprefix(beginning).removesuffix(".").split(", ")
    assert small.pop() == "unaccounted"
    assert {*names[:-1], *small, "residual"} == {*measurement.time_ledger}


def test_a_line_names_what_is_zero():
    measurement = Measurement(handmade_run())
    events, zero = Measurement(empty_run()), "Zero: "
    for sheet in sheets_of(measurement.run, measurement.metrics):
        assert not [row for row in sheet.rows if str(row[1] if len(row) > 1 else "").startswith(("0 s", "0 B", "0 %"))]
    (chunks, *_) = sheets_of(measurement.run, measurement.metrics, "chunks")
    named = [note.removeprefix(zero).removesuffix(".").split(", ") for note in chunks.notes if note.startswith(zero)]
    known = {
        one.label: measurement.metrics.get(one.name) for one in SHOWN if one.group == "chunks" and not one.statistic
    }
    assert {label for label, value in known.items() if value == 0} == {label for labels in named for label in labels}
    assert {"chunks", "events"} <= {
        label
        for note in next(iter(sheets_of(events.run, events.metrics, "events"))).notes
        for label in note.removeprefix(zero).removesuffix(".").split(", ")
    }


def test_workers_without_a_chunk_are_a_line():
    run = handmade_run()
    idle = [
        worker for worker, row in Measurement(run).worker_balance.set_index("worker").iterrows() if not row["chunks"]
    ]
    names = Measurement(run).metrics.evaluator.value("place_names").workers
    (workers,) = sheets_of(run, Measurement(run).metrics, "workers")
    assert all(row[1] for row in workers.rows)
    assert [note for note in workers.notes if note.startswith("Workers without")] == (
        [f"Workers without a chunk: {', '.join(names[worker] for worker in idle)}."] if idle else []
    )


def test_problems_call_workers_by_name():
    run = made_run([plan(1.0)] * 4, 2)
    addresses = [f"tcp://10.0.0.1:{40000 + number}" for number in range(len(run.lifetimes))]
    place = run.lifetimes.schema.get_field_index("worker")
    run = dataclasses.replace(run, lifetimes=run.lifetimes.set_column(place, "worker", [addresses]))
    address, name = addresses[-1], Measurement(run).metrics.evaluator.value("worker_names")[addresses[-1]]
    assert address != name
    found = dataclasses.replace(run, problems=(f"worker {address} did not answer",))
    assert Measurement(found).problems == [f"worker {name} did not answer"]
    assert f"worker {name} did not answer" in summary(found)
    assert found.problems == (f"worker {address} did not answer",)


def test_of_a_long_text_its_beginning_is_shown() -> None:
    """Also where it is one word, such as a path."""
    assert _beginning("root://server.example.org//store/file-1.root", 40) == "root://server.example.org//store/file..."
    assert _beginning("two\nlines", 40) == "two lines"
