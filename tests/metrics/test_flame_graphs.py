"""What viewers of flame graphs read."""

from __future__ import annotations

from profiled import profile_table

from roastcoffea.metrics.profile import Place, Profile, Stack, stacks_of


def test_collapsed_stacks_have_microseconds() -> None:
    lines = Profile(stacks_of(profile_table())).collapsed().splitlines()
    assert "dy;process();P.process (/home/p.py:10);spin (/home/p.py:20) 4000000" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 20_000_000


def test_names_break_no_line() -> None:
    stack = Stack("a;b\nc", (Place("f;g", "/x y", 1),), 1, 1.0, {})
    assert Profile([stack]).collapsed() == "a,b c;process();f,g (/x y:1) 1000000\n"


def test_speedscope_has_a_profile_for_each_dataset_and_state() -> None:
    document = Profile(stacks_of(profile_table())).speedscope()
    found = {each["name"]: each["endValue"] for each in document["profiles"]}
    assert found == {
        "tt": 16.0,
        "tt, on a core": 13.0,
        "tt, contention": 1.0,
        "tt, blocked": 1.0,
        "tt, state unknown": 1.0,
        "dy": 4.0,
        "dy, on a core": 4.0,
    }
    frames = document["shared"]["frames"]
    dy = document["profiles"][-2]
    assert [[frames[number]["name"] for number in stack] for stack in dy["samples"]] == [
        ["process()", "P.process", "spin"]
    ]
    assert (dy["type"], dy["unit"], dy["weights"]) == ("sampled", "seconds", [4.0])


def test_without_a_profile_both_say_why() -> None:
    assert Profile.not_measured("profile=False").collapsed() == "Not measured: profile=False. 0\n"
    (empty,) = Profile.not_measured("profile=False").speedscope()["profiles"]
    assert (empty["name"], empty["samples"]) == ("Not measured: profile=False.", [])
