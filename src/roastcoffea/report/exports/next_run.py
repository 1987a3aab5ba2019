"""Exports for the next run: branches to preload, and sites and servers to avoid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from roastcoffea.diagnosis.findings.slow_places import Avoided
from roastcoffea.diagnosis.preloading import Preloading
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.report.exports import Format
from roastcoffea.storage.folders import whole_file

Document = dict[str, Any]


def preload_document(metrics: Metrics) -> Document:
    """Fileset entries and their estimated saving. If there are no entries, the document contains the reason."""
    try:
        found: Preloading = metrics.evaluator.value("preloading")
    except NotMeasuredError as reason:
        return {"fileset": {}, "reason": str(reason)}
    return {
        "fileset": {dataset: {"preload": branches} for dataset, branches in found.branches.items()},
        "saves": {
            "wall": metrics.evaluator.value("savings").of(found.taken)._asdict(),
            "read_seconds": found.seconds,
            "of_read_seconds": float(found.before.sum()),
        },
    }


def blocklist_document(metrics: Metrics) -> Document:
    """Sites and servers that failed or were slow, in formats for coffea, PocketCoffea and Rucio."""
    try:
        found: Avoided = metrics.evaluator.value("avoided")
    except NotMeasuredError as reason:
        return {"blocklist_sites": [], "servers": {}, "reason": str(reason)}
    return {
        "blocklist_sites": found.sites,
        "pocket_coffea": " ".join(f"-bs {site}" for site in found.sites),
        "rucio": "\\".join(["*", *found.sites]),
        "servers": found.servers,
    }


def _format(name: str, document: Callable[[Metrics], Document]) -> Format:
    def write(measured: Any, path: Path, overwrite: bool) -> None:
        whole = {"format": f"roastcoffea {name} 1", "run": measured.run.name or measured.run.id}
        with whole_file(path, overwrite=overwrite) as file:
            text = json.dumps(whole | document(measured.metrics), indent=1, allow_nan=False)
            file.write(text.encode() + b"\n")

    return Format(f".{name}.json", write)


FORMATS: Final = {
    "preload": _format("preload", preload_document),
    "blocklist": _format("blocklist", blocklist_document),
}
