from __future__ import annotations

import json
import struct

from stand_ins import HOST, PREFIX, WORKER

from roastcoffea.log import kinds
from roastcoffea.log.journal import without_secrets
from roastcoffea.log.kinds import LogWriter
from roastcoffea.redaction import MASK, add_pattern


def test_texts_of_the_user_are_without_secrets_and_everything_else_is_as_it_was(no_patterns: None) -> None:
    add_pattern("ticket", r"TGT-\w+")
    log, clean = LogWriter(), LogWriter()
    for writer, secret in ((log, "TGT-abc"), (clean, MASK)):
        for text in (WORKER, HOST, PREFIX):
            writer.number(text)
        writer.write(kinds.TASK, struct.pack(kinds.TASK.packing, *[0] * len(kinds.TASK.fields)) + b"key")
        writer.write_text(kinds.TASK_ERROR, f"refused {secret} by root://h")
        writer.write_text(kinds.TASK_CHUNK, json.dumps([secret, f"root://h//f?authz={MASK}", "Events", 0, 10]))
        writer.write_text(kinds.PROBLEM, f"no {secret}")
        writer.write(kinds.CHUNK, b"TGT-opaque")
    entries = log.drain(10**6, 0)["data"].replace(b"authz=***", b"authz=abc")
    assert without_secrets(entries) == clean.drain(10**6, 0)["data"]


def test_entries_without_texts_of_the_user_are_not_copied() -> None:
    log = LogWriter()
    log.number(WORKER)
    data = log.drain(10**6, 0)["data"]
    assert without_secrets(data) is data
    assert without_secrets(b"") == b""


def test_damaged_entries_stay_damaged() -> None:
    log = LogWriter()
    log.write_text(kinds.TASK_CHUNK, "[1")
    damaged = log.drain(10**6, 0)["data"]
    assert without_secrets(damaged) == struct.pack(kinds.HEADER, kinds.TASK_CHUNK.code, 0)
    assert without_secrets(damaged[:3]) == damaged[:3]
