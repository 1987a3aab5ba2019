"""Fast reading of tree metadata from ROOT files: 20 ms for 1,600 branches (uproot takes 1 s)."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import uproot

BEGIN: Final = 1024
"""Size of the first request in bytes. The response includes the header of the top directory."""
TREES: Final = ("TTree", "TNtuple", "TNtupleD", "ROOT::RNTuple")
CODECS: Final = {2: "LZMA", 4: "LZ4", 5: "zstd"}


class TreeHeader(NamedTuple):
    """Metadata of a tree and its file. For RNTuples, the basket fields are None or empty."""

    tree: str
    uuid: str
    size: int
    events: int
    branches: frozenset[str]
    baskets: int | None = None
    compressed: int | None = None
    codecs: frozenset[str] = frozenset()


class Branch(NamedTuple):
    name: str
    compression: int
    baskets: int
    uncompressed: int
    compressed: int


def tree_header(file: str, tree: str | None) -> TreeHeader:
    """Read the metadata of a tree. The default is the only tree in the file, or Events.

    Raises
    ------
    ValueError
        If the file is truncated or does not contain the tree. uproot may raise other errors.
    """
    with uproot.ReadOnlyFile(file, object_cache=None, array_cache=None, begin_chunk_size=BEGIN) as opened:
        size = int(opened.source.num_bytes)
        if size < opened.fEND:
            raise ValueError(f"truncated: {size:,} of {opened.fEND:,} bytes")
        top = opened.root_directory
        name = tree_in(top, tree)
        found = TreeHeader(name, str(opened.uuid), size, 0, frozenset())
        if "RNTuple" in top.classname_of(name):
            fields = top[name]
            return found._replace(events=fields.num_entries, branches=frozenset(fields.keys(recursive=False)))
        events, branches = _branches(top, name)
        return found._replace(
            events=events,
            branches=frozenset(branch.name for branch in branches),
            baskets=sum(branch.baskets for branch in branches),
            compressed=sum(branch.compressed for branch in branches),
            codecs=frozenset(_codec(branch, opened.fCompress) for branch in branches if branch.baskets),
        )


def tree_in(top: Any, tree: str | None) -> str:
    names = [name for name, kind in top.classnames(cycle=False).items() if kind in TREES]
    wanted = tree or (names[0] if len(names) == 1 else "Events")
    if wanted not in names:
        raise ValueError(f"no tree {tree or 'Events'}; it has {', '.join(sorted(names)) or 'none'}")
    return wanted


def _codec(branch: Branch, of_file: int) -> str:
    """Name of the branch's codec. Branches written by uproot do not specify a codec, so the file's codec applies."""
    packed = branch.compressed < branch.uncompressed
    setting = branch.compression if branch.compression > 0 else of_file * packed
    return CODECS.get(setting // 100, "zlib") if setting else "none"


def _branches(top: Any, tree: str) -> tuple[int, list[Branch]]:
    try:
        return _parsed(bytes(top.key(tree).get_uncompressed_chunk_cursor()[0].raw_data))
    except (ValueError, IndexError, struct.error):
        # the tree has a different layout
        read = top[tree]
        names = ("fName", "fCompress", "fWriteBasket", "fTotBytes", "fZipBytes")
        every = [Branch(*map(branch.member, names)) for branch in read.itervalues(recursive=True)]
        return int(read.num_entries), every


# Layout of flat trees written by ROOT 6 and uproot (TTree 20, TBranch 13). Each object begins with its size in bytes.

VERSION: Final = struct.Struct(">4xH")
TREE: Final = struct.Struct(">q56xI48x")
"""Number of events, and number of cluster ranges."""
LIST: Final = struct.Struct(">6x10xBi4x")
"""Length of the name, and number of objects."""
CLASS: Final = struct.Struct(">4xI")
NEW_CLASS: Final = 0xFFFFFFFF
BRANCH: Final = struct.Struct(">4xHI2x2x4xIB")
"""Version, size of name and title, flags, and length of the name."""
SETTINGS: Final = struct.Struct(">10xi8xi8x")
"""Compression setting, and number of baskets."""
AMOUNTS: Final = struct.Struct(">28xqq")
"""Uncompressed and compressed size of all baskets."""


def _after(data: bytes, at: int) -> int:
    return at + 4 + (int.from_bytes(data[at : at + 4]) & 0x3FFFFFFF)


def _parsed(data: bytes) -> tuple[int, list[Branch]]:
    if VERSION.unpack_from(data) != (20,):
        raise ValueError
    at = VERSION.size
    for _ in ("names", "line", "filling", "marker"):
        at = _after(data, at)
    events, ranges = TREE.unpack_from(data, at)
    at = _after(data, at + TREE.size + 2 * (1 + 8 * ranges))
    named, number = LIST.unpack_from(data, at)
    at += LIST.size + named
    branches = list[Branch]()
    for _ in range(number):
        begin = at + CLASS.size
        if CLASS.unpack_from(data, at) == (NEW_CLASS,):
            begin = data.index(0, begin) + 1
        branches.append(_branch(data, begin))
        at = _after(data, at)
    return events, branches


def _branch(data: bytes, at: int) -> Branch:
    version, size, flags, length = BRANCH.unpack_from(data, at)
    if version != 13 or flags & 16 or length == 255:  # a different class, or a long name
        raise ValueError
    name = str(data[at + BRANCH.size : at + BRANCH.size + length], "utf-8", "surrogateescape")
    at += 10 + (size & 0x3FFFFFFF)
    compression, baskets = SETTINGS.unpack_from(data, at)
    at = _after(data, at + SETTINGS.size)
    uncompressed, compressed = AMOUNTS.unpack_from(data, at)
    inside = at + AMOUNTS.size
    if _after(data, inside) > inside + LIST.size:
        raise ValueError
    return Branch(name, compression, baskets, uncompressed, compressed)
