"""How soon the interpreter is handed over, while it is made prompt and afterwards."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from roastcoffea.backends.byvalue import packed_by_value
from roastcoffea.instrument.switching import PROMPT, prompt, usual_interval

USUAL = 0.007


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """An interval that is nobody's default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def test_the_usual_interval_is_known_while_it_is_shortened() -> None:
    assert usual_interval() == pytest.approx(USUAL)
    with prompt():
        assert sys.getswitchinterval() == pytest.approx(PROMPT)
        assert usual_interval() == pytest.approx(USUAL)
    assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_what_the_user_sets_meanwhile_stays() -> None:
    with prompt():
        sys.setswitchinterval(0.02)
        assert usual_interval() == pytest.approx(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_shorter_one_of_the_user_s_is_kept() -> None:
    sys.setswitchinterval(1e-4)
    with prompt():
        assert sys.getswitchinterval() == usual_interval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == usual_interval() == pytest.approx(1e-4)


def test_copies_that_were_pickled_by_value_know_of_each_other() -> None:
    copies: list[Any] = [pickle.loads(packed_by_value([prompt, usual_interval])) for _ in range(2)]
    (first, usual_of_first), (second, usual_of_second) = copies
    assert first is not second
    with first():
        assert usual_of_second() == pytest.approx(USUAL)
        with second():
            assert usual_of_first() == pytest.approx(USUAL)
        assert sys.getswitchinterval() == pytest.approx(PROMPT)
    assert sys.getswitchinterval() == pytest.approx(USUAL)
