"""How long journals and measurements stay in a folder: by age and by size, the oldest go first."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from roastcoffea.log.journal import ENDING
from roastcoffea.log.journals import LONGEST_QUIET

SECONDS_PER_DAY: Final = 86_400
RUN_FILE: Final = "run.json"


class Kept(NamedTuple):
    """A journal or a measurement on disk."""

    path: Path
    last: float
    size: int


def kept_in(folder: Path) -> list[Kept]:
    """Journals and measurements in a folder, the oldest first; nothing else in it is ever removed."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # somebody else may remove, or write, it meanwhile
            if not path.is_symlink() and (any(path.glob(f"*{ENDING}")) or (path / RUN_FILE).is_file()):
                states = [file.stat() for file in path.iterdir() if file.is_file()]
                last = max((state.st_mtime for state in states), default=0.0)
                found.append(Kept(path, last, sum(state.st_size for state in states)))
    return sorted(found, key=lambda each: each.last)


def remove_old(
    folder: Path, days: float | None, gigabytes: float | None, *, written: frozenset[Path] = frozenset()
) -> list[Path]:
    """Remove what is older than so many days, and the oldest while all have more than so many gigabytes.

    What was written within the last minute stays: it may be the journal of another scheduler with the same folder.

    Parameters
    ----------
    written
        Journals that are still written, which stay.
    """
    kept = [each for each in kept_in(folder) if each.path not in written]
    size, removed = sum(each.size for each in kept), []
    for each in kept:
        if time.time() - each.last < LONGEST_QUIET:
            continue
        is_old = days is not None and time.time() - each.last > days * SECONDS_PER_DAY
        is_much = gigabytes is not None and size > 1e9 * gigabytes
        if is_old or is_much:
            shutil.rmtree(each.path, ignore_errors=True)
            size -= each.size
            removed.append(each.path)
    return removed
