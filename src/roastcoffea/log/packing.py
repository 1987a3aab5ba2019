"""Records of attempts as opaque bytes: packed by the probe on a worker, unpacked by the client.

This module must survive pickling by value.
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BRANCHES: Final = "branch_reads"
SECTIONS: Final = "sections"
PROBLEMS: Final = "problems"
PREPROCESSING: Final = "preprocessing"
PROFILE: Final = "profile"
OF_PROCESS: Final = "of_process"
"""Entries of a record in addition to the columns of its table; one marks a record of preprocessing.

The last one has what the process of an attempt knows of itself, where no scheduler asks workers for it.

A record with nothing but problems belongs to no attempt, and needs no identity.
"""

PROFILE_UNITS: Final = 10_000
"""Units per second of the integers that carry a profile's seconds."""

BRANCH_INTEGERS: Final = ("bytes_payload", "bytes_again", "bytes_uncompressed", "baskets")
BRANCH_SECONDS: Final = tuple(column.name for column in BRANCH_READ_COLUMNS if column.kind == "number")
"""Numbers of a branch. None if not measured."""

BASKETS_LISTED: Final = "baskets_listed"
"""Number of listed baskets of a branch: all, or only the first and the last one."""

BASKET: Final = "basket"
BASKET_BYTES: Final = "basket_bytes"
"""Numbers and sizes of the listed baskets, branch by branch."""

BRANCHES_HAVE: Final = ("branch", *BRANCH_INTEGERS, *BRANCH_SECONDS, BASKETS_LISTED, BASKET, BASKET_BYTES)
"""Columns of the branches of a record."""

INTEGER_COLUMNS: Final = operator.itemgetter(*BRANCH_INTEGERS, BASKETS_LISTED, BASKET, BASKET_BYTES)
SECONDS_COLUMNS: Final = operator.itemgetter(*BRANCH_SECONDS)

SECONDS_PLANES: Final = (1, 2, 3)
"""Seconds travel as 4-byte numbers without their lowest byte: they may come smaller by one part in 32,768."""

COLUMNS_READ: Final = "coffea_columns"
OF_EACH_BRANCH: Final = "-data"
"""Usual ending of coffea's column names after the branch: only deviations are sent."""

TEXTS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind in {"text", "values"})
NUMBERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "number")
INTEGERS: Final = tuple(column.name for column in CHUNK_COLUMNS if column.kind == "integer")
FIGURES: Final = NUMBERS + INTEGERS
FIGURES_PACKING: Final = f"<{len(NUMBERS)}d{len(INTEGERS)}q"
FIGURE_SIZE: Final = 8
FIGURES_SIZE: Final = FIGURE_SIZE * len(FIGURES)

OF_TEXTS: Final = (*TEXTS, COLUMNS_READ)
"""Text values of a record."""

PACKED: Final = frozenset((BRANCHES, *OF_TEXTS, *FIGURES))
"""Values of a record that are not sent as JSON."""

NO_TEXT: Final = "\0"
NO_NUMBER: Final = math.nan
NO_INTEGER: Final = -(1 << 63)
NO_FIGURES: Final = (NO_NUMBER,) * len(NUMBERS) + (NO_INTEGER,) * len(INTEGERS)
"""Values sent for unknown ones."""

PLACES: Final = {name: place for place, name in enumerate((*TEXTS, *FIGURES))}
UNKNOWN: Final = frozenset((NO_TEXT, NO_INTEGER))
"""Where columns are in a record, and values of unknown ones other than NaN."""

BETWEEN_TEXTS: Final = "\n"
NEW_LINE: Final = b"\n"

LENGTHS: Final = "<5I"
LENGTHS_SIZE: Final = 20
"""Before each record: bytes of JSON, bytes of text, figures, bytes of an integer of branches, and number of these."""

SEED: Final = zlib.crc32(repr((TEXTS, FIGURES, BRANCHES_HAVE)).encode())
CHECK: Final = "<I"
CHECK_SIZE: Final = 4
"""Packed records begin with their checksum, seeded with the version that both sides must share."""
MOST_EXPANSION: Final = 255
"""Sizes of compressed bytes that LZ4 can make of them; it allocates what they claim."""


def packed_records(records: list[dict[str, Any]]) -> bytes:
    """Records as opaque bytes without pickles: JSON, texts, figures, and numbers of branches, compressed.

    LZ4 is far faster than zlib, and coffea brings it.
    """
    import lz4.block

    packed: bytes = lz4.block.compress(b"".join([part for record in records for part in _packed_record(record)]))
    return struct.pack(CHECK, zlib.crc32(packed, SEED)) + packed


