"""The first look in a terminal: one screen of plain lines, with colours where there are any."""

from __future__ import annotations

import ast
import dataclasses
import io
import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from handmade import empty_run, handmade_run
from limited_runs import LIMITED, measured
from made_runs import made_run, plan, with_call
from rich.cells import cell_len
from rich.console import Console

from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics.facts import NO_NAMES
from roastcoffea.metrics.phases import COMPUTING, FAMILIES, READING
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PREPROCESSING_COLUMNS, Run
from roastcoffea.report.first_look import FILLS, Places, cells_of, digest_of, print_first_look, with_short_paths
from roastcoffea.report.summary import summary
from roastcoffea.sheets.terminal import console_for, show


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


QUICK = ("memory", "slow dataset", "start-up")


def shown(run: Run | Measurement, file: io.StringIO | None = None) -> list[str]:
    file = file or io.StringIO()
    (run if isinstance(run, Measurement) else Measurement(run)).print_summary(file)
    return file.getvalue().splitlines()


@cache
def healthy() -> Measurement:
    return Measurement(made_run([plan(1.0)] * 40, 2))


@cache
def half_reading() -> Measurement:
    return Measurement(made_run([plan(1.0, read=1.0)] * 20, 2))


def failed(error: str = "ValueError: planted") -> Run:
    return with_call(made_run([plan(1.0)] * 4, 2, outcome="failed", error=error), outcome="failed", error=error)


def test_a_healthy_run_takes_less_than_a_screen() -> None:
    lines = shown(healthy())
    assert len(lines) <= 24
    assert lines[0].startswith("made   complete: 40 of 40 chunks, 4,000 events")
    assert lines[0].endswith("20 s")  # 40 s of work on two workers
    assert "Healthy: no single change would save as much as 5 % of the wall time." in lines
    assert not any("problem" in line for line in lines)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in LIMITED]
)
def test_findings_fit_the_width_and_name_saving_and_remedy(name: str) -> None:
    measurement, file = measured(name), io.StringIO()
    measurement.print_summary(file)
    lines = file.getvalue().splitlines()
    assert len(lines) <= 24
    remedies = {one.remedy for one in measurement.verdict if one.incomplete}
    assert all(cell_len(line) <= 80 or line in remedies for line in lines)
    assert all(line == line.rstrip() for line in lines)
    found = [one for one in measurement.verdict if not one.incomplete]
    numbered = [line for line in lines if re.match(r"  \d  ", line)]
    assert min(len(found), 1) <= len(numbered) <= 3
    also = " ".join(lines).partition("Also: ")[2].partition(". ")[0].removesuffix(".")
    rest = found[len(numbered) :]
    *named, last = also.split("; ")
    left = int(last.removeprefix("and ").removesuffix(" more")) if last.endswith(" more") else 0
    named += [] if left else [last]
    assert len(rest) == left + (len(named) if also else 0)
    for one, text in zip(rest, named, strict=False):
        saving = f" ({one.saves.replace('fixing it too', 'then').removeprefix('fixing it ')})" if one.saves else ""
        assert " ".join(text.split()) == f"{one.headline}{saving}"
    for place, finding in enumerate(found[: len(numbered)], 1):
        (line,) = [line for line in lines if line.startswith(f"  {place}  ")]
        assert finding.headline in line
        assert line.endswith(finding.saves)
        assert finding.remedy is None or finding.remedy in " ".join(" ".join(lines).split())


def test_a_long_head_has_the_time_in_its_first_line() -> None:
    run = dataclasses.replace(failed(), name="a processor with a name that leaves little room")
    first, second, *_ = shown(run)
    assert first.endswith("  2 s")
    assert cell_len(first) == 80
    assert second.endswith("lost with the output")


def test_a_notebook_gets_one_text_and_not_one_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: texts.append(text))
    measurement, console = healthy(), Console(force_jupyter=True, width=80)
    print_first_look(console, digest_of(measurement.run, measurement.metrics), Places(), NO_NAMES)
    (first,) = texts
    show(console, summary(measurement.run, measurement.metrics, "throughput"))
    assert len(texts) == 2
    assert "complete" in first
    assert "All tables" in first


