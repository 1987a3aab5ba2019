"""The byte ledger: its sums, its certificate, and what it advises."""

from dataclasses import replace

import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import BRANCH_READS, CHUNKS, EXPECTED, PREPROCESSINGS, TASKS, A, B, branch_read, empty_run, handmade_run
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.baskets import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.branches import branches_of
from roastcoffea.metrics.byte_ledger import CLASSES, LOCAL, UNKNOWN, endpoint
from roastcoffea.metrics.ledger import Attempts
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.branches import BRANCH_READ_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.run import FAILED, RunnerCall
from roastcoffea.records.tasks import TASK_COLUMNS

BREAKDOWNS = ("dataset", "file", "branch", "endpoint")
STORAGE = "storage:1094"
BY_DESIGN = "1 attempts have a residual, of 50 B in all"
"""What the certificate of the run by hand says of it in any case."""


def ledger_of(chunks=CHUNKS, reads=BRANCH_READS, tasks=TASKS, preprocessing=PREPROCESSINGS, **changes):
    tables = {
        "chunks": (CHUNK_COLUMNS, chunks),
        "branch_reads": (BRANCH_READ_COLUMNS, reads),
        "tasks": (TASK_COLUMNS, tasks),
        "preprocessing": (PREPROCESSING_COLUMNS, preprocessing),
    }
    made = {name: None if rows is None else table_of_rows(columns, rows) for name, (columns, rows) in tables.items()}
    return Measurement(handmade_run(**made | changes)).byte_ledger


def with_ids(*changed, **values):
    """Chunks with some values of these changed."""
    return [row | values if row["id"] in changed else row for row in CHUNKS]


def test_classes_by_hand():
    ledger = ledger_of()
    names = ("payload", "reread", "metadata", "preprocessing", "failed", "residual")
    assert dict(ledger) == dict(zip(CLASSES, (EXPECTED[f"bytes_{name}"] for name in names), strict=True))
    assert (ledger.total, ledger.residual, ledger.transferred, ledger.gaps) == (6050, 50, 6434, 384)
    assert ledger.total == sum(ledger.values())
    assert ledger.transferred_absent is ledger.absent is None


@pytest.mark.parametrize("what", BREAKDOWNS)
def test_every_breakdown_sums_to_the_same(what):
    ledger = ledger_of()
    frame = ledger.by(what)
    assert frame[[*CLASSES, "total"]].sum().to_dict() == dict(ledger) | {"total": ledger.total}
    assert (frame[list(CLASSES)].sum(axis=1) == frame["total"]).all()
    assert frame.index.name == what


def test_breakdowns_by_hand():
    ledger = ledger_of()
    assert ledger.by("dataset").loc["mc"].tolist() == [400, 0, 100, 50, 50, 0, 600]
    assert ledger.by("file").loc[A].tolist() == [2800, 700, 450, 150, 1300, 50, 5450]
    assert ledger.by("endpoint").index.tolist() == [LOCAL, STORAGE]
    branches = ledger.by("branch")
    assert branches.loc["Jet_pt", ["payload", "re-read", "total", "uncompressed"]].tolist() == [2400, 700, 3100, 7900]
    assert branches.loc["(failed)", "failed"] == 1350
    with pytest.raises(ValueError, match="no breakdown by 'worker'"):
        ledger.by("worker")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("root://eos:1094//a.root", "eos:1094"),
        ("https://web/a.root?x=1", "web"),
        ("simplecache::https://web/a.root", "web"),
        ("https://user:secret@web:1094/a.root", "web:1094"),
        ("https://user:se@cret@web/a@b.root", "web"),
        ("http://[bad/a.root", UNKNOWN),
        ("https://user:secret@[bad/a.root", UNKNOWN),
        ("/data/a.root", LOCAL),
        ("a b.root", LOCAL),
        ("file:///data/a.root", LOCAL),
        (None, None),
    ],
)
def test_endpoints(file, expected):
    assert endpoint(file) == expected


