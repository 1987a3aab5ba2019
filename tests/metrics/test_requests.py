"""What attempts requested, where some do not tell."""

from handmade import CHUNKS, B, ledger_of, with_ids

BREAKDOWNS = ("dataset", "file", "branch", "endpoint")
STORAGE = "storage"


def test_an_attempt_that_does_not_tell_is_left_out_of_all_classes():
    many = [CHUNKS[-1] | {"id": 100 + n, "key": f"m{n}", "file": B, "bytes_payload": None} for n in range(10)]
    ledger = ledger_of([*with_ids(14, bytes_requested=None), *many])
    assert ledger.total == 6050 - 3000 + 10 * 500
    assert (ledger["payload"], ledger["re-read"], ledger.residual) == (1200, 0, 4000)
    assert "1 chunk attempts have no count of requested bytes" in ledger.certificate.reasons


def test_there_is_no_ledger_where_many_do_not_tell():
    ledger = ledger_of(with_ids(14, bytes_requested=None))
    assert ledger.absent == "requested bytes are unknown for 1 of 6 chunk attempts"
    assert (dict(ledger), ledger.total, ledger.residual) == ({}, None, None)
    assert ledger.certificate.reasons == [ledger.absent]
    assert all(ledger.by(what).attrs["absent"] == ledger.absent for what in BREAKDOWNS)