def _packed_record(record: dict[str, Any]) -> list[bytes]:
    columns = record.get(BRANCHES) or {"branch": ()}
    branches = columns["branch"]
    texts, figures = _packed_texts(record, branches), _packed_figures(record)
    width, integers, numbers = _packed_branches(columns) if branches else (0, 0, [])
    others = {name: value for name, value in record.items() if name not in PACKED}
    for packed, names in ((texts, OF_TEXTS), (figures, FIGURES)):
        if not packed:
            others |= {name: record[name] for name in names if name in record}
    if branches and not texts:
        others[BRANCHES] = branches
    rest = _encoded(others).encode() if others else b""
    lengths = struct.pack(LENGTHS, len(rest), len(texts), len(figures), width, integers)
    return [lengths, rest, texts, *figures, *numbers]


def _packed_texts(record: dict[str, Any], branches: Sequence[str]) -> bytes:
    """Texts of a record and names of its branches; empty if they cannot be encoded as lists."""
    *texts, columns = map(record.get, OF_TEXTS)
    try:
        if isinstance(columns, set):
            usual = {*map(operator.add, branches, repeat(OF_EACH_BRANCH))}
            columns = "" if columns == usual else _encoded([columns - usual, usual - columns])
        texts += [columns, *branches]
        if NO_TEXT in texts:
            return b""
        joined = BETWEEN_TEXTS.join([NO_TEXT if text is None else text for text in texts])
    except (TypeError, ValueError):
        return b""
    return joined.encode("utf-8", "surrogatepass") if joined.count(BETWEEN_TEXTS) < len(texts) else b""


def _packed_figures(record: dict[str, Any]) -> list[bytes]:
    """Figures of a record; empty if a value does not fit."""
    figures = [*map(record.get, FIGURES, NO_FIGURES)]
    try:
        if None in figures:
            figures = [none if figure is None else figure for figure, none in zip(figures, NO_FIGURES, strict=True)]
        data = struct.pack(FIGURES_PACKING, *figures)
    except (struct.error, OverflowError, TypeError, ValueError):
        return []
    return _planes(data, range(FIGURE_SIZE), FIGURE_SIZE)


def _planes(data: bytes, places: Iterable[int], width: int) -> list[bytes]:
    """Bytes at these places of numbers of this width: bytes of the same place compress best."""
    return [data[place::width] for place in places]


def _packed_branches(columns: dict[str, Sequence[Any]]) -> tuple[int, int, list[bytes]]:
    """Bytes an integer, how many integers; and integers, sizes of baskets and seconds of the branches."""
    integers = [*chain.from_iterable(INTEGER_COLUMNS(columns))]
    width = 4
    try:
        data = struct.pack(f"<{len(integers)}I", *integers)
    except struct.error:
        width = 8
        data = struct.pack(f"<{len(integers)}Q", *integers)
    seconds = [*chain.from_iterable(SECONDS_COLUMNS(columns))]
    if None in seconds:
        seconds = [NO_NUMBER if value is None else value for value in seconds]
    planes = _planes(data, range(width), width)
    planes += _planes(struct.pack(f"<{len(seconds)}f", *seconds), SECONDS_PLANES, 4)
    return width, len(integers), planes


@dataclass(frozen=True, slots=True, eq=False)
class PackedBranches:
    """Branches of a record, as columns.

    `integers` are those of `BRANCH_INTEGERS`, `seconds` those of `BRANCH_SECONDS`; NaN if not measured.
    `baskets` and `sizes` have `listed[0]` baskets of the first branch, then those of the second.
    """

    names: list[str]
    integers: list[npt.NDArray[np.uint64]]
    seconds: list[npt.NDArray[np.float32]]
    listed: npt.NDArray[np.uint64]
    baskets: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]


def unpacked_records(blob: bytes) -> list[dict[str, Any]]:
    """Unpack the result of `packed_records`, with branches as `PackedBranches`; requires NumPy."""
    return records_in(checked_content(blob))


def records_in(data: bytes) -> list[dict[str, Any]]:
    """Records in `checked_content`."""
    at = 0
    records: list[dict[str, Any]] = []
    while at < len(data):
        rest, texts, planes, width, count = struct.unpack_from(LENGTHS, data, at)
        at += LENGTHS_SIZE
        record = json.loads(data[at : at + rest]) if rest else {}
        at += rest
        names = record.pop(BRANCHES, ())
        if texts:
            names = _unpack_texts(data[at : at + texts], record)
            at += texts
        if planes:
            record |= _unpacked_figures(data, at, planes)
            at += len(FIGURES) * planes
        if count:
            record[BRANCHES] = unpacked_branches(names, data, at, width, count)
            at += size_of_branches(len(names), width, count)
        records.append(record)
    return records