def test_nothing_was_requested():
    ledger = Measurement(empty_run()).byte_ledger
    assert dict(ledger) == dict.fromkeys(CLASSES, 0)
    assert (ledger.total, ledger.transferred, ledger.advice) == (0, 0, [])
    assert all(ledger.by(what)["total"].sum() == 0 for what in BREAKDOWNS)


def test_a_checkpoint_requested_nothing():
    hit = {"id": 99, "key": "k9", "run_id": 9, "outcome": "checkpoint", "dataset": "mc", "call": "c1"}
    ledger = ledger_of([*CHUNKS, hit])
    assert (ledger.total, ledger.transferred) == (6050, 6434)


def test_preprocessing_that_was_not_watched_is_no_zero():
    ledger = ledger_of(preprocessing=None, absent={"preprocessing": "not watched"})
    assert ledger["preprocessing"] is None
    assert (ledger.total, ledger["failed"]) == (5800, 1300)
    assert ledger.certificate.reasons == ["preprocessing: not watched", BY_DESIGN]
    assert [str(cell) for cell in ledger.sheets()[0].rows[3]] == ["preprocessing", "not measured", ""]
    assert ledger.by("dataset")["preprocessing"].isna().all()
    untold = ledger_of(preprocessing=None)
    assert untold.certificate.reasons == ["preprocessing was not recorded", BY_DESIGN]


def test_preprocessing_whose_bytes_nobody_could_count_is_no_zero():
    ledger = ledger_of(preprocessing=[row | {"bytes_requested": None} for row in PREPROCESSINGS])
    assert ledger["preprocessing"] is None
    assert f"{len(PREPROCESSINGS)} preprocessing tasks do not tell what they requested" in ledger.certificate.reasons
    some = ledger_of(preprocessing=[*PREPROCESSINGS[:-1], PREPROCESSINGS[-1] | {"bytes_requested": None}])
    assert some["preprocessing"] is not None
    assert ledger_of(preprocessing=[], tasks=[])["preprocessing"] == 0


def test_transferred_is_known_for_all_or_for_none():
    ledger = ledger_of(with_ids(14, bytes_transferred=None))
    assert (ledger.transferred, ledger.gaps) == (None, None)
    assert ledger.transferred_absent == (
        "1 of 8 attempts read through FSSpecSource(HTTPFileSystem), which does not tell"
    )


# The certificate


def test_complete():
    certificate = ledger_of(with_ids(14, bytes_metadata=300)).certificate
    assert (certificate.complete, certificate.reasons, certificate.estimated) == (True, [], 0)
    assert certificate.attempts == Attempts(seen=5, assigned=5)


def test_a_residual_is_named_with_its_size():
    assert ledger_of().certificate.reasons == [BY_DESIGN]
    cancelled = ledger_of([row | {"bytes_metadata": {14: 300, 12: 100, 16: 200}.get(row["id"], 0)} for row in CHUNKS])
    assert cancelled.residual == 0
    assert cancelled.certificate.reasons == ["2 attempts have a residual, of 0 B in all"]


def test_less_cannot_come_than_was_requested():
    less = ledger_of(with_ids(14, bytes_metadata=300, bytes_transferred=2000))
    assert less.gaps == -680
    assert less.certificate.reasons == ["808 B less were transferred than requested"]  # of attempts that did not fail


def test_of_requests_that_failed_nothing_need_have_come():
    failed = {row["id"] for row in CHUNKS if row["outcome"] in ("error", "skipped")}
    ledger = ledger_of(with_ids(*failed, bytes_transferred=0))
    assert failed
    assert ledger.certificate.reasons == [BY_DESIGN]
    assert 0 < ledger.gaps < 384


def test_records_that_came_twice_are_told():
    chunks = with_ids(14, bytes_metadata=300)
    again = [row | {"id": 100} for row in chunks if row["id"] == 13]
    preprocessing = [*PREPROCESSINGS, PREPROCESSINGS[0] | {"id": 9}]
    assert ledger_of([*chunks, *again], preprocessing=preprocessing).certificate.reasons == [
        "1 attempts of chunks are recorded once more",
        "1 preprocessing tasks are recorded once more",
    ]


