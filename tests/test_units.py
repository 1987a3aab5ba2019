import copy
import doctest
import math
import pickle
import time

import pytest
from handmade import T, handmade_run

from roastcoffea import units
from roastcoffea.report.summary import heading
from roastcoffea.units import (
    BYTE,
    BYTE_PER_SECOND,
    COUNT,
    FRACTION,
    GIGABIT_PER_SECOND,
    KILOHERTZ,
    MEBIBYTE,
    PERCENT,
    RATIO,
    SECOND,
    Unit,
    alike,
    share_text,
)

OF_NO_NUMBER = ("structure", "word")
UNITS = [value for value in vars(units).values() if isinstance(value, Unit) and value.symbol not in OF_NO_NUMBER]


@pytest.mark.parametrize("unit", [value for value in vars(units).values() if isinstance(value, Unit)], ids=str)
def test_a_unit_is_itself_after_pickling_and_copying(unit: Unit) -> None:
    assert pickle.loads(pickle.dumps(unit)) is copy.deepcopy(unit) is unit


def test_a_unit_of_others_can_be_pickled() -> None:
    unit = Unit("px", str)
    assert pickle.loads(pickle.dumps(unit)) == unit


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (BYTE, 1_500_000_000, "1.5 GB"),
        (BYTE, 999, "999 B"),
        (BYTE_PER_SECOND, 60_000_000, "60 MB/s"),
        (BYTE, 999.9, "1 kB"),
        (BYTE, 1000, "1 kB"),
        (BYTE, 0.5, "0.5 B"),
        (BYTE, 0, "0 B"),
        (BYTE, -2_000_000, "-2 MB"),
        (BYTE, 270_328_593.8, "270 MB"),
        (BYTE, 999_999_999, "1 GB"),
        (KILOHERTZ, 0.0123, "12.3 Hz"),
        (KILOHERTZ, 12.345, "12.3 kHz"),
        (KILOHERTZ, 5e-4, "0.5 Hz"),
        (GIGABIT_PER_SECOND, 0.0987, "98.7 Mbit/s"),
        (GIGABIT_PER_SECOND, 1.25, "1.25 Gbit/s"),
        (GIGABIT_PER_SECOND, 1e-10, "0.1 bit/s"),
        (SECOND, 0, "0 s"),
        (SECOND, 0.0123, "12.3 ms"),
        (SECOND, 2.5e-5, "25 us"),
        (SECOND, 12.34, "12.3 s"),
        (SECOND, 59.94, "59.9 s"),
        (SECOND, 59.96, "1 min 0 s"),
        (SECOND, 63, "1 min 3 s"),
        (SECOND, 3599.4, "59 min 59 s"),
        (SECOND, 3599.6, "1 h 0 min"),
        (SECOND, 7505, "2 h 5 min"),
        (SECOND, 86399, "1 d 0 h"),
        (SECOND, 273600, "3 d 4 h"),
        (SECOND, 86_400_000_000, "1,000,000 d"),
        (SECOND, -90, "-1 min 30 s"),
        (SECOND, -0.5, "-500 ms"),
        (PERCENT, 98.7, "98.7 %"),
        (PERCENT, 100, "100 %"),
        (FRACTION, 0.8262, "82.6 %"),
        (FRACTION, 0.00012, "0.012 %"),
        (RATIO, 1.6523, "1.65 x"),
        (MEBIBYTE, 8.2, "8.2 MiB"),
        (MEBIBYTE, -0.0352, "-0.04 MiB"),
        (COUNT, 2_000_000, "2,000,000"),
        (COUNT, 1.6, "1.6"),
        (COUNT, 2.0, "2"),
        (COUNT, 12345.678, "12,346"),
        (COUNT, -1500, "-1,500"),
        (COUNT, 1e18, "1e+18"),
    ],
)
def test_text(unit, value, text):
    assert unit.text(value) == text


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize(
    "value", [0, 1e-300, -1e-300, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan, 10**30, 0.1]
)
def test_extremes_stay_short(unit, value):
    text = unit.text(value)
    assert 0 < len(text) <= 17
    assert text.isascii()
    if not math.isfinite(value):
        assert str(abs(value)) in text


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_zero_is_zero(unit):
    assert unit.text(0.0).split()[0] == "0"


def test_larger_is_never_shown_smaller():
    prefixes = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
    shown = []
    for exponent in range(1199):
        amount, unit = BYTE.text(10 ** (exponent / 100)).split()
        shown.append(float(amount) * prefixes[unit.removesuffix("B")])
    assert shown == sorted(shown)


def test_examples():
    assert doctest.testmod(units).failed == 0


def test_a_unit_prints_as_its_symbol():
    assert f"{KILOHERTZ}" == "kHz"


@pytest.mark.parametrize("unit", [*UNITS, units.WORD, units.STRUCTURE], ids=str)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda unit: pickle.loads(pickle.dumps(unit))])
def test_a_unit_of_ours_is_one_wherever_it_comes(unit, again):
    assert again(unit) is unit


def test_a_unit_of_somebody_else_travels_as_it_is():
    unit = Unit("B", repr)
    assert pickle.loads(pickle.dumps(unit)) == unit != BYTE


def test_moments_have_their_zone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert units.moment(1_700_000_000.25) == "2023-11-14 23:13:20 CET"
        assert units.moment(1_690_000_000.25, milliseconds=True) == "2023-07-22 06:26:40.250 CEST"
        assert units.moment(T) in heading(handmade_run()).lead[0]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1e-3, "0.1 %"), (9.9e-4, "< 0.1 %"), (-1e-9, "< 0.1 %"), (0.123, "12.3 %"), (-0.5, "-50 %")],
)
def test_shares_that_nobody_would_miss_have_no_digits(share, text):
    assert share_text(share) == text


@pytest.mark.parametrize(
    ("unit", "values", "texts"),
    [
        (GIGABIT_PER_SECOND, [0.0632, 1.5, -1.44], ["0.0632 Gbit/s", "1.5 Gbit/s", "-1.44 Gbit/s"]),
        (SECOND, [3.2, 3.26, 0.06], ["3.2 s", "3.26 s", "0.06 s"]),
        (SECOND, [63, 3], ["1 min 3 s", "3 s"]),
        (BYTE, [0, 2e6], ["0 B", "2 MB"]),
        (BYTE, [12, 9.44e9], ["12 B", "9.44 GB"]),
        (FRACTION, [0.5, 0.001], ["50 %", "0.1 %"]),
        (COUNT, [2, 2e6], ["2", "2,000,000"]),
        (BYTE, [0, 0], ["0 B", "0 B"]),
        (BYTE, [], []),
    ],
)
def test_amounts_of_a_row_have_one_prefix(unit: Unit, values: list[float], texts: list[str]) -> None:
    assert [alike(unit, values).text(value) for value in values] == texts
