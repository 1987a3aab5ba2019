"""Workers side by side."""

import dataclasses

import pytest
from made_runs import chunks_by_law, made_run, measurement_of, plan

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS


def test_workers_side_by_side():
    balance = measurement_of(number=8).worker_balance.set_index("worker")
    assert balance["chunks"].tolist() == [2, 2, 2, 2]
    assert balance["cpu_share"].tolist() == pytest.approx([0.5] * 4)
    assert set(balance["bound"]) == {"both"}
    rows = list(chunks_by_law(8))
    of_a = sum(row["wall_seconds"] for row in rows if row["worker"] == "A")
    assert balance.loc["A", "chunk_seconds"] == pytest.approx(of_a)
    assert balance.loc["A", "busy_share"] == pytest.approx(of_a / 200)
    assert balance.loc["A", "transfer_seconds"] == 0.5


def test_a_worker_whose_threads_change_offers_what_it_had():
    run = made_run([plan(1.0)] * 9, 1)
    life = run.lifetimes.to_pylist()[0]
    start, stop = life["start"], life["stop"]
    lives = [life | {"stop": start + 4, "threads": 3}, life | {"start": start + 4, "threads": 1}]
    run = dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives))
    balance = Measurement(run).worker_balance
    assert len(balance) == 1
    assert balance["busy_share"][0] == pytest.approx(9.0 / (3 * 4 + stop - start - 4))
