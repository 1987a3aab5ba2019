"""Causes within chunks: when each is found, whom it names, and what it advises."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import awkward
import pytest
from handmade import evidence_of, one_kind_of_time
from limited_runs import busy_run, edited
from made_runs import made_run, plan, waiting_in, with_call

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Finding
from roastcoffea.diagnosis.findings.computing import PYTHON, WITH_COFFEA, _once
from roastcoffea.diagnosis.verdict import conclusions
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.profile import ELEMENTWISE, HOT_COLUMNS, Place, Profile, Stack
from roastcoffea.metrics.thread_activity import StartUp
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import SECTION_COLUMNS, Run
from roastcoffea.records.workers import LIFETIME_COLUMNS


@pytest.mark.parametrize(
    ("column", "cause", "seconds"),
    [
        # runs of 100 s on one thread, without a replay
        ("read_seconds", "storage", 50),  # at twice the rate
        ("decompress_seconds", "decompression", 70),  # zstd needs 30 % of LZMA's time
        ("interpret_seconds", "interpretation", 100),
        ("contention_seconds", "contention", 100),
        ("lock_seconds", "interpreter lock", 100),
        ("blocked_seconds", "blocked", 100),
        ("open_seconds", "metadata", 100),
        ("checkpoint_seconds", "checkpoint", 100),
    ],
)
def test_each_phase_has_its_cause(column: str, cause: str, seconds: float) -> None:
    measurement = one_kind_of_time(column)
    (finding,) = measurement.verdict
    assert (measurement.bound, finding.cause) == (cause, cause)
    assert finding.seconds == pytest.approx(seconds)
    assert "100 % of thread time" in finding.what
    assert finding.severity == "high"


def only(run: Run, cause: str, **facts: Any) -> Finding:
    """The finding of a cause."""
    return {finding.cause: finding for finding in conclusions(evidence_of(run, **facts))[0]}[cause]


FAR, NEAR = "root://far.org//a.root", "/data/a.root"


def test_storage_names_endpoint_and_rate() -> None:
    run = made_run([plan(1.0, read=2.0, file=FAR)] * 20, 2)
    rows = [row | {"bytes_requested": 20_000_000} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    finding = only(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)), "storage")
    assert finding.what == "Reading dominates: 67 % of thread time is spent waiting for far.org (10 MB/s per stream)."
    assert finding.advice.startswith("Cache the dataset nearby, or run 2 threads per core")
    assert finding.remedy == "dask worker ... --nthreads 2"
    assert finding.culprits == (Culprit("endpoint", "far.org", pytest.approx(40.0)),)


def test_local_files_are_read_from_a_disk_and_have_no_culprit() -> None:
    finding = only(made_run([plan(1.0, read=0.5, file=NEAR)] * 20, 2), "storage")
    assert finding.what == "Reading is slow: 33 % of thread time is spent waiting for local files."
    assert finding.advice.startswith("Move the files to a faster disk")
    assert (finding.culprits, finding.remedy) == ((), None)


def opening(file: str, read: float, other_read: float) -> Run:
    """A run whose chunks read their own local file and, for so long, another one."""
    run = made_run([plan(1.0, read=read, file=NEAR)] * 20, 2)
    others = {"other_files": [file], "other_requested": [9_000_000], "other_read_seconds": other_read}
    rows = [row | {"bytes_requested": 1_000_000, "bytes_other": 9_000_000} | others for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    return dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows))


def test_waiting_for_a_file_that_process_opens_is_of_its_server() -> None:
    finding = only(opening(FAR, 2.0, 1.75), "storage")
    assert "waiting for far.org (5 MB/s per stream)" in finding.what
    assert finding.culprits == (Culprit("endpoint", "far.org", 20 * 1.75),)
    assert finding.advice.startswith("Cache the files that process() opens nearby")


def test_waiting_that_is_mostly_for_local_files_blames_no_server() -> None:
    finding = only(opening(FAR, 2.0, 0.25), "storage")
    assert "waiting for local files" in finding.what
    assert finding.advice.startswith("Move the files to a faster disk")


@pytest.mark.parametrize("own", [1_000_000, None])
def test_the_rate_is_unknown_where_requested_bytes_are(own: int | None) -> None:
    run = opening(FAR, 2.0, 1.75)
    rows = [row | {"bytes_requested": own} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    finding = only(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)), "storage")
    assert ("per stream" in finding.what) == (own is not None)


@pytest.mark.parametrize("others", [0, 9_000_000])
def test_opening_blames_no_server_where_process_opens_other_files(others: int) -> None:
    run = one_kind_of_time("open_seconds").run
    rows = [row | {"file": FAR, "bytes_other": others} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    finding = only(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)), "metadata")
    assert [culprit.name for culprit in finding.culprits] == ([] if others else ["far.org"])


def test_no_more_threads_where_they_wait_for_cores_already() -> None:
    finding = only(made_run([plan(1.0, read=2.0, core_wait=1.0, file=FAR)] * 20, 2), "storage")
    assert finding.advice == "Cache the dataset nearby."
    assert finding.remedy is None


def test_decompression_names_the_datasets() -> None:
    run = one_kind_of_time("decompress_seconds").run
    rows = [row | {"dataset": "b" if row["id"] < 3 else "a"} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    (finding,) = Measurement(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows))).verdict
    assert finding.culprits == (Culprit("dataset", "a", 70.0), Culprit("dataset", "b", 30.0))
    assert "most of it in dataset a" in finding.what
    assert "zstd" in finding.advice


def test_metadata_of_one_chunk_a_file_are_no_matter_of_chunk_size() -> None:
    plans = [plan(1.0, open_cpu=1.0, open_wait=1.0, file=f"root://far.org//{place}.root") for place in range(20)]
    found = {finding.cause: finding for finding in conclusions(evidence_of(made_run(plans, 2)))[0]}
    assert not any("chunksize=" in finding.text for finding in found.values())


def test_metadata_say_what_each_chunk_takes() -> None:
    (finding,) = one_kind_of_time("open_seconds").verdict
    assert "100 % of thread time, 10 s for each of 10 chunks." in finding.what


def evidence_of_start_up() -> Evidence:
    """A first chunk that takes longer to open."""
    run = one_kind_of_time("compute_seconds").run
    rows = [row | {"open_seconds": 1.0, "compute_seconds": 9.0} for row in run.chunks.to_pylist()]  # type: ignore[union-attr]
    rows[0].update(open_seconds=8.0, compute_seconds=2.0)
    chunks = table_of_rows(CHUNK_COLUMNS, [row | {"thread": 1, "build_seconds": 0.0} for row in rows])
    return evidence_of(dataclasses.replace(run, chunks=chunks))


def with_start_up(evidence: Evidence, *started: StartUp, **changes: Any) -> Evidence:
    """The same evidence with these start-ups of workers."""
    return dataclasses.replace(evidence, ledger=dataclasses.replace(evidence.ledger, startup=started), **changes)


def test_start_up_names_workers_and_what_they_imported() -> None:
    evidence = evidence_of_start_up()
    assert isinstance(next(iter(evidence.ledger.startup), None), StartUp)
    found = {one.cause: one for one in conclusions(evidence)[0]}
    assert found["start-up"].seconds == pytest.approx(7.0)
    assert [(one.kind, one.name) for one in found["start-up"].culprits] == [("worker", "A")]
    assert "on 1 new worker" in found["start-up"].what
    assert "--preload" in str(found["start-up"].remedy)


@pytest.mark.parametrize(
    ("idle", "modules", "preloaded"),
    [
        (0.0, ["pydantic", "numba"], ["pydantic", "numba"]),
        (5.0, ["pydantic", "numba"], ["coffea.processor", "pydantic"]),
        (0.0, ["numpy", "coffea", "pydantic"], ["coffea.processor", "pydantic"]),
        (5.0, ["numpy.typing", "numpy._typing._extended", "pyarrow._compute"], ["coffea.processor"]),
        # workers that have coffea already
        (0.0, ["coffea.nanoevents.methods.nanoaod"], ["coffea.nanoevents.methods.nanoaod"]),
    ],
)
def test_the_remedy_of_start_up_names_the_imports_that_took_the_time(
    idle: float, modules: list[str], preloaded: list[str]
) -> None:
    """A worker that waited for its first task imported coffea, to unpickle it."""
    started = StartUp("A", 7.0, idle, ("_abc", "shlex", "roastcoffea", *modules))
    evidence = with_start_up(evidence_of_start_up(), started)
    (finding,) = (one for one in conclusions(evidence)[0] if one.cause == "start-up")
    packages = dict.fromkeys(name.partition(".")[0] for name in modules)
    assert f"they imported {', '.join(packages)}." in finding.what
    assert finding.advice == f"Import {', '.join(preloaded)} in a worker preload."
    assert finding.remedy == f"dask worker ... {' '.join(f'--preload {name}' for name in preloaded)}"


def test_coffea_imports_what_is_left_to_it() -> None:
    loaded = "import coffea.processor, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    printed = subprocess.run([sys.executable, "-Wignore", "-c", loaded], capture_output=True, text=True, check=True)
    assert set(printed.stdout.split()) >= WITH_COFFEA


@pytest.mark.parametrize("imports", [False, True])
def test_start_up_names_the_line_that_took_the_time_where_imports_did_not(imports: bool) -> None:
    """A table that functools.cache keeps in each worker loads modules as well, in next to no time."""
    evidence = evidence_of_start_up()
    assert evidence.counted is not None
    rows = evidence.counted.sort_by("start").to_pylist()
    for row in rows:
        row["process_seconds"] = 1.0
    rows[0]["process_seconds"] = 8.0
    own = (Place("P.process", "/home/p.py", 14), Place("table", "/home/p.py", 6))
    loading = Place("get_data", "<frozen importlib._bootstrap_external>", 9)
    below = (*own, loading) if imports else own
    states = {"core": 7.0, "contention": 0.0, "blocked": 0.0, "unknown": 0.0}
    later = Stack("data", (own[0], Place("body", "/home/p.py", 9)), 70, 7.0, states)
    profile = Profile([Stack("data", below, 70, 7.0, states, rows[0]["id"]), later])
    started = StartUp(rows[0]["worker"], 7.0, 0.0, ("numba",))
    chunks = table_of_rows(CHUNK_COLUMNS, rows)
    evidence = with_start_up(evidence, started, counted=chunks, profile=profile)
    (finding,) = (one for one in conclusions(evidence)[0] if one.cause == "start-up")
    assert ("numba" in finding.what, finding.remedy is not None) == (imports, imports)
    assert (
        "table" in finding.what,
        ("function", str(own[1])) in {(one.kind, one.name) for one in finding.culprits},
    ) == ((not imports, not imports))


@pytest.mark.parametrize(
    ("pool", "asks"), [("ProcessPoolExecutor", True), ("ThreadPoolExecutor", False), (None, False)]
)
def test_start_up_of_processes_asks_for_a_pool_that_stays(pool: str | None, asks: bool) -> None:
    """Not where there is one: then the options name no class; nor for threads of the client's process."""
    evidence = evidence_of_start_up()
    options = {"executor.workers": 4} | ({"executor.pool": pool} if pool else {})
    run = with_call(evidence.run, executor="FuturesExecutor", options=options)
    evidence = dataclasses.replace(evidence, run=dataclasses.replace(run, tasks=None))
    (found,) = (one for one in conclusions(evidence)[0] if one.cause == "start-up")
    line = "FuturesExecutor(pool=loky.get_reusable_executor(max_workers=4))"
    assert found.remedy == (line if asks else None)
    assert ("Reuse the processes" in found.advice) == asks


