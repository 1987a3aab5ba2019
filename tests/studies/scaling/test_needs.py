"""Rates to reach, as people write them."""

from __future__ import annotations

import pytest

from roastcoffea.studies.scaling.scaling import target_of


@pytest.mark.parametrize(
    ("text", "bits", "events"),
    [
        ("200 Gbit/s", 2e11, None),
        ("200Gbps", 2e11, None),
        ("25 GB/s", 2e11, None),
        ("50 kHz", None, 5e4),
        ("1e6 events/s", None, 1e6),
    ],
)
def test_rates(text: str, bits: float | None, events: float | None) -> None:
    target = target_of(text)
    assert (target.bits, target.events) == (bits, events)


@pytest.mark.parametrize("text", ["fast", "200", "0 Gbit/s", "-3 kHz", "200 Gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate; write one such as"):
        target_of(text)