@pytest.mark.parametrize("row", range(len(CHUNKS) - 1))
def test_a_record_taken_away_changes_it(row):
    ledger = ledger_of(CHUNKS[:row] + CHUNKS[row + 1 :])
    assert ledger.certificate.reasons[0] == "1 attempts of chunks that ended left no record"
    assert ledger.certificate.attempts == Attempts(seen=4, assigned=5)


@pytest.mark.parametrize("row", range(len(PREPROCESSINGS)))
def test_so_does_one_of_preprocessing(row):
    ledger = ledger_of(preprocessing=PREPROCESSINGS[:row] + PREPROCESSINGS[row + 1 :])
    assert ledger.certificate.reasons == ["1 preprocessing tasks that ended left no record", BY_DESIGN]


def test_so_does_a_branch():
    ledger = ledger_of(reads=[read for read in BRANCH_READS if (read["chunk"], read["branch"]) != (14, "run")])
    assert ledger.certificate.reasons == [
        "1 chunks lack branches that they read",
        "1 attempts have a residual, of 650 B in all",
    ]
    assert ledger.residual == 650


def test_lost_workers_are_counted():
    lost = [{"key": f"k{n}", "run_id": n, "kind": "processor", "outcome": "worker lost"} for n in (20, 21)]
    ledger = ledger_of(tasks=[*TASKS, *lost])
    assert ledger.certificate.reasons == ["2 attempts of chunks whose worker was lost left no record", BY_DESIGN]
    metrics = Measurement(handmade_run(tasks=table_of_rows(TASK_COLUMNS, [*TASKS, *lost]))).metrics
    assert metrics.source["bytes_payload"].startswith("byte ledger, incomplete: 2 attempts")


def test_rows_that_were_dropped_are_told():
    ledger = ledger_of(dropped={"branch_reads": 7})
    assert ledger.certificate.reasons == ["7 rows of branch_reads were lost", BY_DESIGN]


def runner_call(name, chunks, **changes):
    fields = {"processor": "P", "executor": "E", "start": 0.0, "stop": 1.0, "outcome": "finished", "report": None}
    return RunnerCall(id=name, chunks=chunks, **fields | changes)


@pytest.mark.parametrize(
    ("chunks", "reasons"),
    [
        (4, []),
        (6, ["2 of 6 chunks left no record"]),
        (3, ["4 chunks ended, of 3 that were handed out"]),
        (None, ["nobody counted"]),
    ],
)
def test_without_tasks_the_runner_tells_how_many_chunks_there_were(chunks, reasons):
    # Three gave a result, one was skipped.
    certificate = ledger_of(
        with_ids(14, bytes_metadata=300), tasks=None, calls=(runner_call("c1", chunks),)
    ).certificate
    assert [found[: len(reason)] for found, reason in zip(certificate.reasons, reasons, strict=True)] == reasons
    assert certificate.attempts.assigned == chunks


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        (2, []),
        (3, ["1 of 3 files of preprocessing left no record"]),
        (1, ["2 files of preprocessing ended, of 1 that were handed out"]),
        (None, []),
    ],
)
def test_without_tasks_the_runner_tells_how_many_files_there_were(files, reasons):
    # One of the two was tried again, and one belongs to a call that nobody counted in.
    other = {"id": 4, "dataset": "mc", "file": "c.root", "bytes_requested": 0, "outcome": "ok", "call": "c2"}
    preprocessing = [*(row | {"call": "c1", "tree": "Events"} for row in PREPROCESSINGS), other]
    calls = (runner_call("c1", 4, files=files), runner_call("c2", 0))
    chunks = with_ids(14, bytes_metadata=300)
    certificate = ledger_of(chunks, tasks=None, preprocessing=preprocessing, calls=calls).certificate
    assert certificate.reasons == reasons