def test_contention_names_hosts_and_where_threads_are_more_than_cores() -> None:
    plans = [plan(1.0, core_wait=1.0)] * 20
    finding = only(made_run(plans, 2, others=62.5), "contention")
    assert (
        finding.what == "CPU contention: threads that were ready to run had no free core on 10.0.0.1 for 50 % of "
        "thread time; other processes used 62.5 of 64 cores."
    )
    assert "Stop other processes" in finding.advice
    assert finding.remedy is None
    crowded = only(made_run(plans, 2, cores=1), "contention")
    assert crowded.what.endswith("; the host runs 2 task threads on 1 core.")
    assert crowded.remedy == "dask worker ... --nworkers 1 --nthreads 1"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"executor.pool": "ProcessPoolExecutor"}, "FuturesExecutor(workers=1)"),
        ({}, "max_workers=1, where the pool is created"),
    ],
)
def test_a_pool_that_the_executor_was_given_has_its_own_number_of_workers(options: dict[str, str], line: str) -> None:
    run = dataclasses.replace(made_run([plan(1.0, core_wait=1.0)] * 20, 2, cores=1), tasks=None)
    finding = only(with_call(run, executor="FuturesExecutor", options=options), "contention")
    assert finding.remedy == line
    assert finding.text.endswith(f"Use 1 worker: {line}")


