"""A backend of one's own: what it has without a line of code, and intervals that are none."""

from __future__ import annotations

from typing import Any

import pytest

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval


class Mine(AbstractMetricsBackend):
    """The two methods that are needed."""

    def start_tracking(self, interval: float = 1.0) -> None:
        pass

    def stop_tracking(self) -> dict[str, Any]:
        return {}


def test_two_methods_make_a_backend_without_fine_metrics() -> None:
    backend = Mine()
    span = backend.create_span("mine")
    assert span["name"] == "mine"
    with span["context"] as identity:
        assert identity is None
    assert backend.get_span_metrics({**span, "id": "x"}) == {}
    assert backend.supports_fine_metrics() is False
    with pytest.raises(TypeError, match="abstract"):
        AbstractMetricsBackend()  # type: ignore[abstract]


@pytest.mark.parametrize("interval", [0.05, 1, 3600])
def test_an_interval_is_a_number_of_seconds(interval: float) -> None:
    found = checked_interval(interval)
    assert (found, type(found)) == (interval, float)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True, None, "1"])
def test_what_is_no_interval_is_named(interval: Any) -> None:
    with pytest.raises(ValueError, match=f"pace must be a positive number of seconds, not {interval!r}"):
        checked_interval(interval, "pace")
