"""Exchange of two folders, which Python has no function for."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""

_REFUSALS: Final = frozenset(
    (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.ENOTTY)
)
"""What systems and file systems say that cannot exchange: NFS, FUSE, overlays, containers with a filter."""


def exchange(one: Path, other: Path) -> bool:
    """Let two folders exchange their names in one step; False where the system or file system cannot."""
    function = _exchange_function()
    if function is None:
        return False
    if function(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _REFUSALS:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _exchange_function() -> Callable[[bytes, bytes], int] | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            swap = library.renamex_np
            return lambda one, other: int(swap(one, other, ctypes.c_uint(_EXCHANGE)))
        rename: Any = library.renameat2
    except (AttributeError, OSError, TypeError):
        return None
    return lambda one, other: int(rename(_AT_FDCWD, one, _AT_FDCWD, other, ctypes.c_uint(_EXCHANGE)))