PROCESS, SMEAR = Place("P.process", "/my.py", 3), Place("smear", "/my.py", 7)
CUT = Place("select", "/my.py", 30), Place("cut", "awkward/cut.py", 1)
JSON = Place("load", "json/__init__.py", 293)


def stack(core: float, *places: Place, blocked: float = 0.0, chunk: int | None = None) -> Stack:
    states = {"core": core, "contention": 0.0, "blocked": blocked, "unknown": 0.0}
    return Stack("data", (PROCESS, *places), 100, core + blocked, states, chunk)


def sampled(*stacks: Stack) -> dict[str, Any]:
    """What is known of stacks."""
    profile = Profile(stacks)
    return {"profile": profile, "hot": table_of_rows(HOT_COLUMNS, profile.hot_functions())}


def hot(core: float, *called: Place, blocked: float = 0.0) -> dict[str, Any]:
    """What is known of a function of the user's, and of what it calls, beside columnar code."""
    return sampled(stack(core, SMEAR, *called, blocked=blocked), stack(1 - core, *CUT))


def test_the_interpreter_lock_names_who_holds_it_and_how_many_share_it() -> None:
    run = waiting_in(made_run([plan(1.0, wait=1.0)] * 20, 2), "lock_seconds")
    finding = only(run, "interpreter lock", **hot(0.9))
    waits = "For 50 % of thread time, threads wait for Python's interpreter lock (estimated)"
    assert finding.what == f"{waits}; smear (/my.py:7) holds it longest."
    assert finding.remedy is None
    shared = one_kind_of_time("lock_seconds").run
    life = table_of_rows(LIFETIME_COLUMNS, [row | {"threads": 4} for row in shared.lifetimes.to_pylist()])  # type: ignore[union-attr]
    found = Measurement(dataclasses.replace(shared, lifetimes=life)).verdict
    (locked,) = (one for one in found if one.cause == "interpreter lock")
    assert "(estimated; 4 threads share one interpreter)" in locked.what
    assert locked.remedy == "dask worker ... --nworkers 4 --nthreads 1"


