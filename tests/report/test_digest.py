"""The first look at runs that are written down by hand."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from handmade import empty_run, handmade_run
from made_runs import made_run, plan, waiting_in, with_call

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked
from roastcoffea.metrics.phases import FAMILIES, FAMILY_OF, TROUBLE
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.run import ASKED_COLUMNS, PROFILE_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS
from roastcoffea.report.first_look import Digest, Hot, digest_of, notebook_look
from roastcoffea.sheets.sheet import Heading
from roastcoffea.units import BYTE, SECOND


def digest(run: Run) -> Digest:
    measurement = Measurement(run)
    return digest_of(measurement.run, measurement.metrics)


def test_bars_hold_all_of_both_ledgers() -> None:
    run = handmade_run()
    found, measurement = digest(run), Measurement(run)
    assert found.time is not None
    assert found.bytes is not None
    ledgers = (found.time, measurement.time_ledger, SECOND), (found.bytes, measurement.byte_ledger, BYTE)
    for bar, ledger, unit in ledgers:
        assert sum(share.fraction for share in bar.shares) == pytest.approx(1.0, abs=0.01)
        shown = {part for share in bar.shares for part in share.details.split(", ")}
        assert shown == {f"{name} {unit.text(amount)}" for name, amount in ledger.items() if amount > 0}
        assert [share.family for share in bar.shares] == [
            one for one in FAMILIES if one in {s.family for s in bar.shares}
        ]
        for share in bar.shares:
            amounts = [ledger[name] for name in ledger if FAMILY_OF[name] == share.family and ledger[name]]
            assert share.fraction == pytest.approx(sum(amounts) / ledger.total)


def with_profile(**sizes: float) -> Run:
    """A run whose chunks wait for cores, with lines that take so many seconds: the first loads a JSON file."""
    run = waiting_in(made_run([plan(1.0, wait=3.0)] * 40, 2), "contention_seconds")
    stacks = [(["P.process", *([name, "load"] if name == "scale" else [name])], size) for name, size in sizes.items()]
    rows = [
        {"call": "c1", "dataset": "data", "functions": names, "lines": list(range(7, 7 + len(names)))}
        | {"files": ["/my.py", "/my.py", "json/__init__.py"][: len(names)], "samples": 100, "seconds": size}
        | {"core_seconds": 0.1 * size, "contention_seconds": 0.9 * size, "blocked_seconds": 0.0}
        for names, size in stacks
    ]
    return dataclasses.replace(run, profile=table_of_rows(PROFILE_COLUMNS, rows))


@pytest.mark.slow
def test_the_hottest_lines_of_user_code_are_shown_whatever_is_in_front_of_them() -> None:
    run = with_profile(cut=20.0, scale=60.0, fill=1.0, match=15.0, veto=4.0)
    found = digest(run)
    assert found.hot == [
        Hot("60 %", "600 ms a chunk", "scale (/my.py:8)", "json.load"),
        Hot("20 %", "200 ms a chunk", "cut (/my.py:8)", ""),
        Hot("15 %", "150 ms a chunk", "match (/my.py:8)", ""),
    ]
    measurement = Measurement(run)
    out = io.StringIO()
    measurement.print_summary(out)
    page = str(notebook_look(found, Heading(title="run")))
    for one in found.hot:
        assert f"{one.share} of CPU, {one.each}: {one.where}" in out.getvalue()
        assert f"{one.share}, {one.each}: <code>{one.where}</code>" in page


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
def test_a_terminal_has_function_file_and_line_in_any_width(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "corrections_of_all_eras"
    run = with_profile(**{name: 60.0, "cut": 40.0})
    assert run.profile is not None
    files = [["/home/me/analyses/of/many/years/selection.py"] * len(row) for row in run.profile["files"].to_pylist()]
    place = run.profile.schema.get_field_index("files")
    profile = run.profile.set_column(place, run.profile.schema.field(place), pa.array(files))
    out = io.StringIO()
    Measurement(dataclasses.replace(run, profile=profile)).print_summary(out)
    shown = "".join(out.getvalue().partition("your code")[2].split())
    assert shown.startswith("60%ofCPU")
    assert f":{name}(.../selection.py:8)" in shown


def test_without_a_profile_no_line_is_shown() -> None:
    assert digest(made_run([plan(1.0)] * 40, 2)).hot == []


def test_a_remark_tells_of_what_is_unaccounted_where_it_matters() -> None:
    assert digest(made_run([plan(1.0)] * 4, 2)).time.remark == "everything is accounted for"  # type: ignore[union-attr]
    bar = digest(handmade_run()).bytes
    assert bar is not None
    assert bar.remark == "incomplete: 1 attempt has unaccounted-for bytes (50 B in total)"  # of 6.05 kB


def test_a_healthy_run_is_complete_and_told_so() -> None:
    found = digest(made_run([plan(1.0)] * 40, 2))
    assert (found.state, found.findings) == ("complete", [])
    assert found.verdict.startswith("Healthy")
    assert found.coverage == "40 of 40 chunks, 4,000 events"
    assert [tile.label for tile in found.tiles][:2] == ["elapsed", "event rate"]


@pytest.mark.parametrize(("error", "state"), [("ValueError: no", "failed"), ("KeyboardInterrupt", "interrupted")])
def test_how_a_run_ended(error: str, state: str) -> None:
    run = made_run([plan(1.0)] * 4, 2, outcome="failed", error=error)
    assert digest(with_call(run, outcome="failed")).state == state


def test_what_ran_when_the_run_stopped_is_unfinished_and_not_failed() -> None:
    run = made_run([plan(1.0)] * 4, 2, outcome="failed", error="KeyboardInterrupt")
    assert run.chunks is not None
    run = edited(with_call(run, outcome="failed"), "tasks", TASK_COLUMNS, until_the_end)
    found = digest(dataclasses.replace(run, chunks=run.chunks.slice(0, 2)))
    assert found.coverage.endswith("lost with the output, 1 failed attempt, 1 unfinished attempt")


def test_what_was_cancelled_after_an_error_is_no_failed_attempt() -> None:
    run = with_call(made_run([plan(1.0)] * 6, 2, outcome="failed", error="OSError: no"), outcome="failed")
    assert run.chunks is not None
    ends = {2: {"outcome": "error", "error": "OSError: no"}}
    ends |= {number: {"outcome": "cancelled"} for number in (3, 4, 5)}
    run = edited(run, "tasks", TASK_COLUMNS, lambda row: ends.get(row["run_id"], {}))
    found = digest(dataclasses.replace(run, chunks=run.chunks.slice(0, 2)))
    assert found.coverage == "2 of 2 chunks computed, all lost with the output, 1 failed attempt"


@pytest.mark.parametrize(("size", "note"), [(10**7, "mostly other files"), (10, "useful")])
def test_the_data_rate_does_not_call_other_files_useless(size: int, note: str) -> None:
    run = handmade_run()
    rows = [
        row
        | {"bytes_other": size, "bytes_other_transferred": size, "other_files": ["friend.root"]}
        | {"other_requested": [size], "other_payload": [size], "other_metadata": [0], "other_baskets": [1]}
        for row in run.chunks.to_pylist()  # type: ignore[union-attr]
    ]
    found = digest(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)))
    (tile,) = [tile for tile in found.tiles if tile.label == "data rate"]
    assert tile.note.endswith(note)


def test_data_that_the_output_lacks_are_no_problem_of_measuring() -> None:
    run = made_run([plan(1.0)] * 4, 2)
    first, *others = run.chunks.to_pylist()  # type: ignore[union-attr]
    rows = [first | {"outcome": "skipped", "error": "OSError: no", "events": None}, *others]
    skipped = dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows), problems=("a clock stood still",))
    asked = [
        {name: row[name] for name in ("call", "dataset", "file", "tree", "entry_start", "entry_stop")} for row in rows
    ]
    told = checked(dataclasses.replace(skipped, asked=table_of_rows(ASKED_COLUMNS, asked)))
    assert any("missing from the output" in problem for problem in told.problems)
    found = digest(told)
    assert found.lacking is not None
    assert list(found.problems) == ["a clock stood still"]


def until_the_end(row: dict[str, Any]) -> dict[str, Any]:
    return {2: {"outcome": "error", "error": "OSError: no"}, 3: {"outcome": "unfinished"}}.get(row["run_id"], {})


def test_key_numbers_are_compared_with_something_and_none_is_zero() -> None:
    run = made_run([plan(1.0, events=1000)] * 8, 2)
    limits = {"w0": 4 * 10**9, "w1": 2 * 10**9}
    run = edited(run, "lifetimes", LIFETIME_COLUMNS, lambda row: {"memory_limit": limits[row["worker"]]})
    run = edited(run, "chunks", CHUNK_COLUMNS, lambda _: {"memory_peak": 10**9})
    tiles = {tile.label: tile for tile in digest(run).tiles}
    # eight chunks of 1000 events and 1 s on two workers take 4 s
    assert tiles["event rate"][::2] == ("2 kHz", "1 kHz per core")
    assert tiles["core efficiency"][::2] == ("100 %", "of 2 cores")
    assert tiles["peak memory of a worker"][::2] == ("1 GB", "of 2 GB")
    assert "data rate" not in tiles  # nothing was read


def test_parts_of_a_bar_are_named_after_what_is_in_them() -> None:
    def label(**waits: float) -> str:
        bar = digest(made_run([plan(1.0, **waits)] * 8, 2)).time
        assert bar is not None
        (found,) = [share.name for share in bar.shares if share.family is TROUBLE]
        return found

    assert label(core_wait=1.0, wait=0.01) == "contention"
    assert label(core_wait=1.0, wait=0.1) == "mostly contention"
    assert label(core_wait=1.0, wait=0.2) == "contention, blocked"


def test_a_run_that_failed_without_a_result_has_nothing_to_be_made_faster() -> None:
    run = with_call(made_run([plan(1.0, read=5.0)] * 4, 2, outcome="failed", error="ValueError: no"), outcome="failed")
    assert digest(run).findings
    nothing = edited(run, "chunks", CHUNK_COLUMNS, lambda _: {"outcome": "error", "error": "ValueError: no"})
    found = digest(nothing)
    assert (found.state, found.verdict) == ("failed", "")
    assert all(one.incomplete for one in found.findings)
    assert "0 events" not in found.coverage


def test_facts_name_processor_data_workers_and_version() -> None:
    run = made_run([plan(1.0, dataset=name, file=f"{name}.root") for name in "abcde"], 3)
    versions = dataclasses.replace(run.environment, versions={"coffea": "2026.9.0", "numpy": "2"})
    facts = digest(dataclasses.replace(run, environment=versions)).facts
    assert facts[:4] == ["Made", "a, b, c and 2 more in 5 files", "3 workers x 1 thread on node", "coffea 2026.9.0"]
    assert digest(dataclasses.replace(run, name=None)).facts[0].startswith("a, b, c")  # its name is the processor's


@pytest.mark.parametrize(
    ("others", "told"), [(1.9, ["other processes used 1.9 of 2 cores"]), (0.05, []), (0.0, []), (None, [])]
)
def test_cores_of_other_processes_are_told_as_measured(others: float | None, told: list[str]) -> None:
    """Whatever threads waited for: the kernel counts what others used."""
    facts = digest(made_run([plan(1.0)] * 8, 2, cores=2, others=others)).facts
    assert [fact for fact in facts if fact.startswith("other")] == told


def test_on_a_shared_host_what_others_took_comes_after_what_the_user_can_change() -> None:
    """Waiting for cores takes more time than storage does, and is told once, last."""
    chunks = [plan(1.0, core_wait=3.0, read=1.0, file=f"root://store//{number % 4}.root") for number in range(24)]
    run = made_run(chunks, 2, cores=2, others=1.9)
    found, verdict = digest(run), Measurement(run).verdict
    assert [one.cause for one in verdict] == ["contention", "storage"]
    assert [one.cause for one in found.findings] == ["storage", "contention"]
    assert "other processes used 1.9 of 2 cores" in found.findings[1].what
    assert not [fact for fact in found.facts if fact.startswith("other")]
    assert found.sentence.startswith("Reading waits for storage")
    # 2 threads per core would wait for cores as well
    assert "threads per core" not in found.findings[0].text
    assert sum(one.left or 0.0 for one in verdict) <= (verdict.together or 0.0) * (1 + 1e-9)


def test_cores_of_others_are_not_told_of_a_host_that_the_run_may_use_in_part() -> None:
    run = made_run([plan(1.0)] * 8, 2, cores=2, others=60.0)
    part = dataclasses.replace(run.environment.hosts[0], node_cores=128)
    run = dataclasses.replace(run, environment=dataclasses.replace(run.environment, hosts=(part,)))
    assert not [fact for fact in digest(run).facts if fact.startswith("other")]
    assert Measurement(run).metrics["cores_of_others"] == 60


def test_what_is_missing_comes_with_the_line_that_runs_it() -> None:
    run = made_run([plan(1.0)] * 4, 2)
    rows = [{name: row[name] for name in run.asked.column_names if name in row} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    asked = [*rows, rows[0] | {"entry_start": 400, "entry_stop": 900}]
    half = dataclasses.replace(run, asked=table_of_rows(ASKED_COLUMNS, asked))
    found = digest(with_call(half, options={"skipbadfiles": True}))
    assert (found.state, found.coverage.split(",")[0]) == ("incomplete", "4 of 5 chunks")
    assert found.lacking is not None
    assert "1 chunk is missing" in found.lacking.what
    assert "500 events" in found.lacking.how_much
    assert "missing_items" in (found.lacking.line or "")
    assert digest(run).lacking is None


def test_a_run_without_a_runner_call_is_none_that_is_complete() -> None:
    assert digest(empty_run()).state == "nothing was run"
    run = made_run([plan(1.0)] * 2, 1)
    bare = dataclasses.replace(run, calls=(), chunks=table_of_rows(CHUNK_COLUMNS, []))
    assert digest(bare).state == "no Runner was called"


def test_an_interrupt_after_the_last_call_is_one() -> None:
    run = made_run([plan(1.0)] * 4, 2, outcome="failed", error="KeyboardInterrupt")
    found = digest(run)
    assert (found.state, found.lacking, found.error) == ("interrupted", None, "KeyboardInterrupt")


def edited(run: Run, table: str, columns: Sequence[Column], change: Callable[[Any], dict[str, Any]]) -> Run:
    """The same run with cells of a table changed."""
    rows = [row | change(row) for row in getattr(run, table).to_pylist()]
    return dataclasses.replace(run, **{table: table_of_rows(columns, rows)})


def test_an_incomplete_ledger_is_not_said_to_account_for_everything() -> None:
    run = made_run([plan(1.0)] * 4, 2)
    assert run.tasks is not None
    bar = digest(dataclasses.replace(run, tasks=run.tasks.slice(0, 0))).time
    assert bar is not None
    assert bar.remark.startswith("incomplete: ")


def test_chunks_of_a_failed_call_are_counted_once() -> None:
    run = with_call(made_run([plan(1.0)] * 4, 2, outcome="failed", error="ValueError: no"), outcome="failed")
    asked = [
        {"call": "c1", "dataset": "data", "file": "a.root", "entry_start": 100 * n, "entry_stop": 100 * (n + 1)}
        for n in range(6)
    ]
    assert digest(dataclasses.replace(run, asked=table_of_rows(ASKED_COLUMNS, asked))).coverage.startswith(
        "4 of 6 chunks computed, all lost with the output"
    )


def test_the_head_has_all_workers_that_there_were() -> None:
    run = made_run([plan(1.0)] * 8, 2)
    first, *others = run.lifetimes.to_pylist()  # type: ignore[union-attr]
    middle = (run.start + run.stop) / 2
    lives = [*others, first | {"stop": middle}, first | {"worker": "later", "start": middle}]
    found = digest(dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives)))
    assert any(fact.startswith("3 workers ") and fact.endswith(", at most 2 at once") for fact in found.facts)


def test_an_empty_run_has_no_verdict_and_no_key_number_but_its_time() -> None:
    found = digest(empty_run())
    assert (found.state, [tile.label for tile in found.tiles]) == ("nothing was run", ["elapsed"])
    assert found.verdict.startswith("No Runner was called")


@pytest.mark.slow
def test_the_sentence_on_top_is_the_first_finding_or_the_verdict() -> None:
    waiting = digest(made_run([plan(1.0, core_wait=1.0)] * 20, 2))
    assert waiting.sentence.startswith("Threads wait for a free core: 10.0.0.1. Fixing it saves about ")
    healthy = digest(made_run([plan(1.0)] * 40, 2))
    assert healthy.sentence == healthy.verdict
    assert healthy.sentence.startswith("Healthy")


def test_bytes_of_which_no_class_is_known_have_no_bar() -> None:
    run = made_run([plan(1.0)] * 4, 2)
    counts = {"bytes_requested": 1000, "bytes_metadata": 400}
    assert digest(edited(run, "chunks", CHUNK_COLUMNS, lambda _: counts)).bytes is not None
    bare = edited(run, "chunks", CHUNK_COLUMNS, lambda _: counts | {"bytes_metadata": None})
    ledger = Measurement(bare).byte_ledger
    assert ledger.residual == ledger.total
    assert ledger.total
    assert digest(bare).bytes is None
