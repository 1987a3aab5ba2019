"""Which records stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

from roastcoffea.recording.facility.retention import kept_in, remove_old


def record(folder: Path, name: str, days: float, size: int = 1000, file: str = "000001.arrows") -> Path:
    path = folder / name
    path.mkdir()
    (path / file).write_bytes(bytes(size))
    os.utime(path / file, (time.time() - 86_400 * days,) * 2)
    return path


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_records_go_by_age(tmp_path: Path) -> None:
    for days in (1, 10, 40):
        record(tmp_path, f"run-{days}", days)
    assert names(remove_old(tmp_path, 30, None)) == ["run-40"]
    assert names([each.path for each in kept_in(tmp_path)]) == ["run-10", "run-1"]


def test_the_oldest_go_while_all_are_too_large(tmp_path: Path) -> None:
    for days in range(1, 6):
        record(tmp_path, f"run-{days}", days, 1_000_000)
    assert names(remove_old(tmp_path, None, 0.0025)) == ["run-5", "run-4", "run-3"]


def test_what_is_written_or_of_others_stays(tmp_path: Path) -> None:
    written = record(tmp_path, "written", 100)
    record(tmp_path, "analysis", 100, file="histograms.root")
    record(tmp_path, "measurement", 100, file="run.json")
    outside = record(tmp_path.parent, f"{tmp_path.name}-outside", 100)
    (tmp_path / "link").symlink_to(outside)
    assert names(remove_old(tmp_path, 1, 0, written=frozenset((written,)))) == ["measurement"]
    assert outside.exists()
    assert remove_old(tmp_path / "missing", 1, 1) == []


def test_what_another_scheduler_writes_stays(tmp_path: Path) -> None:
    record(tmp_path, "just now", 0)
    record(tmp_path, "an hour ago", 1 / 24)
    assert names(remove_old(tmp_path, None, 0)) == ["an hour ago"]


def test_without_limits_all_stay(tmp_path: Path) -> None:
    record(tmp_path, "run", 10_000)
    assert remove_old(tmp_path, None, None) == []
