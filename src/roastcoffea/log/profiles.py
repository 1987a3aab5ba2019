"""Profiles of attempts that the client received, summed by Runner call, dataset and stack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.log.packing import PROFILE_UNITS
from roastcoffea.log.stacks import SENT
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.chunks import OTHER, PROFILE_COLUMNS

MOST_STACKS: Final = 20_000
"""Most distinct stacks kept for a dataset in a Runner call."""

HALF_A_UNIT: Final = 0.5 / PROFILE_UNITS

LARGEST: Final = 1e9
"""Most seconds of a stack of an attempt."""

Frame = tuple[str, str, int]
Stacks = dict[tuple[int, ...], list[float]]
"""Samples, seconds, and those by state, by the numbers of a stack's frames."""

OTHERS: Final[Frame] = (OTHER, "", 0)


class ReceivedProfiles:
    """Sums of stacks over attempts; their number is bounded regardless of the number of attempts."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}
        self._sums: dict[tuple[str | None, str | None], Stacks] = {}
        self._longest: dict[tuple[str | None, str | None], tuple[float, int | None, Stacks]] = {}

    def add(self, call: str | None, dataset: str | None, packed: Sequence[Any], chunk: int | None = None) -> None:
        """Add an attempt's profile from `Stacks.packed`.

        Raises
        ------
        LookupError, TypeError, ValueError
            If it is damaged; then nothing is added.
        """
        texts, frames, stacks = packed
        places: list[tuple[int, ...]] = [()]
        known: list[Frame] = []
        for parent, function, file, line in _rows(frames, 4):
            # in a damaged record, parents may follow their children
            places.append((*places[_place(parent, len(places))], len(known)))
            known.append((str(texts[function]), str(texts[file]), int(line)))
        found = [(places[_place(last, len(places))], _amounts(amounts)) for last, *amounts in _rows(stacks, 6)]
        numbers = [self._numbers.get(frame, -1) for frame in known]
        sums, own = self._sums.setdefault((call, dataset), {}), Stacks()
        for path, amounts in found:
            # a frame gets its number with the first stack that is kept
            kept = tuple([numbers[place] for place in path])
            if kept not in sums:
                room = len(sums) < MOST_STACKS
                kept = tuple(self._number(known[place]) for place in path) if room else (self._number(OTHERS),)
            for each in (sums, own):
                before = each.get(kept, [0.0] * len(amounts))
                each[kept] = [one + more for one, more in zip(before, amounts, strict=True)]
        seconds = sum(amounts[1] for amounts in own.values())
        if seconds > self._longest.get((call, dataset), (0.0,))[0]:
            self._longest[call, dataset] = seconds, chunk, own

    def _number(self, frame: Frame) -> int:
        return self._numbers.setdefault(frame, len(self._numbers))

    def table(self, calls: Collection[str]) -> pa.Table:
        """Stacks of these Runner calls, with PROFILE_COLUMNS."""
        known = list(self._numbers)
        values: dict[str, list[Any]] = {column.name: [] for column in PROFILE_COLUMNS}
        for (call, dataset), sums in self._sums.items():
            if call not in calls:
                continue
            _, chunk, own = self._longest.get((call, dataset), (0.0, None, Stacks()))
            for path, amounts, identity in (*_less(sums, own), *((*item, chunk) for item in own.items())):
                frames = [known[number] for number in path]
                row = [call, dataset, *([frame[part] for frame in frames] for part in range(3)), int(amounts[0])]
                for column, value in zip(values.values(), [*row, *amounts[1:], identity], strict=True):
                    column.append(value)
        return pa.table(values, schema=arrow_schema(PROFILE_COLUMNS))


def _less(sums: Stacks, own: Stacks) -> Iterator[tuple[tuple[int, ...], list[float], None]]:
    """Stacks of all attempts but one."""
    for path, amounts in sums.items():
        less = own.get(path)
        rest = amounts if less is None else [max(one - other, 0.0) for one, other in zip(amounts, less, strict=True)]
        if less is None or rest[0] or rest[1] > HALF_A_UNIT:
            yield path, rest, None


def with_files(profile: pa.Table, files: Mapping[str, Mapping[str, str]]) -> pa.Table:
    """The profile with files of functions that were sent to workers without, by Runner call and function."""
    if SENT not in pc.list_flatten(profile["files"]).unique().to_pylist():
        return profile
    rows = zip(*(profile[name].to_pylist() for name in ("call", "functions", "files")), strict=True)
    named = [
        [known.get(name, file) if file == SENT else file for name, file in zip(functions, places, strict=True)]
        for call, functions, places in rows
        for known in [files.get(call, {})]
    ]
    place = profile.schema.get_field_index("files")
    return profile.set_column(place, profile.schema.field(place), pa.array(named, profile["files"].type))


def _rows(numbers: Sequence[Any], width: int) -> Iterator[Sequence[Any]]:
    if len(numbers) % width:
        raise ValueError(f"{len(numbers)} numbers are not rows of {width}")
    return (numbers[at : at + width] for at in range(0, len(numbers), width))


def _place(frame: int, known: int) -> int:
    """Index of a frame's stack among the known ones, the first of which is empty."""
    if not -1 <= frame < known - 1:
        raise ValueError(f"unknown frame {frame}")
    return frame + 1


def _amounts(packed: Sequence[int]) -> list[float]:
    samples, *units = packed
    seconds = [number / PROFILE_UNITS for number in units]
    if not all(0 <= amount <= LARGEST for amount in (samples, *seconds)):
        raise ValueError("a stack has impossible amounts")
    return [samples, *seconds]