def sections(**seconds: float) -> Any:
    return table_of_rows(
        SECTION_COLUMNS, [{"name": name, "wall_seconds": wall, "cpu_seconds": 0.0} for name, wall in seconds.items()]
    )


def test_blocked_names_the_section_else_the_function_else_how_to_find_it() -> None:
    run = one_kind_of_time("blocked_seconds").run
    named = only(dataclasses.replace(run, sections=sections(weights=60.0, other=9.0)), "blocked")
    assert "in section weights:" in named.what
    assert named.advice == "Check what section weights calls."
    assert named.culprits == (Culprit("section", "weights", 60.0),)  # the other one has less than a tenth
    function = only(run, "blocked", **hot(0.5, blocked=1.0))
    assert "in smear (/my.py:7)" in function.what
    assert "track_time" in only(run, "blocked").advice


def test_computing_is_a_finding_where_one_function_computes_in_plain_python() -> None:
    run = made_run([plan(1.0)] * 40, 2)
    finding = only(run, "compute", **hot(0.8))
    assert finding.what == "smear (/my.py:7) takes 80 % of the CPU time in process(), in its own lines."
    assert finding.culprits == (Culprit("function", "smear (/my.py:7)", pytest.approx(32.0)),)
    assert finding.seconds == pytest.approx(16.0, rel=0.01)  # 0.8 of 20 s on each thread
    assert finding.at_most
    columnar, decoding = Place("sum", "numpy/core.py", 1), Place("decompress", "uproot/compression.py", 4)
    for innocent in (hot(PYTHON - 0.1), hot(0.8, columnar), hot(0.8, decoding), {}):
        assert conclusions(evidence_of(run, **innocent))[0] == []


