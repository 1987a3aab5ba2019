"""What gave nothing, in the forms in which coffea takes it to be run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from roastcoffea.errors import MeasurementError
from roastcoffea.redaction import redacted

Lacking = Mapping[str, Mapping[str, str | None]]
"""Files of which nothing came, with their trees, by dataset."""


class Given(NamedTuple):
    """A dataset of a fileset: its own name, its metadata, and its own names of files by those that were recorded."""

    name: str
    metadata: Any
    files: Mapping[str, str]


def missing_fileset(lacking: Lacking, fileset: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fileset of the files of which nothing came; with that of the run, in its form and under its names."""
    if fileset is None:
        return {dataset: {"files": files} for dataset, files in lacking.items()}
    clean = {dataset: redacted(dataset) for dataset in fileset}
    return {name: _only(fileset[name], lacking[known]) for name, known in clean.items() if known in lacking}


def missing_items(missing: pa.Table, fileset: Mapping[str, Any] | None) -> list[Any]:
    """Chunks that gave nothing, as work items; with the fileset of the run, under its names and with its metadata."""
    from coffea.processor.executor import WorkItem

    given = {redacted(name): _given(name, described) for name, described in (fileset or {}).items()}
    items = []
    for row in missing.to_pylist():
        if row["entry_start"] is not None:
            dataset = given.get(row["dataset"], Given(row["dataset"], None, {}))
            file, uuid = dataset.files.get(row["file"], row["file"]), bytes.fromhex(row["uuid"])
            entries = row["entry_start"], row["entry_stop"]
            items.append(WorkItem(dataset.name, file, row["tree"], *entries, uuid, dataset.metadata))
    return items


def _only(dataset: Any, files: Mapping[str, str | None]) -> Any:
    """A dataset of a fileset with none but these files, which are recorded without secrets, in its own form."""
    if not isinstance(dataset, Mapping):
        return [file for recorded, file in _by_recorded_name(dataset).items() if recorded in files]
    listed = dataset["files"]
    own = [file for recorded, file in _by_recorded_name(listed).items() if recorded in files]
    return {**dataset, "files": {file: listed[file] for file in own} if isinstance(listed, Mapping) else own}


def _given(name: str, dataset: Any) -> Given:
    described = isinstance(dataset, Mapping)
    files = _by_recorded_name(dataset["files"] if described else dataset)
    own = {recorded: str(file) for recorded, file in files.items()}
    return Given(name, dataset.get("metadata") if described else None, own)


def _by_recorded_name(files: Iterable[Any]) -> dict[str, Any]:
    """Files of a dataset by the names under which they were recorded.

    Raises
    ------
    MeasurementError
        If that is one name for several: which of them is missing is not known then.
    """
    found: dict[str, Any] = {}
    for file in files:
        recorded = redacted(str(file))
        if recorded in found and str(found[recorded]) != str(file):
            raise MeasurementError(
                f"several files were recorded as {recorded}, as they differ only in what was masked in their names: "
                "which of them is missing is not known; use missing_fileset() without a fileset"
            )
        found[recorded] = file
    return found
