"""Workers side by side."""

import pytest
from chunks_by_law import chunks_by_law, measurement_of


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