def test_a_call_of_a_library_that_dominates_is_a_finding_at_the_users_line() -> None:
    run = made_run([plan(1.0)] * 40, 2)
    finding = only(
        run, "compute", **hot(0.8, Place("Tagger.predict", "tagger/model.py", 5), Place("dot", "tagger/c.py", 9))
    )
    assert finding.what == "smear (/my.py:7) takes 80 % of the CPU time in process(), in tagger.Tagger.predict."
    assert "tagger.Tagger.predict" in finding.advice


def test_a_loop_over_the_elements_of_awkward_arrays_is_a_finding_also_where_its_calls_are_columnar() -> None:
    run = made_run([plan(1.0)] * 40, 2)
    pt = Place("PlanarMomentum.pt", "vector/_methods.py", 80)
    element = Place("Record.__getitem__", "awkward/highlevel.py", 2200)
    inner = SMEAR._replace(function="smear.<listcomp>", line=8)
    loop = stack(0.2, SMEAR, inner, pt, element), stack(0.2, SMEAR, inner, pt), stack(0.05, SMEAR), stack(0.55, *CUT)
    finding = only(run, "compute", **sampled(*loop))
    assert finding.what == ("smear (/my.py:8) loops over awkward arrays (45 % of CPU time).")
    assert finding.seconds == pytest.approx(9.0, rel=0.01)
    # what the loop loads, and baskets that it decodes, are causes of their own
    decoding = Place("decompress", "uproot/compression.py", 4)
    more = stack(0.2, SMEAR, JSON), stack(0.1, SMEAR, decoding), stack(0.25, *CUT)
    assert only(run, "compute", **sampled(*loop[:3], *more)).what == finding.what
    # single elements of a line that works on whole arrays are no loop
    rare = stack(0.1, SMEAR, element), stack(0.8, SMEAR, pt), stack(0.1, *CUT)
    assert conclusions(evidence_of(run, **sampled(*rare)))[0] == []
    for name in ELEMENTWISE:
        assert callable(attrgetter(name)(awkward))


def test_the_users_own_loop_comes_before_other_programs_which_stay_a_finding() -> None:
    """Of 40 s on each thread, half waited for other programs: the loop costs 0.7 of that, too."""
    run = made_run([plan(1.0, core_wait=1.0)] * 40, 2, others=62.5)
    found, together = conclusions(evidence_of(run, **hot(0.7)))
    assert [one.cause for one in found] == ["compute", "contention"]
    assert [one.seconds for one in found] == pytest.approx([28.0, 20.0], rel=0.01)
    assert [one.left for one in found] == pytest.approx([28.0, 6.0], rel=0.01)
    assert together == pytest.approx(34.0, rel=0.01)
    # without a replay, waits that go with the loop are not counted twice either
    alone, together = conclusions(evidence_of(with_call(dataclasses.replace(run, tasks=None)), **hot(0.7)))
    assert [one.left for one in alone] == pytest.approx([28.0, 6.0], rel=0.01)
    assert together == pytest.approx(34.0, rel=0.01)


