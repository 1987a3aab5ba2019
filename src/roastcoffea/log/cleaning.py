"""Entries of a log without the secrets in their texts, before they are written to disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Final

from roastcoffea.log.kinds import HEADER, HEADER_SIZE, PROBLEM, TASK_CHUNK, TASK_ERROR
from roastcoffea.redaction import redacted


def without_secrets(data: bytes) -> bytes:
    """Entries with the same meaning, as the client's tables have them: complete entries, in order."""
    parts, at, kept = [], 0, 0
    while at + HEADER_SIZE <= len(data):
        code, length = struct.unpack_from(HEADER, data, at)
        start, end = at + HEADER_SIZE, at + HEADER_SIZE + length
        if code in _CLEANED:
            payload = _CLEANED[code](data[start:end])
            parts += [data[kept:at], struct.pack(HEADER, code, len(payload)), payload]
            kept = end
        at = end
    return b"".join([*parts, data[kept:]]) if parts else data


def _text(payload: bytes) -> bytes:
    return redacted(payload.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")


def _chunk(payload: bytes) -> bytes:
    """The chunk of a failed task; one that is damaged has no text, so that it is skipped as it would be."""
    try:
        dataset, file, tree, *entries = json.loads(payload)
    except ValueError:
        return b""
    return json.dumps([redacted(str(dataset)), redacted(str(file)), redacted(str(tree)), *entries]).encode()


_CLEANED: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    TASK_ERROR.code: _text,
    PROBLEM.code: _text,
    TASK_CHUNK.code: _chunk,
}
"""Kinds with texts of the user's, which the scheduler redacts without the user's own patterns, or not at all."""
