"""What would save bytes, with the number to change."""

from dataclasses import replace

import pytest
from handmade import BRANCH_READS, CHUNKS, branch_read, ledger_of, runner_call
from limited_runs import LIMITED, edited
from made_runs import with_call

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS


def saved(ledger):
    return {saving.cause: saving.bytes for saving in ledger.advice}


def test_advice_by_hand():
    ledger = ledger_of()
    assert saved(ledger) == {SAME_ATTEMPT: 400, SAME_LOOP: 300, "metadata": 200}
    assert [saving.bytes for saving in ledger.advice] == [400, 300, 200]
    borders = ledger.advice[1].text
    assert "with one chunk per file, each is read once" in borders
    assert "align_clusters=True" in borders
    assert "in 2 chunks instead of 3" in ledger.advice[2].text
    assert all("at the cost of more memory" in saving.text for saving in ledger.advice[1:])


def test_a_basket_may_lie_in_more_than_two_chunks():
    chunks = [CHUNKS[-1] | {"id": 100 + number, "start": float(number), "bytes_metadata": 0} for number in range(3)]
    reads = [branch_read(row["id"], "Jet_pt", 0, [400]) for row in chunks]
    [saving] = ledger_of(chunks, reads, tasks=None).advice
    assert saving.bytes == 800
    assert saving.text.startswith(
        "800 B were read again because baskets span chunk boundaries: with one chunk per file, "
    )


def test_parquet_and_aligned_chunks_are_not_told_to_align():
    parquet = ledger_of([row | {"source": "ParquetFile"} for row in CHUNKS])
    aligned = ledger_of(calls=(runner_call("c1", 3, options={"align_clusters": True}),))
    assert not any("align_clusters" in saving.text for ledger in (parquet, aligned) for saving in ledger.advice)
    assert "because row groups span chunk boundaries" in " ".join(saving.text for saving in parquet.advice)
    assert "baskets" not in " ".join(saving.text for saving in parquet.advice)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "pieces", "options", "remedy"),
    [
        ("FSSpecSource", "baskets", {}, "align_clusters=True"),
        ("FSSpecSource", "baskets", {"align_clusters": True}, None),
        ("ParquetFile", "row groups", {}, None),
    ],
)
def test_bytes_that_were_read_before_are_a_finding_in_the_words_of_the_format(source, pieces, options, remedy):
    run = with_call(edited(LIMITED["re-read"](), chunks=lambda row: {"source": source}), options=options)
    measurement = Measurement(run)
    ledger = measurement.byte_ledger
    assert ledger["re-read"] / ledger.total > 0.59
    (found,) = (one for one in measurement.verdict if one.cause == "re-read")
    assert f"were re-read because {pieces} span chunk boundaries." in found.what
    assert found.remedy == remedy
    assert ("baskets" in found.text) == (pieces == "baskets")
    assert not measurement.verdict.healthy


@pytest.mark.slow
def test_less_than_a_quarter_that_was_read_before_is_none():
    run = LIMITED["re-read"]()
    for baskets, is_found in ((3, True), (2, True), (1, False)):
        rows = [branch_read(number, "Jet_pt", (number // 4), [3_000_000 // baskets] * baskets) for number in range(40)]
        reads = table_of_rows(BRANCH_READ_COLUMNS, rows)
        verdict = Measurement(replace(run, branch_reads=reads)).verdict
        assert any(one.cause == "re-read" for one in verdict) == is_found


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