def test_the_files_of_preprocessing_are_counted_as_they_are_handed_out(tmp_path):
    paths = [str(write_tree(tmp_path / f"{name}.root", 1, 10)) for name in "ab"]
    fileset = {"one": {"files": dict.fromkeys(paths, "Events")}, "other": {"files": {paths[0]: "Events"}}}
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=len_of_events)
    run = collector.measurement.run
    assert [call.files for call in run.calls] == [3]
    assert collector.measurement.byte_ledger.certificate.complete
    robbed = Measurement(replace(run, preprocessing=run.preprocessing[:0])).byte_ledger
    assert robbed["preprocessing"] == 0
    assert robbed.certificate.reasons == ["3 of 3 files of preprocessing left no record"]
    with MetricsCollector() as known:
        runner(fileset, processor_instance=len_of_events)
    assert known.measurement.run.calls[0].files is None
    assert known.measurement.byte_ledger.certificate.complete


def len_of_events(events):
    return {"events": len(events)}


def test_of_a_call_that_failed_nobody_knows_what_began():
    certificate = ledger_of(tasks=None, calls=(runner_call("c1", 9, outcome=FAILED),)).certificate
    assert (certificate.complete, certificate.attempts) == (False, Attempts(6, None))


def test_an_attempt_that_does_not_tell_is_left_out_of_all_classes():
    many = [CHUNKS[-1] | {"id": 100 + n, "key": f"m{n}", "file": B, "bytes_payload": None} for n in range(10)]
    ledger = ledger_of([*with_ids(14, bytes_requested=None), *many])
    assert ledger.total == 6050 - 3000 + 10 * 500
    assert (ledger["payload"], ledger["re-read"], ledger.residual) == (1200, 0, 4000)
    assert "1 attempts of chunks do not tell what they requested" in ledger.certificate.reasons


def test_there_is_no_ledger_where_many_do_not_tell():
    ledger = ledger_of(with_ids(14, bytes_requested=None))
    assert ledger.absent == "bytes requested are not known for 1 of 6 attempts of chunks"
    assert (dict(ledger), ledger.total, ledger.residual) == ({}, None, None)
    assert ledger.certificate.reasons == [ledger.absent]
    assert all(ledger.by(what).attrs["absent"] == ledger.absent for what in BREAKDOWNS)


# Advice


def saved(ledger):
    return {saving.cause: saving.bytes for saving in ledger.advice}


def test_advice_by_hand():
    ledger = ledger_of()
    assert saved(ledger) == {SAME_ATTEMPT: 400, SAME_LOOP: 300, "metadata": 200}
    assert [saving.bytes for saving in ledger.advice] == [400, 300, 200]
    borders = ledger.advice[1].text
    assert "chunksize=400" in borders
    assert "align_clusters=True" in borders
    assert "in 2 chunks instead of 3" in ledger.advice[2].text
    assert all("memory grows with it" in saving.text for saving in ledger.advice[1:])


def test_with_maxchunks_the_events_of_the_largest_file_are_not_known():
    texts = [saving.text for saving in ledger_of(calls=(runner_call("c1", 3, options={"maxchunks": 3}),)).advice]
    assert not any("chunksize=" in text for text in texts)
    assert sum("not known where maxchunks is set" in text for text in texts) == 2


def test_a_basket_may_lie_in_more_than_two_chunks():
    chunks = [CHUNKS[-1] | {"id": 100 + number, "start": float(number), "bytes_metadata": 0} for number in range(3)]
    reads = [branch_read(row["id"], "Jet_pt", 0, [400]) for row in chunks]
    [saving] = ledger_of(chunks, reads, tasks=None).advice
    assert saving.bytes == 800
    assert saving.text.startswith("800 B of baskets that lie in several chunks were read again: chunksize=50 ")


