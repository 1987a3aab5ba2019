"""How far a run has come, how fast it is, and what limits it, in one line."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from roastcoffea.log.completeness import Tally
from roastcoffea.report.live import NOTHING, Progress, Rates, line_of


def after(seconds: float, progress: Progress) -> Rates:
    rates = Rates()
    rates.add(rates.began + seconds, progress)
    return rates


def test_the_line_has_what_is_done_and_left_how_well_and_how_fast() -> None:
    progress = NOTHING._replace(chunks=20, chunks_asked=400, failed=1, events=5000, bytes=10**9, workers=8)
    progress = progress._replace(
        threads=(8, 8), wall_seconds=30.0, failed_seconds=1.0, cpu_seconds=6.0, seconds={"read": 20.0, "compute": 6.0}
    )
    assert line_of(progress, after(4, progress)) == (
        "roastcoffea  20 of 400 chunks, 1 failed, ETA 1:16, efficiency 20 %, limited by storage, 1.25 kHz, 2 Gbit/s, "
        "8 workers, 4 s"
    )


def test_rates_are_those_of_the_last_minute() -> None:
    rates = Rates()
    for second in range(201):
        events = 1000 * second if second < 100 else 100_000
        rates.add(rates.began + second, NOTHING._replace(events=events))
        if second == 130:
            assert rates.in_a_second()[0] == pytest.approx(500)
    assert rates.in_a_second()[0] == 0
    assert rates.elapsed == pytest.approx(200)


def test_bytes_that_nobody_told_have_no_rate() -> None:
    tally = Tally()
    tally.add({"outcome": "ok", "events": 100, "bytes_requested": None}, preprocessing=False)
    assert tally.bytes is None
    progress = NOTHING._replace(chunks=1, chunks_asked=1, events=100, bytes=tally.bytes)
    assert line_of(progress, after(1, progress)) == "roastcoffea  1 of 1 chunks, 100 Hz, 1 s"
    tally.add({"outcome": "ok", "events": 100, "bytes_requested": 0}, preprocessing=False)
    assert tally.bytes == 0


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (NOTHING, "no chunks yet, 0 s"),
        (NOTHING._replace(files=1, files_asked=4, workers=1), "1 of 4 files opened, 1 worker, 0 s"),
        (NOTHING._replace(chunks=9, chunks_asked=8), "8 of 8 chunks"),
    ],
)
def test_what_is_not_known_is_left_out(progress: Progress, words: str) -> None:
    assert words in line_of(progress, Rates())


# When it ends


def test_the_rest_takes_as_long_as_chunks_took_in_the_last_minute() -> None:
    """100 chunks in the first 100 s, and 20 in the 60 s after them: 80 are left."""
    rates = Rates()
    for second in range(161):
        chunks = second if second < 100 else 100 + (second - 100) // 3
        rates.add(rates.began + second, NOTHING._replace(chunks=chunks, chunks_asked=200, workers=4))
    assert rates.left == pytest.approx(80 * 3, rel=0.05)  # the minute may begin with one chunk more


def test_time_before_chunks_were_asked_for_does_not_count() -> None:
    rates = Rates()
    for second in range(50):
        rates.add(rates.began + second, NOTHING._replace(files=1, files_asked=9))
    for second in range(50, 56):
        rates.add(rates.began + second, NOTHING._replace(chunks=second - 49, chunks_asked=12))
    assert rates.left == pytest.approx(6)  # 6 of 12 in 6 s


def test_there_is_no_estimate_before_each_thread_has_done_a_chunk_nor_after_the_last_one() -> None:
    progress = NOTHING._replace(chunks=3, chunks_asked=40, threads=(4, 4))
    assert after(10, progress).left is None
    assert after(10, progress._replace(chunks=4)).left == pytest.approx(90)
    assert after(10, progress._replace(chunks=40)).left is None
    assert "ETA" not in line_of(progress, after(10, progress._replace(chunks=4)), whole=True)


# What limits it


def test_idle_threads_share_the_time_with_what_the_others_do() -> None:
    progress = NOTHING._replace(
        threads=(10, 4), wall_seconds=10.0, cpu_seconds=8.0, seconds={"compute": 8.0, "read": 2.0}
    )
    rates = after(5, progress)
    assert rates.busy() == pytest.approx({"idle": 0.6, "failures": 0, "compute": 0.32, "storage": 0.08})
    assert rates.efficiency() == pytest.approx(0.32)
    assert "efficiency 32 %, threads idle 60 %" in line_of(progress, rates)


def test_the_bottleneck_is_that_of_the_last_minute() -> None:
    rates = Rates()
    for second in range(101):
        read, compute = min(second, 40) * 1.0, max(second - 40, 0) * 1.0
        progress = NOTHING._replace(
            chunks=second, chunks_asked=500, wall_seconds=read + compute, seconds={"read": read, "compute": compute}
        )
        rates.add(rates.began + second, progress)
        if second == 40:
            assert "limited by storage" in line_of(progress, rates)
    assert "limited by compute" in line_of(progress, rates)
    assert rates.busy()["storage"] == 0
    assert rates.busy(whole=True)["storage"] == pytest.approx(0.4)


def test_seconds_of_attempts_are_added_up_by_class() -> None:
    tally = Tally()
    record = {"outcome": "ok", "wall_seconds": 3.0, "cpu_seconds": 1.0, "helper_cpu_seconds": 0.5}
    tally.add(record | {"open_seconds": 0.25, "build_seconds": 0.5, "read_seconds": 1.0}, preprocessing=False)
    tally.add({"outcome": "error", "wall_seconds": 2.0, "cpu_seconds": 1.0, "read_seconds": 1.0}, preprocessing=False)
    tally.add({"outcome": "ok", "wall_seconds": 9.0, "cpu_seconds": 9.0}, preprocessing=True)
    assert (tally.wall_seconds, tally.failed_seconds, tally.cpu_seconds) == (5.0, 2.0, 2.5)
    assert {name: each for name, each in tally.seconds.items() if each} == {"open": 0.75, "read": 1.0}


def run_of(durations: Callable[[], float], threads: int = 16, chunks: int = 400) -> npt.NDArray[np.float64]:
    """When the chunks of a run end, and how long each took: each thread takes the next one."""
    free, ends = [0.0] * threads, []
    for _ in range(chunks):
        length = durations()
        end = heapq.heappop(free) + length
        heapq.heappush(free, end)
        ends.append((end, length))
    return np.array(sorted(ends)).T


@pytest.mark.parametrize("scatter", [0.3, 1.0])
@pytest.mark.parametrize("done", [0.2, 0.5, 0.8])
def test_about_nine_of_ten_runs_end_within_the_interval(scatter: float, done: float) -> None:
    random = np.random.default_rng(5)
    shape = 1 / scatter**2
    within = 0
    for _ in range(100):
        ends, lengths = run_of(lambda: random.gamma(shape, 6.0 / shape))
        rates = Rates(0.0)
        now = int(np.quantile(ends, done))
        for second in range(1, now + 1):
            of = lengths[ends <= second]
            known = {"chunks": len(of), "wall_seconds": of.sum(), "wall_squares": (of**2).sum()}
            rates.add(second, NOTHING._replace(chunks_asked=400, threads=(16, 16), **known))
        low, high = rates.left_between or (0.0, 0.0)
        within += low <= ends[-1] - now <= high
    assert within >= 80, within


def test_without_an_estimate_there_is_no_interval() -> None:
    assert after(4, NOTHING._replace(chunks_asked=400)).left_between is None
    assert after(4, NOTHING).left_between is None


def test_the_interval_is_wide_where_few_chunks_have_ended() -> None:
    few = after(10, NOTHING._replace(chunks=2, chunks_asked=400)).left_between
    many = after(10, NOTHING._replace(chunks=200, chunks_asked=400)).left_between
    assert few is not None
    assert many is not None
    assert few[1] / few[0] > 2 * many[1] / many[0]


def test_the_interval_ends_at_ten_times_the_estimate_and_the_longest_chunk() -> None:
    """Three chunks of 1 s with a deviation of 3 s: the last of two may take 3 (ln 2 + 1.5) s more."""
    rates = after(10, NOTHING._replace(chunks=3, chunks_asked=400, threads=(2, 2), wall_seconds=3.0, wall_squares=30.0))
    assert rates.left is not None
    assert rates.left_between is not None
    assert rates.left_between[1] == pytest.approx(rates.left + np.hypot(9 * rates.left, 3 * (np.log(2) + 1.5)))