@pytest.mark.parametrize("function", [None, "json.load", "tagger.Tagger.predict"])
def test_nothing_dominates_by_a_few_samples(function: str | None) -> None:
    """Of seconds in which C code held the interpreter, for one."""
    called = {None: (), "json.load": (JSON,), "tagger.Tagger.predict": (Place("Tagger.predict", "tagger/model.py", 5),)}
    few = [one._replace(samples=1) for one in (stack(0.8, SMEAR, *called[function]), stack(0.2, *CUT))]
    for run in (made_run([plan(1.0)] * 40, 2), made_run([plan(1.0)] * 2, 2)):
        assert "compute" not in {one.cause for one in conclusions(evidence_of(run, **sampled(*few)))[0]}


def test_own_time_of_process_is_a_finding_only_where_one_line_takes_it() -> None:
    run = made_run([plan(1.0)] * 40, 2)
    lines = [PROCESS._replace(line=line) for line in (3, 4, 5, 6)]
    states = {"core": 0.25, "contention": 0.0, "blocked": 0.0, "unknown": 0.0}
    spread = [Stack("data", (line,), 100, 0.25, states) for line in lines]
    assert conclusions(evidence_of(run, **sampled(*spread)))[0] == []
    finding = only(run, "compute", **sampled(*spread[:1], *spread[:1]))
    assert finding.what == "P.process (/my.py:3) takes 100 % of the CPU time in process(), in this line."


LOADS = {
    "json.load": JSON,
    "json.loads": Place("loads", "json/__init__.py", 346),
    "correctionlib.CorrectionSet.from_file": Place("CorrectionSet.from_file", "correctionlib/highlevel.py", 380),
    "uproot.open": Place("open", "uproot/reading.py", 50),
    "coffea.extractor.add_weight_sets": Place("extractor.add_weight_sets", "coffea/lookup_tools/extractor.py", 60),
    "torch.load": Place("load", "torch/serialization.py", 1000),
    "numpy.load": Place("load", "numpy/lib/_npyio_impl.py", 300),
    "yaml.safe_load": Place("safe_load", "yaml/__init__.py", 100),
    "xgboost.Booster.load_model": Place("Booster.load_model", "xgboost/core.py", 2000),
}


@pytest.mark.parametrize("function", LOADS)
def test_what_is_loaded_in_more_chunks_than_there_are_workers_is_a_finding(function: str) -> None:
    run = made_run([plan(1.0)] * 40, 2)
    finding = only(run, "repeated work", **hot(0.4, LOADS[function], Place("inner", "some/inner.py", 1)))
    assert finding.what == (
        f"{function}, called in smear (/my.py:7), takes 40 % of the CPU time in process(): 400 ms per chunk, 16 s in "
        "all. It ran in at least 13 of 40 chunks, on 2 workers."
    )
    assert finding.culprits == (Culprit("function", "smear (/my.py:7)", pytest.approx(16.0)),)
    assert finding.seconds == pytest.approx(8.0, rel=0.01)
    assert finding.at_most
    assert "If the data are always the same" in finding.advice


def test_a_decorator_or_a_class_between_does_not_hide_what_is_loaded() -> None:
    run = made_run([plan(1.0)] * 40, 2)
    decorated = Place("wrapper", "pandas/util/_decorators.py", 2), Place("read_csv", "pandas/io/parsers/readers.py", 5)
    mask = Place("LumiMask.__init__", "coffea/lumi_tools/lumi_tools.py", 7), JSON
    for called, function in ((decorated, "pandas.read_csv"), (mask, "json.load")):
        assert only(run, "repeated work", **hot(0.6, *called)).what.startswith(f"{function}, called in smear")


def test_what_may_have_been_loaded_once_a_worker_is_not_repeated() -> None:
    # the two longest chunks take 8 s: both workers may have loaded it there, in 6 s
    run = made_run([plan(4.0)] * 2 + [plan(0.1)] * 38, 2)
    for share in (0.4, 0.5, 0.6):
        assert conclusions(evidence_of(run, **sampled(stack(share, SMEAR, JSON), stack(1 - share, *CUT))))[0] == []


