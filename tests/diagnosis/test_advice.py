"""What would save bytes, with the number to change."""

from handmade import BRANCH_READS, CHUNKS, branch_read
from made_ledgers import ledger_of, runner_call

from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP


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
    assert all("at the cost of more memory" in saving.text for saving in ledger.advice[1:])


def test_with_maxchunks_the_events_of_the_largest_file_are_not_known():
    texts = [saving.text for saving in ledger_of(calls=(runner_call("c1", 3, options={"maxchunks": 3}),)).advice]
    assert not any("chunksize=" in text for text in texts)
    assert sum("unknown, as chunks were left out" in text for text in texts) == 2


def test_a_basket_may_lie_in_more_than_two_chunks():
    chunks = [CHUNKS[-1] | {"id": 100 + number, "start": float(number), "bytes_metadata": 0} for number in range(3)]
    reads = [branch_read(row["id"], "Jet_pt", 0, [400]) for row in chunks]
    [saving] = ledger_of(chunks, reads, tasks=None).advice
    assert saving.bytes == 800
    assert saving.text.startswith("800 B were read again because baskets span chunk boundaries: chunksize=50 ")


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


def test_after_an_interrupt_only_the_chunks_that_were_asked_for_tell_the_events_of_the_largest_file():
    calls = (runner_call("c1", 3, outcome="failed"),)
    assert any("chunksize=400" in saving.text for saving in ledger_of(calls=calls).advice)
    texts = [saving.text for saving in ledger_of(calls=calls, asked=None).advice]
    assert texts
    assert not any("chunksize=" in text for text in texts)
