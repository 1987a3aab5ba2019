"""The profile in formats of flame graph viewers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from roastcoffea.metrics.stacks import ALL_STATES, ROOT, WORDS, Place, Stack
from roastcoffea.report.phrases import absence

MICROSECONDS: Final = 1_000_000
SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
NO_DATASET: Final = "(no dataset)"


def collapsed(stacks: Sequence[Stack], absent: str | None = None) -> str:
    """One line per stack: its frames from the dataset down, and microseconds; or why there are none."""
    if absent is not None:
        return f"{_word(absence(absent))} 0\n"
    paths = [(stack, [stack.dataset or NO_DATASET, *map(str, (ROOT, *stack.places))]) for stack in stacks]
    lines = [f"{';'.join(map(_word, path))} {round(stack.seconds * MICROSECONDS)}\n" for stack, path in paths]
    return "".join(sorted(lines))


def _word(text: str) -> str:
    return " ".join(text.replace(";", ",").split())


def speedscope(stacks: Sequence[Stack], absent: str | None = None) -> dict[str, Any]:
    """Content of a speedscope file: for each dataset one profile of all its time, and one per state."""
    frames: dict[Place, int] = {}
    seconds: dict[str | None, float] = {}
    for stack in stacks:
        seconds[stack.dataset] = seconds.get(stack.dataset, 0.0) + stack.seconds
    profiles = []
    for dataset in sorted(seconds, key=lambda name: -seconds[name]):
        of_dataset = [stack for stack in stacks if stack.dataset == dataset]
        name = dataset or NO_DATASET
        profiles.append(_sampled(name, [(stack, stack.seconds) for stack in of_dataset], frames))
        for state in ALL_STATES:
            found = [(stack, stack.states[state]) for stack in of_dataset if stack.states[state] > 0]
            profiles += [_sampled(f"{name}, {WORDS[state]}", found, frames)] if found else []
    if not profiles:
        profiles.append(_sampled("No samples." if absent is None else absence(absent), [], frames))
    return {
        "$schema": SCHEMA,
        "exporter": "roastcoffea",
        "name": "process()",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(place) for place in frames]},
        "profiles": profiles,
    }


def _sampled(name: str, found: Sequence[tuple[Stack, float]], frames: dict[Place, int]) -> dict[str, Any]:
    """A profile of stacks with their seconds; frames are numbered in order of appearance."""
    paths = [(ROOT, *stack.places) for stack, _ in found]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(seconds for _, seconds in found),
        "samples": [[frames.setdefault(place, len(frames)) for place in path] for path in paths],
        "weights": [seconds for _, seconds in found],
    }


def _frame(place: Place) -> dict[str, Any]:
    return {"name": place.function, **({"file": place.file, "line": place.line} if place.file else {})}