def test_what_is_loaded_costs_what_it_waits_for_a_core_too() -> None:
    run = waiting_in(made_run([plan(1.0, wait=3.0)] * 40, 2), "contention_seconds")
    finding = only(run, "repeated work", **hot(0.6, JSON))
    assert sum(finding.rows.values()) == pytest.approx(4 * 24.0)


def test_threads_that_share_an_interpreter_are_the_lock_s_and_else_the_function_s() -> None:
    for waited, cause in ((1.0, "interpreter lock"), (0.2, "compute")):
        run = waiting_in(made_run([plan(1.0, wait=waited)] * 40, 2), "lock_seconds")
        findings, _ = conclusions(evidence_of(run, **hot(0.9)))
        assert findings[0].cause == cause
        assert "smear (/my.py:7)" in findings[0].what


def test_interpretation_names_branches() -> None:
    run = one_kind_of_time("interpret_seconds").run
    reads = [{"chunk": 1, "branch": name, "interpret_seconds": seconds} for name, seconds in (("a", 1.0), ("b", 3.0))]
    (finding,) = Measurement(dataclasses.replace(run, branch_reads=table_of_rows(BRANCH_READ_COLUMNS, reads))).verdict
    assert "most of it for b, a" in finding.what
    assert finding.culprits == (Culprit("branch", "b", 3.0), Culprit("branch", "a", 1.0))


@pytest.mark.parametrize(
    ("column", "says"),
    [("throttled_seconds", "its container was throttled for 9 s."), ("steal_seconds", "the hypervisor took 9 s.")],
)
def test_contention_says_who_withheld_the_cores(column: str, says: str) -> None:
    """Two workers of one host share what was withheld: it is not counted twice."""
    run = made_run([plan(1.0, core_wait=1.0)] * 20, 2)
    assert run.lifetimes is not None
    for seconds, found in ((9.0, True), (1.0, False)):
        lives = table_of_rows(LIFETIME_COLUMNS, [row | {column: seconds} for row in run.lifetimes.to_pylist()])
        finding = only(dataclasses.replace(run, lifetimes=lives), "contention")
        assert finding.what.endswith(says) == found


def test_contention_names_the_container_before_the_hypervisor() -> None:
    run = made_run([plan(1.0, core_wait=1.0)] * 20, 2)
    assert run.lifetimes is not None
    withheld = {"throttled_seconds": 20.0, "steal_seconds": 7.0}
    lives = table_of_rows(LIFETIME_COLUMNS, [row | withheld for row in run.lifetimes.to_pylist()])
    finding = only(dataclasses.replace(run, lifetimes=lives), "contention")
    assert finding.what.endswith("its container was throttled for 20 s.")


def test_chunks_without_a_duration_blame_no_threads() -> None:
    run = edited(made_run([plan(1.0, core_wait=1.0)] * 30, 3, cores=2), chunks=lambda row: {"stop": row["start"]})
    assert evidence_of(run).layout.crowded is None


class Call(NamedTuple):
    place: Any

    def __hash__(self) -> int:
        return id(self.place)


@pytest.mark.parametrize(("extra", "named"), [(8.0, "/my.py"), (0.0, None)])
def test_a_line_is_named_only_where_process_was_what_started_slowly(extra: float, named: str | None) -> None:
    """A line takes all of the first chunk's process(); start-up of 8 s was in it, or before it."""
    chunks = table_of_rows(
        CHUNK_COLUMNS,
        [
            {"id": number, "worker": "w", "start": 10.0 * number, "process_seconds": 2.0 + extra * (number == 0)}
            for number in range(40)
        ],
    )
    call = Call(SimpleNamespace(file="/my.py"))
    profile = SimpleNamespace(
        stacks=[SimpleNamespace(chunk=0, places=[], seconds=2.0)], calls=lambda _: {call: (1.0, 1)}
    )
    started = [SimpleNamespace(worker="w", seconds=8.0)]
    ledger = SimpleNamespace(startup=started)
    evidence: Any = SimpleNamespace(counted=chunks, profile=profile, calls={call: (0.1, 1)}, ledger=ledger)
    assert getattr(_once(evidence), "file", None) == named


