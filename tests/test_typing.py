"""What type checkers know of the package: mypy reads this file too, and refuses what it need not ignore."""

import pytest

from roastcoffea import plot_time_ledger


def test_a_plot_takes_what_it_says() -> None:
    with pytest.raises(TypeError, match="titel"):
        plot_time_ledger(titel="x")  # type: ignore[call-arg]
