"""What is compared: a measurement or its repeats, given as objects, folders, patterns, or a name with repeats."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from roastcoffea.errors import ComparisonError
from roastcoffea.measurement import Measurement, load
from roastcoffea.report.summary import title_of
from roastcoffea.storage.store import is_measurement, list_runs
from roastcoffea.studies.compare.observations import Observation, observed
from roastcoffea.studies.merging import are_jobs, merged_run
from roastcoffea.studies.sources import measurement_of
from roastcoffea.units import moment

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Repeats of one run, under the letter that tables call them by."""

    letter: str
    label: str
    runs: tuple[Observation, ...]
    left_out: tuple[str, ...] = ()
    """What was given and is not compared, with the reason."""


def side_of(letter: str, given: Any, label: str | None = None, folder: Path | None = None) -> Side:
    """What was given, as repeats of one run.

    Parameters
    ----------
    given
        A measurement, a collector, a path or pattern, or a sequence of such.
    folder
        Where a name is looked for that is no path.

    Raises
    ------
    MeasurementError, ComparisonError
        If there is nothing to be read, or nothing in it that can be compared.
    """
    runs: list[Observation] = []
    left_out: list[str] = []
    for name, measurement in _measurements(given, folder):
        if measurement.run.ended_early:
            left_out.append(f"{name or title_of(measurement.run)} {measurement.run.ending}: {measurement.error}")
            continue
        if not measurement.run.calls and not measurement.run.chunks and measurement.run.reported is None:
            raise ComparisonError(f"{name or title_of(measurement.run)} cannot be compared: no Runner was called in it")
        run = observed(measurement, name)
        if run.metrics.get("total_events") == 0 or "elapsed_time_seconds" not in run.metrics:
            reason = run.missing.get("elapsed_time_seconds", "it has no events")
            raise ComparisonError(f"{run.name} cannot be compared: {reason}; give a run that did something")
        runs.append(run)
    if not label:
        alone = runs[0].name if len(runs) == 1 else ""
        label = (_short(given) if isinstance(given, str | os.PathLike) else alone) or letter
    if not runs:
        reason = "; ".join(left_out) or "nothing was given"
        raise ComparisonError(f"{label} has no run that can be compared: {reason}")
    return Side(letter=letter, label=label, runs=tuple(runs), left_out=tuple(left_out))


def _short(given: str | os.PathLike[str]) -> str:
    """What was given, without the folders of an absolute path: who reads the comparison may not have them."""
    return Path(given).name if Path(given).is_absolute() else str(given)


def distinct(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Sides whose labels, and whose runs' names, are told apart: equal ones get when the run began, or its identity."""
    runs = {run.id: run for side in sides for run in side.runs}
    names = _told_apart([(run.id, run.name, run.start) for run in runs.values()])
    firsts = [side.runs[0] for side in sides]
    labels = _told_apart([(side.letter, side.label, run.start) for side, run in zip(sides, firsts, strict=True)])
    return tuple(
        replace(side, label=labels[side.letter], runs=tuple(replace(run, name=names[run.id]) for run in side.runs))
        for side in sides
    )


def _told_apart(things: Iterable[tuple[str, str, float | None]]) -> dict[str, str]:
    """Names by identity, which is added to a name that others have at the same time of start."""
    named = [(one, name, "" if start is None else moment(start)) for one, name, start in things]
    names = Counter(name for _, name, _ in named)
    at_once = Counter((name, when) for _, name, when in named)
    return {
        one: name if names[name] == 1 else f"{name} ({when if when and at_once[name, when] == 1 else one[:8]})"
        for one, name, when in named
    }


def _measurements(given: Any, folder: Path | None) -> Iterator[tuple[str | None, Measurement]]:
    """Measurements one by one, with the name of their folder where they were loaded."""
    if isinstance(given, str | os.PathLike):
        found = [(path.name, load(path)) for path in paths_of(given, folder)]
        runs = [measurement.run for _, measurement in found]
        yield from [(Path(given).name, Measurement(merged_run(runs)))] if are_jobs(runs) else found
    elif isinstance(given, Sequence):
        for one in given:
            yield from _measurements(one, folder)
    else:
        yield None, measurement_of(given)


def paths_of(given: str | os.PathLike[str], folder: Path | None = None) -> list[Path]:
    """Folders of measurements that a path, a pattern or a name stands for.

    A folder of measurements stands for all in it, which are repeats or the jobs of one campaign; a name for the
    measurements of that name with a number behind it, in its folder, else in `folder`.
    """
    path = Path(given)
    if path.is_file() or is_measurement(path):
        return [path]
    if path.is_dir():
        found = [stored.path for stored in list_runs(path)]
    else:
        # Path.glob takes no pattern that begins with a root
        matching = map(Path, sorted(glob.glob(str(given))))  # noqa: PTH207
        found = list(filter(is_measurement, matching)) or _repeats(path)
        if not found and folder is not None and not path.is_absolute():
            found = paths_of(folder / path) if is_measurement(folder / path) else _repeats(folder / path)
    if not found:
        if path.is_dir():
            raise ComparisonError(f"{given} holds no measurement")
        raise ComparisonError(f"{given} is no measurement, no pattern of some, and no name with repeats")
    return found


def _repeats(name: Path) -> list[Path]:
    """Measurements of this name with a number behind it."""
    if not name.parent.is_dir():
        return []
    numbered = re.compile(re.escape(name.name) + r"[-_. ]\d+")
    return sorted(path for path in name.parent.iterdir() if numbered.fullmatch(path.name) and is_measurement(path))
