"""Headlines of findings."""

from __future__ import annotations

import pytest
from limited_runs import verdict_of

from roastcoffea.diagnosis.causes import CAUSES
from roastcoffea.diagnosis.finding import HEADLINES, headline_of


def test_every_cause_has_one_and_it_fits_a_line_with_its_saving() -> None:
    assert HEADLINES.keys() == CAUSES.keys()
    assert max(map(len, HEADLINES.values())) <= 45
    assert not any(headline.endswith(".") for headline in HEADLINES.values())


def test_a_cause_without_a_headline_has_its_name() -> None:
    assert headline_of("token service") == "Token service"


@pytest.mark.parametrize("cause", ["storage", "missing data"])
def test_a_finding_has_that_of_its_cause_and_a_saving_where_one_is_known(cause: str) -> None:
    first, *_ = verdict_of(cause)
    assert first.headline == HEADLINES[cause]
    assert bool(first.saves) == (first.seconds is not None)
