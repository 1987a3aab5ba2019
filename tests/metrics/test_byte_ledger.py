"""The byte ledger: its classes, and what follows from them."""

import pytest
from handmade import (
    BRANCH_READS,
    BY_DESIGN,
    CHUNKS,
    EXPECTED,
    PREPROCESSINGS,
    A,
    branch_read,
    empty_run,
    ledger_of,
    metrics_of,
    with_ids,
)

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.endpoints import LOCAL, UNKNOWN, endpoint
from roastcoffea.metrics.phases import BYTE_NAMES

BREAKDOWNS = ("dataset", "file", "branch", "endpoint")
STORAGE = "storage"


def test_classes_by_hand():
    ledger = ledger_of()
    names = ("payload", "reread", "metadata", "other_files", "preprocessing", "failed", "residual")
    assert dict(ledger) == dict(zip(BYTE_NAMES, (EXPECTED[f"bytes_{name}"] for name in names), strict=True))
    assert (ledger.total, ledger.residual, ledger.transferred, ledger.gaps) == (6050, 50, 6434, 384)
    assert ledger.total == sum(ledger.values())
    assert ledger.transferred_absent is ledger.absent is None


@pytest.mark.parametrize("what", BREAKDOWNS)
def test_every_breakdown_sums_to_the_same(what):
    ledger = ledger_of()
    frame = ledger.by(what)
    assert frame[[*BYTE_NAMES, "total"]].sum().to_dict() == dict(ledger) | {"total": ledger.total}
    assert (frame[list(BYTE_NAMES)].sum(axis=1) == frame["total"]).all()
    assert frame.index.name == what


def test_breakdowns_by_hand():
    ledger = ledger_of()
    assert ledger.by("dataset").loc["mc"].tolist() == [400, 0, 100, 0, 50, 50, 0, 600]
    assert ledger.by("file").loc[A].tolist() == [2800, 700, 450, 0, 150, 1300, 50, 5450]
    assert ledger.by("endpoint").index.tolist() == [LOCAL, STORAGE]
    branches = ledger.by("branch")
    assert branches.loc["Jet_pt", ["payload", "re-read", "total", "uncompressed"]].tolist() == [2400, 700, 3100, 7900]
    assert branches.loc["(failed)", "failed"] == 1350
    with pytest.raises(ValueError, match="no breakdown by 'worker'"):
        ledger.by("worker")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("root://eos:1094//a.root", "eos"),
        ("root://user@eos:1095//a.root", "eos:1095"),
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
    assert dict(ledger) == dict.fromkeys(BYTE_NAMES, 0)
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
    assert f"{len(PREPROCESSINGS)} preprocessing tasks have no count of requested bytes" in ledger.certificate.reasons
    some = ledger_of(preprocessing=[*PREPROCESSINGS[:-1], PREPROCESSINGS[-1] | {"bytes_requested": None}])
    assert some["preprocessing"] is not None
    assert ledger_of(preprocessing=[], tasks=[])["preprocessing"] == 0


def test_transferred_is_known_for_all_or_for_none():
    ledger = ledger_of(with_ids(14, bytes_transferred=None))
    assert (ledger.transferred, ledger.gaps) == (None, None)
    assert ledger.transferred_absent == (
        "1 of 8 attempts read through FSSpecSource(HTTPFileSystem), which does not report transfers"
    )


@pytest.mark.parametrize("told", [[600, 0], [600, 200, 0]])
def test_the_compression_factor_leaves_branches_out_of_which_baskets_came_with_the_tree(told):
    reads = [row for row in BRANCH_READS if (row["chunk"], row["branch"]) != (14, "run")]
    # It is read from its second basket to its fourth.
    partly = branch_read(14, "run", 1, [600, 200, 0], bytes_uncompressed=10**6, basket_bytes=told)
    assert metrics_of(CHUNKS, [*reads, partly])["compression_ratio"] == (1500 + 6000 + 400) / (600 + 2100 + 400)


def test_a_basket_that_was_not_read_did_not_come_with_the_tree():
    reads = [branch_read(16, "Jet_pt", 0, [300, 0, 100], baskets=2, bytes_uncompressed=1200)]
    assert metrics_of(CHUNKS, reads)["compression_ratio"] == 3
