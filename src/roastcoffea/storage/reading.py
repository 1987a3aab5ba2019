"""Reading of files that may be damaged, or be no files at all."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from roastcoffea.errors import MeasurementError

_OF_FILES: Final = (MemoryError, OSError, RecursionError, SyntaxError, pa.ArrowException)
_OF_CONTENT: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Signs of damage: what reading of a file raises, and the making of records of what it holds."""

LARGEST_FILE: Final = 2**30
"""Bytes of a file that is read as a whole; the largest `run.json` seen had some tens of MB."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a missing or damaged file causes into an error that names it."""
    way_out = "restore it from a copy, or measure again"
    try:
        yield
    except FileNotFoundError:
        raise MeasurementError(f"{path} is missing; {way_out}") from None
    except (*_OF_FILES, *_OF_CONTENT) as error:
        raise MeasurementError(f"{path} cannot be read ({type(error).__name__}: {error}); {way_out}") from error


def opened(path: Path) -> BinaryIO:
    """File for reading; OSError for anything but a regular file, as to open a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path) -> bytes:
    """Content of a regular file; ValueError where it is too large to be one of ours."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise ValueError(f"it has {size} bytes; at most {LARGEST_FILE} are read")
        return file.read()


def has_format(file: Path, mark: str) -> bool:
    """Whether a file is JSON of a format; of a damaged one the beginning tells, where our writers put it."""
    content = b""
    try:
        content = content_of(file)
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return re.match(rb'\s*\{\s*"format":\s*"%s"' % re.escape(mark.encode()), content) is not None
    return isinstance(found, dict) and found.get("format") == mark
