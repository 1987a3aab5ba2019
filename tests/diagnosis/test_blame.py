"""Who is blamed where levels share their chunks."""

import numpy as np

from roastcoffea.diagnosis.slowness import Blame, Parts, blamed
from roastcoffea.metrics.statistics import Groups

PLACES = np.arange(120)


def blame_of(slow: np.ndarray, **codes: np.ndarray) -> Blame:
    """Who is blamed where these of 120 chunks take e times as long."""
    values = 0.1 * np.random.default_rng(1).standard_normal(120) + slow
    groups = {kind: Groups(of_kind, int(of_kind.max()) + 1) for kind, of_kind in codes.items()}
    wholes = {"host": ("worker", 2), "endpoint": ("file", 4)}
    parts = {kind: Parts(groups[of], np.arange(len(groups[of].sizes)) // each) for kind, (of, each) in wholes.items()}
    return blamed(values, groups, Groups(np.zeros(120, np.int64), 1), parts)


def culprits(blame: Blame) -> set[tuple[str, int]]:
    return {(kind, int(level)) for kind, effects in blame.effects.items() for level in np.flatnonzero(effects)}


def test_the_level_is_blamed_that_explains_most() -> None:
    workers, files = PLACES % 4, PLACES // 15
    assert culprits(blame_of(workers == 2, worker=workers, file=files)) == {("worker", 2)}
    assert culprits(blame_of(files == 2, worker=workers, file=files)) == {("file", 2)}


def test_files_of_a_slow_worker_are_innocent() -> None:
    workers, files = PLACES % 4, PLACES % 4 + 4 * (PLACES // 60)
    found = blame_of(workers == 2, worker=workers, file=files)
    assert culprits(found) == {("worker", 2)}
    assert found.confounded == {}


def test_what_cannot_be_told_apart_is_named() -> None:
    found = blame_of(PLACES % 4 == 2, worker=PLACES % 4, file=PLACES % 4)
    assert culprits(found) == {("worker", 2)}
    assert found.confounded == {("worker", 2): [("file", 2)]}


def test_a_host_is_blamed_where_all_its_workers_are_slow() -> None:
    workers, files = PLACES % 6, PLACES // 15
    hosts = workers // 2
    assert culprits(blame_of(hosts == 1, host=hosts, worker=workers, file=files)) == {("host", 1)}
    assert culprits(blame_of(workers == 2, host=hosts, worker=workers, file=files)) == {("worker", 2)}


def test_an_endpoint_is_blamed_where_all_its_files_are_slow() -> None:
    workers, files = PLACES % 4, PLACES // 15
    endpoints = files // 4
    assert culprits(blame_of(endpoints == 1, worker=workers, endpoint=endpoints, file=files)) == {("endpoint", 1)}
    assert culprits(blame_of(files == 2, worker=workers, endpoint=endpoints, file=files)) == {("file", 2)}
