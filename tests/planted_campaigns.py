"""Campaigns of the scale laboratory, which is beside the tests: `benchmarks/scale`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])


def laboratory(module: str) -> Any:
    """A module of the laboratory."""
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    return importlib.import_module(f"benchmarks.scale.{module}")
