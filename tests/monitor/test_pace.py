"""The pace of looks, with a clock that is set by hand."""

from __future__ import annotations

from typing import Any

from roastcoffea.monitor import shown as pace


def test_a_tick_comes_each_interval_and_late_ones_are_left_out(monkeypatch: Any) -> None:
    now, moments = [100.0], []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += seconds

    monkeypatch.setattr(pace, "time", Clock)
    work = [0.25, 0.0, 1.25, 0.5, 0.0]
    for _, seconds in zip(pace.ticks(0.5), work, strict=False):
        moments.append(now[0] - 100)
        now[0] += seconds
    assert moments == [0, 0.5, 1.0, 2.5, 3.0]