def test_parquet_and_aligned_chunks_are_not_told_to_align():
    parquet = ledger_of([row | {"source": "ParquetFile"} for row in CHUNKS])
    aligned = ledger_of(calls=(runner_call("c1", 3, options={"align_clusters": True}),))
    assert not any("align_clusters" in saving.text for ledger in (parquet, aligned) for saving in ledger.advice)


def test_a_file_in_two_datasets_and_in_two_calls():
    first = CHUNKS[1]
    again = first | {"id": 50, "key": "k50", "start": first["start"] + 9}
    reads = [read for read in BRANCH_READS if read["chunk"] == 12]
    reads += [read | {"chunk": 50} for read in reads]
    for changes, cause in (({"dataset": "other"}, OTHER_DATASET), ({"call": "c2"}, SAME_DATASET)):
        ledger = ledger_of([first, again | changes], reads, tasks=None)
        assert saved(ledger) == {cause: 800}
        assert (ledger["payload"], ledger["re-read"]) == (800, 800)


def test_a_run_that_reads_each_byte_once_needs_no_advice():
    assert ledger_of([CHUNKS[-1]], BRANCH_READS[-2:]).advice == []


# What follows from it


def metrics_of(chunks, reads):
    tables = {"chunks": table_of_rows(CHUNK_COLUMNS, chunks), "branch_reads": table_of_rows(BRANCH_READ_COLUMNS, reads)}
    return Measurement(handmade_run(**tables)).metrics


def test_what_is_not_known_of_one_read_is_not_known_of_the_branch():
    reads = [row | ({"read_seconds": None} if row["chunk"] == 14 else {}) for row in BRANCH_READS]
    reads = [row | ({"bytes_uncompressed": None} if row["chunk"] == 16 else {}) for row in reads]
    run = handmade_run(branch_reads=table_of_rows(BRANCH_READ_COLUMNS, reads))
    rows = {(row["file"], row["branch"]): row for row in branches_of(run).to_pylist()}
    assert [rows[A, "run"][f"{step}_seconds"] for step in ("read", "decompress", "interpret")] == [None, 0.25, 0.125]
    assert rows[B, "run"]["read_seconds"] == 0.25
    assert Measurement(run).byte_ledger.by("branch")["uncompressed"].isna().all()
    assert "not known for 2 of 4 branches" in Measurement(run).metrics.missing["total_bytes_uncompressed"]


@pytest.mark.parametrize("told", [[600, 0], [600, 200, 0]])
def test_the_compression_factor_leaves_branches_out_of_which_baskets_came_with_the_tree(told):
    reads = [row for row in BRANCH_READS if (row["chunk"], row["branch"]) != (14, "run")]
    # It is read from its second basket to its fourth.
    partly = branch_read(14, "run", 1, [600, 200, 0], bytes_uncompressed=10**6, basket_bytes=told)
    assert metrics_of(CHUNKS, [*reads, partly])["compression_ratio"] == (1500 + 6000 + 400) / (600 + 2100 + 400)


def test_a_basket_that_was_not_read_did_not_come_with_the_tree():
    reads = [branch_read(16, "Jet_pt", 0, [300, 0, 100], baskets=2, bytes_uncompressed=1200)]
    assert metrics_of(CHUNKS, reads)["compression_ratio"] == 3


def test_trees_of_a_file_are_taken_together():
    other = CHUNKS[-1] | {"id": 100, "key": "other", "tree": "Runs", "tree_branches": 2}
    reads = [*BRANCH_READS, *(branch_read(100, name, 0, [100]) for name in ("Jet_pt", "run"))]
    files = metrics_of([*CHUNKS, other], reads)["file_read_metrics"]
    assert (files[B]["branches_read"], files[B]["total_branches"]) == (4, 6)
    assert files[B]["bytes_read"] == 600
    unknown = metrics_of([*CHUNKS, other | {"tree_branches": None}], reads)["file_read_metrics"]
    assert (unknown[B]["total_branches"], unknown[B]["branches_read_percent"]) == (None, None)