def test_own_threads_are_blamed_for_no_more_than_they_can_have_waited_for_each_other() -> None:
    """Three threads on two cores wait for each other for a third of the time that they can run."""
    for waited, remedy in ((0.5, "dask worker ... --nworkers 2 --nthreads 1"), (3.0, None)):
        finding = only(made_run([plan(1.0, core_wait=waited)] * 30, 3, cores=2), "contention")
        assert finding.remedy == remedy


def test_sections_that_may_only_have_read_are_not_named_for_what_is_blocked() -> None:
    """Two sections wait for 1.2 and 0.8 s of each chunk, of which 1.2 s are reading: of which, nothing tells."""
    for read, named in ((1.2, []), (0.1, ["materialize", "database"])):
        run = made_run([plan(0.5, wait=2.0 - read, read=read)] * 20, 2)
        rows = [
            {"chunk": chunk, "name": name, "count": 1, "wall_seconds": seconds, "cpu_seconds": 0.0}
            for chunk in range(20)
            for name, seconds in (("materialize", 1.2), ("database", 0.8))
        ]
        found = only(dataclasses.replace(run, sections=table_of_rows(SECTION_COLUMNS, rows)), "blocked")
        assert [culprit.name for culprit in found.culprits] == named


def test_waiting_that_an_older_measurement_did_not_split_is_contention_as_far_as_it_had_no_core() -> None:
    run = waiting_in(made_run([plan(1.0, wait=2.0)] * 20, 2), "wait_seconds")
    assert run.chunks is not None
    empty = dict.fromkeys(("contention_seconds", "lock_seconds", "blocked_seconds"))
    rows = [row | empty | {"core_wait_seconds": 1.9} for row in run.chunks.to_pylist()]
    found = Measurement(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows))).verdict
    assert [finding.cause for finding in found] == ["contention"]
    assert found[0].rows == {"contention in wait": pytest.approx(38.0)}


def test_storage_that_is_far_away_is_named_with_what_it_is_asked() -> None:
    seen = {"endpoint": "dtn.example.org:1095", "requests": 10, "vector_reads": 8, "request_seconds": 1.5}
    seen |= {"shortest_request_seconds": 0.12, "bytes_requested": 200_000, "bytes_transferred": 200_000}
    verdict = Measurement(edited(busy_run(cpu=0.5, read=1.5), chunks=lambda row: seen)).verdict
    found = {finding.cause: finding for finding in verdict}["storage"]
    assert [culprit.name for culprit in found.culprits] == ["dtn.example.org:1095"]
    assert "It gets 400 requests of 20 kB, which take 150 ms each, including a round trip of 120 ms" in found.what
    assert found.advice == "Use larger chunks, or read a nearer copy."


def test_contention_while_opening_is_told_apart_from_that_in_process_which_bars_show() -> None:
    """A chunk computes for 1 s and is ready for 1 s in process(), and for half a second while its file is opened."""
    run = made_run([plan(1.0, core_wait=1.0)] * 20, 2)
    assert run.chunks is not None
    rows = [row | {"core_wait_seconds": row["core_wait_seconds"] + 0.5} for row in run.chunks.to_pylist()]
    finding = only(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, rows)), "contention")
    assert "for 75 % of thread time" in finding.what
    assert "other processes used" not in finding.what


def test_contention_without_other_processes_does_not_advise_to_stop_them() -> None:
    plans = [plan(1.0, core_wait=1.0)] * 20
    quiet, unknown = (only(made_run(plans, 2, others=others), "contention") for others in (0.0, None))
    assert "Stop other processes" not in quiet.advice
    assert "Leave a core for the client" in quiet.advice
    assert "Stop other processes" in unknown.advice


def test_threads_that_were_idle_are_not_blamed_for_what_one_waited() -> None:
    """Six threads on two cores, of which one works nearly all the time: it waited for other processes."""
    plans = [plan(1.0, core_wait=9.0), *[plan(0.1)] * 5]
    finding = only(made_run(plans, 6, cores=2), "contention")
    assert finding.remedy is None
    assert "the host has" not in finding.what
