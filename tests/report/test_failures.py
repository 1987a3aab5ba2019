"""What failed is told whether or not it raised an error."""

from __future__ import annotations

import dataclasses

from handmade import handmade_run
from limited_runs import LIMITED, edited, with_rows
from made_runs import made_run, plan, with_call

from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.report.tables import failures


def lines(run: Run) -> dict[str, list[str]]:
    return {str(sheet.title): [str(item) for item in sheet.items] for sheet in failures(Measurement(run).metrics)}


def test_chunks_that_are_missing_of_other_files_are_told_with_the_failed_files() -> None:
    run = handmade_run()
    found = lines(run)["files with failed attempts (1)"]
    assert found[0].endswith("nothing missing; boom")
    assert found[1] == "1 chunk in other files is missing as well"
    raised = dataclasses.replace(run, calls=tuple(dataclasses.replace(call, outcome="failed") for call in run.calls))
    (of_file,) = Measurement(raised).failed_files["missing"]
    found = lines(raised)["files with failed attempts (1)"]
    assert found[0].endswith(f"1 failed, {of_file} chunks missing; boom")
    assert found[1].startswith(f"{4 - of_file} chunk")


def test_attempts_without_an_error_are_told_by_reason() -> None:
    assert lines(LIMITED["memory"]()) == {"failures": ["2 attempts were lost with a worker"]}
    assert lines(handmade_run())["other failures"] == [
        "1 attempt was repeated: another result for the chunk was used",
    ]


def test_an_interrupted_run_does_not_lack_failures() -> None:
    error = "KeyboardInterrupt"
    run = with_call(made_run([plan(1.0)] * 8, 2, outcome="failed", error=error), outcome="failed", error=error)
    assert run.chunks is not None
    names = ("dataset", "file", "tree", "entry_start", "entry_stop", "call")
    run = with_rows(run, asked=[{name: row[name] for name in names} for row in run.chunks.to_pylist()])
    run = dataclasses.replace(run, chunks=run.chunks.slice(0, 6))
    run = edited(run, tasks=lambda row: {"outcome": "unfinished"} if row["run_id"] in {6, 7} else {})
    assert lines(run) == {
        "failures": ["2 attempts were unfinished when the run stopped", "8 chunks are missing from the output"]
    }


def test_a_healthy_run_has_none() -> None:
    assert lines(made_run([plan(1.0)] * 4, 2)) == {}