def unpacked_values(blob: bytes, names: Sequence[str]) -> list[dict[str, Any]]:
    """Unpack only these columns of packed records, for a tenth of the time: no branches, sections or profile.

    What was not measured is left out, as is a record whose values travel as JSON (a text with a line break).

    Parameters
    ----------
    blob : bytes
        Result of `packed_records`.
    names : sequence of str
        Text, number and integer columns of chunks.
    """
    data = checked_content(blob)
    at = 0
    records: list[dict[str, Any]] = []
    while at < len(data):
        rest, texts, planes, width, count = struct.unpack_from(LENGTHS, data, at)
        at += LENGTHS_SIZE + rest
        values: list[Any] = []
        branches = 0
        if texts:
            values = data[at : at + texts].decode("utf-8", "surrogatepass").split(BETWEEN_TEXTS)
            branches = len(values) - len(OF_TEXTS)
            at += texts
        if texts and planes:
            figures = bytearray(FIGURES_SIZE)
            for plane in range(planes):
                figures[plane::FIGURE_SIZE] = data[at + plane * len(FIGURES) : at + (plane + 1) * len(FIGURES)]
            known = (*values[: len(TEXTS)], *struct.unpack(FIGURES_PACKING, figures))
            picked = zip(names, map(known.__getitem__, map(PLACES.__getitem__, names)), strict=True)
            records.append({name: value for name, value in picked if value == value and value not in UNKNOWN})  # noqa: PLR0124
        elif count:  # the names of branches are in the part that is passed over
            break
        at += len(FIGURES) * planes + size_of_branches(branches, width, count)
    return records


def checked_content(blob: bytes) -> bytes:
    """Content of packed records.

    Raises
    ------
    ValueError
        They are damaged, or of another version.
    """
    import lz4.block

    packed = blob[CHECK_SIZE:]
    if blob[:CHECK_SIZE] != struct.pack(CHECK, zlib.crc32(packed, SEED)):
        raise ValueError("they are damaged, or another version of roastcoffea packed them")
    if int.from_bytes(packed[:4], "little") > MOST_EXPANSION * len(packed):
        raise ValueError("they claim to be larger than they can be")
    content: bytes = lz4.block.decompress(packed)
    return content


def _unpacked_figures(data: bytes, at: int, planes: int) -> dict[str, Any]:
    """Measured figures of a record."""
    figures = struct.unpack(FIGURES_PACKING, _unpacked_integers(data, at, len(FIGURES), planes).tobytes())
    return {
        name: value
        for name, value in zip(FIGURES, figures, strict=True)
        if value == value and value != NO_INTEGER  # noqa: PLR0124  (not a number is like nothing)
    }


def _unpack_texts(data: bytes, record: dict[str, Any]) -> list[str]:
    """Put the texts that are known into a record, and give the names of its branches."""
    texts = data.decode("utf-8", "surrogatepass").split(BETWEEN_TEXTS)
    record |= {name: text for name, text in zip(TEXTS, texts, strict=False) if text != NO_TEXT}
    columns, *names = texts[len(TEXTS) :]
    if columns != NO_TEXT:
        record[COLUMNS_READ] = columns_read(columns, names)
    return names


def columns_read(deviations: str, names: Sequence[str]) -> list[str]:
    """coffea's names of the columns that it read, by how they deviate from the names of branches."""
    more, less = json.loads(deviations) if deviations else ((), ())
    usual = {name + OF_EACH_BRANCH for name in names}
    return sorted((usual - set(less)) | set(more))


def size_of_branches(branches: int, width: int, count: int) -> int:
    """Bytes of the numbers of so many branches, of which `count` are integers of this width."""
    return count * width + branches * len(BRANCH_SECONDS) * len(SECONDS_PLANES) if count else 0


def unpacked_branches(names: list[str], data: bytes, at: int, width: int, count: int) -> PackedBranches:
    """Branches of these names; their numbers, of which `count` are integers of this width, begin at this place."""
    integers = _unpacked_integers(data, at, count, width)
    seconds = _unpacked_seconds(data, at + count * width, len(names) * len(BRANCH_SECONDS))
    of_branches = len(names) * (1 + len(BRANCH_INTEGERS))
    *fields, listed = integers[:of_branches].reshape(-1, len(names))
    baskets, sizes = integers[of_branches:].reshape(2, -1)
    return PackedBranches(names, fields, list(seconds.reshape(-1, len(names))), listed, baskets, sizes)


def _unpacked_seconds(data: bytes, at: int, count: int) -> npt.NDArray[np.float32]:
    """Seconds sent without their lowest byte; those below 0 because of differing clocks become 0."""
    import numpy as np

    travelled = np.frombuffer(data, np.uint8, count * len(SECONDS_PLANES), at).reshape(-1, count)
    seconds = np.zeros((count, 4), dtype=np.uint8)
    seconds[:, SECONDS_PLANES] = travelled.T
    restored: npt.NDArray[np.float32] = seconds.view("<f4").reshape(count)
    return restored.clip(min=0.0)


def _unpacked_integers(data: bytes, at: int, count: int, width: int) -> npt.NDArray[np.uint64]:
    """Integers of this width, stored with all lowest bytes first."""
    import numpy as np

    integers = np.zeros((count, 8), dtype=np.uint8)
    integers[:, :width] = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count).T
    return integers.view("<u8").reshape(count)


def _plain(value: Any) -> Any:
    """JSON form of values it does not know: NumPy numbers become numbers."""
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


_encoded: Final = json.JSONEncoder(default=_plain, separators=(",", ":")).encode
