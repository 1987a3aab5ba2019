"""What the live page says."""

from __future__ import annotations

import numpy as np
from stand_ins import Observed

from roastcoffea.recording.facility.page import classes_of, limit, page_of


def with_chunks(observed: Observed, prefix: str = "Dijet") -> Observed:
    tasks = [observed.chunk(number) for number in range(60)]
    observed.worker.processing = dict.fromkeys(range(4))
    next(iter(observed.observer.runs.all.values())).name = prefix
    for each in tasks[:30]:
        observed.pass_time(1)
        observed.end(each, 4.0, events=1000)
    observed.pass_time(1)
    return observed


def test_a_run_has_progress_time_left_rates_and_its_bottleneck(observed: Observed) -> None:
    observed.end(observed.chunk(100), state="released", reason="task-erred-1")
    text = str(page_of(with_chunks(observed).observer, observed.now))
    for words in (
        "Dijet",
        "30 of 61",
        "running 31 s",
        "968 Hz",
        "<td>1</td>",
        "threads idle 50 %",
        "2 workers, 4 of 8 threads",
    ):
        assert words in text, words
    assert "xrootd" not in text
    assert "secret-name" not in text


def test_texts_of_others_are_escaped(observed: Observed) -> None:
    text = str(page_of(with_chunks(observed, "<script>alert(1)</script>$x$").observer, observed.now))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def busy(observed: Observed) -> None:
    for worker in observed.scheduler.workers.values():
        worker.processing = dict.fromkeys(range(4))


def test_what_takes_most_of_the_thread_time_is_the_bottleneck(observed: Observed) -> None:
    busy(observed)
    tasks = [observed.chunk(number) for number in range(3)]
    for each in tasks:
        observed.pass_time(1)
        observed.end(each, 4.0, compute_seconds=0.4, cpu_seconds=0.4, read_seconds=3.0)
    observed.pass_time(1)
    (run,) = observed.observer.runs.all.values()
    assert limit(run) == "limited by storage: 83 % of thread time"


def test_classes_are_those_of_the_last_minute_that_matter() -> None:
    threads = {"compute": np.full(119, 6.0), "read": np.full(119, 2.0), "merge": np.full(119, 0.01)}
    threads["compute"][:100] = 100
    text = str(classes_of(threads))
    assert text.index(">compute<") < text.index(">read<")
    assert "75 %" in text
    assert "merge" not in text
    assert str(classes_of({})) == ""
