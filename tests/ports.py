"""Ports for servers: below those that the system gives to connections, which others may take at any moment."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress

FIRST, LAST = 15_000, 32_000


def free_port() -> int:
    """A port that nobody listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on."""
    found = _free()
    return [next(found) for _ in range(count)]


def _free() -> Iterator[int]:
    chance = random.SystemRandom()  # tests that run at the same time have the same seed
    for port in chance.sample(range(FIRST, LAST), LAST - FIRST):
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            yield port
