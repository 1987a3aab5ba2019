"""The log of an interchange: three managers of two workers each on two hosts, in blocks that were cancelled."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from roastcoffea.backends.parsl import managers_in

LOG = Path(__file__).parent.parent / "data" / "parsl" / "interchange.log"
"""What an interchange of Parsl 2026.10.26 logged, with other names of hosts and fewer packages."""

PATIENCE = 120.0
LINES = LOG.read_text(encoding="utf-8").splitlines()
FIRST, SECOND = "909650ec1b9f", "aa8bbadaf908"


def test_managers_from_registration_to_the_end_of_their_block() -> None:
    managers = managers_in(LINES, PATIENCE)
    assert [(row["manager"], row["block"], row["host"], row["workers"]) for row in managers] == [
        (FIRST, "0", "node-1", 2),
        (SECOND, "2", "node-1", 2),
        ("0993ba4f9bbe", "1", "node-2", 2),
    ]
    assert [(row["start"], row["stop"]) for row in managers] == [
        (1795528665.806661, 1795528675.464409),
        (1795528669.885607, 1795528677.543295),
        (1795528670.258334, 1795528677.54371),
    ]


def test_a_log_that_goes_on() -> None:
    """Cut off in a line, as that of an interchange that was killed."""
    registered = next(number for number, line in enumerate(LINES) if "Registration" in line)
    (manager,) = managers_in([*LINES[: registered + 1], LINES[registered + 2][:90]], PATIENCE)
    assert (manager["manager"], manager["stop"]) == (FIRST, None)


@pytest.mark.parametrize(
    ("line", "stop"),
    [
        (f"WARNING: Too many heartbeats missed for manager b'{FIRST}' - removing manager", 1795528700.5 - 20.0),
        (f"INFO: Manager b'{FIRST}' is drained - telling manager to shutdown", 1795528700.5),
        ("WARNING: Exiting", 1795528700.5),
        (f"INFO: Manager b'{FIRST}' has reached its drain time - draining", None),
        (f"WARNING: Too many heartbeats missed for manager b'{SECOND}' - removing manager", None),
    ],
)
def test_how_a_manager_ends(line: str, stop: float | None) -> None:
    registered = next(text for text in LINES if "Registration" in text)
    (manager,) = managers_in([registered, f"1795528700.500000 2026-11-24 13:58:20 X-1 Y-2 z:1 f {line}"], 20.0)
    assert manager["stop"] == stop


def test_a_manager_is_not_lost_before_it_came() -> None:
    registered = next(text for text in LINES if "Registration" in text)
    lost = f"1795528700.5 2026-11-24 13:58:20 X Y z f WARNING: Too many heartbeats missed for manager b'{FIRST}' - x"
    (manager,) = managers_in([registered, lost], PATIENCE)
    assert manager["start"] == manager["stop"]


def test_local_times_of_older_releases() -> None:
    """As Parsl 2025.1 writes them."""
    registered = next(text for text in LINES if "Registration" in text).partition("INFO: ")[2]
    line = f"2025-01-13 12:00:00.250 interchange:420 MainProcess(1) MainThread process [INFO] {registered}"
    (manager,) = managers_in([line], PATIENCE)
    assert manager["start"] == datetime(2025, 1, 13, 12, 0, 0, 250_000).timestamp()