def test_a_run_without_a_runner_call_has_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(empty_run())
    assert len(lines) == 3
    short = shown(dataclasses.replace(empty_run(), stop=empty_run().start + 2e-5))[0]
    assert not re.search(r"\d \w?s$", short)
    assert "no Runner was called" in lines[0]
    assert "Call the Runner inside" in lines[2]
    broken = dataclasses.replace(empty_run(), problems=("the cluster was not seen",))
    assert shown(broken) == [lines[0], "1 measurement problem: the cluster was not seen.", lines[2]]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = shown(dataclasses.replace(empty_run(), name="a name that is much too long for the terminal"))
    assert len(narrow) == 3
    assert max(map(cell_len, narrow)) <= 40


@pytest.mark.parametrize(("error", "state"), [("ValueError: planted", "failed"), ("KeyboardInterrupt", "interrupted")])
def test_how_a_run_ended_stands_in_the_first_line_and_is_red(
    error: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = Measurement(failed(error))
    assert shown(measurement)[0].startswith(f"made   {state}: ")
    monkeypatch.setenv("TERM", "xterm-256color")
    first, *_ = shown(measurement, Terminal())
    assert "\x1b[1;31m" in first
    first, *_ = shown(healthy(), Terminal())
    assert "31m" not in first


def test_an_error_after_the_last_call_is_told_although_nothing_is_missing() -> None:
    lines = shown(made_run([plan(1.0)] * 4, 2, outcome="failed", error="ValueError: planted"))
    assert lines[:2] == [lines[0], "ValueError: planted"]
    assert lines[0].startswith("made   failed: ")


def statements(lines: list[str]) -> tuple[list[str], list[str]]:
    """Statements at the beginning of lines, each in one line, and the lines that they took."""
    taken = list(takewhile(lambda line: line.startswith((" ", "rest = ", "measurement = ")) or line == ")", lines))
    return [ast.unparse(statement) for statement in ast.parse("\n".join(taken)).body], taken


@pytest.mark.slow
def test_what_is_missing_has_its_lines_to_copy_alone(tmp_path: Path) -> None:
    run = LIMITED["missing data"]()
    first = shown(Measurement(run))
    assert "To run the rest:" not in first
    assert any(line.startswith("Fix this first, or it will fail again: FileNotFoundError") for line in first)
    late = [row | {"error": row["error"] and "TimeoutError: no answer"} for row in run.preprocessing.to_pylist()]
    measurement = Measurement(dataclasses.replace(run, preprocessing=table_of_rows(PREPROCESSING_COLUMNS, late)))
    lines = shown(measurement)
    assert "   incomplete: " in lines[0]
    place = lines.index("To run the rest:") + 1
    rest, _ = statements(lines[place:])
    lacking = digest_of(measurement.run, measurement.metrics).lacking
    assert lacking is not None
    remedy = lacking.line or ""
    assert len(remedy) > 80
    assert rest == [ast.unparse(statement) for statement in ast.parse(remedy).body]
    file = io.StringIO()
    saved = measurement.save(tmp_path, "a, (b) 'c")
    load(saved).print_summary(file)
    again, _ = statements(file.getvalue().splitlines()[place:])
    assert again == [f"measurement = roastcoffea.load({str(saved)!r})", *rest]


@pytest.mark.slow
def test_the_rest_is_where_it_was_saved(tmp_path: Any) -> None:
    measurement = Measurement(healthy().run)
    assert any("print_summary(all=True)" in line for line in shown(healthy()))
    path = measurement.save(tmp_path, "a run")
    file = io.StringIO()
    measurement.print_summary(file)
    assert f"All tables: roastcoffea show '{path}' --all" in file.getvalue()
    assert f"Page: roastcoffea report '{path}'" in file.getvalue()
    (path / "report.html").touch()
    file = io.StringIO()
    load(path).print_summary(file)
    assert f"Page: {path / 'report.html'}" in file.getvalue()


def test_a_group_is_printed_alone_and_an_unknown_one_is_named() -> None:
    measurement, file = Measurement(handmade_run()), io.StringIO()
    measurement.print_summary(file, group="datasets")
    assert file.getvalue().splitlines()[1] == "Datasets"
    assert "Bytes" not in file.getvalue()
    with pytest.raises(ValueError, match="did you mean bytes"):
        measurement.print_summary(file, group="bites")


# Bars


@pytest.mark.parametrize("fractions", [[1.0], [0.5, 0.5], [0.6, 0.3, 0.09, 0.009, 0.001], [1 / 3] * 3, [1e-9, 1.0]])
@pytest.mark.parametrize("width", [1, 7, 60])
def test_a_bar_is_full_and_its_parts_as_long_as_their_shares(fractions: list[float], width: int) -> None:
    cells = cells_of(fractions, width)
    assert sum(cells) == width
    # what is too short for a cell, and has a name, takes one of the longest
    assert all(abs(each - fraction * width) < 1.5 for each, fraction in zip(cells, fractions, strict=True))
    named = [each for each, fraction in zip(cells, fractions, strict=True) if fraction >= 0.005]
    assert all(named) or width < len(named)


def bar_of(lines: list[str], name: str) -> str:
    (line,) = [line for line in lines if line.startswith(f"  {name} ")]
    return line.removeprefix(f"  {name} ").split()[0]


def test_half_of_a_bar_is_half_of_the_time() -> None:
    bar = bar_of(shown(half_reading()), "thread time")
    of = {family.name: bar.count(FILLS[family.name].block) for family in FAMILIES}
    assert abs(of[COMPUTING.name] - of[READING.name]) <= 1
    assert of[COMPUTING.name] + of[READING.name] == len(bar)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_with_colours_all_parts_are_full_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    lines = shown(half_reading(), Terminal())
    (bar,) = [line for line in lines if line.startswith("  thread time ")]
    assert bar.count("█") > 40
    assert bar.count("\x1b[38;") == 2
    monkeypatch.delenv("COLORTERM")
    for few in ("xterm", "xterm-256color"):
        monkeypatch.setenv("TERM", few)
        lines = shown(half_reading(), Terminal())
        (bar,) = [line for line in lines if line.startswith("  thread time ")]
        assert FILLS[READING.name].block * 20 in bar
        assert "\x1b[" in bar
    monkeypatch.setenv("NO_COLOR", "1")
    lines = shown(half_reading(), Terminal())
    assert FILLS[READING.name].block * 20 in bar_of(lines, "thread time")
    assert "\x1b[38" not in "".join(lines)


def test_an_output_that_knows_ascii_only_gets_letters() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    Measurement(handmade_run(name="caf\u00e9")).print_summary(file)
    file.flush()
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[0].startswith("caf\\xe9")
    assert set(bar_of(lines, "thread time")) <= {fill.letter for fill in FILLS.values()}


def test_families_stand_out_from_black_and_white() -> None:
    def luminance(colour: str) -> float:
        values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colours = [luminance(FILLS[family.name].colour) for family in FAMILIES]
    assert min((one + 0.05) / 0.05 for one in colours) >= 3
    assert min(1.05 / (one + 0.05) for one in colours) >= 3
    assert [len(set(fills)) for fills in zip(*FILLS.values(), strict=True)] == [7] * 3


# Names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "printed"), [("[red]x[/red]", "[red]x[/red]"), ("a\x1b[31mb", "a\\x1b[31mb"), ("two\nlines", "two lines")]
)
def test_names_are_printed_as_they_are(name: str, printed: str) -> None:
    lines = shown(dataclasses.replace(healthy().run, name=name, problems=(name,)))
    assert sum(printed in line for line in lines) == 2
    assert "\x1b" not in "".join(lines)


def test_a_long_name_leaves_the_wall_time_at_the_edge() -> None:
    lines = shown(dataclasses.replace(healthy().run, name="/store/" + "averylongname" * 12))
    assert max(map(cell_len, lines)) <= 80
    assert any(line.endswith("  20 s") for line in lines[:4])


def test_of_long_paths_the_last_part_is_left() -> None:
    long = "root://eos.example.org//store/user/somebody/ntuples/nano_1.root"
    assert with_short_paths(f"File {long} is slow.") == "File .../nano_1.root is slow."
    assert with_short_paths("in /home/me/analysis.py:12") == "in /home/me/analysis.py:12"


def test_80_columns_where_the_output_is_no_terminal_and_100_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console_for(io.StringIO()).width == 80
    monkeypatch.setenv("COLUMNS", "120")
    assert max(map(cell_len, shown(healthy()))) == console_for(None).width == 100
    assert isinstance(console_for(None), Console)
