"""Slow chunks and slow workers, planted among chunks that follow a law."""

import pytest
from handmade import LIFETIMES, handmade_run
from made_runs import chunks_by_law, measurement_of

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS


def test_chunks_that_differ_by_events_bytes_and_dataset_are_no_stragglers():
    measurement = measurement_of()
    assert len(measurement.stragglers) == 0
    assert measurement.metrics["num_stragglers"] == 0
    assert measurement.metrics["straggler_seconds"] == 0
    assert measurement.worker_balance["slowness"].tolist() == pytest.approx([1.0] * 4)


def test_a_slow_chunk_is_told_with_its_excess():
    usual = {row["id"]: row["wall_seconds"] for row in chunks_by_law()}
    measurement = measurement_of(row7=5.0, row8=4.0)
    slow = measurement.stragglers
    assert set(slow["id"]) == {7, 8}
    for _, row in slow.iterrows():
        assert row["expected_seconds"] == pytest.approx(usual[row["id"]], rel=0.05)
        assert row["excess_seconds"] == pytest.approx(row["wall_seconds"] - row["expected_seconds"])
        assert row["phase"] == "read"
    assert slow["excess_seconds"].is_monotonic_decreasing
    assert measurement.metrics["straggler_seconds"] == pytest.approx(slow["excess_seconds"].sum())


def test_a_straggler_with_twice_the_bytes_of_its_like_does_not_draw_the_law():
    # as baskets make it where chunks end within them: two chunks of twenty touch two baskets, one of the two is slow
    like = {"events": 400, "entry_start": 0, "entry_stop": 400}
    rows = [
        row | like | {"bytes_payload": 28_000 if place in (4, 13) else 14_000, "wall_seconds": 0.2 + place % 3 / 100}
        for place, row in enumerate(chunks_by_law(20))
    ]
    rows = [row | {"dataset": "data", "worker": "A"} for row in rows]
    rows[13]["wall_seconds"] = 2.9
    slow = Measurement(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows))).stragglers
    assert slow["id"].tolist() == [13]
    assert slow["expected_seconds"].tolist() == pytest.approx([0.21], abs=0.011)


def test_where_no_phase_was_measured_none_is_named():
    rows = [row | {"compute_seconds": None, "read_seconds": None} for row in chunks_by_law(row7=5.0)]
    slow = Measurement(handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows))).stragglers
    assert slow["id"].tolist() == [7]
    assert slow["phase"].isna().all()


def test_a_slow_worker_is_told_and_its_chunks_are_no_stragglers():
    usual = sum(row["wall_seconds"] for row in chunks_by_law() if row["worker"] == "C")
    measurement = measurement_of(C=3.0)
    assert len(measurement.stragglers) == 0
    balance = measurement.worker_balance.set_index("worker")
    assert balance.loc["C", "slowness"] == pytest.approx(3.0, rel=0.05)
    assert balance.loc["A", "slowness"] == pytest.approx(1.0, rel=0.05)
    (finding,) = (found for found in measurement.verdict if found.cause == "slow worker")
    assert finding.rows == {"worker C": pytest.approx(2 * usual, rel=0.1)}
    assert "its 20 chunks took 3 times as long as expected" in finding.text
    (culprit,) = finding.culprits
    assert culprit[:2] == ("worker", "C")
    assert culprit.factor == pytest.approx(3.0, rel=0.05)


def test_few_chunks_tell_nothing():
    measurement = measurement_of(number=7)
    assert "only 7 chunks: finding a slow one takes at least 8" in measurement.stragglers.attrs["absent"]
    assert "only 7 chunks: finding a slow one takes at least 8" in measurement.metrics.missing["num_stragglers"]


@pytest.mark.parametrize("number", [80, 76])
def test_a_worker_that_is_twice_as_slow_as_the_only_other_one_is_slow(number):
    measurement = measurement_of(number=number, B=2.0, D=2.0)
    balance = measurement.worker_balance.set_index("worker")
    assert balance.loc["A", "slowness"] == pytest.approx(1.0, rel=0.05)
    assert balance.loc["B", "slowness"] == pytest.approx(2.0, rel=0.05)
    slow = [culprit.name for found in measurement.verdict for culprit in found.culprits if culprit.kind == "worker"]
    assert slow
    assert {*slow} <= {"B", "D"}


def test_workers_with_few_chunks_are_judged_with_their_host():
    rows = list(chunks_by_law(40))
    for place, row in enumerate(rows):
        row["worker"] = f"w{place % 20}"
        if place % 20 < 6:
            row["wall_seconds"] *= 3
    hosts = {f"w{place}": "slow" if place < 6 else "fast" for place in range(20)}
    lifetimes = [LIFETIMES[0] | {"worker": worker, "host": host} for worker, host in hosts.items()]
    measurement = Measurement(
        handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes))
    )
    balance = measurement.worker_balance.set_index("worker")
    assert balance.loc["w0", "slowness"] == pytest.approx(3.0, rel=0.1)
    assert balance.loc["w19", "slowness"] == pytest.approx(1.0, rel=0.1)
    assert len(measurement.stragglers) == 0
